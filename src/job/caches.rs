//! Caches for all job controllers of a farm, one per Consul tree.
//!
//! The owner of a job is the only one that changes its pods, so what it has just written counts more than a tree that
//! was read before ([`JobPendingWrites`]). How a pod stands its node's agent says in `status/pods/`; that counts only when
//! `reality/` shows the very manifest that is intended, and when it was not written before that (agents write both in
//! one transaction, and each tree is read for itself): else it is about an older try at the same member.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::doorbells::{self, FreshStatus, JobDoorbells};
use super::frameworks;
use super::manifest::PodIdentity;
use super::members::MemberPod;
use super::pod_status::{PodState, stands};
pub use super::pods::{Intended, Pods, record_id};
use crate::cluster::ClusterView;
use crate::cluster::commands::Commands;
use crate::cluster::intents::IntentIndex;
use crate::cluster::job_pods::LabelledMember;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::queues::GroupStatusIndex;
use crate::farm::records::Records;
use rcfarm_api::Stored;
use rcfarm_api::ids::RecordId;
use rcfarm_api::ids::{Namespaced, NodeName, PodRef};
use rcfarm_api::job::spec::{JobSpec, JobUid, Slot};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::cache::{Cache, CacheIndex};
use rcfarm_store::list_surely;
use rcfarm_store::mass_deletion_guard::UntrustedReason;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{
    Decoder, Entry, Index, Prefix, Query, Reader, StoreError, Versioned, VersionedIndex,
};

/// What is real on a node.
#[derive(Debug, PartialEq)]
pub struct Real {
    hash: u64,
    /// `None`: it was not made for a job. It may have been adopted by one.
    identity: Option<PodIdentity>,
}

/// Decodes `reality/<node>/<pod>`.
pub struct RealityDecoder;

impl Decoder for RealityDecoder {
    type Key = PodRef;
    type Value = Real;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (node, pod) = key::node_and_pod(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(_: &PodRef, entry: &Entry) -> Option<Real> {
        let (hash, identity) = (content_hash(&entry.value), identity_in(&entry.value));
        Some(Real { hash, identity })
    }
}

/// `reality/`, by place and by job.
#[derive(Debug, Default)]
pub struct Realities {
    places: VersionedIndex<RealityDecoder>,
    by_job: BTreeMap<Namespaced, Vec<PodRef>>,
}

#[derive(Deserialize)]
struct WithIdentity {
    job: PodIdentity,
}

/// The job that a pod was made for, by its manifest.
#[must_use]
pub fn made_for(manifest: &[u8]) -> Option<Namespaced> {
    identity_in(manifest).map(|identity| identity.job)
}

/// Manifests of jobs are JSON; others are not ours to understand.
fn identity_in(manifest: &[u8]) -> Option<PodIdentity> {
    let made = manifest.starts_with(b"{").then_some(manifest)?;
    serde_json::from_slice(made).ok().map(|WithIdentity { job }| job)
}

impl Realities {
    /// Places that differ between the two.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a PodRef> {
        VersionedIndex::touched(&old.places, &new.places)
    }

    /// The job that the pod at a place was made for.
    fn job_at(&self, place: &PodRef) -> Option<&Namespaced> {
        Some(&self.places.value(place)?.identity.as_ref()?.job)
    }
}

impl CacheIndex for Realities {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let places = VersionedIndex::build(&old.places, prefix, entries);
        let mut by_job: BTreeMap<Namespaced, Vec<PodRef>> = BTreeMap::new();
        for (place, real) in &places.0 {
            if let Some(identity) = &real.value.identity {
                by_job.entry(identity.job.clone()).or_default().push(place.clone());
            }
        }
        Realities { places, by_job }
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

/// Decodes `status/pods/<pod>/<node>`.
pub struct PodStateDecoder;

impl Decoder for PodStateDecoder {
    type Key = PodRef;
    type Value = PodState;

    fn key(prefix: &Prefix, key: &str) -> Option<PodRef> {
        let (pod, node) = key::pod_and_node(prefix, key)?;
        Some(PodRef { node, pod })
    }

    fn decode(_: &PodRef, entry: &Entry) -> Option<PodState> {
        Some(stands(&PodStatus::decode(&entry.value).ok()?))
    }
}

/// `status/pods/`, by place.
pub type PodStates = VersionedIndex<PodStateDecoder>;

/// The owner's own writes that the caches do not show yet.
#[derive(Debug, Clone, Default)]
pub struct JobPendingWrites {
    /// Index of the last transaction that changed pods, and so their labels. One that changed neither is none that
    /// a tree will ever show.
    pub labels: Index,
    /// The same of intents.
    pub intents: Index,
    /// When the later of them was answered.
    pub at: Option<Instant>,
    /// All pods then: their labels' and intents' indexes, and the hash of their manifests.
    pub pods: BTreeMap<PodRef, (LabelledMember, Option<(Index, u64)>)>,
    /// Pods that were removed, and when.
    pub removed: BTreeMap<PodRef, (Slot, Instant)>,
    /// Pods that were read one by one, because the job's doorbell was rung.
    pub fresh: BTreeMap<PodRef, FreshStatus>,
}

/// A pod that was removed before its node was seen to have it may just be starting there: for so long it counts as on
/// its way out.
pub const UNSEEN: Duration = Duration::from_secs(2);

/// Statuses and groups as read when jobs were last claimed.
#[derive(Default)]
struct Book {
    index: Index,
    statuses: BTreeMap<Namespaced, (Index, JobStatus)>,
    groups: BTreeMap<Namespaced, (Index, Option<PodGroupRecord>)>,
    /// Jobs whose status is there and cannot be understood.
    unreadable: BTreeSet<Namespaced>,
}

/// The status of a job and its group's record, each with its ModifyIndex.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// What was said last.
    pub status: (Index, JobStatus),
    /// The PodGroup; `None` with an index: it cannot be read.
    pub group: (Index, Option<PodGroupRecord>),
}

/// Caches shared by all job controllers of a farm.
pub struct JobCaches {
    reader: Arc<dyn Reader>,
    /// Nodes and intents, which replication controllers look at, too.
    pub nodes: Arc<ClusterView>,
    /// `reality/`
    pub realities: Arc<Cache<Realities>>,
    /// `status/pods/`
    pub pod_states: Arc<Cache<PodStates>>,
    /// `rcfarm/pod_group_status/`
    pub groups: Arc<Cache<GroupStatusIndex>>,
    /// `rcfarm/commands/`
    pub commands: Arc<Cache<Commands>>,
    book: Mutex<Book>,
    /// Pods that were not made for the jobs that own them: their nodes' word does not say whose they are.
    adopted: Mutex<BTreeMap<PodRef, Namespaced>>,
    /// Jobs of which something may be left: those that were claimed, and those that something was found of.
    known_jobs: Mutex<BTreeSet<RecordId>>,
    /// Some of them have no record any more: whether anything is left of them is to be looked at.
    doubts: Notify,
    doorbells: Mutex<JobDoorbells>,
}

impl JobCaches {
    /// The trees, not yet read.
    #[must_use]
    pub fn new(
        reader: Arc<dyn Reader>,
        nodes: Arc<ClusterView>,
        commands: Arc<Cache<Commands>>,
    ) -> Arc<Self> {
        Arc::new(JobCaches {
            nodes,
            realities: Cache::new(reader.clone(), key::realities(), PollPolicy::BULK),
            pod_states: Cache::new(reader.clone(), key::pod_statuses(), PollPolicy::BULK),
            groups: Cache::new(reader.clone(), key::pod_group_statuses(), PollPolicy::BULK),
            commands,
            reader,
            book: Mutex::default(),
            adopted: Mutex::default(),
            known_jobs: Mutex::default(),
            doubts: Notify::new(),
            doorbells: Mutex::default(),
        })
    }

    /// Reads statuses, groups and pods, unless all jobs concerned were made after they were last read: no status means
    /// no pods.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        let read = self.book().index;
        if read > Index::ZERO && oldest > read {
            return Ok(());
        }
        *self.book() = Book::default();
        let statuses = list_surely(self.reader.as_ref(), &key::job_statuses()).await?;
        let groups = list_surely(self.reader.as_ref(), &key::pod_groups()).await?;
        self.catch_up().await?;
        let mut unreadable = BTreeSet::new();
        let mut known = BTreeMap::new();
        for entry in &statuses.value {
            let Some(id) = key::namespaced(&key::job_statuses(), &entry.key) else { continue };
            match JobStatus::decode(&entry.value) {
                Ok(status) => drop(known.insert(id, (entry.modify_index, status))),
                Err(_) => drop(unreadable.insert(id)),
            }
        }
        let group = |entry: &Entry| {
            let id = key::namespaced(&key::pod_groups(), &entry.key)?;
            Some((id, (entry.modify_index, PodGroupRecord::decode(&entry.value).ok())))
        };
        *self.book() = Book {
            index: statuses.index.min(groups.index).max(Index(1)),
            statuses: known,
            groups: groups.value.iter().filter_map(group).collect(),
            unreadable,
        };
        Ok(())
    }

    /// What stands of a job since the last [`JobCaches::prepare`]; given out once. `None`: that failed, or it is to be
    /// read again because it was not understood.
    #[must_use]
    pub fn take_page(&self, id: &Namespaced) -> Option<Page> {
        let mut book = self.book();
        (book.index > Index::ZERO && !book.unreadable.contains(id)).then(|| Page {
            status: book.statuses.remove(id).unwrap_or_default(),
            group: book.groups.remove(id).unwrap_or_default(),
        })
    }

    /// Reads the record of a job's group now, with its ModifyIndex.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_group(
        &self,
        id: &Namespaced,
    ) -> Result<(Index, Option<PodGroupRecord>), StoreError> {
        let group = self.reader.get(&key::pod_group(id), Query::CONSISTENT).await?.value;
        let decoded =
            |entry: Entry| (entry.modify_index, PodGroupRecord::decode(&entry.value).ok());
        Ok(group.map(decoded).unwrap_or_default())
    }

    /// Reads pods and intents now.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        self.nodes.catch_up().await
    }

    /// Waits until the trees have been read once.
    pub async fn first_read(&self) {
        self.realities.first_read().await;
        self.pod_states.first_read().await;
        self.groups.first_read().await;
        self.commands.first_read().await;
        self.nodes.records.first_read().await;
    }

    /// Whether what is gone from the trees can be believed to be gone. Intents that are few are no sign: jobs end.
    #[must_use]
    pub fn may_remove(&self) -> bool {
        self.blind().is_none()
    }

    /// Why it cannot be told which pods there are and how they stand: rights hide them. What seems to be gone may still
    /// run then, and what seems to run may have ended.
    #[must_use]
    pub fn blind(&self) -> Option<String> {
        let of = |tree: &Prefix, why: Option<UntrustedReason>| Some(format!("{tree}: {}", why?));
        of(self.nodes.pods.prefix(), self.nodes.pods.snapshot().untrusted)
            .or_else(|| of(self.realities.prefix(), self.realities.snapshot().untrusted))
            .or_else(|| of(self.pod_states.prefix(), self.pod_states.snapshot().untrusted))
    }

    /// The pods that carry a job's name, as they stand. `job`: what it says, if anybody knows.
    #[must_use]
    pub fn pods_of(
        &self,
        id: &Namespaced,
        uid: JobUid,
        known: &JobPendingWrites,
        job: Option<&JobSpec>,
    ) -> Pods {
        let labels = self.nodes.pods.snapshot();
        let intents = self.nodes.intents.snapshot();
        let realities = self.realities.snapshot();
        let mut all: BTreeMap<PodRef, (LabelledMember, Intended)> = BTreeMap::new();
        let mut pods = Pods::default();
        // Each tree has an index of its own: what changes in one of them does not wait for the other.
        let is_trusted = intents.shows(known.intents, known.at);
        let intent = |place: &PodRef| match known.pods.get(place) {
            Some((_, intent)) if !is_trusted => *intent,
            _ => intents.value.get(place).map(|intent| (intent.index, intent.value)),
        };
        if labels.shows(known.labels, known.at) {
            for (place, labelled) in labels.value.jobs().of(id) {
                all.insert(place.clone(), ((**labelled).clone(), intent(place)));
            }
            let unowned = labels.value.jobs().unowned(id);
            let unowned = unowned.map(|(at, unowned)| (at.clone(), (unowned.clone(), intent(at))));
            pods.unowned = unowned.collect();
            let mismatched = labels.value.jobs().mismatched(uid);
            pods.mismatched = mismatched.map(|(place, one)| (place.clone(), one.clone())).collect();
        } else {
            let own = known.pods.iter();
            all.extend(own.map(|(at, (labelled, _))| (at.clone(), (labelled.clone(), intent(at)))));
        }
        for (place, (labelled, intent)) in all {
            if labelled.identity.uid == uid {
                let real = realities.value.places.value(&place);
                if real.is_some_and(|real| real.identity.is_none()) {
                    self.adopted().insert(place.clone(), id.clone());
                }
                let fresh = known.fresh.get(&place);
                pods.own.push(self.seen(&place, &labelled, intent, &realities.value, (fresh, job)));
                pods.intents.insert(place, (labelled, intent));
            } else {
                pods.orphans.insert(place, (labelled, intent));
            }
        }
        let heard = |node: &NodeName| self.nodes.readiness(node) != NodeReadiness::Down;
        for place in realities.value.by_job.get(id).into_iter().flatten() {
            let identity =
                realities.value.places.value(place).and_then(|real| real.identity.as_ref());
            let Some(identity) = identity else { continue };
            if identity.uid != uid {
                pods.older |= heard(&place.node);
                continue;
            }
            if !pods.intents.contains_key(place) && heard(&place.node) {
                *pods.leaving.entry(identity.slot.clone()).or_default() += 1;
            }
        }
        let now = Instant::now();
        for (place, (slot, at)) in &known.removed {
            if now < *at + UNSEEN
                && realities.value.places.get(place).is_none()
                && heard(&place.node)
            {
                *pods.leaving.entry(slot.clone()).or_default() += 1;
            }
        }
        pods
    }

    /// Of the places of members those where something is intended that is not of `pods`, as far as is known.
    #[must_use]
    pub fn taken(
        &self,
        id: &Namespaced,
        places: &BTreeMap<Slot, NodeName>,
        pods: &Pods,
        known: &JobPendingWrites,
    ) -> BTreeSet<Slot> {
        let intents = self.nodes.intents.snapshot();
        if !intents.shows(known.intents, known.at) {
            return BTreeSet::new();
        }
        let is_taken = |(slot, node): &(&Slot, &NodeName)| {
            let Ok(pod) = slot.pod_id(id) else { return false };
            let place = PodRef { node: (*node).clone(), pod };
            intents.value.get(&place).is_some()
                && !pods.intents.contains_key(&place)
                && !known.removed.contains_key(&place)
        };
        places.iter().filter(is_taken).map(|(slot, _)| slot.clone()).collect()
    }

    fn seen(
        &self,
        place: &PodRef,
        labelled: &LabelledMember,
        intent: Intended,
        realities: &Realities,
        (fresh, job): (Option<&FreshStatus>, Option<&JobSpec>),
    ) -> MemberPod {
        let pod_states = self.pod_states.snapshot();
        let fresh = fresh.filter(|fresh| fresh.counts(&pod_states));
        let hashes = [realities.places.value(place).map(|r| r.hash), fresh.and_then(|f| f.real)];
        let wanted = intent.map(|(_, hash)| hash);
        let is_real = hashes.into_iter().flatten().any(|hash| wanted == Some(hash));
        let told = pod_states.value.get(place);
        let is_older = |told: &Versioned<PodState>| {
            let real = realities.places.get(place);
            fresh.is_none() && real.is_some_and(|real| told.index < real.index)
        };
        let is_older = told.is_some_and(is_older);
        let told = told.map(|told| &told.value);
        let pod_state = match fresh.map(|fresh| &*fresh.pod_state).or(told) {
            Some(pod_state) if is_real && !is_older => pod_state.clone(),
            // A node without an agent of ours says no more than that it is there.
            None if is_real => PodState::running(),
            Some(pod_state) if pod_state.is_unfit => pod_state.clone(),
            _ => PodState::default(),
        };
        let identity = &labelled.identity;
        let task = job.and_then(|job| Some((job, job.task(&identity.slot.task)?)));
        let container = task.and_then(|(job, task)| frameworks::counting_container(job, task));
        MemberPod {
            slot: identity.slot.clone(),
            node: place.node.clone(),
            version: identity.version,
            attempt: identity.attempt,
            label_index: labelled.index,
            intent: intent.map(|(index, _)| index),
            phase: pod_state.phase,
            ready: pod_state.ready,
            exit_code: pod_state.exit_code(container),
            restarts: pod_state.restarts,
            lost: self.nodes.readiness(&place.node) == NodeReadiness::Down
                && !pod_state.phase.has_ended(),
            message: pod_state.message,
        }
    }

    /// A job's doorbell was rung.
    pub fn note_rung(&self, id: &RecordId) {
        if let Ok(id) = id.as_str().parse() {
            self.doorbells().ring(id);
        }
    }

    /// Reads the pods of a job that have yet to end as far as the tree shows, if its bell was rung; `None`: it was not,
    /// or there is too much of that.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn answer_bell(
        &self,
        id: &Namespaced,
    ) -> Result<Option<BTreeMap<PodRef, FreshStatus>>, StoreError> {
        let pod_states = self.pod_states.snapshot();
        let has_ended = |place: &PodRef| {
            pod_states.value.value(place).is_some_and(|told| told.phase.has_ended())
        };
        let pods = self.nodes.pods.snapshot();
        let alive =
            pods.value.jobs().of(id).map(|(place, _)| place).filter(|place| !has_ended(place));
        let alive: Vec<PodRef> = alive.cloned().collect();
        if !self.doorbells().answer(id, alive.len(), Instant::now()) {
            return Ok(None);
        }
        doorbells::read(self.reader.as_ref(), alive).await.map(Some)
    }

    /// Jobs of whose pods some lost their intents between the two, or got others: their own doing, or somebody's.
    #[must_use]
    pub fn bereft(&self, old: &IntentIndex, new: &IntentIndex) -> BTreeSet<Namespaced> {
        let gone = IntentIndex::touched(old, new).filter(|place| old.get(place).is_some());
        let gone: BTreeSet<&PodRef> = gone.collect();
        if gone.is_empty() {
            BTreeSet::new()
        } else {
            self.nodes.pods.snapshot().value.jobs().owners(&gone)
        }
    }

    /// Jobs that own the pods at `places`, and those that adopted any.
    #[must_use]
    pub fn owners<'a>(
        &self,
        realities: &Realities,
        places: impl Iterator<Item = &'a PodRef>,
    ) -> BTreeSet<Namespaced> {
        let adopted = self.adopted();
        let owner = |place: &PodRef| {
            let made = realities.job_at(place).cloned();
            made.or_else(|| adopted.get(place).cloned())
        };
        places.filter_map(owner).collect()
    }

    /// A job was claimed, or something of it was found: if its record goes, what is left is tidied up.
    pub fn note_job(&self, id: &Namespaced) {
        self.known_jobs().insert(record_id(id));
    }

    /// Nothing is left of a job.
    pub fn forget_job(&self, id: &Namespaced) {
        self.known_jobs().remove(&record_id(id));
    }

    /// Jobs of which something may be left and that have no record. Whoever acts on it has the store make sure of that.
    #[must_use]
    pub fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        let known = self.known_jobs();
        let left: BTreeSet<RecordId> =
            known.iter().filter(|id| !records.0.contains_key(*id)).cloned().collect();
        if !left.is_empty() {
            self.doubts.notify_one();
        }
        left
    }

    /// Waits until there are jobs without records of which something may be left.
    pub async fn doubted(&self) {
        self.doubts.notified().await;
    }

    /// Whether there is anything of a job besides its record, as far as is known.
    #[must_use]
    pub fn has_something(&self) -> bool {
        self.nodes.pods.snapshot().value.has_pods_of_jobs() || !self.known_jobs().is_empty()
    }

    /// Looks what there is of jobs without records, by the names of the keys: after a time in which no farm ran, nothing
    /// else would show it. Forgets those that another farm has tidied up.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn look_for_leftovers(&self) -> Result<(), StoreError> {
        let known = self.known_jobs().clone();
        let names = async |prefix: Prefix| {
            let keys = self.reader.keys(&prefix, None, Query::PLAIN).await?.value;
            let ids = keys.iter().filter_map(|key| key::namespaced(&prefix, key));
            Ok::<BTreeSet<Namespaced>, StoreError>(ids.collect())
        };
        let (statuses, groups) =
            (names(key::job_statuses()).await?, names(key::pod_groups()).await?);
        let records = names(key::jobs()).await?;
        for id in groups.difference(&records) {
            let entry = self.reader.get(&key::pod_group(id), Query::PLAIN).await?.value;
            let record = entry.and_then(|entry| PodGroupRecord::decode(&entry.value).ok());
            let owner = record.and_then(|record| record.spec.owner);
            if owner.is_some_and(|o| o.kind == "Job" && o.name == id.name.as_str()) {
                self.note_job(id);
            }
        }
        statuses.difference(&records).for_each(|id| self.note_job(id));
        let pods = self.nodes.pods.snapshot();
        if pods.is_read() {
            let is_there = |id: &Namespaced| {
                [&statuses, &groups, &records].iter().any(|names| names.contains(id))
                    || pods.value.jobs().has(id)
            };
            let is_gone = |id: &RecordId| !id.as_str().parse().is_ok_and(|id| is_there(&id));
            // Not those of which it was heard while this was read.
            self.known_jobs().retain(|id| !(known.contains(id) && is_gone(id)));
        }
        Ok(())
    }

    /// Where pods of a node are reached.
    #[must_use]
    pub fn address(&self, node: &NodeName) -> String {
        self.nodes.address(node).unwrap_or_else(|| node.to_string())
    }

    fn adopted(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodRef, Namespaced>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doorbells(&self) -> std::sync::MutexGuard<'_, JobDoorbells> {
        self.doorbells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_jobs(&self) -> std::sync::MutexGuard<'_, BTreeSet<RecordId>> {
        self.known_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
