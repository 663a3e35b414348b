//! Pods that node agents report as real, by node and by job.

use std::collections::BTreeMap;

use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::identity::{PodIdentity, identity_in};
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Decoder, Entry, Key, Prefix, VersionedIndex};

/// Pod that a node agent reports as real.
#[derive(Debug, PartialEq)]
pub struct Real {
    pub(super) hash: u64,
    /// `None`: its manifest was not made for a job. A job may have adopted it.
    pub(super) identity: Option<PodIdentity>,
}

/// Decodes `reality/<node>/<pod>`.
pub struct RealityDecoder;

impl Decoder for RealityDecoder {
    type Key = PodRef;
    type Value = Real;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (node, pod) = key::node_and_pod(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(_: &PodRef, entry: &Entry) -> Option<Real> {
        let (hash, identity) = (content_hash(&entry.value), identity_in(&entry.value));
        Some(Real { hash, identity })
    }
}

/// `reality/`, by node and pod, and by job.
#[derive(Debug, Default)]
pub struct Realities {
    pub(super) places: VersionedIndex<RealityDecoder>,
    pub(super) by_job: BTreeMap<Namespaced, Vec<PodRef>>,
}

impl Realities {
    /// Pods that differ between two snapshots.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a PodRef> {
        VersionedIndex::touched(&old.places, &new.places)
    }

    /// Job that the pod was made for.
    pub(super) fn job_at(&self, place: &PodRef) -> Option<&Namespaced> {
        Some(&self.places.value(place)?.identity.as_ref()?.job)
    }
}

impl CacheIndex for Realities {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let places = VersionedIndex::build(&old.places, prefix, entries);
        let mut by_job: BTreeMap<Namespaced, Vec<PodRef>> = BTreeMap::new();
        for (place, real) in &places.0 {
            if let Some(identity) = &real.value.identity {
                by_job.entry(identity.job.clone()).or_default().push(place.clone());
            }
        }
        Realities { places, by_job }
    }

    fn len(&self) -> usize {
        self.places.len()
    }

    fn has_key(&self, prefix: &Prefix, key: &Key) -> bool {
        self.places.has_key(prefix, key)
    }
}
