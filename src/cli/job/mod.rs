//! `rcfarm job …`, `rcfarm apply`, `rcfarm plan`: batch work.

pub(in crate::cli) mod apply;
mod commands;
mod delete;
mod find;
mod list;
mod show;
mod wait;

use super::context::CommandContext;
use super::failure::CliExit;

/// Jobs: batch work whose members start together
#[derive(clap::Subcommand)]
pub enum JobCommand {
    /// List all jobs
    #[command(visible_alias = "ls")]
    List(list::JobListArgs),
    /// Show a job: its record and what its owner farm says of it
    Get(JobArgs),
    /// Show a job's tasks and their pods
    Tree(JobArgs),
    /// Say why a job is as it is, and what it waits for
    Explain(JobArgs),
    /// Print the log of one of a job's pods, from its node
    Logs(show::JobLogsArgs),
    /// Wait for a job's end; exit code 2 when that is no success
    Wait(wait::WaitArgs),
    /// Declare that a job shall not run now: its pods go, and it can go on later
    Suspend(JobArgs),
    /// Let a suspended or aborted job go on
    Resume(commands::CommandArgs),
    /// Stop a job; what has ended stays, and it can go on later
    Abort(commands::CommandArgs),
    /// Start a job again, all of it
    Restart(commands::CommandArgs),
    /// Stop a job for good; it counts as failed
    Terminate(commands::CommandArgs),
    /// Stop a job; it counts as done
    Complete(commands::CommandArgs),
    /// Start the pods of one task again
    RestartTask(commands::TaskArgs),
    /// Start one pod again
    RestartPod(commands::PodArgs),
    /// Remove a job's pods, then the job
    #[command(visible_alias = "rm")]
    Delete(delete::JobDeleteArgs),
}

/// Names a job.
#[derive(clap::Args)]
pub struct JobArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: crate::ids::Namespaced,
}

pub(super) async fn run(console: &CommandContext, command: JobCommand) -> anyhow::Result<CliExit> {
    use crate::command::CommandAction;
    match command {
        JobCommand::List(args) => list::run(console, &args).await,
        JobCommand::Get(args) => show::get(console, &args.job).await,
        JobCommand::Tree(args) => show::tree(console, &args.job).await,
        JobCommand::Explain(args) => show::explain(console, &args.job).await,
        JobCommand::Logs(args) => show::logs(console, args).await,
        JobCommand::Wait(args) => wait::run(console, &args).await,
        JobCommand::Suspend(args) => commands::suspend(console, &args.job).await,
        JobCommand::Resume(args) => commands::resume(console, &args).await,
        JobCommand::Abort(args) => commands::run(console, &args, CommandAction::AbortJob).await,
        JobCommand::Restart(args) => commands::run(console, &args, CommandAction::RestartJob).await,
        JobCommand::Terminate(args) => {
            commands::run(console, &args, CommandAction::TerminateJob).await
        }
        JobCommand::Complete(args) => {
            commands::run(console, &args, CommandAction::CompleteJob).await
        }
        JobCommand::RestartTask(args) => commands::restart_task(console, &args).await,
        JobCommand::RestartPod(args) => commands::restart_pod(console, &args).await,
        JobCommand::Delete(args) => delete::run(console, &args).await,
    }
}
