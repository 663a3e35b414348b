//! What each event says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{EventType, GroupsOrdered, JobChange, JobStep, QueueChange};
use crate::Index;
use crate::Timestamp;
use crate::ids::{FarmName, NodeName, PodId, RcId};
use crate::labels::Labels;

/// A retarget lists the whole set of nodes up to this many. Beyond it the difference must do: p2 lists all of
/// them in each record, so scaling to N writes of the order of N² bytes (`p2.md` §2.4).
pub const NODES_LISTED: usize = 128;

/// The reason of an [`OrphansRemoved`] that freed what nodes had promised to pods that were gone; no pod was removed.
pub const PROMISE_LEAKED: &str = "PromiseLeaked";

/// The details of an event, with their types.
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
    /// [`EventType::ControllerEnabled`]
    ControllerEnabled(ControllerChange),
    /// [`EventType::ControllerDisabled`]
    ControllerDisabled(ControllerChange),
    /// [`EventType::ControllerDeleted`]
    ControllerDeleted(ControllerChange),
    /// [`EventType::LabelsChanged`]
    LabelsChanged(LabelsChange),
    /// [`EventType::OrphansRemoved`]; with the reason [`PROMISE_LEAKED`] promises of pods that were gone already.
    OrphansRemoved(OrphansRemoved),
    /// [`EventType::NodeDrained`]
    NodeDrained(NodeChange),
    /// [`EventType::NodeUndrained`]
    NodeUndrained(NodeChange),
    /// [`EventType::NodeRemoved`]
    NodeRemoved(NodeChange),
    /// [`EventType::QueueCreated`]
    QueueCreated(QueueChange),
    /// [`EventType::QueueChanged`]
    QueueChanged(QueueChange),
    /// [`EventType::QueueDeleted`]
    QueueDeleted(QueueChange),
    /// [`EventType::GroupsOrdered`]
    GroupsOrdered(GroupsOrdered),
    /// [`EventType::JobStep`]
    JobStep(JobStep),
    /// [`EventType::JobChanged`]
    JobChanged(JobChange),
    /// [`EventType::Checkpoint`]
    Checkpoint(Checkpoint),
    /// Anything else, and a retarget by p2: it does not say of which controller.
    Other(EventType, Value),
}

/// Who made a change. In JSON a word: `farm`, `rolling_update` or `user:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Actor {
    /// A farm, on behalf of a controller.
    Farm,
    /// A person or a script, through the command line.
    User {
        /// As whom they ran it.
        name: String,
    },
    /// A rolling update.
    RollingUpdate,
}

/// A controller's pods were scheduled, removed, moved or repaired. The first four fields are p2's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retarget {
    /// What the pods are called.
    pub pod_id: PodId,
    /// Where, in p2's words.
    pub availability_zone: String,
    /// Which cluster, in p2's words.
    pub cluster_name: String,
    /// The whole set after the transaction; `None` when it is longer than [`NODES_LISTED`].
    pub nodes: Option<Vec<NodeName>>,
    /// Whose pods.
    pub replication_controller_id: RcId,
    /// The farm that did it.
    pub farm: Option<FarmName>,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
    /// Nodes that the transaction added to the set.
    #[serde(default)]
    pub nodes_added: Vec<NodeName>,
    /// Nodes that it removed.
    #[serde(default)]
    pub nodes_removed: Vec<NodeName>,
    /// Nodes in the set whose intent or labels it wrote anew.
    #[serde(default)]
    pub nodes_repaired: Vec<NodeName>,
    /// The count wanted when the controller last looked before.
    pub desired_before: Option<i64>,
    /// The count wanted now.
    pub desired_after: i64,
    /// Size of the set after the transaction.
    pub count: usize,
}

impl Retarget {
    /// The value for [`Retarget::nodes`].
    #[must_use]
    pub fn listed<'n>(nodes: impl ExactSizeIterator<Item = &'n NodeName>) -> Option<Vec<NodeName>> {
        (nodes.len() <= NODES_LISTED).then(|| nodes.cloned().collect())
    }
}

/// A pod moves to another node. All fields but `farm` are p2's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTransfer {
    /// The same in the records of one transfer.
    pub node_transfer_id: Uuid,
    /// Whose pod.
    pub replication_controller_id: RcId,
    /// What it is called.
    pub pod_id: PodId,
    /// Where, in p2's words.
    pub availability_zone: String,
    /// Which cluster, in p2's words.
    pub cluster_name: String,
    /// The controller's selector then.
    pub replication_controller_node_selector: String,
    /// The node that it leaves.
    pub old_node: NodeName,
    /// The node that it goes to; `None` while none is chosen, or when none was found.
    pub new_node: Option<NodeName>,
    /// The count wanted.
    pub replica_count: i64,
    /// Why it was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_reason: Option<String>,
    /// The farm that does it.
    #[serde(default)]
    pub farm: Option<FarmName>,
}

/// A person created, scaled, enabled, disabled or deleted a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerChange {
    /// Which.
    pub replication_controller_id: RcId,
    /// What its pods are called; `None` when its manifest cannot be read.
    pub pod_id: Option<PodId>,
    /// Where, in p2's words.
    pub availability_zone: String,
    /// Which cluster, in p2's words.
    pub cluster_name: String,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
    /// The count before; `None` when the record did not exist, or said no readable one.
    pub desired_before: Option<i64>,
    /// The count after; `None` when the record is gone.
    pub desired_after: Option<i64>,
    /// Nodes on which its pods keep running, after a forced deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<NodeName>,
}

/// A person changed labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelsChange {
    /// `node`, `pod`, `replication_controller` or `rolls`.
    pub kind: String,
    /// Of what: the rest of the labels' key.
    pub id: String,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
    /// Labels that were set, with their new values.
    #[serde(default)]
    pub set: Labels,
    /// Labels that were removed, with the values that they had.
    #[serde(default)]
    pub removed: Labels,
}

/// A person removed pods whose controller is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphansRemoved {
    /// The controller that their label names.
    pub replication_controller_id: RcId,
    /// What they were called.
    pub pod_id: PodId,
    /// From where.
    pub nodes: Vec<NodeName>,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
}

/// A person drained a node, ended its drain, or removed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// Which.
    pub node: NodeName,
    /// Who.
    pub actor: Actor,
    /// Why, as a fixed token.
    pub reason: String,
    /// Until when a drain is meant to be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Timestamp>,
    /// Pods on the node then; after a forced removal, those that it leaves behind.
    #[serde(default)]
    pub pods: Vec<PodId>,
}

/// A part of the state that the log stood for when its older records were deleted.
///
/// The parts of a set are written before anything is deleted, in transactions of their own; a set counts only
/// when all its parts are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The same in all parts.
    pub set: Uuid,
    /// This part, from 0.
    pub part: usize,
    /// How many parts there are.
    pub parts: usize,
    /// The state is that after all records created up to this index.
    pub through: Index,
    /// What this part says; a controller with many nodes is spread over several parts.
    pub controllers: BTreeMap<RcId, FoldedController>,
}

/// What the log says of one controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedController {
    /// Where its pods are; `None` when the log cannot know, because p2 placed them.
    pub nodes: Option<BTreeSet<NodeName>>,
    /// The count wanted; `None` once the record is deleted.
    pub desired: Option<i64>,
}

macro_rules! details {
    ($($variant:ident),*) => {
        impl Details {
            /// The event that these details belong to.
            #[must_use]
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
    ControllerEnabled,
    ControllerDisabled,
    ControllerDeleted,
    LabelsChanged,
    OrphansRemoved,
    NodeDrained,
    NodeUndrained,
    NodeRemoved,
    QueueCreated,
    QueueChanged,
    QueueDeleted,
    GroupsOrdered,
    JobStep,
    JobChanged,
    Checkpoint
);

/// The field that p2's retargets lack.
const RC_ID: &str = "replication_controller_id";

impl Details {
    /// The controller that the event is about; `None` for labels, nodes, checkpoints and events of p2 without one.
    #[must_use]
    pub fn controller(&self) -> Option<RcId> {
        match self {
            Details::Retarget(d) => Some(d.replication_controller_id),
            Details::NodeTransferStart(d)
            | Details::NodeTransferCompletion(d)
            | Details::NodeTransferRollback(d) => Some(d.replication_controller_id),
            Details::ControllerCreated(d)
            | Details::ControllerScaled(d)
            | Details::ControllerEnabled(d)
            | Details::ControllerDisabled(d)
            | Details::ControllerDeleted(d) => Some(d.replication_controller_id),
            Details::OrphansRemoved(d) => Some(d.replication_controller_id),
            Details::LabelsChanged(_)
            | Details::NodeDrained(_)
            | Details::NodeUndrained(_)
            | Details::NodeRemoved(_)
            | Details::QueueCreated(_)
            | Details::QueueChanged(_)
            | Details::QueueDeleted(_)
            | Details::GroupsOrdered(_)
            | Details::JobStep(_)
            | Details::JobChanged(_)
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

/// A word that names no actor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no actor: expected farm, rolling_update or user:<name>")]
pub struct BadActor(String);

impl FromStr for Actor {
    type Err = BadActor;
    fn from_str(text: &str) -> Result<Self, BadActor> {
        match text {
            "farm" => Ok(Actor::Farm),
            "rolling_update" => Ok(Actor::RollingUpdate),
            _ => match text.strip_prefix("user:") {
                Some(name) => Ok(Actor::User { name: name.to_owned() }),
                None => Err(BadActor(text.to_owned())),
            },
        }
    }
}
impl TryFrom<String> for Actor {
    type Error = BadActor;
    fn try_from(text: String) -> Result<Self, BadActor> {
        text.parse()
    }
}
impl From<Actor> for String {
    fn from(actor: Actor) -> String {
        actor.to_string()
    }
}
