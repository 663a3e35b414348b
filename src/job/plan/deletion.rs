//! Deletion of jobs: on request, or when their TTL has expired. Pure.

use std::time::Duration;

use super::{GroupStep, JobObserved, JobPlan};
use crate::job::members::MemberRemoveReason;
use rcfarm_api::Timestamp;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobReason;

/// Whether to delete the record: marked as deleting, or its TTL has expired.
pub(super) fn is_over(seen: &JobObserved<'_>, plan: &mut JobPlan) -> bool {
    if seen.job.deleting {
        return true;
    }
    let Some(ttl) = seen.job.ttl else { return false };
    let status = &plan.status;
    let since = match status.state.phase {
        phase if phase.is_final() => status.completion_time,
        // A suspended job never expires; an aborted one expires like a finished one.
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

/// Time at which a job that ended at `since` is deleted (`kubeflow.md` §1.6).
pub(super) fn expiry(since: Timestamp, ttl: Duration) -> Timestamp {
    since.checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// Deletes pods, then the group, then the record.
pub(super) fn finalize(seen: &JobObserved<'_>, mut plan: JobPlan) -> JobPlan {
    plan.remove = seen.pods.iter().map(|pod| (pod.clone(), MemberRemoveReason::Deleted)).collect();
    let nothing_left = seen.pods.is_empty()
        && seen.orphans + seen.unlabelled == 0
        && !seen.older
        && seen.leaving.is_empty();
    plan.is_finalizing = true;
    plan.collect_orphans |= seen.unlabelled > 0;
    plan.remove.truncate(seen.room);
    plan.group = GroupStep::Leave;
    if !seen.may_remove {
        plan.remove.clear();
        plan.collect_orphans = false;
        return plan;
    }
    plan.status.state.reason = JobReason::Deleting.to_string();
    // Whatever it holds, it fits into a transaction from here on.
    plan.status.forget_members();
    if nothing_left {
        plan.group = GroupStep::Delete;
        // Late commands are deleted with the job, so that a new job of its name does not execute them.
        plan.finished = !seen.group.exists && seen.commands.len() <= 1;
        plan.consume = seen.commands.first().cloned();
    }
    plan
}
