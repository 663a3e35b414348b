//! `rcfarm/priority_classes/`: records of priority classes.

use std::sync::Arc;

use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::{PriorityClassRecord, PriorityClasses};
use rcfarm_api::{FieldError, Stored};
use rcfarm_store::cache::Snapshot;
use rcfarm_store::{Decoder, Entry, Prefix, VersionedIndex};

/// Decodes `rcfarm/priority_classes/<name>`.
pub struct PriorityClassDecoder;

impl Decoder for PriorityClassDecoder {
    type Key = ObjectName;
    type Value = Result<PriorityClassRecord, FieldError>;

    fn key(prefix: &Prefix, key: &str) -> Option<ObjectName> {
        prefix.tail(key)?.parse().ok()
    }

    fn decode(_: &ObjectName, entry: &Entry) -> Option<Self::Value> {
        Some(PriorityClassRecord::decode(&entry.value))
    }
}

/// `rcfarm/priority_classes/`
pub type PriorityClassIndex = VersionedIndex<PriorityClassDecoder>;

/// Priority classes without those losses that the mass deletion guard does not trust.
#[derive(Debug, Default)]
pub struct KeptClasses(Arc<PriorityClassIndex>);

impl KeptClasses {
    /// Takes in a read of the tree, and returns the classes that count. While the tree is not trusted, classes that are
    /// not in it any more count as they did when it was trusted last.
    pub fn update(&mut self, seen: &Snapshot<PriorityClassIndex>) -> PriorityClasses {
        if seen.untrusted.is_none() {
            self.0 = seen.value.clone();
            return valid(&seen.value);
        }
        let mut all = self.0.0.clone();
        all.extend(seen.value.0.iter().map(|(name, class)| (name.clone(), class.clone())));
        valid(&VersionedIndex(all)).incomplete()
    }
}

/// The valid classes.
#[must_use]
pub fn valid(index: &PriorityClassIndex) -> PriorityClasses {
    PriorityClasses::of(
        index.0.iter().filter_map(|(name, stored)| Some((name, stored.value.as_ref().ok()?))),
    )
}
