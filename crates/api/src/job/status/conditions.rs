//! Kubeflow's conditions of a job.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// One of Kubeflow's conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: JobConditionType,
    /// Whether it holds. Stored as a boolean, so that older farms can read it; text is read, too.
    #[serde(deserialize_with = "is_true")]
    pub status: bool,
    /// Reason, as a fixed token: the job's kind and a word, as in `TFJobRunning`.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When it was last written.
    pub last_update_time: Timestamp,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobConditionType {
    /// The job exists.
    Created,
    /// Members run.
    Running,
    /// Members are being restarted.
    Restarting,
    /// It is suspended and can be resumed.
    Suspended,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
}

/// A boolean, or Kubeflow's `"True"`, `"False"` or `"Unknown"`.
fn is_true<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Status {
        Bool(bool),
        Word(Word),
    }
    #[derive(Deserialize)]
    enum Word {
        True,
        False,
        Unknown,
    }
    Ok(matches!(Status::deserialize(from)?, Status::Bool(true) | Status::Word(Word::True)))
}

/// Conditions as Kubeflow shows them: `status` is `"True"` or `"False"`.
#[must_use]
pub fn shown(conditions: &[JobCondition]) -> Vec<serde_json::Value> {
    let one = |condition: &JobCondition| {
        let mut shown = serde_json::to_value(condition).unwrap_or_default();
        shown["status"] = if condition.status { "True".into() } else { "False".into() };
        shown
    };
    conditions.iter().map(one).collect()
}

/// Whether a condition of the type holds.
pub fn holds(conditions: &[JobCondition], kind: JobConditionType) -> bool {
    conditions.iter().any(|condition| condition.kind == kind && condition.status)
}

/// Sets a condition by Kubeflow's rules (`kubeflow.md` §2.1), without its defects (D9): after Succeeded or Failed
/// nothing changes any more, other conditions end at that time, and a changed message is kept.
pub fn set_condition(
    conditions: &mut Vec<JobCondition>,
    kind: JobConditionType,
    reason: String,
    message: String,
    now: Timestamp,
) {
    use JobConditionType as C;
    if holds(conditions, C::Succeeded) || holds(conditions, C::Failed) {
        return;
    }
    let mut since = now;
    if let Some(old) = conditions.iter_mut().find(|c| c.kind == kind && c.status) {
        if old.reason == reason {
            if old.message != message {
                (old.message, old.last_update_time) = (message, now);
            }
            return;
        }
        since = old.last_transition_time;
    }
    conditions.retain(|c| c.kind != kind);
    match kind {
        C::Running => conditions.retain(|c| c.kind != C::Restarting),
        C::Restarting => conditions.retain(|c| c.kind != C::Running),
        _ => {}
    }
    let ends: &[C] = match kind {
        C::Succeeded | C::Failed => &[C::Running, C::Restarting, C::Suspended],
        C::Suspended => &[C::Running, C::Restarting],
        _ => &[],
    };
    for condition in conditions.iter_mut().filter(|c| c.status && ends.contains(&c.kind)) {
        (condition.status, condition.last_transition_time) = (false, now);
        condition.last_update_time = now;
        if kind == C::Suspended {
            condition.reason.clone_from(&reason);
        }
    }
    conditions.push(JobCondition {
        kind,
        status: true,
        reason,
        message,
        last_update_time: now,
        last_transition_time: since,
    });
}

/// Sets a condition that holds to false, with a reason.
pub fn end_condition(
    conditions: &mut [JobCondition],
    kind: JobConditionType,
    reason: String,
    now: Timestamp,
) {
    if let Some(condition) = conditions.iter_mut().find(|c| c.kind == kind && c.status) {
        (condition.status, condition.reason) = (false, reason);
        (condition.last_update_time, condition.last_transition_time) = (now, now);
    }
}
