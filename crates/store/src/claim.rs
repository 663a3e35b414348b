//! Claims: a lock key, the session that holds it, and the fence that each transaction begins with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batching::CommitBatcher;
use super::{
    Entry, Fenced, Index, Key, Op, Refusal, Store, StoreError, Txn, TxnLimits, TxnOutcome,
};
use crate::failpoints::{self, Failpoint, enabled};
use crate::time::monotonic;
use rcfarm_api::ids::SessionId;

/// The time in which this process may write under one session.
///
/// It ends when the local deadline passes, when a renewal or a fence is refused, or on shutdown. It never begins again.
/// All claims of the session share it.
#[derive(Debug, Clone)]
pub struct Epoch {
    inner: Arc<EpochInner>,
}

#[derive(Debug)]
struct EpochInner {
    session: SessionId,
    /// The first local deadline.
    base: Instant,
    /// Nanoseconds from `base` to the local deadline: read and moved without a lock.
    extended: AtomicU64,
    ended: CancellationToken,
}

impl Epoch {
    /// An epoch with the local deadline `good_until`.
    pub fn new(session: SessionId, good_until: Instant) -> Self {
        Epoch {
            inner: Arc::new(EpochInner {
                session,
                base: good_until,
                extended: AtomicU64::new(0),
                ended: CancellationToken::new(),
            }),
        }
    }

    /// The Consul session.
    pub fn session(&self) -> &SessionId {
        &self.inner.session
    }

    /// Moves the local deadline forward; an earlier one is ignored. An ended epoch stays ended.
    pub fn extend(&self, good_until: Instant) {
        let by = good_until.saturating_duration_since(self.inner.base).as_nanos();
        self.inner.extended.fetch_max(u64::try_from(by).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// The local deadline: after it, this process starts no write.
    pub fn good_until(&self) -> Instant {
        self.inner.base + Duration::from_nanos(self.inner.extended.load(Ordering::SeqCst))
    }

    /// Whether a write may be started now. Ends the epoch if the deadline has passed.
    pub fn is_live(&self) -> bool {
        if self.inner.ended.is_cancelled() {
            return false;
        }
        if monotonic() >= self.good_until() {
            self.end();
            return false;
        }
        true
    }

    /// Ends the epoch: no write is started any more, and [`Epoch::ended`] and [`Claim::lost`] resolve.
    pub fn end(&self) {
        self.inner.ended.cancel();
    }

    /// Resolves when the epoch has ended.
    pub async fn ended(&self) {
        self.inner.ended.cancelled().await;
    }
}

/// The right to write one record: its lock key, held by the epoch's session.
#[derive(Debug, Clone)]
pub struct Claim {
    lock: Key,
    epoch: Epoch,
    lost: CancellationToken,
}

impl Claim {
    /// A claim on `lock`. The caller has just read that the epoch's session holds it.
    pub fn new(lock: Key, epoch: Epoch) -> Self {
        let lost = epoch.inner.ended.child_token();
        Claim { lock, epoch, lost }
    }

    /// The lock key.
    pub fn lock(&self) -> &Key {
        &self.lock
    }

    /// The epoch of the session that holds it.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The operation by which Consul refuses a transaction unless the session holds the lock at that moment.
    pub fn fence(&self) -> Op {
        if enabled(Failpoint::NoFence) {
            return Op::GetTree { prefix: super::key::rc_locks() };
        }
        Op::CheckSession { key: self.lock.clone(), session: self.epoch.session().clone() }
    }

    /// Whether a write may be started under this claim.
    pub fn is_live(&self) -> bool {
        !self.lost.is_cancelled() && self.epoch.is_live()
    }

    /// Ends the claim in this process: no write is started under it any more. The lock in Consul stays.
    pub fn lose(&self) {
        self.lost.cancel();
    }

    /// Resolves when the claim is lost or its epoch has ended.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// Result of a fenced transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// Applied at this index.
    Applied(Index),
    /// Nothing was applied: a guard failed, because a key that the plan relied on has changed.
    Refused(Vec<Refusal>),
    /// Nothing was applied: the session does not hold the claim's lock. The claim has ended.
    ClaimLost,
}

/// Commits fenced transactions. Controllers have no other way to write.
#[derive(Clone)]
pub struct Writer {
    store: Arc<dyn Store>,
    batcher: Option<Arc<CommitBatcher>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// A writer that sends each transaction alone.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Writer { store, batcher: None }
    }

    /// A writer that concatenates waiting transactions of several claims up to `limits`.
    pub fn together(store: Arc<dyn Store>, limits: TxnLimits) -> Self {
        let batcher = Some(Arc::new(CommitBatcher::new(store.clone(), limits)));
        Writer { store, batcher }
    }

    /// Commits a fenced transaction, unless the claim's local deadline has passed. It is checked right before sending.
    ///
    /// # Errors
    /// Any [`StoreError`]. If [`StoreError::outcome_unknown`], the transaction may have been applied or may still be.
    /// The caller must then read before it decides.
    pub async fn commit(&self, mut txn: Txn<Fenced>) -> Result<Commit, StoreError> {
        failpoints::drop_guards(&mut txn.ops);
        let claim = &txn.guard.claim;
        if !claim.is_live() {
            return Ok(Commit::ClaimLost);
        }
        if let Some(batcher) = &self.batcher {
            return batcher.commit(txn).await;
        }
        Ok(self.commit_alone(&txn).await?.0)
    }

    /// Commits like [`Writer::commit`], but never together with others. Also returns the entries that the transaction
    /// left, without values.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub async fn commit_alone(
        &self,
        txn: &Txn<Fenced>,
    ) -> Result<(Commit, Vec<Entry>), StoreError> {
        let claim = &txn.guard.claim;
        Ok(match self.store.txn_if(&txn.ops, &|| claim.is_live()).await? {
            Some(TxnOutcome::Committed { index, entries }) => (Commit::Applied(index), entries),
            Some(TxnOutcome::Refused(refusals)) => (refused(claim, refusals), Vec::new()),
            None => (Commit::ClaimLost, Vec::new()),
        })
    }
}

/// The result of a refused transaction. A refused fence, operation 0, ends the claim.
pub(super) fn refused(claim: &Claim, refusals: Vec<Refusal>) -> Commit {
    if refusals.iter().any(|refusal| refusal.op == 0) {
        claim.lose();
        return Commit::ClaimLost;
    }
    Commit::Refused(refusals)
}
