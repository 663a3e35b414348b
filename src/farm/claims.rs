//! Takes, gives up and hands over locks, many in one transaction.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tracing::{debug, warn};

use super::kind::{Kind, RecordId, lock_key};
use crate::ids::{FarmName, SessionId};
use crate::store::{Epoch, Limits, Op, Store, StoreError, TxnOutcome};

/// Claims, releases and hand-overs of one epoch.
#[derive(Clone)]
pub struct Claims {
    store: Arc<dyn Store>,
    farm: FarmName,
    epoch: Epoch,
    limits: Limits,
}

/// So many transactions of claims are under way at once.
const PARALLEL: usize = 4;

/// What became of a round of claims.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Ours now.
    pub won: Vec<RecordId>,
    /// Somebody else's, or closed for a while (lock-delay).
    pub busy: Vec<RecordId>,
    /// Not known: the store failed. The lock tree will tell.
    pub unknown: Vec<RecordId>,
}

impl Claims {
    /// Claims under `epoch`.
    pub fn new(store: Arc<dyn Store>, farm: FarmName, epoch: Epoch, limits: Limits) -> Self {
        Claims { store, farm, epoch, limits }
    }

    /// Takes the locks of `ids`, those that can be had.
    pub async fn take(&self, kind: Arc<dyn Kind>, ids: Vec<RecordId>) -> Round {
        let batches: Vec<Vec<RecordId>> =
            ids.chunks(self.limits.ops).map(<[RecordId]>::to_vec).collect();
        let mut rounds = stream::iter(batches)
            .map(|batch| self.take_batch(kind.as_ref(), batch))
            .buffered(PARALLEL);
        let mut all = Round::default();
        while let Some(round) = rounds.next().await {
            all.won.extend(round.won);
            all.busy.extend(round.busy);
            all.unknown.extend(round.unknown);
        }
        all
    }

    /// One transaction for all; whoever is refused falls out, and the rest is tried again at once.
    async fn take_batch(&self, kind: &dyn Kind, mut batch: Vec<RecordId>) -> Round {
        let mut round = Round::default();
        while !batch.is_empty() {
            if !self.epoch.is_live() {
                round.unknown.append(&mut batch);
                break;
            }
            let ops: Vec<Op> = batch.iter().filter_map(|id| self.lock_op(kind, id)).collect();
            match self.store.txn(&ops).await {
                Ok(TxnOutcome::Committed { .. }) => round.won.append(&mut batch),
                Ok(TxnOutcome::Refused(refusals)) => {
                    let refused: BTreeSet<usize> = refusals.iter().map(|r| r.op).collect();
                    debug!(?refusals, "claims refused");
                    let mut rest = Vec::new();
                    for (n, id) in batch.drain(..).enumerate() {
                        if refused.contains(&n) { round.busy.push(id) } else { rest.push(id) }
                    }
                    if refused.is_empty() {
                        round.unknown.append(&mut rest);
                    }
                    batch = rest;
                }
                Err(error) => {
                    warn!(%error, records = batch.len(), "claiming failed");
                    round.unknown.append(&mut batch);
                }
            }
        }
        round
    }

    fn lock_op(&self, kind: &dyn Kind, id: &RecordId) -> Option<Op> {
        let key = lock_key(kind, id)?;
        let value = Bytes::copy_from_slice(self.farm.as_str().as_bytes());
        Some(Op::Lock { key, value, session: self.epoch.session().clone() })
    }

    fn unlock_op(&self, kind: &dyn Kind, id: &RecordId) -> Option<Op> {
        let key = lock_key(kind, id)?;
        Some(Op::Unlock { key, value: Bytes::new(), session: self.epoch.session().clone() })
    }

    /// Gives locks up: released and deleted in one step, so that whoever waits gets them at once. A lock that is
    /// not ours any more makes its whole batch fall apart into single ones.
    pub async fn release(&self, kind: &dyn Kind, ids: &[RecordId]) {
        let op_pair = |id: &RecordId| {
            let key = lock_key(kind, id)?;
            Some([self.unlock_op(kind, id)?, Op::Delete { key }])
        };
        for batch in ids.chunks(self.limits.ops / 2) {
            let ops: Vec<Op> = batch.iter().filter_map(op_pair).flatten().collect();
            self.part(&ops, batch.len()).await;
        }
    }

    /// Gives locks to another farm's session without a moment in which they are nobody's. Fails for all when that
    /// session is gone; the locks then stay ours.
    pub async fn hand_over(
        &self,
        kind: &dyn Kind,
        ids: &[RecordId],
        farm: &FarmName,
        to: &SessionId,
    ) {
        let op_pair = |id: &RecordId| {
            let key = lock_key(kind, id)?;
            let value = Bytes::copy_from_slice(farm.as_str().as_bytes());
            Some([self.unlock_op(kind, id)?, Op::Lock { key, value, session: to.clone() }])
        };
        for batch in ids.chunks(self.limits.ops / 2) {
            let ops: Vec<Op> = batch.iter().filter_map(op_pair).flatten().collect();
            self.part(&ops, batch.len()).await;
        }
    }

    /// Gives up another lock of a record than the one that says who owns it.
    pub async fn release_stray(&self, kind: &dyn Kind, id: &RecordId, lock: &str) {
        let Some(key) = kind.locks().key_of(&format!("{id}/{lock}")) else { return };
        let (value, session) = (Bytes::new(), self.epoch.session().clone());
        let unlock = Op::Unlock { key: key.clone(), value, session };
        self.part(&[unlock, Op::Delete { key }], 1).await;
    }

    async fn part(&self, ops: &[Op], records: usize) {
        match self.store.txn(ops).await {
            Ok(TxnOutcome::Committed { .. }) => {}
            Ok(TxnOutcome::Refused(refusals)) if records > 1 => {
                debug!(?refusals, "parting refused: one by one");
                for pair in ops.chunks(2) {
                    if let Err(error) = self.store.txn(pair).await {
                        warn!(%error, key = pair[0].subject(), "a lock could not be given up");
                    }
                }
            }
            Ok(TxnOutcome::Refused(refusals)) => debug!(?refusals, "parting refused"),
            Err(error) => {
                warn!(%error, records, "locks could not be given up; they are tried again")
            }
        }
    }
}

/// Writes a farm's presence under its session; `false` when another live farm has the name.
///
/// # Errors
/// Any [`StoreError`].
pub async fn announce(
    store: &dyn Store,
    farm: &FarmName,
    session: &SessionId,
    presence: &super::records::Presence,
) -> Result<bool, StoreError> {
    let value = serde_json::to_vec(presence).expect("a presence encodes").into();
    let op = Op::Lock { key: crate::store::key::farm(farm), value, session: session.clone() };
    Ok(matches!(store.txn(&[op]).await?, TxnOutcome::Committed { .. }))
}

/// How long a record that somebody else took is left alone.
pub const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// The same when it is refused again and again though nobody is seen to hold it: a lock-delay, for the most part.
pub const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(2);
