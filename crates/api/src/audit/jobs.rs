//! What the log says of jobs.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Actor;
use crate::Index;
use crate::ids::{FarmName, Namespaced};

/// A farm took a step with a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStep {
    /// Which.
    pub job: Namespaced,
    /// Which of that name: the CreateIndex of its record.
    pub uid: Index,
    /// Who.
    pub actor: Actor,
    /// The farm that did it.
    pub farm: Option<FarmName>,
    /// What was asked of the job, if anything was: a command's or a policy's action, `Suspend`, `Fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// The command that was consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Uuid>,
    /// The phase before.
    pub phase_before: String,
    /// The phase after; `Deleted` when the record went.
    pub phase: String,
    /// Why, as a fixed token.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// The attempt of the whole job.
    pub version: u64,
    /// Restarts that policies caused.
    pub retry_count: u32,
    /// Pods that were made, as `<task>-<index>@<node>`; at most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_added: Vec<String>,
    /// Pods that were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_removed: Vec<String>,
    /// Pods that were nobody's and became members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_adopted: Vec<String>,
    /// Pods that carried the job's uid under another name and were let go, as `<pod>@<node>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_released: Vec<String>,
}

/// A person created, changed or deleted a job, or asked something of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobChange {
    /// Which.
    pub job: Namespaced,
    /// Who.
    pub actor: Actor,
    /// What: `Created`, `Changed`, `Deleted`, or an action such as `AbortJob`.
    pub action: String,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// The command that carries it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Uuid>,
}
