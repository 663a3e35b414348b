//! Pods that Consul intends for the node, as last read.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::sync::Arc;

use super::state::StoredPod;
use rcfarm_api::allocation::{Allocation, AllocationOwner};
use rcfarm_api::ids::{Namespaced, PodId, RcId};
use rcfarm_api::job::identity::identity_in;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::manifest::{Manifest, content_hash};
use rcfarm_api::node::status::IntentIndex;

/// A pod that is intended on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intended {
    /// The manifest, byte for byte.
    pub manifest: Arc<str>,
    /// Hash of manifest, devices and ports. A pod whose hash changes is replaced.
    pub hash: u64,
    /// The replication controller in the pod's labels.
    pub owner: Option<RcId>,
    /// The job in the manifest, and its uid.
    pub job: Option<(Namespaced, JobUid)>,
    /// Device numbers allocated to the pod, by device kind.
    pub devices: BTreeMap<String, BTreeSet<u32>>,
    /// Whether the manifest asks for ports.
    pub has_ports: bool,
    /// Numbers of its ports, by name, as they are allocated.
    pub ports: BTreeMap<String, u16>,
    /// The intent's key. `None`: an older agent stored the pod.
    pub index: Option<IntentIndex>,
}

impl From<StoredPod> for Intended {
    fn from(stored: StoredPod) -> Self {
        let StoredPod { manifest, owner, devices, ports, intent_index, .. } = stored;
        let mut intended = Intended::new(&manifest, owner);
        intended.allocate(devices, ports);
        Intended { index: intent_index, ..intended }
    }
}

impl Intended {
    /// A pod to which nothing is allocated yet.
    pub(super) fn new(manifest: &str, owner: Option<RcId>) -> Self {
        let job = identity_in(manifest.as_bytes()).map(|identity| (identity.job, identity.uid));
        Intended {
            hash: content_hash(manifest.as_bytes()),
            has_ports: asks_for_ports(manifest),
            manifest: manifest.into(),
            owner,
            job,
            devices: BTreeMap::new(),
            ports: BTreeMap::new(),
            index: None,
        }
    }

    /// Sets what is allocated to the pod. Ports are of a newer manifest where this one asks for none.
    pub(super) fn allocate(
        &mut self,
        devices: BTreeMap<String, BTreeSet<u32>>,
        ports: BTreeMap<String, u16>,
    ) {
        let ports = if self.has_ports { ports } else { BTreeMap::new() };
        self.hash = hash_of(&self.manifest, &devices, &ports);
        (self.devices, self.ports) = (devices, ports);
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

/// Whether a manifest asks for ports. One that the parser panics on asks for nothing: its pod tells of it.
fn asks_for_ports(manifest: &str) -> bool {
    let parse = || Manifest::parse(manifest).is_ok_and(|manifest| !manifest.ports().is_empty());
    manifest.contains("ports") && catch_unwind(parse).unwrap_or_default()
}

/// The hash of a pod. A pod without devices and ports has the hash of its manifest.
fn hash_of(
    manifest: &str,
    devices: &BTreeMap<String, BTreeSet<u32>>,
    ports: &BTreeMap<String, u16>,
) -> u64 {
    let mut text = manifest.as_bytes().to_vec();
    if !devices.is_empty() {
        text.extend(format!("\0{devices:?}").bytes());
    }
    if !ports.is_empty() {
        text.extend(format!("\0ports {ports:?}").bytes());
    }
    content_hash(&text)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeIntents {
    pub pods: BTreeMap<PodId, Intended>,
    /// Pods without an intent that the mass-deletion guard keeps running.
    pub guarded: BTreeSet<PodId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_counts_ports_of_a_manifest_that_asks_for_some() {
        let ports = || BTreeMap::from([("http".to_owned(), 20_001)]);
        let plain = "id: web\nargs: [--reports]\n";
        let mut pod = Intended::new(plain, None);
        pod.allocate(BTreeMap::new(), ports());
        assert_eq!((pod.has_ports, pod.hash), (false, content_hash(plain.as_bytes())));
        let mut pod = Intended::new("id: web\nports: [{name: http}]\n", None);
        let before = pod.hash;
        pod.allocate(BTreeMap::new(), ports());
        assert!(pod.has_ports && pod.hash != before);
        let gpu = || BTreeMap::from([("gpu".to_owned(), [0].into())]);
        pod.allocate(gpu(), BTreeMap::new());
        let devices = pod.hash;
        pod.allocate(gpu(), ports());
        assert!(![before, devices].contains(&pod.hash));
    }
}
