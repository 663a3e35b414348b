//! `rcfarm flow …`: jobs that follow each other, and the templates that they are made of.
//!
//! Keys read: JobFlows, JobTemplates, statuses and locks. Keys written: the record of a JobFlow or a JobTemplate, by CAS
//! in one transaction with its audit record.

mod show;
mod templates;

use serde_json::Value;

use super::context::CommandContext;
use super::documents::{
    Accepted, DeleteOptions, DocumentKind, ReferencedDocuments, References, delete_documents,
};
use super::failure::CliExit;
use crate::flow::document::{self, FlowSpec, FlowStep, job_name};
use crate::flow::template::{self, MakingFlow};
use crate::job::document::FieldIssues;
use rcfarm_api::flow::{KIND, TEMPLATE_KIND};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::{Index, key};
use rcfarm_store::Key;

/// Jobs that follow each other: Volcano's JobFlow and JobTemplate
#[derive(clap::Subcommand)]
pub enum FlowCommand {
    /// List all flows
    #[command(visible_alias = "ls")]
    List(show::FlowListArgs),
    /// Show a flow's phase, and the job of each step
    #[command(visible_alias = "get")]
    Status(FlowArgs),
    /// Show the steps of a flow, each below the one that it waits for
    Tree(FlowArgs),
    /// Explain what a flow and each of its steps wait for
    #[command(visible_alias = "describe")]
    Explain(FlowArgs),
    /// Delete flows and their jobs
    #[command(visible_alias = "rm")]
    Delete(FlowDeleteArgs),
    #[command(subcommand)]
    Template(templates::TemplateCommand),
}

#[derive(clap::Args)]
pub struct FlowArgs {
    /// The flow: its name, or <namespace>/<name>
    #[arg(value_name = "FLOW")]
    flow: Namespaced,
}

#[derive(clap::Args)]
pub struct FlowDeleteArgs {
    /// The flows: their names, or <namespace>/<name>
    #[arg(value_name = "FLOW", required_unless_present = "filename")]
    flows: Vec<Namespaced>,
    #[command(flatten)]
    options: DeleteOptions,
}

/// JobTemplates as documents.
pub(in crate::cli) const JOB_TEMPLATE: DocumentKind = DocumentKind {
    kind: TEMPLATE_KIND,
    noun: "flow template",
    key: key::job_template,
    check: |id, document| {
        let warnings = template::check(id, document)?;
        Ok(Accepted { warnings, queues: Vec::new() })
    },
    references: None,
};

/// JobFlows as documents.
pub(in crate::cli) const JOB_FLOW: DocumentKind = DocumentKind {
    kind: KIND,
    noun: "flow",
    key: key::job_flow,
    check: |id, document| {
        let FlowSpec { warnings, .. } = document::read(id, document)?;
        Ok(Accepted { warnings, queues: Vec::new() })
    },
    references: Some(References { keys: templates_of, check: check_steps }),
};

fn template_of(id: &Namespaced, step: &FlowStep) -> Key {
    key::job_template(&Namespaced { namespace: id.namespace.clone(), name: step.template.clone() })
}

fn templates_of(id: &Namespaced, document: &Value) -> Vec<Key> {
    let steps = document::read(id, document).map(|spec| spec.steps).unwrap_or_default();
    steps.iter().map(|step| template_of(id, step)).collect()
}

/// A template may be missing: the step waits for it. One that is there must make a valid job.
fn check_steps(id: &Namespaced, document: &Value, templates: &ReferencedDocuments) -> FieldIssues {
    let mut issues = FieldIssues::default();
    let steps = document::read(id, document).map(|spec| spec.steps).unwrap_or_default();
    for (n, step) in steps.iter().enumerate() {
        let path = format!("spec.flows[{n}]");
        let Some(stored) = templates.get(&template_of(id, step)) else {
            let why = format!("there is no JobTemplate {}; the step waits for it", step.template);
            issues.warning(path, why);
            continue;
        };
        let Ok(name) = job_name(&id.name, &step.name, step.retry) else { continue };
        let job = Namespaced { namespace: id.namespace.clone(), name };
        let flow = MakingFlow { id, uid: Index::ZERO };
        if let Err(error) = template::job(flow, step, &job, stored) {
            issues.problem(
                path,
                format!("JobTemplate {} makes no valid job: {error}", step.template),
            );
        }
    }
    issues
}

pub(super) async fn run(context: &CommandContext, command: FlowCommand) -> anyhow::Result<CliExit> {
    match command {
        FlowCommand::List(args) => show::list(context, &args).await,
        FlowCommand::Status(args) => show::status(context, &args.flow).await,
        FlowCommand::Tree(args) => show::tree(context, &args.flow).await,
        FlowCommand::Explain(args) => show::explain(context, &args.flow).await,
        FlowCommand::Delete(args) => {
            delete_documents(context, &JOB_FLOW, &args.flows, &args.options).await
        }
        FlowCommand::Template(command) => templates::run(context, command).await,
    }
}
