//! `rcfarm rc …`: replication controllers.

pub(in crate::cli) mod allocations;
mod change;
pub(in crate::cli) mod create;
mod delete;
pub(in crate::cli) mod find;
mod list;
mod orphans;
mod plan;
mod show;
pub(in crate::cli) mod snapshot;
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
    /// Show what the owner farm says of a controller
    Status(RcArgs),
    /// List a controller's pods
    Pods(RcArgs),
    /// Change how many pods there shall be
    Scale(change::ScaleArgs),
    /// Let a controller's pods be changed again
    Enable(change::SwitchArgs),
    /// Leave a controller's pods as they are, whatever its record says
    Disable(change::SwitchArgs),
    /// Remove a controller's pods, then the controller
    #[command(visible_alias = "rm")]
    Delete(delete::RcDeleteArgs),
    /// Show what the owner farm would do now; exit code 0 nothing, 1 something, 2 an error
    Plan(plan::PlanArgs),
    /// Say why a controller is not as it should be
    Explain(RcArgs),
    /// Print each change of a controller's status, or of all
    Watch(watch::WatchArgs),
    /// List pods whose controller is gone, or remove them
    Orphans(orphans::OrphansArgs),
}

/// Names a controller.
#[derive(clap::Args)]
pub struct RcArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
}

pub(super) async fn run(console: &CommandContext, command: RcCommand) -> anyhow::Result<CliExit> {
    match command {
        RcCommand::Create(args) => create::run(console, args).await,
        RcCommand::List(args) => list::run(console, &args).await,
        RcCommand::Get(args) => show::get(console, &args).await,
        RcCommand::Status(args) => show::status(console, &args.rc).await,
        RcCommand::Pods(args) => show::pods(console, &args.rc).await,
        RcCommand::Scale(args) => change::scale(console, &args).await,
        RcCommand::Enable(args) => change::switch(console, &args, false).await,
        RcCommand::Disable(args) => change::switch(console, &args, true).await,
        RcCommand::Delete(args) => delete::run(console, &args).await,
        RcCommand::Plan(args) => plan::plan(console, &args).await,
        RcCommand::Explain(args) => plan::explain(console, &args.rc).await,
        RcCommand::Watch(args) => watch::run(console, &args).await,
        RcCommand::Orphans(args) => orphans::run(console, &args).await,
    }
}
