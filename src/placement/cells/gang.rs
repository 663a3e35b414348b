//! The pods of a group in the places of a plan of cells, and whom the group may preempt. Pure.

use std::collections::BTreeMap;

use super::basic;
use crate::placement::capacity::GangPlacement;
use rcfarm_api::ResourceList;
use rcfarm_api::cells::{AffinityGroupRecord, CellRequest, GroupKey};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_cells::{CellDecision, CellPlan, GroupRequest};

/// Whether a group may preempt another one.
#[must_use]
pub fn may_preempt(by: &GroupRequest, other: &AffinityGroupRecord) -> bool {
    let is_own = other.request.key.virtual_cluster == by.key.virtual_cluster;
    by.priority >= 0 && (is_lent(other) || is_own && other.request.priority < by.priority)
}

/// Whether a group has what it was lent: it goes when asked, whatever its disruption budget says.
fn is_lent(record: &AffinityGroupRecord) -> bool {
    record.request.priority < 0 || record.lazy_preemption.is_some()
}

/// The first victim of a plan whose disruption budget forbids to stop it. `of`: what a group holds, and why its budget
/// forbids that. Groups that cells were lent to go in any case: the virtual cluster was promised its cells.
pub fn forbidden<'r>(
    plan: &CellPlan,
    of: impl Fn(&GroupKey) -> Option<(&'r AffinityGroupRecord, Option<String>)>,
) -> Option<String> {
    plan.victims.iter().find_map(|key| {
        let (_, why) = of(key).filter(|(record, _)| !is_lent(record))?;
        why.map(|why| format!("{key} may not be stopped: {why}"))
    })
}

/// What groups have on each node, by what they hold.
pub fn asks_of<'s>(
    statuses: impl Iterator<Item = &'s PodGroupStatus>,
    of: impl Fn(&AffinityGroupRecord) -> bool,
) -> BTreeMap<NodeName, ResourceList> {
    let mut asks: BTreeMap<NodeName, ResourceList> = BTreeMap::new();
    for status in statuses {
        let Some(place) = status.placement.as_ref() else { continue };
        if !place.cells.as_deref().is_some_and(&of) {
            continue;
        }
        for (task, _, node) in place.placed() {
            if let Some(more) = place.asks.get(task) {
                asks.entry(node.clone()).or_default().add(more);
            }
        }
    }
    asks
}

/// The decision about a group. `ask` has the scheduler decide; with `true` as if those whom the group may preempt had no
/// processors and no memory. A guaranteed group without a reservation is asked about twice: what others have counts as
/// free only if that lets it preempt.
///
/// # Errors
/// Those of `ask`.
pub fn decide<E>(
    group: &GroupRequest,
    is_reserved: bool,
    mut ask: impl FnMut(bool) -> Result<CellDecision, E>,
) -> Result<CellDecision, E> {
    let made = ask(is_reserved)?;
    if matches!(made, CellDecision::Wait(_)) && group.priority >= 0 && !is_reserved {
        let preempting = ask(true)?;
        if matches!(preempting, CellDecision::Preempt(_)) {
            return Ok(preempting);
        }
    }
    Ok(made)
}

/// The first node that has too few processors or too little memory for the group's pods in the places of a plan.
#[must_use]
pub fn lack(
    plan: &CellPlan,
    spec: &PodGroupSpec,
    free: impl Fn(&NodeName) -> ResourceList,
) -> Option<String> {
    let slots = slots(spec, spec.cells.as_ref()?).ok()?;
    let (nodes, _) = assign(spec, plan, &slots).ok()?;
    let mut wanted: BTreeMap<&NodeName, ResourceList> = BTreeMap::new();
    for (task, nodes) in &nodes.tasks {
        let of = spec.tasks.iter().find(|one| one.name == *task);
        let of = of.map(|one| basic(&one.resources))?;
        nodes.iter().for_each(|node| wanted.entry(node).or_default().add(&of));
    }
    wanted.into_iter().find_map(|(node, wanted)| {
        let lacks = !wanted.is_zero() && !free(node).fits(&wanted);
        lacks.then(|| format!("node {node} has no room for {wanted}"))
    })
}

/// Pods of a group by member of the request, in order: task and index.
pub type MemberSlots<'s> = BTreeMap<usize, Vec<(&'s TaskSpec, u32)>>;

/// The pods of a group.
///
/// # Errors
/// The group has another number of pods than its request.
pub fn slots<'s>(spec: &'s PodGroupSpec, request: &CellRequest) -> Result<MemberSlots<'s>, String> {
    let mut slots: MemberSlots<'_> = BTreeMap::new();
    for task in &spec.tasks {
        let member = request.tasks.get(&task.name).copied().unwrap_or_default();
        slots.entry(member).or_default().extend((0..task.replicas).map(|index| (task, index)));
    }
    for (number, member) in request.group.members.iter().enumerate() {
        let pods = slots.get(&number).map_or(0, Vec::len);
        if pods != member.pods as usize {
            return Err(format!(
                "spec.cells.group.members[{number}]: it has {} pods, the group's tasks have {pods}",
                member.pods
            ));
        }
    }
    Ok(slots)
}

/// Gives each pod of the group a place of the plan. Returns the nodes of members that have not ended, and the pods' names
/// by place.
///
/// # Errors
/// A place has another number of devices than its pod asks for.
pub fn assign(
    spec: &PodGroupSpec,
    plan: &CellPlan,
    slots: &MemberSlots<'_>,
) -> Result<(GangPlacement, Vec<String>), String> {
    let mut next: BTreeMap<usize, usize> = BTreeMap::new();
    let mut names = Vec::with_capacity(plan.pods.len());
    let mut tasks: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
    for place in &plan.pods {
        let n = next.entry(place.member).or_default();
        let slot = slots.get(&place.member).and_then(|slots| slots.get(*n));
        let Some((task, index)) = slot else {
            return Err("spec.cells: there are more places than pods".to_owned());
        };
        *n += 1;
        let wanted: Vec<u64> =
            task.resources.devices().map(|(_, count)| count).filter(|count| *count > 0).collect();
        if wanted != [place.devices.len() as u64] || place.devices.iter().any(|n| *n < 0) {
            return Err(format!(
                "task {}: its cells are {} devices; it has to ask for that many, of one kind",
                task.name,
                place.devices.len()
            ));
        }
        let node = place.node.parse().map_err(|bad| format!("cells: {bad}"))?;
        names.push(AffinityGroupRecord::pod_name(&task.name, *index));
        if !spec.is_ended(&task.name, *index) {
            tasks.entry(task.name.clone()).or_default().push(node);
        }
    }
    Ok((GangPlacement { tasks }, names))
}
