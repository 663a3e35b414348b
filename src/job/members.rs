//! Assigns pods to members of a job: one pod per member, the rest is surplus. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::frameworks::{AfterFailure, TaskCount, TaskCounts, after_failure, total};
use super::pod_status::PodFailure;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobTask, Restart, Slot};
use rcfarm_api::job::status::{JobMembers, JobStatus, MOST_FAILURES, MemberFailure, PodPhase};
use rcfarm_api::{Index, Timestamp};

/// A pod of the job, from its keys in Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPod {
    /// Member of the job.
    pub slot: Slot,
    /// Node and pod id.
    pub place: PodRef,
    /// Attempt of the whole job.
    pub version: u64,
    pub attempt: u32,
    /// ModifyIndex of its labels.
    pub label_index: Index,
    /// ModifyIndex of its intent; `None`: it was deleted by others.
    pub intent: Option<Index>,
    /// Kubernetes-style phase.
    pub phase: PodPhase,
    /// Whether it runs and its health checks pass.
    pub ready: bool,
    /// Exit code of the container that decides.
    pub exit_code: Option<i32>,
    /// Number of restarts made by the node agent.
    pub restarts: u32,
    /// Whether its node went down, or lost its lease, before it ended.
    pub lost: bool,
    /// Whether its node is down.
    pub on_down_node: bool,
    /// Message of the node agent.
    pub message: String,
    /// How its last run failed. It may be restarted meanwhile.
    pub failure: Option<PodFailure>,
    /// Whether a process of it has ended, and waits until its agent starts it again.
    pub is_due: bool,
}

impl MemberPod {
    /// Why it failed: exit code, and what else is known.
    #[must_use]
    pub fn why_failed(&self) -> String {
        let reason = self.failure.as_ref().and_then(|failure| failure.reason);
        let of_last_run = self.failure.as_ref().and_then(|failure| failure.exit_code);
        match (self.exit_code.or(of_last_run), reason) {
            (Some(code), Some(reason)) => format!("exit code {code} ({reason}: {})", self.message),
            (Some(code), None) => format!("exit code {code}"),
            (None, _) if self.message.is_empty() => "an unknown exit code".to_owned(),
            (None, _) => format!("an unknown exit code ({})", self.message),
        }
    }

    fn last_failure(&self) -> Option<MemberFailure> {
        let PodFailure { time, exit_code, reason, message, output } = self.failure.clone()?;
        Some(MemberFailure {
            slot: self.slot.clone(),
            node: self.place.node.clone(),
            version: self.version,
            attempt: self.attempt,
            array_index: None,
            time,
            exit_code: self.exit_code.or(exit_code),
            reason,
            message,
            output,
        })
    }
}

/// The latest failures of members up to an attempt of the job, as many as its status holds.
pub fn failures(pods: &[MemberPod], version: u64) -> Vec<MemberFailure> {
    let failed = pods.iter().filter(|pod| !pod.lost && pod.version <= version);
    let mut failed: Vec<(Timestamp, &MemberPod)> =
        failed.filter_map(|pod| Some((pod.failure.as_ref()?.time, pod))).collect();
    failed.sort_by_key(|(time, pod)| (Reverse(*time), &pod.slot));
    failed.truncate(MOST_FAILURES);
    failed.into_iter().filter_map(|(_, pod)| pod.last_failure()).collect()
}

/// A pod with the job's labels and no uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreePod {
    /// Member according to its labels.
    pub slot: Slot,
    pub node: NodeName,
    /// Whether it has an intent; without one it is being removed.
    pub is_intended: bool,
}

/// Reason for the removal of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum MemberRemoveReason {
    /// It belongs to an older attempt.
    OldAttempt,
    /// Its index is not below the task's `replicas`.
    OutOfRange,
    /// Another pod was chosen for the member.
    Duplicate,
    /// Its node is down, or its intent was deleted by others.
    Lost,
    /// Restart of the job, the task or the member.
    Restart,
    /// Its task of the array has ended.
    TaskEnded,
    /// The job was stopped or has ended.
    Stop,
    /// The job's record is being deleted.
    Deleted,
    /// Its job is gone, or is an older one of the name.
    Orphan,
}

/// Pods of a job, assigned to members.
#[derive(Debug, Default)]
pub struct Sorted<'a> {
    pub members: BTreeMap<Slot, &'a MemberPod>,
    /// Pods to remove whatever the request.
    pub surplus: Vec<(&'a MemberPod, MemberRemoveReason)>,
}

/// Chooses one pod per member: of the present attempt, then the furthest phase, then the oldest (`kubeflow.md` D2).
/// Other pods, pods out of range and pods of older attempts are surplus (D1).
#[must_use]
pub fn sort<'a>(job: &JobSpec, status: &JobStatus, pods: &'a [MemberPod]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for pod in pods {
        let in_range = job.task(&pod.slot.task).is_some_and(|task| pod.slot.index < task.replicas);
        if pod.version != status.version {
            sorted.surplus.push((pod, MemberRemoveReason::OldAttempt));
        } else if !in_range {
            sorted.surplus.push((pod, MemberRemoveReason::OutOfRange));
        } else if pod.attempt != attempt_of(status, &pod.slot) {
            sorted.surplus.push((pod, MemberRemoveReason::OldAttempt));
        } else if pod.lost || pod.intent.is_none() {
            sorted.surplus.push((pod, MemberRemoveReason::Lost));
        } else {
            match sorted.members.get(&pod.slot).copied() {
                Some(other) if rank(other) >= rank(pod) => {
                    sorted.surplus.push((pod, MemberRemoveReason::Duplicate));
                }
                Some(other) => {
                    sorted.surplus.push((other, MemberRemoveReason::Duplicate));
                    sorted.members.insert(pod.slot.clone(), pod);
                }
                None => drop(sorted.members.insert(pod.slot.clone(), pod)),
            }
        }
    }
    sorted
}

fn rank(pod: &MemberPod) -> (u8, bool, Reverse<Index>) {
    let far = match pod.phase {
        PodPhase::Pending => 0,
        PodPhase::Unknown => 1,
        PodPhase::Failed => 2,
        PodPhase::Running => 3,
        PodPhase::Succeeded => 4,
    };
    (far, pod.ready, Reverse(pod.label_index))
}

/// Restores attempts from pods after the status was deleted. Counts of retries are lost.
pub fn remember(status: &mut JobStatus, pods: &[MemberPod]) {
    status.version = pods.iter().map(|pod| pod.version).max().unwrap_or_default();
    let version = status.version;
    for pod in pods.iter().filter(|pod| pod.version == version) {
        let memory = status.memory(&pod.slot.task);
        memory.started.insert(pod.slot.index);
        if pod.attempt > 0 {
            let attempt = memory.attempts.entry(pod.slot.index).or_default();
            *attempt = pod.attempt.max(*attempt);
        }
    }
}

/// Present attempt of a member.
#[must_use]
pub fn attempt_of(status: &JobStatus, slot: &Slot) -> u32 {
    status.attempt_of(slot)
}

/// Counts members by phase. A failed member that will be restarted counts as pending, unless the job is stopped or has
/// ended (`phase`).
#[must_use]
pub fn counts<'j>(
    job: &'j JobSpec,
    phase: JobPhase,
    members: &BTreeMap<Slot, &MemberPod>,
    leaving: &BTreeMap<Slot, u32>,
) -> TaskCounts<'j> {
    let goes_on = phase.starts_members() || phase == JobPhase::Restarting;
    let count = |task: &'j JobTask| {
        let mut count = TaskCount::default();
        let own = |slot: &Slot| slot.task == task.name;
        for (slot, pod) in members.iter().filter(|(slot, _)| own(slot)) {
            count.members.count(if goes_on { effective(job, task, pod) } else { pod.phase });
            count.first_succeeded |= slot.index == 0 && pod.phase == PodPhase::Succeeded;
        }
        let terminating = leaving.iter().filter(|(slot, _)| own(slot)).map(|(_, n)| n);
        count.members.terminating = terminating.sum();
        (task.name.as_str(), count)
    };
    job.tasks.iter().map(count).collect()
}

/// Phase of a member that goes on: one that failed and will be restarted counts as pending.
pub(super) fn effective(job: &JobSpec, task: &JobTask, pod: &MemberPod) -> PodPhase {
    let again = pod.phase == PodPhase::Failed
        && matches!(
            after_failure(job.framework, task.restart, pod.exit_code),
            AfterFailure::Restart { .. }
        );
    if again { PodPhase::Pending } else { pod.phase }
}

/// Members that have ended and do not start again by themselves. One whose failure no policy has answered yet may.
#[must_use]
pub fn ended(
    job: &JobSpec,
    status: &JobStatus,
    members: &BTreeMap<Slot, &MemberPod>,
) -> BTreeSet<Slot> {
    let phase = status.state.phase;
    let goes_on = phase.starts_members() || phase == JobPhase::Restarting;
    let is_handled = |slot: &Slot, pod: &MemberPod| {
        let memory = status.tasks.get(&slot.task);
        pod.phase != PodPhase::Failed
            || !phase.starts_members()
            || memory.is_some_and(|memory| memory.handled.contains(slot.index))
    };
    let has_ended = |(slot, pod): &(&Slot, &&MemberPod)| {
        let phase = match job.task(&slot.task) {
            Some(task) if goes_on => effective(job, task, pod),
            _ => pod.phase,
        };
        phase.has_ended() && is_handled(slot, pod)
    };
    members.iter().filter(has_ended).map(|(slot, _)| slot.clone()).collect()
}

/// Whether a task's dependencies have enough ready members (`volcano.md` §2.1). Succeeded members count.
#[must_use]
pub fn dependencies_ready(
    job: &JobSpec,
    task: &JobTask,
    members: &BTreeMap<Slot, &MemberPod>,
) -> bool {
    if task.depends_on.is_empty() {
        return true;
    }
    let mut ready = task.depends_on.iter().filter_map(|name| job.task(name)).map(|dependency| {
        let needed = usize::try_from(dependency.needed()).unwrap_or(usize::MAX);
        ready_members(dependency, members) >= needed
    });
    if task.any_dependency { ready.any(|ready| ready) } else { ready.all(|ready| ready) }
}

/// Number of members that have succeeded, or run and are ready.
#[must_use]
pub fn ready_members(task: &JobTask, members: &BTreeMap<Slot, &MemberPod>) -> usize {
    let own = members.iter().filter(|(slot, _)| slot.task == task.name);
    let is_ready = |pod: &MemberPod| {
        pod.phase == PodPhase::Succeeded || pod.phase == PodPhase::Running && pod.ready
    };
    own.filter(|(_, pod)| is_ready(pod)).count()
}

/// Members that node agents restart and whose restarts count towards `backoffLimit` (`kubeflow.md` §1.7): running ones
/// whose restart policy is not `Never`.
fn restarted_in_place<'m>(
    job: &JobSpec,
    members: &'m BTreeMap<Slot, &MemberPod>,
) -> impl Iterator<Item = &'m MemberPod> {
    members.values().copied().filter(|pod| {
        let task = job.task(&pod.slot.task);
        pod.phase == PodPhase::Running && task.is_some_and(|task| task.restart != Restart::Never)
    })
}

/// Restarts by node agents that count towards `backoffLimit`.
#[must_use]
pub fn restarts_in_place(job: &JobSpec, members: &BTreeMap<Slot, &MemberPod>) -> u32 {
    restarted_in_place(job, members).map(|pod| pod.restarts).fold(0, u32::saturating_add)
}

/// Members that have ended and that their agents are about to restart.
#[must_use]
pub fn due_in_place<'m>(
    job: &JobSpec,
    members: &'m BTreeMap<Slot, &MemberPod>,
) -> Vec<&'m MemberPod> {
    restarted_in_place(job, members).filter(|pod| pod.is_due || pod.failure.is_some()).collect()
}

/// Writes the counts to the status.
pub fn publish(status: &mut JobStatus, job: &JobSpec, counts: &TaskCounts<'_>, selector: &str) {
    let (mut by_phase, mut replicas) = (BTreeMap::new(), BTreeMap::new());
    for task in &job.tasks {
        let JobMembers { pending, running, succeeded, failed, terminating, unknown } =
            counts.get(task.name.as_str()).copied().unwrap_or_default().members;
        let phases = [pending, running, succeeded, failed, unknown];
        let phases = PodPhase::ALL.into_iter().zip(phases).filter(|(_, n)| *n > 0);
        by_phase.insert(task.name.clone(), phases.collect());
        let replica = rcfarm_api::job::status::ReplicaStatus {
            active: running,
            succeeded,
            failed: failed + terminating,
            selector: format!("{selector},volcano.sh/task-spec={}", task.name),
        };
        replicas.insert(task.name.clone(), replica);
    }
    status.members = total(counts);
    status.task_status_count = by_phase;
    status.replica_statuses = replicas;
    status.min_available = job.min_available;
}
