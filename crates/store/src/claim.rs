//! A claim is a lock, the session that holds it, and the fence that proves it.

use std::sync::Arc;
use std::sync::Mutex;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batching::CommitBatcher;
use super::{Fenced, Index, Key, Op, Refusal, Store, StoreError, Txn, TxnLimits, TxnOutcome};
use crate::failpoints::{Failpoint, enabled};
use rcfarm_api::ids::SessionId;

/// The life of one session as this process may rely on it.
///
/// It ends when the local deadline passes, when a renewal or a fence is refused, or on shutdown; it never
/// begins again. All claims of the session share it.
#[derive(Debug, Clone)]
pub struct Epoch {
    inner: Arc<EpochInner>,
}

#[derive(Debug)]
struct EpochInner {
    session: SessionId,
    good_until: Mutex<Instant>,
    ended: CancellationToken,
}

impl Epoch {
    /// An epoch that may be relied on until `good_until`, unless extended.
    #[must_use]
    pub fn new(session: SessionId, good_until: Instant) -> Self {
        Epoch {
            inner: Arc::new(EpochInner {
                session,
                good_until: Mutex::new(good_until),
                ended: CancellationToken::new(),
            }),
        }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.inner.session
    }

    /// Moves the local deadline. It never moves back, and an ended epoch stays ended.
    pub fn extend(&self, good_until: Instant) {
        let mut deadline = self.deadline();
        *deadline = (*deadline).max(good_until);
    }

    /// When this process must stop writing unless the epoch is extended.
    #[must_use]
    pub fn good_until(&self) -> Instant {
        *self.deadline()
    }

    /// Whether a write may be started now. Past the deadline this ends the epoch.
    #[must_use]
    pub fn is_live(&self) -> bool {
        if self.inner.ended.is_cancelled() {
            return false;
        }
        if Instant::now() >= self.good_until() {
            self.end();
            return false;
        }
        true
    }

    /// Ends the epoch: no write is started any more, and every task of it is told.
    pub fn end(&self) {
        self.inner.ended.cancel();
    }

    /// Resolves when the epoch has ended.
    pub async fn ended(&self) {
        self.inner.ended.cancelled().await;
    }

    fn deadline(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.inner.good_until.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
    /// A claim on `lock`, which the epoch's session was just seen to hold.
    #[must_use]
    pub fn new(lock: Key, epoch: Epoch) -> Self {
        let lost = epoch.inner.ended.child_token();
        Claim { lock, epoch, lost }
    }

    /// The lock key.
    #[must_use]
    pub fn lock(&self) -> &Key {
        &self.lock
    }

    /// The epoch of the session that holds it.
    #[must_use]
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The operation that makes Consul refuse a transaction unless this claim holds at that moment.
    #[must_use]
    pub fn fence(&self) -> Op {
        if enabled(Failpoint::NoFence) {
            return Op::GetTree { prefix: super::key::rc_locks() };
        }
        Op::CheckSession { key: self.lock.clone(), session: self.epoch.session().clone() }
    }

    /// Whether the claim may be relied on to start a write.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.lost.is_cancelled() && self.epoch.is_live()
    }

    /// Gives the claim up locally: no write is started under it any more.
    pub fn lose(&self) {
        self.lost.cancel();
    }

    /// Resolves when the claim is lost or its epoch has ended.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// What became of a fenced transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Commit {
    /// Applied at this index.
    Applied(Index),
    /// Nothing was applied: something the plan relied on has changed. Look again.
    Refused(Vec<Refusal>),
    /// The claim does not hold (any more); nothing was applied, and the claim is now lost.
    ClaimLost,
}

/// The only way for a controller to write.
#[derive(Clone)]
pub struct Writer {
    store: Arc<dyn Store>,
    group: Option<Arc<CommitBatcher>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// A writer on `store`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Writer { store, group: None }
    }

    /// A writer that puts the transactions of several claims that have to wait into one, as far as it fits.
    #[must_use]
    pub fn together(store: Arc<dyn Store>, limits: TxnLimits) -> Self {
        let group = Some(Arc::new(CommitBatcher::new(store.clone(), limits)));
        Writer { store, group }
    }

    /// Commits a fenced transaction, unless the claim's local deadline has passed.
    ///
    /// # Errors
    /// A [`StoreError`]; where [`StoreError::outcome_unknown`] holds, the transaction may have been applied or
    /// may be applied later, and the caller must read before it decides anything.
    pub async fn commit(&self, txn: Txn<Fenced>) -> Result<Commit, StoreError> {
        let claim = &txn.guard.claim;
        if !claim.is_live() {
            return Ok(Commit::ClaimLost);
        }
        if let Some(group) = &self.group {
            return group.commit(txn).await;
        }
        match self.store.txn(&txn.ops).await? {
            TxnOutcome::Committed { index, .. } => Ok(Commit::Applied(index)),
            TxnOutcome::Refused(refusals) => Ok(refused(claim, refusals)),
        }
    }
}

/// What a refusal of a claim's transaction means.
pub(super) fn refused(claim: &Claim, refusals: Vec<Refusal>) -> Commit {
    if refusals.iter().any(|refusal| refusal.op == 0) {
        claim.lose();
        return Commit::ClaimLost;
    }
    Commit::Refused(refusals)
}
