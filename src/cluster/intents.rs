//! `intent/`: manifests that nodes shall run.

use serde::{Deserialize, Serialize};

use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_store::{Decoder, Entry, Index, Prefix, Versioned, VersionedIndex};

/// The value at `intent/<node>/<pod>`, compared with a wanted manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// No key.
    Missing,
    /// The manifest that is wanted, byte for byte.
    Same(Index),
    /// Another manifest.
    Differs(Index),
}

impl Intent {
    /// Compares the intent at a place with the hash of the wanted manifest.
    pub fn of(stored: Option<&Versioned<u64>>, wanted: u64) -> Intent {
        match stored {
            None => Intent::Missing,
            Some(intent) if intent.value == wanted => Intent::Same(intent.index),
            Some(intent) => Intent::Differs(intent.index),
        }
    }

    /// ModifyIndex that guards a change; 0 if there is no key.
    #[must_use]
    pub fn index(self) -> Index {
        match self {
            Intent::Missing => Index::ZERO,
            Intent::Same(index) | Intent::Differs(index) => index,
        }
    }
}

/// Decodes `intent/<node>/<pod>`: the hash of the manifest.
pub struct IntentDecoder;

impl Decoder for IntentDecoder {
    type Key = PodRef;
    type Value = u64;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (node, pod) = key::node_and_pod(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(_: &PodRef, entry: &Entry) -> Option<u64> {
        Some(content_hash(&entry.value))
    }
}

/// `intent/`: index and hash of each manifest.
pub type IntentVersions = VersionedIndex<IntentDecoder>;
