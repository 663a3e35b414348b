//! Affinity groups: gangs of pods that are placed together, and what they hold.

use std::collections::BTreeSet;
use std::sync::Arc;

pub use rcfarm_api::cells::{GroupKey, LazyPreemptionStatus};
use serde::{Deserialize, Serialize};

use crate::model::{CellIx, CellPriority, MIN_GUARANTEED_PRIORITY, NONE};
use crate::request::GroupRequest;

/// Number of a group in the state.
pub(crate) type GroupIx = u32;

/// State of a group that holds cells. A group without cells is pending, and not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AffinityGroupState {
    /// It waits for its victims to end; its cells are reserved.
    Preempting,
    /// It uses its cells.
    Allocated,
    /// It uses its cells, and another group reserves at least one of them.
    BeingPreempted,
}

impl AffinityGroupState {
    /// The name as in the reference's JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            AffinityGroupState::Preempting => "Preempting",
            AffinityGroupState::Allocated => "Allocated",
            AffinityGroupState::BeingPreempted => "BeingPreempted",
        }
    }
}

/// Place of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPlacementInfo {
    /// Number of the member, as in [`GroupRequest::members`].
    pub member: usize,
    pub node: String,
    /// Device numbers on the node.
    pub devices: Vec<i32>,
    /// The pod that has the place.
    pub pod: Option<String>,
    /// Physical leaves; `NONE` for what the configuration lacks.
    pub(crate) leaves: Vec<CellIx>,
    /// Virtual leaves; empty for an opportunistic group.
    pub(crate) virtual_leaves: Vec<CellIx>,
}

/// A group that holds cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffinityGroup {
    /// Its name.
    pub key: GroupKey,
    /// What it asked for.
    pub request: Arc<GroupRequest>,
    /// Whether its cells are reserved, not used.
    pub preempting: bool,
    /// Name of the chain.
    pub chain: String,
    /// Places, by member.
    pub pods: Vec<PodPlacementInfo>,
    /// Pods that wait for the reservation.
    pub preempting_pods: BTreeSet<String>,
    /// Set while the group runs as opportunistic.
    pub lazy_preemption: Option<LazyPreemptionStatus>,
}

impl AffinityGroup {
    /// Whether its virtual cluster guarantees its cells now.
    pub fn guaranteed(&self) -> bool {
        self.request.priority >= MIN_GUARANTEED_PRIORITY && self.lazy_preemption.is_none()
    }

    /// The priority at which it holds its cells.
    pub fn priority(&self) -> CellPriority {
        if self.guaranteed() { self.request.priority } else { crate::model::OPPORTUNISTIC_PRIORITY }
    }

    /// Physical leaves that the configuration has.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = CellIx> + '_ {
        self.pods.iter().flat_map(|pod| pod.leaves.iter().copied()).filter(|&leaf| leaf != NONE)
    }

    /// Leaves with their virtual leaves, also while it runs as opportunistic.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (CellIx, CellIx)> + '_ {
        self.pods
            .iter()
            .flat_map(|pod| pod.leaves.iter().copied().zip(pod.virtual_leaves.iter().copied()))
            .filter(|&(leaf, _)| leaf != NONE)
    }

    /// The virtual leaf of a physical one, if the group is guaranteed.
    pub(crate) fn virtual_leaf(&self, leaf: CellIx) -> Option<CellIx> {
        if !self.guaranteed() {
            return None;
        }
        let mut pairs = self.pairs().filter(|&(p, v)| p == leaf && v != NONE);
        pairs.next().map(|(_, v)| v)
    }

    /// Pods that have a place.
    pub fn allocated_pods(&self) -> impl Iterator<Item = &str> {
        self.pods.iter().filter_map(|pod| pod.pod.as_deref())
    }

    /// Nodes of its places, each once.
    pub fn nodes(&self) -> BTreeSet<&str> {
        self.pods.iter().map(|pod| pod.node.as_str()).collect()
    }
}
