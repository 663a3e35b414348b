//! Controller of one claimed CronJob: reads, plans, commits one transaction, and sleeps until the next run is due.
//!
//! Nothing is read or written while nothing is due: a CronJob at rest costs no requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tracing::{info, warn};

use super::document::{self, CronSpec};
use super::plan::{self, CronAction, CronObserved, CronPlan, DeleteReason, NamedJob};
use crate::farm::kind::{
    Action, ClaimedRecord, Controller, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::records::Record;
use crate::farm::status_chain::{
    ChainedStatus, Change, Committed, RecordGuard, Revisioned, StatusChain, StatusWrite,
};
use crate::job::owner::{self, ControllerRef, OwnedJob};
use crate::job::owner_caches::OwnerCaches;
use rcfarm_api::audit::{Actor, AuditRecord, Details, RecordStep};
use rcfarm_api::cron::{CronReason, CronRun, CronStatus, KIND, RunState};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::JobOwner;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::{FieldError, Timestamp, key};
use rcfarm_store::{Index, Op};

/// Longer errors are cut, in bytes.
const LONGEST_ERROR: usize = 4 * 1024;

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

/// Controller of one claimed CronJob.
pub struct CronController {
    ctx: ControllerContext,
    claimed: ClaimedRecord,
    id: Namespaced,
    caches: Arc<OwnerCaches<CronStatus>>,
    chain: StatusChain<CronStatus>,
    owner: JobOwner,
    /// ModifyIndex of the record that the last plan was of, and when the next run is due.
    planned: Option<(Index, Option<Timestamp>)>,
    /// A job that has the name of the run that is due.
    named: Option<NamedJob>,
    /// What the log has warned of.
    warned: Option<String>,
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
        let chain = StatusChain::new(&ctx, &claimed, keys, caches.take_status(&id));
        caches.note(&id);
        let owner = JobOwner { farm: ctx.farm.clone(), since: ctx.clock.wall() };
        CronController {
            ctx,
            claimed,
            id,
            caches,
            chain,
            owner,
            planned: None,
            named: None,
            warned: None,
        }
    }

    /// Plans for a decoded record. Its jobs are read if that may matter: something is due or has changed, or some are
    /// active. Who deletes a job by hand rings no doorbell.
    async fn decide(
        &self,
        record: &Record,
        spec: &CronSpec,
        rung: bool,
    ) -> Result<(CronPlan, ReadJobs), ReconcileError> {
        let (uid, status) = (record.created, self.chain.status());
        let now = self.ctx.clock.wall();
        let plan = |runs: Vec<CronRun>| {
            plan::plan(&CronObserved {
                id: &self.id,
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
        let planned = plan(listed.clone());
        let is_active = status.active().next().is_some();
        let is_at_rest = planned.action.is_none() && planned.status == *status;
        if listed.is_empty() || (is_at_rest && !rung && !is_active) {
            return Ok((planned, ReadJobs::new()));
        }
        let (runs, jobs) = self.read_jobs(uid, listed).await?;
        Ok((plan(runs), jobs))
    }

    /// Reads listed jobs. Those that are gone, being deleted, or of another owner are left out.
    async fn read_jobs(
        &self,
        uid: Index,
        listed: Vec<CronRun>,
    ) -> Result<(Vec<CronRun>, ReadJobs), ReconcileError> {
        let (mut runs, mut jobs) = (Vec::new(), ReadJobs::new());
        for run in listed {
            let Some(job) = owner::look(self.ctx.reader.as_ref(), &self.job(&run.name)).await?
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
        let own = ControllerRef { kind: KIND.to_owned(), name: self.id.name.clone(), uid };
        ControllerRef::in_document(&job.document).as_ref() == Some(&own)
    }

    fn job(&self, name: &ObjectName) -> Namespaced {
        Namespaced { namespace: self.id.namespace.clone(), name: name.clone() }
    }

    /// Commits a plan, unless it changes nothing.
    async fn commit(
        &mut self,
        record: &Record,
        spec: Option<&CronSpec>,
        (plan, jobs): (CronPlan, ReadJobs),
    ) -> ReconcileResult {
        let now = self.ctx.clock.wall();
        let CronPlan { mut status, action, wake_at } = plan;
        status.observed_index = record.index;
        (status.last_error, status.quarantined_until) = (None, None);
        let old = self.chain.status();
        if action.is_none() && status == *old {
            self.planned = Some((record.index, wake_at));
            return Ok(self.sleep());
        }
        let is_news = status.reason != old.reason || status.message != old.message;
        status.owner = Some(self.owner.clone());
        let mut change = Change::of_status(RecordGuard::At(record.index), status.clone());
        let mut step = self.step(record.created, &status);
        match &action {
            Some(CronAction::Create { name, at }) => {
                let spec = spec.expect("only a valid record makes jobs");
                let job = self.job(name);
                let document = spec.job(&job, record.created, &self.id, *at);
                let (op, audit) = owner::create(&job, &document, &self.why("Scheduled"), now);
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
                    let (op, audit) = owner::delete(&self.job(name), found, &self.why(why), now);
                    change.shared.push(op);
                    change.audit.push(audit);
                    step.jobs_deleted.push(name.to_string());
                }
            }
            Some(CronAction::Finish) => {
                change.status = StatusWrite::Delete;
                let (key, index) = (key::cron_job(&self.id), record.index);
                change.ops.push(Op::DeleteCas { key, index });
                step.reason = "Deleted".to_owned();
            }
            None => {}
        }
        change.audit.push(AuditRecord::new(&Details::RecordStep(step), now));
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                if is_news {
                    self.log(&status);
                }
                self.applied(record.index, action, wake_at);
                Ok(self.sleep())
            }
            Committed::Refused(refused) => {
                if let Some(CronAction::Create { name, at }) = &action
                    && !refused.shared.is_empty()
                {
                    let found = owner::look(self.ctx.reader.as_ref(), &self.job(name)).await?;
                    let named = found.map(|job| self.is_own(&job, record.created));
                    self.named = named.map(|is_own| NamedJob { at: *at, is_own });
                }
                Ok(self.chain.after_refusal())
            }
        }
    }

    fn why(&self, why: &str) -> String {
        format!("{KIND} {}: {why}", self.id)
    }

    /// Notes what was committed. After an action it is planned again at once.
    fn applied(&mut self, index: Index, action: Option<CronAction>, wake_at: Option<Timestamp>) {
        self.named = None;
        self.planned = match &action {
            Some(CronAction::Finish) => {
                self.caches.forget(&self.id);
                None
            }
            Some(_) => Some((index, Some(Timestamp::MIN))),
            None => Some((index, wake_at)),
        };
        match action {
            Some(CronAction::Create { name, at }) => {
                info!(record = %self.id, job = %name, %at, "CronJob: job made");
            }
            Some(CronAction::Delete { name, why }) => {
                info!(record = %self.id, job = %name, ?why, "CronJob: job deleted");
            }
            Some(CronAction::Finish) => info!(record = %self.id, "CronJob deleted"),
            None => {}
        }
    }

    fn log(&self, status: &CronStatus) {
        match status.reason {
            CronReason::TooManyMissedTimes
            | CronReason::MissedDeadline
            | CronReason::JobNameTaken
            | CronReason::TooManyActive => {
                warn!(record = %self.id, reason = %status.reason, why = status.message, "CronJob");
            }
            reason => {
                info!(record = %self.id, %reason, why = status.message, "CronJob");
            }
        }
    }

    fn step(&self, uid: Index, status: &CronStatus) -> RecordStep {
        RecordStep {
            kind: KIND.to_owned(),
            record: self.id.clone(),
            uid,
            actor: Actor::Farm,
            farm: Some(self.ctx.farm.clone()),
            phase: None,
            reason: status.reason.to_string(),
            message: status.message.clone(),
            jobs_created: Vec::new(),
            jobs_deleted: Vec::new(),
        }
    }

    /// Waits until the next run is due.
    fn sleep(&self) -> Action {
        match self.planned {
            Some((_, Some(at))) => Action::RequeueAfter(plan::pause(self.ctx.clock.wall(), at)),
            Some((_, None)) => Action::AwaitChange,
            None => Action::RequeueAfter(Duration::ZERO),
        }
    }

    /// Deletes the status of a record that was deleted by hand. The jobs stay.
    async fn delete_leftovers(&mut self) -> ReconcileResult {
        if self.chain.index() == Index::ZERO {
            self.caches.forget(&self.id);
            return Ok(Action::AwaitChange);
        }
        let mut step = self.step(self.chain.status().uid, self.chain.status());
        (step.reason, step.message) = ("Deleted".to_owned(), String::new());
        let change = Change {
            status: StatusWrite::Delete,
            audit: vec![AuditRecord::new(&Details::RecordStep(step), self.ctx.clock.wall())],
            ..Change::of_status(RecordGuard::Absent, CronStatus::default())
        };
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                self.caches.forget(&self.id);
                Ok(Action::AwaitChange)
            }
            Committed::Refused(_) => Ok(self.chain.after_refusal()),
        }
    }

    /// Writes into the status why nothing is done, if it does not say so yet.
    async fn report(
        &mut self,
        record: &Record,
        reason: CronReason,
        why: &str,
        until: Option<Timestamp>,
    ) -> Result<(), ReconcileError> {
        let why = cut(why, LONGEST_ERROR);
        let mut status = self.chain.status().clone();
        if status.uid != record.created {
            let revision = status.revision;
            status = CronStatus { uid: record.created, revision, ..CronStatus::default() };
        }
        status.observed_index = record.index;
        (status.reason, status.message) = (reason, why.clone());
        (status.last_error, status.quarantined_until) = (Some(why), until);
        if status == *self.chain.status() {
            return Ok(());
        }
        status.owner = Some(self.owner.clone());
        let step = self.step(record.created, &status);
        let mut change = Change::of_status(RecordGuard::At(record.index), status);
        change.audit.push(AuditRecord::new(&Details::RecordStep(step), self.ctx.clock.wall()));
        self.chain.commit(change).await.map(drop)
    }

    /// Says what is wrong with a record. One that is being deleted is deleted nevertheless.
    async fn invalid(&mut self, record: &Record, problems: &[FieldError]) -> ReconcileResult {
        if owner::is_deleting(&record.value) {
            let status = self.chain.status();
            let listed = match status.uid == record.created {
                true => status.jobs.clone(),
                false => Vec::new(),
            };
            let (runs, jobs) = self.read_jobs(record.created, listed).await?;
            let plan = plan::deletion(record.created, self.chain.status(), &runs);
            return self.commit(record, None, (plan, jobs)).await;
        }
        let why: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let why = why.join("; ");
        if self.warned.as_ref() != Some(&why) {
            warn!(alert = true, key = %key::cron_job(&self.id), why, "the CronJob is not valid; it makes no jobs");
            self.warned = Some(why.clone());
        }
        self.report(record, CronReason::InvalidRecord, &why, None).await?;
        self.planned = Some((record.index, None));
        Ok(Action::AwaitChange)
    }
}

#[async_trait]
impl Controller for CronController {
    async fn reconcile(&mut self) -> ReconcileResult {
        let mut rung = self.caches.take_rung(&self.claimed.id);
        if self.chain.is_behind() {
            self.chain.refresh().await?;
            // Nothing else is cached.
            self.chain.caught_up();
            rung = true;
        }
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else {
            return self.delete_leftovers().await;
        };
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= self.ctx.clock.wall());
        let is_active = self.chain.status().active().next().is_some();
        if !rung
            && !is_active
            && self.planned.is_some_and(|(at, due)| at == record.index && !is_due(due))
        {
            return Ok(self.sleep());
        }
        // Not kept: a parsed schedule takes 6 KB.
        let spec = match document::decode(&self.id, &record.value) {
            Ok(spec) => spec,
            Err(problems) => return self.invalid(record, &problems).await,
        };
        self.warned = None;
        let decided = self.decide(record, &spec, rung).await;
        if decided.is_err() {
            // The doorbell was not answered.
            self.caches.ring(&self.claimed.id);
        }
        self.commit(record, Some(&spec), decided?).await
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        if self.chain.is_behind() {
            self.chain.refresh().await?;
            self.chain.caught_up();
        }
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(()) };
        let until = self.ctx.clock.wall().checked_add(pause).ok();
        self.planned = None;
        self.report(record, CronReason::Quarantined, error, until).await
    }
}
