//! `rcfarm rc …`: replication controllers.

pub(in crate::cli) mod allocations;
pub(in crate::cli) mod apply;
mod change;
pub(in crate::cli) mod create;
mod delete;
pub(in crate::cli) mod find;
pub(in crate::cli) mod foreign;
mod list;
mod orphans;
mod plan;
mod show;
pub(in crate::cli) mod snapshot;
pub(in crate::cli) mod update;
mod wait;
mod watch;

use super::context::CommandContext;
use super::failure::CliExit;

/// Replication controllers: keep a number of pods on nodes that match a selector
#[derive(clap::Subcommand)]
pub enum RcCommand {
    /// Create a controller and print its id
    Create(create::RcCreateArgs),
    /// List all controllers
    #[command(visible_alias = "ls")]
    List(list::RcListArgs),
    /// Show a controller's record
    Get(show::RcGetArgs),
    /// Show a controller's status
    Status(RcArgs),
    /// List a controller's pods
    Pods(RcArgs),
    /// Set the number of desired pods
    Scale(change::ScaleArgs),
    /// Change a controller's manifest, node selector or strategy; pods get a manifest one after the other
    #[command(visible_alias = "update-manifest")]
    Update(update::RcUpdateArgs),
    /// Enable a controller
    Enable(RcArgs),
    /// Disable a controller: its pods are left as they are
    Disable(RcArgs),
    /// Delete a controller's pods, then the controller
    #[command(visible_alias = "rm")]
    Delete(delete::RcDeleteArgs),
    /// Show what the owner farm would do now; exit code 0 nothing, 1 something, 2 an error
    Plan(plan::PlanArgs),
    /// Explain why a controller has not reached its desired state
    Explain(RcArgs),
    /// Print each change of a controller's status, or of all
    Watch(watch::WatchArgs),
    /// List pods whose controller is gone, or remove them
    Orphans(orphans::OrphansArgs),
}

#[derive(clap::Args)]
pub struct RcArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
}

pub(super) async fn run(context: &CommandContext, command: RcCommand) -> anyhow::Result<CliExit> {
    match command {
        RcCommand::Create(args) => create::run(context, args).await,
        RcCommand::List(args) => list::run(context, &args).await,
        RcCommand::Get(args) => show::get(context, &args).await,
        RcCommand::Status(args) => show::status(context, &args.rc).await,
        RcCommand::Pods(args) => show::pods(context, &args.rc).await,
        RcCommand::Scale(args) => change::scale(context, &args).await,
        RcCommand::Update(args) => update::run(context, args).await,
        RcCommand::Enable(args) => change::switch(context, &args.rc, false).await,
        RcCommand::Disable(args) => change::switch(context, &args.rc, true).await,
        RcCommand::Delete(args) => delete::run(context, &args).await,
        RcCommand::Plan(args) => plan::plan(context, &args).await,
        RcCommand::Explain(args) => plan::explain(context, &args.rc).await,
        RcCommand::Watch(args) => watch::run(context, &args).await,
        RcCommand::Orphans(args) => orphans::run(context, &args).await,
    }
}
