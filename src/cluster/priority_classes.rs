//! `rcfarm/priority_classes/`: records of priority classes.

use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::{PriorityClassRecord, PriorityClasses};
use rcfarm_api::{FieldError, Stored};
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

/// The valid classes.
#[must_use]
pub fn valid(index: &PriorityClassIndex) -> PriorityClasses {
    PriorityClasses::of(
        index.0.iter().filter_map(|(name, stored)| Some((name, stored.value.as_ref().ok()?))),
    )
}
