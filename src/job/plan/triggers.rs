//! Derives the request to a job: from a command, its record, a limit, a delayed action or an event. Pure.

use std::collections::BTreeMap;

use crate::cluster::commands::Pending;
use crate::job::frameworks::{AfterFailure, after_failure};
use crate::job::machine::JobRequest;
use crate::job::members::{MemberPod, due_in_place, restarts_in_place};
use crate::job::policies::{JobEvent, PolicyDecision, answer};
use rcfarm_api::Timestamp;
use rcfarm_api::command::{CommandAction, Target};
use rcfarm_api::job::spec::{JobSpec, JobUid, PolicyEvent, Slot};
use rcfarm_api::job::status::{Delayed, JobReason, JobStatus, MOST_DELAYED, PodPhase};
use rcfarm_api::manifest::command_line::cut;

/// Failed members that a message names.
const FAILED_NAMED: usize = 3;

/// Request to a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    /// Input of the state machine.
    pub ask: JobRequest,
    /// Reason, for status and audit log.
    pub reason: JobReason,
    /// Message for users.
    pub message: String,
    /// Members concerned; empty for the whole job.
    pub targets: Vec<Slot>,
    /// Whether a user asked: the restart is neither counted nor delayed.
    pub by_person: bool,
    /// Whether it does not count towards `maxRetry`: a member's own restart, which counts towards `backoffLimit`, or the
    /// loss of the group's room.
    pub by_member: bool,
    /// Command to delete with it.
    pub command: Option<Pending>,
}

impl Trigger {
    pub(super) fn new(ask: JobRequest, reason: JobReason, message: impl Into<String>) -> Trigger {
        let (targets, message) = (Vec::new(), message.into());
        Trigger { ask, reason, message, targets, by_person: false, by_member: false, command: None }
    }

    /// Whether a user's request for the whole job cancels delayed actions (`volcano.md` §2.2).
    #[must_use]
    pub fn is_of_the_whole(&self) -> bool {
        match self.ask {
            JobRequest::Suspend => true,
            JobRequest::Do(CommandAction::RestartTask | CommandAction::RestartPod) => false,
            JobRequest::Do(_) => self.by_person,
            JobRequest::Sync | JobRequest::Fail => false,
        }
    }
}

pub struct TriggerInput<'a> {
    pub job: &'a JobSpec,
    /// CreateIndex of the record.
    pub uid: JobUid,
    pub members: &'a BTreeMap<Slot, &'a MemberPod>,
    /// Members whose pods were lost, and whose loss was not answered yet.
    pub lost: &'a [Slot],
    /// Commands not yet executed, oldest first.
    pub commands: &'a [Pending],
    /// Whether the members' ends already decide that the job has succeeded or failed.
    pub is_decided: bool,
    /// Whether the group lost members and cannot place them.
    pub group_unknown: bool,
    /// Wall-clock time.
    pub now: Timestamp,
}

/// Finds the next request. Notes handled events in `status`, so that each is handled once.
pub fn trigger(seen: &TriggerInput<'_>, status: &mut JobStatus) -> Trigger {
    if let Some(command) = seen.commands.first() {
        return with_the_gang(seen, status, by_command(seen, command));
    }
    let phase = status.state.phase;
    if phase.is_final() {
        return sync();
    }
    if seen.job.suspend {
        let stopped = matches!(
            phase,
            rcfarm_api::job::phase::JobPhase::Aborting | rcfarm_api::job::phase::JobPhase::Aborted
        );
        let reason = JobReason::Suspended;
        let ask = if stopped { JobRequest::Sync } else { JobRequest::Suspend };
        return Trigger::new(ask, reason, "its record suspends it; to go on: rcfarm job resume");
    }
    if status.suspended {
        let mut resumed = Trigger::new(
            JobRequest::Do(CommandAction::ResumeJob),
            JobReason::CommandIssued,
            "no longer suspended",
        );
        resumed.by_person = true;
        return resumed;
    }
    forget_what_mended(seen, status);
    if let Some(limit) = limits(seen, status) {
        return limit;
    }
    if is_stopping(status) {
        return sync();
    }
    if let Some(due) = status.delayed.iter().position(|delayed| delayed.due <= seen.now) {
        let delayed = status.delayed.remove(due);
        let message = format!("{} after {}", delayed.action, delayed.event);
        let mut trigger =
            Trigger::new(JobRequest::Do(delayed.action), JobReason::PolicyAction, message);
        trigger.targets = targets(seen.job, delayed.action, delayed.slot.as_ref());
        return trigger;
    }
    if !phase.starts_members() {
        return sync();
    }
    happenings(seen, status).unwrap_or_else(|| own_restarts(seen, status))
}

/// Longer reasons of commands are cut, in bytes.
const LONGEST_REASON: usize = 1_024;

fn sync() -> Trigger {
    Trigger::new(JobRequest::Sync, JobReason::Starting, "")
}

fn by_command(seen: &TriggerInput<'_>, pending: &Pending) -> Trigger {
    let command = &pending.command;
    let by = match (&*command.issued_by, &*command.reason) {
        ("", "") => command.action.to_string(),
        (by, "") => format!("{} by {by}", command.action),
        (by, why) => format!("{} by {by}: {why}", command.action),
    };
    let by = cut(&by, LONGEST_REASON);
    let mut trigger = Trigger::new(JobRequest::Do(command.action), JobReason::CommandIssued, by);
    trigger.by_person = true;
    trigger.command = Some(pending.clone());
    let Target::Job { uid, task, index, .. } = &command.target else { return trigger };
    // A command older than the job's record was given to another job of the name.
    let of_another = uid.is_some_and(|uid| JobUid(uid) != seen.uid) || pending.index < seen.uid.0;
    trigger.targets = match (task, index) {
        (Some(task), Some(index)) => vec![Slot::new(task, *index)],
        (Some(task), None) => slots_of(seen.job, task),
        (None, _) => Vec::new(),
    };
    let nobody = matches!(command.action, CommandAction::RestartTask | CommandAction::RestartPod)
        && !trigger.targets.iter().any(|slot| exists(seen.job, slot));
    let no_action_of_jobs = !CommandAction::OF_JOBS.contains(&command.action);
    if of_another || nobody || no_action_of_jobs {
        // Consumed without effect or error (F-J23).
        trigger.ask = JobRequest::Sync;
    }
    trigger
}

fn exists(job: &JobSpec, slot: &Slot) -> bool {
    job.task(&slot.task).is_some_and(|task| slot.index < task.replicas)
}

fn slots_of(job: &JobSpec, task: &str) -> Vec<Slot> {
    let replicas = job.task(task).map_or(0, |task| task.replicas);
    (0..replicas).map(|index| Slot::new(task, index)).collect()
}

fn targets(job: &JobSpec, action: CommandAction, slot: Option<&Slot>) -> Vec<Slot> {
    match (action, slot) {
        (CommandAction::RestartTask, Some(slot)) => slots_of(job, &slot.task),
        (CommandAction::RestartPod, Some(slot)) => vec![slot.clone()],
        _ => Vec::new(),
    }
}

/// Drops delayed actions whose cause is gone or of an older attempt (`volcano.md` §2.2).
fn forget_what_mended(seen: &TriggerInput<'_>, status: &mut JobStatus) {
    let version = status.version;
    status.delayed.retain(|delayed| {
        let pod = delayed.slot.as_ref().and_then(|slot| seen.members.get(slot));
        let mended = match (delayed.event, pod) {
            (PolicyEvent::PodPending, pod) => pod.is_none_or(|pod| pod.phase != PodPhase::Pending),
            (PolicyEvent::PodFailed | PolicyEvent::PodEvicted, Some(pod)) => {
                pod.phase == PodPhase::Running
            }
            (PolicyEvent::Unknown, _) => !seen.group_unknown,
            _ => false,
        };
        delayed.version == version && !mended
    });
    if !seen.group_unknown {
        status.group_unknown = false;
    }
}

/// The active deadline and Kubeflow's `backoffLimit`.
fn limits(seen: &TriggerInput<'_>, status: &JobStatus) -> Option<Trigger> {
    if let (Some(limit), Some(start)) = (seen.job.active_deadline, status.start_time)
        && past_deadline(start, limit, seen.now)
        && !is_stopping(status)
    {
        let message = format!("it ran longer than {} s", limit.as_secs());
        return Some(Trigger::new(JobRequest::Fail, JobReason::DeadlineExceeded, message));
    }
    let limit = seen.job.backoff_limit?;
    let in_place = restarts_in_place(seen.job, seen.members);
    let due = due_in_place(seen.job, seen.members);
    // Restarts by this controller are limited before they are made.
    if in_place == 0 && due.is_empty() || !status.state.phase.starts_members() {
        return None;
    }
    let made = failures(status).saturating_add(in_place);
    let wanted = made.saturating_add(u32::try_from(due.len()).unwrap_or(u32::MAX));
    let first = due.first().map(|pod| match &pod.failure {
        Some(_) => format!("; {}", ending(&pod.slot, pod)),
        None => format!("; {} has ended and would be started again", pod.slot),
    });
    (wanted > limit).then(|| backoff_exceeded(limit, made, &first.unwrap_or_default()))
}

/// `failed`: the failed members, each after a semicolon.
fn backoff_exceeded(limit: u32, restarts: u32, failed: &str) -> Trigger {
    let message = format!("members were restarted {restarts} times, {limit} is the limit{failed}");
    Trigger::new(JobRequest::Fail, JobReason::BackoffLimitExceeded, message)
}

fn is_stopping(status: &JobStatus) -> bool {
    use rcfarm_api::job::phase::JobPhase as P;
    matches!(status.state.phase, P::Aborting | P::Aborted | P::Completing | P::Terminating)
}

/// Whether a job that started at `start` has exceeded its limit (`kubeflow.md` §1.8).
#[must_use]
pub fn past_deadline(start: Timestamp, limit: std::time::Duration, now: Timestamp) -> bool {
    now >= start.checked_add(limit).unwrap_or(Timestamp::MAX)
}

/// Failures of members that were restarted and counted.
pub(super) fn failures(status: &JobStatus) -> u32 {
    status.tasks.values().map(|memory| memory.failures).fold(0, u32::saturating_add)
}

/// Applies policies to new events. Returns the first immediate action; later events are handled by the next plan.
fn happenings(seen: &TriggerInput<'_>, status: &mut JobStatus) -> Option<Trigger> {
    for (slot, happening) in found(seen, status) {
        let event = happening.event?;
        let mut said = answer(seen.job, &happening);
        if let PolicyDecision::Later(action, _) = said
            && status.delayed.len() >= MOST_DELAYED
        {
            match event {
                // It does not start before it is answered.
                PolicyEvent::PodEvicted => said = PolicyDecision::Now(action),
                // Found again by the next plan.
                _ => continue,
            }
        }
        if said != PolicyDecision::Sync || event != PolicyEvent::PodPending {
            note(status, slot.as_ref(), happening.task.as_deref(), event);
        }
        let any = happening.task.as_ref().map(|task| Slot::new(task, 0));
        match said {
            PolicyDecision::Sync => {}
            PolicyDecision::Now(action) => {
                let subject = match (&slot, &happening.task) {
                    (Some(slot), _) => slot.to_string(),
                    (None, Some(task)) => task.clone(),
                    (None, None) => "the group".to_owned(),
                };
                let failed = slot.as_ref().filter(|_| event == PolicyEvent::PodFailed);
                let pod = failed.and_then(|slot| seen.members.get(slot));
                let why = pod.map(|pod| format!(" with {}", pod.why_failed())).unwrap_or_default();
                let message = format!("{action}: {event} of {subject}{why}");
                let mut trigger =
                    Trigger::new(JobRequest::Do(action), JobReason::PolicyAction, message);
                trigger.targets = targets(seen.job, action, slot.as_ref().or(any.as_ref()));
                if event == PolicyEvent::PodEvicted {
                    note_answered(seen, status, action, slot.as_ref());
                }
                return Some(trigger);
            }
            PolicyDecision::Later(action, pause) => {
                put_off(seen, status, action, event, slot.or(any), pause);
            }
        }
    }
    None
}

/// One restart answers all losses for which it is asked: a node may have had several members.
fn note_answered(
    seen: &TriggerInput<'_>,
    status: &mut JobStatus,
    action: CommandAction,
    first: Option<&Slot>,
) {
    for slot in seen.lost {
        let is_same_task = first.is_some_and(|first| first.task == slot.task);
        let event = happening(PolicyEvent::PodEvicted, &slot.task, None);
        let is_asked =
            matches!(answer(seen.job, &event), PolicyDecision::Now(other) if other == action);
        if is_asked && (is_same_task || action == CommandAction::RestartPod) {
            status.memory(&slot.task).evicted.remove(slot.index);
        }
    }
}

fn put_off(
    seen: &TriggerInput<'_>,
    status: &mut JobStatus,
    action: CommandAction,
    event: PolicyEvent,
    slot: Option<Slot>,
    pause: std::time::Duration,
) {
    // The first of several equal actions keeps its time.
    if status.delayed.iter().any(|other| other.slot == slot && other.action == action) {
        return;
    }
    let due = seen.now.checked_add(pause).unwrap_or(Timestamp::MAX);
    let version = status.version;
    status.delayed.push(Delayed { action, event, due, slot, version });
}

fn happening(event: PolicyEvent, task: &str, exit_code: Option<i32>) -> JobEvent {
    JobEvent { event: Some(event), exit_code, task: Some(task.to_owned()) }
}

/// Events not handled yet, in a fixed order.
fn found(seen: &TriggerInput<'_>, status: &JobStatus) -> Vec<(Option<Slot>, JobEvent)> {
    let mut all = Vec::new();
    let memory = |task: &str| status.tasks.get(task);
    for task in &seen.job.tasks {
        let name = task.name.as_str();
        let pods = || seen.members.iter().filter(|(slot, _)| slot.task == name);
        let done = pods().filter(|(_, pod)| pod.phase == PodPhase::Succeeded).count();
        let all_done = task.replicas > 0 && u32::try_from(done).is_ok_and(|n| n == task.replicas);
        if all_done && !memory(name).is_some_and(|memory| memory.completed) {
            all.push((None, happening(PolicyEvent::TaskCompleted, name, None)));
        }
        for (slot, pod) in pods().filter(|(_, pod)| pod.phase == PodPhase::Failed) {
            if !memory(name).is_some_and(|memory| memory.handled.contains(slot.index)) {
                all.push((
                    Some(slot.clone()),
                    happening(PolicyEvent::PodFailed, name, pod.exit_code),
                ));
            }
        }
        for slot in seen.lost.iter().filter(|slot| slot.task == name) {
            all.push((Some(slot.clone()), happening(PolicyEvent::PodEvicted, name, None)));
        }
        let live = pods().filter(|(_, pod)| !pod.phase.has_ended());
        let restarts = live.map(|(_, pod)| pod.restarts).fold(0, u32::saturating_add);
        if task.max_retry.is_some_and(|limit| restarts >= limit) {
            all.push((None, happening(PolicyEvent::TaskFailed, name, None)));
        }
        for (slot, _) in pods().filter(|(_, pod)| pod.phase == PodPhase::Pending) {
            all.push((Some(slot.clone()), happening(PolicyEvent::PodPending, name, None)));
        }
    }
    if seen.group_unknown && !status.group_unknown {
        // Without a version: it concerns the present attempt.
        let happening = JobEvent { event: Some(PolicyEvent::Unknown), ..JobEvent::default() };
        all.push((None, happening));
    }
    all
}

fn note(status: &mut JobStatus, slot: Option<&Slot>, task: Option<&str>, event: PolicyEvent) {
    match (event, slot, task) {
        (PolicyEvent::PodFailed, Some(slot), _) => {
            status.memory(&slot.task).handled.insert(slot.index);
        }
        (PolicyEvent::PodEvicted, Some(slot), _) => {
            status.memory(&slot.task).evicted.remove(slot.index);
        }
        (PolicyEvent::TaskCompleted, _, Some(task)) => status.memory(task).completed = true,
        (PolicyEvent::Unknown, ..) => status.group_unknown = true,
        _ => {}
    }
}

/// How a failed member ended.
pub(super) fn ending(slot: &Slot, pod: &MemberPod) -> String {
    format!("{slot} ended with {}", pod.why_failed())
}

/// How the first of the failed members ended, each after a semicolon.
pub(super) fn failed_members(members: &BTreeMap<Slot, &MemberPod>) -> String {
    let failed = || members.iter().filter(|(_, pod)| pod.phase == PodPhase::Failed);
    let named = failed().take(FAILED_NAMED);
    let mut text: String = named.map(|(slot, pod)| format!("; {}", ending(slot, pod))).collect();
    let more = failed().count().saturating_sub(FAILED_NAMED);
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

/// Where the gang restarts together and a member was lost, a command that restarts one pod, or does nothing, becomes a
/// restart of all.
fn with_the_gang(seen: &TriggerInput<'_>, status: &JobStatus, mut trigger: Trigger) -> Trigger {
    use CommandAction::{RestartPod, RestartTask};
    let is_partial =
        matches!(trigger.ask, JobRequest::Sync | JobRequest::Do(RestartPod | RestartTask));
    let restarts = seen.job.restarts_gang && !seen.lost.is_empty() && !seen.is_decided;
    if restarts && is_partial && status.state.phase.starts_members() {
        trigger.ask = JobRequest::Do(CommandAction::RestartJob);
        trigger.targets.clear();
    }
    trigger
}

/// Restarts all members if one of them failed or was lost, or fails the job. A restart counts once, however many failed,
/// and not at all if none ended by itself.
fn gang_restart(
    seen: &TriggerInput<'_>,
    status: &mut JobStatus,
    (again, counted): (&[Slot], &[Slot]),
) -> Trigger {
    if seen.is_decided || again.is_empty() && seen.lost.is_empty() {
        return sync();
    }
    let made = failures(status);
    if let Some(first) = counted.first() {
        if let Some(limit) = seen.job.backoff_limit.filter(|limit| made >= *limit) {
            return backoff_exceeded(limit, made, &failed_members(seen.members));
        }
        status.memory(&first.task).failures += 1;
    }
    let first = again.first().and_then(|slot| Some(ending(slot, seen.members.get(slot)?)));
    let why = first.or_else(|| seen.lost.first().map(|slot| format!("{slot} was lost")));
    let message = format!("{}; all members are started again", why.unwrap_or_default());
    let ask = JobRequest::Do(CommandAction::RestartJob);
    let mut trigger = Trigger::new(ask, JobReason::MemberFailed, message);
    trigger.by_member = true;
    trigger
}

/// Restarts failed members by their own restart policy, all at once, or fails the job.
fn own_restarts(seen: &TriggerInput<'_>, status: &mut JobStatus) -> Trigger {
    let (mut again, mut counted) = (Vec::new(), Vec::new());
    for (slot, pod) in seen.members.iter().filter(|(_, pod)| pod.phase == PodPhase::Failed) {
        let Some(task) = seen.job.task(&slot.task) else { continue };
        match after_failure(seen.job.framework, task.restart, pod.exit_code) {
            AfterFailure::Stay => {}
            AfterFailure::FailJob => {
                let message = format!("{}, which is not tried again", ending(slot, pod));
                return Trigger::new(JobRequest::Fail, JobReason::MemberFailed, message);
            }
            AfterFailure::Restart { counts } => {
                if counts {
                    counted.push(slot.clone());
                }
                again.push(slot.clone());
            }
        }
    }
    if seen.job.restarts_gang {
        return gang_restart(seen, status, (&again, &counted));
    }
    let made = failures(status).saturating_add(restarts_in_place(seen.job, seen.members));
    for slot in &counted {
        status.memory(&slot.task).failures += 1;
    }
    if let Some(limit) = seen.job.backoff_limit
        && u32::try_from(counted.len()).unwrap_or(u32::MAX) > limit.saturating_sub(made)
    {
        return backoff_exceeded(limit, made, &failed_members(seen.members));
    }
    if again.is_empty() {
        return sync();
    }
    let message = format!("{} members failed and are started again", again.len());
    let mut trigger =
        Trigger::new(JobRequest::Do(CommandAction::RestartPod), JobReason::MemberFailed, message);
    trigger.targets = again;
    trigger.by_member = true;
    trigger
}
