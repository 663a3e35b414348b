//! Details of events of jobs, and of the records that make them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Actor, FoldedStep};
use crate::Index;
use crate::ids::{FarmName, Namespaced};

/// A farm changed a job's phase or pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStep {
    /// Namespace and name of the job.
    pub job: Namespaced,
    /// CreateIndex of the record, which distinguishes jobs of one name.
    pub uid: Index,
    /// Who made the change.
    pub actor: Actor,
    /// Farm that made the change.
    pub farm: Option<FarmName>,
    /// Action that led to it, if any: that of a command or a policy, `Suspend`, `Fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// The command that was consumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Uuid>,
    /// The phase before.
    pub phase_before: String,
    /// The phase after; `Deleted` if the record was deleted.
    pub phase: String,
    /// Reason, a fixed token.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// Attempt of the whole job.
    pub version: u64,
    /// Number of restarts by policies.
    pub retry_count: u32,
    /// Created pods as `<task>-<index>@<node>`, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_added: Vec<String>,
    /// Removed pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_removed: Vec<String>,
    /// Pods without an owner that became members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_adopted: Vec<String>,
    /// Released pods as `<pod>@<node>`: they had the job's uid under another name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_released: Vec<String>,
}

/// A user created, changed or deleted a job, or sent it a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobChange {
    /// Namespace and name of the job.
    pub job: Namespaced,
    /// Who made the change.
    pub actor: Actor,
    /// `Created`, `Changed`, `Deleted`, or an action such as `AbortJob`.
    pub action: String,
    /// Message for people.
    #[serde(default)]
    pub reason: String,
    /// Id of the command, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Uuid>,
    /// [`record_hash`](super::record_hash) of the record that was written or accepted. `None`: none was, or it was
    /// written by an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// What the accepted status says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<FoldedStep>,
}

/// Reason of a [`RecordStep`] that deleted the status of a record that others had deleted.
pub const RECORD_GONE: &str = "RecordGone";

/// A farm acted for a record that makes jobs, such as a CronJob. One record per transaction. The jobs have records of
/// their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordStep {
    /// `kind` of the record's document.
    pub kind: String,
    /// Namespace and name of the record.
    pub record: Namespaced,
    /// CreateIndex of the record, which distinguishes records of one name.
    pub uid: Index,
    /// Who made the change.
    pub actor: Actor,
    /// Farm that made the change.
    pub farm: Option<FarmName>,
    /// The phase after, of kinds that have phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Reason, a fixed token; `Deleted` if the record was deleted, [`RECORD_GONE`] if only its status was.
    pub reason: String,
    /// Message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Names of the jobs that were created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_created: Vec<String>,
    /// Names of the jobs that were marked for deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_deleted: Vec<String>,
}

/// A user created, changed or deleted a record that makes jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordChange {
    /// `kind` of the record's document.
    pub kind: String,
    /// Namespace and name of the record.
    pub record: Namespaced,
    /// Who made the change.
    pub actor: Actor,
    /// `Created`, `Changed`, `Suspended`, `Resumed`, `Deleted`, or `Acknowledged`: a user accepted what is stored.
    pub action: String,
    /// [`record_hash`](super::record_hash) of the record that was written or accepted. `None`: it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}
