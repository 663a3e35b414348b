//! `rcfarm node …`: machines and their maintenance.

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
    /// Drain nodes of their pods, as each controller's minimum health permits, and wait for it
    Drain(drain::DrainArgs),
    /// Make nodes eligible for pods again
    Undrain(drain::UndrainArgs),
    /// Remove a node's record and labels
    #[command(visible_alias = "rm")]
    Remove(remove::NodeRemoveArgs),
}

pub(super) async fn run(context: &CommandContext, command: NodeCommand) -> anyhow::Result<CliExit> {
    match command {
        NodeCommand::List(args) => list::run(context, &args).await,
        NodeCommand::Get(args) => show::run(context, &args).await,
        NodeCommand::Drain(args) => drain::drain(context, &args).await,
        NodeCommand::Undrain(args) => drain::undrain(context, &args).await,
        NodeCommand::Remove(args) => remove::run(context, &args).await,
    }
}
