//! Whole gangs: a new attempt starts all members that the job needs, or none. Pure.
//!
//! A restart keeps the nodes of its members. If some of these are down by then, the rest must neither start nor keep
//! their nodes: two such jobs would hold what the other needs.

use std::collections::{BTreeMap, BTreeSet};

use super::triggers::Trigger;
use super::{JobObserved, JobPlan};
use crate::job::machine::{JobRequest, PhaseDecision};
use crate::job::members::{MemberPod, attempt_of};
use rcfarm_api::command::CommandAction;
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::{JobReason, JobStatus};

/// Limit of members that leave their nodes at once. The record of the group must fit into a transaction.
const MOST_MOVES: usize = 256;

/// Whether too few members have a node, and none has a pod.
pub(super) fn is_short(seen: &JobObserved<'_>, members: &BTreeMap<Slot, &MemberPod>) -> bool {
    let placed = seen.group.places.as_ref().map(BTreeMap::len);
    members.is_empty() && placed.is_some_and(|placed| placed < seen.job.min_available as usize)
}

/// Asks for another placement of all members if too few of them have a node.
pub(super) fn place_again(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
) {
    let status = &mut plan.status;
    let is_asked = status.round > seen.group.round;
    // Members on draining nodes get another node, or none.
    let is_moving = plan.moves.values().any(|node| seen.group.draining.contains(node));
    let is_quiet = plan.remove.is_empty() && seen.leaving.is_empty() && !is_moving;
    if status.state.phase.starts_members() && is_short(seen, members) && is_quiet && !is_asked {
        status.round += 1;
    }
}

/// Stops an attempt that has not been whole yet and cannot become so: too few members have a pod, and the others find
/// no node. The restart counts towards no limit.
pub(super) fn give_up(
    seen: &JobObserved<'_>,
    status: &JobStatus,
    members: &BTreeMap<Slot, &MemberPod>,
) -> Option<Trigger> {
    let is_stuck = status.state.phase == JobPhase::Pending
        && seen.group.unknown
        && !members.is_empty()
        && members.len() < seen.job.min_available as usize
        && !was_whole(status);
    is_stuck.then(|| {
        let missing = missing(seen, members);
        let (there, wanted) = (members.len(), seen.job.min_available);
        let message = format!(
            "{there} of {wanted} needed members have a place; all wait for places together: {missing}"
        );
        let ask = JobRequest::Do(CommandAction::RestartJob);
        let mut trigger = Trigger::new(ask, JobReason::MembersUnplaced, message);
        trigger.by_member = true;
        trigger
    })
}

/// Stops the members, since another group takes their room. What has ended decides first. The restart counts towards no
/// limit, and nothing delays it but the queue.
pub(super) fn evict(
    seen: &JobObserved<'_>,
    status: &JobStatus,
    members: &BTreeMap<Slot, &MemberPod>,
    verdict: PhaseDecision,
) -> Option<Trigger> {
    let why = seen.group.evicted.as_ref()?;
    let is_decided = status.state.phase == JobPhase::Running
        && matches!(verdict, PhaseDecision::Succeeded | PhaseDecision::Failed);
    let runs = members.values().any(|pod| !pod.phase.has_ended());
    (status.state.phase.starts_members() && runs && !is_decided).then(|| {
        let ask = JobRequest::Do(CommandAction::RestartJob);
        let mut trigger = Trigger::new(ask, JobReason::Evicted, why.clone());
        trigger.by_member = true;
        trigger
    })
}

/// Members without a pod that shall leave the node that they are bound to: it drains, or their last try failed there.
/// A node is not left while a pod of the member still runs: its devices would be given to another pod.
pub(super) fn moves(seen: &JobObserved<'_>, plan: &JobPlan) -> BTreeMap<Slot, NodeName> {
    let status = &plan.status;
    if !status.state.phase.starts_members() && status.state.phase != JobPhase::Restarting {
        return BTreeMap::new();
    }
    let running = seen.pods.iter().filter(|pod| !pod.phase.has_ended()).map(|pod| &pod.slot);
    let running: BTreeSet<&Slot> = running.chain(seen.leaving.keys()).collect();
    // A member of an array goes on with another task.
    let is_array = seen.job.array.is_some();
    let leaves = |slot: &Slot, node: &NodeName| {
        !status.has_started(slot)
            && !running.contains(slot)
            && (seen.group.draining.contains(node) || !is_array && failed_on(status, slot, node))
    };
    let bound = seen.group.bound.iter().filter(|(slot, node)| leaves(slot, node));
    bound.take(MOST_MOVES).map(|(slot, node)| (slot.clone(), node.clone())).collect()
}

/// Whether the last try failed on this node: another node goes first, if one has room.
fn failed_on(status: &JobStatus, slot: &Slot, node: &NodeName) -> bool {
    let attempt = attempt_of(status, slot);
    status.failures.iter().any(|failure| {
        let is_last = failure.version.checked_add(1) == Some(status.version)
            || failure.version == status.version && failure.attempt.checked_add(1) == Some(attempt);
        failure.slot == *slot && failure.node == *node && is_last
    })
}

/// Members that a message names at most.
const MOST_NAMED: usize = 8;

/// The members without a pod and without a node, each with the reason.
pub(super) fn missing(seen: &JobObserved<'_>, members: &BTreeMap<Slot, &MemberPod>) -> String {
    let slots = seen
        .job
        .tasks
        .iter()
        .flat_map(|task| (0..task.replicas).map(|index| Slot::new(&task.name, index)));
    let has_place = |slot: &Slot| {
        members.contains_key(slot)
            || seen.group.places.as_ref().is_some_and(|places| places.contains_key(slot))
    };
    let missing: Vec<Slot> = slots.filter(|slot| !has_place(slot)).collect();
    let waits =
        seen.group.waits.as_ref().map(|(_, why)| why.as_str()).filter(|why| !why.is_empty());
    let reason = |slot: &Slot| match seen.group.bound.get(slot) {
        Some(node) if seen.group.draining.contains(node) => {
            format!("{slot}: its node {node} is drained")
        }
        Some(node) => format!("{slot}: its node {node} is down"),
        None => format!("{slot}: {}", waits.unwrap_or("no node has room for it")),
    };
    let mut text: Vec<String> = missing.iter().take(MOST_NAMED).map(reason).collect();
    if missing.len() > MOST_NAMED {
        text.push(format!("and {} more", missing.len() - MOST_NAMED));
    }
    text.join("; ")
}

/// Whether the job has run since it was last restarted.
fn was_whole(status: &JobStatus) -> bool {
    let last = |phase| status.phases.iter().rposition(|record| record.status == phase);
    last(JobPhase::Running) > last(JobPhase::Restarting)
}
