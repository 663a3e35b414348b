//! Changes of a complete placement: members move off nodes that are down, surplus ones are released, new ones get an open
//! slot.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Pass;
use crate::batch::placing::{
    GroupMember, PlacementChange, VersionedStatus, fitted, gang, members, parts,
};
use crate::batch::ports;
use crate::placement::capacity::{Gang, GangPlacement};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord, PodGroupSpec};
use rcfarm_api::pod_group::status::{GroupPlacement, PodGroupPhase, PodGroupReason};

/// Poll interval while members have no node.
const NODES_EVERY: Duration = Duration::from_secs(2);

impl Pass<'_, '_> {
    /// Replaces the nodes of members without a pod whose node is down or that shall leave it, as far as capacity allows.
    /// Others are placed later, like new members. `false`: no such member.
    pub(super) fn replace_down_nodes(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        record: &PodGroupRecord,
        place: &GroupPlacement,
    ) -> bool {
        if record.members.pending == 0 && record.spec.moves.is_empty() {
            return false;
        }
        if place.cells.is_some() {
            // Members keep their cells. The job restarts as a whole to get others.
            return false;
        }
        // A node may be reported as down only later.
        self.due(self.seen.now.checked_add(NODES_EVERY).unwrap_or(self.seen.now));
        let (mut kept, mut left) = self.divide_by_down_nodes(&record.spec, place);
        let candidates = members(id, &left);
        if candidates.is_empty() {
            return false;
        }
        let _ = self.book(id, &candidates, &[]);
        kept.drop_unplaced_ports();
        self.find_nodes_again(id, record, &left, &mut kept);
        self.keep_unmoved(id, place, &mut left, &mut kept);
        let release = members(id, &left);
        if release.is_empty() {
            return false;
        }
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

    /// Members that were placed on the node that they had keep it, with their port and their allocation.
    fn keep_unmoved(
        &mut self,
        id: &GroupId,
        place: &GroupPlacement,
        left: &mut GroupPlacement,
        kept: &mut GroupPlacement,
    ) {
        let mut unmoved = left.clone();
        for (task, nodes) in &mut unmoved.members {
            let now = kept.members.get(task).map_or(&[][..], Vec::as_slice);
            for (n, slot) in nodes.iter_mut().enumerate() {
                if now.get(n) != Some(&*slot) {
                    *slot = None;
                }
            }
        }
        let stay: Vec<_> = unmoved.placed().map(|(task, n, _)| (task.to_owned(), n)).collect();
        for (task, n) in stay {
            if let Some(port) = place.port_of(&task, n) {
                kept.set_port(&task, n, port);
            }
            let slot = left.members.get_mut(&task).and_then(|nodes| nodes.get_mut(n as usize));
            slot.map(Option::take);
        }
        // Cannot fail: it was released above.
        let _ = self.book(id, &[], &members(id, &unmoved));
    }

    /// Divides a placement into members that keep their node and members whose node is down or that shall leave it. Of
    /// these it takes no more than one change can move.
    fn divide_by_down_nodes(
        &self,
        spec: &PodGroupSpec,
        place: &GroupPlacement,
    ) -> (GroupPlacement, GroupPlacement) {
        let (mut kept, mut left) = (place.clone(), place.clone());
        let mut most = (self.bounds_beside(place).nodes / 2).max(1);
        for (task, nodes) in &mut kept.members {
            let moves = spec.moves.get(task);
            for (n, slot) in nodes.iter_mut().enumerate() {
                let index = u32::try_from(n).unwrap_or(u32::MAX);
                let leaves = |node: &NodeName| {
                    self.seen.down.contains(node)
                        || moves.and_then(|moves| moves.get(&index)) == Some(node)
                };
                if most > 0 && slot.as_ref().is_some_and(leaves) {
                    (*slot, most) = (None, most - 1);
                } else if let Some(slot) = left.members.get_mut(task).and_then(|n_| n_.get_mut(n)) {
                    *slot = None;
                }
            }
        }
        (kept, left)
    }

    /// Finds nodes for the members of `left`, as far as capacity allows, and enters them into `kept`. If not all find
    /// one, members on fit nodes stay there, and the others are placed without them.
    fn find_nodes_again(
        &mut self,
        id: &GroupId,
        record: &PodGroupRecord,
        left: &GroupPlacement,
        kept: &mut GroupPlacement,
    ) {
        if self.find_nodes(id, record, left, kept) {
            return;
        }
        let (mut stay, mut homeless) = (left.clone(), left.clone());
        let unfit = |node: &NodeName| self.seen.fleet.unfit.contains(node);
        for (task, nodes) in &left.members {
            for (n, node) in nodes.iter().enumerate() {
                let side = if node.as_ref().is_some_and(unfit) { &mut stay } else { &mut homeless };
                let slot = side.members.get_mut(task).and_then(|nodes| nodes.get_mut(n));
                slot.map(Option::take);
            }
        }
        let staying = members(id, &stay);
        if staying.is_empty() || self.book(id, &[], &staying).is_err() {
            return;
        }
        for (task, n, node) in stay.placed() {
            let slot = kept.members.get_mut(task).and_then(|nodes| nodes.get_mut(n as usize));
            if let Some(slot) = slot {
                *slot = Some(node.clone());
            }
        }
        self.find_nodes(id, record, &homeless, kept);
        // They are booked again as what they are: unmoved.
        let _ = self.book(id, &staying, &[]);
    }

    /// Finds nodes for all members of `left`, and enters them into `kept`. `false`: not all of them fit.
    fn find_nodes(
        &mut self,
        id: &GroupId,
        record: &PodGroupRecord,
        left: &GroupPlacement,
        kept: &mut GroupPlacement,
    ) -> bool {
        if left.placed().next().is_none() {
            return true;
        }
        let mut spec = record.spec.clone();
        for task in &mut spec.tasks {
            task.resources = left.asks.get(&task.name).unwrap_or(&task.resources).clone();
            let listens =
                left.placed().filter(|(name, n, _)| *name == task.name && *n < task.ports);
            task.ports = u32::try_from(listens.count()).unwrap_or(u32::MAX);
        }
        let gone = left.counts();
        let asked = gang(id, &spec, &gone, self.seen.spec);
        let elsewhere = self.find_elsewhere(&asked, left);
        let found = elsewhere.or_else(|| self.memory.find(&asked).ok());
        let ids = (id, left.pod_ids);
        let Some(answer) = found.and_then(|found| self.beside(ids, &asked, found).ok()) else {
            return false;
        };
        for (task, nodes) in answer.tasks {
            let were = left.members.get(&task).into_iter().flatten().map(Option::is_some);
            let slots = kept.members.get_mut(&task).into_iter().flatten().zip(were);
            let open = slots.filter(|(_, was)| *was).map(|(slot, _)| slot);
            open.zip(nodes).for_each(|(slot, node)| *slot = Some(node));
        }
        true
    }

    /// A placement without the nodes that members shall leave. Their nodes may be fit: a member has failed there.
    fn find_elsewhere(&mut self, asked: &Gang, left: &GroupPlacement) -> Option<GangPlacement> {
        let leaves = |(_, _, node): &(&str, u32, &NodeName)| !self.seen.fleet.unfit.contains(*node);
        let fit: BTreeSet<NodeName> =
            left.placed().filter(leaves).map(|(_, _, node)| node.clone()).collect();
        if fit.is_empty() {
            return None;
        }
        self.memory.index.find_without(asked, &fit)
    }

    /// Adapts the placement to a changed record: surplus members and those that have ended are released, new ones have no
    /// node yet.
    pub(super) fn adjust(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        spec: &PodGroupSpec,
        place: &GroupPlacement,
        phase: PodGroupPhase,
    ) {
        let (kept, lost, too_large) = self.fit_to_record(id, spec, place);
        let mut after = (*known.value).clone();
        if kept != *place {
            let _ = self.book(id, &lost, &[]);
            if let Some(queue) = &after.queue {
                let (usage, queues) = (&mut self.plan.usage, self.seen.queues);
                usage.recharge(queues, queue, &mut after.charged, kept.charge());
            }
            after.placement = Some(kept);
        }
        let is_same = too_large.is_some() == (after.reason == PodGroupReason::InvalidRecord);
        if phase != after.phase || phase == PodGroupPhase::Unknown || !is_same {
            let evicted = after.evicted().map(ToString::to_string);
            let reason = if too_large.is_some() {
                PodGroupReason::InvalidRecord
            } else if evicted.is_some() {
                PodGroupReason::Evicted
            } else if phase == PodGroupPhase::Unknown {
                PodGroupReason::MembersLost
            } else {
                PodGroupReason::AsDesired
            };
            let record = self.seen.groups.get(id).and_then(|group| group.value.as_ref().ok());
            after.members = record.map(|record| record.members).unwrap_or_default();
            after.say(phase, reason, too_large.or(evicted).unwrap_or_default(), self.seen.now);
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

    /// The placement for the record, the members that lose their node, and why new members cannot be added. Surplus and
    /// ended members that one change cannot release keep their nodes until the next pass.
    fn fit_to_record(
        &mut self,
        id: &GroupId,
        spec: &PodGroupSpec,
        place: &GroupPlacement,
    ) -> (GroupPlacement, Vec<GroupMember>, Option<String>) {
        let (mut kept, mut lost) = fitted(id, spec, place);
        let mut why = None;
        if self.too_large(&kept).is_some() {
            // Runs of members on one node are broken up by those that have ended: they keep their resources.
            (kept, lost) = fitted(id, &without_newly_ended(spec, place), place);
        }
        if let Some(too_large) = self.too_large(&kept) {
            // It has grown too much: surplus members are released nevertheless.
            why = Some(too_large);
            (kept, lost) = fitted(id, &without_growth(spec, place), place);
        }
        if self.too_large(&kept).is_some() {
            return (place.clone(), Vec::new(), why);
        }
        let bounds = self.bounds_beside(place);
        let first =
            parts(self.memory.index.node_capacities(), id, lost.clone(), bounds).into_iter().next();
        let Some(part) = first.filter(|part| part.len() < lost.len()) else {
            return (kept, lost, why);
        };
        let mut now = place.clone();
        let gone = |task: &str, n: usize| {
            let pod = u32::try_from(n).ok().and_then(|n| place.pod_ids.pod_id(id, task, n).ok());
            part.iter().any(|member| Some(&member.pod) == pod.as_ref())
        };
        for (task, nodes) in &mut now.members {
            let ended = kept.ended.get(task);
            for (n, slot) in nodes.iter_mut().enumerate().filter(|(n, _)| gone(task, *n)) {
                *slot = None;
                if let Some(node) = ended.and_then(|ended| ended.get(n)?.clone()) {
                    let ended = now.ended.entry(task.clone()).or_default();
                    ended.resize(ended.len().max(n + 1), None);
                    ended[n] = Some(node);
                }
            }
        }
        now.drop_unplaced_ports();
        self.plan.more = true;
        (now, part, why)
    }
}

/// [`without_newly_ended`], and without members that the placement does not have.
fn without_growth(spec: &PodGroupSpec, place: &GroupPlacement) -> PodGroupSpec {
    let mut spec = without_newly_ended(spec, place);
    spec.tasks.retain(|task| place.members.contains_key(&task.name));
    for task in &mut spec.tasks {
        let placed = place.members.get(&task.name).map_or(0, Vec::len);
        task.replicas = task.replicas.min(u32::try_from(placed).unwrap_or(u32::MAX));
    }
    spec
}

/// The specification, as if the members with a node had not ended.
fn without_newly_ended(spec: &PodGroupSpec, place: &GroupPlacement) -> PodGroupSpec {
    let mut spec = spec.clone();
    for (task, ended) in &mut spec.ended {
        let nodes = place.members.get(task).map_or(&[][..], Vec::as_slice);
        let has_node = |n: u32| nodes.get(n as usize).is_some_and(Option::is_some);
        *ended = ended.iter().filter(|n| !has_node(*n)).collect();
    }
    spec
}
