//! Which pods are which members: one for each place in the job, and the others on their way out. Pure.

use std::collections::BTreeMap;

use super::frameworks::{AfterFailure, Counts, TaskCount, after_failure};
use rcfarm_api::Index;
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobTask, Slot};
use rcfarm_api::job::status::{JobMembers, JobStatus, PodPhase};

/// A pod of the job, as the store and its node show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPod {
    /// Which member it is.
    pub slot: Slot,
    /// Where it is.
    pub node: NodeName,
    /// The attempt of the whole job that it belongs to.
    pub version: u64,
    /// Which try at this member it is.
    pub attempt: u32,
    /// ModifyIndex of its labels.
    pub label_index: Index,
    /// ModifyIndex of its intent; `None`: somebody took it away.
    pub intent: Option<Index>,
    /// How far it has come.
    pub phase: PodPhase,
    /// Whether it runs and its checks pass.
    pub ready: bool,
    /// How it ended.
    pub exit_code: Option<i32>,
    /// How often its node started its processes again.
    pub restarts: u32,
    /// Its node is down.
    pub lost: bool,
    /// Why it is as it is, for people.
    pub message: String,
}

/// A pod that carries the job's name and nobody's uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreePod {
    /// Which member it says to be.
    pub slot: Slot,
    /// Where it is.
    pub node: NodeName,
    /// Whether it is intended; if not it is on its way out.
    pub is_intended: bool,
}

/// Why a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum MemberRemoveReason {
    /// It belongs to an older attempt.
    OldAttempt,
    /// The job has no such member.
    OutOfRange,
    /// Another pod is that member.
    Duplicate,
    /// Its node is down, or its intent was taken away.
    Lost,
    /// The job, its task or the member itself is started again.
    Restart,
    /// The job was stopped, or has ended.
    Stop,
    /// The job's record goes.
    Deleted,
    /// Its job is gone, or is another one of that name.
    Orphan,
}

/// The pods of a job, sorted.
#[derive(Debug, Default)]
pub struct Sorted<'a> {
    /// The pod of each member that has one.
    pub members: BTreeMap<Slot, &'a MemberPod>,
    /// Pods that must go, whatever is asked.
    pub surplus: Vec<(&'a MemberPod, MemberRemoveReason)>,
}

/// Finds the pod of each member: of several the one of the present try, then the one that has come furthest, then the
/// oldest (`kubeflow.md` D2). What is left over, out of range or of an older attempt must go (D1).
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

fn rank(pod: &MemberPod) -> (u8, bool, std::cmp::Reverse<Index>) {
    let far = match pod.phase {
        PodPhase::Pending => 0,
        PodPhase::Unknown => 1,
        PodPhase::Failed => 2,
        PodPhase::Running => 3,
        PodPhase::Succeeded => 4,
    };
    (far, pod.ready, std::cmp::Reverse(pod.label_index))
}

/// What the pods tell of a status that somebody deleted: which attempt of the whole job is the present one, and which try
/// at each member. What was counted is lost with it.
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

/// Which try at a member is the present one.
#[must_use]
pub fn attempt_of(status: &JobStatus, slot: &Slot) -> u32 {
    let memory = status.tasks.get(&slot.task);
    memory.and_then(|memory| memory.attempts.get(&slot.index)).copied().unwrap_or(0)
}

/// How all members stand. One that failed and is about to be started again is waiting, not failed; in a job that is
/// stopped or has ended (`phase`) none is.
#[must_use]
pub fn counts<'j>(
    job: &'j JobSpec,
    phase: JobPhase,
    members: &BTreeMap<Slot, &MemberPod>,
    leaving: &BTreeMap<Slot, u32>,
) -> Counts<'j> {
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

fn effective(job: &JobSpec, task: &JobTask, pod: &MemberPod) -> PodPhase {
    let again = pod.phase == PodPhase::Failed
        && matches!(
            after_failure(job.framework, task.restart, pod.exit_code),
            AfterFailure::Restart { .. }
        );
    if again { PodPhase::Pending } else { pod.phase }
}

/// Whether the members that a task waits for are there (`volcano.md` §2.1): `Succeeded` counts, and a dependency without
/// a `minAvailable` holds nobody up.
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
        let Some(wanted) = dependency.min_available else { return true };
        let own = members.iter().filter(|(slot, _)| slot.task == dependency.name);
        let there = own.filter(|(_, pod)| {
            pod.phase == PodPhase::Succeeded || pod.phase == PodPhase::Running && pod.ready
        });
        there.count() >= usize::try_from(wanted).unwrap_or(usize::MAX)
    });
    if task.any_dependency { ready.any(|ready| ready) } else { ready.all(|ready| ready) }
}

/// Restarts by nodes that count towards Kubeflow's `backoffLimit` (`kubeflow.md` §1.7): of members that run and
/// whose policy is not `Never`.
#[must_use]
pub fn restarts_in_place(job: &JobSpec, members: &BTreeMap<Slot, &MemberPod>) -> u32 {
    let counted = members.values().filter(|pod| {
        let task = job.task(&pod.slot.task);
        pod.phase == PodPhase::Running
            && task.is_some_and(|task| task.restart != rcfarm_api::job::spec::Restart::Never)
    });
    counted.map(|pod| pod.restarts).fold(0, u32::saturating_add)
}

/// Whether a limit of restarts is reached: none at 0 means the first one is too many.
#[must_use]
pub fn past_backoff_limit(limit: u32, restarts: u32) -> bool {
    if limit == 0 { restarts > 0 } else { restarts >= limit }
}

/// What the counts come to in the status.
pub fn publish(status: &mut JobStatus, job: &JobSpec, counts: &Counts<'_>, selector: &str) {
    let mut all = JobMembers::default();
    let (mut by_phase, mut replicas) = (BTreeMap::new(), BTreeMap::new());
    for task in &job.tasks {
        let JobMembers { pending, running, succeeded, failed, terminating, unknown } =
            counts.get(task.name.as_str()).copied().unwrap_or_default().members;
        all.pending += pending;
        all.running += running;
        all.succeeded += succeeded;
        all.failed += failed;
        all.terminating += terminating;
        all.unknown += unknown;
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
    status.members = all;
    status.task_status_count = by_phase;
    status.replica_statuses = replicas;
    status.min_available = job.min_available;
}
