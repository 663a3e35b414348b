//! `rcfarm cell …`: cells of the cluster, and what virtual clusters have been promised.
//!
//! Keys read: `rcfarm/cells/config`, `labels/node/`, `rcfarm/nodes/`, `rcfarm/allocations/`, `rcfarm/pod_group_status/`. Key written: `rcfarm/cells/config`, by CAS, in one
//! transaction with its audit record. Only commands and operators write it.

pub(in crate::cli) mod apply;
mod show;

use std::sync::Arc;

use super::apply::{apply_files, plan_files};
use super::context::CommandContext;
use super::failure::{CliExit, failure};
use crate::cluster::queues::GroupStatusIndex;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::cells::{self, Holders};
use rcfarm_api::FieldError;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_cells::{CellModel, CellScheduler, RebuildNote};
use rcfarm_store::Entry;
use rcfarm_store::cache::read_once;

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
    Ok(rebuilt(context, Arc::new(model)).await?.0)
}

/// Cells with the nodes and groups as they are now, and what is different for groups that were placed on other cells.
async fn rebuilt(
    context: &CommandContext,
    model: Arc<CellModel>,
) -> anyhow::Result<(CellScheduler, Vec<RebuildNote>)> {
    let store = context.store.as_ref();
    let prefixes = [key::labels(LabelKind::Node), key::nodes(), key::allocations()];
    let cluster = ClusterSnapshot::read_once(store, prefixes).await?;
    let statuses: GroupStatusIndex = read_once(store, &key::pod_group_statuses()).await?;
    let held = statuses
        .0
        .iter()
        .filter_map(|(id, stored)| Some((id, cells::held(stored.value.as_ref()?)?)));
    let holders: Holders<'_> = held.collect();
    let health = cells::node_health(&model, &cluster.fleet(), &holders);
    Ok(cells::rebuild(&model, &health, &holders, context.now()))
}
