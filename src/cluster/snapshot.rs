//! View of the cluster from one-shot reads, for commands. It is decoded by the same code as the caches of a farm.

use super::allocations::AllocationIndex;
use super::nodes::{NodeIndex, NodeReadiness, NodeRecords};
use super::pods::PodLabels;
use crate::placement::capacity::{Fleet, NodeCapacities};
use rcfarm_api::ids::NodeName;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Entry, Prefix, Query, Reader, StoreError};

/// Nodes, pods and allocations. Prefixes that were not read are empty.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    /// `labels/node/`
    pub nodes: NodeIndex,
    /// `rcfarm/nodes/`
    pub records: NodeRecords,
    /// `labels/pod/`
    pub pods: PodLabels,
    /// `rcfarm/allocations/`
    pub allocations: AllocationIndex,
}

impl ClusterSnapshot {
    /// Reads some prefixes, one after the other.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_once(
        reader: &dyn Reader,
        prefixes: impl IntoIterator<Item = Prefix>,
    ) -> Result<Self, StoreError> {
        let mut entries = Vec::new();
        for prefix in prefixes {
            entries.extend(reader.list(&prefix, Query::PLAIN).await?.value);
        }
        Ok(Self::of(&entries))
    }

    /// Decodes `entries`. Those of other prefixes are ignored.
    pub fn of(entries: &[Entry]) -> Self {
        ClusterSnapshot {
            nodes: index(&key::labels(LabelKind::Node), entries),
            records: index(&key::nodes(), entries),
            pods: index(&key::labels(LabelKind::Pod), entries),
            allocations: index(&key::allocations(), entries),
        }
    }

    /// Whether a node may run pods. An agent without a session counts as down at once: a single read does not tell
    /// since when.
    pub fn readiness(&self, node: &NodeName) -> NodeReadiness {
        self.records.readiness_without_grace(node)
    }

    /// Input for the placement of gangs.
    pub fn fleet(&self) -> Fleet {
        let labels = self.nodes.labels.clone();
        let is_unfit = |node: &&NodeName| self.readiness(node) != NodeReadiness::Ready;
        let unfit = labels.nodes.keys().filter(is_unfit).cloned().collect();
        Fleet { labels, unfit, node_capacities: self.node_capacities() }
    }

    /// Capacity and allocations of the nodes.
    pub fn node_capacities(&self) -> NodeCapacities {
        self.allocations.node_capacities(&self.records.capacities)
    }
}

fn index<I: CacheIndex>(prefix: &Prefix, entries: &[Entry]) -> I {
    let is_below =
        |entry: &&Entry| prefix.tail(&entry.key).is_some() && !prefix.is_sentinel(&entry.key);
    I::build(&I::default(), prefix, entries.iter().filter(is_below).cloned().collect())
}
