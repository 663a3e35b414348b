//! Controller of one claimed CronJob: reads, plans, commits one transaction, and sleeps until the next run is due.
//!
//! Nothing is read or written while nothing is due: a CronJob at rest costs no requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{info, warn};

use super::document::{self, CronSpec};
use super::failpoints;
use super::plan::{self, CronAction, CronObserved, CronPlan, DeleteReason, NamedJob};
use crate::farm::kind::{
    ClaimedRecord, Controller, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::records::Record;
use crate::farm::status_chain::{
    ChainedStatus, Change, Committed, RecordGuard, Revisioned, StatusWrite,
};
use crate::job::owner::{self, ControllerRef, OwnedJob};
use crate::job::owner_caches::OwnerCaches;
use crate::job::owner_record::{OwnerRecord, OwnerReport, OwnerStatus};
use rcfarm_api::audit::{AuditRecord, Details};
use rcfarm_api::cron::{CronReason, CronRun, CronStatus, KIND, RunState};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobOwner;
use rcfarm_api::{FieldError, Timestamp, key};
use rcfarm_store::{Index, Op, offload};

impl Revisioned for CronStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for CronStatus {
    fn observed_index(&self) -> Index {
        self.observed_index
    }

    /// Refuses to start from an empty status: runs that were made would be made again.
    fn unreadable(key: &rcfarm_store::Key, error: &FieldError) -> Result<Self, ReconcileError> {
        Err(ReconcileError::Record(format!(
            "{key} is not valid ({error}): correct it, or delete it; then runs count from that moment on"
        )))
    }
}

impl OwnerStatus for CronStatus {
    const KIND: &'static str = KIND;

    fn uid(&self) -> Index {
        self.uid
    }

    fn said(&self) -> (Option<String>, String, &str) {
        (None, self.reason.to_string(), &self.message)
    }

    fn report(&mut self, about: &Record, OwnerReport { why, quarantined_until }: OwnerReport) {
        (self.uid, self.observed_index) = (about.created, about.index);
        self.reason = match quarantined_until {
            Some(_) => CronReason::Quarantined,
            None => CronReason::InvalidRecord,
        };
        (self.message, self.last_error) = (why.clone(), Some(why));
        self.quarantined_until = quarantined_until;
    }

    fn set_owner(&mut self, owner: JobOwner) {
        self.owner = Some(owner);
    }
}

/// Bytes of a document that take as long as an item of other computations ([`offload`]).
const BYTES_PER_ITEM: usize = 256;

/// Controller of one claimed CronJob.
pub struct CronController {
    caches: Arc<OwnerCaches<CronStatus>>,
    record: OwnerRecord<CronStatus>,
    /// A job that has the name of the run that is due.
    named: Option<NamedJob>,
}

/// Jobs of the CronJob that were read, by name.
type ReadJobs = BTreeMap<ObjectName, OwnedJob>;

impl CronController {
    /// Starts from the status that was read before the claim, if any.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        id: Namespaced,
        caches: Arc<OwnerCaches<CronStatus>>,
    ) -> CronController {
        let keys = (key::cron_job(&id), key::cron_job_status(&id));
        let record = OwnerRecord::new(ctx, claimed, id, keys, &caches);
        CronController { caches, record, named: None }
    }

    /// Plans for a decoded record. Its jobs are read if that may matter: something is due or has changed, or some are
    /// active. Who deletes a job by hand rings no doorbell.
    async fn decide(
        &self,
        record: &Record,
        spec: &CronSpec,
        rung: bool,
    ) -> Result<(CronPlan, ReadJobs), ReconcileError> {
        let uid = record.created;
        let status = &*failpoints::change_status(self.record.chain.status());
        let now = failpoints::change_now(self.record.ctx.clock.wall());
        let plan = |runs: Vec<CronRun>| {
            plan::plan(&CronObserved {
                id: &self.record.id,
                uid,
                spec,
                status,
                runs,
                named: self.named,
                now,
            })
        };
        let listed = match status.uid == uid {
            true => status.jobs.clone(),
            false => Vec::new(),
        };
        let items = listed.len() + record.value.len() / BYTES_PER_ITEM;
        let planned = offload(items, || plan(listed.clone())).await;
        let is_active = status.active().next().is_some();
        let is_at_rest = planned.action.is_none() && planned.status == *status;
        if listed.is_empty() || (is_at_rest && !rung && !is_active) {
            return Ok((planned, ReadJobs::new()));
        }
        let (runs, jobs) = self.read_jobs(uid, listed).await?;
        Ok((offload(items, || plan(runs)).await, jobs))
    }

    /// Reads listed jobs. Those that are gone, being deleted, or of another owner are left out.
    async fn read_jobs(
        &self,
        uid: Index,
        listed: Vec<CronRun>,
    ) -> Result<(Vec<CronRun>, ReadJobs), ReconcileError> {
        let (mut runs, mut jobs) = (Vec::new(), ReadJobs::new());
        for run in listed {
            let Some(job) =
                owner::read_job(self.record.ctx.reader.as_ref(), &self.record.job(&run.name))
                    .await?
            else {
                continue;
            };
            if job.is_deleting() || !self.is_own(&job, uid) {
                continue;
            }
            let (state, finished) = match job.phase() {
                Some((JobPhase::Completed, since)) => (RunState::Succeeded, Some(since)),
                Some((JobPhase::Failed | JobPhase::Terminated, since)) => {
                    (RunState::Failed, Some(since))
                }
                _ => (RunState::Active, None),
            };
            jobs.insert(run.name.clone(), job);
            runs.push(CronRun { state, finished, ..run });
        }
        Ok((runs, jobs))
    }

    fn is_own(&self, job: &OwnedJob, uid: Index) -> bool {
        let own = ControllerRef { kind: KIND.to_owned(), name: self.record.id.name.clone(), uid };
        ControllerRef::in_document(&job.document).as_ref() == Some(&own)
    }

    /// Commits a plan, unless it changes nothing.
    async fn commit(
        &mut self,
        record: &Record,
        spec: Option<&CronSpec>,
        (plan, jobs): (CronPlan, ReadJobs),
    ) -> ReconcileResult {
        let now = self.record.ctx.clock.wall();
        let CronPlan { mut status, action, wake_at } = plan;
        status.observed_index = record.index;
        (status.last_error, status.quarantined_until) = (None, None);
        let old = self.record.chain.status();
        if action.is_none() && status == *old {
            self.record.planned = Some((record.index, wake_at));
            return Ok(self.record.sleep());
        }
        let is_news = status.reason != old.reason || status.message != old.message;
        status.owner = Some(self.record.owner.clone());
        let mut change = Change::of_status(RecordGuard::At(record.index), status.clone());
        let mut step = self.record.step(record.created, &status);
        match &action {
            Some(CronAction::Create { name, at }) => {
                let spec = spec.expect("only a valid record makes jobs");
                let job = self.record.job(name);
                let document = spec.job(&job, record.created, &self.record.id, *at);
                let (op, audit) =
                    owner::create(&job, &document, &self.record.why("Scheduled"), now);
                change.shared.push(op);
                change.audit.push(audit);
                step.jobs_created.push(name.to_string());
            }
            Some(CronAction::Delete { name, why }) => {
                // A job that was not found is not in the list any more.
                if let Some(found) = jobs.get(name) {
                    let why = match why {
                        DeleteReason::Replaced => "Replaced",
                        DeleteReason::HistoryLimit => "HistoryLimit",
                        DeleteReason::OwnerDeleted => "Deleted",
                    };
                    let (op, audit) =
                        owner::delete(&self.record.job(name), found, &self.record.why(why), now);
                    change.shared.push(op);
                    change.audit.push(audit);
                    step.jobs_deleted.push(name.to_string());
                }
            }
            Some(CronAction::Finish) => {
                change.status = StatusWrite::Delete;
                let (key, index) = (key::cron_job(&self.record.id), record.index);
                change.ops.push(Op::DeleteCas { key, index });
                step.reason = "Deleted".to_owned();
            }
            None => {}
        }
        change.audit.push(AuditRecord::new(&Details::RecordStep(step), now));
        match self.record.chain.commit(change).await? {
            Committed::Applied(_) => {
                if is_news {
                    self.log(&status);
                }
                self.applied(record.index, action, wake_at);
                Ok(self.record.sleep())
            }
            Committed::Refused(refused) => {
                if let Some(CronAction::Create { name, at }) = &action
                    && !refused.shared.is_empty()
                {
                    let found =
                        owner::read_job(self.record.ctx.reader.as_ref(), &self.record.job(name))
                            .await?;
                    let named = found.map(|job| self.is_own(&job, record.created));
                    self.named = named.map(|is_own| NamedJob { at: *at, is_own });
                }
                Ok(self.record.chain.after_refusal())
            }
        }
    }

    /// Notes what was committed. After an action it is planned again at once.
    fn applied(&mut self, index: Index, action: Option<CronAction>, wake_at: Option<Timestamp>) {
        self.named = None;
        self.record.planned = match &action {
            Some(CronAction::Finish) => {
                self.caches.forget(&self.record.id);
                None
            }
            Some(_) => Some((index, Some(Timestamp::MIN))),
            None => Some((index, wake_at)),
        };
        match action {
            Some(CronAction::Create { name, at }) => {
                info!(record = %self.record.id, job = %name, %at, "CronJob: job made");
            }
            Some(CronAction::Delete { name, why }) => {
                info!(record = %self.record.id, job = %name, ?why, "CronJob: job deleted");
            }
            Some(CronAction::Finish) => info!(record = %self.record.id, "CronJob deleted"),
            None => {}
        }
    }

    fn log(&self, status: &CronStatus) {
        match status.reason {
            CronReason::TooManyMissedTimes
            | CronReason::MissedDeadline
            | CronReason::JobNameTaken
            | CronReason::TooManyActive => {
                warn!(record = %self.record.id, reason = %status.reason, why = status.message, "CronJob");
            }
            reason => {
                info!(record = %self.record.id, %reason, why = status.message, "CronJob");
            }
        }
    }

    /// Says what is wrong with a record. One that is being deleted is deleted nevertheless.
    async fn invalid(&mut self, record: &Record, problems: &[FieldError]) -> ReconcileResult {
        if owner::is_deleting(&record.value) {
            let status = self.record.chain.status();
            let listed = match status.uid == record.created {
                true => status.jobs.clone(),
                false => Vec::new(),
            };
            let (runs, jobs) = self.read_jobs(record.created, listed).await?;
            let plan = plan::deletion(record.created, self.record.chain.status(), &runs);
            return self.commit(record, None, (plan, jobs)).await;
        }
        self.record.report_invalid(record, FieldError::list(problems)).await
    }
}

#[async_trait]
impl Controller for CronController {
    async fn reconcile(&mut self) -> ReconcileResult {
        let mut rung = self.caches.take_rung(&self.record.claimed.id);
        rung |= self.record.catch_up().await?;
        let seen = self.record.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.record.claimed.id) else {
            return self.record.delete_leftovers(&self.caches).await;
        };
        // One that came back under this claim gets a status again.
        self.caches.note(&self.record.id);
        let is_active = self.record.chain.status().active().next().is_some();
        if !rung && !is_active && self.record.is_planned(record) {
            return Ok(self.record.sleep());
        }
        // Not kept: a parsed schedule takes 6 KB.
        let items = record.value.len() / BYTES_PER_ITEM;
        let decoded = offload(items, || document::decode(&self.record.id, &record.value)).await;
        let spec = match decoded {
            Ok(spec) => failpoints::change_spec(spec),
            Err(problems) => return self.invalid(record, &problems).await,
        };
        self.record.is_valid();
        let decided = self.decide(record, &spec, rung).await;
        if decided.is_err() {
            // The doorbell was not answered.
            self.caches.ring(&self.record.claimed.id);
        }
        self.commit(record, Some(&spec), decided?).await
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        self.record.report_quarantine(error, pause).await
    }
}
