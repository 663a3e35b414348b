//! What the owner of a job does next. Pure.
//!
//! One plan answers one thing that is asked ([`super::triggers`]), takes one step of the machine, and says which pods come
//! and go, what becomes of the PodGroup, and what the status says afterwards. The owner then looks again.

use std::collections::{BTreeMap, BTreeSet};

use super::adoption::{AdoptionVerdict, Reference, verdict};
use super::frameworks::{self, Counts, FrameworkOutcome, total};
use super::machine::{JobFacts, JobRequest, RetryBudget, Stop, step};
use super::members::{
    FreePod, MemberPod, MemberRemoveReason, attempt_of, counts, dependencies_ready, publish,
    remember, sort,
};
use super::triggers::{self, Trigger};
use super::{batched_start, waiting};
use crate::cluster::commands::Pending;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{CleanPods, JobSpec, JobUid, Slot};
use rcfarm_api::job::status::{JobConditionType, JobReason, JobStatus, PodPhase, set_condition};

/// The job's PodGroup, as far as the job cares.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedGroup {
    /// There is a record of this job.
    pub exists: bool,
    /// There is a record of another owner under its name.
    pub is_foreign: bool,
    /// Which round its record asks for.
    pub round: u64,
    /// Its members may start, and where each goes.
    pub places: Option<BTreeMap<Slot, NodeName>>,
    /// It lost members and has no place for them.
    pub unknown: bool,
    /// All its members have ended, as far as it knows: in this round it starts no more.
    pub is_over: bool,
    /// Why it waits, as a fixed token, and for people.
    pub waits: Option<(String, String)>,
}

/// Everything that a plan depends on.
pub struct JobObserved<'a> {
    /// The job's name.
    pub id: &'a Namespaced,
    /// Which of the name.
    pub uid: JobUid,
    /// What is wanted.
    pub job: &'a JobSpec,
    /// The number of what may not change.
    pub immutable_hash: u64,
    /// What was said and remembered last.
    pub status: &'a JobStatus,
    /// Its pods.
    pub pods: &'a [MemberPod],
    /// Members whose pods are no longer wanted and still real on nodes that can be heard.
    pub leaving: &'a BTreeMap<Slot, u32>,
    /// Pods of an older job of this name.
    pub orphans: usize,
    /// Whether any such pod is still real on a node that can be heard.
    pub older: bool,
    /// Pods of this name that are nobody's.
    pub unowned: &'a [FreePod],
    /// Whether pods of this job carry another name by now.
    pub mismatched: bool,
    /// Members whose places are taken by pods that are not theirs.
    pub taken: &'a BTreeSet<Slot>,
    /// Its PodGroup.
    pub group: &'a ObservedGroup,
    /// Commands that were not carried out, oldest first.
    pub commands: &'a [Pending],
    /// Whether what was read can be believed enough to remove anything.
    pub may_remove: bool,
    /// So many pods may come and go in one transaction.
    pub room: usize,
    /// Now.
    pub now: Timestamp,
}

/// A pod to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Which member.
    pub slot: Slot,
    /// Node that the group was bound to for this member.
    pub node: NodeName,
    /// The attempt of the whole job.
    pub version: u64,
    /// Which try at the member.
    pub attempt: u32,
}

/// What becomes of the PodGroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupStep {
    /// It is as the job says, and it says what has become of its pods.
    Keep,
    /// Whatever there is stays as it is, and none is made: the job goes, and its pods first, or its immutable fields have changed.
    Leave,
    /// It goes, and what was allocated to it with it.
    Delete,
}

/// What is done next.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct JobPlan {
    /// The status afterwards.
    pub status: JobStatus,
    /// Pods to be made: as many as there is room for with the plan, and the others in a `super::batched_start`.
    pub create: Vec<Create>,
    /// Pods to be removed.
    pub remove: Vec<(MemberPod, MemberRemoveReason)>,
    /// Whether pods of an older job of the name are removed.
    pub collect_orphans: bool,
    /// Pods of the name that are nobody's and become members.
    pub adopt: Vec<Create>,
    /// Whether pods that carry another name by now are let go.
    pub release: bool,
    /// What becomes of the PodGroup.
    pub group: GroupStep,
    /// The command that is consumed.
    pub consume: Option<Pending>,
    /// What was asked, for the audit log; `None` when nothing was.
    pub asked: Option<(JobRequest, JobReason)>,
    /// Nothing is left: record and status go.
    pub finished: bool,
    /// Look again then, even if nothing happens.
    pub wake_at: Option<Timestamp>,
}

impl JobPlan {
    fn wake(&mut self, at: Option<Timestamp>) {
        self.wake_at = [self.wake_at, at].into_iter().flatten().min();
    }
}

/// Plans one reconcile: the status to write, members to create, remove and adopt, with reasons.
pub fn plan(seen: &JobObserved<'_>) -> JobPlan {
    let mut status = present(seen);
    batched_start::reconcile_existing(&mut status, seen);
    let sorted = sort(seen.job, &status, seen.pods);
    status.recall();
    let mut plan = JobPlan {
        status,
        create: Vec::new(),
        remove: sorted.surplus.iter().map(|(pod, why)| ((*pod).clone(), *why)).collect(),
        collect_orphans: seen.orphans > 0,
        adopt: Vec::new(),
        release: false,
        // An older job's holds the places on which that one's pods may still run.
        group: if seen.group.is_foreign { GroupStep::Leave } else { GroupStep::Keep },
        consume: None,
        asked: None,
        finished: false,
        wake_at: None,
    };
    if is_over(seen, &mut plan) {
        return finalize(seen, plan);
    }
    if plan.status.immutable_hash != immutable_hash_text(seen.immutable_hash) {
        return freeze(plan);
    }
    let lost = note_lost(&mut plan.status, seen, &sorted.surplus, &sorted.members);
    let phase = plan.status.state.phase;
    let before = counts(seen.job, phase, &sorted.members, seen.leaving);
    let outcome = frameworks::of(seen.job.framework).outcome(seen.job, &before);
    let trigger = triggers::trigger(
        &triggers::TriggerInput {
            job: seen.job,
            uid: seen.uid,
            members: &sorted.members,
            lost: &lost,
            commands: seen.commands,
            group_unknown: seen.group.unknown,
            now: seen.now,
        },
        &mut plan.status,
    );
    plan.consume.clone_from(&trigger.command);
    if trigger.ask != JobRequest::Sync {
        plan.asked = Some((trigger.ask, trigger.reason));
    }
    let gone = advance(seen, &mut plan, &sorted.members, &before, &trigger, &outcome);
    let mut members = sorted.members;
    members.retain(|slot, _| !gone.contains(slot));
    adopt(seen, &mut plan);
    start(seen, &mut plan, &members);
    say_counts(seen, &mut plan, &members);
    next_round(seen, &mut plan);
    plan.remove.truncate(if seen.may_remove { seen.room } else { 0 });
    forget_surplus(&mut plan);
    plan.collect_orphans &= seen.may_remove;
    waiting::say_waiting(seen, &mut plan, &outcome);
    let holds = seen.group.exists && plan.status.members.alive();
    let wanted = matches!(
        plan.status.state.phase,
        JobPhase::Pending | JobPhase::Running | JobPhase::Restarting
    );
    let older_gone = seen.orphans == 0 && !seen.older && seen.leaving.is_empty();
    if if seen.group.is_foreign { older_gone } else { !wanted && !holds } {
        plan.group = GroupStep::Delete;
    }
    alarms(seen, &mut plan);
    plan
}

/// The status of this job of the name: another one's is no concern of it.
fn present(seen: &JobObserved<'_>) -> JobStatus {
    let mut status = seen.status.clone();
    if status.uid != seen.uid || status.created.is_none() {
        let revision = status.revision;
        status = JobStatus { uid: seen.uid, revision, ..JobStatus::default() };
        status.created = Some(seen.now);
        // Nothing of either is there, unless somebody deleted the status.
        status.round = seen.group.round;
        remember(&mut status, seen.pods);
        status.immutable_hash = immutable_hash_text(seen.immutable_hash);
        let kind = seen.job.framework.kind();
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

fn immutable_hash_text(immutable_hash: u64) -> String {
    format!("{immutable_hash:016x}")
}

/// Something was changed that may not change: everything stays as it is until it is changed back.
fn freeze(mut plan: JobPlan) -> JobPlan {
    let message = "spec: only counts, the priority and times may change once a job has begun; change it back, or \
         delete the job and make it anew";
    plan.status.say_meanwhile(JobReason::ShapeChanged, message);
    plan.remove.clear();
    plan.collect_orphans = false;
    // What it says by now is of another job: its members would lose the places on which they run.
    plan.group = GroupStep::Leave;
    plan
}

/// Members that were started and are no more, though nobody here removed them.
fn note_lost(
    status: &mut JobStatus,
    seen: &JobObserved<'_>,
    surplus: &[(&MemberPod, MemberRemoveReason)],
    members: &BTreeMap<Slot, &MemberPod>,
) -> Vec<Slot> {
    let mut lost = Vec::new();
    let other_attempt = |slot: &Slot| {
        surplus.iter().any(|(pod, why)| pod.slot == *slot && *why != MemberRemoveReason::Lost)
    };
    for task in &seen.job.tasks {
        let Some(memory) = status.tasks.get_mut(&task.name) else { continue };
        let started: Vec<u32> = memory.started.iter().collect();
        for index in started {
            let slot = Slot::new(&task.name, index);
            if members.contains_key(&slot) || other_attempt(&slot) {
                continue;
            }
            memory.forget(index);
            if index < task.replicas {
                lost.push(slot);
            }
        }
    }
    lost
}

/// Members that the job has no more are forgotten with their pods: should it grow again, they are other tries.
fn forget_surplus(plan: &mut JobPlan) {
    let surplus = plan.remove.iter().filter(|(_, why)| *why == MemberRemoveReason::OutOfRange);
    for (pod, _) in surplus {
        let current = attempt_of(&plan.status, &pod.slot) == pod.attempt;
        if current && let Some(memory) = plan.status.tasks.get_mut(&pod.slot.task) {
            memory.forget(pod.slot.index);
        }
    }
}

/// Whether the record is to go: a person says so, or its time is up.
fn is_over(seen: &JobObserved<'_>, plan: &mut JobPlan) -> bool {
    if seen.job.deleting {
        return true;
    }
    let Some(ttl) = seen.job.ttl else { return false };
    let status = &plan.status;
    let since = match status.state.phase {
        phase if phase.is_final() => status.completion_time,
        // A suspended job is not done; an aborted one is left alone for as long as a finished one.
        JobPhase::Aborted if !seen.job.suspend => Some(status.state.last_transition_time),
        _ => None,
    };
    let Some(since) = since else { return false };
    let due = expiry(since, ttl);
    if seen.now >= due {
        return true;
    }
    plan.wake(Some(due));
    false
}

/// When a job that ended at `since` goes (`kubeflow.md` §1.6).
#[must_use]
pub fn expiry(since: Timestamp, ttl: std::time::Duration) -> Timestamp {
    since.checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// Everything goes: pods, then the group, then the record.
fn finalize(seen: &JobObserved<'_>, mut plan: JobPlan) -> JobPlan {
    plan.remove = seen.pods.iter().map(|pod| (pod.clone(), MemberRemoveReason::Deleted)).collect();
    let nothing_left =
        seen.pods.is_empty() && seen.orphans == 0 && !seen.older && seen.leaving.is_empty();
    plan.remove.truncate(seen.room);
    plan.group = GroupStep::Leave;
    if !seen.may_remove {
        plan.remove.clear();
        plan.collect_orphans = false;
        return plan;
    }
    plan.status.state.reason = JobReason::Deleting.to_string();
    if nothing_left {
        plan.group = GroupStep::Delete;
        // Commands that come too late go with the job: the next one of its name is not to find them.
        plan.finished = !seen.group.exists && seen.commands.len() <= 1;
        plan.consume = seen.commands.first().cloned();
    }
    plan
}

/// One step of the machine. Returns the members that it removes.
fn advance(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    before: &Counts<'_>,
    trigger: &Trigger,
    outcome: &FrameworkOutcome,
) -> BTreeSet<Slot> {
    let job = seen.job;
    let phase = plan.status.state.phase;
    let all = total(before);
    let out = all.terminating + u32::try_from(plan.remove.len()).unwrap_or(u32::MAX);
    let budget = match trigger.by_person || trigger.by_member {
        true => RetryBudget::Free,
        false if plan.status.retry_count < job.max_retry => RetryBudget::Left,
        // A restart that has begun is within the limit unless the limit was lowered.
        false if phase == JobPhase::Restarting && plan.status.retry_count == job.max_retry => {
            RetryBudget::Left
        }
        false => RetryBudget::Spent,
    };
    let facts = JobFacts {
        verdict: outcome.verdict,
        alive: all.alive() || out > 0,
        cleared: job.replicas().saturating_sub(out) >= job.min_available,
        budget,
    };
    let step = step(phase, trigger.ask, facts);
    let gone: BTreeSet<Slot> = members
        .iter()
        .filter(|(slot, pod)| is_stopped(step.stop, job, trigger, slot, pod))
        .map(|(slot, _)| slot.clone())
        .collect();
    let why = if step.to == JobPhase::Restarting {
        MemberRemoveReason::Restart
    } else {
        MemberRemoveReason::Stop
    };
    plan.remove.extend(gone.iter().map(|slot| (members[slot].clone(), why)));
    for slot in &gone {
        let memory = plan.status.memory(&slot.task);
        memory.started.remove(slot.index);
        memory.handled.remove(slot.index);
        memory.completed = false;
        *memory.attempts.entry(slot.index).or_default() += 1;
    }
    if step.counts {
        plan.status.retry_count += 1;
    }
    if step.to == JobPhase::Restarting && matches!(trigger.ask, JobRequest::Do(_)) {
        after_restart(seen, plan, step.stop, trigger);
    }
    if trigger.is_of_the_whole() {
        plan.status.delayed.clear();
    }
    let is_stopped = matches!(step.to, JobPhase::Aborting | JobPhase::Aborted);
    plan.status.suspended =
        is_stopped && (plan.status.suspended || trigger.ask == JobRequest::Suspend);
    let (reason, message) = match trigger.ask {
        JobRequest::Sync => (outcome.reason, outcome.message.clone()),
        _ if step.to == JobPhase::Failed && trigger.ask != JobRequest::Fail => {
            let message = format!("{}, and {} retries were made", trigger.message, job.max_retry);
            (JobReason::MaxRetryReached, message)
        }
        _ => (trigger.reason, trigger.message.clone()),
    };
    if step.to != phase {
        let reason = match step.to {
            JobPhase::Aborted if plan.status.suspended => JobReason::Suspended,
            JobPhase::Aborted | JobPhase::Terminated => JobReason::Stopped,
            _ => reason,
        };
        plan.status.enter(step.to, job.framework.kind(), reason, message, seen.now);
        match step.to {
            JobPhase::Running if plan.status.start_time.is_none() => {
                plan.status.start_time = Some(seen.now);
            }
            // The deadline begins anew when it goes on (`kubeflow.md` §4.4).
            JobPhase::Restarting if matches!(phase, JobPhase::Aborted | JobPhase::Aborting) => {
                plan.status.start_time = None;
            }
            _ => {}
        }
    }
    gone
}

fn is_stopped(stop: Stop, job: &JobSpec, trigger: &Trigger, slot: &Slot, pod: &MemberPod) -> bool {
    match stop {
        Stop::Nobody => false,
        Stop::All => true,
        Stop::Unfinished => !pod.phase.has_ended(),
        Stop::Target => trigger.targets.contains(slot),
        Stop::ByPolicy => match job.clean_pods {
            CleanPods::None => false,
            CleanPods::Running => !pod.phase.has_ended(),
            CleanPods::All => true,
        },
    }
}

/// A restart of the whole begins a new attempt; one that a failure caused begins after a pause.
fn after_restart(seen: &JobObserved<'_>, plan: &mut JobPlan, stop: Stop, trigger: &Trigger) {
    let status = &mut plan.status;
    let delay = seen.job.restart_delay;
    let at = |pause| seen.now.checked_add(pause).unwrap_or(Timestamp::MAX);
    if stop == Stop::All {
        status.version += 1;
        status.delayed.clear();
        for memory in status.tasks.values_mut() {
            memory.started = Default::default();
            memory.handled = Default::default();
            memory.completed = false;
            memory.not_before.clear();
        }
        status.not_before = (!trigger.by_person).then(|| at(delay.before(status.retry_count)));
        return;
    }
    status
        .delayed
        .retain(|delayed| delayed.slot.as_ref().is_none_or(|slot| !trigger.targets.contains(slot)));
    for slot in &trigger.targets {
        let memory = status.memory(&slot.task);
        if trigger.by_person {
            memory.not_before.remove(&slot.index);
            memory.failed.remove(&slot.index);
            continue;
        }
        let failed = memory.failed.entry(slot.index).or_default();
        *failed = failed.saturating_add(1);
        memory.not_before.insert(slot.index, at(delay.before(*failed)));
    }
}

/// Takes in the pods that carry the job's name and are nobody's, and lets those go that do not carry it any more.
fn adopt(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let deleting = seen.job.deleting;
    plan.release = seen.mismatched
        && verdict(Reference::Mine, false, deleting, false) == AdoptionVerdict::Release;
    for pod in seen.unowned.iter().take(seen.room) {
        if verdict(Reference::Nobody, true, deleting, !pod.is_intended) != AdoptionVerdict::Adopt {
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

/// Starts the members that have a place and nothing to wait for.
fn start(seen: &JobObserved<'_>, plan: &mut JobPlan, members: &BTreeMap<Slot, &MemberPod>) {
    let Some(places) = &seen.group.places else { return };
    let starts = plan.status.state.phase.starts_members() && !seen.job.suspend;
    if !starts || waits_for_old(seen, plan) {
        return;
    }
    let is_early = |at: Timestamp| at > seen.now;
    if plan.status.not_before.is_some_and(is_early) {
        return;
    }
    plan.status.not_before = None;
    let meets = frameworks::of(seen.job.framework).meets_at(seen.job);
    if meets.iter().any(|slot| !places.contains_key(slot) && !members.contains_key(slot)) {
        return;
    }
    let going = plan.remove.iter().map(|(pod, _)| &pod.slot);
    let coming = plan.adopt.iter().map(|create| &create.slot);
    let going: BTreeSet<Slot> = going.chain(coming).chain(seen.taken).cloned().collect();
    let most = batched_start::most(seen, plan);
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
            let memory = plan.status.memory(&task.name);
            if memory.not_before.get(&index).copied().is_some_and(is_early) {
                continue;
            }
            let (Some(node), false) = (places.get(&slot), members.contains_key(&slot)) else {
                continue;
            };
            if seen.leaving.contains_key(&slot) || going.contains(&slot) {
                continue;
            }
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

/// Whether members of an older attempt of the whole job are still there: until they are gone no new one starts.
pub(super) fn waits_for_old(seen: &JobObserved<'_>, plan: &JobPlan) -> bool {
    let version = plan.status.version;
    let new_attempt = !plan.status.tasks.values().any(|memory| !memory.started.is_empty());
    let old = seen.pods.iter().any(|pod| pod.version != version);
    old || (new_attempt && version > 0 && !seen.leaving.is_empty())
}

/// A group whose members have all ended is not over when some of them are to be started again.
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
    let selector = format!(
        "volcano.sh/job-name={},volcano.sh/job-namespace={}",
        seen.id.name, seen.id.namespace
    );
    publish(&mut plan.status, seen.job, &after, &selector);
}

/// When the next thing is due.
fn alarms(seen: &JobObserved<'_>, plan: &mut JobPlan) {
    let status = &plan.status;
    let mut due: Vec<Timestamp> = status.delayed.iter().map(|delayed| delayed.due).collect();
    due.extend(status.not_before);
    due.extend(status.tasks.values().flat_map(|memory| memory.not_before.values().copied()));
    if let (Some(limit), Some(start), false) =
        (seen.job.active_deadline, status.start_time, status.state.phase.is_final())
    {
        due.push(expiry(start, limit));
    }
    let next = due.into_iter().filter(|at| *at > seen.now).min();
    plan.wake(next);
    if let (Some(ttl), true) = (seen.job.ttl, plan.status.state.phase.is_final()) {
        let end = plan.status.completion_time.map(|end| expiry(end, ttl));
        plan.wake(end);
    }
}
