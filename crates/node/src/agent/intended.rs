//! Pods that Consul intends for the node, as last read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::state::StoredPod;
use rcfarm_api::allocation::{Allocation, AllocationOwner};
use rcfarm_api::ids::{Namespaced, PodId, RcId};
use rcfarm_api::job::identity::identity_in;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::status::IntentIndex;

/// A pod that is intended on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intended {
    /// The manifest, byte for byte.
    pub manifest: Arc<str>,
    /// Hash of manifest and devices. A pod whose hash changes is replaced.
    pub hash: u64,
    /// The replication controller in the pod's labels.
    pub owner: Option<RcId>,
    /// The job in the manifest, and its uid.
    pub job: Option<(Namespaced, JobUid)>,
    /// Device numbers allocated to the pod, by device kind.
    pub devices: BTreeMap<String, BTreeSet<u32>>,
    /// The intent's key. `None`: an older agent stored the pod.
    pub index: Option<IntentIndex>,
}

impl From<StoredPod> for Intended {
    fn from(stored: StoredPod) -> Self {
        let StoredPod { manifest, owner, devices, intent_index, reported: _, forgotten: _ } =
            stored;
        Intended { index: intent_index, ..Intended::new(&manifest, owner, devices) }
    }
}

impl Intended {
    pub(super) fn new(
        manifest: &str,
        owner: Option<RcId>,
        devices: BTreeMap<String, BTreeSet<u32>>,
    ) -> Self {
        let job = identity_in(manifest.as_bytes()).map(|identity| (identity.job, identity.uid));
        Intended {
            hash: hash_of(manifest, &devices),
            manifest: manifest.into(),
            owner,
            job,
            devices,
            index: None,
        }
    }

    /// Whether an allocation under the pod's id is the pod's own. Another owner may have written its allocation there:
    /// jobs of older farms share ids with others. An RC's allocation is written together with the pod's labels, so
    /// between two RCs the allocation counts.
    pub(super) fn is_own(&self, allocation: &Allocation) -> bool {
        match (&self.job, &allocation.owner) {
            (Some((job, _)), owner) => *owner == AllocationOwner::of_group(job),
            (None, AllocationOwner::Rc(_)) => true,
            (None, AllocationOwner::Other(_)) => self.owner.is_none(),
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
