//! Status chain: the one way for a controller to commit a plan.
//!
//! Each transaction replaces the status of its record by `cas`, so a record's transactions form a chain: one whose
//! answer was lost either shows in the status, or cannot be applied any more once the next one was
//! (docs/decisions/0024-one-status-chain.md). Operations in order:
//!
//! 1. the fence of the claim;
//! 2. the record as the plan saw it ([`RecordGuard`]);
//! 3. the status at its index ([`StatusWrite`]);
//! 4. the plan's own operations, then those on keys that other owners write, too;
//! 5. audit records.
//!
//! Keys read and written: the status; the record is read after a refusal. A crash between two transactions leaves what
//! the status says; the next owner reads it and plans.

mod machine;

use std::sync::Arc;

use tracing::{debug, info};

use super::kind::{Action, ClaimedRecord, ControllerContext, ReconcileError};
use super::metrics::{CommitOutcome, RecordGauges};
use super::status_check::ExpectedStatus;
use machine::{CommitAnswer, Machine, Next};
use rcfarm_api::audit::{AuditCause, AuditRecord};
use rcfarm_api::{FieldError, Stored};
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{
    Commit, Fenced, Index, Key, Op, Query, Refusal, StoreError, Txn, audit_op, key,
};

pub use machine::{RefusedParts, Revisioned, StatusWrite};

/// A status that is the chain of its record's transactions.
pub trait ChainedStatus: Revisioned + Stored + Send + Sync + 'static {
    /// ModifyIndex of the record that the status is about.
    fn observed_index(&self) -> Index;

    /// The status to continue with when the stored value cannot be decoded.
    ///
    /// # Errors
    /// Why it must not be replaced.
    fn unreadable(key: &Key, error: &FieldError) -> Result<Self, ReconcileError> {
        let _ = (key, error);
        Ok(Self::default())
    }

    /// What it shows in the metrics. `None`: nothing.
    fn gauges(&self) -> Option<RecordGauges> {
        None
    }

    /// Whether the owner that wrote it may have sent transactions that only check it.
    fn has_dependents(&self) -> bool {
        false
    }
}

/// What a transaction requires of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordGuard {
    /// Its ModifyIndex is still this one.
    At(Index),
    /// It does not exist.
    Absent,
    /// Nothing.
    Any,
}

/// What a plan changes, in one transaction.
#[derive(Debug, Clone)]
pub struct Change<S> {
    /// The record as the plan saw it.
    pub record: RecordGuard,
    pub status: StatusWrite<S>,
    /// Operations on keys that only this owner writes. If one is refused, the chain falls behind.
    pub ops: Vec<Op>,
    /// Operations on keys that other owners also write. The caller reads refused ones again.
    pub shared: Vec<Op>,
    pub audit: Vec<AuditRecord>,
}

impl<S> Change<S> {
    /// A change of the status alone.
    pub fn of_status(record: RecordGuard, status: S) -> Change<S> {
        let status = StatusWrite::Replace(status);
        Change { record, status, ops: Vec::new(), shared: Vec::new(), audit: Vec::new() }
    }
}

/// Result of a change. A lost claim and a failed request are errors ([`ReconcileError`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Committed {
    Applied(Index),
    /// Not applied: something has changed. Plan again after [`StatusChain::after_refusal`].
    Refused(RefusedParts),
}

/// The chain of one claimed record, as its owner knows it.
pub struct StatusChain<S> {
    ctx: ControllerContext,
    claimed: ClaimedRecord,
    record: Key,
    key: Key,
    machine: Machine<S>,
    /// What the periodic check of statuses compares.
    expected: Arc<ExpectedStatus>,
    /// The answer to a dependent transaction was lost.
    has_lost_dependents: bool,
}

/// Positions of the parts of a transaction.
struct Layout {
    record: Option<usize>,
    shared: std::ops::Range<usize>,
}

impl Layout {
    fn refused(&self, refusals: &[Refusal]) -> RefusedParts {
        let mut refused = RefusedParts::default();
        for Refusal { op, .. } in refusals {
            match op {
                op if self.record == Some(*op) => refused.record = true,
                op if self.shared.contains(op) => refused.shared.push(op - self.shared.start),
                _ => refused.own = true,
            }
        }
        refused
    }
}

impl<S: ChainedStatus> StatusChain<S> {
    /// The chain of a record whose status is at `key`. `read` is the status if it was read at the claim.
    pub fn new(
        ctx: &ControllerContext,
        claimed: &ClaimedRecord,
        (record, key): (Key, Key),
        read: Option<(Index, S)>,
    ) -> Self {
        let (ctx, claimed) = (ctx.clone(), claimed.clone());
        let is_read = read.is_some();
        let expected = claimed.statuses.register(&claimed.id, &key);
        let machine = Machine::new(read);
        let has_lost_dependents = false;
        let chain =
            StatusChain { ctx, claimed, record, key, machine, expected, has_lost_dependents };
        if is_read {
            chain.note_known();
        }
        chain
    }

    /// The status as last read or written; the default if there is none.
    pub fn status(&self) -> &S {
        self.machine.status()
    }

    /// ModifyIndex of the status; 0 if there is none.
    pub fn index(&self) -> Index {
        self.machine.index()
    }

    /// Whether [`StatusChain::refresh`] must be called before the next plan. Nothing is committed until then.
    pub fn is_behind(&self) -> bool {
        self.machine.is_behind() || self.has_dependents() || self.expected.differs()
    }

    /// Requires a [`StatusChain::refresh`] before the next plan.
    pub fn fall_behind(&mut self) {
        self.machine.fall_behind();
    }

    /// Reads the status. The caller then reads its caches and calls [`StatusChain::caught_up`]. Caches that are older
    /// than the status must not be planned from.
    ///
    /// # Errors
    /// Any [`ReconcileError`]; the chain stays behind.
    pub async fn refresh(&mut self) -> Result<(), ReconcileError> {
        self.machine.fall_behind();
        let (index, status) = self.read().await?;
        self.machine.refreshed(index, status);
        self.note_known();
        if self.has_dependents() { self.seal().await } else { Ok(()) }
    }

    /// Notes the status as just read or written.
    fn note_known(&self) {
        self.expected.set(self.index());
        if let Some(gauges) = self.status().gauges() {
            self.claimed.metrics.shows(gauges);
        }
    }

    /// The caches were read after the status.
    pub fn caught_up(&mut self) {
        self.machine.caught_up();
    }

    /// Commits a change.
    ///
    /// If the answer is lost, reads the status. If it is the one sent, the change was applied; otherwise the error is
    /// returned and the chain is behind.
    ///
    /// # Errors
    /// [`ReconcileError::ClaimLost`], or the store's. Nothing is sent while the chain is behind.
    pub async fn commit(&mut self, change: Change<S>) -> Result<Committed, ReconcileError> {
        if self.machine.is_behind() {
            let why = format!("{} must be read before it is written", self.key);
            debug_assert!(false, "{why}");
            return Err(ReconcileError::Elsewhere(why));
        }
        self.send(change).await
    }

    async fn send(&mut self, change: Change<S>) -> Result<Committed, ReconcileError> {
        self.expected.sent();
        let committed = self.send_and_learn(change).await;
        if !matches!(committed, Ok(Committed::Applied(_))) && !self.machine.is_behind() {
            self.note_known();
        }
        committed
    }

    async fn send_and_learn(&mut self, change: Change<S>) -> Result<Committed, ReconcileError> {
        let seen = change.record;
        let sent = self.machine.next(change.status.clone());
        let (txn, apart, layout) = self.transaction(change, &sent);
        let committed = self.write(txn).await;
        if let Some(apart) = apart {
            let _ = self.ctx.writer.commit(apart).await?;
        }
        let error = match committed {
            Ok(Commit::ClaimLost) => return Err(ReconcileError::ClaimLost),
            Ok(Commit::Refused(refusals)) => {
                debug!(record = %self.claimed.id, ?refusals, "refused: reconciling again");
                let refused = layout.refused(&refusals);
                self.machine.answered(sent, &CommitAnswer::Refused(refused.clone()));
                self.refused(seen, &refused).await?;
                return Ok(Committed::Refused(refused));
            }
            Ok(Commit::Applied(index)) => {
                self.machine.answered(sent, &CommitAnswer::Applied(index));
                self.note_known();
                return Ok(Committed::Applied(index));
            }
            Err(error) => error,
        };
        let is_unknown = error.outcome_unknown() && !enabled(Failpoint::RepeatUnknown);
        let answer = if is_unknown { CommitAnswer::Unknown } else { CommitAnswer::NotApplied };
        if self.machine.answered(sent, &answer) == Next::ReadBack
            && let Ok((index, found)) = self.read().await
            && self.machine.read_back(index, &found)
        {
            self.note_known();
            info!(record = %self.claimed.id, %error, "the transaction was applied, its answer was lost");
            return Ok(Committed::Applied(index));
        }
        Err(error.into())
    }

    async fn write(&self, txn: Txn<Fenced>) -> Result<Commit, StoreError> {
        let sent = monotonic();
        let answer = self.ctx.writer.commit(txn).await;
        let outcome = match &answer {
            Ok(Commit::Applied(_)) => CommitOutcome::Applied,
            Ok(Commit::Refused(_)) => CommitOutcome::Conflict,
            Ok(Commit::ClaimLost) => CommitOutcome::ClaimLost,
            Err(error) if error.outcome_unknown() => CommitOutcome::Unknown,
            Err(_) => CommitOutcome::Failed,
        };
        self.claimed.metrics.committed(outcome, monotonic() - sent);
        answer
    }

    /// Plans again after a pause, which doubles with each refusal in a row, or when a change is seen.
    pub fn after_refusal(&self) -> Action {
        Action::RequeueAfter(self.ctx.ids.jitter(self.machine.pause(), 0.5))
    }

    /// The caches were found to be older than the store: as after a refused transaction.
    pub fn found_outdated(&mut self) -> Action {
        self.machine.refuse(&RefusedParts { own: true, ..RefusedParts::default() });
        self.after_refusal()
    }

    /// A transaction that checks the status instead of replacing it, and to which operations can be added. Several may
    /// be in flight at once; together they are one link of the chain.
    pub fn dependent(&self, record: RecordGuard) -> Txn<Fenced> {
        let mut txn = Txn::under(&self.claimed.claim);
        txn.extend(self.guard(record));
        txn.push(Op::CheckIndex { key: self.key.clone(), index: self.index() });
        txn
    }

    /// Commits a transaction of [`StatusChain::dependent`], between [`StatusChain::begin_dependents`] and
    /// [`StatusChain::end_dependents`].
    ///
    /// # Errors
    /// [`ReconcileError::ClaimLost`], or the store's.
    pub async fn commit_dependent(
        &self,
        mut txn: Txn<Fenced>,
        audit: Option<&AuditRecord>,
    ) -> Result<Committed, ReconcileError> {
        let cause = AuditCause::decision(Some(self.status().observed_index()));
        txn.extend(audit.map(|audit| self.audit_op(audit, &cause)));
        match self.write(txn).await? {
            Commit::Applied(index) => Ok(Committed::Applied(index)),
            Commit::ClaimLost => Err(ReconcileError::ClaimLost),
            Commit::Refused(refusals) => {
                debug!(record = %self.claimed.id, ?refusals, "refused: reconciling again");
                Ok(Committed::Refused(RefusedParts { own: true, ..RefusedParts::default() }))
            }
        }
    }

    /// Call before the first transaction of [`StatusChain::dependent`] is sent.
    pub fn begin_dependents(&mut self) {
        self.machine.set_open(true);
    }

    /// Call when all transactions of [`StatusChain::dependent`] have ended. If an answer was lost,
    /// [`StatusChain::refresh`] writes the status once more, after which none of them can be applied.
    pub fn end_dependents<'a>(
        &mut self,
        answers: impl IntoIterator<Item = &'a Result<Committed, ReconcileError>>,
    ) {
        let mut unknown = false;
        for answer in answers {
            match answer {
                Ok(Committed::Applied(_)) => {}
                Ok(Committed::Refused(refused)) => {
                    self.machine.refuse(refused);
                    self.claimed.records.refresh_soon();
                }
                Err(error) => {
                    unknown |= is_unknown(error);
                    self.machine.fall_behind();
                }
            }
        }
        self.machine.set_open(unknown);
        self.has_lost_dependents |= unknown;
    }

    fn has_dependents(&self) -> bool {
        let may_be_open = self.machine.is_open() && self.status().has_dependents();
        may_be_open || self.has_lost_dependents
    }

    /// Writes the status unchanged. No dependent transaction of the one before can be applied after that.
    async fn seal(&mut self) -> Result<(), ReconcileError> {
        let change = Change::of_status(RecordGuard::Any, self.status().clone());
        match self.send(change).await? {
            Committed::Applied(_) => {
                self.has_lost_dependents = false;
                self.machine.fall_behind();
                Ok(())
            }
            Committed::Refused(_) => {
                Err(ReconcileError::Elsewhere(format!("{} was changed just now", self.key)))
            }
        }
    }

    async fn read(&self) -> Result<(Index, S), ReconcileError> {
        let Some(entry) = self.ctx.reader.get(&self.key, Query::CONSISTENT).await?.value else {
            return Ok((Index::ZERO, S::default()));
        };
        let status = S::decode(&entry.value).or_else(|error| S::unreadable(&self.key, &error))?;
        Ok((entry.modify_index, status))
    }

    /// Refreshes the record after its guard was refused. A newer record arrives by its watch. An older one does not: a
    /// restored snapshot brought it back at an index that no watch waits for. All other caches are out of date then,
    /// too.
    async fn refused(
        &mut self,
        seen: RecordGuard,
        refused: &RefusedParts,
    ) -> Result<(), ReconcileError> {
        if !refused.record {
            return Ok(());
        }
        let seen = if let RecordGuard::At(index) = seen { index } else { Index::ZERO };
        let record = self.ctx.reader.get(&self.record, Query::CONSISTENT).await?.value;
        if record.is_some_and(|record| record.modify_index > seen) {
            self.claimed.records.refresh_soon();
            return Ok(());
        }
        self.machine.fall_behind();
        self.claimed.records.read_now().await?;
        Ok(())
    }

    fn transaction(
        &self,
        change: Change<S>,
        status: &StatusWrite<S>,
    ) -> (Txn<Fenced>, Option<Txn<Fenced>>, Layout) {
        let mut txn = Txn::under(&self.claimed.claim);
        let guard = self.guard(change.record);
        let record = guard.is_some().then_some(txn.ops().len());
        txn.extend(guard).extend(self.status_ops(status)).extend(change.ops);
        let first = txn.ops().len();
        let layout = Layout { record, shared: first..first + change.shared.len() };
        txn.extend(change.shared);
        let cause = self.cause(change.record);
        let audit: Vec<Op> =
            change.audit.iter().map(|record| self.audit_op(record, &cause)).collect();
        if enabled(Failpoint::NoAudit) || audit.is_empty() {
            return (txn, None, layout);
        }
        if enabled(Failpoint::AuditApart) {
            let mut apart = Txn::under(&self.claimed.claim);
            apart.extend(audit);
            return (txn, Some(apart), layout);
        }
        txn.extend(audit);
        (txn, None, layout)
    }

    fn guard(&self, record: RecordGuard) -> Option<Op> {
        let key = self.record.clone();
        match record {
            RecordGuard::Any => None,
            _ if enabled(Failpoint::NoRecordGuard) => Some(Op::GetTree { prefix: key::rc_locks() }),
            RecordGuard::At(index) => Some(Op::CheckIndex { key, index }),
            RecordGuard::Absent => Some(Op::CheckNotExists { key }),
        }
    }

    fn status_ops(&self, write: &StatusWrite<S>) -> Vec<Op> {
        let (key, index) = (self.key.clone(), self.index());
        match write {
            StatusWrite::Replace(status) if enabled(Failpoint::NoChain) => {
                vec![Op::Set { key, value: status.encode(), flags: 0 }]
            }
            StatusWrite::Replace(status) => {
                vec![Op::Cas { key, value: status.encode(), flags: 0, index }]
            }
            StatusWrite::Delete if index > Index::ZERO => Op::delete_if_there(key, index).into(),
            StatusWrite::Delete | StatusWrite::Leave => Vec::new(),
        }
    }

    /// Cause of a change that was planned for this record. The first one after a change of the record follows from it.
    fn cause(&self, record: RecordGuard) -> AuditCause {
        match record {
            RecordGuard::At(index) if index != self.status().observed_index() => {
                AuditCause::external(Some(index))
            }
            RecordGuard::At(index) => AuditCause::decision(Some(index)),
            RecordGuard::Absent => AuditCause::external(None),
            RecordGuard::Any => AuditCause::decision(None),
        }
    }

    fn audit_op(&self, record: &AuditRecord, cause: &AuditCause) -> Op {
        let id = self.ctx.ids.ordered_uuid(record.timestamp);
        if record.cause.is_some() {
            return audit_op(id, record);
        }
        audit_op(id, &record.clone().caused_by(cause.clone()))
    }
}

fn is_unknown(error: &ReconcileError) -> bool {
    matches!(error, ReconcileError::Store(error) if StoreError::outcome_unknown(error))
}
