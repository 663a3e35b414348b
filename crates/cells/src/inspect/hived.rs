//! What HiveD's web server shows, in its JSON: `hived.md` §1.5. Empty fields are left out, as there.
//!
//! Differences: groups are named within their virtual cluster, so a name may be `<virtual cluster>/<name>`; the state of a
//! cell above devices follows from these alone, where HiveD's depends on what was before: `Used` if a device is used,
//! the state of all devices if they have the same, else `Used` if one of them is `Reserving`, else `Free`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CellStatus, PhysicalCellStatus, VirtualCellStatus};
use crate::group::{AffinityGroup, AffinityGroupState, GroupKey, LazyPreemptionStatus};
use crate::machine::CellState;
use crate::model::{CellAddress, CellPriority, NONE, OPPORTUNISTIC_PRIORITY, VirtualClusterName};
use crate::scheduler::CellScheduler;

/// `metadata` of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HivedObjectMeta {
    /// Its name.
    pub name: String,
}

/// A group that holds or reserves cells: HiveD's `AffinityGroup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HivedAffinityGroup {
    /// Its name.
    pub metadata: HivedObjectMeta,
    /// Where it is.
    pub status: HivedAffinityGroupStatus,
}

/// `status` of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HivedAffinityGroupStatus {
    /// Its virtual cluster.
    pub vc: VirtualClusterName,
    /// Its priority.
    pub priority: CellPriority,
    /// `Allocated`, `Preempting` or `BeingPreempted`.
    pub state: AffinityGroupState,
    /// Devices by node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub physical_placement: BTreeMap<String, Vec<i32>>,
    /// Virtual leaves by preassigned cell.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub virtual_placement: BTreeMap<CellAddress, Vec<CellAddress>>,
    /// Pods that have a place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocated_pods: Vec<String>,
    /// Pods that wait for the reservation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preempting_pods: Vec<String>,
    /// Set while it runs as opportunistic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lazy_preemption_status: Option<LazyPreemptionStatus>,
}

/// A list of groups; `null` if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HivedAffinityGroupList {
    /// The groups.
    pub items: Option<Vec<HivedAffinityGroup>>,
}

/// A physical cell with those below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HivedPhysicalCell {
    /// The cell.
    #[serde(flatten)]
    pub cell: CellStatus,
    /// Cells below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cell_children: Vec<HivedPhysicalCell>,
    /// The virtual cluster that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vc: Option<VirtualClusterName>,
    /// The virtual cell that it is bound to, without others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_cell: Option<CellStatus>,
}

/// A virtual cell with those below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HivedVirtualCell {
    /// The cell.
    #[serde(flatten)]
    pub cell: CellStatus,
    /// Cells below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cell_children: Vec<HivedVirtualCell>,
    /// The physical cell that it is bound to, without others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_cell: Option<CellStatus>,
}

/// All cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HivedClusterStatus {
    /// Physical cells, in order of the configuration.
    pub physical_cluster: Vec<HivedPhysicalCell>,
    /// Cells of each virtual cluster.
    pub virtual_clusters: BTreeMap<VirtualClusterName, Vec<HivedVirtualCell>>,
}

/// Cells by address, for those that others are bound to.
type ByAddress = BTreeMap<CellAddress, CellStatus>;

impl CellScheduler {
    /// All groups that hold or reserve cells.
    pub fn hived_groups(&self) -> HivedAffinityGroupList {
        let items: Vec<HivedAffinityGroup> =
            self.groups().filter_map(|group| self.hived_group(&group.key)).collect();
        HivedAffinityGroupList { items: (!items.is_empty()).then_some(items) }
    }

    /// A group by its key.
    pub fn hived_group(&self, key: &GroupKey) -> Option<HivedAffinityGroup> {
        let (group, state) = (self.group(key)?, self.group_state(key)?);
        let mut physical: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for pod in &group.pods {
            physical.entry(pod.node.clone()).or_default().extend(&pod.devices);
        }
        let status = HivedAffinityGroupStatus {
            vc: key.virtual_cluster.clone(),
            priority: group.request.priority,
            state,
            physical_placement: physical,
            virtual_placement: self.virtual_placement(group),
            allocated_pods: group.allocated_pods().map(str::to_owned).collect(),
            preempting_pods: group.preempting_pods.iter().cloned().collect(),
            lazy_preemption_status: group.lazy_preemption.clone(),
        };
        Some(HivedAffinityGroup { metadata: HivedObjectMeta { name: key.name.clone() }, status })
    }

    /// A group by its name, or by `<virtual cluster>/<name>`. A name that several virtual clusters have is that of the
    /// first.
    pub fn hived_group_named(&self, name: &str) -> Option<HivedAffinityGroup> {
        let whole = self.groups().find(|group| group.key.to_string() == name);
        let group = whole.or_else(|| self.groups().find(|group| group.key.name == name));
        self.hived_group(&group?.key.clone())
    }

    fn virtual_placement(&self, group: &AffinityGroup) -> BTreeMap<CellAddress, Vec<CellAddress>> {
        let virtuals = &self.model().virtuals;
        let mut found: BTreeMap<CellAddress, Vec<CellAddress>> = BTreeMap::new();
        let leaves = group.pods.iter().flat_map(|pod| pod.virtual_leaves.iter().copied());
        for leaf in leaves.filter(|&leaf| leaf != NONE && group.guaranteed()) {
            let root = virtuals.address(virtuals.get(leaf).root).to_owned();
            found.entry(root).or_default().push(virtuals.address(leaf).to_owned());
        }
        found
    }

    /// All cells.
    pub fn hived_cluster(&self) -> HivedClusterStatus {
        let physical = self.physical_cells();
        let names: Vec<VirtualClusterName> =
            self.model().virtual_clusters().map(str::to_owned).collect();
        let virtuals: Vec<Vec<VirtualCellStatus>> =
            names.iter().map(|name| self.virtual_cells(name).unwrap_or_default()).collect();
        let (mut of_physical, mut of_virtual) = (ByAddress::new(), ByAddress::new());
        physical.iter().for_each(|cell| note_physical(cell, &mut of_physical));
        virtuals.iter().flatten().for_each(|cell| note_virtual(cell, &mut of_virtual));
        let mut lent: Vec<(VirtualClusterName, HivedVirtualCell)> = Vec::new();
        let physical_cluster =
            physical.iter().map(|cell| self.of_physical(cell, &of_virtual, &mut lent)).collect();
        let of = |cells: &Vec<VirtualCellStatus>| -> Vec<HivedVirtualCell> {
            cells.iter().map(|cell| of_virtual_cell(cell, &of_physical)).collect()
        };
        let mut virtual_clusters: BTreeMap<VirtualClusterName, Vec<HivedVirtualCell>> =
            names.into_iter().zip(virtuals.iter().map(of)).collect();
        for (vc, cell) in lent {
            virtual_clusters.entry(vc).or_default().push(cell);
        }
        HivedClusterStatus { physical_cluster, virtual_clusters }
    }

    /// A physical cell. Devices that an opportunistic group has become cells of its virtual cluster in `lent`.
    fn of_physical(
        &self,
        cell: &PhysicalCellStatus,
        virtuals: &ByAddress,
        lent: &mut Vec<(VirtualClusterName, HivedVirtualCell)>,
    ) -> HivedPhysicalCell {
        let cell_children: Vec<HivedPhysicalCell> = cell
            .cell_children
            .iter()
            .map(|child| self.of_physical(child, virtuals, lent))
            .collect();
        let mut own = cell.cell.clone();
        if !cell_children.is_empty() {
            own.cell_state = above(cell_children.iter().map(|child| child.cell.cell_state));
        }
        let mut vc = cell.vc.clone();
        let is_lent = own.cell_priority == OPPORTUNISTIC_PRIORITY && cell.virtual_cell.is_none();
        if cell_children.is_empty() && is_lent {
            let user = cell.affinity_group.as_deref();
            let user = self.groups().find(|group| Some(&*group.key.to_string()) == user);
            vc = user.map(|group| group.key.virtual_cluster.clone());
            if let Some(vc) = &vc {
                let mut shown = own.clone();
                shown.cell_address = format!("{}-opp", own.cell_address);
                shown.leaf_cell_type = Some(own.cell_type.clone());
                let physical_cell = Some(own.clone());
                let cell_children = Vec::new();
                lent.push((
                    vc.clone(),
                    HivedVirtualCell { cell: shown, cell_children, physical_cell },
                ));
            }
        }
        let virtual_cell = cell.virtual_cell.as_ref().and_then(|at| virtuals.get(at)).cloned();
        HivedPhysicalCell { cell: own, cell_children, vc, virtual_cell }
    }
}

fn note_physical(cell: &PhysicalCellStatus, found: &mut ByAddress) {
    let mut own = cell.cell.clone();
    if !cell.cell_children.is_empty() {
        own.cell_state = state_of_physical(cell);
    }
    found.insert(own.cell_address.clone(), own);
    cell.cell_children.iter().for_each(|child| note_physical(child, found));
}

fn state_of_physical(cell: &PhysicalCellStatus) -> CellState {
    match cell.cell_children.is_empty() {
        true => cell.cell.cell_state,
        false => above(cell.cell_children.iter().map(state_of_physical)),
    }
}

fn state_of_virtual(cell: &VirtualCellStatus) -> CellState {
    match cell.cell_children.is_empty() {
        true => cell.cell.cell_state,
        false => above(cell.cell_children.iter().map(state_of_virtual)),
    }
}

fn shown_virtual(cell: &VirtualCellStatus) -> CellStatus {
    CellStatus { cell_state: state_of_virtual(cell), ..cell.cell.clone() }
}

fn note_virtual(cell: &VirtualCellStatus, found: &mut ByAddress) {
    found.insert(cell.cell.cell_address.clone(), shown_virtual(cell));
    cell.cell_children.iter().for_each(|child| note_virtual(child, found));
}

fn of_virtual_cell(cell: &VirtualCellStatus, physical: &ByAddress) -> HivedVirtualCell {
    HivedVirtualCell {
        cell: shown_virtual(cell),
        cell_children: cell
            .cell_children
            .iter()
            .map(|child| of_virtual_cell(child, physical))
            .collect(),
        physical_cell: cell.physical_cell.as_ref().and_then(|at| physical.get(at)).cloned(),
    }
}

/// State of a cell above cells of these states.
fn above(mut below: impl Iterator<Item = CellState>) -> CellState {
    let Some(first) = below.next() else { return CellState::Free };
    let rest: Vec<CellState> = below.collect();
    let has = |state| first == state || rest.contains(&state);
    match () {
        () if has(CellState::Used) => CellState::Used,
        () if rest.iter().all(|state| *state == first) => first,
        () if has(CellState::Reserving) => CellState::Used,
        () => CellState::Free,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::rack;
    use crate::{CellDecision, PodRequest};

    /// Schedules a group of one pod with some devices, and commits.
    fn schedule(scheduler: &mut CellScheduler, vc: &str, priority: i32, name: &str, devices: u32) {
        let text = format!(
            "{{virtualCluster: {vc}, priority: {priority}, leafCellNumber: {devices}, affinityGroup: {{name: {name}, \
             members: [{{podNumber: 1, leafCellNumber: {devices}}}]}}}}"
        );
        let request = PodRequest::parse(&text, "default", name).unwrap();
        let decision = scheduler.plan(&request, name, None).unwrap();
        let (CellDecision::Bind(plan) | CellDecision::Preempt(plan)) = decision else {
            panic!("{name}: {decision:?}")
        };
        scheduler.commit(&plan, name, jiff::Timestamp::UNIX_EPOCH).unwrap();
    }

    fn scheduler() -> CellScheduler {
        let one = "{virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]}";
        rack("", &format!("{{A: {one}, B: {one}}}"), &["n0", "n1"])
    }

    #[test]
    fn groups_have_the_json_of_the_reference() {
        let mut scheduler = scheduler();
        assert_eq!(serde_json::to_value(scheduler.hived_groups()).unwrap(), json!({"items": null}));
        schedule(&mut scheduler, "A", 5, "g", 1);
        let group = json!({"metadata": {"name": "g"}, "status": {"vc": "A", "priority": 5,
            "state": "Allocated", "physicalPlacement": {"n0": [0]},
            "virtualPlacement": {"A/0": ["A/0/0"]}, "allocatedPods": ["g"]}});
        assert_eq!(
            serde_json::to_value(scheduler.hived_groups()).unwrap(),
            json!({"items": [group]})
        );
        for name in ["g", "A/g"] {
            let found = scheduler.hived_group_named(name);
            assert_eq!(serde_json::to_value(found).unwrap(), group, "{name}");
        }
        assert_eq!(scheduler.hived_group_named("B/g"), None);
    }

    #[test]
    fn cells_have_the_json_of_the_reference() {
        let mut scheduler = scheduler();
        schedule(&mut scheduler, "A", 5, "g", 1);
        schedule(&mut scheduler, "B", -1, "lent", 1);
        let all = serde_json::to_value(scheduler.hived_cluster()).unwrap();
        let rack = &all["physicalCluster"][0];
        assert_eq!((&rack["leafCellType"], &rack["cellState"]), (&json!("GPU"), &json!("Used")));
        let n0 = &rack["cellChildren"][0];
        assert_eq!(n0["isNodeLevel"], true);
        assert_eq!((&n0["vc"], &n0["virtualCell"]["cellAddress"]), (&json!("A"), &json!("A/0")));
        assert!(n0["virtualCell"].get("cellChildren").is_none(), "shallow: {n0}");
        let free = &n0["cellChildren"][1];
        assert_eq!((&free["cellState"], &free["cellPriority"]), (&json!("Free"), &json!(-2)));
        assert!(free.get("isNodeLevel").is_none() && free.get("leafCellType").is_none());
        let of_a = &all["virtualClusters"]["A"];
        assert_eq!(of_a[0]["physicalCell"]["cellAddress"], "0/n0");
        // What is lent to B is a cell of its own there.
        let of_b = all["virtualClusters"]["B"].as_array().unwrap();
        let lent: Vec<&Value> = of_b
            .iter()
            .filter(|cell| cell["cellAddress"].as_str().unwrap().ends_with("-opp"))
            .collect();
        assert_eq!(lent.len(), 1, "{of_b:?}");
        assert_eq!((&lent[0]["cellPriority"], &lent[0]["cellState"]), (&json!(-1), &json!("Used")));
        assert!(lent[0]["physicalCell"]["cellAddress"].as_str().unwrap().starts_with("0/n"));
    }

    #[test]
    fn states_above_devices_follow_from_these() {
        use CellState::{Free, Reserved, Reserving, Used};
        for (below, state) in [
            (vec![Free, Free], Free),
            (vec![Free, Used], Used),
            (vec![Reserved, Reserved], Reserved),
            (vec![Reserved, Free], Free),
            (vec![Reserving, Reserving], Reserving),
            (vec![Reserving, Free], Used),
        ] {
            assert_eq!(above(below.clone().into_iter()), state, "{below:?}");
        }
    }
}
