//! What the owner of a job remembers of each task's members, in a form that stays small.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::job::by_index;
pub use crate::slots::Slots;

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
    /// Members whose pods were lost, until `PodEvicted` is answered: a command may have come first.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub evicted: Slots,
    /// Whether its completion was handled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// Restarts of each member for any reason, by index.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u32, u32>,
    /// Restarts of members after failures, in total.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Restarts of each member after failures, by index: the pauses grow with them.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<u32, u32>,
    /// Earliest start of members, by index.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub not_before: BTreeMap<u32, Timestamp>,
}

impl TaskMemory {
    /// Number of entries of the maps by member.
    pub(super) fn entries(&self) -> usize {
        self.attempts.len() + self.failed.len() + self.not_before.len()
    }

    /// Makes it smaller: members that have failed pause after the next failure as the one that failed most often.
    /// Returns when the last of those that pause now may start.
    pub(super) fn merge_pauses(&mut self) -> Option<Timestamp> {
        let most = self.failed.values().max().copied();
        self.failed.values_mut().for_each(|n| *n = most.unwrap_or(*n));
        std::mem::take(&mut self.not_before).into_values().max()
    }

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
