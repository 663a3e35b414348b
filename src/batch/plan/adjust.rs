//! Changes of a complete placement: members move off nodes that are down, surplus ones are released, new ones get an open
//! slot.

use std::time::Duration;

use super::Pass;
use crate::batch::placing::{
    GroupMember, PlacementChange, VersionedStatus, fitted, gang, members, parts,
};
use crate::batch::ports;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord, PodGroupSpec};
use rcfarm_api::pod_group::status::{GroupPlacement, PodGroupPhase, PodGroupReason};

/// Poll interval while members have no node.
const NODES_EVERY: Duration = Duration::from_secs(2);

impl Pass<'_, '_> {
    /// Replaces the nodes of members without a pod whose node is down, as far as capacity allows. Others are placed
    /// later, like new members. `false`: no such member.
    pub(super) fn replace_down_nodes(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        record: &PodGroupRecord,
        place: &GroupPlacement,
    ) -> bool {
        if record.members.pending == 0 {
            return false;
        }
        // A node may be reported as down only later.
        self.due(self.seen.now.checked_add(NODES_EVERY).unwrap_or(self.seen.now));
        let (mut kept, left) = self.divide_by_down_nodes(place);
        let release = members(id, &left);
        if release.is_empty() {
            return false;
        }
        let _ = self.book(id, &release, &[]);
        kept.drop_unplaced_ports();
        self.find_nodes_again(id, record, &left, &mut kept);
        // Members that get no port have no node; they are placed later.
        let _ = ports::assign(self.memory.index.node_capacities(), &record.spec, &mut kept);
        let were = members(id, place);
        let mut allocate = members(id, &kept);
        allocate.retain(|member| !were.contains(member));
        // Cannot fail: the placement was found on this copy.
        let _ = self.book(id, &[], &allocate);
        let mut after = (*known.value).clone();
        if let Some(queue) = &after.queue {
            let (usage, queues) = (&mut self.plan.usage, self.seen.queues);
            usage.recharge(queues, queue, &mut after.charged, kept.charge());
        }
        after.placement = Some(kept);
        let mut change = PlacementChange::of_status(id, Some(known), after);
        (change.release, change.allocate) = (release, allocate);
        self.plan.changes.push(change);
        self.require_record(id);
        self.plan.more = true;
        true
    }

    /// Divides a placement into members that keep their node and members whose node is down. Of these it takes no more
    /// than one change can move.
    fn divide_by_down_nodes(&self, place: &GroupPlacement) -> (GroupPlacement, GroupPlacement) {
        let (mut kept, mut left) = (place.clone(), place.clone());
        let mut most = (self.bounds_beside(place).nodes / 2).max(1);
        for (task, nodes) in &mut kept.members {
            for (n, slot) in nodes.iter_mut().enumerate() {
                if most > 0 && slot.as_ref().is_some_and(|node| self.seen.down.contains(node)) {
                    (*slot, most) = (None, most - 1);
                } else if let Some(slot) = left.members.get_mut(task).and_then(|n_| n_.get_mut(n)) {
                    *slot = None;
                }
            }
        }
        (kept, left)
    }

    /// Finds nodes for the members of `left`, as far as capacity allows, and enters them into `kept`.
    fn find_nodes_again(
        &mut self,
        id: &GroupId,
        record: &PodGroupRecord,
        left: &GroupPlacement,
        kept: &mut GroupPlacement,
    ) {
        let mut spec = record.spec.clone();
        for task in &mut spec.tasks {
            task.resources = left.asks.get(&task.name).unwrap_or(&task.resources).clone();
        }
        let gone = left.counts();
        let asked = gang(id, &spec, &gone, self.seen.spec);
        let found = self.memory.find(&asked).ok();
        let ids = (id, left.pod_ids);
        if let Some(answer) = found.and_then(|found| self.beside(ids, &asked, found).ok()) {
            for (task, nodes) in answer.tasks {
                let were = left.members.get(&task).into_iter().flatten().map(Option::is_some);
                let slots = kept.members.get_mut(&task).into_iter().flatten().zip(were);
                let open = slots.filter(|(_, was)| *was).map(|(slot, _)| slot);
                open.zip(nodes).for_each(|(slot, node)| *slot = Some(node));
            }
        }
    }

    /// Adapts the placement to a changed record: surplus members are released, new ones have no node yet.
    pub(super) fn adjust(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        spec: &PodGroupSpec,
        place: &GroupPlacement,
        phase: PodGroupPhase,
    ) {
        let (kept, lost) = self.fit_to_record(id, spec, place);
        let mut after = (*known.value).clone();
        if kept != *place {
            let _ = self.book(id, &lost, &[]);
            if let Some(queue) = &after.queue {
                let (usage, queues) = (&mut self.plan.usage, self.seen.queues);
                usage.recharge(queues, queue, &mut after.charged, kept.charge());
            }
            after.placement = Some(kept);
        }
        if phase != after.phase || phase == PodGroupPhase::Unknown {
            let reason = if phase == PodGroupPhase::Unknown {
                PodGroupReason::MembersLost
            } else {
                PodGroupReason::AsDesired
            };
            let record = self.seen.groups.get(id).and_then(|group| group.value.as_ref().ok());
            after.members = record.map(|record| record.members).unwrap_or_default();
            after.say(phase, reason, String::new(), self.seen.now);
        }
        if after != *known.value {
            let mut change = PlacementChange::of_status(id, Some(known), after);
            change.release = lost;
            let has_release = !change.release.is_empty();
            self.plan.changes.push(change);
            if has_release {
                self.require_record(id);
            }
        }
    }

    /// The placement for the record's replicas, and the members that lose their node. Surplus members that one change
    /// cannot release keep their nodes until the next pass.
    fn fit_to_record(
        &mut self,
        id: &GroupId,
        spec: &PodGroupSpec,
        place: &GroupPlacement,
    ) -> (GroupPlacement, Vec<GroupMember>) {
        let (kept, lost) = fitted(id, spec, place);
        let bounds = self.bounds_beside(place);
        let first =
            parts(self.memory.index.node_capacities(), id, lost.clone(), bounds).into_iter().next();
        let Some(part) = first.filter(|part| part.len() < lost.len()) else { return (kept, lost) };
        let mut kept = place.clone();
        let gone = |task: &str, n: usize| {
            let pod = u32::try_from(n).ok().and_then(|n| place.pod_ids.pod_id(id, task, n).ok());
            part.iter().any(|member| Some(&member.pod) == pod.as_ref())
        };
        for (task, nodes) in &mut kept.members {
            nodes
                .iter_mut()
                .enumerate()
                .filter(|(n, _)| gone(task, *n))
                .for_each(|(_, slot)| *slot = None);
        }
        kept.drop_unplaced_ports();
        self.plan.more = true;
        (kept, part)
    }
}
