//! The validated shape of a cluster: chains, cells and virtual clusters. It never changes; what is in use stands in
//! `state`.
//!
//! Cells of one arena stand in pre-order. All cells of a chain's level have the same shape, so children and leaves of a
//! cell follow from its index.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of a cell type. A name that is only a child is a leaf cell type: one device.
pub type CellType = String;
/// Name of a virtual cluster.
pub type VirtualClusterName = String;
/// Name of a pinned physical cell.
pub type PinnedCellId = String;
/// Path of a cell, such as `8/16/0.0.4.0/0` (physical) or `VC1/8/1/3` (virtual).
pub type CellAddress = String;
/// Height of a cell: 1 is a leaf.
pub type CellLevel = usize;
/// Priority of a group: −1 is opportunistic, 0 to 1000 guaranteed.
pub type CellPriority = i32;

/// The level of a device.
pub const LEAF_LEVEL: CellLevel = 1;
/// Priority of a cell that nothing uses.
pub const FREE_PRIORITY: CellPriority = -2;
/// Priority of groups that run on what is idle.
pub const OPPORTUNISTIC_PRIORITY: CellPriority = -1;
/// Lowest priority of a group that its virtual cluster guarantees.
pub const MIN_GUARANTEED_PRIORITY: CellPriority = 0;
/// Highest priority.
pub const MAX_GUARANTEED_PRIORITY: CellPriority = 1000;

/// Index of a cell in its arena.
pub(crate) type CellIx = u32;
/// Index of a node's name in the model.
pub(crate) type NodeIx = u32;
/// No cell, no node.
pub(crate) const NONE: u32 = u32::MAX;

/// Whether nodes of a cell can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CellHealthiness {
    /// All nodes can be used.
    Healthy,
    /// At least one node cannot be used.
    Bad,
}

/// One level of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Level {
    pub cell_type: CellType,
    /// Children of a cell of this level; 0 for leaves.
    pub fan_out: u32,
    /// Devices in a cell of this level.
    pub leaves: u32,
    /// Cells in the subtree of a cell of this level, itself included.
    pub size: u32,
}

/// All top cells of one type, with the types below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub name: CellType,
    /// By level − 1.
    pub levels: Vec<Level>,
    /// The level of nodes.
    pub node_level: CellLevel,
    /// Top cells.
    pub tops: Vec<CellIx>,
}

impl Chain {
    pub fn top(&self) -> CellLevel {
        self.levels.len()
    }
    pub fn level(&self, level: CellLevel) -> &Level {
        &self.levels[level - 1]
    }
    pub fn leaf_type(&self) -> &str {
        &self.levels[0].cell_type
    }
    pub fn level_of(&self, cell_type: &str) -> Option<CellLevel> {
        self.levels.iter().position(|level| level.cell_type == cell_type).map(|at| at + 1)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub chain: u16,
    pub level: u16,
    pub parent: CellIx,
    /// The top cell, or the preassigned cell.
    pub root: CellIx,
    /// Number of the first leaf below it, counted through the arena.
    pub first_leaf: u32,
    /// Physical, at or below the node level: the node.
    pub node: NodeIx,
}

/// Cells in pre-order: physical cells, or virtual cells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Arena {
    pub cells: Vec<Cell>,
    pub addresses: Vec<CellAddress>,
    /// Cell of each leaf number.
    pub leaves: Vec<CellIx>,
}

impl Arena {
    pub fn len(&self) -> usize {
        self.cells.len()
    }
    pub fn get(&self, cell: CellIx) -> &Cell {
        &self.cells[cell as usize]
    }
    pub fn level(&self, cell: CellIx) -> CellLevel {
        self.cells[cell as usize].level as CellLevel
    }
    pub fn parent(&self, cell: CellIx) -> Option<CellIx> {
        let parent = self.cells[cell as usize].parent;
        (parent != NONE).then_some(parent)
    }
    pub fn address(&self, cell: CellIx) -> &str {
        &self.addresses[cell as usize]
    }
    /// The cell, its parent, and so on to the root.
    pub fn path(&self, cell: CellIx) -> impl Iterator<Item = CellIx> + '_ {
        std::iter::successors(Some(cell), |&cell| self.parent(cell))
    }
    /// The ancestor at `level`, or the cell itself; nothing above the root.
    pub fn ancestor(&self, cell: CellIx, level: CellLevel) -> Option<CellIx> {
        self.path(cell).find(|&cell| self.level(cell) >= level)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct VirtualCluster {
    /// Preassigned cells that are not pinned, by chain.
    pub preassigned: BTreeMap<u16, Vec<CellIx>>,
    /// Preassigned cells that are pinned.
    pub pinned: BTreeMap<PinnedCellId, CellIx>,
    /// What acts as nodes of a chain, without pinned cells.
    pub nodes: BTreeMap<u16, Vec<CellIx>>,
    /// What acts as nodes of a pinned cell.
    pub pinned_nodes: BTreeMap<PinnedCellId, Vec<CellIx>>,
}

/// A validated configuration: see [`crate::CellConfig::validate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellModel {
    pub(crate) chains: Vec<Chain>,
    /// Order in which chains are tried: descending by name, as the reference's tests pin it.
    pub(crate) search_order: Vec<u16>,
    pub(crate) physical: Arena,
    pub(crate) virtuals: Arena,
    /// Name and number of the virtual cluster of each preassigned cell, by cell.
    pub(crate) vcs: BTreeMap<VirtualClusterName, VirtualCluster>,
    /// Physical and virtual cell of each pinned cell.
    pub(crate) pinned: BTreeMap<PinnedCellId, (CellIx, CellIx)>,
    pub(crate) node_names: Vec<String>,
    pub(crate) nodes: BTreeMap<String, NodeIx>,
    /// Node-level cells of each node.
    pub(crate) node_cells: Vec<Vec<CellIx>>,
    /// Node-level cells of each chain.
    pub(crate) chain_nodes: Vec<Vec<CellIx>>,
    /// Leaf at each node and device.
    pub(crate) devices: BTreeMap<(NodeIx, i32), CellIx>,
    /// Device number, by physical leaf number.
    pub(crate) device_numbers: Vec<i32>,
    /// Virtual cells by address, the preassigned ones only.
    pub(crate) preassigned: BTreeMap<CellAddress, CellIx>,
    /// Virtual cluster of each preassigned cell.
    pub(crate) owners: BTreeMap<CellIx, VirtualClusterName>,
}

impl CellModel {
    pub(crate) fn chain_of(&self, arena: &Arena, cell: CellIx) -> &Chain {
        &self.chains[arena.get(cell).chain as usize]
    }
    pub(crate) fn chain(&self, chain: u16) -> &Chain {
        &self.chains[chain as usize]
    }
    /// Children of a cell, in order.
    pub(crate) fn children(
        &self,
        arena: &Arena,
        cell: CellIx,
    ) -> impl DoubleEndedIterator<Item = CellIx> + ExactSizeIterator + use<> {
        let of = arena.get(cell);
        let chain = &self.chains[of.chain as usize];
        let fan_out = chain.level(of.level as CellLevel).fan_out;
        let step = if fan_out == 0 { 1 } else { chain.level(of.level as CellLevel - 1).size };
        (0..fan_out).map(move |n| cell + 1 + n * step)
    }
    /// Leaf numbers below a cell.
    pub(crate) fn leaves(&self, arena: &Arena, cell: CellIx) -> std::ops::Range<u32> {
        let of = arena.get(cell);
        let count = self.chains[of.chain as usize].level(of.level as CellLevel).leaves;
        of.first_leaf..of.first_leaf + count
    }
    pub(crate) fn leaf_count(&self, arena: &Arena, cell: CellIx) -> u32 {
        let of = arena.get(cell);
        self.chains[of.chain as usize].level(of.level as CellLevel).leaves
    }

    /// Names of all nodes, in order of the configuration.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.node_names.iter().map(String::as_str)
    }
    /// Whether a node is part of any cell.
    pub fn has_node(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }
    /// Names of all virtual clusters.
    pub fn virtual_clusters(&self) -> impl Iterator<Item = &str> {
        self.vcs.keys().map(String::as_str)
    }
    /// Names of all chains, in the order in which they are tried.
    pub fn chains(&self) -> impl Iterator<Item = &str> {
        self.search_order.iter().map(|&chain| self.chain(chain).name.as_str())
    }
    /// Device numbers of a node, in order of the configuration.
    pub fn devices(&self, node: &str) -> Vec<i32> {
        let Some(&node) = self.nodes.get(node) else { return Vec::new() };
        self.devices.range((node, i32::MIN)..=(node, i32::MAX)).map(|(&(_, n), _)| n).collect()
    }
}
