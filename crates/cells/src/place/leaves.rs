//! Cells within a node, as close together as possible.

use crate::model::{Arena, CellIx, CellPriority, FREE_PRIORITY};

use super::view::Side;

/// Takes `count` cells from `available`: those whose common ancestor is lowest, the first such in order.
///
/// For each level upwards, cells are grouped by their ancestor at it. The first group with enough cells gives its
/// first ones. This is linear in the cells, and equals the reference's exhaustive search.
pub(crate) fn select(
    arena: &Arena,
    available: &mut Vec<CellIx>,
    count: usize,
) -> Option<Vec<CellIx>> {
    let first = *available.first()?;
    if count == 0 || available.len() < count {
        return None;
    }
    let top = arena.level(arena.get(first).root);
    let ancestor = (arena.level(first)..=top).find_map(|level| {
        let mut groups: Vec<(CellIx, usize)> = Vec::new();
        for &cell in available.iter() {
            let above = arena.ancestor(cell, level)?;
            match groups.iter_mut().rev().find(|(group, _)| *group == above) {
                Some((_, size)) => *size += 1,
                None => groups.push((above, 1)),
            }
        }
        let enough = groups.into_iter().find(|&(_, size)| size >= count)?;
        Some((level, enough.0))
    });
    let (level, group) = ancestor?;
    let mut picked = Vec::with_capacity(count);
    available.retain(|&cell| {
        let take = picked.len() < count && arena.ancestor(cell, level) == Some(group);
        if take {
            picked.push(cell);
        }
        !take
    });
    Some(picked)
}

/// Leaves of a node that a group of `priority` can have: free ones, then those used at a lower priority.
pub(crate) fn available(side: &Side<'_>, node: CellIx, priority: CellPriority) -> Vec<CellIx> {
    let leaves = side.leaf_cells(node);
    let of = |cell: &CellIx| side.counts(*cell).top();
    let mut cells: Vec<CellIx> =
        leaves.iter().copied().filter(|cell| of(cell) == FREE_PRIORITY).collect();
    let lower = |cell: &CellIx| of(cell) != FREE_PRIORITY && of(cell) < priority;
    cells.extend(leaves.iter().copied().filter(lower));
    cells
}
