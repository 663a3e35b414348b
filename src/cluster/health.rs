//! `health/`: health of pods as node agents report it.

use std::collections::BTreeMap;

use tokio::time::Instant;

use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::node::HealthReport;
use rcfarm_store::cache::{CacheIndex, Snapshot};
use rcfarm_store::{Entry, Index, Prefix};

/// `health/`, by place.
#[derive(Debug, Default)]
pub struct Healths(pub(super) BTreeMap<PodRef, HealthReport>);

impl Healths {
    /// Places that differ between the two.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a PodRef> {
        let one_way = |a: &'a Self, b: &'a Self| {
            a.0.iter()
                .filter(|(place, seen)| b.0.get(*place) != Some(*seen))
                .map(|(place, _)| place)
        };
        one_way(old, new).chain(one_way(new, old))
    }
}

impl CacheIndex for Healths {
    fn build(_: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let health = |entry: Entry| {
            let (pod, node) = prefix.tail(&entry.key)?.split_once('/')?;
            let place = PodRef { node: node.parse().ok()?, pod: pod.parse().ok()? };
            Some((place, HealthReport::decode(&entry.value)))
        };
        Healths(entries.into_iter().filter_map(health).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

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
