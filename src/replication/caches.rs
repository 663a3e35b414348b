//! Shared by all RC controllers of a farm: statuses, doorbells, and which RCs wait for capacity or a slot.
//!
//! Only the owner of an RC changes its pods, so its own writes count more than an older cache ([`OwnWrites`]).
//! The caches show what other people wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::RcPods;
use super::interests::Interests;
use super::plan::{RcPod, SlotState, SurplusPods};
use super::statuses::RcStatuses;
use super::writes::UNCOMMITTED;
use crate::cluster::ClusterView;
use crate::cluster::health::FreshHealth;
use crate::cluster::intents::{Intent, IntentVersions};
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::pods::LabelledPod;
use crate::cluster::wake::NodeChanges;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::labels::Labels;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_store::cache::{Overlay, Snapshot};
use rcfarm_store::{Index, Reader, StoreError, Versioned};

/// The owner's own writes of pods that the caches may not show yet.
#[derive(Default)]
pub struct OwnWrites {
    /// `labels/pod/`
    pub labels: Overlay<PodRef, Versioned<Labels>>,
    /// `intent/`: hashes of manifests.
    pub intents: Overlay<PodRef, Arc<Versioned<u64>>>,
}

impl OwnWrites {
    /// Records the pods before and after a transaction that was committed at `index`.
    pub fn committed(&mut self, spec: &RcSpec, before: &RcPods, after: &mut RcPods, index: Index) {
        for place in before.keys().filter(|place| !after.contains_key(place)) {
            self.labels.wrote(place.clone(), None, index);
            self.intents.wrote(place.clone(), None, index);
        }
        let manifest = content_hash(spec.manifest.text().as_bytes());
        for (place, pod) in after {
            if pod.created == UNCOMMITTED {
                pod.created = index;
            }
            if pod.label_index == UNCOMMITTED {
                pod.label_index = index;
                let (created, value) = (pod.created, pod.labels.clone());
                let labels = Versioned { index, created, value };
                self.labels.wrote(place.clone(), Some(labels), index);
            }
            if pod.intent == Intent::Same(UNCOMMITTED) {
                pod.intent = Intent::Same(index);
                // An intent that was rewritten is older than its last version.
                let was_there = before.get(place).is_some_and(|b| b.intent != Intent::Missing);
                let created = if was_there { Index::ZERO } else { index };
                let intent = Versioned { index, created, value: manifest };
                self.intents.wrote(place.clone(), Some(Arc::new(intent)), index);
            }
        }
    }

    fn intent(&self, intents: &Snapshot<IntentVersions>, place: &PodRef, wanted: u64) -> Intent {
        Intent::of(self.intents.get(intents, place, |all| all.0.get(place)).map(|i| &**i), wanted)
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
    interests: Mutex<Interests>,
}

impl RcCaches {
    /// Caches that are not read yet.
    pub fn new(reader: Arc<dyn Reader>, cluster: Arc<ClusterView>) -> Arc<Self> {
        Arc::new(RcCaches {
            cluster,
            statuses: RcStatuses::new(reader),
            waiting: Mutex::default(),
            rung: Mutex::default(),
            interests: Mutex::default(),
        })
    }

    /// RCs that a change of nodes concerns, if nodes are eligible by their labels alone: those with pods on the nodes,
    /// those that can use other nodes than before, and those that look for one.
    pub(super) fn concerned(&self, changes: &NodeChanges<'_>) -> BTreeSet<RcId> {
        let pods = self.cluster.pods.snapshot();
        let mut concerned = self.interests().concerned(changes);
        concerned.extend(changes.nodes.iter().flat_map(|node| pods.value.rcs_on(node)));
        concerned
    }

    /// What changes of nodes concern which RC.
    pub(super) fn interests(&self) -> std::sync::MutexGuard<'_, Interests> {
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the statuses and then the pods. Does nothing if all records concerned were created after the last read of
    /// the statuses: each transaction of an owner writes the RC's status, so without a status there are no pods.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        let read = async {
            let statuses = self.statuses.list().await?;
            self.cluster.catch_up().await?;
            Ok(statuses)
        };
        self.statuses.at_claim.refresh(oldest, read).await
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
    pub(super) fn set_waiting(&self, id: RcId, waits: bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waits { waiting.insert(id) } else { waiting.remove(&id) }
    }

    /// RCs that wait for capacity or for a free slot.
    pub(super) fn waiting(&self) -> BTreeSet<RcId> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pods of an RC: from its owner's own writes where these are newer than the caches.
    pub fn pods_of(&self, spec: &RcSpec, own: &OwnWrites, fresh: Option<&FreshHealth>) -> RcPods {
        let (labels, intents) = (self.cluster.pods.snapshot(), self.cluster.intents.snapshot());
        let wanted = content_hash(spec.manifest.text().as_bytes());
        let cached = |(place, pod): (&PodRef, &LabelledPod)| {
            let Versioned { index, created, value } = pod;
            let value = value.labels.clone().unwrap_or_default();
            (place.clone(), Versioned { index: *index, created: *created, value })
        };
        let mut pods = labels.value.of_rc(spec.id).map(cached).collect();
        own.labels.apply(&labels, &mut pods);
        let pod = |(place, labelled): (PodRef, Versioned<Labels>)| {
            let pod = RcPod {
                label_index: labelled.index,
                created: labelled.created,
                labels: labelled.value,
                intent: own.intent(&intents, &place, wanted),
                health: self.cluster.reported(&place, fresh).health,
                unproved: false,
            };
            (place, pod)
        };
        pods.into_iter().map(pod).collect()
    }

    /// The intent at a place: its hash, and when it was written.
    pub(super) fn intent_at(&self, own: &OwnWrites, place: &PodRef) -> Option<Versioned<u64>> {
        let intents = self.cluster.intents.snapshot();
        own.intents.get(&intents, place, |all| all.0.get(place)).map(|intent| **intent)
    }

    /// What occupies the slot of the RC's pod id on `node`.
    pub fn slot(&self, spec: &RcSpec, own: &OwnWrites, node: &NodeName) -> SlotState {
        let place = PodRef { node: node.clone(), pod: spec.manifest.id().clone() };
        let (labels, intents) = (self.cluster.pods.snapshot(), self.cluster.intents.snapshot());
        let has_pod = match own.labels.pending(&labels, &place) {
            Some(written) => written.is_some(),
            None => labels.value.get(&place).is_some(),
        };
        if has_pod {
            return SlotState::Other;
        }
        let wanted = content_hash(spec.manifest.text().as_bytes());
        match own.intent(&intents, &place, wanted) {
            Intent::Missing => SlotState::Nobody,
            Intent::Same(index) => SlotState::Ours(index),
            Intent::Differs(_) => SlotState::Other,
        }
    }

    /// Surplus pods of disabled RCs with the RC's pod id. `record` returns another RC's record, if it is valid, and its
    /// ModifyIndex.
    pub fn surplus(
        &self,
        spec: &RcSpec,
        own: &OwnWrites,
        fresh: Option<&FreshHealth>,
        record: impl Fn(RcId) -> Option<(RcSpec, Index)>,
    ) -> BTreeMap<RcId, SurplusPods> {
        let (labels, intents) = (self.cluster.pods.snapshot(), self.cluster.intents.snapshot());
        let (id, wanted) = (spec.manifest.id(), content_hash(spec.manifest.text().as_bytes()));
        let surplus = |rc: RcId| {
            let (old, index) = record(rc).filter(|(old, _)| old.disabled)?;
            // What this RC has taken since, the cache may still show as the other's.
            let is_old =
                |(place, _): &(&PodRef, &LabelledPod)| own.labels.pending(&labels, place).is_none();
            let all: Vec<_> = labels.value.of_rc(rc).filter(is_old).collect();
            let surplus = all.len().saturating_sub(old.replicas_desired as usize);
            let pod = |(place, labelled): (&PodRef, &LabelledPod)| {
                let pod = RcPod {
                    label_index: labelled.index,
                    created: labelled.created,
                    labels: labelled.value.labels.clone().unwrap_or_default(),
                    intent: own.intent(&intents, place, wanted),
                    health: self.cluster.reported(place, fresh).health,
                    unproved: false,
                };
                (place.node.clone(), pod)
            };
            let pods = all.into_iter().filter(|(place, _)| place.pod == *id).map(pod).collect();
            (surplus > 0).then_some((rc, SurplusPods { record: index, surplus, pods }))
        };
        let others = labels.value.rcs_with(id).filter(|rc| *rc != spec.id);
        others.filter_map(surplus).collect()
    }

    /// Nodes of `pods` whose pods are healthy. A node that is down counts as unhealthy, whatever was reported last.
    pub fn healthy_nodes(&self, pods: &RcPods) -> BTreeSet<NodeName> {
        let healthy = pods.iter().filter(|(place, pod)| {
            pod.health == Health::Passing
                && self.cluster.readiness(&place.node) != NodeReadiness::Down
        });
        healthy.map(|(place, _)| place.node.clone()).collect()
    }
}
