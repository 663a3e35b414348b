//! The envelope, and the names of the events.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Details;
use crate::{FieldError, Stored, Timestamp};

/// The envelope's version, which p2 writes as 1.
pub const SCHEMA_VERSION: u32 = 1;

/// One record of the log: p2's envelope around the details of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// What happened.
    pub event_type: EventType,
    /// The event's own fields; [`AuditRecord::details`] gives them typed.
    pub event_details: serde_json::Value,
    /// When, by the writer's clock.
    pub timestamp: Timestamp,
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
}

impl Stored for AuditRecord {}

impl AuditRecord {
    /// A record of `details`.
    #[must_use]
    pub fn new(details: &Details, timestamp: Timestamp) -> Self {
        AuditRecord {
            event_type: details.event_type(),
            event_details: details.to_json(),
            timestamp,
            schema_version: SCHEMA_VERSION,
        }
    }

    /// The details with their types.
    ///
    /// # Errors
    /// [`FieldError`] when they do not fit an event type that we know.
    pub fn details(&self) -> Result<Details, FieldError> {
        Details::from_json(&self.event_type, &self.event_details).map_err(|error| {
            let problem = format!("it does not fit {}: {error}", self.event_type);
            FieldError::new("event_details", problem, format!("compare with {}", Self::PAGE))
        })
    }
}

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// What happened; the words are p2's where p2 has the event.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum EventType {
            $($(#[$doc])* $variant,)*
            /// Anything else: an event of p2 that we do not write, or of a newer version.
            Other(String),
        }

        impl EventType {
            /// Every event that we write.
            pub const OURS: &[EventType] = &[$(EventType::$variant),*];

            /// The word in the record.
            #[must_use]
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
    /// It has moved.
    NodeTransferCompletion = "NODE_TRANSFER_COMPLETION",
    /// It did not move, and what was prepared was undone.
    NodeTransferRollback = "NODE_TRANSFER_ROLLBACK",
    /// A controller was created.
    ControllerCreated = "REPLICATION_CONTROLLER_CREATED",
    /// Its count was changed.
    ControllerScaled = "REPLICATION_CONTROLLER_SCALED",
    /// It was enabled.
    ControllerEnabled = "REPLICATION_CONTROLLER_ENABLED",
    /// It was disabled.
    ControllerDisabled = "REPLICATION_CONTROLLER_DISABLED",
    /// Its record was deleted.
    ControllerDeleted = "REPLICATION_CONTROLLER_DELETED",
    /// Labels of a node, a pod or a controller were changed.
    LabelsChanged = "LABELS_CHANGED",
    /// Pods whose controller is gone were removed.
    OrphansRemoved = "ORPHANS_REMOVED",
    /// A node shall become empty.
    NodeDrained = "NODE_DRAINED",
    /// It may run pods again.
    NodeUndrained = "NODE_UNDRAINED",
    /// Its record and labels were removed.
    NodeRemoved = "NODE_REMOVED",
    /// A queue was created.
    QueueCreated = "QUEUE_CREATED",
    /// What is wanted of it was changed.
    QueueChanged = "QUEUE_CHANGED",
    /// It was deleted.
    QueueDeleted = "QUEUE_DELETED",
    /// Groups were admitted, placed, sent back or forgotten.
    GroupsOrdered = "POD_GROUPS_ORDERED",
    /// A farm took a step with a job.
    JobStep = "JOB_STEP",
    /// A person created, changed or deleted a job, or asked something of it.
    JobChanged = "JOB_CHANGED",
    /// What the log said before its older part was pruned.
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
