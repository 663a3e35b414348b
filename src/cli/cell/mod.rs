//! `rcfarm cell …`: cells of the cluster, and what virtual clusters have been promised.
//!
//! Keys read: `rcfarm/cells/config`, `labels/node/`, `rcfarm/nodes/`. Key written: `rcfarm/cells/config`, by CAS, in one
//! transaction with its audit record. Only commands and operators write it.

pub(in crate::cli) mod apply;
mod show;

use std::sync::Arc;

use super::apply::{apply_files, plan_files};
use super::context::CommandContext;
use super::failure::{CliExit, failure};
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::cells;
use rcfarm_api::FieldError;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_cells::CellScheduler;
use rcfarm_store::Entry;

/// Cells: racks, nodes and devices that virtual clusters have been promised, as in HiveD
#[derive(clap::Subcommand)]
pub enum CellCommand {
    /// The configuration of cells: HiveD's, unchanged
    #[command(subcommand)]
    Config(CellConfigCommand),
    /// Show the physical cells: their types, addresses, states, health and owners
    #[command(name = "tree")]
    Physical(show::PhysicalCellsArgs),
    /// Show the cells of a virtual cluster, and which physical cells they are now
    Status(show::CellStatusArgs),
}

/// The configuration of cells: HiveD's, unchanged
#[derive(clap::Subcommand)]
pub enum CellConfigCommand {
    /// Show what apply would change; exit code 0 nothing, 1 something, 2 an error
    Plan(CellFileArgs),
    /// Create or change the configuration
    Apply(CellFileArgs),
    /// Print the stored configuration
    Get,
}

#[derive(clap::Args)]
pub struct CellFileArgs {
    /// HiveD's configuration in YAML or JSON; - reads standard input
    #[arg(value_name = "FILE")]
    file: String,
}

pub(super) async fn run(context: &CommandContext, command: CellCommand) -> anyhow::Result<CliExit> {
    match command {
        CellCommand::Config(CellConfigCommand::Plan(args)) => {
            let described = apply::described(&args.file)?;
            plan_files(context, &[args.file], described).await
        }
        CellCommand::Config(CellConfigCommand::Apply(args)) => {
            let described = apply::described(&args.file)?;
            apply_files(context, &[args.file], described).await
        }
        CellCommand::Config(CellConfigCommand::Get) => show::config(context).await,
        CellCommand::Physical(args) => show::tree(context, &args).await,
        CellCommand::Status(args) => show::status(context, &args).await,
    }
}

/// The stored configuration.
///
/// # Errors
/// There is none.
async fn stored(context: &CommandContext) -> anyhow::Result<Entry> {
    context.get(&key::cell_config()).await?.ok_or_else(|| {
        failure("there are no cells", "describe them: rcfarm cell config apply FILE")
    })
}

/// The cells with the nodes as they are now.
///
/// # Errors
/// There are no cells, or their configuration is not valid.
async fn scheduler(context: &CommandContext) -> anyhow::Result<CellScheduler> {
    let entry = stored(context).await?;
    let (_, model) = cells::decode(&entry.value).map_err(|bad| {
        let why = format!("{}: {}", key::cell_config(), FieldError::list(&bad));
        failure(why, "correct it: rcfarm cell config apply FILE")
    })?;
    let prefixes = [key::labels(LabelKind::Node), key::nodes()];
    let cluster = ClusterSnapshot::read_once(context.store.as_ref(), prefixes).await?;
    let model = Arc::new(model);
    let mut scheduler = CellScheduler::new(Arc::clone(&model));
    scheduler.set_nodes(cells::node_health(&model, &cluster.fleet()));
    Ok(scheduler)
}
