//! `health/`: health of pods as node agents report it.

use std::collections::BTreeMap;

use tokio::time::Instant;

use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::key;
use rcfarm_api::node::HealthReport;
use rcfarm_store::cache::Snapshot;
use rcfarm_store::{Decoder, Entry, Index, Prefix, VersionedIndex};

/// Decodes `health/<pod>/<node>`.
pub struct HealthDecoder;

impl Decoder for HealthDecoder {
    type Key = PodRef;
    type Value = HealthReport;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (pod, node) = key::pod_and_node(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(_: &PodRef, entry: &Entry) -> Option<HealthReport> {
        Some(HealthReport::decode(&entry.value))
    }
}

/// `health/`, by node and pod.
pub type Healths = VersionedIndex<HealthDecoder>;

/// Health of an RC's pods, read directly because its doorbell was rung. The cache is read less often.
#[derive(Debug, Clone)]
pub struct FreshHealth {
    pub(super) index: Index,
    pub(super) at: Instant,
    pub(super) pod: PodId,
    pub(super) reported: BTreeMap<NodeName, HealthReport>,
}

impl FreshHealth {
    /// The health at a place, unless the cache is newer or the pod has another id.
    pub(super) fn reported(
        &self,
        place: &PodRef,
        tree: &Snapshot<Healths>,
    ) -> Option<HealthReport> {
        let counts = place.pod == self.pod && !tree.shows(self.index, Some(self.at));
        counts.then(|| self.reported.get(&place.node).cloned().unwrap_or_default())
    }
}
