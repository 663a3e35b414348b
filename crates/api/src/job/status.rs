//! The status that the owner farm writes: the value of `rcfarm/job_status/<ns>/<name>`. Pure.
//!
//! It holds Volcano's phase and counters, Kubeflow's conditions and replica statuses, and the owner's memory: attempts,
//! handled events and delayed actions. Each transaction of the owner replaces the status by CAS and increments `revision`.

mod conditions;
#[cfg(test)]
mod tests;

pub use conditions::{JobCondition, JobConditionType, end_condition, holds, set_condition};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::spec::{JobUid, PolicyEvent, Slot};
use crate::Index;
use crate::Stored;
use crate::Timestamp;
use crate::command::CommandAction;
use crate::ids::FarmName;
use crate::job::phase::JobPhase;

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Uid of the job.
    pub uid: JobUid,
    /// ModifyIndex of the record that this status is about.
    pub observed_index: Index,
    /// Incremented by every transaction of an owner.
    pub revision: u64,
    /// Hash, in hexadecimal, of the fields that must not change once the job has begun.
    #[serde(rename = "shape")]
    pub immutable_hash: String,
    /// Its phase.
    pub state: JobState,
    /// Every phase so far, with the time when it was last entered.
    pub phases: Vec<PhaseRecord>,
    /// Kubeflow's conditions.
    pub conditions: Vec<JobCondition>,
    /// Kubeflow's counters, by task.
    pub replica_statuses: BTreeMap<String, ReplicaStatus>,
    /// Volcano's counters, by task and by phase of pods.
    pub task_status_count: BTreeMap<String, BTreeMap<PodPhase, u32>>,
    /// `minAvailable` of the record.
    pub min_available: u32,
    /// Members by phase.
    #[serde(flatten)]
    pub members: JobMembers,
    /// Incremented by every restart of the whole job. Members of an older version belong to an older attempt.
    pub version: u64,
    /// Restarts that policies caused.
    pub retry_count: u32,
    /// Round of the PodGroup: incremented when all members have ended and some are to be started again.
    pub round: u64,
    /// Whether the `Unknown` event of its group was handled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub group_unknown: bool,
    /// It was stopped because the record suspends it. It resumes when the record no longer does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Reason and message of the phase, while `state` shows a temporary one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<PhaseNote>,
    /// When it first ran; set again after a suspension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Timestamp>,
    /// When an owner last wrote this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_reconcile_time: Option<Timestamp>,
    /// Seconds from its creation to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_duration_seconds: Option<i64>,
    /// When this status was first written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// The owner's memory of each task.
    pub tasks: BTreeMap<String, TaskMemory>,
    /// No member is started before, after a failure of the whole job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Delayed actions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delayed: Vec<Delayed>,
    /// Who owns the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<JobOwner>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The record is not reconciled until then, because it kept failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Phase of a job, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobState {
    /// The phase.
    pub phase: JobPhase,
    /// Reason, as a fixed token: [`JobReason`], or that of its PodGroup.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When the phase last changed.
    pub last_transition_time: Timestamp,
}

impl Default for JobState {
    fn default() -> Self {
        JobState {
            phase: JobPhase::Pending,
            reason: String::new(),
            message: String::new(),
            last_transition_time: Timestamp::UNIX_EPOCH,
        }
    }
}

/// Reason of a phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseNote {
    /// Fixed token.
    pub reason: String,
    /// Text for people.
    pub message: String,
}

/// A phase of the job's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseRecord {
    /// The phase.
    pub status: JobPhase,
    /// When it was last entered.
    pub last_transition_time: Timestamp,
}

/// Reason of a job's state. Fixed tokens: scripts and alerts match them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobReason {
    /// The record breaks a rule; the message names the fields.
    InvalidRecord,
    /// A field was changed that must not change once a job has begun.
    ShapeChanged,
    /// Repeated failures; see `lastError` and `quarantinedUntil`.
    Quarantined,
    /// Its record suspends it.
    Suspended,
    /// Its group waits for the queue.
    WaitingForAdmission,
    /// Members wait for other tasks.
    WaitingForDependency,
    /// Members wait until those of an older attempt are gone.
    WaitingForOldMembers,
    /// Members wait for the end of the pause after a failure.
    RestartDelayed,
    /// On a member's node there is a pod of the same id that is not this job's.
    PlaceTaken,
    /// Members are being started.
    Starting,
    /// Enough members run.
    EnoughRunning,
    /// A command asks for it.
    CommandIssued,
    /// A policy asks for it.
    PolicyAction,
    /// Enough members succeeded.
    EnoughSucceeded,
    /// The member that decides about success succeeded.
    LeaderSucceeded,
    /// Fewer members than `minSuccess` succeeded.
    MinSuccessMissed,
    /// Fewer members than `minAvailable` succeeded.
    MinAvailableMissed,
    /// Fewer members of a task than its `minAvailable` succeeded.
    TaskMinAvailableMissed,
    /// A member failed and is not retried.
    MemberFailed,
    /// Policies asked for more restarts than `maxRetry`.
    MaxRetryReached,
    /// Members were restarted as often as `backoffLimit`.
    BackoffLimitExceeded,
    /// It ran longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// All its members were stopped.
    Stopped,
    /// It is being deleted.
    Deleting,
}

impl std::fmt::Display for JobReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// Phase of a member, in Kubernetes' words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodPhase {
    /// It is not started yet.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// All its processes exited with code 0.
    Succeeded,
    /// It ended otherwise.
    Failed,
    /// Its node is down.
    Unknown,
}

impl PodPhase {
    /// All five.
    pub const ALL: [PodPhase; 5] = [
        PodPhase::Pending,
        PodPhase::Running,
        PodPhase::Succeeded,
        PodPhase::Failed,
        PodPhase::Unknown,
    ];

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, PodPhase::Succeeded | PodPhase::Failed)
    }
}

/// Members by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobMembers {
    /// Not started yet.
    pub pending: u32,
    /// Running.
    pub running: u32,
    /// Succeeded.
    pub succeeded: u32,
    /// Failed.
    pub failed: u32,
    /// Being removed.
    pub terminating: u32,
    /// On nodes that are down.
    pub unknown: u32,
}

impl JobMembers {
    /// Whether any has not ended.
    #[must_use]
    pub fn alive(&self) -> bool {
        self.pending + self.running + self.terminating + self.unknown > 0
    }

    /// Adds a member.
    pub fn count(&mut self, phase: PodPhase) {
        match phase {
            PodPhase::Pending => self.pending += 1,
            PodPhase::Running => self.running += 1,
            PodPhase::Succeeded => self.succeeded += 1,
            PodPhase::Failed => self.failed += 1,
            PodPhase::Unknown => self.unknown += 1,
        }
    }
}

/// Kubeflow's counters of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaStatus {
    /// Running.
    pub active: u32,
    /// Succeeded.
    pub succeeded: u32,
    /// Failed, and running ones that are being removed.
    pub failed: u32,
    /// Selector of these pods.
    pub selector: String,
}

/// The owner's memory of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskMemory {
    /// Members that were started in this attempt.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub started: Slots,
    /// Members of `started` whose pods are created by later transactions. Until the status is written again, a missing
    /// pod does not mean that it was lost.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub starting: Slots,
    /// Members whose end was handled.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub handled: Slots,
    /// Whether its completion was handled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// Restarts of each member for any reason, by index.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u32, u32>,
    /// Restarts of members after failures, in total.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Restarts of each member after failures, by index: the pauses grow with them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<u32, u32>,
    /// Earliest start of members, by index.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub not_before: BTreeMap<u32, Timestamp>,
}

impl TaskMemory {
    /// Notes that a member's pod is gone: a new pod is another attempt.
    pub fn forget(&mut self, index: u32) {
        self.started.remove(index);
        self.handled.remove(index);
        *self.attempts.entry(index).or_default() += 1;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A set of numbers, stored as ranges: `0-99,104`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slots(std::collections::BTreeSet<u32>);

impl Slots {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is there.
    #[must_use]
    pub fn contains(&self, n: u32) -> bool {
        self.0.contains(&n)
    }

    /// Adds one; `false`: it was there.
    pub fn insert(&mut self, n: u32) -> bool {
        self.0.insert(n)
    }

    /// Removes one; `false`: it was not there.
    pub fn remove(&mut self, n: u32) -> bool {
        self.0.remove(&n)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl From<Slots> for String {
    fn from(slots: Slots) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for n in slots.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == n => *last = n,
                _ => ranges.push((n, n)),
            }
        }
        let text = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.iter().map(text).collect::<Vec<_>>().join(",")
    }
}

impl TryFrom<String> for Slots {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let mut slots = Slots::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number =
                |text: &str| text.parse::<u32>().map_err(|_| format!("{part:?} is no range"));
            let (first, last) = (number(first)?, number(last)?);
            // A range written by hand must not exhaust the memory.
            if last.saturating_sub(first) > 1_000_000 {
                return Err(format!("{part:?} is too long a range"));
            }
            slots.0.extend(first..=last);
        }
        Ok(slots)
    }
}

/// A delayed action. It is dropped when its cause goes away or another attempt begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delayed {
    /// The action.
    pub action: CommandAction,
    /// Event that triggered the policy.
    pub event: PolicyEvent,
    /// When it is due.
    pub due: Timestamp,
    /// The member concerned.
    pub slot: Option<Slot>,
    /// The attempt concerned.
    pub version: u64,
}

/// Who owns the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOwner {
    /// The farm.
    pub farm: FarmName,
    /// Since when.
    pub since: Timestamp,
}

/// Records that a phase was entered: one entry per phase, the newest last (`volcano.md` F-J25).
pub fn note_phase(phases: &mut Vec<PhaseRecord>, phase: JobPhase, now: Timestamp) {
    phases.retain(|record| record.status != phase);
    phases.push(PhaseRecord { status: phase, last_transition_time: now });
}

impl Stored for JobStatus {}

impl JobStatus {
    /// The owner's memory of a task.
    pub fn memory(&mut self, task: &str) -> &mut TaskMemory {
        self.tasks.entry(task.to_owned()).or_default()
    }

    /// Whether pods of members may still be created by transactions in flight.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.tasks.values().any(|memory| !memory.starting.is_empty())
    }

    /// Shows a temporary reason. [`JobStatus::recall`] restores the reason of the phase.
    pub fn say_meanwhile(&mut self, reason: JobReason, message: &str) {
        let JobState { reason: was, message: words, .. } = &mut self.state;
        let (was, words) =
            (std::mem::replace(was, reason.to_string()), std::mem::replace(words, message.into()));
        self.set_aside.get_or_insert(PhaseNote { reason: was, message: words });
    }

    /// Restores the reason of the phase.
    pub fn recall(&mut self) {
        if let Some(PhaseNote { reason, message }) = self.set_aside.take() {
            (self.state.reason, self.state.message) = (reason, message);
        }
    }

    /// Enters a phase and sets its conditions. `kind` is the job's kind, for the conditions' reasons.
    pub fn enter(
        &mut self,
        phase: JobPhase,
        kind: &str,
        reason: impl ToString,
        message: impl Into<String>,
        now: Timestamp,
    ) {
        let before = self.state.phase;
        let (reason, message) = (reason.to_string(), message.into());
        if before != phase || self.phases.is_empty() {
            note_phase(&mut self.phases, phase, now);
            self.state.last_transition_time = now;
        }
        self.state.phase = phase;
        let mut set = |condition: JobConditionType, word: &str| {
            let reason = format!("{kind}{word}");
            set_condition(&mut self.conditions, condition, reason, message.clone(), now);
        };
        match phase {
            JobPhase::Pending | JobPhase::Completing | JobPhase::Terminating => {}
            JobPhase::Running => set(JobConditionType::Running, "Running"),
            JobPhase::Restarting if before == JobPhase::Aborted || before == JobPhase::Aborting => {
            }
            JobPhase::Restarting => set(JobConditionType::Restarting, "Restarting"),
            JobPhase::Aborting | JobPhase::Aborted => set(JobConditionType::Suspended, "Suspended"),
            JobPhase::Completed => set(JobConditionType::Succeeded, "Succeeded"),
            JobPhase::Terminated => set(JobConditionType::Failed, "Terminated"),
            JobPhase::Failed => set(JobConditionType::Failed, "Failed"),
        }
        if phase == JobPhase::Restarting {
            let reason = format!("{kind}Resumed");
            end_condition(&mut self.conditions, JobConditionType::Suspended, reason, now);
        }
        if phase.is_final() && self.completion_time.is_none() {
            self.completion_time = Some(now);
            let since = self.created.unwrap_or(now);
            self.running_duration_seconds = Some(now.duration_since(since).as_secs());
        }
        (self.state.reason, self.state.message) = (reason, message);
    }
}
