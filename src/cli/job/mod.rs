//! `rcfarm job …`: batch work.

pub(in crate::cli) mod apply;
mod attempt;
mod commands;
mod delete;
mod dispatch;
mod find;
mod follow;
mod label;
mod list;
mod logs;
mod member_log;
mod missing;
mod print_log;
mod reading;
mod run;
mod show;
mod wait;
mod watch;

use super::context::CommandContext;
use super::failure::CliExit;

/// Jobs: batch work whose members start together
#[derive(clap::Subcommand)]
pub enum JobCommand {
    /// List all jobs
    #[command(visible_alias = "ls")]
    List(list::JobListArgs),
    /// Run a command as a job, or as the tasks of an array: rcfarm job run --array 0-99%10 -- COMMAND
    #[command(visible_alias = "submit")]
    Run(Box<run::JobRunArgs>),
    /// Make a job of a JobTemplate, with metadata and a payload; the same token makes it once
    Dispatch(dispatch::DispatchArgs),
    /// Show a job's record and status
    Get(JobGetArgs),
    /// Show a job's tasks and their pods
    Tree(JobArgs),
    /// Explain a job's phase and what it waits for
    #[command(visible_alias = "describe")]
    Explain(JobArgs),
    /// Print the logs of a job's pods, from their nodes
    Logs(member_log::JobLogsArgs),
    /// Wait until a job has ended; exit code 2 unless it succeeded
    Wait(wait::WaitArgs),
    /// Show or change the labels of a job: rcfarm job label JOB team=a tier-
    Label(label::JobLabelArgs),
    /// Suspend a job: its pods are deleted, and it can be resumed
    Suspend(JobArgs),
    /// Resume a suspended or aborted job
    Resume(commands::CommandArgs),
    /// Abort a job: running pods are stopped, and it can be resumed
    Abort(commands::CommandArgs),
    /// Restart all pods of a job
    Restart(commands::CommandArgs),
    /// Terminate a job: it is stopped and counts as failed
    #[command(visible_alias = "cancel")]
    Terminate(commands::CommandArgs),
    /// Complete a job: it is stopped and counts as completed
    Complete(commands::CommandArgs),
    /// Restart the pods of one task
    RestartTask(commands::TaskArgs),
    /// Restart one pod
    RestartPod(commands::PodArgs),
    /// Delete jobs: their pods, then the jobs
    #[command(visible_alias = "rm")]
    Delete(delete::JobDeleteArgs),
    #[command(subcommand)]
    Type(super::job_type::JobTypeCommand),
}

#[derive(clap::Args)]
pub struct JobArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: rcfarm_api::ids::Namespaced,
}

#[derive(clap::Args)]
pub struct JobGetArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print a line for each change of its status
    #[arg(short, long)]
    watch: bool,
}

pub(super) async fn run(context: &CommandContext, command: JobCommand) -> anyhow::Result<CliExit> {
    use rcfarm_api::command::CommandAction;
    match command {
        JobCommand::List(args) => list::run(context, &args).await,
        JobCommand::Run(args) => run::run(context, &args).await,
        JobCommand::Dispatch(args) => dispatch::run(context, &args).await,
        JobCommand::Get(JobGetArgs { job, watch: false }) => show::get(context, &job.job).await,
        JobCommand::Get(JobGetArgs { job: JobArgs { job }, .. }) => {
            find::find(context, &job).await?;
            watch::watch(context, |found| found.id == job).await
        }
        JobCommand::Tree(args) => show::tree(context, &args.job).await,
        JobCommand::Explain(args) => show::explain(context, &args.job).await,
        JobCommand::Logs(args) => logs::logs(context, &args).await,
        JobCommand::Wait(args) => wait::run(context, &args).await,
        JobCommand::Label(args) => label::run(context, &args).await,
        JobCommand::Suspend(args) => commands::suspend(context, &args.job).await,
        JobCommand::Resume(args) => commands::resume(context, &args).await,
        JobCommand::Abort(args) => commands::run(context, &args, CommandAction::AbortJob).await,
        JobCommand::Restart(args) => commands::run(context, &args, CommandAction::RestartJob).await,
        JobCommand::Terminate(args) => {
            commands::run(context, &args, CommandAction::TerminateJob).await
        }
        JobCommand::Complete(args) => {
            commands::run(context, &args, CommandAction::CompleteJob).await
        }
        JobCommand::RestartTask(args) => commands::restart_task(context, &args).await,
        JobCommand::RestartPod(args) => commands::restart_pod(context, &args).await,
        JobCommand::Delete(args) => delete::run(context, &args).await,
        JobCommand::Type(command) => super::job_type::run(context, command).await,
    }
}
