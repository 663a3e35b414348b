//! Nodes as the placement of a group sees them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::model::{Arena, CellIx, CellLevel, CellModel, CellPriority, OPPORTUNISTIC_PRIORITY};
use crate::state::State;
use crate::state::counts::LeafCounts;

/// Nodes that may be used; none means all.
pub(crate) type Suggested<'a> = Option<&'a BTreeSet<String>>;

/// The cells in which a group is placed: virtual ones of its virtual cluster, or physical ones.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub state: &'a State,
    /// Physical cells, for opportunistic groups.
    pub physical: bool,
    pub suggested: Suggested<'a>,
}

/// Whether a node may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Usable {
    Yes,
    NotSuggested,
    Bad,
}

/// A node with what placement asks about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankedNode {
    pub cell: CellIx,
    pub usable: Usable,
    /// Leaves that are free, or used at a lower priority.
    pub free: u32,
    /// Used leaves that make the node preferable.
    pub same: u32,
    /// Used leaves that make it less so.
    pub higher: u32,
}

impl<'a> Side<'a> {
    pub fn model(&self) -> &'a CellModel {
        &self.state.model
    }
    pub fn arena(&self) -> &'a Arena {
        if self.physical { &self.state.model.physical } else { &self.state.model.virtuals }
    }
    pub fn counts(&self, cell: CellIx) -> &'a LeafCounts {
        let counts = if self.physical { &self.state.physical } else { &self.state.virtuals };
        &counts[cell as usize]
    }
    pub fn level(&self, cell: CellIx) -> CellLevel {
        self.arena().level(cell)
    }
    pub fn children(&self, cell: CellIx) -> impl DoubleEndedIterator<Item = CellIx> + use<> {
        self.model().children(self.arena(), cell)
    }
    pub fn leaf_cells(&self, cell: CellIx) -> &'a [CellIx] {
        let range = self.model().leaves(self.arena(), cell);
        &self.arena().leaves[range.start as usize..range.end as usize]
    }
    /// The physical cell that a cell shows.
    fn shown(&self, cell: CellIx) -> Option<CellIx> {
        if self.physical { Some(cell) } else { self.state.shown(cell) }
    }
    /// Whether a cell at or below the node level may be used; above it, whether it is healthy.
    pub fn usable(&self, cell: CellIx) -> Usable {
        let Some(physical) = self.shown(cell) else { return Usable::Yes };
        if !self.state.healthy(physical) {
            return Usable::Bad;
        }
        match self.suggested {
            Some(nodes)
                if !self.state.nodes_of(physical).iter().any(|&node| nodes.contains(node)) =>
            {
                Usable::NotSuggested
            }
            _ => Usable::Yes,
        }
    }
    /// The address to name in a reason: that of the physical cell, if it shows one.
    pub fn address(&self, cell: CellIx) -> &'a str {
        match self.shown(cell) {
            Some(physical) => self.state.model.physical.address(physical),
            None => self.arena().address(cell),
        }
    }

    /// A node at `priority`. Virtual clusters pack all priorities together. Opportunistic groups pack among themselves
    /// and stay away from others.
    pub fn node(&self, cell: CellIx, priority: CellPriority) -> RankedNode {
        let counts = self.counts(cell);
        let total = self.model().leaf_count(self.arena(), cell);
        let (same, higher) = if self.physical {
            (counts.at(OPPORTUNISTIC_PRIORITY), counts.from(OPPORTUNISTIC_PRIORITY + 1))
        } else {
            (counts.total(), 0)
        };
        let free = total - counts.from(priority).min(total);
        RankedNode { cell, usable: self.usable(cell), free, same, higher }
    }

    /// Nodes with any free leaf, best first: usable, more used, less used by higher priorities, order of the configuration.
    pub fn ranked(&self, cells: &[CellIx], priority: CellPriority) -> Vec<RankedNode> {
        let nodes = cells.iter().map(|&cell| self.node(cell, priority));
        let mut nodes: Vec<RankedNode> = nodes.filter(|node| node.free > 0).collect();
        nodes.sort_by_key(|node| (node.usable, Reverse(node.same), node.higher));
        nodes
    }
}
