//! What can be seen from outside. The names of fields are those of the reference's JSON, `hived.md` §1.5.

pub mod hived;

use serde::Serialize;

use crate::machine::CellState;
use crate::model::{
    Arena, CellAddress, CellHealthiness, CellIx, CellLevel, CellPriority, CellType, FREE_PRIORITY,
    LEAF_LEVEL, NONE, PinnedCellId, VirtualClusterName,
};
use crate::scheduler::CellScheduler;

/// A cell, without the cells below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellStatus {
    /// Type of its devices. Top cells and preassigned cells only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf_cell_type: Option<CellType>,
    /// Its type.
    pub cell_type: CellType,
    /// Whether it is exactly one node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_node_level: bool,
    /// Its address.
    pub cell_address: CellAddress,
    /// State. That of a cell above devices is `Free` if nobody has any of them, and `Reserving` or `Reserved` if one of
    /// them is.
    pub cell_state: CellState,
    /// Whether all its nodes can be used.
    pub cell_healthiness: CellHealthiness,
    /// The highest priority of the groups on it; −2: none.
    pub cell_priority: CellPriority,
}

/// A physical cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalCellStatus {
    /// The cell.
    #[serde(flatten)]
    pub cell: CellStatus,
    /// The virtual cluster whose cell it is now, or for good if it is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vc: Option<VirtualClusterName>,
    /// The virtual cell that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_cell: Option<CellAddress>,
    /// Name by which a virtual cluster owns it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_cell_id: Option<PinnedCellId>,
    /// Number of its devices.
    pub leaf_cells: u32,
    /// Number of its devices that groups have.
    pub used_leaf_cells: u32,
    /// The group that has a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_group: Option<String>,
    /// Cells below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cell_children: Vec<PhysicalCellStatus>,
}

/// A cell of a virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualCellStatus {
    /// The cell.
    #[serde(flatten)]
    pub cell: CellStatus,
    /// The physical cell that it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_cell: Option<CellAddress>,
    /// Name of the physical cell that it is for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_cell_id: Option<PinnedCellId>,
    /// Number of its devices.
    pub leaf_cells: u32,
    /// Number of its devices that groups of the virtual cluster have.
    pub used_leaf_cells: u32,
    /// Cells below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cell_children: Vec<VirtualCellStatus>,
}

impl CellScheduler {
    /// All physical cells, in order of the configuration.
    pub fn physical_cells(&self) -> Vec<PhysicalCellStatus> {
        let arena = &self.model().physical;
        let tops = (0..arena.len() as CellIx).filter(|&cell| arena.parent(cell).is_none());
        tops.map(|top| self.physical_cell(top)).collect()
    }

    /// Preassigned cells of a virtual cluster; none if there is no such virtual cluster.
    pub fn virtual_cells(&self, vc: &str) -> Option<Vec<VirtualCellStatus>> {
        let of = self.model().vcs.get(vc)?;
        let mut roots: Vec<CellIx> = of.preassigned.values().flatten().copied().collect();
        roots.extend(of.pinned.values());
        roots.sort_unstable();
        Some(roots.into_iter().map(|root| self.virtual_cell(root)).collect())
    }

    fn cell(&self, arena: &Arena, cell: CellIx, healthy: bool) -> CellStatus {
        let model = self.model();
        let (chain, level) = (model.chain_of(arena, cell), arena.level(cell));
        CellStatus {
            leaf_cell_type: arena.parent(cell).is_none().then(|| chain.leaf_type().to_owned()),
            cell_type: chain.level(level).cell_type.clone(),
            is_node_level: level == chain.node_level,
            cell_address: arena.address(cell).to_owned(),
            cell_state: CellState::Free,
            cell_healthiness: match healthy {
                true => CellHealthiness::Healthy,
                false => CellHealthiness::Bad,
            },
            cell_priority: FREE_PRIORITY,
        }
    }

    fn physical_cell(&self, cell: CellIx) -> PhysicalCellStatus {
        let (model, state) = (self.model(), &self.state);
        let arena = &model.physical;
        let cell_children: Vec<PhysicalCellStatus> =
            model.children(arena, cell).map(|child| self.physical_cell(child)).collect();
        let mut of = self.cell(arena, cell, state.healthy(cell));
        of.cell_priority = state.physical[cell as usize].top();
        let (mut group, is_leaf) = (None, arena.level(cell) == LEAF_LEVEL);
        if is_leaf {
            let (user, reserver) = state.occupants(cell);
            of.cell_state = CellState::of(user.is_some(), reserver.is_some());
            group = user.or(reserver).and_then(|at| state.groups.at(at));
        } else {
            of.cell_state = together(cell_children.iter().map(|child| child.cell.cell_state));
        }
        let bound = Some(state.p2v[cell as usize]).filter(|&v| v != NONE);
        let owner = bound.map(|v| model.virtuals.get(v).root);
        let pin = model.pinned.iter().find(|(_, (physical, _))| *physical == cell);
        PhysicalCellStatus {
            cell: of,
            vc: owner.and_then(|root| model.owners.get(&root).cloned()),
            virtual_cell: bound.map(|v| model.virtuals.address(v).to_owned()),
            pinned_cell_id: pin.map(|(id, _)| id.clone()),
            leaf_cells: model.leaf_count(arena, cell),
            used_leaf_cells: state.physical[cell as usize].total(),
            affinity_group: group.map(|group| group.key.to_string()),
            cell_children,
        }
    }

    fn virtual_cell(&self, cell: CellIx) -> VirtualCellStatus {
        let (model, state) = (self.model(), &self.state);
        let arena = &model.virtuals;
        let cell_children: Vec<VirtualCellStatus> =
            model.children(arena, cell).map(|child| self.virtual_cell(child)).collect();
        let mut of = self.cell(arena, cell, state.virtual_healthy(cell));
        of.cell_priority = state.virtuals[cell as usize].top();
        let physical = Some(state.v2p[cell as usize]).filter(|&p| p != NONE);
        let level: CellLevel = arena.level(cell);
        of.cell_state = match (level, physical) {
            (LEAF_LEVEL, Some(leaf)) => {
                let (user, reserver) = state.occupants(leaf);
                CellState::of(user.is_some(), reserver.is_some())
            }
            (LEAF_LEVEL, None) => CellState::Free,
            _ => together(cell_children.iter().map(|child| child.cell.cell_state)),
        };
        let pin = model.pinned.iter().find(|(_, (_, pinned))| *pinned == cell);
        VirtualCellStatus {
            cell: of,
            physical_cell: physical.map(|p| model.physical.address(p).to_owned()),
            pinned_cell_id: pin.map(|(id, _)| id.clone()),
            leaf_cells: model.leaf_count(arena, cell),
            used_leaf_cells: state.virtuals[cell as usize].total(),
            cell_children,
        }
    }

    /// State ([`CellState`]) and priority of a device.
    pub fn leaf(&self, node: &str, device: i32) -> Option<(&'static str, i32)> {
        let model = self.model();
        let &node = model.nodes.get(node)?;
        let &leaf = model.devices.get(&(node, device))?;
        let (user, reserver) = self.state.occupants(leaf);
        let state = CellState::of(user.is_some(), reserver.is_some());
        Some((state.as_str(), self.state.physical[leaf as usize].top()))
    }

    /// Preassigned cells of a virtual cluster that are doomed to be bad, with the physical cell that each stands for.
    pub fn doomed(&self) -> Vec<(String, String)> {
        let model = self.model();
        let pairs = self.state.doomed.iter();
        pairs
            .map(|(&v, &p)| {
                (model.virtuals.address(v).to_owned(), model.physical.address(p).to_owned())
            })
            .collect()
    }

    /// Whether each unused preassigned cell of a virtual cluster in a chain is healthy.
    pub fn free_preassigned(&self, vc: &str, chain: &str) -> Vec<bool> {
        let model = self.model();
        let cells = model.vcs.get(vc).into_iter().flat_map(|vc| vc.preassigned.values().flatten());
        cells
            .copied()
            .filter(|&cell| model.chain_of(&model.virtuals, cell).name == chain)
            .filter(|&cell| self.state.virtuals[cell as usize].total() == 0)
            .map(|cell| self.state.virtual_healthy(cell))
            .collect()
    }
}

/// State of a cell above cells of these states.
fn together(below: impl Iterator<Item = CellState>) -> CellState {
    use CellState::{Free, Reserved, Reserving, Used};
    below.fold(Free, |all, one| match (all, one) {
        (Reserving, _) | (_, Reserving) | (Used, Reserved) | (Reserved, Used) => Reserving,
        (Used, _) | (_, Used) => Used,
        (Reserved, _) | (_, Reserved) => Reserved,
        (Free, Free) => Free,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::fixture::rack;
    use crate::{CellDecision, PodRequest};

    #[test]
    fn trees_show_states_owners_and_health() {
        let clusters = "{A: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]}, \
                        B: {pinnedCells: [{pinnedCellId: p}]}}";
        let mut scheduler = rack(", pinnedCellId: p", clusters, &["n0"]);
        let request = "{virtualCluster: A, leafCellNumber: 1, affinityGroup: {name: g, members: [{podNumber: 1,
            leafCellNumber: 1}]}}";
        let request = PodRequest::parse(request, "default", "g-0").unwrap();
        let CellDecision::Bind(plan) = scheduler.plan(&request, "g-0", None).unwrap() else {
            panic!("it has a place")
        };
        scheduler.commit(&plan, "g-0", jiff::Timestamp::UNIX_EPOCH).unwrap();
        let racks: Value = serde_json::to_value(scheduler.physical_cells()).unwrap();
        let rack = &racks[0];
        assert_eq!((&rack["leafCellType"], &rack["cellState"]), (&json!("GPU"), &json!("Used")));
        assert_eq!(rack["cellHealthiness"], "Bad", "n1 is not known");
        assert_eq!((&rack["leafCells"], &rack["usedLeafCells"]), (&json!(4), &json!(1)));
        let [n0, n1] = [0, 1].map(|n| &rack["cellChildren"][n]);
        assert_eq!((&n0["vc"], &n0["virtualCell"]), (&json!("A"), &json!("A/0")));
        assert_eq!((&n0["cellHealthiness"], &n0["isNodeLevel"]), (&json!("Healthy"), &json!(true)));
        assert_eq!(n0["cellChildren"][0]["affinityGroup"], "A/g");
        assert_eq!(n0["cellChildren"][1]["cellState"], "Free");
        assert_eq!((&n1["vc"], &n1["pinnedCellId"]), (&json!("B"), &json!("p")));
        let of_a = serde_json::to_value(scheduler.virtual_cells("A")).unwrap();
        assert_eq!(
            (&of_a[0]["cellAddress"], &of_a[0]["physicalCell"]),
            (&json!("A/0"), &json!("0/n0"))
        );
        assert_eq!((&of_a[0]["usedLeafCells"], &of_a[0]["cellState"]), (&json!(1), &json!("Used")));
        assert_eq!(scheduler.virtual_cells("C"), None);
    }
}
