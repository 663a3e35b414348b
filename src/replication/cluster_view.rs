//! View of the cluster for all RC controllers of a farm: nodes, pods, intents, health; one cache per tree.
//!
//! The owner of an RC is the only one that changes its pods, so what it has just written counts more than a tree
//! that was read before ([`PendingWrites`]); the trees tell what people did behind its back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

pub use super::nodes::{NodeIndex, NodeRecords};
use super::plan::{AllowedActions, Intent, NodeReadiness, PodRef, RcPod, SlotState};
use super::statuses::{RcStatuses, StatusReads};
use crate::placement::capacity::{Fleet, NodeCapacities};
use crate::placement::{AllocationCache, NodeLabels, NodeSource};
use crate::replication::failure_tracker::NodeFailureTracker;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, decode_labels};
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::{Health, HealthReport};
use rcfarm_api::rc::spec::{RC_ID, RcSpec};
use rcfarm_store::cache::{Cache, CacheIndex};
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Entry, Index, Prefix, Query, Reader, StoreError};

/// A pod's labels as stored.
#[derive(Debug, PartialEq)]
pub struct LabelledPod {
    index: Index,
    created: Index,
    /// `None`: the value is no label set. The place is taken all the same.
    labels: Option<Labels>,
    rc: Option<RcId>,
}

/// `labels/pod/`, by place and by owner.
#[derive(Debug, Default)]
pub struct PodLabels {
    places: BTreeMap<PodRef, Arc<LabelledPod>>,
    by_rc: BTreeMap<RcId, BTreeSet<PodRef>>,
    has_pods_of_jobs: bool,
}

impl PodLabels {
    /// RCs of which a pod differs between the two.
    #[must_use]
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<RcId> {
        let one_way = |a: &Self, b: &Self| -> Vec<RcId> {
            let other = |place: &PodRef| b.places.get(place).map(|seen| seen.index);
            a.places
                .iter()
                .filter(|(place, seen)| other(place) != Some(seen.index))
                .filter_map(|(_, seen)| seen.rc)
                .collect()
        };
        one_way(old, new).into_iter().chain(one_way(new, old)).collect()
    }

    /// Whether a pod is gone from its place.
    #[must_use]
    pub fn freed(old: &Self, new: &Self) -> bool {
        old.places.keys().any(|place| !new.places.contains_key(place))
    }

    /// Whether some of them are not an RC's, but a job's.
    #[must_use]
    pub fn has_pods_of_jobs(&self) -> bool {
        self.has_pods_of_jobs
    }

    /// The owner of the pod at a place.
    #[must_use]
    pub fn owner(&self, place: &PodRef) -> Option<RcId> {
        self.places.get(place).and_then(|seen| seen.rc)
    }

    /// What names the record, of whatever kind, that the pod at a place belongs to.
    fn record(&self, place: &PodRef) -> Option<&str> {
        let labels = self.places.get(place)?.labels.as_ref()?;
        labels.get(RC_ID).or_else(|| labels.get(key::JOB_UID_LABEL)).map(|name| name.as_ref())
    }

    /// ModifyIndex of the labels at a place, and the owner that they name.
    #[must_use]
    pub fn at(&self, place: &PodRef) -> Option<(Index, Option<RcId>)> {
        self.places.get(place).map(|seen| (seen.index, seen.rc))
    }
}

impl CacheIndex for PodLabels {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let mut new = PodLabels::default();
        for entry in entries {
            // Pods of other kinds (`labels/pod/<uuid>`) are not an RC's.
            let Some((node, pod)) = key::node_and_pod(prefix, &entry.key) else { continue };
            let place = PodRef { node, pod };
            let seen = match old.places.get(&place) {
                Some(seen) if seen.index == entry.modify_index => seen.clone(),
                _ => {
                    let labels = decode_labels(&entry.value).ok();
                    let rc = labels.as_ref().and_then(|l| l.get(RC_ID)?.parse().ok());
                    let (index, created) = (entry.modify_index, entry.create_index);
                    Arc::new(LabelledPod { index, created, labels, rc })
                }
            };
            let is_jobs = |labels: &Labels| labels.contains_key(key::JOB_UID_LABEL);
            new.has_pods_of_jobs |= seen.labels.as_ref().is_some_and(is_jobs);
            if let Some(rc) = seen.rc {
                new.by_rc.entry(rc).or_default().insert(place.clone());
            }
            new.places.insert(place, seen);
        }
        new
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

/// Places at which two maps differ; those that both have come twice.
fn differing<'a, T: PartialEq>(
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

    fn intent(&self, place: &PodRef, wanted: u64) -> Intent {
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

/// `health/`, by place.
#[derive(Debug, Default)]
pub struct Healths(BTreeMap<PodRef, HealthReport>);

impl Healths {
    /// Places that differ between the two.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a PodRef> {
        differing(&old.0, &new.0)
    }
}

impl CacheIndex for Healths {
    fn build(_: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let health = |entry: Entry| {
            let (pod, node) = prefix.tail(&entry.key)?.split_once('/')?;
            let place = PodRef { node: node.parse().ok()?, pod: pod.parse().ok()? };
            Some((place, HealthReport::decode(&entry.value)))
        };
        Healths(entries.into_iter().filter_map(health).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The built-in scheduler's view of the nodes.
impl NodeSource for Arc<ClusterView> {
    fn node_labels(&self) -> Arc<NodeLabels> {
        self.nodes.snapshot().value.labels.clone()
    }

    fn fleet(&self) -> Fleet {
        let (labels, unfit) = (self.node_labels(), self.unfit_nodes());
        Fleet { labels, unfit, rooms: self.rooms() }
    }
}

/// The owner's own writes that the caches do not show yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingWrites {
    /// Index of the last transaction that changed pods.
    pub index: Index,
    /// When it was answered.
    pub at: Instant,
    /// All pods then; their health is not known from here.
    pub pods: BTreeMap<PodRef, RcPod>,
    /// Places from which a pod was removed.
    pub removed: BTreeSet<PodRef>,
    /// Hash of the manifest that [`Intent::Same`] is about.
    pub manifest: u64,
}

/// The health of an RC's pods, read at once because its bell was rung: the tree is read less often.
#[derive(Debug, Clone)]
pub struct FreshHealth {
    index: Index,
    at: Instant,
    pod: PodId,
    reported: BTreeMap<NodeName, HealthReport>,
}

impl FreshHealth {
    /// What it says of a place, unless the tree was read later.
    fn reported(
        &self,
        place: &PodRef,
        tree: &rcfarm_store::cache::Snapshot<Healths>,
    ) -> Option<HealthReport> {
        let later = tree.asked.is_some_and(|asked| asked > self.at + SURELY_LATER);
        let counts = place.pod == self.pod && self.index > tree.index && !later;
        counts.then(|| self.reported.get(&place.node).cloned().unwrap_or_default())
    }
}

/// A tree read this long after a transaction shows it, whatever its index says: indexes go backwards when
/// Consul forgets deletions (`consul-semantics.md` §4.4).
const SURELY_LATER: Duration = Duration::from_secs(30);

impl PendingWrites {
    fn is_older_than<T>(&self, seen: &rcfarm_store::cache::Snapshot<T>) -> bool {
        enabled(Failpoint::OwnWritesForgotten)
            || seen.index >= self.index
            || seen.asked.is_some_and(|asked| asked > self.at + SURELY_LATER)
    }
}

/// Caches of nodes, pods, intents and health, shared by all controllers of a farm.
pub struct ClusterView {
    reader: Arc<dyn Reader>,
    /// `labels/node/`
    pub nodes: Arc<Cache<NodeIndex>>,
    /// `rcfarm/nodes/`
    pub records: Arc<Cache<NodeRecords>>,
    /// A node whose agent is gone counts as down after this long.
    node_grace: Duration,
    /// Nodes that could not start pods of several records.
    failure_tracker: Mutex<NodeFailureTracker>,
    /// `labels/pod/`
    pub pods: Arc<Cache<PodLabels>>,
    /// `intent/`
    pub intents: Arc<Cache<IntentIndex>>,
    /// `health/`
    pub health: Arc<Cache<Healths>>,
    /// `rcfarm/allocations/`
    pub ledger: AllocationCache,
    /// Controllers that wait for room or for a place.
    pub(super) waiting: Mutex<BTreeSet<RcId>>,
    pub(super) statuses: RcStatuses,
    /// RCs whose doorbells were rung, and whose pods' health was not read since.
    rung: Mutex<BTreeSet<RcId>>,
    /// Held while pods and intents are read.
    reading: tokio::sync::Mutex<()>,
    /// Readings begun.
    begun: AtomicU64,
    /// The last reading that came to a good end.
    finished: AtomicU64,
}

impl ClusterView {
    /// The trees, not yet read.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>, node_grace: Duration) -> Arc<Self> {
        let labels = |kind| key::labels(kind);
        Arc::new(ClusterView {
            nodes: Cache::guarded(reader.clone(), labels(LabelKind::Node), PollPolicy::PROMPT),
            records: Cache::new(reader.clone(), key::nodes(), PollPolicy::PROMPT),
            node_grace,
            failure_tracker: Mutex::default(),
            pods: Cache::new(reader.clone(), labels(LabelKind::Pod), PollPolicy::PODS),
            intents: Cache::new(reader.clone(), key::intents(), PollPolicy::INTENTS),
            health: Cache::new(reader.clone(), key::healths(), PollPolicy::RESYNC),
            ledger: AllocationCache::new(reader.clone()),
            waiting: Mutex::default(),
            statuses: RcStatuses::new(reader.clone()),
            reader,
            rung: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        })
    }

    /// Reads the statuses and then the pods, unless all records concerned were made after the statuses were last
    /// read: an owner's transaction raises its RC's status, so no status means no pods.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        if self.statuses.is_before(oldest) {
            return Ok(());
        }
        // Until all is read, whoever asks for a status gets none and has to look for himself: the trees may show
        // nothing yet, or what was long ago.
        self.statuses.keep(StatusReads::default());
        let book = self.statuses.read_all().await?;
        self.catch_up().await?;
        self.statuses.keep(book);
        Ok(())
    }

    /// Reads pods, intents and promises now; whoever asks meanwhile is served by the next reading, if it succeeds.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        if enabled(Failpoint::StaleTakeOver) && self.pods.snapshot().is_read() {
            return Ok(());
        }
        let begun = self.begun.load(Ordering::SeqCst);
        let _reading = self.reading.lock().await;
        if self.finished.load(Ordering::SeqCst) > begun {
            return Ok(());
        }
        let this = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let pods = async { self.pods.read_now().await.map(drop) };
        let intents = async { self.intents.read_now().await.map(drop) };
        // Where nobody asks for resources, there is nothing to read.
        let allocations = async {
            match self.ledger.is_used() {
                true => self.ledger.tree.read_now().await.map(drop),
                false => Ok(()),
            }
        };
        futures_util::future::try_join3(pods, intents, allocations).await?;
        self.finished.store(this, Ordering::SeqCst);
        Ok(())
    }

    /// How far the trees can be believed.
    #[must_use]
    pub fn allowed_actions(&self) -> AllowedActions {
        if self.pods.snapshot().untrusted.is_some() || self.intents.snapshot().untrusted.is_some() {
            return AllowedActions::Nothing;
        }
        match self.nodes.snapshot().untrusted.is_some()
            || self.health.snapshot().untrusted.is_some()
        {
            true => AllowedActions::NoRemoval,
            false => AllowedActions::Full,
        }
    }

    /// An RC's bell was rung.
    pub fn note_rung(&self, id: RcId) {
        self.rung().insert(id);
    }

    /// Whether an RC's bell was rung since this was asked last.
    pub fn take_rung(&self, id: RcId) -> bool {
        self.rung().remove(&id)
    }

    fn rung(&self) -> std::sync::MutexGuard<'_, BTreeSet<RcId>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the health of the pods of one id now.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_health(&self, pod: &PodId) -> Result<FreshHealth, StoreError> {
        let (prefix, at) = (key::service_healths(pod), Instant::now());
        let answer = self.reader.list(&prefix, Query::PLAIN).await?;
        let reported = |entry: &Entry| {
            Some((prefix.tail(&entry.key)?.parse().ok()?, HealthReport::decode(&entry.value)))
        };
        let reported = answer.value.iter().filter_map(reported).collect();
        Ok(FreshHealth { index: answer.index, at, pod: pod.clone(), reported })
    }

    /// What was last told of the pod at a place.
    #[must_use]
    pub fn reported(&self, place: &PodRef, fresh: Option<&FreshHealth>) -> HealthReport {
        let tree = self.health.snapshot();
        let reported = fresh.and_then(|fresh| fresh.reported(place, &tree));
        reported.or_else(|| tree.value.0.get(place).cloned()).unwrap_or_default()
    }

    /// The pods of an RC: what is known from its owner's own transactions, else what the trees say.
    #[must_use]
    pub fn pods_of(
        &self,
        spec: &RcSpec,
        known: Option<&PendingWrites>,
        fresh: Option<&FreshHealth>,
    ) -> BTreeMap<PodRef, RcPod> {
        let (labels, intents) = (self.pods.snapshot(), self.intents.snapshot());
        let wanted = content_hash(spec.manifest.text().as_bytes());
        let newer = known.filter(|known| !known.is_older_than(&labels));
        let newer_intents = known.filter(|known| !known.is_older_than(&intents));
        let intent = |place: &PodRef| {
            let known = newer_intents.and_then(|known| Some((known, known.pods.get(place)?)));
            match known.map(|(known, pod)| (pod.intent, known.manifest == wanted)) {
                Some((Intent::Same(index), false)) => Intent::Differs(index),
                Some((intent, _)) => intent,
                None => intents.value.intent(place, wanted),
            }
        };
        let health = |place: &PodRef| self.reported(place, fresh).health;
        if let Some(known) = newer {
            let pod = |(place, pod): (&PodRef, &RcPod)| {
                let (intent, health) = (intent(place), health(place));
                (place.clone(), RcPod { intent, health, ..pod.clone() })
            };
            return known.pods.iter().map(pod).collect();
        }
        let places = labels.value.by_rc.get(&spec.id).into_iter().flatten();
        let pod = |place: &PodRef| {
            let seen = &labels.value.places[place];
            let pod = RcPod {
                label_index: seen.index,
                created: seen.created,
                labels: seen.labels.clone().unwrap_or_default(),
                intent: intent(place),
                health: health(place),
            };
            (place.clone(), pod)
        };
        places.map(pod).collect()
    }

    /// Who stands on `node` under the RC's pod id.
    #[must_use]
    pub fn slot(&self, spec: &RcSpec, known: Option<&PendingWrites>, node: &NodeName) -> SlotState {
        let place = PodRef { node: node.clone(), pod: spec.manifest.id().clone() };
        let (labels, intents) = (self.pods.snapshot(), self.intents.snapshot());
        let removed = known.is_some_and(|known| known.removed.contains(&place));
        let labels_old = known.is_some_and(|known| !known.is_older_than(&labels));
        if labels.value.places.contains_key(&place) && !(removed && labels_old) {
            return SlotState::Other;
        }
        let intents_old = known.is_some_and(|known| !known.is_older_than(&intents));
        if removed && intents_old {
            return SlotState::Nobody;
        }
        match intents.value.intent(&place, content_hash(spec.manifest.text().as_bytes())) {
            Intent::Missing => SlotState::Nobody,
            Intent::Same(index) => SlotState::Ours(index),
            Intent::Differs(_) => SlotState::Other,
        }
    }

    /// What a node is fit for.
    #[must_use]
    pub fn readiness(&self, node: &NodeName) -> NodeReadiness {
        let now = Instant::now();
        match self.records.snapshot().value.readiness(node, now, self.node_grace) {
            NodeReadiness::Ready if self.failure_tracker().is_suspect(node, now) => {
                NodeReadiness::Suspect
            }
            readiness => readiness,
        }
    }

    /// Notes which pods their nodes cannot start, of those that could before or were not heard of.
    pub fn note_failures(&self, old: &Healths, new: &Healths) {
        let reported =
            |of: &Healths, place| of.0.get(place).is_some_and(|t| t.cannot_start.is_some());
        let labels = self.pods.snapshot();
        for place in new.0.keys().filter(|place| reported(new, place) && !reported(old, place)) {
            let PodRef { node, pod } = place;
            let record = labels.value.record(place).unwrap_or(pod.as_str());
            if let Some(pause) = self.failure_tracker().failed(node, record, Instant::now()) {
                warn!(alert = true, %node, ?pause,
                    "the node could not start pods of several records: none is added there for a while");
            }
        }
    }

    fn failure_tracker(&self) -> std::sync::MutexGuard<'_, NodeFailureTracker> {
        self.failure_tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the pods of a node are reached, if it says so.
    #[must_use]
    pub fn address(&self, node: &NodeName) -> Option<String> {
        let seen = self.records.snapshot();
        seen.value.nodes.get(node).map(|said| said.address.clone()).filter(|a| !a.is_empty())
    }

    /// Nodes to which no pod is moved.
    #[must_use]
    pub fn unfit_nodes(&self) -> BTreeSet<NodeName> {
        let (seen, now) = (self.records.snapshot(), Instant::now());
        let unfit = |node: &&NodeName| {
            seen.value.readiness(node, now, self.node_grace) != NodeReadiness::Ready
        };
        let unfit = seen.value.nodes.keys().filter(unfit).cloned();
        unfit.chain(self.suspects().into_keys()).collect()
    }

    /// Nodes that could not start pods of several records, and until when none is added there.
    #[must_use]
    pub fn suspects(&self) -> BTreeMap<NodeName, Instant> {
        let failure_tracker = self.failure_tracker();
        failure_tracker
            .suspects(Instant::now())
            .map(|(node, until)| (node.clone(), until))
            .collect()
    }

    /// Nodes that are down.
    #[must_use]
    pub fn down_nodes(&self) -> BTreeSet<NodeName> {
        let (seen, now) = (self.records.snapshot(), Instant::now());
        let down = |node: &&NodeName| {
            seen.value.readiness(node, now, self.node_grace) == NodeReadiness::Down
        };
        seen.value.nodes.keys().filter(down).cloned().collect()
    }

    /// What the nodes have, and what of it is allocated.
    #[must_use]
    pub fn rooms(&self) -> NodeCapacities {
        self.ledger.rooms(&self.records.snapshot().value.capacities)
    }

    /// When the next node counts as down, if none comes back, or is not suspected any more.
    #[must_use]
    pub fn next_change(&self) -> Option<Instant> {
        let (seen, now) = (self.records.snapshot(), Instant::now());
        let down_at = seen.value.nodes.values().filter_map(|said| said.down_at(self.node_grace));
        down_at.filter(|at| *at > now).chain(self.failure_tracker().next_end(now)).min()
    }

    /// Whether the trees show everything that `known` says, so that it can be forgotten.
    #[must_use]
    pub fn has_caught_up(&self, known: &PendingWrites) -> bool {
        known.is_older_than(&self.pods.snapshot()) && known.is_older_than(&self.intents.snapshot())
    }

    /// RCs that own the pods at `places`.
    #[must_use]
    pub fn owners<'a>(&self, places: impl Iterator<Item = &'a PodRef>) -> BTreeSet<RcId> {
        let labels = self.pods.snapshot();
        places.filter_map(|place| labels.value.owner(place)).collect()
    }

    /// Nodes of `pods` whose pods are healthy; not those that are down, whatever was last heard of their pods.
    #[must_use]
    pub fn healthy_nodes(&self, pods: &BTreeMap<PodRef, RcPod>) -> BTreeSet<NodeName> {
        let healthy = pods.iter().filter(|(place, pod)| {
            pod.health == Health::Passing && self.readiness(&place.node) != NodeReadiness::Down
        });
        healthy.map(|(place, _)| place.node.clone()).collect()
    }
}
