//! Builds the transaction of a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::{FIXED_OPS, JobController, JobView, POD_OPS};
use crate::farm::kind::ReconcileError;
use crate::job::manifest::{Placed, PodIdentity};
use crate::job::plan::{Create, GroupStep, JobPlan};
use crate::job::writes::{self, Made};
use rcfarm_api::Stored;
use rcfarm_api::ids::NodeName;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobTask, Slot};
use rcfarm_api::job::status::{JobReason, LARGEST_STATUS};
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::Op;
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Content of one transaction.
pub(super) struct PlannedStep {
    pub(super) plan: JobPlan,
    /// Pods that it creates.
    pub(super) made: Vec<Made>,
    /// Pods that later transactions create.
    pub(super) rest: Vec<Create>,
    pub(super) adopted: Vec<Adopted>,
    pub(super) removed: Vec<(PodRef, Slot)>,
    /// Pods that lose the job's uid and stay.
    pub(super) released: Vec<PodRef>,
    /// The PodGroup's record, if it is written.
    pub(super) group: Option<PodGroupRecord>,
    /// Operations besides fence, record, status and audit record.
    pub(super) ops: Vec<Op>,
    /// Phase before the plan.
    pub(super) before: JobPhase,
}

impl PlannedStep {
    /// Whether pods or their labels change.
    pub(super) fn changes_pods(&self) -> bool {
        !self.made.is_empty()
            || !self.rest.is_empty()
            || !self.adopted.is_empty()
            || !self.removed.is_empty()
            || !self.released.is_empty()
    }
}

pub(super) type Adopted = (PodRef, PodIdentity);

impl JobController {
    /// Builds the transaction of a plan. `room`: limit of pods created; the rest is left to later transactions.
    ///
    /// # Errors
    /// [`ReconcileError::Record`]: no node can run a pod.
    pub(super) fn build_step(
        &self,
        input: &JobView,
        mut plan: JobPlan,
        before: JobPhase,
        room: usize,
    ) -> Result<PlannedStep, ReconcileError> {
        let rest = plan.create.split_off(room.min(plan.create.len()));
        let job = &input.record.read.spec;
        let address = |node: &NodeName| self.caches.address(node);
        // Includes nodes that are down, so that port offsets of other members stay the same.
        let bound = self.peer_nodes(input);
        let pod_ids = input.group.pod_ids;
        let (id, uid) = (&self.id, input.uid);
        let (places, ports) = (&bound, &self.given_ports(input));
        let tasks = plan.status.array.as_ref().map(|array| &array.members);
        let placed = Placed { id, uid, job, places, ports, address: &address, pod_ids, tasks };
        let made = writes::made(&placed, &plan.create);
        writes::check_strings(&placed, &made, &rest).map_err(|error| {
            let why = format!("its members cannot be told of all peers, use fewer: {error}");
            ReconcileError::Record(why)
        })?;
        let mut ops: Vec<Op> = made.iter().flat_map(|made| writes::create_ops(job, made)).collect();
        let is_evicted = plan.asked.is_some_and(|(_, reason)| reason == JobReason::Evicted);
        if is_evicted || !made.is_empty() && !enabled(Failpoint::PlaceUnchecked) {
            // Refused if the placement has changed, or if the eviction has been called off.
            let key = key::pod_group_status(&self.id);
            ops.push(Op::CheckIndex { key, index: input.placed_at });
        }
        let adopted = self.adopt(input, &placed, &plan, &mut ops);
        let released = if plan.release { release(input, &mut ops) } else { Vec::new() };
        let removed = self.remove(input, &plan, &mut ops);
        let group = self.change_group(input, &plan, &mut ops);
        self.delete_command(&plan, &mut ops);
        if plan.finished || plan.status.state.phase != before {
            ops.extend(self.ring_owner(input));
        }
        Ok(PlannedStep { plan, made, rest, adopted, removed, released, group, ops, before })
    }

    /// Removes the plan's pods, and as many orphans of an older job of the name as there is room for.
    fn remove(&self, input: &JobView, plan: &JobPlan, ops: &mut Vec<Op>) -> Vec<(PodRef, Slot)> {
        let mut removed = Vec::new();
        for (pod, _) in &plan.remove {
            ops.extend(writes::remove_ops(&pod.place, pod.label_index, pod.intent));
            removed.push((pod.place.clone(), pod.slot.clone()));
        }
        if plan.collect_orphans {
            let room = self.ctx.limits.ops.saturating_sub(ops.len() + FIXED_OPS) / POD_OPS;
            // Removes at least one if nothing else changes; otherwise the new job would wait forever.
            let room = room.max(usize::from(ops.is_empty()));
            for (place, (labelled, intent)) in input.pods.orphans.iter().take(room) {
                ops.extend(writes::remove_ops(place, labelled.index, *intent));
                removed.push((place.clone(), labelled.identity.slot.clone()));
            }
            let left = room.saturating_sub(input.pods.orphans.len());
            let abandoned = input.pods.abandoned(input.uid, plan.is_finalizing).take(left);
            for (place, (identity, intent)) in abandoned {
                ops.extend(writes::remove_unlabelled_ops(place, *intent));
                removed.push((place.clone(), identity.slot.clone()));
            }
        }
        removed
    }

    /// Writes or deletes the PodGroup's record. Returns the record if it is written.
    fn change_group(
        &self,
        input: &JobView,
        plan: &JobPlan,
        ops: &mut Vec<Op>,
    ) -> Option<PodGroupRecord> {
        let (index, current) = &self.group;
        let key = key::pod_group(&self.id);
        match plan.group {
            GroupStep::Delete if input.group.exists || input.group.is_foreign => {
                ops.push(Op::DeleteCas { key, index: *index });
                None
            }
            // An incomplete list may lack the group.
            GroupStep::Delete if plan.finished => {
                ops.push(Op::CheckNotExists { key });
                None
            }
            GroupStep::Delete | GroupStep::Leave => None,
            GroupStep::Keep => {
                let before = current.as_ref().filter(|_| input.group.exists).map(|c| &c.spec);
                let placed: BTreeSet<&Slot> = input
                    .group
                    .places
                    .iter()
                    .flatten()
                    .map(|(s, _)| s)
                    .chain(&plan.ended)
                    .collect();
                let placed = placed.len();
                let (job, uid, pods) = (&input.record.read.spec, input.uid, &input.pods);
                let mut wanted = writes::group_of(&self.id, uid, job, plan, placed, pods, before);
                if let Some(current) = current {
                    wanted.other.clone_from(&current.other);
                }
                if current.as_ref() == Some(&wanted) {
                    return None;
                }
                ops.push(Op::Cas { key, value: wanted.encode(), flags: 0, index: *index });
                Some(wanted)
            }
        }
    }

    /// Deletes the command that the plan executes.
    fn delete_command(&self, plan: &JobPlan, ops: &mut Vec<Op>) {
        if let Some(command) = &plan.consume {
            // Consul's delete of an absent key succeeds; without the check a command could be executed twice.
            let (key, index) = (command.key.clone(), command.index);
            if !enabled(Failpoint::CommandRepeated) {
                ops.push(Op::CheckIndex { key: key.clone(), index });
            }
            ops.push(Op::Delete { key });
        }
    }

    /// Rings the doorbell of the record that made the job.
    fn ring_owner(&self, input: &JobView) -> Option<Op> {
        let key = input.record.owner.as_ref()?.bell(&self.id)?;
        // Always new: an unchanged value wakes no watch.
        let value = format!("{} {} {}", self.id, input.uid, self.chain.status().revision + 1);
        Some(Op::Set { key, value: value.into(), flags: 0 })
    }

    /// Labels the pods that the plan adopts. Returns them with their identities.
    fn adopt(
        &self,
        input: &JobView,
        placed: &Placed<'_>,
        plan: &JobPlan,
        ops: &mut Vec<Op>,
    ) -> Vec<Adopted> {
        let mut adopted = Vec::new();
        for create in &plan.adopt {
            let is_it =
                |place: &PodRef, slot: &Slot| (&place.node, slot) == (&create.node, &create.slot);
            let mut unowned = input.pods.unowned.iter();
            let found = unowned.find(|(place, (unowned, _))| is_it(place, &unowned.slot));
            let Some((place, (unowned, _))) = found else { continue };
            let identity = placed.identity(create);
            ops.push(writes::adopt_op(&identity, place, unowned));
            adopted.push((place.clone(), identity));
        }
        adopted
    }

    /// Nodes of all members, once they may start. Members that have ended stay in the lists that others are given.
    pub(super) fn peer_nodes(&self, input: &JobView) -> BTreeMap<Slot, NodeName> {
        let mut nodes = input.group.bound.clone();
        let ended = input.pods.own.iter().filter(|pod| pod.phase.has_ended() && !pod.lost);
        for pod in ended.filter(|_| input.group.places.is_some()) {
            nodes.entry(pod.slot.clone()).or_insert_with(|| pod.place.node.clone());
        }
        nodes
    }

    /// Ports of bound members, once they may start.
    pub(super) fn given_ports(&self, input: &JobView) -> BTreeMap<Slot, u16> {
        let statuses = self.caches.groups.snapshot();
        let status = statuses.value.value(&self.id).and_then(Option::as_ref);
        let status = status.filter(|_| input.group.places.is_some());
        let Some(place) = status.and_then(|status| status.placement.as_ref()) else {
            return BTreeMap::new();
        };
        let tasks = input.record.read.spec.tasks.iter();
        let of_task = |task: &JobTask| {
            let count = place.ports.get(&task.lower_name()).map_or(0, Vec::len);
            let count = u32::try_from(count).unwrap_or(u32::MAX).min(task.replicas);
            let port = |n| Some((Slot::new(&task.name, n), place.port_of(&task.lower_name(), n)?));
            (0..count).filter_map(port).collect::<Vec<_>>()
        };
        tasks.flat_map(of_task).collect()
    }
}

/// Whether the status fits beside `other` bytes. It is encoded only where the largest one would not fit: jobs are looked
/// at more often than they are written.
pub(super) fn has_room_for(status: impl FnOnce() -> usize, other: usize, limit: usize) -> bool {
    let fits = |bytes: usize| other + bytes.div_ceil(3) * 4 <= limit;
    fits(LARGEST_STATUS) || fits(status())
}

/// Removes the job's uid from pods that carry other labels by now: they are no longer members.
fn release(input: &JobView, ops: &mut Vec<Op>) -> Vec<PodRef> {
    let mut released = Vec::new();
    for (place, mismatched) in input.pods.mismatched.iter().take(FIXED_OPS / 2) {
        ops.push(writes::release_op(place, mismatched));
        released.push(place.clone());
    }
    released
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_store::TxnLimits;

    #[test]
    fn status_is_encoded_only_where_it_may_not_fit() {
        let limit = TxnLimits::default().bytes;
        // A pod with a manifest of 20 KB, its labels and its group.
        assert!(has_room_for(|| panic!("it was encoded"), 100 * 1024, limit));
        let other = 400 * 1024;
        assert!(has_room_for(|| 60_000, other, limit));
        assert!(!has_room_for(|| 90_000, other, limit));
        assert!(!has_room_for(|| 3, limit - 3, limit));
        assert!(has_room_for(|| 3, limit - 4, limit));
    }
}
