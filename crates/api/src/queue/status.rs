//! The status that the scheduler's owner writes: the value of `rcfarm/queue_status/<name>`.
//!
//! Counters and amounts change in the transaction that changes the groups they count, so at every index they equal a
//! recount of the PodGroup statuses.

use serde::{Deserialize, Serialize};

use crate::pod_group::spec::GroupId;
use crate::pod_group::status::{PodGroupPhase, PodGroupReason};
use crate::text::displays_as_variant;
use crate::{Index, ResourceList, Stored, Timestamp};

/// Number of waiting groups that are listed.
pub const WAITING_LISTED: usize = 20;

/// Actual state of a queue (`volcano.md` §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum QueueState {
    /// It admits groups.
    Open,
    /// It admits nothing, and no admitted group is left.
    Closed,
    /// It admits nothing, and admitted groups have not ended yet.
    Closing,
    /// Its record is not valid: nothing is admitted.
    Unknown,
}

impl QueueState {
    /// All of them.
    pub const ALL: [QueueState; 4] =
        [QueueState::Open, QueueState::Closed, QueueState::Closing, QueueState::Unknown];
}

displays_as_variant!(QueueState);

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// Actual state; missing until the owner has written it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<QueueState>,
    /// Why the state differs from the desired one, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When `state` last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// ModifyIndex of the queue's record that this status is about.
    pub observed_index: Index,
    /// Incremented by every transaction.
    pub revision: u64,
    /// Its groups by phase.
    #[serde(flatten)]
    pub groups: Counters,
    /// Charge of its admitted groups, without those of the queues below it.
    pub allocated: ResourceList,
    /// The first waiting groups, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Fields of the record without effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// A group that waits, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Namespace and name of the PodGroup.
    pub group: GroupId,
    /// Position in the queue, from 1.
    pub position: usize,
    /// Why it waits.
    pub reason: PodGroupReason,
}

/// Groups by phase (`volcano.md` §1.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counters {
    pub pending: u64,
    pub inqueue: u64,
    pub running: u64,
    pub unknown: u64,
    pub completed: u64,
}

impl Counters {
    fn of(&mut self, phase: PodGroupPhase) -> &mut u64 {
        match phase {
            PodGroupPhase::Pending => &mut self.pending,
            PodGroupPhase::Inqueue => &mut self.inqueue,
            PodGroupPhase::Running => &mut self.running,
            PodGroupPhase::Unknown => &mut self.unknown,
            PodGroupPhase::Completed => &mut self.completed,
        }
    }

    /// Adds a group in this phase.
    pub fn enter(&mut self, phase: PodGroupPhase) {
        *self.of(phase) += 1;
    }

    /// Removes a group in this phase.
    pub fn leave(&mut self, phase: PodGroupPhase) {
        let count = self.of(phase);
        *count = count.saturating_sub(1);
    }

    /// Counts all groups.
    pub fn recount(phases: impl IntoIterator<Item = PodGroupPhase>) -> Counters {
        let mut counters = Counters::default();
        phases.into_iter().for_each(|phase| counters.enter(phase));
        counters
    }
}

impl Stored for QueueStatus {}

impl QueueStatus {
    /// Sets the state. Its time changes only with the state.
    pub fn set_state(&mut self, state: QueueState, message: String, now: Timestamp) {
        if self.state != Some(state) {
            self.last_transition_time = Some(now);
        }
        self.state = Some(state);
        self.message = message;
    }
}
