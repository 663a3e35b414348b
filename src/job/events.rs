//! Audit records of jobs.

use super::plan::{Create, JobPlan};
use crate::farm::kind::ControllerContext;
use rcfarm_api::audit::{Actor, AuditCause, AuditRecord, DELETED, Details, JobStep};
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobUid, Slot};
use rcfarm_api::job::status::JobStatus;

/// Limit of pods listed in one record.
const LISTED: usize = 64;

/// Record of a transaction; `None` if it changed neither phase nor pods nor executed a command. `is_first`: the stored
/// status is that of an earlier job of the name, which the log names.
pub fn step(
    ctx: &ControllerContext,
    id: &Namespaced,
    uid: JobUid,
    (before, is_first): (JobPhase, bool),
    plan: &JobPlan,
    removed: &[(PodRef, Slot)],
    released: &[PodRef],
) -> Option<AuditRecord> {
    let status = &plan.status;
    let nothing = !is_first
        && before == status.state.phase
        && plan.create.is_empty()
        && removed.is_empty()
        && plan.adopt.is_empty()
        && released.is_empty()
        && plan.asked.is_none()
        && plan.consume.is_none()
        && !plan.finished
        && status.revision > 1;
    if nothing {
        return None;
    }
    let details = JobStep {
        job: id.clone(),
        uid: uid.0,
        actor: Actor::Farm,
        farm: Some(ctx.farm.clone()),
        asked: plan.asked.map(|(ask, _)| ask.to_string()),
        command: plan.consume.as_ref().map(|command| command.id),
        phase_before: before.to_string(),
        phase: match plan.finished {
            true => DELETED.to_owned(),
            false => status.state.phase.to_string(),
        },
        reason: status.state.reason.clone(),
        message: status.state.message.clone(),
        version: status.version,
        retry_count: status.retry_count,
        pods_added: created(&plan.create),
        pods_adopted: created(&plan.adopt),
        pods_released: released.iter().map(|at| format!("{}@{}", at.pod, at.node)).collect(),
        pods_removed: removed.iter().take(LISTED).map(|(at, slot)| pod(slot, &at.node)).collect(),
    };
    let record = AuditRecord::new(&Details::JobStep(details), ctx.clock.wall());
    Some(match &plan.consume {
        Some(command) => record.caused_by(AuditCause::external(Some(command.index))),
        None => record,
    })
}

/// Record of a transaction of a batched start.
pub fn batched_start(
    ctx: &ControllerContext,
    id: &Namespaced,
    status: &JobStatus,
    creates: &[Create],
) -> AuditRecord {
    let details = JobStep { pods_added: created(creates), ..unasked(ctx, id, status) };
    AuditRecord::new(&Details::JobStep(details), ctx.clock.wall())
}

/// Record of a step by the farm itself, without change of phase or pods.
pub(super) fn unasked(ctx: &ControllerContext, id: &Namespaced, status: &JobStatus) -> JobStep {
    JobStep {
        job: id.clone(),
        uid: status.uid.0,
        actor: Actor::Farm,
        farm: Some(ctx.farm.clone()),
        asked: None,
        command: None,
        phase_before: status.state.phase.to_string(),
        phase: status.state.phase.to_string(),
        reason: status.state.reason.clone(),
        message: status.state.message.clone(),
        version: status.version,
        retry_count: status.retry_count,
        pods_added: Vec::new(),
        pods_adopted: Vec::new(),
        pods_released: Vec::new(),
        pods_removed: Vec::new(),
    }
}

fn created(creates: &[Create]) -> Vec<String> {
    creates.iter().take(LISTED).map(|create| pod(&create.slot, &create.node)).collect()
}

fn pod(slot: &Slot, node: &NodeName) -> String {
    format!("{slot}@{node}")
}
