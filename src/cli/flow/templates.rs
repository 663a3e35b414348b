//! `rcfarm flow template …`

use serde::Serialize;
use serde_json::{Value, json};

use super::kind::JOB_TEMPLATE;
use super::show::FlowListArgs;
use crate::cli::context::CommandContext;
use crate::cli::documents::{find, write};
use crate::cli::failure::CliExit;
use crate::cli::output::or_dash;
use crate::flow::{document, template};
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::{Stored, key};

/// Templates of the jobs of flows: Volcano's JobTemplate
#[derive(clap::Subcommand)]
pub enum TemplateCommand {
    /// List all templates with the jobs that flows have made of them
    #[command(visible_alias = "ls")]
    List(FlowListArgs),
    /// Show a template's record
    Get(TemplateArgs),
    /// Delete templates; jobs that were made of them stay
    #[command(visible_alias = "rm")]
    Delete(TemplateDeleteArgs),
}

#[derive(clap::Args)]
pub struct TemplateArgs {
    /// The template: its name, or <namespace>/<name>
    #[arg(value_name = "TEMPLATE")]
    template: Namespaced,
}

#[derive(clap::Args)]
pub struct TemplateDeleteArgs {
    /// The templates: their names, or <namespace>/<name>
    #[arg(value_name = "TEMPLATE", required = true)]
    templates: Vec<Namespaced>,
}

pub(super) async fn run(
    context: &CommandContext,
    command: TemplateCommand,
) -> anyhow::Result<CliExit> {
    match command {
        TemplateCommand::List(args) => list(context, &args).await,
        TemplateCommand::Get(args) => {
            let (_, stored) = find(context, &JOB_TEMPLATE, &args.template).await?;
            context.show(&stored, || format!("{stored:#}"))
        }
        TemplateCommand::Delete(args) => delete(context, &args.templates).await,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    template: Namespaced,
    /// Volcano's field of a template's status.
    job_depends_on_list: Vec<ObjectName>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

async fn list(context: &CommandContext, args: &FlowListArgs) -> anyhow::Result<CliExit> {
    let made = made_jobs(context).await?;
    let prefix = key::job_templates();
    let mut rows = Vec::new();
    for entry in context.list(&prefix).await? {
        let Some(id) = key::namespaced(&prefix, &entry.key).filter(|id| args.shows(id)) else {
            continue;
        };
        let problems = template::decode(&id, &entry.value).err().unwrap_or_default();
        let of_it = made.iter().filter(|(template, _)| *template == id);
        rows.push(Row {
            job_depends_on_list: of_it.map(|(_, job)| job.clone()).collect(),
            invalid: problems.first().map(ToString::to_string),
            template: id,
        });
    }
    context.show_rows(
        &rows,
        "there are no JobTemplates; to make one: rcfarm apply -f FILE",
        &[
            ("TEMPLATE", &|row| row.template.to_string()),
            ("JOBS", &|row| row.job_depends_on_list.len().to_string()),
            ("INVALID", &|row| or_dash(row.invalid.as_ref())),
        ],
    )
}

/// Jobs that flows have made, each with its template.
async fn made_jobs(context: &CommandContext) -> anyhow::Result<Vec<(Namespaced, ObjectName)>> {
    let (flows, statuses) = (key::job_flows(), key::job_flow_statuses());
    let stored = context.list(&statuses).await?;
    let mut made = Vec::new();
    for entry in context.list(&flows).await? {
        let Some(id) = key::namespaced(&flows, &entry.key) else { continue };
        let (Ok(spec), key) = (document::decode(&id, &entry.value), key::job_flow_status(&id))
        else {
            continue;
        };
        let status = stored.binary_search_by(|entry| entry.key.as_str().cmp(key.as_str())).ok();
        let status = status.and_then(|at| FlowStatus::decode(&stored[at].value).ok());
        for job in status.into_iter().flat_map(|status| status.job_status_list) {
            let Some(step) = spec.steps.iter().find(|step| step.name == job.step) else { continue };
            let name = step.template.clone();
            made.push((Namespaced { namespace: id.namespace.clone(), name }, job.name));
        }
    }
    Ok(made)
}

async fn delete(context: &CommandContext, ids: &[Namespaced]) -> anyhow::Result<CliExit> {
    for id in ids {
        let (entry, _) = find(context, &JOB_TEMPLATE, id).await?;
        write(context, &JOB_TEMPLATE, id, (Some(&entry), None), "Deleted").await?;
    }
    let shown: Vec<Value> = ids.iter().map(|id| json!({"template": id, "deleted": true})).collect();
    context.show(&shown, || ids.iter().map(|id| format!("{id}: deleted\n")).collect())
}
