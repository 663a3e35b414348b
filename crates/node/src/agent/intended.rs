//! Pods that Consul intends for the node, as last read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::state::StoredPod;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::manifest::content_hash;

/// A pod that is intended on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intended {
    /// The manifest, byte for byte.
    pub manifest: Arc<str>,
    /// Hash of manifest and devices. A pod whose hash changes is replaced.
    pub hash: u64,
    /// The replication controller in the pod's labels.
    pub owner: Option<RcId>,
    /// Device numbers allocated to the pod, by device kind.
    pub devices: BTreeMap<String, BTreeSet<u32>>,
}

impl From<StoredPod> for Intended {
    fn from(stored: StoredPod) -> Self {
        Intended {
            hash: hash_of(&stored.manifest, &stored.devices),
            manifest: stored.manifest.into(),
            owner: stored.owner,
            devices: stored.devices,
        }
    }
}

/// The hash of a pod. A pod without devices has the hash of its manifest.
pub(super) fn hash_of(manifest: &str, devices: &BTreeMap<String, BTreeSet<u32>>) -> u64 {
    if devices.is_empty() {
        return content_hash(manifest.as_bytes());
    }
    let numbers = format!("{devices:?}");
    content_hash(&[manifest.as_bytes(), b"\0", numbers.as_bytes()].concat())
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIntents {
    pub pods: BTreeMap<PodId, Intended>,
    /// Pods without an intent that the mass-deletion guard keeps running.
    pub guarded: BTreeSet<PodId>,
}
