//! Pods that are placed together or not at all: request, and answers bind, preempt or wait (`peers.md` §6).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::ledger::NodeCapacities;
use crate::placement::NodeLabels;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::scheduler::Packing;

/// Pods that are placed together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gang {
    /// Name for messages. It also breaks ties between equal nodes, so that gangs placed at the same time prefer
    /// different ones.
    pub name: String,
    /// Which nodes are taken first.
    pub packing: Packing,
    /// Its tasks. Names are unique.
    pub tasks: Vec<TaskSpec>,
}

/// Nodes at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    pub labels: Arc<NodeLabels>,
    /// Nodes that get no pods: not ready, or suspect.
    pub unfit: BTreeSet<NodeName>,
    /// Their capacity and allocations.
    pub node_capacities: NodeCapacities,
}

impl Fleet {
    /// Whether another fleet is the same, nodes' allocations by identity.
    #[must_use]
    pub fn equals(&self, other: &Fleet) -> bool {
        (Arc::ptr_eq(&self.labels, &other.labels) || self.labels == other.labels)
            && self.unfit == other.unfit
            && self.node_capacities.differing(&other.node_capacities).is_empty()
    }
}

/// Result of a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// All pods fit.
    Bind(GangPlacement),
    /// All pods fit once these are evicted. The built-in placement does not return it; a caller may treat it as
    /// [`Decision::Wait`].
    Preempt(BTreeSet<AllocationOwner>),
    /// Not all fit now; one reason per task.
    Wait(Vec<TaskWait>),
}

/// Nodes of a gang's pods, as found. The stored form, `GroupPlacement`, also has members without a node and a state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GangPlacement {
    /// By task, the node of each pod in order. Pods on one node are neighbours.
    pub tasks: BTreeMap<String, Vec<NodeName>>,
}

impl GangPlacement {
    /// All pods with their task, their number in it from 0, and their node, in the order of the gang's tasks.
    pub fn pods<'a>(
        &'a self,
        gang: &'a Gang,
    ) -> impl Iterator<Item = (&'a TaskSpec, usize, &'a NodeName)> {
        gang.tasks.iter().flat_map(|task| {
            let nodes = self.tasks.get(&task.name).into_iter().flatten();
            nodes.enumerate().map(move |(n, node)| (task, n, node))
        })
    }
}

/// Why a task does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskWait {
    pub task: String,
    /// Fixed token.
    pub reason: WaitReason,
    /// Number of its pods that fit beside the rest of the gang.
    pub fitting: u32,
    /// Number of nodes that match its selector and are fit for pods.
    pub eligible: usize,
    /// Text for people, with numbers.
    pub message: String,
}

/// Why a gang waits, as a fixed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// No node matches and is ready.
    NoEligibleNodes,
    /// Nodes match, and too few of them have room.
    InsufficientCapacity,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WaitReason::NoEligibleNodes => "NoEligibleNodes",
            WaitReason::InsufficientCapacity => "InsufficientCapacity",
        })
    }
}
