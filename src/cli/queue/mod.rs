//! `rcfarm queue …`: queues, and what waits in them.

mod change;
mod show;
mod snapshot;

use super::context::CommandContext;
use super::failure::CliExit;
use crate::ids::QueueName;

/// Queues: who may use how much, and who goes first
#[derive(clap::Subcommand)]
pub enum QueueCommand {
    /// Create a queue
    Create(change::QueueCreateArgs),
    /// List all queues
    #[command(visible_alias = "ls")]
    List,
    /// Show a queue, and what waits in it and why
    Get(QueueArgs),
    /// Let a queue admit groups again
    Open(QueueArgs),
    /// Have a queue, and those below it, admit nothing more; what runs goes on to its end
    Close(QueueArgs),
    /// Delete a queue that is empty
    #[command(visible_alias = "rm")]
    Delete(QueueArgs),
}

/// Names a queue.
#[derive(clap::Args)]
pub struct QueueArgs {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: QueueName,
}

pub(super) async fn run(
    console: &CommandContext,
    command: QueueCommand,
) -> anyhow::Result<CliExit> {
    match command {
        QueueCommand::Create(args) => change::create(console, args).await,
        QueueCommand::List => show::list(console).await,
        QueueCommand::Get(args) => show::get(console, &args.queue).await,
        QueueCommand::Open(args) => change::open(console, &args.queue).await,
        QueueCommand::Close(args) => change::close(console, &args.queue).await,
        QueueCommand::Delete(args) => change::delete(console, &args.queue).await,
    }
}
