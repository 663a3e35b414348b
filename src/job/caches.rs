//! Caches for all job controllers of a farm, one per Consul prefix.
//!
//! Only a job's owner changes its pods, so its own writes override a cache that is older ([`KnownPods`]). A
//! status in `status/pods/` counts only if `reality/` holds the intended manifest and is not newer than the status.
//! Agents write both in one transaction, but the caches read them separately: an older status may be of an earlier
//! attempt.

mod known_pods;
mod pod_reads;
mod realities;
mod removed;
mod waiting_jobs;
mod without_group;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

pub use self::known_pods::KnownPods;
pub use self::pod_reads::StoppedPods;
pub use self::realities::Realities;
pub use self::removed::RemovedPod;
use self::waiting_jobs::WaitingJobs;
use self::without_group::WithoutGroup;
use super::budget;
use super::doorbells::JobDoorbells;
use super::frameworks;
use super::members::MemberPod;
use super::plan::ObservedGroup;
use super::pod_status::{PodState, stands};
pub use super::pods::{Pods, record_id};
use crate::cluster::ClusterView;
use crate::cluster::commands::Commands;
use crate::cluster::intents::IntentVersions;
use crate::cluster::job_pods::LabelledMember;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::pods::on_node;
use crate::cluster::queues::GroupStatusIndex;
use crate::cluster::shared_read::SharedRead;
use crate::farm::claim_read::ClaimRead;
use crate::farm::records::Records;
use rcfarm_api::Stored;
use rcfarm_api::ids::{Namespaced, NodeName, PodRef, RecordId};
use rcfarm_api::job::spec::{JobSpec, JobUid, Slot};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::cache::{Cache, Snapshot};
use rcfarm_store::list_surely;
use rcfarm_store::mass_deletion_guard::UntrustedReason;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{
    Decoder, Entry, Index, Prefix, Query, Reader, StoreError, Versioned, VersionedIndex,
};

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

/// `status/pods/`, by node and pod.
pub type PodStates = VersionedIndex<PodStateDecoder>;

/// Status of a job and record of its PodGroup, each with its ModifyIndex.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Status as last written.
    pub status: (Index, JobStatus),
    /// PodGroup; `None` with an index: it cannot be decoded.
    pub group: (Index, Option<PodGroupRecord>),
    is_unreadable: bool,
}

fn decoded_group(entry: &Entry) -> (Index, Option<PodGroupRecord>) {
    (entry.modify_index, PodGroupRecord::decode(&entry.value).ok())
}

/// Caches shared by all job controllers of a farm.
pub struct JobCaches {
    reader: Arc<dyn Reader>,
    /// Nodes, pod labels and intents, shared with replication controllers.
    pub nodes: Arc<ClusterView>,
    /// Cache of `reality/`.
    pub realities: Arc<Cache<Realities>>,
    /// Cache of `status/pods/`.
    pub pod_states: Arc<Cache<PodStates>>,
    /// Cache of `rcfarm/pod_group_status/`.
    pub groups: Arc<Cache<GroupStatusIndex>>,
    /// Cache of `rcfarm/commands/`.
    pub commands: Arc<Cache<Commands>>,
    at_claim: ClaimRead<BTreeMap<Namespaced, Page>>,
    /// Owners of adopted pods: the manifests of these pods do not name them.
    adopted: Mutex<BTreeMap<PodRef, Namespaced>>,
    /// Jobs that may have keys besides their records: claimed ones, and those found by lists.
    known_jobs: Mutex<BTreeSet<RecordId>>,
    without_group: WithoutGroup,
    waiting_jobs: WaitingJobs,
    /// Signalled when one of them has no record.
    missing_records: Notify,
    doorbells: Mutex<JobDoorbells>,
    state_reads: SharedRead,
    reality_reads: SharedRead,
}

impl JobCaches {
    /// Creates the caches without reading.
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
            at_claim: ClaimRead::default(),
            adopted: Mutex::default(),
            known_jobs: Mutex::default(),
            waiting_jobs: WaitingJobs::default(),
            without_group: WithoutGroup::default(),
            missing_records: Notify::new(),
            doorbells: Mutex::default(),
            state_reads: SharedRead::default(),
            reality_reads: SharedRead::default(),
        })
    }

    /// Reads statuses, groups and pods before jobs are claimed. Skipped if all of them were created after the last
    /// read: they have neither a status nor pods.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        self.at_claim.refresh(oldest, self.list()).await
    }

    async fn list(&self) -> Result<(Index, BTreeMap<Namespaced, Page>), StoreError> {
        let statuses = list_surely(self.reader.as_ref(), &key::job_statuses()).await?;
        let groups = list_surely(self.reader.as_ref(), &key::pod_groups()).await?;
        self.catch_up().await?;
        let mut pages = BTreeMap::<Namespaced, Page>::new();
        for entry in &statuses.value {
            let Some(id) = key::namespaced(&key::job_statuses(), &entry.key) else { continue };
            let page = pages.entry(id).or_default();
            match JobStatus::decode(&entry.value) {
                Ok(status) => page.status = (entry.modify_index, status),
                Err(_) => page.is_unreadable = true,
            }
        }
        for entry in &groups.value {
            let Some(id) = key::namespaced(&key::pod_groups(), &entry.key) else { continue };
            pages.entry(id).or_default().group = decoded_group(entry);
        }
        Ok((statuses.index.min(groups.index), pages))
    }

    /// Status and group from the last [`JobCaches::prepare`], once. `None`: it failed, or the status cannot be decoded
    /// and the caller reads it again.
    #[must_use]
    pub fn take_page(&self, id: &Namespaced) -> Option<Page> {
        let page = |pages: &mut BTreeMap<_, Page>| match pages.get(id) {
            Some(page) if page.is_unreadable => None,
            _ => Some(pages.remove(id).unwrap_or_default()),
        };
        self.at_claim.take(page).flatten()
    }

    /// Reads the PodGroup record of a job, with its ModifyIndex.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_group(
        &self,
        id: &Namespaced,
    ) -> Result<(Index, Option<PodGroupRecord>), StoreError> {
        let group = self.reader.get(&key::pod_group(id), Query::CONSISTENT).await?.value;
        Ok(group.as_ref().map(decoded_group).unwrap_or_default())
    }

    /// Reads pods and intents up to the present index, then what nodes report as real: a pod whose removal was read is
    /// shown as leaving for as long as its node has it.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        self.nodes.catch_up().await?;
        self.reality_reads.run(async { self.realities.read_now().await.map(drop) }).await
    }

    /// Waits for the first read of each cache.
    pub async fn first_read(&self) {
        self.realities.first_read().await;
        self.pod_states.first_read().await;
        self.groups.first_read().await;
        self.commands.first_read().await;
        self.nodes.records.first_read().await;
    }

    /// Whether an absent key may be taken as deleted. A drop in the number of intents is no reason to doubt: jobs end.
    #[must_use]
    pub fn may_remove(&self) -> bool {
        self.blind().is_none()
    }

    /// Why pods and their states are unknown: ACLs hide keys. A pod that seems gone may still run, and one that seems
    /// to run may have ended.
    #[must_use]
    pub fn blind(&self) -> Option<String> {
        let of = |tree: &Prefix, why: Option<UntrustedReason>| Some(format!("{tree}: {}", why?));
        of(self.nodes.pods.prefix(), self.nodes.pods.snapshot().untrusted)
            .or_else(|| of(self.realities.prefix(), self.realities.snapshot().untrusted))
            .or_else(|| of(self.pod_states.prefix(), self.pod_states.snapshot().untrusted))
    }

    /// Pods with the job's name, merged with pending writes. `job`: its spec, if known.
    #[must_use]
    pub fn pods_of(
        &self,
        id: &Namespaced,
        uid: JobUid,
        known: &KnownPods,
        job: Option<&JobSpec>,
    ) -> Pods {
        let (labels, intents) = (self.nodes.pods.snapshot(), self.nodes.intents.snapshot());
        let realities = self.realities.snapshot();
        let jobs = labels.value.jobs();
        let mut members: BTreeMap<PodRef, Arc<LabelledMember>> =
            jobs.of(id).map(|(place, member)| (place.clone(), member.clone())).collect();
        known.labels.apply(&labels, &mut members);
        let index = |place: &PodRef| known.intent(&intents, place).map(|intent| intent.index);
        let is_shown = |place: &PodRef| known.labels.pending(&labels, place).is_none();
        let unowned = jobs.unowned(id).filter(|(place, _)| is_shown(place));
        let mismatched = jobs.mismatched(uid).filter(|(place, _)| is_shown(place));
        let mut pods = Pods {
            unowned: unowned.map(|(at, one)| (at.clone(), (one.clone(), index(at)))).collect(),
            mismatched: mismatched.map(|(at, one)| (at.clone(), one.clone())).collect(),
            ..Pods::default()
        };
        for (place, labelled) in members {
            let intent = known.intent(&intents, &place).map(|intent| &**intent);
            if labelled.identity.uid != uid {
                pods.orphans.insert(place, (labelled, intent.map(|intent| intent.index)));
                continue;
            }
            let real = realities.value.places.value(&place);
            if real.is_some_and(|real| real.identity.is_none()) {
                self.adopted().insert(place.clone(), id.clone());
            }
            pods.own.push(self.seen(&place, &labelled, intent, &realities, (known, job)));
            pods.members.insert(place, (labelled, intent.map(|intent| intent.index)));
        }
        if let Some(job) = job {
            budget::keep(&mut pods.own, job, |node| self.nodes.evicts_jobs(node));
        }
        self.add_others(id, uid, known, &mut pods);
        let heard = |node: &NodeName| self.nodes.readiness(node) != NodeReadiness::Down;
        for (place, removed) in &known.removed {
            let is_known = realities.value.job_at(place).is_some();
            let is_leaving = removed.is_leaving(known.real(&realities, place));
            if is_leaving && !is_known && heard(&place.node) {
                *pods.leaving.entry(removed.slot.clone()).or_default() += 1;
            }
        }
        pods
    }

    /// Adds pods that nodes have and that are not labelled as the job's: leaving ones, those of older jobs, and
    /// unlabelled ones. A pod that runs as intended under labels of its own has left the job: it is none of these.
    fn add_others(&self, id: &Namespaced, uid: JobUid, known: &KnownPods, pods: &mut Pods) {
        let (labels, intents) = (self.nodes.pods.snapshot(), self.nodes.intents.snapshot());
        let realities = self.realities.snapshot();
        for place in realities.value.by_job.get(id).into_iter().flatten() {
            let Some(real) = realities.value.places.value(place) else { continue };
            let Some(identity) = &real.identity else { continue };
            if pods.members.contains_key(place)
                || self.nodes.readiness(&place.node) == NodeReadiness::Down
            {
                continue;
            }
            let intent = known.intent(&intents, place).filter(|intent| intent.value == real.hash);
            let is_labelled =
                labels.value.get(place).is_some() || known.labels.pending(&labels, place).is_some();
            match intent {
                Some(_) if is_labelled && !pods.orphans.contains_key(place) => {}
                Some(intent) if !is_labelled => {
                    let found = (identity.clone(), intent.index);
                    pods.unlabelled.insert(place.clone(), found);
                }
                _ if identity.uid != uid => pods.older = true,
                _ => *pods.leaving.entry(identity.slot.clone()).or_default() += 1,
            }
        }
    }

    /// Jobs with pods on some nodes, or with members placed there.
    #[must_use]
    pub fn on_nodes(&self, nodes: &BTreeSet<NodeName>) -> BTreeSet<Namespaced> {
        let (labels, groups) = (self.nodes.pods.snapshot(), self.groups.snapshot());
        let realities = self.realities.snapshot();
        let mut jobs = BTreeSet::new();
        for node in nodes {
            jobs.extend(labels.value.jobs_on(node).cloned());
            let real = on_node(&realities.value.places.0, node);
            jobs.extend(
                real.filter_map(|(_, real)| Some(real.value.identity.as_ref()?.job.clone())),
            );
        }
        let placed = groups.value.0.iter().filter(|(_, status)| {
            status.value.as_ref().is_some_and(|status| status.is_placed_on(nodes))
        });
        jobs.extend(placed.map(|(id, _)| id.clone()));
        jobs
    }

    /// Members whose bound node already has an intent of the same pod id that is not in `pods`.
    #[must_use]
    pub fn taken(
        &self,
        id: &Namespaced,
        group: &ObservedGroup,
        pods: &Pods,
        known: &KnownPods,
    ) -> BTreeSet<Slot> {
        let intents = self.nodes.intents.snapshot();
        let is_taken = |(slot, node): &(&Slot, &NodeName)| {
            let Ok(pod) = slot.pod_id(id, group.pod_ids) else { return false };
            let place = PodRef { node: (*node).clone(), pod };
            known.intent(&intents, &place).is_some()
                && !pods.members.contains_key(&place)
                && !known.removed.contains_key(&place)
        };
        group.places.iter().flatten().filter(is_taken).map(|(slot, _)| slot.clone()).collect()
    }

    fn seen(
        &self,
        place: &PodRef,
        labelled: &LabelledMember,
        intent: Option<&Versioned<u64>>,
        realities: &Snapshot<Realities>,
        (known, job): (&KnownPods, Option<&JobSpec>),
    ) -> MemberPod {
        let pod_states = self.pod_states.snapshot();
        let fresh = known.fresh.pending(&pod_states, place).flatten();
        let fresh_real = known.fresh_reals.pending(realities, place).flatten().copied();
        let real = realities.value.places.get(place);
        let hashes = [real.map(|real| real.value.hash), fresh_real];
        let wanted = intent.map(|intent| intent.value);
        let is_real = hashes.into_iter().flatten().any(|hash| wanted == Some(hash));
        let reported = pod_states.value.get(place).map(|one| (one.index, &one.value));
        let reported = fresh.map(|fresh| (fresh.index, &fresh.pod_state)).or(reported);
        let is_older = |index| real.is_some_and(|real| index < real.index);
        let is_older = reported.is_some_and(|(index, _)| is_older(index));
        let pod_state = match reported.map(|(_, pod_state)| pod_state) {
            Some(pod_state) if is_real && !is_older => pod_state.clone(),
            // A node without our agent reports no status. Another's status came with the reality: it is not read yet.
            None if is_real && !self.nodes.has_agent(&place.node) => PodState::running(),
            Some(pod_state) if pod_state.is_unfit => pod_state.clone(),
            _ => PodState::default(),
        };
        let identity = &labelled.identity;
        let task = job.and_then(|job| Some((job, job.task(&identity.slot.task)?)));
        let container = task.and_then(|(job, task)| frameworks::counting_container(job, task));
        let on_down_node = self.nodes.readiness(&place.node) == NodeReadiness::Down;
        // Members with cells leave a drained node all together: their group is evicted.
        let leaves_alone = job.is_none_or(|job| job.cells.is_none());
        let is_drained = leaves_alone && self.nodes.evicts_jobs(&place.node);
        MemberPod {
            slot: identity.slot.clone(),
            place: place.clone(),
            version: identity.version,
            attempt: identity.attempt,
            label_index: labelled.index,
            intent: intent.map(|intent| intent.index),
            phase: pod_state.phase,
            ready: pod_state.ready,
            exit_code: pod_state.exit_code(container),
            restarts: pod_state.restarts,
            lost: pod_state.is_evicted
                || !pod_state.phase.has_ended() && (on_down_node || is_drained),
            on_down_node,
            message: pod_state.message,
            failure: pod_state.failure,
            is_due: pod_state.is_due,
        }
    }

    /// Jobs with pods whose intents were deleted or replaced between two snapshots.
    #[must_use]
    pub fn with_lost_intents(
        &self,
        old: &IntentVersions,
        new: &IntentVersions,
    ) -> BTreeSet<Namespaced> {
        let gone = IntentVersions::touched(old, new).filter(|place| old.get(place).is_some());
        let gone: BTreeSet<&PodRef> = gone.collect();
        if gone.is_empty() {
            BTreeSet::new()
        } else {
            self.nodes.pods.snapshot().value.jobs().owners(&gone)
        }
    }

    /// Jobs that own or adopted the pods at `places`.
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

    /// Registers a job: its orphans are collected once its record is gone.
    pub fn note_job(&self, id: &Namespaced) {
        self.known_jobs().insert(record_id(id));
    }

    /// Removes a job of which no key is left.
    pub fn forget_job(&self, id: &Namespaced) {
        self.known_jobs().remove(&record_id(id));
        self.adopted().retain(|_, owner| owner != id);
    }

    /// Registered jobs without a record in the cache. A transaction on them must check that the record is absent.
    #[must_use]
    pub fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        let known = self.known_jobs();
        let left: BTreeSet<RecordId> =
            known.iter().filter(|id| !records.0.contains_key(*id)).cloned().collect();
        if !left.is_empty() {
            self.missing_records.notify_one();
        }
        left
    }

    /// Waits until a registered job has no record.
    pub async fn record_missing(&self) {
        self.missing_records.notified().await;
    }

    /// Whether any job may have keys besides its record.
    #[must_use]
    pub fn has_something(&self) -> bool {
        self.nodes.pods.snapshot().value.has_pods_of_jobs() || !self.known_jobs().is_empty()
    }

    /// Registers jobs with a status or group but no record, from lists of keys. Finds orphans of a time without any
    /// farm. Removes jobs that another farm has cleaned up. `has_keys`: whether this farm makes ssh keys, whose records are
    /// listed, too.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn look_for_leftovers(&self, has_keys: bool) -> Result<(), StoreError> {
        let known = self.known_jobs().clone();
        let names = async |prefix: Prefix| {
            let keys = self.reader.keys(&prefix, None, Query::PLAIN).await?.value;
            let ids = keys.iter().filter_map(|key| key::namespaced(&prefix, key));
            Ok::<BTreeSet<Namespaced>, StoreError>(ids.collect())
        };
        let (statuses, groups) =
            (names(key::job_statuses()).await?, names(key::pod_groups()).await?);
        let keys = match has_keys {
            true => names(key::job_keys_records()).await?,
            false => BTreeSet::new(),
        };
        let records = names(key::jobs()).await?;
        for id in groups.difference(&records) {
            let entry = self.reader.get(&key::pod_group(id), Query::PLAIN).await?.value;
            let record = entry.and_then(|entry| PodGroupRecord::decode(&entry.value).ok());
            let owner = record.and_then(|record| record.spec.owner);
            if owner.is_some_and(|o| o.kind == "Job" && o.name == id.name.as_str()) {
                self.note_job(id);
            }
        }
        statuses.union(&keys).filter(|id| !records.contains(id)).for_each(|id| self.note_job(id));
        let pods = self.nodes.pods.snapshot();
        if pods.is_read() {
            let is_there = |id: &Namespaced| {
                [&statuses, &groups, &keys, &records].iter().any(|names| names.contains(id))
                    || pods.value.jobs().has(id)
            };
            let is_gone = |id: &RecordId| !id.as_str().parse().is_ok_and(|id| is_there(&id));
            // Keeps jobs that were registered during these reads.
            self.known_jobs().retain(|id| !(known.contains(id) && is_gone(id)));
        }
        Ok(())
    }

    /// Address of the pods of a node; without a known address, the node's name.
    #[must_use]
    pub fn address(&self, node: &NodeName) -> String {
        self.nodes.address(node).unwrap_or_else(|| node.to_string())
    }

    fn adopted(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodRef, Namespaced>> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_jobs(&self) -> std::sync::MutexGuard<'_, BTreeSet<RecordId>> {
        self.known_jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
