//! Typed details of each event.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{
    CellsChange, EventType, GroupsOrdered, JobChange, JobStep, JobTypeChange, PriorityClassChange,
    QueueChange, RecordChange, RecordStep,
};
use crate::ids::{FarmName, NodeName, PodId, RcId};
use crate::labels::Labels;
use crate::manifest::command_line::cut;
use crate::manifest::content_hash;
use crate::text::converts_as_text;
use crate::{Index, InvalidText, Timestamp};

/// A retarget lists the whole set of nodes up to this many, and only the difference above. p2 lists all of them in each
/// record, so that scaling to N nodes writes of the order of N² bytes (`p2.md` §2.4).
pub const NODES_LISTED: usize = 128;

/// The reason of an [`OrphansRemoved`] that freed allocations of pods that were gone. It removed no pod.
pub const PROMISE_LEAKED: &str = "PromiseLeaked";

/// Details of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Details {
    /// [`EventType::Retarget`]
    Retarget(Retarget),
    /// [`EventType::NodeTransferStart`]
    NodeTransferStart(NodeTransfer),
    /// [`EventType::NodeTransferCompletion`]
    NodeTransferCompletion(NodeTransfer),
    /// [`EventType::NodeTransferRollback`]
    NodeTransferRollback(NodeTransfer),
    /// [`EventType::ControllerCreated`]
    ControllerCreated(ControllerChange),
    /// [`EventType::ControllerScaled`]
    ControllerScaled(ControllerChange),
    /// [`EventType::ControllerUpdated`]
    ControllerUpdated(ControllerChange),
    /// [`EventType::ControllerEnabled`]
    ControllerEnabled(ControllerChange),
    /// [`EventType::ControllerDisabled`]
    ControllerDisabled(ControllerChange),
    /// [`EventType::ControllerDeleted`]
    ControllerDeleted(ControllerChange),
    /// [`EventType::LabelsChanged`]
    LabelsChanged(LabelsChange),
    /// [`EventType::OrphansRemoved`]; with the reason [`PROMISE_LEAKED`] only allocations were freed.
    OrphansRemoved(OrphansRemoved),
    /// [`EventType::NodeDrained`]
    NodeDrained(NodeChange),
    /// [`EventType::NodeUndrained`]
    NodeUndrained(NodeChange),
    /// [`EventType::NodeRemoved`]
    NodeRemoved(NodeChange),
    /// [`EventType::DeletionConfirmed`]
    DeletionConfirmed(DeletionConfirmed),
    /// [`EventType::ChangeAcknowledged`]
    ChangeAcknowledged(ChangeAcknowledged),
    /// [`EventType::QueueCreated`]
    QueueCreated(QueueChange),
    /// [`EventType::QueueChanged`]
    QueueChanged(QueueChange),
    /// [`EventType::QueueDeleted`]
    QueueDeleted(QueueChange),
    /// [`EventType::PriorityClassChanged`]
    PriorityClassChanged(PriorityClassChange),
    /// [`EventType::JobTypeChanged`]
    JobTypeChanged(JobTypeChange),
    /// [`EventType::CellsChanged`]
    CellsChanged(CellsChange),
    /// [`EventType::GroupsOrdered`]
    GroupsOrdered(GroupsOrdered),
    /// [`EventType::JobStep`]
    JobStep(JobStep),
    /// [`EventType::JobChanged`]
    JobChanged(JobChange),
    /// [`EventType::RecordStep`]
    RecordStep(RecordStep),
    /// [`EventType::RecordChanged`]
    RecordChanged(RecordChange),
    /// [`EventType::Checkpoint`]
    Checkpoint(Checkpoint),
    /// Any other event, and retargets by p2, which do not name their controller.
    Other(EventType, Value),
}

/// Who made a change. In JSON: `farm`, `rolling_update` or `user:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Actor {
    /// A farm, on behalf of a controller.
    Farm,
    /// A user of the command line.
    User {
        /// Name of the operating system's user.
        name: String,
    },
    RollingUpdate,
}

/// Longest name of a user in the log, in bytes; the rest is cut.
const LONGEST_USER: usize = 200;

impl Actor {
    /// A user, whose name is cut if it is too long for the log.
    #[must_use]
    pub fn user(name: &str) -> Actor {
        Actor::User { name: cut(name, LONGEST_USER) }
    }
}

/// A controller's pods were scheduled, removed, moved or repaired. The first four fields are p2's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retarget {
    /// Id of the pods.
    pub pod_id: PodId,
    /// Pod label `availability_zone`, as in p2.
    pub availability_zone: String,
    /// Pod label `cluster_name`, as in p2.
    pub cluster_name: String,
    /// All nodes after the transaction. `None`: more than [`NODES_LISTED`].
    pub nodes: Option<Vec<NodeName>>,
    /// Controller of the pods.
    pub replication_controller_id: RcId,
    /// Farm that made the change.
    pub farm: Option<FarmName>,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Nodes that the transaction added.
    #[serde(default)]
    pub nodes_added: Vec<NodeName>,
    /// Nodes that the transaction removed.
    #[serde(default)]
    pub nodes_removed: Vec<NodeName>,
    /// Nodes whose intent or labels the transaction repaired.
    #[serde(default)]
    pub nodes_repaired: Vec<NodeName>,
    /// Desired count at the previous reconcile.
    pub desired_before: Option<i64>,
    /// Desired count now.
    pub desired_after: i64,
    /// Number of nodes after the transaction.
    pub count: usize,
}

impl Retarget {
    /// The value for [`Retarget::nodes`].
    pub fn listed<'n>(nodes: impl ExactSizeIterator<Item = &'n NodeName>) -> Option<Vec<NodeName>> {
        (nodes.len() <= NODES_LISTED).then(|| nodes.cloned().collect())
    }
}

/// A pod moves to another node. All fields but `farm` are p2's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTransfer {
    /// Id of the transfer, the same in all its records.
    pub node_transfer_id: Uuid,
    /// Controller of the pod.
    pub replication_controller_id: RcId,
    /// Id of the pod.
    pub pod_id: PodId,
    /// Pod label `availability_zone`, as in p2.
    pub availability_zone: String,
    /// Pod label `cluster_name`, as in p2.
    pub cluster_name: String,
    /// Selector of the controller at that time.
    pub replication_controller_node_selector: String,
    /// Node that the pod leaves.
    pub old_node: NodeName,
    /// New node of the pod. `None`: not chosen yet, or none found.
    pub new_node: Option<NodeName>,
    /// Desired count.
    pub replica_count: i64,
    /// Why the transfer was rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_reason: Option<String>,
    /// Farm that makes the transfer.
    #[serde(default)]
    pub farm: Option<FarmName>,
}

/// A user created, scaled, updated, enabled, disabled or deleted a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerChange {
    /// Id of the controller.
    pub replication_controller_id: RcId,
    /// Id of its pods. `None`: the manifest is invalid.
    pub pod_id: Option<PodId>,
    /// Pod label `availability_zone`, as in p2.
    pub availability_zone: String,
    /// Pod label `cluster_name`, as in p2.
    pub cluster_name: String,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Desired count before. `None`: no record, or an invalid count.
    pub desired_before: Option<i64>,
    /// Desired count after. `None`: the record was deleted.
    pub desired_after: Option<i64>,
    /// [`record_hash`] of the record that was written. `None`: it was deleted, or written by an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Fields of the record that an update changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Nodes on which pods keep running after a forced deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<NodeName>,
}

/// A user changed labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelsChange {
    /// `node`, `pod`, `replication_controller` or `rolls`.
    pub kind: String,
    /// Object of the labels: the rest of their key.
    pub id: String,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Labels that were set, with their new values.
    #[serde(default)]
    pub set: Labels,
    /// Labels that were removed, with their old values.
    #[serde(default)]
    pub removed: Labels,
}

/// A user removed pods whose controller is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphansRemoved {
    /// Controller in the pods' labels.
    pub replication_controller_id: RcId,
    /// Id of the pods.
    pub pod_id: PodId,
    /// Nodes of the pods.
    pub nodes: Vec<NodeName>,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
}

/// A user drained a node, ended its drain, or removed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// Name of the node.
    pub node: NodeName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Deadline of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Timestamp>,
    /// Pods on the node at that time. After a forced removal: pods that stay.
    #[serde(default)]
    pub pods: Vec<PodId>,
}

/// A user confirmed that the caches of a farm are meant to be as small as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletionConfirmed {
    /// The farm that had paused.
    pub farm: FarmName,
    /// Who confirmed it.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// What the farm distrusted at that time.
    #[serde(default)]
    pub suspicions: Vec<String>,
}

/// A user accepted the state of a controller that was changed without a record, by p2's programs or by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeAcknowledged {
    /// Controller whose state was accepted.
    pub replication_controller_id: RcId,
    /// Who accepted it.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Nodes with a pod of the controller.
    pub nodes: BTreeSet<NodeName>,
    /// Its desired count; `None`: it has no record.
    pub desired_after: Option<i64>,
    /// [`record_hash`] of the record. `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// What differed, in words; of many differences the first, and the number of the others.
    #[serde(default)]
    pub differences: Vec<String>,
}

/// A part of the folded state of older records that `audit prune` deletes.
///
/// The parts of a set are written before anything is deleted, each in a transaction of its own. A set counts only when
/// all its parts exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id of the set, the same in all its parts.
    pub set: Uuid,
    /// Number of this part, from 0.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// The state covers all records created up to this index.
    pub through: Index,
    /// Folded state. A controller with many nodes is divided over several parts.
    pub controllers: BTreeMap<RcId, FoldedController>,
}

/// State of one controller according to the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedController {
    /// Nodes of its pods. `None`: unknown, because p2 placed them.
    pub nodes: Option<BTreeSet<NodeName>>,
    /// Desired count. `None`: the record was deleted.
    pub desired: Option<i64>,
    /// [`record_hash`] of the record. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// Hash of a record's value in the audit log, by which `audit verify` finds changes without a record.
#[must_use]
pub fn record_hash(value: &[u8]) -> String {
    format!("{:016x}", content_hash(value))
}

macro_rules! details {
    ($($variant:ident),*) => {
        impl Details {
            /// The event type of these details.
            pub fn event_type(&self) -> EventType {
                match self {
                    $(Details::$variant(_) => EventType::$variant,)*
                    Details::Other(event, _) => event.clone(),
                }
            }

            pub(super) fn to_json(&self) -> Value {
                match self {
                    $(Details::$variant(details) => {
                        serde_json::to_value(details).expect("details encode")
                    })*
                    Details::Other(_, value) => value.clone(),
                }
            }

            pub(super) fn from_json(event: &EventType, json: &Value) -> serde_json::Result<Self> {
                let by_p2 = *event == EventType::Retarget && json.get(RC_ID).is_none();
                Ok(match event {
                    event if by_p2 => Details::Other(event.clone(), json.clone()),
                    $(EventType::$variant => Details::$variant(Deserialize::deserialize(json)?),)*
                    EventType::Other(_) => Details::Other(event.clone(), json.clone()),
                })
            }
        }
    };
}
details!(
    Retarget,
    NodeTransferStart,
    NodeTransferCompletion,
    NodeTransferRollback,
    ControllerCreated,
    ControllerScaled,
    ControllerUpdated,
    ControllerEnabled,
    ControllerDisabled,
    ControllerDeleted,
    LabelsChanged,
    OrphansRemoved,
    NodeDrained,
    NodeUndrained,
    NodeRemoved,
    DeletionConfirmed,
    ChangeAcknowledged,
    QueueCreated,
    QueueChanged,
    QueueDeleted,
    PriorityClassChanged,
    JobTypeChanged,
    CellsChanged,
    GroupsOrdered,
    JobStep,
    JobChanged,
    RecordStep,
    RecordChanged,
    Checkpoint
);

/// The field that p2's retargets do not have.
const RC_ID: &str = "replication_controller_id";

impl Details {
    /// The details as they are written: without values that are too long for the log.
    pub(super) fn abridged(&self) -> Cow<'_, Details> {
        match self {
            Details::QueueCreated(d) => Cow::Owned(Details::QueueCreated(d.abridged())),
            Details::QueueChanged(d) => Cow::Owned(Details::QueueChanged(d.abridged())),
            Details::QueueDeleted(d) => Cow::Owned(Details::QueueDeleted(d.abridged())),
            Details::PriorityClassChanged(d) => {
                Cow::Owned(Details::PriorityClassChanged(d.abridged()))
            }
            Details::JobTypeChanged(d) => Cow::Owned(Details::JobTypeChanged(d.abridged())),
            Details::CellsChanged(d) => Cow::Owned(Details::CellsChanged(d.abridged())),
            _ => Cow::Borrowed(self),
        }
    }

    /// The controller of the event. `None` for events about other objects, and for those of p2 that name none.
    pub fn controller(&self) -> Option<RcId> {
        match self {
            Details::Retarget(d) => Some(d.replication_controller_id),
            Details::NodeTransferStart(d)
            | Details::NodeTransferCompletion(d)
            | Details::NodeTransferRollback(d) => Some(d.replication_controller_id),
            Details::ControllerCreated(d)
            | Details::ControllerScaled(d)
            | Details::ControllerUpdated(d)
            | Details::ControllerEnabled(d)
            | Details::ControllerDisabled(d)
            | Details::ControllerDeleted(d) => Some(d.replication_controller_id),
            Details::OrphansRemoved(d) => Some(d.replication_controller_id),
            Details::ChangeAcknowledged(d) => Some(d.replication_controller_id),
            Details::LabelsChanged(_)
            | Details::NodeDrained(_)
            | Details::NodeUndrained(_)
            | Details::NodeRemoved(_)
            | Details::DeletionConfirmed(_)
            | Details::QueueCreated(_)
            | Details::QueueChanged(_)
            | Details::QueueDeleted(_)
            | Details::PriorityClassChanged(_)
            | Details::JobTypeChanged(_)
            | Details::CellsChanged(_)
            | Details::GroupsOrdered(_)
            | Details::JobStep(_)
            | Details::JobChanged(_)
            | Details::RecordStep(_)
            | Details::RecordChanged(_)
            | Details::Checkpoint(_) => None,
            Details::Other(_, json) => json.get(RC_ID)?.as_str()?.parse().ok(),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Farm => f.pad("farm"),
            Actor::RollingUpdate => f.pad("rolling_update"),
            Actor::User { name } => f.pad(&format!("user:{name}")),
        }
    }
}

impl FromStr for Actor {
    type Err = InvalidText;
    fn from_str(text: &str) -> Result<Self, InvalidText> {
        match text {
            "farm" => Ok(Actor::Farm),
            "rolling_update" => Ok(Actor::RollingUpdate),
            _ => match text.strip_prefix("user:") {
                Some(name) => Ok(Actor::User { name: name.to_owned() }),
                None => Err(InvalidText {
                    text: text.to_owned(),
                    what: "actor",
                    why: "expected farm, rolling_update or user:<name>",
                }),
            },
        }
    }
}
converts_as_text!(Actor);
