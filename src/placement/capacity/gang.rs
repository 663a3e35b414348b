//! Pods that are placed together or not at all: the question, and the three answers (`peers.md` §6: bind, preempt, wait).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ledger::NodeCapacities;
use crate::placement::NodeLabels;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::Selector;
use rcfarm_api::manifest::Resources;
use rcfarm_api::scheduler::Packing;

/// Pods that are placed together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// Whose they are, for messages; it also decides between nodes that are equal, so that gangs placed at the same
    /// time do not all go for the same ones.
    pub name: String,
    /// Which nodes are taken first.
    #[serde(default)]
    pub packing: Packing,
    /// Its pods, by kind. Names are unique.
    pub tasks: Vec<GangTask>,
}

/// Pods of a gang that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangTask {
    /// Its name.
    pub name: String,
    /// How many pods.
    pub count: u32,
    /// What each of them asks for. Pods that ask for nothing go to any node, evenly, whatever the packing.
    #[serde(default)]
    pub resources: Resources,
    /// On which nodes.
    pub selector: Selector,
    /// At most so many of them on one node; `None`: as many as fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_node: Option<u32>,
}

/// The nodes, as seen at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// The labels of all nodes that may be asked at all.
    pub labels: Arc<NodeLabels>,
    /// Of these, those that get no pod: they are being emptied, or down.
    pub unfit: BTreeSet<NodeName>,
    /// What they have, and what of it is allocated.
    pub rooms: NodeCapacities,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Here is room for all.
    Bind(GangPlacement),
    /// There is room once these are gone. No scheduler of ours answers so yet, and a caller may treat it as waiting: a
    /// scheduler over HTTP may name victims, and queues that preempt will.
    Preempt(BTreeSet<AllocationOwner>),
    /// There is none now; one reason per task that did not find room.
    Wait(Vec<TaskWait>),
}

/// Where each pod of a gang goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangPlacement {
    /// By task, as many nodes as it has pods; the n-th pod goes to the n-th. Pods that share a node are neighbours.
    pub tasks: BTreeMap<String, Vec<NodeName>>,
}

impl GangPlacement {
    /// Every pod: its task, its number in it from 0, its node. In the order of the gang's tasks.
    pub fn pods<'a>(
        &'a self,
        gang: &'a Gang,
    ) -> impl Iterator<Item = (&'a GangTask, usize, &'a NodeName)> {
        gang.tasks.iter().flat_map(|task| {
            let nodes = self.tasks.get(&task.name).into_iter().flatten();
            nodes.enumerate().map(move |(n, node)| (task, n, node))
        })
    }

    /// Why this is no answer to `gang`, whoever gave it: a task with another number of nodes than pods, an unknown
    /// task, or a node twice too often.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self, gang: &Gang) -> Result<(), String> {
        if let Some(name) =
            self.tasks.keys().find(|name| gang.tasks.iter().all(|t| t.name != **name))
        {
            return Err(format!("the gang has no task {name:?}"));
        }
        for task in &gang.tasks {
            let nodes = self.tasks.get(&task.name).map_or(&[][..], Vec::as_slice);
            if nodes.len() != task.count as usize {
                let (wanted, got) = (task.count, nodes.len());
                return Err(format!(
                    "task {:?}: {wanted} nodes were asked for, {got} came",
                    task.name
                ));
            }
            let mut per_node: BTreeMap<&NodeName, u32> = BTreeMap::new();
            for node in nodes {
                let count = per_node.entry(node).or_default();
                *count += 1;
                if task.max_per_node.is_some_and(|most| *count > most) {
                    return Err(format!("task {:?}: too many pods on {node}", task.name));
                }
            }
        }
        Ok(())
    }
}

/// Why a task found no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskWait {
    /// The task.
    pub task: String,
    /// As a fixed token.
    pub reason: WaitReason,
    /// How many of its pods there is room for, beside the rest of the gang.
    pub fitting: u32,
    /// Nodes that match its selector and are neither being emptied nor down.
    pub eligible: usize,
    /// For people, with the numbers.
    pub message: String,
}

/// Why a gang waits, as a fixed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
