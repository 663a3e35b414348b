//! Envelope of audit records, and names of events.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Details;
use crate::{FieldError, Index, Stored, Timestamp};

/// The envelope's version, which p2 writes as 1.
pub const SCHEMA_VERSION: u32 = 1;

/// A record of the log: p2's envelope around the details of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Type of the event.
    pub event_type: EventType,
    /// Details of the event. [`AuditRecord::details`] parses them.
    pub event_details: serde_json::Value,
    /// Time by the writer's clock.
    pub timestamp: Timestamp,
    /// Version of the envelope, [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What led to the change. `None`: written by p2, or by an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<AuditCause>,
}

/// What led to a change, and the code that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCause {
    /// A change from outside, or a decision.
    pub kind: CauseKind,
    /// Of a farm's change: ModifyIndex of the record or command that it acted on. `None`: a user's change is in the
    /// same transaction, the record is gone, or several records were acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Index>,
    /// Version of the program that wrote the record.
    pub version: String,
}

/// Whether a change came from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// A user or another program changed a record, or issued a command. A farm writes it when it first acts on the
    /// change.
    External,
    /// A farm decided it from what else it has seen: nodes, pods, time.
    Decision,
    /// Written by a newer version.
    #[serde(other)]
    Unknown,
}

impl AuditCause {
    /// A change from outside.
    pub fn external(index: Option<Index>) -> AuditCause {
        AuditCause { kind: CauseKind::External, index, version: crate::VERSION.to_owned() }
    }

    /// A decision about the record at this index.
    pub fn decision(index: Option<Index>) -> AuditCause {
        AuditCause { kind: CauseKind::Decision, ..AuditCause::external(index) }
    }
}

impl Stored for AuditRecord {}

impl AuditRecord {
    /// A record with these details. What is too long for the log is replaced ([`abridged`](super::abridged)).
    pub fn new(details: &Details, timestamp: Timestamp) -> Self {
        AuditRecord {
            event_type: details.event_type(),
            event_details: details.abridged().to_json(),
            timestamp,
            schema_version: SCHEMA_VERSION,
            cause: None,
        }
    }

    /// The record with this cause.
    #[must_use]
    pub fn caused_by(self, cause: AuditCause) -> Self {
        AuditRecord { cause: Some(cause), ..self }
    }

    /// The parsed details.
    ///
    /// # Errors
    /// [`FieldError`] if the details of a known event type are invalid.
    pub fn details(&self) -> Result<Details, FieldError> {
        Details::from_json(&self.event_type, &self.event_details).map_err(|error| {
            let problem = format!("it does not fit {}: {error}", self.event_type);
            FieldError::new("event_details", problem, format!("compare with {}", Self::PAGE))
        })
    }
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// Type of an event. Names are p2's for p2's events.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum EventType {
            $($(#[$doc])* $variant,)*
            /// Any other event: of p2 alone, or of a newer version.
            Other(String),
        }

        impl EventType {
            /// All events that rcfarm writes.
            pub const OURS: &[EventType] = &[$(EventType::$variant),*];

            /// Name in the record.
            pub fn as_str(&self) -> &str {
                match self {
                    $(EventType::$variant => $text,)*
                    EventType::Other(text) => text,
                }
            }
        }

        impl From<String> for EventType {
            fn from(text: String) -> Self {
                match &*text {
                    $($text => EventType::$variant,)*
                    _ => EventType::Other(text),
                }
            }
        }
    };
}

events! {
    /// A controller's pods were scheduled, removed, moved or repaired.
    Retarget = "REPLICATION_CONTROLLER_RETARGET",
    /// A pod is about to move to another node.
    NodeTransferStart = "NODE_TRANSFER_START",
    /// A pod has moved to another node.
    NodeTransferCompletion = "NODE_TRANSFER_COMPLETION",
    /// A transfer was rolled back.
    NodeTransferRollback = "NODE_TRANSFER_ROLLBACK",
    /// A controller was created.
    ControllerCreated = "REPLICATION_CONTROLLER_CREATED",
    /// A controller's desired count was changed.
    ControllerScaled = "REPLICATION_CONTROLLER_SCALED",
    /// The manifest, the node selector or another field of a controller was changed.
    ControllerUpdated = "REPLICATION_CONTROLLER_UPDATED",
    /// A controller was enabled.
    ControllerEnabled = "REPLICATION_CONTROLLER_ENABLED",
    /// A controller was disabled.
    ControllerDisabled = "REPLICATION_CONTROLLER_DISABLED",
    /// A controller's record was deleted.
    ControllerDeleted = "REPLICATION_CONTROLLER_DELETED",
    /// Labels of a node, a pod or a controller were changed.
    LabelsChanged = "LABELS_CHANGED",
    /// Pods whose controller is gone were removed.
    OrphansRemoved = "ORPHANS_REMOVED",
    /// A node is being drained.
    NodeDrained = "NODE_DRAINED",
    /// A node's drain ended.
    NodeUndrained = "NODE_UNDRAINED",
    /// A node's record and labels were removed.
    NodeRemoved = "NODE_REMOVED",
    /// An operator confirmed a mass deletion.
    DeletionConfirmed = "MASS_DELETION_CONFIRMED",
    /// A user accepted what was changed without a record.
    ChangeAcknowledged = "EXTERNAL_CHANGE_ACKNOWLEDGED",
    /// A queue was created.
    QueueCreated = "QUEUE_CREATED",
    /// A queue's spec was changed.
    QueueChanged = "QUEUE_CHANGED",
    /// A queue was deleted.
    QueueDeleted = "QUEUE_DELETED",
    /// A priority class was created, changed or deleted.
    PriorityClassChanged = "PRIORITY_CLASS_CHANGED",
    /// A job type was created, changed or deleted.
    JobTypeChanged = "JOB_TYPE_CHANGED",
    /// The configuration of cells was created or changed.
    CellsChanged = "CELLS_CHANGED",
    /// Groups were admitted, placed, requeued or removed.
    GroupsOrdered = "POD_GROUPS_ORDERED",
    /// A farm changed a job's phase or pods.
    JobStep = "JOB_STEP",
    /// A user created, changed or deleted a job, or sent it a command.
    JobChanged = "JOB_CHANGED",
    /// A farm acted for a record that makes jobs, such as a CronJob.
    RecordStep = "RECORD_STEP",
    /// A user created, changed or deleted a record that makes jobs.
    RecordChanged = "RECORD_CHANGED",
    /// Folded state of records that were pruned.
    Checkpoint = "AUDIT_CHECKPOINT",
}

impl From<EventType> for String {
    fn from(event: EventType) -> String {
        event.as_str().to_owned()
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
