//! Reason and message of a phase that begins. Pure.

use std::collections::BTreeMap;

use super::triggers::{Trigger, failed_members};
use super::{JobObserved, JobPlan};
use crate::job::frameworks::FrameworkOutcome;
use crate::job::machine::JobRequest;
use crate::job::members::MemberPod;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::JobReason;

/// Reason and message of a phase that begins.
pub(super) fn cause(
    seen: &JobObserved<'_>,
    plan: &JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    trigger: &Trigger,
    outcome: &FrameworkOutcome,
    to: JobPhase,
) -> (String, String) {
    let before = &plan.status.state;
    let is_sync = trigger.ask == JobRequest::Sync;
    match to {
        // What began to stop the job is why it has stopped.
        JobPhase::Aborted if plan.status.suspended => {
            (JobReason::Suspended.to_string(), before.message.clone())
        }
        JobPhase::Aborted | JobPhase::Terminated => {
            (JobReason::Stopped.to_string(), before.message.clone())
        }
        JobPhase::Completed if before.phase == JobPhase::Completing => {
            (before.reason.clone(), before.message.clone())
        }
        JobPhase::Failed if trigger.ask != JobRequest::Fail => {
            let spent = !is_sync || before.phase == JobPhase::Restarting;
            let (reason, message) = match spent {
                true => {
                    let asked = if is_sync { &before.message } else { &trigger.message };
                    let retries = seen.job.max_retry;
                    let message = format!("{asked}, and {retries} retries were made");
                    (JobReason::MaxRetryReached, message)
                }
                false => (outcome.reason, outcome.message.clone() + &failed_members(members)),
            };
            (reason.to_string(), message)
        }
        _ if is_sync => (outcome.reason.to_string(), outcome.message.clone()),
        _ => (trigger.reason.to_string(), trigger.message.clone()),
    }
}
