//! `rcfarm queue …`: queues and their waiting groups.

pub(in crate::cli) mod apply;
mod change;
mod groups;
pub(in crate::cli) mod kind;
mod schedulers;
mod show;
pub(in crate::cli) mod snapshot;

use super::context::CommandContext;
use super::failure::CliExit;
use rcfarm_api::ids::QueueName;
use rcfarm_api::queue::spec::Desired;

/// Queues: limits and order of groups
#[derive(clap::Subcommand)]
pub enum QueueCommand {
    /// Create a queue
    Create(Box<change::QueueCreateArgs>),
    /// Change fields of a queue
    Update(Box<change::QueueUpdateArgs>),
    /// List all queues
    #[command(visible_alias = "ls")]
    List,
    /// Show a queue with its pending groups and their reasons
    Get(QueueArgs),
    /// Open a queue: it admits groups again
    Open(QueueArgs),
    /// Close a queue and its children: they admit no more groups; running ones finish
    Close(QueueArgs),
    /// Delete a queue that is empty
    #[command(visible_alias = "rm")]
    Delete(QueueArgs),
    #[command(subcommand)]
    Group(groups::GroupCommand),
    #[command(subcommand)]
    Scheduler(schedulers::SchedulerCommand),
}

#[derive(clap::Args)]
pub struct QueueArgs {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: QueueName,
}

pub(super) async fn run(
    context: &CommandContext,
    command: QueueCommand,
) -> anyhow::Result<CliExit> {
    match command {
        QueueCommand::Create(args) => change::create(context, *args).await,
        QueueCommand::Update(args) => change::update(context, *args).await,
        QueueCommand::List => show::list(context).await,
        QueueCommand::Get(args) => show::get(context, &args.queue).await,
        QueueCommand::Open(args) => change::set_state(context, &args.queue, Desired::Open).await,
        QueueCommand::Close(args) => change::set_state(context, &args.queue, Desired::Closed).await,
        QueueCommand::Delete(args) => change::delete(context, &args.queue).await,
        QueueCommand::Group(command) => groups::run(context, command).await,
        QueueCommand::Scheduler(command) => schedulers::run(context, command).await,
    }
}
