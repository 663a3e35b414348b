//! Model of CronJobs, JobFlows, templates and the jobs that they make, for the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::jobs::{Pair, hold, put};
use crate::workload::hostile::is_hostile;
use rcfarm::cron::document as cron_document;
use rcfarm::flow::dispatch::TOKEN_ANNOTATION;
use rcfarm::flow::document as flow_document;
use rcfarm::job::document::MADE_BY_FLOW;
use rcfarm::job::owner::ControllerRef;
use rcfarm_api::Stored;
use rcfarm_api::cron::{self, CronStatus};
use rcfarm_api::flow::{self, FlowStatus};
use rcfarm_api::ids::{Namespaced, ObjectName, SessionId};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::{JobStatus, PodPhase};
use rcfarm_api::key;
use rcfarm_emulator::{KvChange, Tables};
use rcfarm_store::{Entry, Index};

/// A CronJob's or a JobFlow's record.
#[derive(Debug, PartialEq)]
pub struct ModelOwner {
    pub uid: Index,
    /// Its document; `None`: it is not valid.
    pub document: Option<Value>,
    pub deleting: bool,
}

/// A job that a record made.
#[derive(Debug, Clone, PartialEq)]
pub struct MadeJob {
    pub owner: ControllerRef,
    /// CreateIndex of the job's record; 0: it is only listed in a restored status.
    pub uid: Index,
    /// How it ended, once it has.
    pub ended: Option<JobPhase>,
    /// Its record is gone.
    pub gone: bool,
    /// It was marked for deletion.
    pub marked: bool,
    /// A user removed it, so that its owner may not have seen how it ended.
    pub removed: bool,
    /// Phases that all members of a task had at one time.
    pub passed: BTreeSet<(String, PodPhase)>,
}

/// Effect of a write on one key.
#[derive(Debug)]
pub enum FlowEvent {
    /// A record made a job.
    Made(Namespaced, Index),
    /// The record of a job that a record made was changed.
    Changed(Namespaced, ControllerRef),
    CronStatus(Namespaced),
    FlowStatus(Namespaced, Pair<FlowStatus>),
    /// The record is gone.
    CronGone(Namespaced),
    FlowGone(Namespaced),
}

/// CronJobs, JobFlows, templates, and the jobs that they make.
#[derive(Default)]
pub struct FlowModel {
    pub crons: BTreeMap<Namespaced, Arc<ModelOwner>>,
    pub flows: BTreeMap<Namespaced, Arc<ModelOwner>>,
    pub cron_statuses: BTreeMap<Namespaced, Arc<CronStatus>>,
    pub flow_statuses: BTreeMap<Namespaced, Arc<FlowStatus>>,
    pub cron_owners: BTreeMap<Namespaced, SessionId>,
    pub flow_owners: BTreeMap<Namespaced, SessionId>,
    /// Jobs that records made, by name, the last one last.
    pub made: BTreeMap<Namespaced, Vec<MadeJob>>,
    /// Jobs that dispatches made, by template and token.
    pub dispatched: BTreeMap<(String, String), BTreeSet<Namespaced>>,
    /// When a snapshot was last restored.
    pub restored_at: Option<Duration>,
}

impl FlowModel {
    /// Applies a change. Returns its effect.
    pub fn apply(&mut self, by_user: bool, change: &KvChange) -> Option<FlowEvent> {
        let before = change.before.as_ref().map(|entry| (entry, by_user));
        self.set(&change.key, before, change.after.as_ref())
    }

    /// Replaces the model by a restored state.
    pub fn reload(&mut self, at: Duration, tables: &Tables) {
        *self = FlowModel { restored_at: Some(at), ..FlowModel::default() };
        // Statuses are noted for the jobs that are known.
        for entry in tables.kv.list(key::jobs().as_str()).chain(tables.kv.list("")) {
            if !self.made.keys().any(|id| key::job(id).as_str() == entry.key) {
                self.set(&entry.key, None, Some(entry));
            }
        }
        // Jobs that the statuses list and that are gone.
        for (id, status) in &self.flow_statuses {
            for job in &status.job_status_list {
                for retry in 0..=job.retries {
                    let Ok(name) = flow_document::job_name(&id.name, &job.step, retry) else {
                        continue;
                    };
                    let is_last = retry == job.retries;
                    let ended = if is_last { job.state } else { JobPhase::Failed };
                    let owner = owner(flow::KIND, id, status.uid);
                    list_gone(&mut self.made, id, name, owner, ended);
                }
            }
        }
        for (id, status) in &self.cron_statuses {
            for run in &status.jobs {
                let owner = owner(cron::KIND, id, status.uid);
                list_gone(&mut self.made, id, run.name.clone(), owner, JobPhase::Terminated);
            }
        }
    }

    fn set(
        &mut self,
        text: &str,
        before: Option<(&Arc<Entry>, bool)>,
        entry: Option<&Arc<Entry>>,
    ) -> Option<FlowEvent> {
        if let Some(id) = key::namespaced(&key::jobs(), text) {
            return self.set_job(id, before, entry);
        }
        if let Some(id) = key::namespaced(&key::job_statuses(), text) {
            let status = entry.and_then(|e| JobStatus::decode(&e.value).ok());
            self.set_job_status(&id, status?);
            return None;
        }
        if let Some(id) = key::namespaced(&key::cron_jobs(), text) {
            let is_valid = |value: &[u8]| cron_document::decode(&id, value).is_ok();
            put(&mut self.crons, &id, entry.map(|entry| record(entry, is_valid)));
            return entry.is_none().then_some(FlowEvent::CronGone(id));
        }
        if let Some(id) = key::namespaced(&key::job_flows(), text) {
            let is_valid = |value: &[u8]| flow_document::decode(&id, value).is_ok();
            put(&mut self.flows, &id, entry.map(|entry| record(entry, is_valid)));
            return entry.is_none().then_some(FlowEvent::FlowGone(id));
        }
        if let Some(id) = key::namespaced(&key::cron_job_statuses(), text) {
            let status = entry.map(|e| Arc::new(CronStatus::decode(&e.value).unwrap_or_default()));
            put(&mut self.cron_statuses, &id, status);
            return Some(FlowEvent::CronStatus(id));
        }
        if let Some(id) = key::namespaced(&key::job_flow_statuses(), text) {
            let status = entry.map(|e| Arc::new(FlowStatus::decode(&e.value).unwrap_or_default()));
            let pair = put(&mut self.flow_statuses, &id, status);
            return Some(FlowEvent::FlowStatus(id, pair));
        }
        if let Some(id) = key::namespaced(&key::cron_job_locks(), text) {
            hold(&mut self.cron_owners, id, entry);
        } else if let Some(id) = key::namespaced(&key::job_flow_locks(), text) {
            hold(&mut self.flow_owners, id, entry);
        }
        None
    }

    fn set_job(
        &mut self,
        id: Namespaced,
        before: Option<(&Arc<Entry>, bool)>,
        entry: Option<&Arc<Entry>>,
    ) -> Option<FlowEvent> {
        if before.is_none()
            && let Some(entry) = entry
        {
            let document = document(entry)?;
            let annotation = |name: &str| {
                Some(document.get("metadata")?.get("annotations")?.get(name)?.as_str()?.to_owned())
            };
            let of = annotation(MADE_BY_FLOW[1]).zip(annotation(TOKEN_ANNOTATION));
            if let Some(of) = of.filter(|_| !is_hostile(&id)) {
                self.dispatched.entry(of).or_default().insert(id.clone());
            }
            let owner = ControllerRef::in_document(&document)?;
            let uid = entry.create_index;
            let (ended, gone, marked, removed, passed) = Default::default();
            let job = MadeJob { owner, uid, ended, gone, marked, removed, passed };
            self.made.entry(id.clone()).or_default().push(job);
            return Some(FlowEvent::Made(id, uid));
        }
        let job = self.made.get_mut(&id)?.last_mut()?;
        let (before, by_user) = before?;
        if before.create_index != job.uid {
            return None;
        }
        job.gone |= entry.is_none();
        let is_marked = entry.is_some_and(|entry| owner_is_deleting(entry));
        job.removed |= by_user && (job.gone || is_marked);
        job.marked |= is_marked;
        Some(FlowEvent::Changed(id, job.owner.clone()))
    }

    fn set_job_status(&mut self, id: &Namespaced, status: JobStatus) {
        let jobs = self.made.get_mut(id).and_then(|jobs| jobs.last_mut());
        let Some(job) = jobs.filter(|job| job.uid == status.uid.0) else { return };
        if status.state.phase.is_final() {
            job.ended = Some(status.state.phase);
        }
        for (task, counts) in &status.task_status_count {
            let mut some = counts.iter().filter(|(_, count)| **count > 0);
            if let (Some((phase, _)), None) = (some.next(), some.next()) {
                job.passed.insert((task.clone(), *phase));
            }
        }
    }

    /// The record that made a job, as it is now.
    #[must_use]
    pub fn record(&self, namespace: &Namespaced, owner: &ControllerRef) -> Option<&ModelOwner> {
        let id = Namespaced { namespace: namespace.namespace.clone(), name: owner.name.clone() };
        let all = if owner.kind == cron::KIND { &self.crons } else { &self.flows };
        all.get(&id).filter(|record| record.uid == owner.uid).map(|record| &**record)
    }

    /// Who holds the lock of the record that made a job.
    #[must_use]
    pub fn holder(&self, namespace: &Namespaced, owner: &ControllerRef) -> Option<&SessionId> {
        let id = Namespaced { namespace: namespace.namespace.clone(), name: owner.name.clone() };
        let all = if owner.kind == cron::KIND { &self.cron_owners } else { &self.flow_owners };
        all.get(&id)
    }

    /// The jobs that one record made, by name.
    pub fn jobs_of<'a>(
        &'a self,
        kind: &'a str,
        id: &'a Namespaced,
        uid: Index,
    ) -> impl Iterator<Item = (&'a Namespaced, &'a MadeJob)> {
        let all = self.made.iter().flat_map(|(job, made)| made.iter().map(move |one| (job, one)));
        all.filter(move |(job, made)| {
            job.namespace == id.namespace
                && made.owner.uid == uid
                && made.owner.kind == kind
                && made.owner.name == id.name
        })
    }

    /// The last job of this name that a record made.
    #[must_use]
    pub fn job_of(&self, id: &Namespaced, owner: (&str, Index)) -> Option<&MadeJob> {
        let made = self.made.get(id)?.iter().rev();
        let mut made = made.filter(|job| (job.owner.kind.as_str(), job.owner.uid) == owner);
        made.next()
    }
}

fn owner(kind: &str, id: &Namespaced, uid: Index) -> ControllerRef {
    ControllerRef { kind: kind.to_owned(), name: id.name.clone(), uid }
}

/// Notes a job of a restored status, unless its record is there.
fn list_gone(
    made: &mut BTreeMap<Namespaced, Vec<MadeJob>>,
    id: &Namespaced,
    name: ObjectName,
    owner: ControllerRef,
    ended: JobPhase,
) {
    let job = Namespaced { namespace: id.namespace.clone(), name };
    let known = made.entry(job).or_default();
    if !known.iter().any(|job| job.owner == owner) {
        let (ended, passed) = (ended.is_final().then_some(ended), BTreeSet::new());
        let gone = MadeJob {
            owner,
            uid: Index::ZERO,
            ended,
            gone: true,
            marked: true,
            removed: true,
            passed,
        };
        known.insert(0, gone);
    }
}

fn document(entry: &Entry) -> Option<Value> {
    serde_json::from_slice(&entry.value).ok()
}

fn owner_is_deleting(entry: &Entry) -> bool {
    rcfarm::job::owner::is_deleting(&entry.value)
}

fn record(entry: &Arc<Entry>, is_valid: impl Fn(&[u8]) -> bool) -> Arc<ModelOwner> {
    let document = is_valid(&entry.value).then(|| document(entry)).flatten();
    let deleting = owner_is_deleting(entry);
    Arc::new(ModelOwner { uid: entry.create_index, document, deleting })
}
