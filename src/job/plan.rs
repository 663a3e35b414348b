//! Plans the next step of a job. Pure.
//!
//! A plan handles one request ([`triggers`]) with one step of the state machine. It yields pods to create and
//! remove, the change of the PodGroup and the next status. The controller commits it and plans again.
//!
//! | module | contents |
//! |---|---|
//! | [`triggers`] | what asks for the next step: commands, ends and failures of members, deadlines |
//! | `array` | tasks that members of an array run one after the other |
//! | `advance` | one step of the state machine |
//! | `deletion` | deletion on request, or after the TTL |
//! | `gang` | starts of whole gangs after a restart |
//! | `waiting`, `transition` | reason and message of a job that waits, and of a phase that begins |
//! | `batched_start` | starts that need several transactions |

mod advance;
mod array;
pub(super) mod batched_start;
mod deletion;
mod gang;
mod transition;
pub mod triggers;
pub(super) mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::advance::advance;
use self::deletion::{expiry, finalize, is_over};
use super::adoption::{AdoptionVerdict, Reference, verdict};
use super::frameworks::{self, FrameworkOutcome, TaskCounts};
use super::machine::{JobRequest, PhaseDecision};
use super::members::{
    FreePod, MemberPod, MemberRemoveReason, Sorted, attempt_of, counts, dependencies_ready, ended,
    publish, remember, sort,
};
use crate::cluster::commands::Pending;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobTask, JobUid, Slot};
use rcfarm_api::job::status::{
    JobConditionType, JobReason, JobStatus, PodPhase, Slots, set_condition,
};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;

/// The job's PodGroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedGroup {
    /// Whether a record of this job exists.
    pub exists: bool,
    /// Whether a record of another owner has its name.
    pub is_foreign: bool,
    /// Whether it was admitted in this round.
    pub is_admitted: bool,
    /// Placement round that its record asks for.
    pub round: u64,
    /// Nodes by member, once members may start.
    pub places: Option<BTreeMap<Slot, NodeName>>,
    /// Nodes that members had when they ended: nothing is allocated to them any more.
    pub ended: BTreeMap<Slot, NodeName>,
    /// As `places`, with nodes that are down or draining.
    pub bound: BTreeMap<Slot, NodeName>,
    /// Those of `bound` that drain.
    pub draining: BTreeSet<NodeName>,
    /// How the pods of this placement are named.
    pub pod_ids: PodIdFormat,
    /// Whether it lost members and cannot place them.
    pub unknown: bool,
    /// Why its members have to stop: another group takes their room.
    pub evicted: Option<String>,
    /// Whether all its members have ended: no member starts in this round.
    pub is_over: bool,
    /// Reason and message while it waits.
    pub waits: Option<(String, String)>,
}

/// Input of a plan.
pub struct JobObserved<'a> {
    /// Namespace and name of the job.
    pub id: &'a Namespaced,
    /// CreateIndex of the record; tells jobs of the same name apart.
    pub uid: JobUid,
    /// The record, as `document` has read it.
    pub job: &'a JobSpec,
    /// Hash of the fields that may not change.
    pub immutable_hash: u64,
    /// The same without what members request.
    pub requestless_hash: u64,
    /// Status as last written.
    pub status: &'a JobStatus,
    pub pods: &'a [MemberPod],
    /// Pods by member that have no intent but still run, on nodes that are not down.
    pub leaving: &'a BTreeMap<Slot, u32>,
    /// Number of pods of an older job of this name.
    pub orphans: usize,
    /// Whether such a pod still runs, on a node that is not down.
    pub older: bool,
    /// Number of pods that were made for this job and whose labels were deleted. They have no owner until the job is
    /// deleted.
    pub unlabelled: usize,
    /// Pods with this job's labels but no uid.
    pub unowned: &'a [FreePod],
    /// Whether pods with this job's uid have other labels by now.
    pub mismatched: bool,
    /// Members whose pod id is in use on their node by a pod of another owner.
    pub taken: &'a BTreeSet<Slot>,
    /// PodGroup of the job.
    pub group: &'a ObservedGroup,
    /// Commands not yet executed, oldest first.
    pub commands: &'a [Pending],
    /// Whether the input is trusted enough to remove pods.
    pub may_remove: bool,
    /// Limit of pods created and removed in one transaction.
    pub room: usize,
    /// Wall-clock time.
    pub now: Timestamp,
}

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Member of the job.
    pub slot: Slot,
    /// Node that the group is bound to for this member.
    pub node: NodeName,
    /// Attempt of the whole job.
    pub version: u64,
    /// Attempt of the member.
    pub attempt: u32,
}

/// Change of the PodGroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupStep {
    /// Write the spec and member counts that the job wants.
    Keep,
    /// Neither create nor change it: the job is being deleted, or its immutable fields have changed.
    Leave,
    /// Delete it; the batch controller then releases its allocations.
    Delete,
}

/// Output of a plan.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct JobPlan {
    /// Status after the step.
    pub status: JobStatus,
    /// Pods to create: the first ones in this transaction, the rest in a `batched_start`.
    pub create: Vec<Create>,
    pub remove: Vec<(MemberPod, MemberRemoveReason)>,
    /// Whether to remove pods of an older job of the name.
    pub collect_orphans: bool,
    /// Whether the record is being deleted: [`JobObserved::unlabelled`] are collected with the orphans.
    pub is_finalizing: bool,
    /// Members without a pod that shall leave the node that they are bound to.
    pub moves: BTreeMap<Slot, NodeName>,
    /// Pods without a uid that become members.
    pub adopt: Vec<Create>,
    /// Whether to release pods that carry other labels by now.
    pub release: bool,
    /// Members that have ended and do not start again: they need no node.
    pub ended: BTreeSet<Slot>,
    /// Change of the PodGroup.
    pub group: GroupStep,
    /// Command to delete as executed.
    pub consume: Option<Pending>,
    /// Request and reason for the audit log; `None` without a request.
    pub asked: Option<(JobRequest, JobReason)>,
    /// Whether nothing is left: record and status are deleted.
    pub finished: bool,
    /// Time of the next reconcile if nothing changes before.
    pub wake_at: Option<Timestamp>,
}

/// Interval between looks at another owner's pods that have ids of members: changes of these wake nobody.
const TAKEN_EVERY: Duration = Duration::from_secs(2);

impl JobPlan {
    /// A plan that removes surplus pods and changes nothing else yet.
    fn new(
        seen: &JobObserved<'_>,
        status: JobStatus,
        surplus: &[(&MemberPod, MemberRemoveReason)],
    ) -> JobPlan {
        JobPlan {
            status,
            create: Vec::new(),
            remove: surplus.iter().map(|(pod, why)| ((*pod).clone(), *why)).collect(),
            collect_orphans: seen.orphans > 0,
            is_finalizing: false,
            moves: BTreeMap::new(),
            adopt: Vec::new(),
            release: false,
            ended: BTreeSet::new(),
            // The group of an older job keeps its allocations: pods of that job may still run there.
            group: if seen.group.is_foreign { GroupStep::Leave } else { GroupStep::Keep },
            consume: None,
            asked: None,
            finished: false,
            wake_at: None,
        }
    }

    pub(super) fn wake(&mut self, at: Option<Timestamp>) {
        self.wake_at = [self.wake_at, at].into_iter().flatten().min();
    }
}

/// Plans one reconcile.
pub fn plan(seen: &JobObserved<'_>) -> JobPlan {
    let mut status = present(seen);
    batched_start::reconcile_existing(&mut status, seen);
    let mut sorted = sort(seen.job, &status, seen.pods);
    status.recall();
    let mut plan = JobPlan::new(seen, status, &sorted.surplus);
    if is_over(seen, &mut plan) {
        return finalize(seen, plan);
    }
    if plan.status.immutable_hash != hash_text(seen.immutable_hash)
        && !takes_requests(seen, &mut plan.status)
    {
        return freeze(plan);
    }
    array::note_failures(seen, &mut plan.status);
    array::note_ends(seen, &mut plan, &mut sorted.members);
    let (members, outcome) = take_step(seen, &mut plan, sorted);
    adopt(seen, &mut plan);
    start(seen, &mut plan, &members);
    plan.ended = ended(seen.job, &plan.status, &members);
    plan.ended.extend(array::idle(seen, &plan, &members));
    say_counts(seen, &mut plan, &members);
    next_round(seen, &mut plan);
    plan.moves = gang::moves(seen, &plan);
    gang::place_again(seen, &mut plan, &members);
    plan.remove.truncate(if seen.may_remove { seen.room } else { 0 });
    forget_surplus(&mut plan);
    plan.collect_orphans &= seen.may_remove;
    waiting::say_waiting(seen, &mut plan, &members, &outcome);
    delete_group(seen, &mut plan);
    plan.status.keep_small();
    alarms(seen, &mut plan);
    plan
}

/// Finds the request to the job and takes one step of the state machine. Returns the members that stay, and the result
/// of the framework's rules.
fn take_step<'p>(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    sorted: Sorted<'p>,
) -> (BTreeMap<Slot, &'p MemberPod>, FrameworkOutcome) {
    let lost = note_lost(&mut plan.status, seen, &sorted.surplus, &sorted.members);
    let phase = plan.status.state.phase;
    let before = counts(seen.job, phase, &sorted.members, seen.leaving);
    let outcome = match &seen.job.array {
        Some(array) => array::outcome(seen, array, &plan.status, &before),
        None => frameworks::outcome_of(seen.job, &before),
    };
    let trigger = triggers::trigger(
        &triggers::TriggerInput {
            job: seen.job,
            uid: seen.uid,
            members: &sorted.members,
            lost: &lost,
            commands: seen.commands,
            is_decided: matches!(outcome.verdict, PhaseDecision::Succeeded | PhaseDecision::Failed),
            group_unknown: seen.group.unknown,
            now: seen.now,
        },
        &mut plan.status,
    );
    let given_up = || gang::give_up(seen, &plan.status, &sorted.members);
    let stopped = gang::evict(seen, &plan.status, &sorted.members, outcome.verdict);
    let stopped = stopped.or_else(given_up).filter(|_| trigger.ask == JobRequest::Sync);
    let trigger = stopped.unwrap_or(trigger);
    plan.consume.clone_from(&trigger.command);
    if trigger.ask != JobRequest::Sync {
        plan.asked = Some((trigger.ask, trigger.reason));
    }
    note_start(seen, plan, &sorted.members);
    let gone = advance(seen, plan, &sorted.members, &before, &trigger, &outcome);
    let mut members = sorted.members;
    members.retain(|slot, _| !gone.contains(slot));
    (members, outcome)
}

/// Deletes the PodGroup once no member needs a place.
fn delete_group(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let holds = seen.group.exists && plan.status.members.alive();
    let wanted = plan.status.state.phase.is_active();
    let older_gone = seen.orphans == 0 && !seen.older && seen.leaving.is_empty();
    // Without members it needs no place; scaled up, it gets a new group.
    let idle = seen.job.replicas() == 0
        && seen.pods.is_empty()
        && seen.leaving.is_empty()
        && plan.adopt.is_empty();
    let is_unneeded = if seen.group.is_foreign { older_gone } else { idle || !wanted && !holds };
    if is_unneeded {
        plan.group = GroupStep::Delete;
    }
}

/// Status of this job. The status of an older job of the name is replaced by a new one.
fn present(seen: &JobObserved<'_>) -> JobStatus {
    let mut status = seen.status.clone();
    let is_same = status.uid == seen.uid;
    if !is_same || status.created.is_none() {
        let revision = status.revision;
        // Until the job's first plan its status says at most why its record is not valid, beside what a newer version
        // has written.
        let other = if is_same { std::mem::take(&mut status.other) } else { Default::default() };
        // Those of an older job of the name are replaced or deleted.
        let peers = status.peers.take();
        let ssh_key = status.ssh_key.take().filter(|_| is_same);
        status =
            JobStatus { uid: seen.uid, revision, other, peers, ssh_key, ..JobStatus::default() };
        status.created = Some(seen.now);
        // Neither group nor pods exist yet, unless the status was deleted.
        status.round = seen.group.round;
        remember(&mut status, seen.pods);
        status.immutable_hash = hash_text(seen.immutable_hash);
        status.requestless_hash = hash_text(seen.requestless_hash);
        let kind = seen.job.kind();
        let created = format!("{kind}Created");
        set_condition(
            &mut status.conditions,
            JobConditionType::Created,
            created,
            String::new(),
            seen.now,
        );
        status.enter(JobPhase::Pending, kind, JobReason::WaitingForAdmission, "", seen.now);
    }
    status
}

fn hash_text(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Accepts changed requests of members while nothing of the job is admitted. The group is placed in a new round: one that
/// was made for the old requests meanwhile is given back.
fn takes_requests(seen: &JobObserved<'_>, status: &mut JobStatus) -> bool {
    let is_waiting = !status.has_begun()
        && !status.state.phase.is_final()
        && !seen.group.is_admitted
        && seen.pods.is_empty()
        && seen.leaving.is_empty();
    if !is_waiting || status.requestless_hash != hash_text(seen.requestless_hash) {
        return false;
    }
    status.immutable_hash = hash_text(seen.immutable_hash);
    status.round += 1;
    true
}

/// Changes nothing but the status until an immutable field is changed back.
fn freeze(mut plan: JobPlan) -> JobPlan {
    let message = "spec: only counts, the priority and times of a job may change, and what its members request as \
         long as it waits; change it back, or delete the job and make it anew";
    plan.status.say_meanwhile(JobReason::ShapeChanged, message);
    plan.remove.clear();
    plan.collect_orphans = false;
    // A group written from the changed spec would give up allocations of running members.
    plan.group = GroupStep::Leave;
    plan
}

/// The job has started once a node has started a member, or has failed to: its deadline runs.
fn note_start(seen: &JobObserved<'_>, plan: &mut JobPlan, members: &BTreeMap<Slot, &MemberPod>) {
    let starts = plan.status.state.phase.starts_members();
    let has_begun = || members.values().any(|pod| pod.phase != PodPhase::Pending);
    if plan.status.start_time.is_none() && starts && has_begun() {
        plan.status.start_time = Some(seen.now);
    }
}

/// Notes started members without a pod that this controller did not remove. Returns all whose loss is not answered yet.
fn note_lost(
    status: &mut JobStatus,
    seen: &JobObserved<'_>,
    surplus: &[(&MemberPod, MemberRemoveReason)],
    members: &BTreeMap<Slot, &MemberPod>,
) -> Vec<Slot> {
    let mut lost = Vec::new();
    let is_active = status.state.phase.is_active();
    let other_attempt = |slot: &Slot| {
        surplus.iter().any(|(pod, why)| pod.slot == *slot && *why != MemberRemoveReason::Lost)
    };
    // It lost its uid only, and is adopted in this plan.
    let is_adopted =
        |slot: &Slot| seen.unowned.iter().any(|pod| pod.slot == *slot && adopts(seen, pod));
    for task in &seen.job.tasks {
        let Some(memory) = status.tasks.get_mut(&task.name) else { continue };
        let started: Vec<u32> = memory.started.iter().collect();
        for index in started {
            let slot = Slot::new(&task.name, index);
            if members.contains_key(&slot) || other_attempt(&slot) || is_adopted(&slot) {
                continue;
            }
            memory.forget(index);
            if index < task.replicas {
                if is_active {
                    memory.evicted.insert(index);
                }
                lost.push(slot);
            }
        }
    }
    for slot in &lost {
        let down = surplus.iter().find(|(pod, _)| pod.slot == *slot && pod.on_down_node);
        if let Some((pod, _)) = down {
            status.note_carried(slot, &pod.place.node, seen.now);
        }
    }
    let unanswered = |task: &JobTask| {
        let evicted = status.tasks.get(&task.name).map(|memory| &memory.evicted);
        let indexes = evicted.into_iter().flat_map(Slots::iter);
        let slots = indexes.filter(|index| *index < task.replicas);
        slots.map(|index| Slot::new(&task.name, index)).collect::<Vec<_>>()
    };
    seen.job.tasks.iter().flat_map(unanswered).collect()
}

/// Forgets removed members beyond `replicas`: if the job grows again, they are new attempts.
fn forget_surplus(plan: &mut JobPlan) {
    let surplus = plan.remove.iter().filter(|(_, why)| *why == MemberRemoveReason::OutOfRange);
    for (pod, _) in surplus {
        let current = attempt_of(&plan.status, &pod.slot) == pod.attempt;
        if current && let Some(memory) = plan.status.tasks.get_mut(&pod.slot.task) {
            memory.forget(pod.slot.index);
        }
    }
}

/// Whether a pod without a uid becomes a member.
fn adopts(seen: &JobObserved<'_>, pod: &FreePod) -> bool {
    let verdict = verdict(Reference::Nobody, true, seen.job.deleting, !pod.is_intended);
    verdict == AdoptionVerdict::Adopt
}

/// Adopts pods with the job's labels and no uid; releases pods with its uid and other labels.
fn adopt(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let deleting = seen.job.deleting;
    plan.release = seen.mismatched
        && verdict(Reference::Mine, false, deleting, false) == AdoptionVerdict::Release;
    for pod in seen.unowned.iter().take(seen.room) {
        if !adopts(seen, pod) {
            continue;
        }
        let slot = pod.slot.clone();
        if seen.job.task(&slot.task).is_some_and(|task| slot.index < task.replicas) {
            plan.status.memory(&slot.task).started.insert(slot.index);
        }
        let version = plan.status.version;
        let attempt = attempt_of(&plan.status, &slot);
        plan.adopt.push(Create { slot, node: pod.node.clone(), version, attempt });
    }
}

/// Nodes of the members that may start now: the job starts members, its pause is over, and enough members have a node.
fn startable<'s>(
    seen: &'s JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
) -> Option<&'s BTreeMap<Slot, NodeName>> {
    let places = seen.group.places.as_ref()?;
    let starts = plan.status.state.phase.starts_members() && !seen.job.suspend;
    if !starts || waits_for_old(seen, plan) {
        return None;
    }
    if plan.status.not_before.is_some_and(|at| at > seen.now) {
        return None;
    }
    plan.status.not_before = None;
    let meets = frameworks::of(seen.job.framework).meets_at(seen.job);
    let is_homeless = |slot| !places.contains_key(slot) && !members.contains_key(slot);
    let lacks_places = meets.iter().any(is_homeless)
        || waiting::misses_places(seen, &plan.status, places, members)
        || gang::is_short(seen, members);
    (!lacks_places).then_some(places)
}

/// Starts bound members whose pauses and dependencies are over.
fn start(seen: &JobObserved<'_>, plan: &mut JobPlan, members: &BTreeMap<Slot, &MemberPod>) {
    let Some(places) = startable(seen, plan, members) else { return };
    let going = plan.remove.iter().map(|(pod, _)| &pod.slot);
    let coming = plan.adopt.iter().map(|create| &create.slot);
    let going: BTreeSet<Slot> = going.chain(coming).chain(seen.taken).cloned().collect();
    let most = batched_start::most(seen, plan);
    let mut open = array::OpenIndexes::default();
    for task in &seen.job.tasks {
        if !dependencies_ready(seen.job, task, members) {
            continue;
        }
        for index in 0..task.replicas {
            let count = plan.create.len() + plan.remove.len();
            if count >= most {
                return;
            }
            let slot = Slot::new(&task.name, index);
            if plan.status.is_set_aside(&slot, seen.now) {
                continue;
            }
            let memory = plan.status.memory(&task.name);
            let is_paused = memory.not_before.get(&index).is_some_and(|at| *at > seen.now);
            if is_paused || memory.evicted.contains(index) {
                continue;
            }
            let (Some(node), false) = (places.get(&slot), members.contains_key(&slot)) else {
                continue;
            };
            if seen.leaving.contains_key(&slot) || going.contains(&slot) {
                continue;
            }
            if !open.assign(seen.job, &mut plan.status, index) {
                continue;
            }
            let memory = plan.status.memory(&task.name);
            memory.not_before.remove(&index);
            memory.started.insert(index);
            if count >= seen.room {
                memory.starting.insert(index);
            }
            let version = plan.status.version;
            let attempt = attempt_of(&plan.status, &slot);
            plan.create.push(Create { slot, node: node.clone(), version, attempt });
        }
    }
}

/// Whether members of an older attempt still exist; no new member starts before they are gone.
pub(super) fn waits_for_old(seen: &JobObserved<'_>, plan: &JobPlan) -> bool {
    let version = plan.status.version;
    let new_attempt = !plan.status.tasks.values().any(|memory| !memory.started.is_empty());
    let old = seen.pods.iter().any(|pod| pod.version != version);
    old || (new_attempt && version > 0 && !seen.leaving.is_empty())
}

/// Asks for a new placement round if the group has ended but members are to start again.
fn next_round(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let missing = plan.status.members.succeeded + plan.status.members.failed < seen.job.replicas();
    let ready = plan.status.state.phase.starts_members() && plan.remove.is_empty();
    if seen.group.is_over && ready && missing && seen.leaving.is_empty() {
        plan.status.round += 1;
    }
}

fn say_counts(seen: &JobObserved<'_>, plan: &mut JobPlan, members: &BTreeMap<Slot, &MemberPod>) {
    let mut leaving = seen.leaving.clone();
    for (pod, _) in plan.remove.iter().filter(|(pod, _)| !pod.phase.has_ended() && !pod.lost) {
        *leaving.entry(pod.slot.clone()).or_default() += 1;
    }
    let mut after = counts(seen.job, plan.status.state.phase, members, &leaving);
    for create in &plan.create {
        if let Some(count) = after.get_mut(create.slot.task.as_str()) {
            count.members.count(PodPhase::Pending);
        }
    }
    if plan.status.state.phase.is_final() {
        count_cleaned_up(seen, plan, &mut after);
    }
    let selector = format!(
        "volcano.sh/job-name={},volcano.sh/job-namespace={}",
        seen.id.name, seen.id.namespace
    );
    publish(&mut plan.status, seen.job, &after, &selector);
}

/// Members of a job that is over count as they have ended, also when `cleanPodPolicy` has removed their pods.
fn count_cleaned_up(seen: &JobObserved<'_>, plan: &JobPlan, after: &mut TaskCounts<'_>) {
    let was_over = seen.status.uid == seen.uid && seen.status.state.phase.is_final();
    for (pod, _) in plan.remove.iter().filter(|(pod, _)| pod.phase.has_ended()) {
        if let Some(count) = after.get_mut(pod.slot.task.as_str()) {
            count.members.count(pod.phase);
        }
    }
    for (task, count) in after.iter_mut().filter(|_| was_over) {
        let before = |phase| seen.status.task_status_count.get(*task)?.get(&phase).copied();
        let members = &mut count.members;
        members.succeeded = members.succeeded.max(before(PodPhase::Succeeded).unwrap_or(0));
        members.failed = members.failed.max(before(PodPhase::Failed).unwrap_or(0));
    }
}

/// Sets the time of the next reconcile.
fn alarms(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let status = &plan.status;
    let mut due: Vec<Timestamp> = status.delayed.iter().map(|delayed| delayed.due).collect();
    due.extend(status.not_before);
    due.extend(status.set_aside_members(seen.now).map(|member| member.carried.since));
    due.extend(status.tasks.values().flat_map(|memory| memory.not_before.values().copied()));
    if let (Some(limit), Some(start), false) =
        (seen.job.active_deadline, status.start_time, status.state.phase.is_final())
    {
        due.push(expiry(start, limit));
    }
    if !seen.taken.is_empty() && status.state.phase.starts_members() {
        due.extend(seen.now.checked_add(TAKEN_EVERY).ok());
    }
    let next = due.into_iter().filter(|at| *at > seen.now).min();
    plan.wake(next);
    if let (Some(ttl), true) = (seen.job.ttl, plan.status.state.phase.is_final()) {
        let end = plan.status.completion_time.map(|end| expiry(end, ttl));
        plan.wake(end);
    }
}
