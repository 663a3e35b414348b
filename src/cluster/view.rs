//! View of the cluster that all controllers of a farm share: nodes, pods, intents, health, allocations.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{try_join, try_join3};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use super::allocations::AllocationCache;
use super::failure_tracker::{NodeFailureTracker, RecordManifest};
use super::health::{FreshHealth, Healths};
use super::intents::IntentVersions;
use super::nodes::{NodeIndex, NodeReadiness, NodeRecords};
use super::pods::PodLabels;
use super::shared_read::SharedRead;
use crate::placement::NodeLabels;
use crate::placement::capacity::{Fleet, NodeCapacities};
use rcfarm_api::ids::{NodeName, PodId, PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::node::{Health, HealthReport};
use rcfarm_store::cache::Cache;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Entry, Index, Prefix, Query, Reader, StoreError, Versioned, may_read};

/// Which changes the mass deletion guard allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllowedActions {
    Full,
    /// The cache of nodes or of health is untrusted: nothing is removed or moved.
    NoRemoval,
    /// The cache of pods or of intents is untrusted: nothing is changed.
    Nothing,
}

/// Caches of nodes, pods, intents and health, shared by all controllers of a farm.
pub struct ClusterView {
    reader: Arc<dyn Reader>,
    /// `labels/node/`
    pub nodes: Arc<Cache<NodeIndex>>,
    /// `rcfarm/nodes/`
    pub records: Arc<Cache<NodeRecords>>,
    /// Time after which a node without an agent counts as down.
    node_grace: Duration,
    /// Nodes that could not start pods of several manifests that run elsewhere.
    failure_tracker: Mutex<NodeFailureTracker>,
    /// `labels/pod/`
    pub pods: Arc<Cache<PodLabels>>,
    /// `intent/`
    pub intents: Arc<Cache<IntentVersions>>,
    /// `health/`
    pub health: Arc<Cache<Healths>>,
    /// `rcfarm/allocations/`
    pub ledger: AllocationCache,
    pod_reads: SharedRead,
    node_reads: SharedRead,
}

impl ClusterView {
    /// A view whose caches are not read yet.
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
            reader,
            pod_reads: SharedRead::default(),
            node_reads: SharedRead::default(),
        })
    }

    /// Reads pods, intents and allocations now. Callers that arrive during a read share the next one, if it succeeds.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        if enabled(Failpoint::StaleTakeOver) && self.pods.snapshot().is_read() {
            return Ok(());
        }
        let pods = async { self.pods.read_now().await.map(drop) };
        let intents = async { self.intents.read_now().await.map(drop) };
        // Without allocations there is nothing to read.
        let allocations = async {
            match self.ledger.is_used() {
                true => self.ledger.tree.read_now().await.map(drop),
                false => Ok(()),
            }
        };
        let all = async { try_join3(pods, intents, allocations).await.map(drop) };
        self.pod_reads.run(all).await
    }

    /// Reads the nodes' labels and records now. Callers share reads as those of [`ClusterView::catch_up`] do.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn catch_up_nodes(&self) -> Result<(), StoreError> {
        let labels = async { self.nodes.read_now().await.map(drop) };
        let records = async { self.records.read_now().await.map(drop) };
        self.node_reads.run(async { try_join(labels, records).await.map(drop) }).await
    }

    /// Notes that an owner wrote a pod's labels and intent, or one of them, at `index`: it is woken if they are gone when
    /// the caches can show them ([`Cache::note_write`]).
    pub fn note_written(&self, place: &PodRef, index: Index, owner: &Arc<Notify>) {
        let PodRef { node, pod } = place;
        self.pods.note_write(key::pod_labels(node, pod), index, owner);
        self.intents.note_write(key::intent(node, pod), index, owner);
    }

    /// Calls `observe` with the tree and the lag of its cache behind each write of which [`ClusterView::note_written`]
    /// was told ([`Cache::on_lag`]).
    pub fn on_lag(&self, observe: impl Fn(&str, Duration) + Clone + Send + Sync + 'static) {
        let named = |prefix: &Prefix| {
            let (tree, observe) =
                (prefix.as_str().trim_end_matches('/').to_owned(), observe.clone());
            move |lag| observe(&tree, lag)
        };
        self.pods.on_lag(named(self.pods.prefix()));
        self.intents.on_lag(named(self.intents.prefix()));
    }

    /// Notes that an owner removed a pod.
    pub fn note_removed(&self, place: &PodRef) {
        let PodRef { node, pod } = place;
        self.pods.note_delete(&key::pod_labels(node, pod));
        self.intents.note_delete(&key::intent(node, pod));
    }

    /// Changes that the caches of pods, intents, nodes and health allow.
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

    /// Reads the health of the pods of one id now.
    ///
    /// # Errors
    /// [`StoreError::Forbidden`]: the token may not read it; any other [`StoreError`].
    pub async fn read_health(&self, pod: &PodId) -> Result<FreshHealth, StoreError> {
        let (prefix, at) = (key::service_healths(pod), monotonic());
        let answer = self.reader.list(&prefix, Query::PLAIN).await?;
        // Consul leaves out what the token may not read. The cache then finds that out, too.
        if answer.value.is_empty() && !may_read(&*self.reader, &prefix).await? {
            self.health.refresh_soon();
            return Err(StoreError::Forbidden { what: prefix.to_string() });
        }
        let reported = |entry: &Entry| {
            Some((prefix.tail(&entry.key)?.parse().ok()?, HealthReport::decode(&entry.value)))
        };
        let reported = answer.value.iter().filter_map(reported).collect();
        Ok(FreshHealth { index: answer.index, at, pod: pod.clone(), reported })
    }

    /// Last reported health of the pod at a place.
    pub fn reported(&self, place: &PodRef, fresh: Option<&FreshHealth>) -> HealthReport {
        let tree = self.health.snapshot();
        let reported = fresh.and_then(|fresh| fresh.reported(place, &tree));
        reported.or_else(|| tree.value.value(place).cloned()).unwrap_or_default()
    }

    /// Whether a node may run pods.
    pub fn readiness(&self, node: &NodeName) -> NodeReadiness {
        let now = monotonic();
        match self.records.snapshot().value.readiness(node, now, self.node_grace) {
            NodeReadiness::Ready if self.failure_tracker().is_suspect(node, now) => {
                NodeReadiness::Suspect
            }
            readiness => readiness,
        }
    }

    /// Whether members of jobs are to leave a node at once, because it drains.
    pub fn evicts_jobs(&self, node: &NodeName) -> bool {
        self.records.snapshot().value.nodes.get(node).is_some_and(|info| info.evicts_jobs)
    }

    /// Whether rcfarm's agent runs the node's pods, or did so last.
    pub fn has_agent(&self, node: &NodeName) -> bool {
        self.records.snapshot().value.nodes.get(node).is_some_and(|info| info.has_agent)
    }

    /// Notes pods that their nodes now report as impossible to start and did not before, and pods that now run. Errors
    /// of programs, such as a missing file, say nothing of the node: they do not count.
    pub fn note_failures(&self, old: &Healths, new: &Healths) {
        let (labels, intents) = (self.pods.snapshot(), self.intents.snapshot());
        let manifest = |place: &PodRef, reported: &Versioned<HealthReport>| {
            let (record, is_rc) = labels.value.record(place).unwrap_or((place.pod.as_str(), true));
            // A report that is older than the intent is about another manifest.
            let intent = || intents.value.get(place).filter(|i| i.index <= reported.index);
            let hash = if is_rc { intent()?.value } else { 0 };
            Some(RecordManifest { record: record.to_owned(), hash })
        };
        let cannot_start =
            |report: &HealthReport| report.cannot_start.is_some() && !report.is_of_program;
        let by_node = OnceCell::new();
        let well = |node: &NodeName| {
            let records: &BTreeMap<_, BTreeSet<_>> =
                by_node.get_or_init(|| well_records(new, &labels.value));
            records.get(node).map_or(0, BTreeSet::len)
        };
        let mut failed_now = false;
        for place in Healths::changed(old, new) {
            let Some(reported) = new.get(place).filter(|now| cannot_start(&now.value)) else {
                continue;
            };
            if old.value(place).is_some_and(cannot_start) {
                continue;
            }
            if let Some(manifest) = manifest(place, reported) {
                failed_now = true;
                let pause =
                    self.failure_tracker().failed(&place.node, &manifest, well, monotonic());
                warn_of_suspect(&place.node, pause);
            }
        }
        // After a new failure all pods count; else those that have changed.
        let places: Vec<&PodRef> = match failed_now {
            true => new.0.keys().collect(),
            false => Healths::changed(old, new).collect(),
        };
        for place in places {
            let Some(reported) = new.get(place).filter(|now| now.value.health == Health::Passing)
            else {
                continue;
            };
            let record = labels.value.record(place).map_or(place.pod.as_str(), |(id, _)| id);
            if !self.failure_tracker().knows(record) {
                continue;
            }
            let Some(manifest) = manifest(place, reported) else { continue };
            let began = self.failure_tracker().runs(&place.node, &manifest, well, monotonic());
            if let Some((node, pause)) = began {
                warn_of_suspect(&node, Some(pause));
            }
        }
    }

    fn failure_tracker(&self) -> std::sync::MutexGuard<'_, NodeFailureTracker> {
        self.failure_tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address of a node's pods, if its record has one.
    pub fn address(&self, node: &NodeName) -> Option<String> {
        let seen = self.records.snapshot();
        seen.value.nodes.get(node).map(|said| said.address.clone()).filter(|a| !a.is_empty())
    }

    /// Nodes that get no pods: not ready, or suspect.
    pub fn unfit_nodes(&self) -> BTreeSet<NodeName> {
        self.not_ready().into_keys().collect()
    }

    /// Suspect nodes, and until when no pod is added there.
    pub fn suspects(&self) -> BTreeMap<NodeName, Instant> {
        let failure_tracker = self.failure_tracker();
        failure_tracker.suspects(monotonic()).map(|(node, until)| (node.clone(), until)).collect()
    }

    /// Nodes that are drained, with what the drain does about members of jobs.
    pub fn draining_nodes(&self) -> BTreeMap<NodeName, DrainJobs> {
        let seen = self.records.snapshot();
        let draining = seen.value.nodes.iter().filter(|(_, info)| info.draining);
        let of = |evicts: bool| if evicts { DrainJobs::Evict } else { DrainJobs::Wait };
        draining.map(|(node, info)| (node.clone(), of(info.evicts_jobs))).collect()
    }

    /// Time until the next node counts as down, unless its agent comes back before.
    pub fn next_down(&self) -> Option<Duration> {
        let (seen, now) = (self.records.snapshot(), monotonic());
        let at = seen.value.nodes.values().filter_map(|info| info.down_at(self.node_grace));
        at.filter(|at| *at > now).min().map(|at| at - now)
    }

    pub fn down_nodes(&self) -> BTreeSet<NodeName> {
        let (seen, now) = (self.records.snapshot(), monotonic());
        let down = |node: &&NodeName| {
            seen.value.readiness(node, now, self.node_grace) == NodeReadiness::Down
        };
        seen.value.nodes.keys().filter(down).cloned().collect()
    }

    /// Labels of all nodes. The same `Arc` is returned while nothing changes.
    pub fn node_labels(&self) -> Arc<NodeLabels> {
        self.nodes.snapshot().value.labels.clone()
    }

    /// Input for the placement of gangs.
    pub fn fleet(&self) -> Fleet {
        let (labels, unfit) = (self.node_labels(), self.unfit_nodes());
        Fleet { labels, unfit, node_capacities: self.node_capacities() }
    }

    /// Capacity and allocations of the nodes.
    pub fn node_capacities(&self) -> NodeCapacities {
        self.ledger.node_capacities(&self.records.snapshot().value.capacities)
    }

    pub fn not_ready(&self) -> BTreeMap<NodeName, NodeReadiness> {
        let (seen, now) = (self.records.snapshot(), monotonic());
        let suspects = self.suspects().into_keys().map(|node| (node, NodeReadiness::Suspect));
        let mut not_ready: BTreeMap<_, _> = suspects.collect();
        for node in seen.value.nodes.keys() {
            let readiness = seen.value.readiness(node, now, self.node_grace);
            if readiness != NodeReadiness::Ready {
                not_ready.insert(node.clone(), readiness);
            }
        }
        not_ready
    }

    /// RCs that own the pods at `places`.
    pub fn owners<'a>(&self, places: impl Iterator<Item = &'a PodRef>) -> BTreeSet<RcId> {
        let labels = self.pods.snapshot();
        places.filter_map(|place| labels.value.owner(place)).collect()
    }
}

/// By node, the records that have passing pods there.
fn well_records<'a>(
    healths: &'a Healths,
    labels: &'a PodLabels,
) -> BTreeMap<&'a NodeName, BTreeSet<&'a str>> {
    let mut records: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (place, reported) in &healths.0 {
        if reported.value.health == Health::Passing {
            let record = labels.record(place).map_or(place.pod.as_str(), |(id, _)| id);
            records.entry(&place.node).or_default().insert(record);
        }
    }
    records
}

/// Tells operators that a node begins to be suspect.
fn warn_of_suspect(node: &NodeName, pause: Option<Duration>) {
    if let Some(pause) = pause {
        warn!(alert = true, %node, ?pause,
            "the node could not start pods of several records: none is added there for a while");
    }
}
