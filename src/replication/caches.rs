//! Shared by all RC controllers of a farm: statuses, doorbells, and which RCs wait for capacity or a slot.
//!
//! Only the owner of an RC changes its pods, so its own last write counts more than an older cache ([`PendingWrites`]).
//! The caches show what other people wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::plan::{RcPod, SlotState};
use super::statuses::{RcStatuses, StatusReads};
use crate::cluster::ClusterView;
use crate::cluster::health::FreshHealth;
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::pods::LabelledPod;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_store::cache::Snapshot;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Index, Reader, StoreError};

/// The owner's own writes that the caches do not show yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingWrites {
    /// Index of the last transaction that changed pods.
    pub index: Index,
    /// When it was answered.
    pub at: Instant,
    /// All pods after it; their health is not known from here.
    pub pods: BTreeMap<PodRef, RcPod>,
    /// Places from which a pod was removed.
    pub removed: BTreeSet<PodRef>,
    /// Hash of the manifest that [`Intent::Same`] is about.
    pub manifest: u64,
}

impl PendingWrites {
    fn is_older_than<T>(&self, seen: &Snapshot<T>) -> bool {
        enabled(Failpoint::OwnWritesForgotten) || seen.shows(self.index, Some(self.at))
    }
}

/// Shared by all RC controllers of a farm.
pub struct RcCaches {
    /// Nodes, pods, intents, health, allocations.
    pub cluster: Arc<ClusterView>,
    pub(super) statuses: RcStatuses,
    /// RCs that wait for capacity or for a free slot.
    waiting: Mutex<BTreeSet<RcId>>,
    /// RCs whose doorbells were rung since their pods' health was last read.
    rung: Mutex<BTreeSet<RcId>>,
}

impl RcCaches {
    /// Caches that are not read yet.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>, cluster: Arc<ClusterView>) -> Arc<Self> {
        Arc::new(RcCaches {
            cluster,
            statuses: RcStatuses::new(reader),
            waiting: Mutex::default(),
            rung: Mutex::default(),
        })
    }

    /// Reads the statuses and then the pods. Does nothing if all records concerned were created after the last read of
    /// the statuses: each transaction of an owner writes the RC's status, so without a status there are no pods.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        if self.statuses.is_before(oldest) {
            return Ok(());
        }
        // Until all is read, controllers get no status from here and read for themselves: the caches may be empty or
        // old.
        self.statuses.keep(StatusReads::default());
        let book = self.statuses.read_all().await?;
        self.cluster.catch_up().await?;
        self.statuses.keep(book);
        Ok(())
    }

    /// Notes that an RC's doorbell was rung.
    pub fn note_rung(&self, id: RcId) {
        self.rung().insert(id);
    }

    /// Whether an RC's doorbell was rung since the last call.
    pub fn take_rung(&self, id: RcId) -> bool {
        self.rung().remove(&id)
    }

    fn rung(&self) -> std::sync::MutexGuard<'_, BTreeSet<RcId>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether an RC waits for capacity or a slot; returns whether that is a change. One that waits is woken by
    /// every change of allocations, and whenever a pod or an intent disappears.
    pub(super) fn waits_for_room(&self, id: RcId, waits: bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waits { waiting.insert(id) } else { waiting.remove(&id) }
    }

    /// RCs that wait for capacity or for a free slot.
    pub(super) fn waiting(&self) -> BTreeSet<RcId> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pods of an RC: from its owner's own transactions where these are newer than the caches.
    #[must_use]
    pub fn pods_of(
        &self,
        spec: &RcSpec,
        known: Option<&PendingWrites>,
        fresh: Option<&FreshHealth>,
    ) -> BTreeMap<PodRef, RcPod> {
        let (labels, intents) = (self.cluster.pods.snapshot(), self.cluster.intents.snapshot());
        let wanted = content_hash(spec.manifest.text().as_bytes());
        let newer = known.filter(|known| !known.is_older_than(&labels));
        let newer_intents = known.filter(|known| !known.is_older_than(&intents));
        let intent = |place: &PodRef| {
            let known = newer_intents.and_then(|known| Some((known, known.pods.get(place)?)));
            match known.map(|(known, pod)| (pod.intent, known.manifest == wanted)) {
                Some((Intent::Same(index), false)) => Intent::Differs(index),
                Some((intent, _)) => intent,
                None => Intent::at(place, &intents.value, wanted),
            }
        };
        let health = |place: &PodRef| self.cluster.reported(place, fresh).health;
        if let Some(known) = newer {
            let pod = |(place, pod): (&PodRef, &RcPod)| {
                let (intent, health) = (intent(place), health(place));
                (place.clone(), RcPod { intent, health, ..pod.clone() })
            };
            return known.pods.iter().map(pod).collect();
        }
        let pod = |(place, seen): (&PodRef, &LabelledPod)| {
            let pod = RcPod {
                label_index: seen.index,
                created: seen.created,
                labels: seen.value.labels.clone().unwrap_or_default(),
                intent: intent(place),
                health: health(place),
            };
            (place.clone(), pod)
        };
        labels.value.of_rc(spec.id).map(pod).collect()
    }

    /// What occupies the slot of the RC's pod id on `node`.
    #[must_use]
    pub fn slot(&self, spec: &RcSpec, known: Option<&PendingWrites>, node: &NodeName) -> SlotState {
        let place = PodRef { node: node.clone(), pod: spec.manifest.id().clone() };
        let (labels, intents) = (self.cluster.pods.snapshot(), self.cluster.intents.snapshot());
        let removed = known.is_some_and(|known| known.removed.contains(&place));
        let labels_old = known.is_some_and(|known| !known.is_older_than(&labels));
        if labels.value.get(&place).is_some() && !(removed && labels_old) {
            return SlotState::Other;
        }
        let intents_old = known.is_some_and(|known| !known.is_older_than(&intents));
        if removed && intents_old {
            return SlotState::Nobody;
        }
        let wanted = content_hash(spec.manifest.text().as_bytes());
        match Intent::at(&place, &intents.value, wanted) {
            Intent::Missing => SlotState::Nobody,
            Intent::Same(index) => SlotState::Ours(index),
            Intent::Differs(_) => SlotState::Other,
        }
    }

    /// Whether the caches show everything in `known`, so that it can be dropped.
    #[must_use]
    pub fn has_caught_up(&self, known: &PendingWrites) -> bool {
        known.is_older_than(&self.cluster.pods.snapshot())
            && known.is_older_than(&self.cluster.intents.snapshot())
    }

    /// Nodes of `pods` whose pods are healthy. A node that is down counts as unhealthy, whatever was reported last.
    #[must_use]
    pub fn healthy_nodes(&self, pods: &BTreeMap<PodRef, RcPod>) -> BTreeSet<NodeName> {
        let healthy = pods.iter().filter(|(place, pod)| {
            pod.health == Health::Passing
                && self.cluster.readiness(&place.node) != NodeReadiness::Down
        });
        healthy.map(|(place, _)| place.node.clone()).collect()
    }
}
