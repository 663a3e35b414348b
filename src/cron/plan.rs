//! What the owner of a CronJob does next. Pure.
//!
//! At most one action per plan, so that each transaction makes or deletes one job and an owner may die between any two.

use super::document::{Concurrency, CronSpec, job_name};
use rcfarm_api::cron::{CronReason, CronRun, CronStatus, RunState};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::{Index, Timestamp};

/// More missed runs than these are not counted; a warning is logged.
pub const MOST_MISSED: usize = 100;
/// No more jobs are made while so many are active: the status lists them.
pub const MOST_ACTIVE: usize = 200;

/// Input of a plan.
#[derive(Debug, Clone)]
pub struct CronObserved<'a> {
    pub id: &'a Namespaced,
    /// CreateIndex of the record.
    pub uid: Index,
    pub spec: &'a CronSpec,
    /// As stored; it may be that of an earlier CronJob of the name.
    pub status: &'a CronStatus,
    /// Its jobs as they are now. Those that are gone or being deleted are left out.
    pub runs: Vec<CronRun>,
    /// A job of the name of the run that is due.
    pub named: Option<NamedJob>,
    pub now: Timestamp,
}

/// A job that has the name of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedJob {
    /// Scheduled time of the run.
    pub at: Timestamp,
    /// Whether the CronJob made it: its status is older than the job, as after a restored snapshot.
    pub is_own: bool,
}

/// A transaction, and when to plan again.
#[derive(Debug, Clone, PartialEq)]
pub struct CronPlan {
    /// The status to write. The rest of it is the controller's.
    pub status: CronStatus,
    /// What else the transaction does.
    pub action: Option<CronAction>,
    /// When the next run is due.
    pub wake_at: Option<Timestamp>,
}

/// What a transaction does besides writing the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CronAction {
    /// Creates the job of a scheduled time.
    Create { name: ObjectName, at: Timestamp },
    /// Marks a job as being deleted.
    Delete { name: ObjectName, why: DeleteReason },
    /// Deletes record and status.
    Finish,
}

/// Why a job is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteReason {
    /// A run is due, and the policy is `Replace`.
    Replaced,
    /// More jobs have ended than are kept.
    HistoryLimit,
    /// The CronJob is being deleted.
    OwnerDeleted,
}

/// Plans the next transaction.
#[must_use]
pub fn plan(seen: &CronObserved<'_>) -> CronPlan {
    let mut status = begin(seen.uid, seen.status, &seen.runs);
    let spec = seen.spec;
    if spec.deleting {
        return remove_all(status);
    }
    let described = spec.schedule.describe();
    let considered = match status.considered.filter(|_| status.schedule == described) {
        Some(considered) => considered,
        None => {
            // Runs before the farm first saw the schedule are not made up for.
            status.schedule = described;
            status.considered = Some(seen.now);
            seen.now
        }
    };
    let mut action = None;
    if spec.suspend {
        say(&mut status, CronReason::Suspended, "");
    } else {
        match spec.schedule.latest(considered, seen.now) {
            Some(due) => action = run(seen, &mut status, considered, due),
            None if is_lasting(status.reason) => {}
            None => say(&mut status, CronReason::Scheduled, ""),
        }
    }
    if action.is_none() {
        action = trim_history(spec, &mut status);
    }
    let from = status.considered.map_or(seen.now, |considered| considered.max(seen.now));
    let wake_at = (!spec.suspend).then(|| spec.schedule.next(from)).flatten();
    CronPlan { status, action, wake_at }
}

/// The status with its jobs as they are.
fn begin(uid: Index, stored: &CronStatus, runs: &[CronRun]) -> CronStatus {
    if stored.uid != uid {
        return CronStatus { uid, revision: stored.revision, ..CronStatus::default() };
    }
    let mut status = stored.clone();
    status.jobs = runs.to_vec();
    let succeeded = status.jobs.iter().filter(|run| run.state == RunState::Succeeded);
    let last = succeeded.filter_map(|run| run.finished).max();
    status.last_successful_time = status.last_successful_time.max(last);
    status
}

/// Whether a reason stands until the next run: it says what became of the last one.
fn is_lasting(reason: CronReason) -> bool {
    matches!(
        reason,
        CronReason::MissedDeadline | CronReason::TooManyMissedTimes | CronReason::JobNameTaken
    )
}

fn say(status: &mut CronStatus, reason: CronReason, message: &str) {
    (status.reason, status.message) = (reason, message.to_owned());
}

/// A run is due: makes it, waits, or passes it over.
fn run(
    seen: &CronObserved<'_>,
    status: &mut CronStatus,
    considered: Timestamp,
    due: Timestamp,
) -> Option<CronAction> {
    let spec = seen.spec;
    let name = job_name(&seen.id.name, due);
    if let Some(deadline) = spec.starting_deadline
        && seen.now.duration_since(due).unsigned_abs() > deadline
    {
        let why = format!(
            "the run of {due} was passed over: startingDeadlineSeconds ({}) had passed",
            deadline.as_secs()
        );
        status.considered = Some(due);
        say(status, CronReason::MissedDeadline, &why);
        return None;
    }
    // An earlier owner's transaction may have been applied although the status is older.
    let is_made = seen.named.filter(|named| named.at == due);
    if is_made.is_some_and(|named| !named.is_own) {
        let why = format!("the run of {due} was passed over: there is another job {name}");
        status.considered = Some(due);
        say(status, CronReason::JobNameTaken, &why);
        return None;
    }
    let active: Vec<ObjectName> = status.active().map(|run| run.name.clone()).collect();
    let forbids = spec.concurrency == Concurrency::Forbid;
    if let Some(first) = active.first().filter(|_| is_made.is_none()) {
        if spec.concurrency == Concurrency::Replace {
            status.jobs.retain(|run| run.name != *first);
            let why = DeleteReason::Replaced;
            return Some(CronAction::Delete { name: first.clone(), why });
        }
        if forbids || active.len() >= MOST_ACTIVE {
            let reason = match forbids {
                true => CronReason::JobAlreadyActive,
                false => CronReason::TooManyActive,
            };
            let which = match active.len() {
                1 => format!("{first} is active"),
                more => format!("{more} jobs are active"),
            };
            say(status, reason, &format!("the run of {due} waits: {which}"));
            return None;
        }
    }
    // Runs whose starting deadline has passed do not count, as in Kubernetes.
    let in_time = |deadline| seen.now.checked_sub(deadline).ok();
    let since = spec.starting_deadline.and_then(in_time).map_or(considered, |t| t.max(considered));
    let missed = spec.schedule.between(since, due, MOST_MISSED + 1).count();
    if missed > MOST_MISSED {
        let why = format!(
            "more than {MOST_MISSED} runs were missed since {since}; only that of {due} was made: \
             set startingDeadlineSeconds, or look at the clocks"
        );
        say(status, CronReason::TooManyMissedTimes, &why);
    } else {
        say(status, CronReason::Scheduled, "");
    }
    status.considered = Some(due);
    status.last_schedule_time = Some(due);
    let state = RunState::Active;
    status.jobs.push(CronRun { name: name.clone(), scheduled: due, state, finished: None });
    is_made.is_none().then_some(CronAction::Create { name, at: due })
}

/// Deletes the oldest job that has ended if there are more than are kept.
fn trim_history(spec: &CronSpec, status: &mut CronStatus) -> Option<CronAction> {
    let limits =
        [(RunState::Succeeded, spec.successful_limit), (RunState::Failed, spec.failed_limit)];
    let surplus = limits.into_iter().find_map(|(state, limit)| {
        let ended = || status.jobs.iter().filter(|run| run.state == state);
        let oldest = ended().min_by_key(|run| (run.scheduled, run.name.clone()))?;
        (ended().count() > limit).then(|| oldest.name.clone())
    });
    let name = surplus?;
    status.jobs.retain(|run| run.name != name);
    Some(CronAction::Delete { name, why: DeleteReason::HistoryLimit })
}

/// Deletes a CronJob, whose record need not be valid.
#[must_use]
pub fn deletion(uid: Index, stored: &CronStatus, runs: &[CronRun]) -> CronPlan {
    remove_all(begin(uid, stored, runs))
}

/// Deletes the jobs one after the other, then record and status.
fn remove_all(mut status: CronStatus) -> CronPlan {
    say(&mut status, CronReason::Deleting, "");
    let action = match status.jobs.is_empty() {
        true => CronAction::Finish,
        false => {
            let name = status.jobs.remove(0).name;
            CronAction::Delete { name, why: DeleteReason::OwnerDeleted }
        }
    };
    CronPlan { status, action: Some(action), wake_at: None }
}

#[cfg(test)]
mod tests;
