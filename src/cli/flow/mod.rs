//! `rcfarm flow …`: jobs that follow each other, and the templates that they are made of.
//!
//! Keys read: JobFlows, JobTemplates, statuses and locks. Keys written: the record of a JobFlow or a JobTemplate, by CAS
//! in one transaction with its audit record.

pub(super) mod kind;
mod show;
mod templates;

use self::kind::JOB_FLOW;
use super::context::CommandContext;
use super::delete_documents::{DeleteOptions, delete_documents};
use super::failure::CliExit;
use rcfarm_api::ids::Namespaced;

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
