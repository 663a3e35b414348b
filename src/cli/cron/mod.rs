//! `rcfarm cron …`: jobs by a schedule.
//!
//! Keys read: CronJobs, their statuses and locks. Keys written: a CronJob's record, or for `run` a job's, each by CAS in
//! one transaction with its audit record.

mod change;
pub(super) mod kind;
mod show;

use super::context::CommandContext;
use super::failure::CliExit;
use rcfarm_api::ids::Namespaced;

/// Jobs by a schedule: Volcano's and Kubernetes' CronJob
#[derive(clap::Subcommand)]
pub enum CronCommand {
    /// List all CronJobs with their next runs
    #[command(visible_alias = "ls")]
    List(show::CronListArgs),
    /// Show a CronJob's record and status
    Get(CronArgs),
    /// Print the next times at which a CronJob, or a schedule, is due
    Next(show::CronNextArgs),
    /// Explain what a CronJob waits for, and what became of its last runs
    #[command(visible_alias = "describe")]
    Explain(CronArgs),
    /// Make a job of a CronJob's template now, beside its schedule
    Run(change::CronRunArgs),
    /// Suspend a CronJob: it makes no more jobs; those that run go on
    Suspend(CronArgs),
    /// Resume a suspended CronJob; of the runs that it missed, the latest is made
    Resume(CronArgs),
    /// Delete CronJobs and their jobs
    #[command(visible_alias = "rm")]
    Delete(change::CronDeleteArgs),
}

#[derive(clap::Args)]
pub struct CronArgs {
    /// The CronJob: its name, or <namespace>/<name>
    #[arg(value_name = "CRON")]
    cron: Namespaced,
}

pub(super) async fn run(context: &CommandContext, command: CronCommand) -> anyhow::Result<CliExit> {
    match command {
        CronCommand::List(args) => show::list(context, &args).await,
        CronCommand::Get(args) => show::get(context, &args.cron).await,
        CronCommand::Next(args) => show::next(context, &args).await,
        CronCommand::Explain(args) => show::explain(context, &args.cron).await,
        CronCommand::Run(args) => change::run(context, &args).await,
        CronCommand::Suspend(args) => change::set_suspend(context, &args.cron, true).await,
        CronCommand::Resume(args) => change::set_suspend(context, &args.cron, false).await,
        CronCommand::Delete(args) => change::delete(context, &args).await,
    }
}
