//! Deletion of a flow's jobs, a few at a time.

use std::time::Duration;

use super::observe::{begin, bytes};
use super::{
    ACTION_BYTES, ActionLimits, FlowAction, FlowDeleteReason, FlowPlan, MOST_ACTIONS, ObservedJob,
    ObservedJobs,
};
use crate::flow::document::job_name;
use rcfarm_api::Index;
use rcfarm_api::flow::{FlowJob, FlowPhase, FlowReason, FlowStatus};
use rcfarm_api::ids::{Namespaced, ObjectName};

/// The jobs that are deleted next. The caller reads them.
#[must_use]
pub fn next_to_delete(flow: &ObjectName, status: &FlowStatus) -> Vec<ObjectName> {
    let left = status.job_status_list.iter().flat_map(|job| {
        (job.deleted_jobs..=job.retries).filter_map(|n| job_name(flow, &job.step, n).ok())
    });
    left.take(MOST_ACTIONS).collect()
}

/// Deletes a flow, whose record need not be valid: its jobs, then record and status.
#[must_use]
pub fn deletion(
    id: &Namespaced,
    uid: Index,
    stored: &FlowStatus,
    reads: (&ObservedJobs, ActionLimits),
) -> FlowPlan {
    let mut status = begin(uid, stored);
    status.state.phase = FlowPhase::Terminating;
    (status.reason, status.message) = (FlowReason::Deleting, String::new());
    let mut actions = delete_some(&id.name, &mut status, reads, FlowDeleteReason::OwnerDeleted);
    if actions.is_empty() && status.job_status_list.iter().all(FlowJob::is_deleted) {
        actions.push(FlowAction::Finish);
    }
    let (probes, waits_for) = Default::default();
    FlowPlan { status, actions, wake_after: Some(Duration::ZERO), probes, waits_for }
}

/// Deletes jobs that were read, as many as fit into a transaction. Those that are gone count as deleted.
pub(super) fn delete_some(
    flow: &ObjectName,
    status: &mut FlowStatus,
    (jobs, room): (&ObservedJobs, ActionLimits),
    why: FlowDeleteReason,
) -> Vec<FlowAction> {
    let mut actions = Vec::new();
    let mut used = bytes(status);
    for listed in &mut status.job_status_list {
        while !listed.is_deleted() {
            let Ok(name) = job_name(flow, &listed.step, listed.deleted_jobs) else { break };
            match jobs.get(&name) {
                None => return actions,
                Some(ObservedJob::Own(job)) if !job.is_deleting => {
                    // Its record is written again.
                    let Some(bytes) = job.bytes else { return actions };
                    used += bytes + ACTION_BYTES;
                    let is_full = actions.len() >= room.actions || used > room.bytes;
                    if is_full && !actions.is_empty() {
                        return actions;
                    }
                    actions.push(FlowAction::Delete { name, why });
                }
                Some(_) => {}
            }
            listed.deleted_jobs += 1;
        }
    }
    actions
}
