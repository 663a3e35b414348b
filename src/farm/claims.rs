//! Transactions that take, release and hand over ownership locks, many locks in each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tracing::{debug, warn};

use super::kind::KindSpec;
use rcfarm_api::ids::{FarmName, RecordId, SessionId};
use rcfarm_store::{Epoch, Op, Store, TxnLimits, TxnOutcome};

/// Takes, releases and hands over locks under one session.
#[derive(Clone)]
pub struct Claims {
    store: Arc<dyn Store>,
    farm: FarmName,
    epoch: Epoch,
    limits: TxnLimits,
}

/// Concurrent transactions of one round of claims.
const PARALLEL: usize = 4;

/// Result of a round of claims.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Claimed.
    pub won: Vec<RecordId>,
    /// Held by another session, or under lock-delay.
    pub busy: Vec<RecordId>,
    /// The request failed or the session ended. The lock watch shows who owns them.
    pub unknown: Vec<RecordId>,
}

/// A record to release, and operations that guard the release.
pub type Guarded = (RecordId, Vec<Op>);

/// Result of releases and hand-overs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub enum ReleaseOutcome {
    /// All were applied.
    AsPlanned,
    /// A request failed: some locks may still be held.
    Unknown,
    /// Consul refused some: the cached locks or labels are out of date.
    Refused,
}

impl Claims {
    /// Claims under the session of `epoch`.
    pub fn new(store: Arc<dyn Store>, farm: FarmName, epoch: Epoch, limits: TxnLimits) -> Self {
        Claims { store, farm, epoch, limits }
    }

    /// Takes those locks of `ids` that are free.
    pub async fn take(&self, spec: Arc<KindSpec>, ids: Vec<RecordId>) -> Round {
        let batches: Vec<Vec<RecordId>> =
            ids.chunks(self.limits.ops).map(<[RecordId]>::to_vec).collect();
        let mut rounds =
            stream::iter(batches).map(|batch| self.take_batch(&spec, batch)).buffered(PARALLEL);
        let mut all = Round::default();
        while let Some(round) = rounds.next().await {
            all.won.extend(round.won);
            all.busy.extend(round.busy);
            all.unknown.extend(round.unknown);
        }
        all
    }

    /// Takes all locks in one transaction. Refused ones are dropped, and the rest is sent again at once. Records whose
    /// names are in no key have no lock.
    async fn take_batch(&self, spec: &KindSpec, batch: Vec<RecordId>) -> Round {
        let mut round = Round::default();
        let mut locks = Vec::with_capacity(batch.len());
        for id in batch {
            match self.lock_op(spec, &id) {
                Some(op) => locks.push((id, op)),
                None => round.unknown.push(id),
            }
        }
        let mut batch = locks;
        while !batch.is_empty() {
            if !self.epoch.is_live() {
                round.unknown.extend(ids(batch));
                break;
            }
            let ops: Vec<Op> = batch.iter().map(|(_, op)| op.clone()).collect();
            match self.store.txn(&ops).await {
                Ok(TxnOutcome::Committed { .. }) => {
                    round.won.extend(ids(std::mem::take(&mut batch)))
                }
                Ok(TxnOutcome::Refused(refusals)) => {
                    let refused: BTreeSet<usize> = refusals.iter().map(|r| r.op).collect();
                    debug!(?refusals, "claims refused");
                    let mut rest = Vec::new();
                    for (n, one) in batch.into_iter().enumerate() {
                        if refused.contains(&n) { round.busy.push(one.0) } else { rest.push(one) }
                    }
                    if refused.is_empty() {
                        round.unknown.extend(ids(std::mem::take(&mut rest)));
                    }
                    batch = rest;
                }
                Err(error) => {
                    warn!(%error, records = batch.len(), "claiming failed");
                    round.unknown.extend(ids(std::mem::take(&mut batch)));
                }
            }
        }
        round
    }

    fn lock_op(&self, spec: &KindSpec, id: &RecordId) -> Option<Op> {
        let key = spec.lock_key(id)?;
        let value = Bytes::copy_from_slice(self.farm.as_str().as_bytes());
        Some(Op::Lock { key, value, session: self.epoch.session().clone() })
    }

    fn unlock_op(&self, spec: &KindSpec, id: &RecordId) -> Option<Op> {
        let key = spec.lock_key(id)?;
        Some(Op::Unlock { key, value: Bytes::new(), session: self.epoch.session().clone() })
    }

    /// Unlocks and deletes locks, each under its guard, so that waiting farms see them free at once. If Consul refuses
    /// a batch, each of its locks is released in a transaction of its own.
    pub async fn release(&self, spec: &KindSpec, parted: &[Guarded]) -> ReleaseOutcome {
        let ops = |(id, guard): &Guarded| {
            let key = spec.lock_key(id)?;
            let unlock = self.unlock_op(spec, id)?;
            Some(guard.iter().cloned().chain([unlock, Op::Delete { key }]).collect())
        };
        self.part(parted.iter().filter_map(ops).collect()).await
    }

    /// Transfers locks to another farm's session without a moment in which they are free. If that session is gone,
    /// Consul refuses and the locks stay here.
    pub async fn hand_over(
        &self,
        spec: &KindSpec,
        parted: &[Guarded],
        farm: &FarmName,
        to: &SessionId,
    ) -> ReleaseOutcome {
        let ops = |(id, guard): &Guarded| {
            let key = spec.lock_key(id)?;
            let value = Bytes::copy_from_slice(farm.as_str().as_bytes());
            let lock = Op::Lock { key, value, session: to.clone() };
            Some(guard.iter().cloned().chain([self.unlock_op(spec, id)?, lock]).collect())
        };
        self.part(parted.iter().filter_map(ops).collect()).await
    }

    /// Releases a lock of a record other than its ownership lock.
    pub async fn release_stray(
        &self,
        spec: &KindSpec,
        id: &RecordId,
        lock: &str,
    ) -> ReleaseOutcome {
        let key = spec.locks.key_of(&format!("{id}/{lock}"));
        let ops = key.map(|key| {
            let (value, session) = (Bytes::new(), self.epoch.session().clone());
            vec![Op::Unlock { key: key.clone(), value, session }, Op::Delete { key }]
        });
        self.part(ops.into_iter().collect()).await
    }

    /// Commits the operations of each lock together, and many locks in one transaction.
    async fn part(&self, locks: Vec<Vec<Op>>) -> ReleaseOutcome {
        let most = locks.iter().map(Vec::len).max().unwrap_or(1);
        let mut parted = ReleaseOutcome::AsPlanned;
        for batch in locks.chunks((self.limits.ops / most).max(1)) {
            match (self.part_batch(&batch.concat()).await, batch) {
                (ReleaseOutcome::Refused, many) if many.len() > 1 => {
                    debug!(locks = many.len(), "release refused: releasing claims one by one");
                    for ops in many {
                        parted = parted.max(self.part_batch(ops).await);
                    }
                }
                (one, _) => parted = parted.max(one),
            }
        }
        parted
    }

    async fn part_batch(&self, ops: &[Op]) -> ReleaseOutcome {
        match self.store.txn(ops).await {
            Ok(TxnOutcome::Committed { .. }) => ReleaseOutcome::AsPlanned,
            Ok(TxnOutcome::Refused(refusals)) => {
                debug!(?refusals, "release refused");
                ReleaseOutcome::Refused
            }
            Err(error) => {
                let key = ops.first().map_or("", Op::subject);
                warn!(%error, key, "claims could not be released; will retry");
                ReleaseOutcome::Unknown
            }
        }
    }
}

fn ids(batch: Vec<(RecordId, Op)>) -> impl Iterator<Item = RecordId> {
    batch.into_iter().map(|(id, _)| id)
}

/// Pause before a record is claimed again after a refused claim or a release.
pub const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Upper bound of that pause, which doubles with each refusal in a row. Repeated refusals of a record without an owner
/// are mostly a lock-delay.
pub const LONGEST_BUSY_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::key;
    use rcfarm_emulator::{Emulator, Settings};
    use rcfarm_store::time::{IdSource, monotonic};
    use rcfarm_store::{Key, NewSession, PutMode};

    #[tokio::test]
    async fn refusals_name_their_records_beside_names_of_no_key() {
        let store = Emulator::new(&Settings::default(), &IdSource::from_seed(1));
        let [own, other] = [(); 2].map(|()| NewSession::default());
        let own = store.create_session(&own).await.unwrap();
        let other = store.create_session(&other).await.unwrap();
        let taken = Key::parse("lock/rcfarm/schedulers/taken").unwrap();
        assert!(store.put(&taken, Bytes::new(), 0, PutMode::Acquire(other)).await.unwrap());
        let locks = key::scheduler_locks();
        let spec = KindSpec::new("s", key::schedulers(), locks, key::scheduler_labels());
        let epoch = Epoch::new(own, monotonic() + Duration::from_secs(3_600));
        let claims =
            Claims::new(Arc::new(store), "f".parse().unwrap(), epoch, TxnLimits::default());
        let named = |names: &[&str]| names.iter().map(|name| RecordId::from(*name)).collect();
        let round = claims.take(Arc::new(spec), named(&["no key", "a", "taken", "b"])).await;
        let expected =
            Round { won: named(&["a", "b"]), busy: named(&["taken"]), unknown: named(&["no key"]) };
        assert_eq!(round, expected);
    }
}
