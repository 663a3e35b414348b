//! `rcfarm node …`: machines, and their maintenance.

mod drain;
mod list;
mod pods;
mod remove;
mod show;
pub(in crate::cli) mod snapshot;

use super::context::CommandContext;
use super::failure::CliExit;

/// Nodes: the machines that run pods
#[derive(clap::Subcommand)]
pub enum NodeCommand {
    /// List all nodes
    #[command(visible_alias = "ls")]
    List(list::NodeListArgs),
    /// Show a node and its pods, and why those that should leave are still there
    Get(show::NodeGetArgs),
    /// Have all pods leave some nodes, as far as each controller's minimum health permits, and wait for it
    Drain(drain::DrainArgs),
    /// Let some nodes run pods again
    Undrain(drain::UndrainArgs),
    /// Forget a node: remove its record and its labels
    #[command(visible_alias = "rm")]
    Remove(remove::NodeRemoveArgs),
}

pub(super) async fn run(console: &CommandContext, command: NodeCommand) -> anyhow::Result<CliExit> {
    match command {
        NodeCommand::List(args) => list::run(console, &args).await,
        NodeCommand::Get(args) => show::run(console, &args).await,
        NodeCommand::Drain(args) => drain::drain(console, &args).await,
        NodeCommand::Undrain(args) => drain::undrain(console, &args).await,
        NodeCommand::Remove(args) => remove::run(console, &args).await,
    }
}
