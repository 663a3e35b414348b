//! Controller of one claimed JobFlow: reads, plans, commits one transaction, and sleeps until something changes.
//!
//! A flow that has ended costs no requests.

mod commit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::caches::FlowCaches;
use super::document::{self, FlowSpec, RetainPolicy, job_name};
use super::failpoints;
use super::plan::{self, ActionLimits, FlowObserved, FlowPlan, ObservedJob, ObservedJobs, OwnJob};
use super::probing::{ProbeContext, Probing};
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::records::Record;
use crate::farm::status_chain::{ChainedStatus, Revisioned};
use crate::job::owner::{self, ControllerRef, OwnedJob};
use crate::job::owner_record::{OwnerRecord, OwnerReport, OwnerStatus};
use rcfarm_api::flow::{FlowPhase, FlowReason, FlowStatus, KIND};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::status::{JobOwner, JobStatus};
use rcfarm_api::{FieldError, Timestamp, key};
use rcfarm_store::{Index, StoreError, offload};

/// Bytes of a document that take as long as an item of other computations ([`offload`]).
const BYTES_PER_ITEM: usize = 256;
/// Jobs that are read at once.
const CONCURRENT_READS: usize = 16;
/// Audit records, guards and framing of a transaction, in bytes.
const FRAME_BYTES: usize = 24 * 1024;
/// Operations of a transaction besides those of its actions: fence, record, status, audit record.
const FRAME_OPS: usize = 4;
/// Operations of an action: a job, its template or its command, an audit record.
const ACTION_OPS: usize = 3;

impl Revisioned for FlowStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for FlowStatus {
    fn observed_index(&self) -> Index {
        self.observed_index
    }

    /// Refuses to start from an empty status: jobs that were made and are gone would be made again.
    fn unreadable(key: &rcfarm_store::Key, error: &FieldError) -> Result<Self, ReconcileError> {
        Err(ReconcileError::Record(format!(
            "{key} is not valid ({error}): correct it, or delete it; then jobs that are gone are made again"
        )))
    }
}

impl OwnerStatus for FlowStatus {
    const KIND: &'static str = KIND;

    fn uid(&self) -> Index {
        self.uid
    }

    fn said(&self) -> (Option<String>, String, &str) {
        (Some(self.state.phase.to_string()), self.reason.to_string(), &self.message)
    }

    fn report(&mut self, about: &Record, OwnerReport { why, quarantined_until }: OwnerReport) {
        (self.uid, self.observed_index) = (about.created, about.index);
        self.reason = match quarantined_until {
            Some(_) => FlowReason::Quarantined,
            None => FlowReason::InvalidRecord,
        };
        (self.message, self.last_error) = (why.clone(), Some(why));
        self.quarantined_until = quarantined_until;
    }

    fn set_owner(&mut self, owner: JobOwner) {
        self.owner = Some(owner);
    }
}

/// Controller of one claimed flow.
pub struct FlowController {
    caches: Arc<FlowCaches>,
    record: OwnerRecord<FlowStatus>,
    /// The decoded record, while the flow is not over.
    decoded: Option<(Index, Arc<FlowSpec>)>,
    /// Names of jobs to be made that other jobs have.
    taken: Vec<ObjectName>,
    probing: Probing,
}

/// Jobs whose records were read, by name.
type ReadJobs = BTreeMap<ObjectName, OwnedJob>;

impl FlowController {
    /// Starts from the status that was read before the claim, if any.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        id: Namespaced,
        caches: Arc<FlowCaches>,
    ) -> FlowController {
        let keys = (key::job_flow(&id), key::job_flow_status(&id));
        let probing = Probing::new(ProbeContext {
            reader: ctx.reader.clone(),
            namespace: id.namespace.clone(),
            slots: caches.probe_slots.of(&id.namespace),
            wake: claimed.wake.clone(),
        });
        let record = OwnerRecord::new(ctx, claimed, id, keys, &caches.owner);
        FlowController { caches, record, decoded: None, taken: Vec::new(), probing }
    }

    /// What a transaction takes.
    fn room(&self) -> ActionLimits {
        let bytes = self.record.ctx.limits.bytes.saturating_sub(FRAME_BYTES) / 4 * 3;
        let actions = self.record.ctx.limits.ops.saturating_sub(FRAME_OPS) / ACTION_OPS;
        ActionLimits { bytes, actions: actions.clamp(1, plan::MOST_ACTIONS) }
    }

    /// Decodes the record if its ModifyIndex has changed.
    async fn decode(&mut self, record: &Record) -> Result<Arc<FlowSpec>, Vec<FieldError>> {
        if let Some((_, same)) = self.decoded.as_ref().filter(|(then, _)| *then == record.index) {
            return Ok(same.clone());
        }
        let items = record.value.len() / BYTES_PER_ITEM;
        let spec = offload(items, || document::decode(&self.record.id, &record.value)).await?;
        let spec = Arc::new(spec);
        self.decoded = Some((record.index, spec.clone()));
        Ok(spec)
    }

    /// Reads what a plan needs, and plans. Probes that it asks for are made in the meantime.
    async fn decide(
        &mut self,
        record: &Record,
        spec: &FlowSpec,
    ) -> Result<(FlowPlan, ReadJobs), ReconcileError> {
        let uid = record.created;
        let status = &*failpoints::change_status(self.record.chain.status());
        let spec = &*failpoints::change_spec(spec);
        if !self.caches.templates.snapshot().is_read() {
            self.caches.templates.read_now().await?;
        }
        let deletes = spec.deleting
            || spec.retain == RetainPolicy::Delete && status.state.phase == FlowPhase::Succeed;
        let (mut jobs, read) = self.read_jobs(uid, deletes).await?;
        failpoints::change_jobs(&mut jobs);
        self.probing.refresh();
        let templates = self.caches.templates.snapshot();
        let observed = FlowObserved {
            id: &self.record.id,
            uid,
            spec,
            status,
            jobs: &jobs,
            templates: &templates.value,
            probes: self.probing.answers(),
            room: self.room(),
            now: self.record.ctx.clock.wall(),
        };
        let mut plan = offload(items(&observed), || plan::plan(&observed)).await;
        self.probing.make(std::mem::take(&mut plan.probes));
        Ok((plan, read))
    }

    /// Reads jobs whose end was not seen, those that have the name of one to be made, and those to be deleted next.
    async fn read_jobs(
        &self,
        uid: Index,
        deletes: bool,
    ) -> Result<(ObservedJobs, ReadJobs), StoreError> {
        let status = self.record.chain.status();
        if status.uid != uid {
            return self.read_whole(uid, self.taken.clone()).await;
        }
        let mut whole: Vec<ObjectName> = self.taken.clone();
        if deletes {
            whole.extend(plan::next_to_delete(&self.record.id.name, status));
        }
        let mut known = Vec::new();
        for job in status.active().filter(|job| !whole.contains(&job.name)) {
            match job.uid {
                Some(uid) => known.push((job.name.clone(), uid)),
                None => known.push((job.name.clone(), Index::ZERO)),
            }
        }
        let look = |(name, uid): (ObjectName, Index)| async move {
            let status = match uid {
                Index::ZERO => None,
                uid => {
                    owner::read_job_status(
                        self.record.ctx.reader.as_ref(),
                        &self.record.job(&name),
                        uid,
                    )
                    .await?
                }
            };
            Ok::<_, StoreError>((name, uid, status))
        };
        let found: Vec<_> =
            stream::iter(known).map(look).buffered(CONCURRENT_READS).try_collect().await?;
        let mut seen = ObservedJobs::new();
        for (name, uid, status) in found {
            match status {
                Some(status) => drop(seen.insert(name, of_status(uid, status))),
                // It has none yet, or it is gone.
                None => whole.push(name),
            }
        }
        let (others, read) = self.read_whole(uid, whole).await?;
        seen.extend(others);
        Ok((seen, read))
    }

    /// Reads the records of jobs, and their statuses.
    async fn read_whole(
        &self,
        uid: Index,
        names: Vec<ObjectName>,
    ) -> Result<(ObservedJobs, ReadJobs), StoreError> {
        let look = |name: ObjectName| async move {
            let found =
                owner::read_job(self.record.ctx.reader.as_ref(), &self.record.job(&name)).await?;
            Ok::<_, StoreError>((name, found))
        };
        let found: Vec<_> =
            stream::iter(names).map(look).buffered(CONCURRENT_READS).try_collect().await?;
        let (mut seen, mut read) = (ObservedJobs::new(), ReadJobs::new());
        let own = ControllerRef { kind: KIND.to_owned(), name: self.record.id.name.clone(), uid };
        for (name, job) in found {
            let one = match job {
                None => ObservedJob::Gone,
                Some(job) if ControllerRef::in_document(&job.document).as_ref() != Some(&own) => {
                    ObservedJob::Foreign
                }
                Some(mut job) => {
                    let uid = job.entry.create_index;
                    let mut one = of_status(uid, job.status.take().unwrap_or_default());
                    if let ObservedJob::Own(own) = &mut one {
                        own.is_deleting = job.is_deleting();
                        own.bytes = Some(job.entry.value.len());
                    }
                    read.insert(name.clone(), job);
                    one
                }
            };
            seen.insert(name, one);
        }
        Ok((seen, read))
    }

    /// Notes names of jobs to be made that were found to be taken.
    async fn look_at_refused(
        &mut self,
        uid: Index,
        names: Vec<ObjectName>,
    ) -> Result<(), StoreError> {
        let (seen, _) = self.read_whole(uid, names).await?;
        let there = seen.into_iter().filter(|(_, job)| *job != ObservedJob::Gone);
        self.taken.extend(there.map(|(name, _)| name));
        self.taken.sort_unstable();
        self.taken.dedup();
        Ok(())
    }

    /// Forgets names that are not those of jobs to be made any more.
    fn forget_taken(&mut self, spec: &FlowSpec) {
        if self.taken.is_empty() {
            return;
        }
        let names = spec.steps.iter().flat_map(|step| {
            (0..=step.retry).filter_map(|n| job_name(&self.record.id.name, &step.name, n).ok())
        });
        let names: BTreeSet<ObjectName> = names.collect();
        let listed = &self.record.chain.status().job_status_list;
        self.taken
            .retain(|name| names.contains(name) && !listed.iter().any(|job| job.name == *name));
    }

    /// Says what is wrong with a record. One that is being deleted is deleted nevertheless.
    async fn invalid(&mut self, record: &Record, problems: &[FieldError]) -> ReconcileResult {
        self.probing.make(Vec::new());
        if owner::is_deleting(&record.value) {
            let (jobs, read) = self.read_jobs(record.created, true).await?;
            let reads = (&jobs, self.room());
            let plan =
                plan::deletion(&self.record.id, record.created, self.record.chain.status(), reads);
            return self.commit(record, (plan, read)).await;
        }
        self.record.report_invalid(record, FieldError::list(problems)).await
    }
}

/// Work of a plan: steps, and templates of which jobs are made.
fn items(seen: &FlowObserved<'_>) -> usize {
    let templates: BTreeSet<&ObjectName> =
        seen.spec.steps.iter().map(|step| &step.template).collect();
    let bytes = templates.into_iter().filter_map(|name| {
        let id = Namespaced { namespace: seen.id.namespace.clone(), name: name.clone() };
        Some(seen.templates.get(&id.to_string().as_str().into())?.value.len())
    });
    seen.spec.steps.len() + bytes.sum::<usize>() / BYTES_PER_ITEM
}

fn of_status(uid: Index, status: JobStatus) -> ObservedJob {
    let since = status.state.last_transition_time;
    ObservedJob::Own(Box::new(OwnJob {
        uid,
        phase: status.state.phase,
        since: (since != Timestamp::UNIX_EPOCH).then_some(since),
        restarts: status.retry_count,
        ran_for: status.running_duration_seconds,
        tasks: status.task_status_count,
        is_deleting: false,
        bytes: None,
    }))
}

#[async_trait]
impl Controller for FlowController {
    async fn reconcile(&mut self) -> ReconcileResult {
        let mut rung = self.caches.owner.take_rung(&self.record.claimed.id);
        rung |= self.record.catch_up().await?;
        let seen = self.record.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.record.claimed.id) else {
            self.caches.set_waiting(&self.record.claimed.id, Default::default());
            self.probing.make(Vec::new());
            return self.record.delete_leftovers(&self.caches.owner).await;
        };
        // One that came back under this claim gets a status again.
        self.caches.owner.note(&self.record.id);
        // Who deletes a job by hand rings no doorbell.
        let is_active = self.record.chain.status().active().next().is_some();
        if !rung && !is_active && self.record.is_planned(record) {
            return Ok(self.record.sleep());
        }
        let spec = match self.decode(record).await {
            Ok(spec) => spec,
            Err(problems) => return self.invalid(record, &problems).await,
        };
        self.record.is_valid();
        self.forget_taken(&spec);
        let decided = self.decide(record, &spec).await;
        if decided.is_err() {
            // The doorbell was not answered.
            self.caches.owner.ring(&self.record.claimed.id);
        }
        self.commit(record, decided?).await
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        self.record.report_quarantine(error, pause).await
    }
}
