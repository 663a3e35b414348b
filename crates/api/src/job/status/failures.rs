//! Last failures of a job's members: they are still known when the members' pods are gone.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::JobStatus;
use crate::Timestamp;
use crate::ids::NodeName;
use crate::job::spec::Slot;
use crate::manifest::command_line::cut;
use crate::node::status::{ExitReason, LONGEST_OUTPUT};

/// Limit of failures in a status. The oldest are dropped.
pub const MOST_FAILURES: usize = 16;
/// Limit of the bytes of all outputs together. The oldest are dropped.
const MOST_OUTPUT: usize = 16 * 1024;
/// Longer messages are cut, in bytes.
const LONGEST_MESSAGE: usize = 512;

/// The last failure of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberFailure {
    /// The member.
    #[serde(flatten)]
    pub slot: Slot,
    /// Its node.
    pub node: NodeName,
    /// Attempt of the whole job.
    pub version: u64,
    /// Attempt of the member.
    pub attempt: u32,
    /// Of an array: the index of the task that failed. The member may run another one by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// When it ended, by the node's clock.
    pub time: Timestamp,
    /// Exit code; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What else is known of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExitReason>,
    /// Message of the node's agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The end of its output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
}

impl std::fmt::Display for MemberFailure {
    /// Text without the output, such as `worker-0 on n1: exit code 3`, or `t-0 (index 17) on n1: exit code 3`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.slot)?;
        if let Some(index) = self.array_index {
            write!(f, " (index {index})")?;
        }
        write!(f, " on {}: ", self.node)?;
        match (self.exit_code, &self.reason) {
            (Some(code), Some(reason)) => write!(f, "exit code {code}, {reason}")?,
            (Some(code), None) => write!(f, "exit code {code}")?,
            (None, Some(reason)) => write!(f, "{reason}")?,
            (None, None) => f.write_str("its exit code is unknown")?,
        }
        match self.message.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.message),
        }
    }
}

impl JobStatus {
    /// Adds failures. The list keeps that of the latest attempt of each member, of an array of each index that it ran,
    /// and of all members the latest [`MOST_FAILURES`]. Adding the same ones again changes nothing.
    pub fn note_failures(&mut self, new: impl IntoIterator<Item = MemberFailure>) {
        let mut changed = false;
        for mut failure in new {
            let of_attempt = |known: &MemberFailure| {
                let attempt = |of: &MemberFailure| (of.version, of.attempt);
                known.slot == failure.slot && attempt(known) == attempt(&failure)
            };
            let of_task = |known: &MemberFailure| {
                known.slot == failure.slot && known.array_index == failure.array_index
            };
            let known = self.failures.iter().position(of_attempt);
            let known = known.or_else(|| self.failures.iter().position(of_task));
            // Clocks of nodes differ, so times are compared within an attempt only.
            let order = |of: &MemberFailure| (of.version, of.attempt, of.time);
            if known.is_some_and(|at| order(&self.failures[at]) >= order(&failure)) {
                continue;
            }
            let before = known.map(|at| self.failures.remove(at));
            // Once the member has another task, that of an older attempt is not known any more.
            failure.array_index = failure.array_index.or(before.and_then(|one| one.array_index));
            failure.message = printable(&cut(&failure.message, LONGEST_MESSAGE));
            failure.output = printable(&cut(&failure.output, LONGEST_OUTPUT));
            self.failures.push(failure);
            changed = true;
        }
        if !changed {
            return;
        }
        self.failures.sort_by(|a, b| (a.time, &a.slot).cmp(&(b.time, &b.slot)));
        let surplus = self.failures.len().saturating_sub(MOST_FAILURES);
        self.failures.drain(..surplus);
        let mut bytes = 0;
        self.failures.sort_by_key(|failure| Reverse(failure.time));
        for failure in &mut self.failures {
            bytes += failure.output.len();
            if bytes > MOST_OUTPUT {
                failure.output.clear();
            }
        }
        self.failures.sort_by(|a, b| (a.time, &a.slot).cmp(&(b.time, &b.slot)));
    }
}

/// Replaces control characters, which take six bytes each in JSON.
fn printable(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_plain(c) { c } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stored;

    fn failure(index: u32, second: i64, output: &str) -> MemberFailure {
        MemberFailure {
            slot: Slot::new("worker", index),
            node: "n1".parse().unwrap(),
            version: 0,
            attempt: 0,
            array_index: None,
            time: Timestamp::from_second(second).unwrap(),
            exit_code: Some(3),
            reason: None,
            message: "\u{1}".repeat(10_000),
            output: output.to_owned(),
        }
    }

    #[test]
    fn failures_are_bounded_and_adding_them_again_changes_nothing() {
        let output = "\"\u{1}".repeat(2_048);
        let all: Vec<_> = (0..1_000).map(|n| failure(n, i64::from(n) % 7, &output)).collect();
        let mut status = JobStatus::default();
        status.note_failures(all.clone());
        let once = status.clone();
        status.note_failures(all.into_iter().rev());
        assert_eq!(status, once);
        assert_eq!(status.failures.len(), MOST_FAILURES);
        assert!(status.failures.iter().all(|failure| failure.time.as_second() == 6));
        let bytes = status.encode().len();
        assert!(bytes < 3 * MOST_OUTPUT + MOST_FAILURES * 2 * LONGEST_MESSAGE, "{bytes}");
        status.note_failures([failure(999, 3, "older")]);
        assert_eq!(status, once);
        status.note_failures([failure(999, 9, "newer")]);
        assert_eq!(status.failures.last().unwrap().output, "newer");
        let next = MemberFailure { attempt: 1, ..failure(999, 8, "on a node whose clock is slow") };
        status.note_failures([next, failure(999, 10, "of the attempt before")]);
        let of_member = status.failures.iter().filter(|one| one.slot.index == 999);
        assert_eq!(of_member.map(|one| one.attempt).collect::<Vec<_>>(), [1]);
        assert_eq!(JobStatus::decode(&status.encode()).unwrap(), status);
    }
    #[test]
    fn each_index_of_an_array_keeps_its_failure() {
        let mut status = JobStatus::default();
        let of = |attempt, array_index, second| MemberFailure {
            attempt,
            array_index,
            ..failure(0, second, "")
        };
        status.note_failures([of(0, Some(3), 1)]);
        status.note_failures([of(1, Some(4), 2)]);
        status.note_failures([of(2, Some(4), 3)]);
        // Its member has another task by now.
        status.note_failures([of(0, None, 1), of(2, None, 4)]);
        let kept: Vec<_> =
            status.failures.iter().map(|one| (one.attempt, one.array_index)).collect();
        assert_eq!(kept, [(0, Some(3)), (2, Some(4))]);
        let text = status.failures[0].to_string();
        assert!(text.starts_with("worker-0 (index 3) on n1: exit code 3"), "{text}");
        assert_eq!(JobStatus::decode(&status.encode()).unwrap(), status);
    }
}
