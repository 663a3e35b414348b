//! `rcfarm job …`, `rcfarm apply`, `rcfarm plan`: batch work.

pub(in crate::cli) mod apply;
mod ask;
mod delete;
mod find;
mod list;
mod show;
mod wait;

use super::console::Console;
use super::failure::Exit;

/// Jobs: batch work whose members start together
#[derive(clap::Subcommand)]
pub enum JobCommand {
    /// List all jobs
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show a job: its record and what its owner farm says of it
    Get(JobArgs),
    /// Show a job's tasks and their pods
    Tree(JobArgs),
    /// Say why a job is as it is, and what it waits for
    Explain(JobArgs),
    /// Print the log of one of a job's pods, from its node
    Logs(show::LogsArgs),
    /// Wait for a job's end; exit code 2 when that is no success
    Wait(wait::WaitArgs),
    /// Declare that a job shall not run now: its pods go, and it can go on later
    Suspend(JobArgs),
    /// Let a suspended or aborted job go on
    Resume(ask::AskArgs),
    /// Stop a job; what has ended stays, and it can go on later
    Abort(ask::AskArgs),
    /// Start a job again, all of it
    Restart(ask::AskArgs),
    /// Stop a job for good; it counts as failed
    Terminate(ask::AskArgs),
    /// Stop a job; it counts as done
    Complete(ask::AskArgs),
    /// Start the pods of one task again
    RestartTask(ask::TaskArgs),
    /// Start one pod again
    RestartPod(ask::PodArgs),
    /// Remove a job's pods, then the job
    #[command(visible_alias = "rm")]
    Delete(delete::DeleteArgs),
}

/// Names a job.
#[derive(clap::Args)]
pub struct JobArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: crate::ids::Namespaced,
}

pub(super) async fn run(console: &Console, command: JobCommand) -> anyhow::Result<Exit> {
    use crate::command::Action;
    match command {
        JobCommand::List(args) => list::run(console, &args).await,
        JobCommand::Get(args) => show::get(console, &args.job).await,
        JobCommand::Tree(args) => show::tree(console, &args.job).await,
        JobCommand::Explain(args) => show::explain(console, &args.job).await,
        JobCommand::Logs(args) => show::logs(console, args).await,
        JobCommand::Wait(args) => wait::run(console, &args).await,
        JobCommand::Suspend(args) => ask::suspend(console, &args.job).await,
        JobCommand::Resume(args) => ask::resume(console, &args).await,
        JobCommand::Abort(args) => ask::run(console, &args, Action::AbortJob).await,
        JobCommand::Restart(args) => ask::run(console, &args, Action::RestartJob).await,
        JobCommand::Terminate(args) => ask::run(console, &args, Action::TerminateJob).await,
        JobCommand::Complete(args) => ask::run(console, &args, Action::CompleteJob).await,
        JobCommand::RestartTask(args) => ask::restart_task(console, &args).await,
        JobCommand::RestartPod(args) => ask::restart_pod(console, &args).await,
        JobCommand::Delete(args) => delete::run(console, &args).await,
    }
}
