//! Stored statuses of RCs: read in bulk when records are claimed, and checked periodically.
//!
//! Only the owner writes an RC's status, so it expects what it wrote last. A restored snapshot may bring back an older
//! one, and an idle owner has no write that Consul would refuse. So the farm reads all statuses every 5 to 6 minutes in
//! one request, and wakes the owners of those at another ModifyIndex than expected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::farm::claim_read::ClaimRead;
use crate::farm::metrics::RecordGauges;
use crate::farm::status_chain::{ChainedStatus, Revisioned};
use rcfarm_api::ids::RcId;
use rcfarm_api::rc::status::{RcStatus, Replicas};
use rcfarm_api::{Stored, backoff, key};
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{Entry, Index, Query, Reader, StoreError};

/// Interval of the check, plus up to a fifth as jitter.
const CHECK_EVERY: Duration = Duration::from_secs(300);

impl Revisioned for RcStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for RcStatus {
    fn gauges(&self) -> Option<RecordGauges> {
        let Replicas { desired, current, healthy, .. } = self.replicas;
        let pods = [("desired", desired), ("current", current), ("healthy", healthy)];
        Some(RecordGauges {
            state: self.state(),
            is_quarantined: self.quarantined_until.is_some(),
            pods: pods.map(|(count, number)| (count, u64::from(number))).into(),
        })
    }
}

/// ModifyIndex at which an owner expects its RC's status in the store. The periodic check compares it.
#[derive(Default)]
pub(super) struct ExpectedIndex(Mutex<Expected>);

#[derive(Clone, Copy, Default)]
struct Expected {
    /// ModifyIndex; 0: no status.
    index: Index,
    /// When it was read or written; `None`: not yet.
    since: Option<Instant>,
    /// The check found the status at another index.
    differs: bool,
}

impl ExpectedIndex {
    fn lock(&self) -> MutexGuard<'_, Expected> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the owner has read or written the status at this index.
    pub(super) fn set(&self, index: Index) {
        *self.lock() = Expected { index, since: Some(monotonic()), differs: false };
    }

    /// Whether the check has found another index since the last call.
    pub(super) fn take_differs(&self) -> bool {
        std::mem::take(&mut self.lock().differs)
    }

    /// Compares with the index found by a read that was sent at `asked`. An index that was set later is not compared.
    fn check(&self, stored: Index, asked: Instant) -> bool {
        let mut expected = self.lock();
        expected.differs |=
            expected.index != stored && expected.since.is_some_and(|since| since < asked);
        expected.differs
    }
}

/// Statuses of replication controllers, read in bulk when records are claimed.
pub struct RcStatuses {
    reader: Arc<dyn Reader>,
    /// All statuses, with their ModifyIndexes.
    pub(super) at_claim: ClaimRead<BTreeMap<RcId, (Index, RcStatus)>>,
    /// By RC that this farm owns.
    expected: Mutex<BTreeMap<RcId, Weak<ExpectedIndex>>>,
}

impl RcStatuses {
    pub(super) fn new(reader: Arc<dyn Reader>) -> RcStatuses {
        RcStatuses { reader, at_claim: ClaimRead::default(), expected: Mutex::default() }
    }

    pub(super) async fn list(
        &self,
    ) -> Result<(Index, BTreeMap<RcId, (Index, RcStatus)>), StoreError> {
        let answer = self.reader.list(&key::rc_statuses(), Query::CONSISTENT).await?;
        let status = |(id, entry): (RcId, &Entry)| {
            let status = RcStatus::decode(&entry.value).unwrap_or_default();
            (id, (entry.modify_index, status))
        };
        Ok((answer.index, answer.value.iter().filter_map(named).map(status).collect()))
    }

    /// Registers an owner for the check, until the returned value is dropped. The owner keeps it up to date.
    pub(super) fn register(&self, id: RcId) -> Arc<ExpectedIndex> {
        let expected = Arc::<ExpectedIndex>::default();
        self.expected().insert(id, Arc::downgrade(&expected));
        expected
    }

    /// Checks periodically. `changed` receives the RCs whose status is not the one that their owner expects.
    pub(super) async fn watch(&self, ids: IdSource, changed: impl Fn(BTreeSet<RcId>) + Send) {
        let mut failures = 0;
        let mut pause = ids.jitter(CHECK_EVERY, 0.2);
        loop {
            tokio::time::sleep(pause).await;
            match self.check().await {
                Ok(found) => {
                    (failures, pause) = (0, ids.jitter(CHECK_EVERY, 0.2));
                    if !found.is_empty() {
                        warn!(
                            records = found.len(),
                            "statuses were changed by somebody else: rereading them"
                        );
                        changed(found);
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        warn!(%error, "statuses cannot be checked");
                    }
                    let pauses = (Duration::from_secs(1), Duration::from_secs(30));
                    pause = ids.jitter(backoff(pauses.0, pauses.1, failures - 1), 0.5);
                }
            }
        }
    }

    async fn check(&self) -> Result<BTreeSet<RcId>, StoreError> {
        let asked = monotonic();
        let answer = self.reader.list(&key::rc_statuses(), Query::CONSISTENT).await?;
        let stored = answer.value.iter().filter_map(named);
        let stored: BTreeMap<RcId, Index> = stored.map(|(id, e)| (id, e.modify_index)).collect();
        let mut expected = self.expected();
        expected.retain(|_, owner| owner.strong_count() > 0);
        let differs = |id: &RcId, owner: &Weak<ExpectedIndex>| {
            let index = stored.get(id).copied().unwrap_or_default();
            owner.upgrade().is_some_and(|expected| expected.check(index, asked))
        };
        let changed = expected.iter().filter(|(id, owner)| differs(id, owner));
        Ok(changed.map(|(id, _)| *id).collect())
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<RcId, Weak<ExpectedIndex>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The RC whose status an entry is.
fn named(entry: &Entry) -> Option<(RcId, &Entry)> {
    let prefix = key::rc_statuses();
    let id = prefix.tail(&entry.key)?.strip_suffix("/rcfarm")?.parse().ok()?;
    Some((id, entry))
}
