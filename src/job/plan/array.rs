//! Arrays: each member runs one task after the other. Pure.
//!
//! The transaction that notes the end of a task gives the member the next index, and another attempt: its pod is one of
//! an older attempt from then on, whose end is not noted again. The same transaction removes the pod if there is room;
//! otherwise a later one does, and the member starts its next task after that. So a task is noted once, and no two
//! members have the same. A member that is lost, stopped or suspended keeps its index, and starts that task again.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobObserved, JobPlan};
use crate::job::frameworks::{FrameworkOutcome, TaskCounts, total};
use crate::job::machine::PhaseDecision;
use crate::job::members::{MemberPod, MemberRemoveReason, effective, failures};
use crate::job::policies::{JobEvent, PolicyDecision, answer};
use rcfarm_api::Timestamp;
use rcfarm_api::command::CommandAction;
use rcfarm_api::job::array::{ArrayProgress, ArraySpec};
use rcfarm_api::job::spec::{JobSpec, JobTask, PolicyEvent, Slot};
use rcfarm_api::job::status::{JobReason, JobStatus, PodPhase};

/// How the task of a member has ended.
enum TaskEnd {
    Completed,
    /// It is not tried again.
    Failed,
    /// It is tried again, as a policy asks.
    Retry,
    /// It never ran, or was stopped with its node. It is tried again.
    Lost,
}

/// Notes failures of members. Those of an array have the index of their task, as long as the member has no other one.
pub(super) fn note_failures(seen: &JobObserved<'_>, status: &mut JobStatus) {
    let mut new = failures(seen.pods, status.version);
    for failure in &mut new {
        failure.array_index = status.array_index_of(&failure.slot, failure.attempt);
    }
    status.note_failures(new);
}

/// Notes the ends of tasks. Members that go on with another task lose their pod, and leave `members`.
pub(super) fn note_ends(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &mut BTreeMap<Slot, &MemberPod>,
) {
    let (Some(array), [task]) = (&seen.job.array, &seen.job.tasks[..]) else { return };
    let phase = plan.status.state.phase;
    if phase.is_final() {
        return;
    }
    let goes_on = phase.starts_members() && !seen.job.suspend;
    let mut progress = plan.status.array.take().unwrap_or_default();
    // Fewer run at a time than before: others take over.
    progress.members.retain(|member, _| *member < task.replicas);
    let ended: Vec<(u32, &MemberPod)> = members
        .iter()
        .filter(|(_, pod)| pod.phase.has_ended() || exceeds(task, pod))
        .map(|(slot, pod)| (slot.index, *pod))
        .collect();
    if goes_on {
        stop_unknown(plan, &progress, task, members);
    }
    let mut open = match ended.is_empty() {
        true => Vec::new(),
        false => progress.open(array, ended.len()),
    }
    .into_iter();
    for (member, pod) in ended {
        let Some(index) = progress.members.get(&member).copied() else { continue };
        let end = match progress.has_ended(index) {
            true => None,
            false => Some(end_of(seen.job, task, &progress, (index, pod))),
        };
        let again = matches!(end, Some(TaskEnd::Retry | TaskEnd::Lost));
        if again && !goes_on {
            // Its end is noted once the job goes on.
            continue;
        }
        note(&mut progress, index, end);
        let next = if again { Some(index) } else { open.next().filter(|_| goes_on) };
        if next.is_none() && pod.phase.has_ended() {
            // The last pod of a member stays, for its log.
            plan.status.memory(&task.name).handled.insert(member);
        } else if goes_on {
            let tries = progress.retries.get(&index).copied().unwrap_or_default();
            let pause = again.then(|| seen.job.restart_delay.before(tries));
            let memory = plan.status.memory(&task.name);
            memory.forget(member);
            if let Some(pause) = pause {
                let due = seen.now.checked_add(pause).unwrap_or(Timestamp::MAX);
                memory.not_before.insert(member, due);
            }
            progress.members.extend(next.map(|next| (member, next)));
            plan.remove.push((pod.clone(), MemberRemoveReason::TaskEnded));
            members.remove(&Slot::new(&task.name, member));
        }
    }
    plan.status.array = Some(progress);
}

/// Stops members of whose task nothing is known, since the status was deleted by hand: all tasks begin anew.
fn stop_unknown(
    plan: &mut JobPlan,
    progress: &ArrayProgress,
    task: &JobTask,
    members: &mut BTreeMap<Slot, &MemberPod>,
) {
    let memory = plan.status.memory(&task.name);
    members.retain(|slot, pod| {
        let is_known = progress.members.contains_key(&slot.index);
        if !is_known {
            memory.forget(slot.index);
            plan.remove.push(((*pod).clone(), MemberRemoveReason::Restart));
        }
        is_known
    });
}

/// Whether a node has started a task again as often as it may, and it has failed once more.
fn exceeds(task: &JobTask, pod: &MemberPod) -> bool {
    // A node says how often: as a number it may be anything.
    let failed = pod.restarts.saturating_add(u32::from(pod.is_due || pod.failure.is_some()));
    task.max_retry.is_some_and(|limit| failed > limit)
}

fn end_of(
    job: &JobSpec,
    task: &JobTask,
    progress: &ArrayProgress,
    (index, pod): (u32, &MemberPod),
) -> TaskEnd {
    match (pod.phase, effective(job, task, pod)) {
        (PodPhase::Succeeded, _) => return TaskEnd::Completed,
        (PodPhase::Failed, PodPhase::Failed) => {}
        (PodPhase::Failed, _) => return TaskEnd::Lost,
        // Its node would start it again.
        _ => return TaskEnd::Failed,
    }
    let event = JobEvent {
        event: Some(PolicyEvent::PodFailed),
        exit_code: pod.exit_code,
        task: Some(task.name.clone()),
    };
    let is_asked = answer(job, &event) == PolicyDecision::Now(CommandAction::RestartPod);
    let tries = progress.retries.get(&index).copied().unwrap_or_default();
    match is_asked && tries < job.max_retry {
        true => TaskEnd::Retry,
        false => TaskEnd::Failed,
    }
}

/// Notes an end.
fn note(progress: &mut ArrayProgress, index: u32, end: Option<TaskEnd>) {
    let ended = match end {
        Some(TaskEnd::Retry) => return *progress.retries.entry(index).or_default() += 1,
        Some(TaskEnd::Lost) | None => return,
        Some(TaskEnd::Completed) => &mut progress.completed_indexes,
        Some(TaskEnd::Failed) => &mut progress.failed_indexes,
    };
    ended.insert(index);
    progress.retries.remove(&index);
}

/// Indexes that no member has, once they are needed.
#[derive(Default)]
pub(super) struct OpenIndexes(Option<std::vec::IntoIter<u32>>);

impl OpenIndexes {
    /// Gives a member that starts the index of its task; `false`: there is none for it.
    pub(super) fn assign(&mut self, job: &JobSpec, status: &mut JobStatus, member: u32) -> bool {
        let Some(array) = &job.array else { return true };
        let progress = status.array.get_or_insert_default();
        let own = progress.members.get(&member);
        if own.is_some_and(|index| !progress.has_ended(*index)) {
            return true;
        }
        let all = || progress.open(array, array.members() as usize).into_iter();
        let next = self.0.get_or_insert_with(all).next();
        next.is_some_and(|next| {
            progress.members.insert(member, next);
            true
        })
    }
}

/// Members without a pod for which no task is left: they need no node.
pub(super) fn idle(
    seen: &JobObserved<'_>,
    plan: &JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
) -> Vec<Slot> {
    let (Some(array), [task]) = (&seen.job.array, &seen.job.tasks[..]) else { return Vec::new() };
    let Some(progress) = &plan.status.array else { return Vec::new() };
    if !progress.open(array, 1).is_empty() {
        return Vec::new();
    }
    let has_task = |member: u32| {
        progress.members.get(&member).is_some_and(|index| !progress.has_ended(*index))
    };
    let going: BTreeSet<&Slot> = plan.remove.iter().map(|(pod, _)| &pod.slot).collect();
    let all = (0..task.replicas).filter(|member| !has_task(*member));
    let slots = all.map(|member| Slot::new(&task.name, member));
    let is_idle = |slot: &Slot| {
        !members.contains_key(slot) && !seen.leaving.contains_key(slot) && !going.contains(slot)
    };
    slots.filter(is_idle).collect()
}

/// What the ends of tasks, and the members that run, mean for the job: it ends with the last task, or when as many as
/// `minSuccess` have completed.
pub(super) fn outcome(
    seen: &JobObserved<'_>,
    array: &ArraySpec,
    status: &JobStatus,
    counts: &TaskCounts<'_>,
) -> FrameworkOutcome {
    let none = ArrayProgress::default();
    let progress = status.array.as_ref().unwrap_or(&none);
    let completed = u32::try_from(progress.completed_indexes.len()).unwrap_or(u32::MAX);
    let wanted = seen.job.min_success.unwrap_or(array.len());
    let members = total(counts);
    let message = format!("{progress}, of {} tasks", array.len());
    let has_begun = progress.ended() > 0 || members.running + members.unknown > 0;
    let (verdict, reason) = match () {
        () if completed >= wanted => (PhaseDecision::Succeeded, JobReason::EnoughSucceeded),
        () if progress.ended() >= array.len() && seen.job.min_success.is_some() => {
            (PhaseDecision::Failed, JobReason::MinSuccessMissed)
        }
        () if progress.ended() >= array.len() => (PhaseDecision::Failed, JobReason::MemberFailed),
        () if has_begun => (PhaseDecision::Enough, JobReason::EnoughRunning),
        () => (PhaseDecision::Short, JobReason::Starting),
    };
    FrameworkOutcome { verdict, reason, message }
}
