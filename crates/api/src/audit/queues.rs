//! What the log says of queues and of the groups that wait in them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Actor;
use crate::ids::{FarmName, Namespaced, ObjectName, QueueName};

/// A queue was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueChange {
    /// Which.
    pub queue: QueueName,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
    /// The farm, where a farm did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub farm: Option<FarmName>,
    /// What the record wanted before; `None`: there was none that could be read.
    pub before: Option<Value>,
    /// What it wants now; `None`: it is gone.
    pub after: Option<Value>,
}

/// The owner of a scheduler moved groups on: one record per transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsOrdered {
    /// Which scheduler.
    pub scheduler: ObjectName,
    /// The farm that owns it.
    pub farm: FarmName,
    /// Who.
    pub actor: Actor,
    /// The groups, in the order in which it was decided.
    pub groups: Vec<GroupChange>,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChange {
    /// Which.
    pub group: Namespaced,
    /// In which queue it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Its phase before; `None`: it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its phase now; `None`: it is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// How far its place is reserved: `Reserving`, `Bound` or `Releasing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Why, as a fixed token.
    pub reason: String,
    /// Members that nodes promised their room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub promised: usize,
    /// Members whose promise was taken back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}
