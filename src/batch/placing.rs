//! Members of a group as pods on nodes: request to the scheduler, allocations, and the change of one group. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bounds::Bounds;
use crate::placement::capacity::{self, Booking, Gang, Ledger, NodeCapacities, PodResources};
use rcfarm_api::Index;
use rcfarm_api::ResourceList;
use rcfarm_api::allocation::{AllocationOwner, entry_bytes};
use rcfarm_api::cells::AffinityGroupRecord;
use rcfarm_api::ids::NodeName;
use rcfarm_api::ids::PodId;
use rcfarm_api::pod_group::spec::{Counts, GroupId, PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::{GroupPlacement, PlacementState, PodGroupStatus};
use rcfarm_api::scheduler::spec::SchedulerSpec;
use rcfarm_store::Versioned;

/// A PodGroup's status as stored.
pub type VersionedStatus = Versioned<Arc<PodGroupStatus>>;

/// A pod of a group on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Node that the pod is bound to.
    pub node: NodeName,
    /// Id of the pod on that node.
    pub pod: PodId,
    /// Resources that it requests.
    pub want: ResourceList,
    /// Port that it gets.
    pub port: Option<u16>,
    /// Numbers of its devices; empty: any.
    pub devices: BTreeSet<u32>,
}

impl GroupMember {
    /// What is allocated to it.
    #[must_use]
    pub fn resources(&self) -> PodResources<'_> {
        PodResources {
            amounts: &self.want,
            port: self.port,
            devices: &self.devices,
            named_ports: &[],
        }
    }

    /// Whether the record of its node's allocations lists it.
    fn has_allocation(&self) -> bool {
        !self.want.is_zero() || self.port.is_some()
    }
}

/// Change of one group; always in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementChange {
    /// Namespace and name of the PodGroup.
    pub id: GroupId,
    pub before: Option<VersionedStatus>,
    /// Status after the change; `None`: deleted.
    pub after: Option<PodGroupStatus>,
    /// Allocations to release.
    pub release: Vec<GroupMember>,
    /// Allocations to make after the release.
    pub allocate: Vec<GroupMember>,
    /// ModifyIndex that the group's record must still have; 0: it must be absent. Set where a placement is taken away:
    /// the owner may have started pods since, or a record may exist that the cache does not show.
    pub record_index: Option<Index>,
}

impl PlacementChange {
    /// A change of the status alone.
    #[must_use]
    pub fn of_status(
        id: &GroupId,
        before: Option<&VersionedStatus>,
        after: PodGroupStatus,
    ) -> PlacementChange {
        let (before, after) = (before.cloned(), Some(after));
        let (release, allocate) = (Vec::new(), Vec::new());
        PlacementChange { id: id.clone(), before, after, release, allocate, record_index: None }
    }

    /// Whether the status stays the same.
    #[must_use]
    pub fn keeps_status(&self) -> bool {
        self.before.as_ref().map(|known| &*known.value) == self.after.as_ref()
    }

    /// Nodes whose allocations it changes.
    #[must_use]
    pub fn nodes(&self) -> BTreeSet<&NodeName> {
        nodes_of(self.release.iter().chain(&self.allocate))
    }
}

/// Nodes on which these members have allocations.
pub fn nodes_of<'m>(members: impl IntoIterator<Item = &'m GroupMember>) -> BTreeSet<&'m NodeName> {
    members.into_iter().filter(|m| m.has_allocation()).map(|m| &m.node).collect()
}

/// Request for the given numbers of members.
#[must_use]
pub fn gang(id: &GroupId, spec: &PodGroupSpec, counts: &Counts<'_>, by: &SchedulerSpec) -> Gang {
    let tasks = spec.tasks.iter().filter_map(|task| {
        let replicas = *counts.get(task.name.as_str())?;
        let ports = task.ports.min(replicas);
        (replicas > 0).then(|| TaskSpec { replicas, ports, ..task.clone() })
    });
    Gang { name: id.to_string(), packing: by.packing, tasks: tasks.collect() }
}

/// Placement from the scheduler's answer: nodes for the first members of each task that have not ended.
#[must_use]
pub fn placement(
    spec: &PodGroupSpec,
    answer: &capacity::GangPlacement,
    state: PlacementState,
) -> GroupPlacement {
    let nodes = |task: &TaskSpec| {
        let mut given = answer.tasks.get(&task.name).into_iter().flatten();
        let node = |n| if spec.is_ended(&task.name, n) { None } else { given.next().cloned() };
        (task.name.clone(), (0..task.replicas).map(node).collect())
    };
    let asks = spec.tasks.iter().map(|task| (task.name.clone(), task.resources.clone())).collect();
    let members = spec.tasks.iter().map(nodes).collect();
    let (ports, ended, pod_ids) = (BTreeMap::new(), BTreeMap::new(), spec.pod_ids);
    GroupPlacement { state, members, asks, pod_ids, ports, ended, cells: None, then: None }
}

/// Placed members.
#[must_use]
pub fn members(id: &GroupId, placement: &GroupPlacement) -> Vec<GroupMember> {
    let cells = placement.cells.as_ref().map(|cells| cells.devices());
    let member = |(task, n, node): (&str, u32, &NodeName)| {
        let pod = placement.pod_ids.pod_id(id, task, n).ok()?;
        let want = placement.asks.get(task).cloned().unwrap_or_default();
        let devices = cells
            .as_ref()
            .and_then(|cells| cells.get(AffinityGroupRecord::pod_name(task, n).as_str()).cloned());
        let (node, port) = (node.clone(), placement.port_of(task, n));
        Some(GroupMember { node, pod, want, port, devices: devices.unwrap_or_default() })
    };
    placement.placed().filter_map(member).collect()
}

/// Adapts a placement to the record: its replicas, and members that have ended. Also returns the members that lose their
/// node.
#[must_use]
pub fn fitted(
    id: &GroupId,
    spec: &PodGroupSpec,
    old: &GroupPlacement,
) -> (GroupPlacement, Vec<GroupMember>) {
    let (nodes, asks, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut kept = GroupPlacement { members: nodes, asks, ended, ..old.clone() };
    let mut lost = old.clone();
    for task in &spec.tasks {
        let mut nodes = old.members.get(&task.name).cloned().unwrap_or_default();
        let mut ended = old.ended.get(&task.name).cloned().unwrap_or_default();
        nodes.resize(task.replicas as usize, None);
        ended.resize(task.replicas as usize, None);
        for ((n, node), left) in (0..).zip(&mut nodes).zip(&mut ended) {
            *left = match spec.is_ended(&task.name, n) {
                true => node.take().or(left.take()),
                false => None,
            };
        }
        let were = lost.members.get_mut(&task.name).into_iter().flatten();
        were.zip(&nodes).filter(|(_, node)| node.is_some()).for_each(|(slot, _)| *slot = None);
        if ended.iter().any(Option::is_some) {
            kept.ended.insert(task.name.clone(), ended);
        }
        kept.members.insert(task.name.clone(), nodes);
        let asks = old.asks.get(&task.name).unwrap_or(&task.resources).clone();
        kept.asks.insert(task.name.clone(), asks);
    }
    kept.drop_unplaced_ports();
    (kept, members(id, &lost))
}

/// Members with an allocation.
#[must_use]
pub fn with_allocation(
    node_capacities: &NodeCapacities,
    id: &GroupId,
    all: Vec<GroupMember>,
) -> Vec<GroupMember> {
    let owner = AllocationOwner::of_group(id);
    let stands = |member: &GroupMember| {
        node_capacities
            .of(&member.node)
            .allocated
            .pods
            .get(&member.pod)
            .is_some_and(|a| a.owner == owner)
    };
    all.into_iter().filter(stands).collect()
}

/// Members without an allocation of what they request.
#[must_use]
pub fn missing(
    node_capacities: &NodeCapacities,
    id: &GroupId,
    all: Vec<GroupMember>,
) -> Vec<GroupMember> {
    let owner = AllocationOwner::of_group(id);
    all.into_iter()
        .filter(|m| !node_capacities.of(&m.node).holds_devices(&m.pod, &owner, &m.resources()))
        .collect()
}

/// Allocations of nodes after a release and an allocation.
///
/// # Errors A member that does not fit.
pub fn bookings(
    node_capacities: &NodeCapacities,
    id: &GroupId,
    release: &[GroupMember],
    allocate: &[GroupMember],
) -> Result<Vec<Booking>, String> {
    let owner = AllocationOwner::of_group(id);
    let mut ledger = Ledger::on(node_capacities);
    release.iter().for_each(|m| ledger.release(&m.node, &m.pod, &owner));
    for m in allocate {
        let insufficient = ledger.allocate_devices(&m.node, &m.pod, &owner, &m.resources());
        insufficient.map_err(|insufficient| format!("{} on {}: {insufficient}", m.pod, m.node))?;
    }
    Ok(ledger.bookings())
}

/// Size of the allocations' records of these members' nodes once the members are added, in bytes.
#[must_use]
pub fn record_bytes(
    node_capacities: &NodeCapacities,
    id: &GroupId,
    members: &[GroupMember],
) -> usize {
    let nodes = nodes_of(members).into_iter();
    nodes.map(|node| node_capacities.of(node).allocated.bytes()).sum::<usize>()
        + members.iter().map(|member| entry_size(id, member)).sum::<usize>()
}

fn entry_size(id: &GroupId, member: &GroupMember) -> usize {
    let owner = "pod_group//".len() + id.namespace.as_str().len() + id.name.as_str().len();
    let devices = member.want.devices().map(|(kind, count)| kind.len() as u64 + 16 + 8 * count);
    let devices = usize::try_from(devices.sum::<u64>()).unwrap_or(usize::MAX);
    entry_bytes(member.pod.as_str().len(), owner) + devices
}

/// Splits members into parts that one transaction can allocate or release.
#[must_use]
pub fn parts(
    node_capacities: &NodeCapacities,
    id: &GroupId,
    mut members: Vec<GroupMember>,
    bounds: Bounds,
) -> Vec<Vec<GroupMember>> {
    members.sort_by(|a, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
    let mut parts: Vec<Vec<GroupMember>> = Vec::new();
    let (mut nodes, mut bytes) = (0, 0);
    for on_node in members.chunk_by(|one, next| one.node == next.node) {
        let more = record_bytes(node_capacities, id, on_node);
        match parts.last_mut() {
            Some(part) if nodes < bounds.nodes && bytes + more <= bounds.bytes => {
                (nodes, bytes) = (nodes + 1, bytes + more);
                part.extend_from_slice(on_node);
            }
            _ => {
                (nodes, bytes) = (1, more);
                parts.push(on_node.to_vec());
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_touch_no_more_nodes_than_allowed_and_lose_nobody() {
        let member = |n: usize| GroupMember {
            node: format!("n{}", n / 3).parse().unwrap(),
            pod: format!("p{n}").parse().unwrap(),
            want: "cpu=1m".parse().unwrap(),
            port: None,
            devices: BTreeSet::new(),
        };
        let all: Vec<GroupMember> = (0..20).map(member).collect();
        let (node_capacities, id) = (NodeCapacities::default(), "ns/g".parse().unwrap());
        let split = |bytes| {
            let bounds = Bounds { placed: 1, steps: 1, message_changes: 1, nodes: 2, bytes };
            let parts = parts(&node_capacities, &id, all.clone(), bounds);
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), all.len());
            parts.iter().map(|part| nodes_of(part).len()).collect::<Vec<_>>()
        };
        assert_eq!(split(100_000), [2, 2, 2, 1], "seven nodes, two each");
        assert_eq!(split(500), [1; 7], "the records of two nodes are too large");
    }
}
