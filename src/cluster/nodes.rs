//! Nodes: their labels, and their own records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use super::allocations::{Capacities, DeclaredCapacity};
use crate::placement::NodeLabels;
use rcfarm_api::Stored;
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::node::record::{DrainJobs, NodeRecord, NodeState};
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Index, Prefix};

/// Whether a node may run pods, besides its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeReadiness {
    /// Pods may be added. Also nodes without a record, such as p2's.
    Ready,
    /// Pods of several records failed to start there recently: none is added for a while, and those that run stay.
    Suspect,
    /// It failed to start this record's pod recently: none is added. If the strategy is dynamic, a pod there is moved.
    Quarantined,
    /// It is being drained: pods of every strategy leave as their RC's minimum health permits.
    Draining,
    /// Its agent's session has been gone for longer than the grace period: its pods count as lost.
    Down,
}

/// `labels/node/`. A node whose labels cannot be decoded matches no selector. No `VersionedIndex`: schedulers share
/// [`NodeLabels`], which is all of them in one `Arc`.
#[derive(Debug, Default)]
pub struct NodeIndex {
    /// Labels that can be decoded.
    pub labels: Arc<NodeLabels>,
    /// ModifyIndex of each node's labels. Those that cannot be decoded are logged once.
    indexes: BTreeMap<NodeName, Index>,
}

impl NodeIndex {
    /// ModifyIndex of a node's labels.
    #[must_use]
    pub fn index_of(&self, node: &NodeName) -> Option<Index> {
        self.indexes.get(node).copied()
    }
}

impl CacheIndex for NodeIndex {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let (mut nodes, mut indexes) = (BTreeMap::new(), BTreeMap::new());
        for entry in entries {
            let Some(node) = prefix.tail(&entry.key).and_then(|node| node.parse().ok()) else {
                continue;
            };
            let node: NodeName = node;
            indexes.insert(node.clone(), entry.modify_index);
            match decode_labels(&entry.value) {
                Ok(labels) => drop(nodes.insert(node, labels)),
                Err(error) => {
                    if old.index_of(&node) != Some(entry.modify_index) {
                        warn!(alert = true, key = entry.key, %error,
                            "a node's labels cannot be read: no pod is added there");
                    }
                }
            }
        }
        NodeIndex { labels: Arc::new(NodeLabels { nodes }), indexes }
    }

    fn len(&self) -> usize {
        self.indexes.len()
    }
}

/// The parts of `rcfarm/nodes/<node>` that placement needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NodeInfo {
    /// ModifyIndex of the record.
    index: Index,
    /// Address of its pods; empty if it has none.
    pub(super) address: String,
    pub(super) draining: bool,
    /// Whether it drains and members of jobs are to leave at once.
    pub(super) evicts_jobs: bool,
    /// Its pods may live this long after the end of its session.
    lease: Duration,
    /// Whether an agent of rcfarm registered it. Such an agent reports a status with each reality.
    pub(super) has_agent: bool,
    /// Since when its agent's session has been gone; `None` while it is live, or if there never was one.
    gone_since: Option<Instant>,
}

impl NodeInfo {
    /// When the node counts as down, unless its agent comes back.
    pub(super) fn down_at(&self, grace: Duration) -> Option<Instant> {
        Some(self.gone_since? + grace.max(self.lease))
    }
}

/// `rcfarm/nodes/`. A node without a record, such as one of p2's, is ready. No `VersionedIndex`: since when an agent has
/// been gone survives a new version of its record.
#[derive(Debug, Default, PartialEq)]
pub struct NodeRecords {
    /// Records that can be decoded. A node with another one counts as ready.
    pub(super) nodes: BTreeMap<NodeName, NodeInfo>,
    /// ModifyIndex of each record. Those that cannot be decoded are logged once.
    indexes: BTreeMap<NodeName, Index>,
    pub(super) capacities: Capacities,
}

impl NodeRecords {
    /// Nodes whose records differ between two snapshots.
    pub(super) fn touched(old: &Self, new: &Self) -> BTreeSet<NodeName> {
        differing(&old.nodes, &new.nodes)
    }

    /// ModifyIndex of a node's record.
    #[must_use]
    pub fn index_of(&self, node: &NodeName) -> Option<Index> {
        self.indexes.get(node).copied()
    }

    /// Whether a node has a record that can be decoded.
    #[must_use]
    pub fn contains(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node)
    }

    /// Whether an agent of rcfarm holds the node's record now.
    #[must_use]
    pub fn has_live_agent(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|info| info.has_agent && info.gone_since.is_none())
    }

    /// Readiness of a node, where an agent without a session counts as down at once.
    pub(super) fn readiness_without_grace(&self, node: &NodeName) -> NodeReadiness {
        match self.nodes.get(node) {
            Some(info) if info.gone_since.is_some() => NodeReadiness::Down,
            Some(NodeInfo { draining: true, .. }) => NodeReadiness::Draining,
            _ => NodeReadiness::Ready,
        }
    }

    pub(super) fn readiness(
        &self,
        node: &NodeName,
        now: Instant,
        grace: Duration,
    ) -> NodeReadiness {
        match self.nodes.get(node) {
            Some(info) if info.down_at(grace).is_some_and(|at| now >= at) => NodeReadiness::Down,
            Some(NodeInfo { draining: true, .. }) => NodeReadiness::Draining,
            _ => NodeReadiness::Ready,
        }
    }
}

impl CacheIndex for NodeRecords {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let (mut nodes, mut capacities) = (BTreeMap::new(), BTreeMap::new());
        let mut indexes = BTreeMap::new();
        for entry in entries {
            let Some(node) = prefix.tail(&entry.key).and_then(|node| node.parse().ok()) else {
                continue;
            };
            let node: NodeName = node;
            indexes.insert(node.clone(), entry.modify_index);
            let known = old.nodes.get(&node);
            if let Some(same) = known.filter(|known| known.index == entry.modify_index) {
                if let Some(capacity) = old.capacities.get(&node) {
                    capacities.insert(node.clone(), capacity.clone());
                }
                nodes.insert(node, same.clone());
                continue;
            }
            let record = match NodeRecord::decode(&entry.value) {
                Ok(record) => record,
                Err(error) => {
                    if old.index_of(&node) != Some(entry.modify_index) {
                        warn!(alert = true, key = entry.key, %error,
                            "a node's record cannot be read: it counts as ready");
                    }
                    continue;
                }
            };
            let gone = record.session.is_some() && entry.session.is_none();
            let since = known.and_then(|info| info.gone_since);
            let gone_since = gone.then(|| since.unwrap_or_else(monotonic));
            let draining = record.state == NodeState::Draining;
            let evicts_jobs = draining && record.drain_jobs == Some(DrainJobs::Evict);
            if !record.capacity.is_zero() || record.ports.is_some() {
                let NodeRecord { capacity, ports, .. } = &record;
                let declared = DeclaredCapacity { capacity: capacity.clone(), ports: *ports };
                capacities.insert(node.clone(), declared);
            }
            let lease = Duration::from_millis(record.lease_ms.unwrap_or(0));
            let (index, has_agent) = (entry.modify_index, record.session.is_some());
            let address = record.address;
            let info =
                NodeInfo { index, address, draining, evicts_jobs, lease, has_agent, gone_since };
            nodes.insert(node, info);
        }
        let same = *old.capacities == capacities;
        let capacities = if same { old.capacities.clone() } else { Arc::new(capacities) };
        NodeRecords { nodes, indexes, capacities }
    }

    fn len(&self) -> usize {
        self.indexes.len()
    }
}

/// Keys whose value differs between two maps.
pub(super) fn differing<K: Ord + Clone, V: PartialEq>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
) -> BTreeSet<K> {
    rcfarm_store::differing(old, new, V::eq).into_iter().cloned().collect()
}
