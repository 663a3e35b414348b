//! `status/pods/<pod id>/<node>`: status of a pod, written by its node's agent. Pure.
//!
//! The fields `process_status` and `status` are p2's (`p2.md` §1.5), the others ours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Health;
use crate::Index;
use crate::Stored;
use crate::Timestamp;
use crate::ids::RcId;
use crate::text::displays_as_variant;

/// Phase of a pod or of one of its processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodePodPhase {
    /// Its manifest cannot be run and must change.
    Unfit,
    /// It ended or failed to start, and is restarted after a pause.
    Backoff,
    /// It is not started yet, or is being started.
    #[default]
    Starting,
    /// It is being stopped.
    Stopping,
    /// It runs.
    Running,
    /// It ended and is not restarted.
    Ended,
}

impl std::fmt::Display for NodePodPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            NodePodPhase::Unfit => "Unfit",
            NodePodPhase::Backoff => "Backoff",
            NodePodPhase::Starting => "Starting",
            NodePodPhase::Stopping => "Stopping",
            NodePodPhase::Running => "Running",
            NodePodPhase::Ended => "Ended",
        })
    }
}

/// A pod's status. Unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// p2's status: `launched` once everything was started, else `failed`.
    pub status: String,
    /// The worst of its processes.
    pub phase: NodePodPhase,
    /// Why it is not running, for people; empty if it is.
    pub message: String,
    /// The controller that it belongs to.
    pub owner: Option<RcId>,
    /// Its health by its checks.
    pub health: Health,
    /// Why its node cannot start it, after several attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cannot_start: Option<String>,
    /// Whether that is because of its program, such as a missing file. Older agents leave it out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub start_error: bool,
    /// How a process ends that is restarted again and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarting: Option<String>,
    /// Its processes.
    #[serde(rename = "process_status")]
    pub processes: Vec<ProcessStatus>,
    /// What differs from the manifest, such as a limit that cannot be enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Its devices, as in `gpu:0`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Numbers of the ports of its manifest, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
    /// The intent that Consul had when this was written. [`IntentIndex::NONE`]: none. Older agents leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent_index: Option<IntentIndex>,
}

impl PodStatus {
    /// Whether it is about the intent with this ModifyIndex. Older agents do not say which one theirs are about.
    #[must_use]
    pub fn is_of(&self, intent: Option<Index>) -> bool {
        let about = self.intent_index.map(|about| about.modify_index);
        about.is_none() || about == intent
    }
}

/// One version of an intent, by the indexes of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IntentIndex {
    /// Index at which the key was created.
    pub create_index: Index,
    /// Index at which it was last changed.
    pub modify_index: Index,
}

impl IntentIndex {
    /// No intent.
    pub const NONE: IntentIndex =
        IntentIndex { create_index: Index::ZERO, modify_index: Index::ZERO };
}

/// A process's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Its name in the manifest.
    pub launchable_id: String,
    /// The program.
    pub entry_point: String,
    /// Its phase.
    pub phase: NodePodPhase,
    /// Its process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Since when it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Number of restarts.
    pub restarts: u64,
    /// Its last exit.
    pub last_exit: Option<LastExit>,
    /// The end of its output, after a failure. Only processes of jobs have it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Last result of its check, or why it does not run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// p2's form of an exit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastExit {
    /// When the process ended.
    pub time: Timestamp,
    /// Exit code; -1 if a signal ended it, or if it is unknown.
    pub exit_code: i32,
    /// The signal that ended it; 0 for none.
    pub exit_status: i32,
    /// What else is known of it. p2 does not know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExitReason>,
}

/// Why a process has ended, where its exit code does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// The program could not be started as specified. The exit code is [`START_ERROR`], as in Kubernetes.
    StartError,
    /// It was stopped because its node's lease ended. The program did not fail.
    LeaseEnded,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

displays_as_variant!(ExitReason);

/// Limit of `output`, in bytes.
pub const LONGEST_OUTPUT: usize = 4 * 1024;

/// Exit code of a program that could not be started.
pub const START_ERROR: i32 = 128;

impl Stored for PodStatus {}
