//! `rcfarm cell …`: cells of the cluster, and what virtual clusters have been promised.
//!
//! Keys read: `rcfarm/cells/config`, `labels/node/`, `rcfarm/nodes/`, `rcfarm/allocations/`,
//! `rcfarm/pod_group_status/`; of `what-if` also `rcfarm/jobs/`, `rcfarm/queues/`, `rcfarm/priority_classes/` and
//! `rcfarm/pod_groups/`. Key written: `rcfarm/cells/config`, by CAS, in one transaction with its audit record. Only commands and operators write it.

pub(in crate::cli) mod apply;
mod scheduler;
mod show;
mod what_if;

pub(in crate::cli) use scheduler::model;

use super::apply::{DescribedObjects, apply_files, plan_files};
use super::context::CommandContext;
use super::failure::CliExit;

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
    /// Say whether jobs would get their cells now, where, and who would go; exit code 0 all, 1 not all, 2 an error
    WhatIf(what_if::WhatIfArgs),
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
            let described = DescribedObjects::of_cells(apply::described(&args.file)?);
            plan_files(context, &[args.file], described).await
        }
        CellCommand::Config(CellConfigCommand::Apply(args)) => {
            let described = DescribedObjects::of_cells(apply::described(&args.file)?);
            apply_files(context, &[args.file], described).await
        }
        CellCommand::Config(CellConfigCommand::Get) => show::config(context).await,
        CellCommand::Physical(args) => show::tree(context, &args).await,
        CellCommand::Status(args) => show::status(context, &args).await,
        CellCommand::WhatIf(args) => what_if::run(context, &args).await,
    }
}
