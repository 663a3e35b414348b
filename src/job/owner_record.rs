//! A claimed record that makes jobs, such as a CronJob: its status, when its controller looks again, and what it writes
//! when there is nothing to do. `S` is the status.

use std::time::Duration;

use tracing::warn;

use super::owner_caches::OwnerCaches;
use crate::farm::kind::{
    Action, ClaimedRecord, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::records::Record;
use crate::farm::status_chain::{
    ChainedStatus, Change, Committed, RecordGuard, StatusChain, StatusWrite,
};
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{Actor, AuditRecord, Details, RECORD_GONE, RecordStep};
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::status::JobOwner;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_store::{Index, Key};

/// Longer messages are cut, in bytes.
pub const LONGEST_MESSAGE: usize = 4 * 1024;

/// The status of a record that makes jobs.
pub trait OwnerStatus: ChainedStatus {
    /// `kind` of the record's document.
    const KIND: &'static str;

    /// CreateIndex of the record that the status is about.
    fn uid(&self) -> Index;

    /// What the audit log says of it: phase, reason and message.
    fn said(&self) -> (Option<String>, String, &str);

    /// Says why nothing is done about the record.
    fn report(&mut self, about: &Record, report: OwnerReport);

    /// The farm that writes it.
    fn set_owner(&mut self, owner: JobOwner);
}

/// Why nothing is done about a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerReport {
    pub why: String,
    /// Until when, because it kept failing; `None`: until the record is corrected.
    pub quarantined_until: Option<Timestamp>,
}

/// A claimed record that makes jobs.
pub struct OwnerRecord<S> {
    pub ctx: ControllerContext,
    pub claimed: ClaimedRecord,
    pub id: Namespaced,
    key: Key,
    pub chain: StatusChain<S>,
    pub owner: JobOwner,
    /// ModifyIndex of the record that the last plan was of, and when to plan again.
    pub planned: Option<(Index, Option<Timestamp>)>,
    /// What the log has warned of.
    warned: Option<String>,
}

impl<S: OwnerStatus> OwnerRecord<S> {
    /// Starts from the status that was read before the claim, if any. `keys`: those of record and status.
    #[must_use]
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        id: Namespaced,
        keys: (Key, Key),
        caches: &OwnerCaches<S>,
    ) -> OwnerRecord<S> {
        let key = keys.0.clone();
        let chain = StatusChain::new(&ctx, &claimed, keys, caches.take_status(&id));
        caches.note(&id);
        let owner = JobOwner { farm: ctx.farm.clone(), since: ctx.clock.wall() };
        OwnerRecord { ctx, claimed, id, key, chain, owner, planned: None, warned: None }
    }

    /// A job of the record's namespace.
    #[must_use]
    pub fn job(&self, name: &ObjectName) -> Namespaced {
        Namespaced { namespace: self.id.namespace.clone(), name: name.clone() }
    }

    /// Reads the status again if it may be another than the last one written. Returns whether it was read.
    ///
    /// # Errors
    /// Any [`ReconcileError`].
    pub async fn catch_up(&mut self) -> Result<bool, ReconcileError> {
        let is_behind = self.chain.is_behind();
        if is_behind {
            self.chain.refresh().await?;
            // Nothing else is cached.
            self.chain.caught_up();
        }
        Ok(is_behind)
    }

    /// Whether the last plan was of this version of the record, and nothing has been due since.
    #[must_use]
    pub fn is_planned(&self, record: &Record) -> bool {
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= self.ctx.clock.wall());
        self.planned.is_some_and(|(at, due)| at == record.index && !is_due(due))
    }

    /// Waits until the plan is due.
    #[must_use]
    pub fn sleep(&self) -> Action {
        match self.planned {
            Some((_, Some(at))) => {
                let pause = Duration::try_from(at.duration_since(self.ctx.clock.wall()));
                Action::RequeueAfter(pause.unwrap_or(Duration::ZERO))
            }
            Some((_, None)) => Action::AwaitChange,
            None => Action::RequeueAfter(Duration::ZERO),
        }
    }

    /// Text of the audit records of its jobs.
    #[must_use]
    pub fn why(&self, why: &str) -> String {
        format!("{} {}: {why}", S::KIND, self.id)
    }

    /// What the audit log says of a transaction that writes `status`.
    #[must_use]
    pub fn step(&self, uid: Index, status: &S) -> RecordStep {
        let (phase, reason, message) = status.said();
        RecordStep {
            kind: S::KIND.to_owned(),
            record: self.id.clone(),
            uid,
            actor: Actor::Farm,
            farm: Some(self.ctx.farm.clone()),
            phase,
            reason,
            message: message.to_owned(),
            jobs_created: Vec::new(),
            jobs_deleted: Vec::new(),
        }
    }

    fn audit(&self, step: RecordStep) -> AuditRecord {
        AuditRecord::new(&Details::RecordStep(step), self.ctx.clock.wall())
    }

    /// Deletes the status of a record that was deleted by hand. The jobs stay.
    ///
    /// # Errors
    /// Any [`ReconcileError`].
    pub async fn delete_leftovers(&mut self, caches: &OwnerCaches<S>) -> ReconcileResult {
        if self.chain.index() == Index::ZERO {
            caches.forget(&self.id);
            return Ok(Action::AwaitChange);
        }
        let mut step = self.step(self.chain.status().uid(), self.chain.status());
        (step.reason, step.message) = (RECORD_GONE.to_owned(), String::new());
        let change = Change {
            status: StatusWrite::Delete,
            audit: vec![self.audit(step)],
            ..Change::of_status(RecordGuard::Absent, S::default())
        };
        match self.chain.commit(change).await? {
            Committed::Applied(_) => {
                caches.forget(&self.id);
                Ok(Action::AwaitChange)
            }
            Committed::Refused(_) => Ok(self.chain.after_refusal()),
        }
    }

    /// Says in the log and in the status what is wrong with a record. It is looked at again when it changes.
    ///
    /// # Errors
    /// Any [`ReconcileError`].
    pub async fn report_invalid(&mut self, record: &Record, why: String) -> ReconcileResult {
        if self.warned.as_ref() != Some(&why) {
            let (kind, key) = (S::KIND, &self.key);
            warn!(alert = true, kind, %key, why, "the record is not valid; it makes no jobs");
            self.warned = Some(why.clone());
        }
        self.report(record, OwnerReport { why, quarantined_until: None }).await?;
        self.planned = Some((record.index, None));
        Ok(Action::AwaitChange)
    }

    /// The record is valid: the log is told again if it is not any more.
    pub fn is_valid(&mut self) {
        self.warned = None;
    }

    /// Says in the status that the record is not reconciled for a while, because it kept failing.
    ///
    /// # Errors
    /// Any [`ReconcileError`].
    pub async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        self.catch_up().await?;
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(()) };
        self.planned = None;
        let quarantined_until = self.ctx.clock.wall().checked_add(pause).ok();
        self.report(record, OwnerReport { why: error.to_owned(), quarantined_until }).await
    }

    /// Writes into the status why nothing is done, if it does not say so yet.
    async fn report(&mut self, record: &Record, report: OwnerReport) -> Result<(), ReconcileError> {
        let mut status = self.chain.status().clone();
        if status.uid() != record.created {
            let revision = *status.revision();
            status = S::default();
            *status.revision() = revision;
        }
        let why = cut(&report.why, LONGEST_MESSAGE);
        status.report(record, OwnerReport { why, ..report });
        if status == *self.chain.status() {
            return Ok(());
        }
        status.set_owner(self.owner.clone());
        let step = self.step(record.created, &status);
        let mut change = Change::of_status(RecordGuard::At(record.index), status);
        change.audit.push(self.audit(step));
        self.chain.commit(change).await.map(drop)
    }
}
