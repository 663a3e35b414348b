//! Details of events of queues, their groups and priority classes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Actor;
use crate::ids::{FarmName, Namespaced, ObjectName, QueueName};

/// A queue was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueChange {
    /// Name of the queue.
    pub queue: QueueName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Farm that made the change, if a farm did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub farm: Option<FarmName>,
    /// Spec before. `None`: no record, or an invalid one.
    pub before: Option<Value>,
    /// Spec now. `None`: the record was deleted.
    pub after: Option<Value>,
}

/// A priority class was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityClassChange {
    /// Name of the class.
    pub priority_class: ObjectName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Record before. `None`: there was none, or an invalid one.
    pub before: Option<Value>,
    /// Record now. `None`: it was deleted.
    pub after: Option<Value>,
}

/// The owner of a scheduler record changed groups. One record per transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsOrdered {
    /// Name of the scheduler record.
    pub scheduler: ObjectName,
    /// Farm that owns the scheduler record.
    pub farm: FarmName,
    /// Who made the change.
    pub actor: Actor,
    /// Changed groups in the order of decision.
    pub groups: Vec<GroupChange>,
}

/// Change of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChange {
    /// Namespace and name of the group.
    pub group: Namespaced,
    /// Queue that the group is charged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Phase before. `None`: the group had no status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Phase now. `None`: its status was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// State of its placement: `Reserving`, `Bound` or `Releasing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Reason, a fixed token.
    pub reason: String,
    /// Members that were given allocations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub promised: usize,
    /// Members whose allocations were freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}
