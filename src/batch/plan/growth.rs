//! Members without a node of groups that are placed: those of elastic groups beyond their minimum, and those that had
//! ended and start again.

use std::sync::Arc;

use super::Pass;
use crate::batch::placing::{GroupMember, PlacementChange, VersionedStatus, gang, members};
use crate::batch::ports;
use crate::cluster::queues::StoredGroup;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupSpec};
use rcfarm_api::pod_group::status::{GroupPlacement, PlacementState};

/// Members of a task that need a node and have none.
fn open<'p>(
    spec: &'p PodGroupSpec,
    place: &'p GroupPlacement,
    task: &'p str,
) -> impl Iterator<Item = u32> + 'p {
    let slots = (0..).zip(place.members.get(task).into_iter().flatten());
    let open = slots.filter(move |(n, slot)| slot.is_none() && !spec.is_ended(task, *n));
    open.map(|(n, _)| n)
}

/// Members with a node that have not ended for good.
pub(super) fn placed_members(spec: &PodGroupSpec, place: &GroupPlacement) -> u32 {
    let placed = place.placed().filter(|(task, n, _)| !spec.is_ended(task, *n));
    u32::try_from(placed.count()).unwrap_or(u32::MAX)
}

/// Members that have ended for good, with or without a node.
pub(super) fn ended_members(spec: &PodGroupSpec) -> u32 {
    spec.ended_counts().values().sum()
}

/// Whether a group's placement is complete but for members that need a node.
pub(super) fn lacks_members(known: &VersionedStatus, group: &StoredGroup) -> bool {
    let place = known.value.placement.as_ref().filter(|p| p.state == PlacementState::Bound);
    let (Some(place), Ok(record)) = (place, &group.value) else { return false };
    place.members.keys().any(|task| open(&record.spec, place, task).next().is_some())
}

pub(super) fn least_members(spec: &PodGroupSpec) -> u32 {
    spec.least().values().sum()
}

impl<'a> Pass<'a, '_> {
    /// Places missing members of placed groups, within capability and capacity.
    pub(super) fn grow_all(&mut self, growing: &[(&'a GroupId, &'a VersionedStatus)]) {
        for (id, known) in growing {
            let lacks = |group: &Arc<StoredGroup>| lacks_members(known, group);
            let changed = || self.plan.changes.iter().any(|change| change.id == **id);
            if self.seen.groups.get(id).is_some_and(lacks) && !changed() && !self.is_set_aside(id) {
                if self.is_spent() {
                    self.plan.more = true;
                    return;
                }
                self.grow(id, known);
            }
        }
    }

    fn grow(&mut self, id: &'a GroupId, known: &'a VersionedStatus) {
        let Some(record) = self.seen.groups.get(id).and_then(|g| g.value.as_ref().ok()) else {
            return;
        };
        let (mut spec, status) = (record.spec.clone(), &known.value);
        let (Some(queue), Some(old)) = (&status.queue, &status.placement) else { return };
        if !status.phase.is_admitted()
            || spec.hold.is_some()
            || self.seen.queues.refusal(queue).is_some()
        {
            return;
        }
        let is_enough = placed_members(&spec, old) + ended_members(&spec) >= least_members(&spec);
        if is_enough && self.keeps_capacity(queue) {
            return;
        }
        for task in &mut spec.tasks {
            task.resources = old.asks.get(&task.name).unwrap_or(&task.resources).clone();
        }
        for task in &spec.tasks {
            let slots: Vec<u32> = open(&spec, old, &task.name).collect();
            if let Some(cells) = &old.cells {
                let own = |n: &u32| cells.place_of(&task.name, *n)?.node.parse().ok();
                let nodes: Vec<NodeName> = slots.iter().map_while(own).collect();
                let more = task.resources.of_pods(nodes.len() as u64);
                let usage = &self.plan.usage;
                if !nodes.is_empty() && self.seen.queues.fits(usage, queue, &more).is_ok() {
                    return self.fill((id, &spec), known, &task.name, nodes);
                }
                continue;
            }
            let open = slots.len().min(self.bounds_beside(old).nodes);
            let each = task.resources.of_pods(1);
            let (mut usage, mut most) = (self.plan.usage.clone(), 0);
            while most < open && self.seen.queues.fits(&usage, queue, &each).is_ok() {
                usage.charge(self.seen.queues, queue, &each);
                most += 1;
            }
            let count = u32::try_from(most).unwrap_or(u32::MAX);
            let mut asked = gang(id, &spec, &[(task.name.as_str(), count)].into(), self.seen.spec);
            let Some(one) = asked.tasks.first_mut() else { continue };
            let listens = slots.iter().filter(|n| **n < task.ports).count();
            one.ports = u32::try_from(listens).unwrap_or(u32::MAX).min(one.replicas);
            one.replicas = self.memory.index.fitting(one);
            one.ports = one.ports.min(one.replicas);
            let answer = match one.replicas {
                0 => None,
                _ => self.memory.index.find(&asked),
            };
            let ids = (id, old.pod_ids);
            let answer = answer.and_then(|found| self.beside(ids, &asked, found).ok());
            let nodes: Vec<NodeName> =
                answer.into_iter().flat_map(|a| a.tasks).flat_map(|(_, nodes)| nodes).collect();
            if !nodes.is_empty() {
                return self.fill((id, &spec), known, &task.name, nodes);
            }
        }
    }

    /// Assigns nodes to the first unplaced members of a task.
    fn fill(
        &mut self,
        (id, spec): (&GroupId, &PodGroupSpec),
        known: &VersionedStatus,
        task: &str,
        nodes: Vec<NodeName>,
    ) {
        let mut after = (*known.value).clone();
        let (Some(place), Some(queue)) = (&mut after.placement, after.queue.clone()) else {
            return;
        };
        let before: Vec<GroupMember> = members(id, place);
        let mut nodes = nodes.into_iter();
        let slots = (0..).zip(place.members.get_mut(task).into_iter().flatten());
        let open = slots.filter(|(n, slot)| slot.is_none() && !spec.is_ended(task, *n));
        open.for_each(|(_, slot)| *slot = nodes.next());
        // Members that get no port have no node; they are placed later.
        let _ = ports::assign(self.memory.index.node_capacities(), spec, place);
        let mut allocate = members(id, place);
        allocate.retain(|member| !before.contains(member));
        // No port is free there: the change would change nothing, and be made again at once.
        if allocate.is_empty() || self.book(id, &[], &allocate).is_err() {
            return;
        }
        let (usage, queues) = (&mut self.plan.usage, self.seen.queues);
        usage.recharge(queues, &queue, &mut after.charged, place.charge());
        let mut change = PlacementChange::of_status(id, Some(known), after);
        change.allocate = allocate;
        self.plan.changes.push(change);
        self.placed += 1;
    }
}
