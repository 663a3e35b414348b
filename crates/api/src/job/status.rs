//! The status that the owner farm writes: the value of `rcfarm/job_status/<ns>/<name>`. Pure.
//!
//! It holds Volcano's phase and counters, Kubeflow's conditions and replica statuses, and the owner's memory: attempts,
//! handled events and delayed actions. Each transaction of the owner replaces the status by CAS and increments
//! `revision`.

mod conditions;
mod failures;
mod memory;
#[cfg(test)]
mod tests;

pub use conditions::{JobCondition, JobConditionType, end_condition, holds, set_condition, shown};
pub use failures::{MOST_FAILURES, MemberFailure};
pub use memory::{Slots, TaskMemory};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::array::{ArrayProgress, ArraySpec};
use super::spec::{JobUid, PolicyEvent, Slot};
use crate::Index;
use crate::Stored;
use crate::Timestamp;
use crate::carried::{Carried, keep_most};
use crate::command::CommandAction;
use crate::ids::{FarmName, NodeName};
use crate::job::phase::JobPhase;
use crate::manifest::command_line::cut;
use crate::text::displays_as_variant;

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
    /// Hash, in hexadecimal, of the fields that must not change, but for what members request while nothing is admitted.
    #[serde(rename = "shape")]
    pub immutable_hash: String,
    /// The same without what members request. Empty if an older version wrote it.
    #[serde(rename = "shapeWithoutRequests", skip_serializing_if = "String::is_empty")]
    pub requestless_hash: String,
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
    /// Of an array: what has become of its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayProgress>,
    /// No member is started before, after a failure of the whole job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Delayed actions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delayed: Vec<Delayed>,
    /// Last failures of members, the newest last. They stay when the members' pods are gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<MemberFailure>,
    /// Members whose last nodes went down soon after they were given them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<CarriedMember>,
    /// The records with the addresses of its members, `rcfarm/peers/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<PublishedPeers>,
    /// Fingerprint of the public key with which its members reach each other; the pair stands in `rcfarm/job_keys/`.
    /// [`WITHOUT_KEYS`]: they have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_key: Option<String>,
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
    /// The server of its type has not answered as it should; the message says why.
    HookFailed,
    /// A field was changed that must not change.
    ShapeChanged,
    /// Repeated failures; see `lastError` and `quarantinedUntil`.
    Quarantined,
    /// Its record suspends it.
    Suspended,
    /// Its group waits for the queue.
    WaitingForAdmission,
    /// It needs ssh keys, and its farm has no key file to encrypt them with.
    SshKeysRefused,
    /// Members wait for other tasks.
    WaitingForDependency,
    /// Members wait until those of an older attempt are gone.
    WaitingForOldMembers,
    /// Members wait for the end of the pause after a failure.
    RestartDelayed,
    /// A member is set aside: several nodes in a row went down soon after they were given it.
    NodesLost,
    /// On a member's node there is a pod of the same id that is not this job's.
    PlaceTaken,
    /// Some of the members that the job needs find no node: none of them starts.
    MembersUnplaced,
    /// Its replicas are 0.
    NoMembers,
    /// Members are being started.
    Starting,
    /// Enough members run.
    EnoughRunning,
    /// Another group takes the room of its members: they are stopped, and wait in the queue.
    Evicted,
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

displays_as_variant!(JobReason);

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

/// A member whose last nodes went down soon after they were given it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedMember {
    /// Its task and index.
    #[serde(flatten)]
    pub slot: Slot,
    /// Its nodes, and from when it may start again.
    #[serde(flatten)]
    pub carried: Carried,
}

/// What the records of the members' addresses say, and where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedPeers {
    /// Hash of the addresses, in hexadecimal.
    pub hash: String,
    /// Nodes that have a record.
    pub nodes: BTreeSet<NodeName>,
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

/// Limit of a status, in bytes. A transaction holds it beside the manifest of a pod and an audit record.
pub const LARGEST_STATUS: usize = 256 * 1024;
/// [`JobStatus::ssh_key`] of a job whose members were started by a version that makes no keys.
pub const WITHOUT_KEYS: &str = "none";
/// Limit of delayed actions. Further causes wait until one was carried out or dropped.
pub const MOST_DELAYED: usize = 100;
/// Longer messages are cut, in bytes.
const LONGEST_MESSAGE: usize = 2 * 1024;

/// Upper bound of the bytes of a status whose tasks have names of these lengths, and these numbers of members; and of its
/// array, if it is one. It holds after [`JobStatus::keep_small`], for up to 1,000 different attempts, by task, of up to
/// 99,999 each.
#[must_use]
pub fn largest_status(
    tasks: impl Iterator<Item = (usize, u32)>,
    array: Option<&ArraySpec>,
) -> usize {
    let task = |(name, members): (usize, u32)| {
        let members = members as usize;
        let set = (3 * members + 8).min((members / 4 + 8).max(264));
        let by_member = match members {
            0..=64 => 24 * members,
            _ => 6 * members + 2 * set,
        };
        // Names and selectors stand in counters and memory.
        700 + 5 * name + 3 * set + by_member
    };
    // Each condition, the state and the errors have a message.
    let fixed = 12 * LONGEST_MESSAGE + 250 * MOST_DELAYED + 16 * 1_000;
    fixed + tasks.map(task).sum::<usize>() + array.map_or(0, ArrayProgress::largest)
}

impl JobStatus {
    /// Drops the failures, then the members' lost nodes, and merges the members' pauses into one if it is larger than
    /// [`LARGEST_STATUS`].
    pub fn keep_small(&mut self) {
        // Fewer are surely small; encoding takes time.
        const FEW: usize = 1_000;
        if !self.failures.is_empty() && self.encode().len() > LARGEST_STATUS {
            self.failures.clear();
        }
        if !self.carried.is_empty() && self.encode().len() > LARGEST_STATUS {
            self.carried.clear();
        }
        let entries: usize = self.tasks.values().map(TaskMemory::entries).sum();
        if entries > FEW && self.encode().len() > LARGEST_STATUS {
            let latest = self.tasks.values_mut().filter_map(TaskMemory::merge_pauses).max();
            self.not_before = self.not_before.max(latest);
        }
    }

    /// Forgets members and delayed actions, once the job is being deleted.
    pub fn forget_members(&mut self) {
        self.tasks.clear();
        self.delayed.clear();
        self.failures.clear();
        self.carried.clear();
    }

    /// Notes that a member was lost because its node went down: it may have to wait until it starts again.
    pub fn note_carried(&mut self, slot: &Slot, node: &NodeName, now: Timestamp) {
        let before = self.carried.iter().position(|member| member.slot == *slot);
        let before = before.map(|at| self.carried.swap_remove(at));
        let carried = Carried::from_node(before.as_ref().map(|member| &member.carried), node, now);
        self.carried.retain(|member| member.carried.is_recent(now));
        self.carried.push(CarriedMember { slot: slot.clone(), carried });
        keep_most(&mut self.carried, |member| &member.carried);
        self.carried.sort_by(|a, b| a.slot.cmp(&b.slot));
    }

    /// Members that are set aside at `now`.
    pub fn set_aside_members(&self, now: Timestamp) -> impl Iterator<Item = &CarriedMember> {
        let waits = move |member: &&CarriedMember| {
            member.carried.since > now && member.carried.is_recent(now)
        };
        self.carried.iter().filter(waits)
    }

    /// Whether a member is set aside at `now`.
    #[must_use]
    pub fn is_set_aside(&self, slot: &Slot, now: Timestamp) -> bool {
        self.set_aside_members(now).any(|member| member.slot == *slot)
    }

    /// Whether a member was ever given to a node.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.start_time.is_some()
            || self.version > 0
            || self.tasks.values().any(|memory| *memory != TaskMemory::default())
    }

    /// The owner's memory of a task.
    pub fn memory(&mut self, task: &str) -> &mut TaskMemory {
        self.tasks.entry(task.to_owned()).or_default()
    }

    /// Attempt of a member that runs, or starts next.
    #[must_use]
    pub fn attempt_of(&self, slot: &Slot) -> u32 {
        let memory = self.tasks.get(&slot.task);
        memory.and_then(|memory| memory.attempts.get(&slot.index)).copied().unwrap_or(0)
    }

    /// Of an array: the index of the task that an attempt of a member runs or has run, as far as it is known.
    #[must_use]
    pub fn array_index_of(&self, slot: &Slot, attempt: u32) -> Option<u32> {
        let progress = self.array.as_ref()?;
        if self.attempt_of(slot) == attempt {
            return progress.members.get(&slot.index).copied();
        }
        let is_it = |one: &&MemberFailure| (&one.slot, one.attempt) == (slot, attempt);
        self.failures.iter().find(is_it).and_then(|one| one.array_index)
    }

    /// Whether pods of members may still be created by transactions in flight.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.tasks.values().any(|memory| !memory.starting.is_empty())
    }

    /// Shows a temporary reason. [`JobStatus::recall`] restores the reason of the phase.
    pub fn say_meanwhile(&mut self, reason: JobReason, message: &str) {
        let JobState { reason: was, message: words, .. } = &mut self.state;
        let (was, words) = (
            std::mem::replace(was, reason.to_string()),
            std::mem::replace(words, cut(message, LONGEST_MESSAGE)),
        );
        self.set_aside.get_or_insert(PhaseNote { reason: was, message: words });
    }

    /// Whether a member's pod exists or is being created.
    #[must_use]
    pub fn has_started(&self, slot: &Slot) -> bool {
        self.tasks.get(&slot.task).is_some_and(|memory| memory.started.contains(slot.index))
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
        let (reason, message) = (reason.to_string(), cut(&message.into(), LONGEST_MESSAGE));
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
