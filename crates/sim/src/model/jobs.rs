//! Model of jobs, PodGroups, queues and commands for the checks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::cells::CellHistory;
use super::history::History;
use super::notes;
use super::services::AFTER_RESTORE;
use crate::facts::VIEW;
use rcfarm::job::dependencies::{self, JobDependency, TargetState};
use rcfarm::job::document;
use rcfarm::job::manifest::PodIdentity;
use rcfarm::job::owner::ControllerRef;
use rcfarm::job::pod_status::{PodState, stands};
use rcfarm::job::writes::mark_of;
use rcfarm_api::ResourceList;
use rcfarm_api::Stored;
use rcfarm_api::allocation::{AllocationOwner, Allocations};
use rcfarm_api::audit::{AuditRecord, Details};
use rcfarm_api::command::Command;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{FarmName, Namespaced, NodeName, ObjectName, PodId, QueueName, SessionId};
use rcfarm_api::job::spec::{JobSpec, JobUid};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::decode_labels;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::queue::spec::{QueueRecord, QueueSpec};
use rcfarm_api::queue::status::QueueStatus;
use rcfarm_emulator::{KvChange, Tables};
use rcfarm_store::{Entry, Index, Prefix};

/// A value before and after a write.
pub type Pair<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// A job's record.
#[derive(Debug, PartialEq)]
pub struct ModelJob {
    pub uid: JobUid,
    /// Its content; `None`: not valid.
    pub spec: Option<JobSpec>,
    /// A user deleted it.
    pub deleting: bool,
    /// The CronJob or JobFlow that made it.
    pub owner: Option<ControllerRef>,
    /// The jobs that it waits for.
    pub dependencies: Vec<JobDependency>,
}

/// A group's record.
#[derive(Debug, PartialEq)]
pub struct GroupView {
    pub created: Index,
    /// Time of its last change.
    pub since: Duration,
    /// Its content; `None`: not valid.
    pub record: Option<PodGroupRecord>,
}

/// Record of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// Its agent's session does not hold its record.
    pub gone: bool,
    /// Since when the session is gone.
    pub gone_since: Option<Duration>,
    /// It is being drained.
    pub draining: bool,
    /// Its capacity; `None`: not declared.
    pub capacity: Option<ResourceList>,
}

/// Whether an allocation belongs to a PodGroup instead of an RC.
#[must_use]
pub fn is_members(owner: &AllocationOwner) -> bool {
    !matches!(owner, AllocationOwner::Rc(_))
}

/// Effect of a write on one key.
#[derive(Debug)]
pub enum ModelEvent {
    Job(Namespaced, Pair<ModelJob>),
    JobStatus(Namespaced, Pair<JobStatus>),
    Group(GroupId),
    GroupStatus(GroupId, Pair<PodGroupStatus>),
    QueueStatus,
    SchedulerStatus,
    Pod(Pair<PodIdentity>),
    Intent(PodRef, Pair<PodIdentity>),
    Reality(PodRef, Pair<PodIdentity>),
    PodStatus(PodRef, Option<Arc<PodState>>),
    Allocations { of_members: bool },
    Command(Uuid, Pair<Command>),
    Audit(Box<Details>),
    Other,
}

impl ModelEvent {
    /// Whether it is about a job's pod.
    #[must_use]
    pub fn is_of_job(&self) -> bool {
        match self {
            ModelEvent::Pod(pair) | ModelEvent::Intent(_, pair) | ModelEvent::Reality(_, pair) => {
                pair.0.is_some() || pair.1.is_some()
            }
            _ => false,
        }
    }
}

/// Jobs, pod groups, queues and commands.
#[derive(Default)]
pub struct JobModel {
    /// Jobs' records.
    pub jobs: BTreeMap<Namespaced, Arc<ModelJob>>,
    pub statuses: BTreeMap<Namespaced, Arc<JobStatus>>,
    pub job_owners: BTreeMap<Namespaced, SessionId>,
    /// Groups' records.
    pub groups: BTreeMap<GroupId, Arc<GroupView>>,
    pub group_statuses: BTreeMap<GroupId, Arc<PodGroupStatus>>,
    /// Queues' records; `None`: not valid.
    pub queues: BTreeMap<QueueName, Option<QueueSpec>>,
    pub queue_statuses: BTreeMap<QueueName, Arc<QueueStatus>>,
    pub scheduler_owners: BTreeMap<ObjectName, SessionId>,
    /// Session that holds each farm's name.
    pub present: BTreeMap<FarmName, SessionId>,
    /// Pods of jobs by their labels.
    pub pods: BTreeMap<PodRef, Arc<PodIdentity>>,
    pub intents: BTreeMap<PodRef, (Arc<PodIdentity>, Arc<Entry>)>,
    pub realities: BTreeMap<PodRef, Arc<PodIdentity>>,
    /// Statuses of them.
    pub pod_states: BTreeMap<PodRef, Arc<PodState>>,
    /// Records of nodes.
    pub nodes: BTreeMap<NodeName, NodeView>,
    pub allocations: BTreeMap<NodeName, Allocations>,
    /// Commands that are not executed yet.
    pub commands: BTreeMap<Uuid, Arc<Command>>,
    /// CreateIndex of each command.
    pub given: BTreeMap<Uuid, Index>,
    /// The cells, and since when groups hold some.
    pub cells: CellHistory,
    /// History that no key shows.
    pub history: History,
    /// When a snapshot was last restored.
    pub restored_at: Option<Duration>,
}

#[derive(Deserialize)]
struct WithIdentity {
    job: PodIdentity,
}

fn mark_in(entry: &Entry) -> Option<Arc<PodIdentity>> {
    serde_json::from_slice::<WithIdentity>(&entry.value).ok().map(|with| Arc::new(with.job))
}

fn mark_on(entry: &Entry) -> Option<Arc<PodIdentity>> {
    mark_of(&decode_labels(&entry.value).ok()?).map(Arc::new)
}

fn owner_in(value: &[u8]) -> Option<ControllerRef> {
    ControllerRef::in_document(&parsed_with("ownerReferences", value)?)
}

fn dependencies_in(id: &Namespaced, value: &[u8]) -> Vec<JobDependency> {
    let document = parsed_with(dependencies::ANNOTATION, value);
    let all = document.and_then(|document| dependencies::in_document(id, &document).ok());
    all.unwrap_or_default()
}

/// A document with a field of this name. Few have it, and to parse all of them takes time.
fn parsed_with(field: &str, value: &[u8]) -> Option<Value> {
    value.windows(field.len()).find(|part| *part == field.as_bytes())?;
    serde_json::from_slice(value).ok()
}

/// Sets or removes a value. Returns it before and after.
pub(super) fn put<K: Ord + Clone, T>(
    map: &mut BTreeMap<K, Arc<T>>,
    key: &K,
    after: Option<Arc<T>>,
) -> Pair<T> {
    let before = match &after {
        Some(after) => map.insert(key.clone(), after.clone()),
        None => map.remove(key),
    };
    (before, after)
}

fn place(prefix: &Prefix, key: &str) -> Option<PodRef> {
    let (node, pod) = key::node_and_pod(prefix, key)?;
    Some(PodRef { node, pod })
}

impl JobModel {
    /// Applies a change. Returns its effect.
    pub fn apply(&mut self, at: Duration, change: &KvChange) -> ModelEvent {
        self.set(at, &change.key, change.after.as_ref())
    }

    /// Replaces the model by a restored state; later history is dropped.
    pub fn reload(&mut self, at: Duration, tables: &Tables) {
        let tries = std::mem::take(&mut self.history.ended);
        let mut absences = std::mem::take(&mut self.history.absences);
        for (node, view) in &self.nodes {
            let absence = view.gone_since.map(|from| (from, at));
            absences.entry(node.clone()).or_default().extend(absence);
        }
        *self = JobModel { restored_at: Some(at), ..JobModel::default() };
        (self.history.ended, self.history.absences) = (tries, absences);
        for entry in tables.kv.list("") {
            self.set(at, &entry.key, Some(entry));
        }
        let jobs: Vec<Namespaced> = self.jobs.keys().cloned().collect();
        for id in jobs {
            notes::note_ready(self, &id, at);
        }
    }

    fn set(&mut self, at: Duration, text: &str, entry: Option<&Arc<Entry>>) -> ModelEvent {
        self.known(at, text, entry).unwrap_or(ModelEvent::Other)
    }

    fn known(
        &mut self,
        at: Duration,
        text: &str,
        entry: Option<&Arc<Entry>>,
    ) -> Option<ModelEvent> {
        if let Some(seen) = self.of_pods(text, entry) {
            return Some(seen);
        }
        if let Some(seen) = self.of_queues(at, text, entry) {
            return Some(seen);
        }
        if let Some(id) = key::namespaced(&key::jobs(), text) {
            let seen = entry.map(|entry| {
                let spec = document::decode(&id, &entry.value).ok().map(|(_, read)| read.spec);
                let deleting = match &spec {
                    Some(spec) => spec.deleting,
                    None => document::finalize(&entry.value).is_some(),
                };
                let owner = owner_in(&entry.value);
                let dependencies = dependencies_in(&id, &entry.value);
                let uid = JobUid(entry.create_index);
                Arc::new(ModelJob { uid, spec, deleting, owner, dependencies })
            });
            let pair = put(&mut self.jobs, &id, seen);
            return Some(ModelEvent::Job(id, pair));
        }
        if let Some(id) = key::namespaced(&key::job_statuses(), text) {
            let status = entry.map(|e| Arc::new(JobStatus::decode(&e.value).unwrap_or_default()));
            let pair = put(&mut self.statuses, &id, status);
            return Some(ModelEvent::JobStatus(id, pair));
        }
        if let Some(id) = key::namespaced(&key::job_locks(), text) {
            hold(&mut self.job_owners, id, entry);
            return Some(ModelEvent::Other);
        }
        if let Some((_, id)) = key::namespace_and_command(text) {
            let command = entry.and_then(|e| Command::decode(&e.value).ok()).map(Arc::new);
            self.given.extend(entry.map(|entry| (id, entry.modify_index)));
            return Some(ModelEvent::Command(id, put(&mut self.commands, &id, command)));
        }
        if text == key::cell_config().as_str() {
            self.cells.configure(at, entry.map(|entry| &*entry.value));
            return Some(ModelEvent::Other);
        }
        if let Some(tail) = key::nodes().tail(text) {
            let node: NodeName = tail.parse().ok()?;
            self.set_node(at, &node, entry);
            return Some(ModelEvent::Other);
        }
        if let Some(tail) = key::farms().tail(text) {
            hold(&mut self.present, tail.parse().ok()?, entry);
            return Some(ModelEvent::Other);
        }
        let _id: Uuid = key::audit_logs().tail(text)?.parse().ok()?;
        let details = AuditRecord::decode(&entry?.value).ok()?.details().ok()?;
        Some(ModelEvent::Audit(Box::new(details)))
    }

    fn of_pods(&mut self, text: &str, entry: Option<&Arc<Entry>>) -> Option<ModelEvent> {
        let labels = key::labels(LabelKind::Pod);
        if labels.tail(text).is_some() {
            let place = place(&labels, text)?;
            let pair = put(&mut self.pods, &place, entry.and_then(|e| mark_on(e)));
            return Some(ModelEvent::Pod(pair));
        }
        if key::intents().tail(text).is_some() {
            let place = place(&key::intents(), text)?;
            let after = entry.and_then(|e| Some((mark_in(e)?, e.clone())));
            let before = match &after {
                Some(after) => self.intents.insert(place.clone(), after.clone()),
                None => self.intents.remove(&place),
            };
            let pair = (before.map(|(identity, _)| identity), after.map(|(identity, _)| identity));
            return Some(ModelEvent::Intent(place, pair));
        }
        if key::realities().tail(text).is_some() {
            let place = place(&key::realities(), text)?;
            let pair = put(&mut self.realities, &place, entry.and_then(|e| mark_in(e)));
            return Some(ModelEvent::Reality(place, pair));
        }
        key::pod_statuses().tail(text)?;
        let (pod, node) = key::pod_and_node(&key::pod_statuses(), text)?;
        let place = PodRef { node, pod };
        let pod_state = entry
            .and_then(|e| PodStatus::decode(&e.value).ok())
            .map(|status| Arc::new(stands(&status)));
        let (_, after) = put(&mut self.pod_states, &place, pod_state);
        Some(ModelEvent::PodStatus(place, after))
    }

    fn of_queues(
        &mut self,
        at: Duration,
        text: &str,
        entry: Option<&Arc<Entry>>,
    ) -> Option<ModelEvent> {
        if let Some(id) = key::namespaced(&key::pod_groups(), text) {
            let seen = entry.map(|entry| {
                let record = PodGroupRecord::decode(&entry.value).ok();
                let record = record.filter(|record| record.spec.check(&id).is_empty());
                let old = self.groups.get(&id);
                let same = old.filter(|old| {
                    let spec = |r: &Option<PodGroupRecord>| r.as_ref().map(|r| r.spec.clone());
                    spec(&old.record) == spec(&record) && old.created == entry.create_index
                });
                let since = same.map_or(at, |old| old.since);
                Arc::new(GroupView { created: entry.create_index, since, record })
            });
            put(&mut self.groups, &id, seen);
            return Some(ModelEvent::Group(id));
        }
        if let Some(id) = key::namespaced(&key::pod_group_statuses(), text) {
            let decode = |e: &Arc<Entry>| PodGroupStatus::decode(&e.value).unwrap_or_default();
            let pair = put(&mut self.group_statuses, &id, entry.map(|e| Arc::new(decode(e))));
            self.cells.note(at, &id, &pair);
            return Some(ModelEvent::GroupStatus(id, pair));
        }
        if let Some(tail) = key::queues().tail(text) {
            let name: QueueName = tail.parse().ok()?;
            match entry {
                Some(entry) => {
                    let spec = QueueRecord::decode(&entry.value).ok().map(|record| record.spec);
                    self.queues.insert(name.clone(), spec);
                }
                None => drop(self.queues.remove(&name)),
            }
            return Some(ModelEvent::Other);
        }
        if let Some(tail) = key::queue_statuses().tail(text) {
            let name: QueueName = tail.parse().ok()?;
            let decode = |e: &Arc<Entry>| QueueStatus::decode(&e.value).unwrap_or_default();
            put(&mut self.queue_statuses, &name, entry.map(|e| Arc::new(decode(e))));
            return Some(ModelEvent::QueueStatus);
        }
        if let Some(tail) = key::allocations().tail(text) {
            let node: NodeName = tail.parse().ok()?;
            let before = self.allocations.remove(&node).unwrap_or_default();
            let decode = |entry: &Arc<Entry>| Allocations::decode(&entry.value).unwrap_or_default();
            let after = entry.map(decode);
            let members = |allocations: &Allocations| {
                let pods = allocations.pods.iter().filter(|(_, a)| is_members(&a.owner));
                pods.map(|(pod, a)| (pod.clone(), a.clone())).collect::<Vec<_>>()
            };
            let of_members = members(&before) != after.as_ref().map_or(Vec::new(), members);
            self.allocations.extend(after.map(|after| (node, after)));
            return Some(ModelEvent::Allocations { of_members });
        }
        if let Some(tail) = key::scheduler_locks().tail(text) {
            hold(&mut self.scheduler_owners, tail.parse().ok()?, entry);
            return Some(ModelEvent::Other);
        }
        key::scheduler_statuses().tail(text)?;
        Some(ModelEvent::SchedulerStatus)
    }

    fn set_node(&mut self, at: Duration, node: &NodeName, entry: Option<&Arc<Entry>>) {
        let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let gone = record.as_ref().is_some_and(|record| {
            record.session.is_some() && entry.is_none_or(|entry| entry.session.is_none())
        });
        let old = self.nodes.get(node).cloned().unwrap_or_default();
        let gone_since = if gone { old.gone_since.or(Some(at)) } else { None };
        if !gone && let Some(from) = old.gone_since {
            self.history.absences.entry(node.clone()).or_default().push((from, at));
        }
        let draining = record.as_ref().is_some_and(|record| record.state == NodeState::Draining);
        let capacity = record.map(|record| record.capacity);
        self.nodes.insert(node.clone(), NodeView { gone, gone_since, draining, capacity });
    }

    /// Whether some view may show the node as down: one within [`VIEW`], or from before a recent restore.
    #[must_use]
    pub fn maybe_down(&self, place: &PodRef, now: Duration) -> bool {
        let restored = self.restored_at.filter(|at| now < *at + AFTER_RESTORE);
        let from = restored.map_or(now, |at| at.min(now)).saturating_sub(VIEW);
        let gone = self.nodes.get(&place.node).is_some_and(|node| node.gone);
        let absences = self.history.absences.get(&place.node);
        gone || absences.is_some_and(|all| all.iter().any(|(_, until)| *until >= from))
    }

    /// The valid job of a name.
    #[must_use]
    pub fn spec(&self, id: &Namespaced) -> Option<(JobUid, &JobSpec)> {
        let seen = self.jobs.get(id)?;
        Some((seen.uid, seen.spec.as_ref()?))
    }

    /// What a job has become that others may wait for.
    #[must_use]
    pub fn target(&self, id: &Namespaced) -> TargetState {
        let Some(job) = self.jobs.get(id) else { return TargetState::Missing };
        let status = self.statuses.get(id).filter(|status| status.uid == job.uid);
        match status.map(|status| status.state.phase).filter(|phase| phase.is_final()) {
            Some(phase) => TargetState::Ended(phase),
            None => TargetState::Active,
        }
    }

    /// Whether a job never starts, since one that it waits for has ended otherwise than it asks.
    #[must_use]
    pub fn is_barred(&self, id: &Namespaced) -> bool {
        let all = self.jobs.get(id).into_iter().flat_map(|job| &job.dependencies);
        let mut unmet = all.filter_map(|one| one.unmet(self.target(&one.job(id))));
        unmet.any(|unmet| unmet.is_final)
    }

    /// Pods of a job that are real.
    pub fn real_of<'a>(
        &'a self,
        id: &'a Namespaced,
    ) -> impl Iterator<Item = (&'a PodRef, &'a PodIdentity)> {
        let own = move |(_, identity): &(&PodRef, &Arc<PodIdentity>)| identity.job == *id;
        self.realities.iter().filter(own).map(|(place, identity)| (place, &**identity))
    }

    /// Intents of a node.
    pub fn intended<'a>(
        &'a self,
        node: &'a NodeName,
    ) -> impl Iterator<Item = (&'a PodId, &'a Arc<PodIdentity>, &'a Arc<Entry>)> {
        let here = move |(place, _): &(&PodRef, _)| place.node == *node;
        self.intents
            .iter()
            .filter(here)
            .map(|(place, (identity, entry))| (&place.pod, identity, entry))
    }
}

pub(super) fn hold<K: Ord>(map: &mut BTreeMap<K, SessionId>, key: K, entry: Option<&Arc<Entry>>) {
    match entry.and_then(|entry| entry.session.clone()) {
        Some(session) => drop(map.insert(key, session)),
        None => drop(map.remove(&key)),
    }
}
