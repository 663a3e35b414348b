//! Reason and message of a phase that begins. Pure.

use std::collections::BTreeMap;

use super::frameworks::FrameworkOutcome;
use super::machine::JobRequest;
use super::members::MemberPod;
use super::plan::{JobObserved, JobPlan};
use super::triggers::{self, Trigger};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::{JobReason, PodPhase};

/// Failed members that a message names.
const FAILED_NAMED: usize = 3;

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

/// How the first of the failed members ended, each after a semicolon.
pub(super) fn failed_members(members: &BTreeMap<Slot, &MemberPod>) -> String {
    let failed = || members.iter().filter(|(_, pod)| pod.phase == PodPhase::Failed);
    let named = failed().take(FAILED_NAMED);
    let mut text: String =
        named.map(|(slot, pod)| format!("; {}", triggers::ending(slot, pod))).collect();
    let more = failed().count().saturating_sub(FAILED_NAMED);
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    text
}
