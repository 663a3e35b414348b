//! Takes what jobs have become into a flow's status, and derives from it what people read.

use std::collections::BTreeMap;

use super::{ObservedJob, ObservedJobs, OwnJob};
use rcfarm_api::flow::{FlowCondition, FlowJob, FlowPhase, FlowStatus, RunningHistory, TaskPhases};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::{Index, Timestamp};

/// Flows with more steps than these keep histories and conditions only of jobs that have not ended.
pub(super) const LARGE: usize = 100;
/// Entries of a job's history.
const LONGEST_HISTORY: usize = 10;
/// Jobs with more tasks are counted by nobody.
const MOST_TASKS: usize = 8;
/// A name that a message shows in full.
const LONGEST_TASK: usize = 63;

/// The status to go on with.
pub(super) fn begin(uid: Index, stored: &FlowStatus) -> FlowStatus {
    if stored.uid != uid {
        return FlowStatus { uid, revision: stored.revision, ..FlowStatus::default() };
    }
    stored.clone()
}

/// Times are stored without fractions below a millisecond: a large status holds thousands.
pub(super) fn rounded(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

/// Size of a status as it is written, in bytes.
pub(super) fn bytes(status: &FlowStatus) -> usize {
    serde_json::to_vec(status).map_or(0, |bytes| bytes.len())
}

/// Notes the phases of jobs whose end was not seen yet.
pub(super) fn take_in(status: &mut FlowStatus, jobs: &ObservedJobs, now: Timestamp) {
    let FlowStatus { job_status_list, conditions, .. } = status;
    for job in job_status_list.iter_mut().filter(|job| !job.state.is_final()) {
        match jobs.get(&job.name) {
            None => {}
            Some(ObservedJob::Own(own)) if job.uid.is_none_or(|uid| uid == own.uid) => {
                take_in_one(job, own, conditions, now);
            }
            Some(_) => {
                // Its record is gone, and how it ended is not known.
                note_phase(job, JobPhase::Terminated, now);
                job.end_timestamp = Some(rounded(now));
                if let Some(condition) = conditions.get_mut(&job.name) {
                    condition.phase = JobPhase::Terminated;
                }
            }
        }
    }
}

fn take_in_one(
    job: &mut FlowJob,
    own: &OwnJob,
    conditions: &mut BTreeMap<ObjectName, FlowCondition>,
    now: Timestamp,
) {
    job.uid = Some(own.uid);
    job.restart_count = own.restarts;
    let is_new = job.state != own.phase || !conditions.contains_key(&job.name);
    note_phase(job, own.phase, own.since.unwrap_or(now));
    if own.phase.is_final() {
        job.end_timestamp = Some(rounded(own.since.unwrap_or(now)));
    }
    if is_new {
        let counted = own.tasks.len() <= MOST_TASKS;
        let named = own.tasks.iter().filter(|(task, _)| counted && task.len() <= LONGEST_TASK);
        let phases = |counts: &BTreeMap<_, _>| TaskPhases { phase: counts.clone() };
        let condition = FlowCondition {
            phase: own.phase,
            create_time: job.start_timestamp,
            running_duration: own.ran_for.map(|seconds| format!("{seconds}s")),
            task_status_count: named.map(|(task, counts)| (task.clone(), phases(counts))).collect(),
        };
        conditions.insert(job.name.clone(), condition);
    }
}

/// Notes a job's phase: a changed one closes the last entry of the history and opens another (`volcano.md` §5.4, F-F6).
pub(super) fn note_phase(job: &mut FlowJob, phase: JobPhase, at: Timestamp) {
    job.state = phase;
    let at = rounded(at);
    match job.running_histories.last_mut() {
        Some(last) if last.state == phase => return,
        Some(last) => last.end_timestamp = Some(at.max(last.start_timestamp)),
        None => {}
    }
    let entry = RunningHistory { start_timestamp: at, end_timestamp: None, state: phase };
    job.running_histories.push(entry);
    if job.running_histories.len() > LONGEST_HISTORY {
        job.running_histories.remove(0);
    }
}

/// Whether a flow that is neither over nor failed runs (`volcano.md` §2.4).
pub(super) fn phase(status: &FlowStatus) -> FlowPhase {
    let runs = |job: &FlowJob| {
        matches!(
            job.state,
            JobPhase::Running | JobPhase::Completing | JobPhase::Terminating | JobPhase::Completed
        )
    };
    match status.job_status_list.iter().any(runs) {
        true => FlowPhase::Running,
        false => FlowPhase::Pending,
    }
}

/// Why a step has failed, for people.
pub(super) fn failure(job: &FlowJob) -> Option<String> {
    let how = match job.state {
        JobPhase::Failed => "has failed",
        JobPhase::Terminated if job.stopping => return None,
        JobPhase::Terminated => "was terminated or deleted",
        _ => return None,
    };
    let retried = match job.retries {
        0 => String::new(),
        times => format!(" after {times} retries"),
    };
    Some(format!("job {} of step {} {how}{retried}", job.name, job.step))
}

/// Fills in the lists by phase, and drops what a large flow does not keep.
pub(super) fn derive(status: &mut FlowStatus, steps: usize) {
    let FlowStatus {
        job_status_list,
        conditions,
        pending_jobs,
        running_jobs,
        failed_jobs,
        completed_jobs,
        terminated_jobs,
        unknown_jobs,
        ..
    } = status;
    let is_large = steps.max(job_status_list.len()) > LARGE;
    for list in [
        &mut *pending_jobs,
        running_jobs,
        failed_jobs,
        completed_jobs,
        terminated_jobs,
        unknown_jobs,
    ] {
        list.clear();
    }
    for job in job_status_list {
        let list = match job.state {
            JobPhase::Pending => &mut *pending_jobs,
            JobPhase::Running | JobPhase::Completing | JobPhase::Terminating => &mut *running_jobs,
            JobPhase::Failed => &mut *failed_jobs,
            JobPhase::Completed => &mut *completed_jobs,
            JobPhase::Terminated => &mut *terminated_jobs,
            JobPhase::Restarting | JobPhase::Aborting | JobPhase::Aborted => &mut *unknown_jobs,
        };
        list.push(job.name.clone());
        if is_large && job.state.is_final() {
            job.running_histories.clear();
            conditions.remove(&job.name);
        }
    }
}
