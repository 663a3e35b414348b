//! `rcfarm cell tree`, `status`, `config get`.

use serde_json::Value;

use super::scheduler::{notes_of, read, stored};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{Format, or_dash, table};
use rcfarm_cells::CellHealthiness;
use rcfarm_cells::inspect::{CellStatus, PhysicalCellStatus, VirtualCellStatus};
use rcfarm_cells::model::{CellPriority, FREE_PRIORITY};

#[derive(clap::Args)]
pub struct PhysicalCellsArgs {
    /// Show each device, too
    #[arg(long)]
    devices: bool,
}

#[derive(clap::Args)]
pub struct CellStatusArgs {
    /// The virtual cluster
    #[arg(value_name = "VC")]
    vc: String,
    /// Show each device, too
    #[arg(long)]
    devices: bool,
}

/// A cell in a table.
struct Row<'a> {
    depth: usize,
    cell: &'a CellStatus,
    devices: (u32, u32),
    /// The virtual cell of a physical one, or the other way round.
    other: Option<&'a str>,
    pinned: Option<&'a str>,
    group: Option<&'a str>,
}

fn state(cell: &CellStatus) -> String {
    cell.cell_state.as_str().to_owned()
}

fn health(cell: &CellStatus) -> String {
    match cell.cell_healthiness {
        CellHealthiness::Healthy => "Healthy".to_owned(),
        CellHealthiness::Bad => "Bad".to_owned(),
    }
}

fn priority(priority: CellPriority) -> String {
    or_dash((priority != FREE_PRIORITY).then_some(priority))
}

fn kind(row: &Row<'_>) -> String {
    format!("{}{}", "  ".repeat(row.depth), row.cell.cell_type)
}

fn used(row: &Row<'_>) -> String {
    format!("{}/{}", row.devices.0, row.devices.1)
}

fn physical_rows<'a>(
    cells: &'a [PhysicalCellStatus],
    depth: usize,
    devices: bool,
    rows: &mut Vec<Row<'a>>,
) {
    for cell in cells {
        rows.push(Row {
            depth,
            cell: &cell.cell,
            devices: (cell.used_leaf_cells, cell.leaf_cells),
            other: cell.virtual_cell.as_deref(),
            pinned: cell.pinned_cell_id.as_deref(),
            group: cell.affinity_group.as_deref(),
        });
        if devices || !cell.cell.is_node_level {
            physical_rows(&cell.cell_children, depth + 1, devices, rows);
        }
    }
}

fn virtual_rows<'a>(
    cells: &'a [VirtualCellStatus],
    depth: usize,
    devices: bool,
    rows: &mut Vec<Row<'a>>,
) {
    for cell in cells {
        rows.push(Row {
            depth,
            cell: &cell.cell,
            devices: (cell.used_leaf_cells, cell.leaf_cells),
            other: cell.physical_cell.as_deref(),
            pinned: cell.pinned_cell_id.as_deref(),
            group: None,
        });
        // A preassigned cell may be a part of a node.
        let is_part = depth == 0 && cell.cell_children.iter().all(|c| !has_node(c));
        if devices || !(cell.cell.is_node_level || is_part) {
            virtual_rows(&cell.cell_children, depth + 1, devices, rows);
        }
    }
}

fn has_node(cell: &VirtualCellStatus) -> bool {
    cell.cell.is_node_level || cell.cell_children.iter().any(has_node)
}

pub(super) async fn tree(
    context: &CommandContext,
    args: &PhysicalCellsArgs,
) -> anyhow::Result<CliExit> {
    let now = read(context).await?;
    let cells = now.scheduler.physical_cells();
    let notes = notes_of(&now, |_| true);
    show_notes(context, &notes);
    context.show(&cells, || {
        let mut rows = Vec::new();
        physical_rows(&cells, 0, args.devices, &mut rows);
        if rows.is_empty() {
            return "there are no physical cells".to_owned();
        }
        let table = table(
            &rows,
            &[
                ("CELL", &kind),
                ("ADDRESS", &|row| row.cell.cell_address.clone()),
                ("STATE", &|row| state(row.cell)),
                ("HEALTH", &|row| health(row.cell)),
                ("USED", &used),
                ("PRIORITY", &|row| priority(row.cell.cell_priority)),
                ("VIRTUAL CELL", &|row| or_dash(row.other)),
                ("PINNED", &|row| or_dash(row.pinned)),
                ("GROUP", &|row| or_dash(row.group)),
            ],
        );
        below(table, &notes)
    })
}

/// A table with notes below it.
fn below(mut table: String, notes: &[String]) -> String {
    notes.iter().for_each(|note| table.push_str(&format!("! {note}\n")));
    table
}

/// Notes beside JSON and YAML, which have the cells alone.
fn show_notes(context: &CommandContext, notes: &[String]) {
    if context.out.format != Format::Table {
        notes.iter().for_each(|note| context.note(note));
    }
}

pub(super) async fn status(
    context: &CommandContext,
    args: &CellStatusArgs,
) -> anyhow::Result<CliExit> {
    let now = read(context).await?;
    let Some(cells) = now.scheduler.virtual_cells(&args.vc) else {
        let names: Vec<&str> = now.scheduler.model().virtual_clusters().collect();
        let why = format!("there is no virtual cluster {}", args.vc);
        return Err(failure(why, format!("there are: {}", names.join(", "))));
    };
    let notes = notes_of(&now, |group| group.virtual_cluster == args.vc);
    show_notes(context, &notes);
    context.show(&cells, || {
        let mut rows = Vec::new();
        virtual_rows(&cells, 0, args.devices, &mut rows);
        if rows.is_empty() {
            return below("it has been promised nothing\n".to_owned(), &notes);
        }
        let table = table(
            &rows,
            &[
                ("CELL", &kind),
                ("ADDRESS", &|row| row.cell.cell_address.clone()),
                ("STATE", &|row| state(row.cell)),
                ("HEALTH", &|row| health(row.cell)),
                ("USED", &used),
                ("PRIORITY", &|row| priority(row.cell.cell_priority)),
                ("PHYSICAL CELL", &|row| or_dash(row.other)),
                ("PINNED", &|row| or_dash(row.pinned)),
            ],
        );
        below(table, &notes)
    })
}

pub(super) async fn config(context: &CommandContext) -> anyhow::Result<CliExit> {
    let entry = stored(context).await?;
    let shown: Value = serde_json::from_slice(&entry.value)
        .unwrap_or_else(|_| String::from_utf8_lossy(&entry.value).into());
    context.show(&shown, || serde_saphyr::to_string(&shown).unwrap_or_default())
}
