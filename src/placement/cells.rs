//! Cells: HiveD's placement by topology, on the nodes of the cluster. Pure.
//!
//! `rcfarm/cells/config` is HiveD's configuration ([`CellConfig`]). A node of a cell can be used if farms may place pods
//! on it (it has labels, and is ready) and no pod of others has devices there: those of replication controllers, and of
//! groups that ask for no cells.
//!
//! Keys read and written: none; callers read `rcfarm/cells/config`, `rcfarm/pod_group_status/`, `labels/node/`,
//! `rcfarm/nodes/` and `rcfarm/allocations/`.

pub mod gang;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::cells::AffinityGroupRecord;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{GroupId, TaskSpec};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::resource_list::{CPU, MEMORY, ResourceList};
use rcfarm_api::{FieldError, Stored, Timestamp};
use rcfarm_cells::{CellConfig, CellHealthiness, CellModel, CellScheduler, RebuildNote};

use super::capacity::{Fleet, NodeCapacity};

/// The configuration in a stored record, and the cells that it describes.
///
/// # Errors
/// One per wrong field.
pub fn decode(value: &[u8]) -> Result<(CellConfig, CellModel), Vec<FieldError>> {
    let config = CellConfig::decode(value).map_err(|bad| vec![bad])?;
    let model = config.validate()?;
    Ok((config, model))
}

/// What a group holds, or reserves.
#[must_use]
pub fn held(status: &PodGroupStatus) -> Option<&AffinityGroupRecord> {
    let held = status.placement.as_ref().and_then(|place| place.cells.as_deref());
    held.or(status.reservation.as_deref())
}

/// Groups that hold cells, with their records.
pub type Holders<'a> = BTreeMap<&'a GroupId, &'a AffinityGroupRecord>;

/// Health of the nodes, in the order of [`CellModel::nodes`].
#[must_use]
pub fn node_health(
    model: &CellModel,
    fleet: &Fleet,
    holders: &Holders<'_>,
) -> Vec<CellHealthiness> {
    let owners: BTreeSet<AllocationOwner> =
        holders.keys().map(|id| AllocationOwner::of_group(id)).collect();
    let has_others = |room: &NodeCapacity| {
        let mut pods = room.allocated.pods.values();
        pods.any(|a| a.devices.values().any(|of| !of.is_empty()) && !owners.contains(&a.owner))
    };
    let health = |name: &str| {
        let is_fit = name.parse::<NodeName>().is_ok_and(|node| {
            fleet.labels.nodes.contains_key(&node)
                && !fleet.unfit.contains(&node)
                && !has_others(fleet.node_capacities.of(&node))
        });
        if is_fit { CellHealthiness::Healthy } else { CellHealthiness::Bad }
    };
    model.nodes().map(health).collect()
}

/// The cells as the groups' records and the nodes say. The order of the groups does not matter.
#[must_use]
pub fn rebuild(
    model: &Arc<CellModel>,
    health: &[CellHealthiness],
    holders: &Holders<'_>,
    now: Timestamp,
) -> (CellScheduler, Vec<RebuildNote>) {
    let names: Vec<String> = model.nodes().map(str::to_owned).collect();
    let nodes = names.iter().map(String::as_str).zip(health.iter().copied());
    let records = holders.values().map(|record| (*record).clone());
    CellScheduler::rebuild(Arc::clone(model), nodes, records, now)
}

/// Processors and memory: what cells do not count.
#[must_use]
pub fn basic(resources: &ResourceList) -> ResourceList {
    let basic = [CPU, MEMORY].map(|name| (name, resources.amount(name)));
    basic.into_iter().filter(|(_, amount)| *amount > 0).collect()
}

/// Nodes of the cells on which a pod of each task could run: their labels match, and processors and memory are free.
#[must_use]
pub fn suggested(
    model: &CellModel,
    fleet: &Fleet,
    tasks: &[TaskSpec],
    capacity_of: impl Fn(&NodeName) -> ResourceList,
) -> BTreeSet<String> {
    let wants: Vec<_> =
        tasks.iter().map(|task| (task.selector_or_all(), basic(&task.resources))).collect();
    let could_run = |name: &&str| {
        let Ok(node) = name.parse::<NodeName>() else { return false };
        let Some(labels) = fleet.labels.nodes.get(&node) else { return false };
        let free = capacity_of(&node);
        wants
            .iter()
            .all(|(selector, want)| selector.matches(labels) && (want.is_zero() || free.fits(want)))
    };
    model.nodes().filter(could_run).map(str::to_owned).collect()
}
