//! What the owner of a job knows of its pods and the caches may not show yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::{JobCaches, Realities, RemovedPod};
use crate::cluster::intents::IntentVersions;
use crate::cluster::job_pods::LabelledMember;
use crate::cluster::nodes::NodeReadiness;
use crate::job::doorbells::FreshStatus;
use crate::job::writes::Made;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_store::cache::{Overlay, Snapshot};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Index, Versioned};

/// What the owner of a job knows of its pods and the caches may not show yet.
#[derive(Debug, Default)]
pub struct KnownPods {
    /// Own writes to `labels/pod/`. A released pod counts as deleted.
    pub labels: Overlay<PodRef, Arc<LabelledMember>>,
    /// Own writes to `intent/`: hashes of manifests.
    pub intents: Overlay<PodRef, Arc<Versioned<u64>>>,
    /// Pods that were read individually after the job's doorbell rang, until `status/pods/` shows that.
    pub(super) fresh: Overlay<PodRef, FreshStatus>,
    /// Hashes of their manifests in `reality/`, until that tree shows them. One of the two trees may lag.
    pub(super) fresh_reals: Overlay<PodRef, u64>,
    /// Pods that this owner has deleted, until their nodes report them no more.
    pub removed: BTreeMap<PodRef, RemovedPod>,
}

impl KnownPods {
    /// A pod was removed at `index`.
    pub fn remove(&mut self, place: PodRef, slot: Slot, index: Index, caches: &JobCaches) {
        let intent = self.intent(&caches.nodes.intents.snapshot(), &place).map(|one| **one);
        let mut removed = RemovedPod::new(slot, intent);
        removed.note_real(self.real(&caches.realities.snapshot(), &place));
        self.removed.insert(place.clone(), removed);
        caches.nodes.note_removed(&place);
        self.labels.wrote(place.clone(), None, index);
        self.intents.wrote(place, None, index);
    }

    /// A pod was made at `index`. `owner` is woken if somebody deletes it before the caches show it.
    pub fn made(&mut self, made: Made, index: Index, caches: &JobCaches, owner: &Arc<Notify>) {
        let Made { place, identity, manifest } = made;
        self.removed.remove(&place);
        caches.nodes.note_written(&place, index, owner);
        let value = content_hash(manifest.as_bytes());
        let intent = Arc::new(Versioned { index, created: index, value });
        self.intents.wrote(place.clone(), Some(intent), index);
        self.labels.wrote(place, Some(Arc::new(LabelledMember { index, identity })), index);
    }

    /// Takes in pods that were read individually. What was read earlier of others stays. `owner` is woken if a node ends
    /// such a pod before the cache of `reality/` shows it.
    pub fn read(
        &mut self,
        all: Vec<(PodRef, FreshStatus)>,
        caches: &JobCaches,
        owner: &Arc<Notify>,
    ) {
        for (place, fresh) in all {
            let index = fresh.index;
            // An agent writes both in one transaction.
            self.read_real(place.clone(), (fresh.real, index), caches, owner);
            self.fresh.wrote(place, Some(fresh), index);
        }
    }

    /// Without own writes: the caches have caught up with these, not with what was read individually.
    #[must_use]
    pub fn caught_up(self) -> KnownPods {
        let KnownPods { fresh, fresh_reals, removed, .. } = self;
        KnownPods { fresh, fresh_reals, removed, ..KnownPods::default() }
    }

    /// Forgets what the caches show.
    pub fn forget_shown(&mut self, caches: &JobCaches) {
        self.labels.forget_shown(&caches.nodes.pods.snapshot());
        self.intents.forget_shown(&caches.nodes.intents.snapshot());
        self.fresh.forget_shown(&caches.pod_states.snapshot());
        let realities = caches.realities.snapshot();
        self.fresh_reals.forget_shown(&realities);
        let mut removed = std::mem::take(&mut self.removed);
        removed.retain(|place, removed| {
            let real = self.real(&realities, place);
            removed.note_real(real);
            removed.is_leaving(real)
        });
        self.removed = removed;
    }

    /// Removed pods whose keys have to be read.
    #[must_use]
    pub fn unconfirmed(&self) -> Vec<PodRef> {
        let now = monotonic();
        let due = self.removed.iter().filter(|(_, removed)| removed.is_unconfirmed(now));
        due.map(|(place, _)| place.clone()).collect()
    }

    /// Takes in what `status/pods/` of a removed pod showed, and `reality/` after that: hash of its manifest and
    /// ModifyIndex. `owner` as for [`KnownPods::read`].
    pub fn read_removed(
        &mut self,
        place: PodRef,
        status: Option<&Entry>,
        real: Option<(u64, Index)>,
        caches: &JobCaches,
        owner: &Arc<Notify>,
    ) {
        let Some(removed) = self.removed.get_mut(&place) else { return };
        match real.filter(|(hash, _)| removed.is_real(Some(*hash))) {
            Some((hash, index)) => {
                removed.note_real(Some(hash));
                self.read_real(place, (Some(hash), index), caches, owner);
            }
            // A node that is down is not waited for. It says what it runs when it is back.
            None if status.is_some_and(|status| removed.is_reported(status))
                && caches.nodes.readiness(&place.node) != NodeReadiness::Down =>
            {
                removed.may_start();
            }
            None => drop(self.removed.remove(&place)),
        }
    }

    /// Takes in what was read of a pod's `reality/`: hash of its manifest, and an index at which it stood. The cache may
    /// never show it: `owner` is woken if it is gone when the cache can ([`Cache::note_write`]).
    fn read_real(
        &mut self,
        place: PodRef,
        (hash, index): (Option<u64>, Index),
        caches: &JobCaches,
        owner: &Arc<Notify>,
    ) {
        if hash.is_some() {
            let key = key::reality(&place.node, &place.pod);
            caches.realities.note_write(key, index, owner);
        }
        self.fresh_reals.wrote(place, hash, index);
    }

    /// Hash of the manifest that a node reports as real.
    pub(super) fn real(&self, realities: &Snapshot<Realities>, place: &PodRef) -> Option<u64> {
        let shown = || Some(realities.value.places.value(place)?.hash);
        self.fresh_reals.pending(realities, place).map_or_else(shown, Option::<&u64>::copied)
    }

    pub(super) fn intent<'a>(
        &'a self,
        intents: &'a Snapshot<IntentVersions>,
        place: &PodRef,
    ) -> Option<&'a Arc<Versioned<u64>>> {
        self.intents.get(intents, place, |all| all.0.get(place))
    }
}
