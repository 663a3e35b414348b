//! `intent/`: what nodes are asked to run.

use std::collections::BTreeMap;

use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Entry, Index, Prefix};

/// What stands at `intent/<node>/<pod>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Nothing.
    Missing,
    /// The manifest that is wanted, byte for byte.
    Same(Index),
    /// Something else.
    Differs(Index),
}

impl Intent {
    /// The index to guard a change with; 0 when nothing is there.
    #[must_use]
    pub fn index(self) -> Index {
        match self {
            Intent::Missing => Index::ZERO,
            Intent::Same(index) | Intent::Differs(index) => index,
        }
    }
}

/// Places at which two maps differ; those that both have come twice.
pub(super) fn differing<'a, T: PartialEq>(
    old: &'a BTreeMap<PodRef, T>,
    new: &'a BTreeMap<PodRef, T>,
) -> impl Iterator<Item = &'a PodRef> {
    let one_way = |a: &'a BTreeMap<PodRef, T>, b: &'a BTreeMap<PodRef, T>| {
        a.iter().filter(|(place, seen)| b.get(*place) != Some(*seen)).map(|(place, _)| place)
    };
    one_way(old, new).chain(one_way(new, old))
}

/// `intent/`: index and hash of each manifest.
#[derive(Debug, Default)]
pub struct IntentIndex(BTreeMap<PodRef, (Index, u64)>);

impl IntentIndex {
    /// Places that differ between the two.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a PodRef> {
        differing(&old.0, &new.0)
    }

    /// Whether an intent is gone.
    #[must_use]
    pub fn freed(old: &Self, new: &Self) -> bool {
        old.0.keys().any(|place| !new.0.contains_key(place))
    }

    /// The index and the hash of the intent at a place.
    #[must_use]
    pub fn at(&self, place: &PodRef) -> Option<(Index, u64)> {
        self.0.get(place).copied()
    }

    /// The intent at a place, compared with the hash of the manifest that is wanted there.
    #[must_use]
    pub fn intent(&self, place: &PodRef, wanted: u64) -> Intent {
        match self.0.get(place) {
            None => Intent::Missing,
            Some((index, hash)) if *hash == wanted => Intent::Same(*index),
            Some((index, _)) => Intent::Differs(*index),
        }
    }
}

impl CacheIndex for IntentIndex {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let intent = |entry: Entry| {
            let (node, pod) = key::node_and_pod(prefix, &entry.key)?;
            let place = PodRef { node, pod };
            let hash = match old.0.get(&place) {
                Some((index, hash)) if *index == entry.modify_index => *hash,
                _ => content_hash(&entry.value),
            };
            Some((place, (entry.modify_index, hash)))
        };
        IntentIndex(entries.into_iter().filter_map(intent).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
