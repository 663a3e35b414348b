//! Stored statuses of RCs: read in bulk when records are claimed, and checked periodically.
//!
//! Only the owner writes an RC's status, so it relies on what it wrote last. A restored snapshot may bring back an older
//! one, and an idle owner has no write that Consul would refuse. So the farm reads all statuses every 5 to 6 minutes in one
//! request, and wakes the owners of those that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::farm::claim_read::ClaimRead;
use crate::farm::status_chain::{ChainedStatus, Revisioned};
use rcfarm_api::Stored;
use rcfarm_api::backoff;
use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{Entry, Index, Query, Reader, StoreError};

/// Interval of the check, plus up to a fifth as jitter.
const CHECK_EVERY: Duration = Duration::from_secs(300);

impl Revisioned for RcStatus {
    fn revision(&mut self) -> &mut u64 {
        &mut self.revision
    }
}

impl ChainedStatus for RcStatus {}

/// The index of the status that an owner relies on.
#[derive(Default)]
pub(super) struct Reliance(Mutex<Relied>);

#[derive(Clone, Copy, Default)]
struct Relied {
    index: Index,
    /// When it was read or written; `None`: unknown.
    since: Option<Instant>,
    /// Another index was found in the store.
    misplaced: bool,
}

impl Reliance {
    fn lock(&self) -> MutexGuard<'_, Relied> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the status was read or written at this index.
    pub(super) fn on(&self, index: Index) {
        *self.lock() = Relied { index, since: Some(monotonic()), misplaced: false };
    }

    /// Whether another status was found since the last call.
    pub(super) fn take_misplaced(&self) -> bool {
        std::mem::take(&mut self.lock().misplaced)
    }

    /// Compares with the index found by a read that was sent at `asked`.
    fn check(&self, stored: Index, asked: Instant) -> bool {
        let mut relied = self.lock();
        relied.misplaced |=
            relied.index != stored && relied.since.is_some_and(|since| since < asked);
        relied.misplaced
    }
}

/// Statuses of replication controllers, read in bulk when records are claimed.
pub struct RcStatuses {
    reader: Arc<dyn Reader>,
    /// All statuses, with their ModifyIndexes.
    pub(super) at_claim: ClaimRead<BTreeMap<RcId, (Index, RcStatus)>>,
    relied: Mutex<BTreeMap<RcId, Weak<Reliance>>>,
}

impl RcStatuses {
    pub(super) fn new(reader: Arc<dyn Reader>) -> RcStatuses {
        RcStatuses { reader, at_claim: ClaimRead::default(), relied: Mutex::default() }
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

    /// Registers an owner. It notes here the status that it relies on; ends when dropped.
    pub(super) fn reliance(&self, id: RcId) -> Arc<Reliance> {
        let reliance = Arc::<Reliance>::default();
        self.relied().insert(id, Arc::downgrade(&reliance));
        reliance
    }

    /// Checks periodically. `misplaced` receives the RCs whose owners rely on a status that is not the stored one.
    pub(super) async fn watch(&self, ids: IdSource, misplaced: impl Fn(BTreeSet<RcId>) + Send) {
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
                        misplaced(found);
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
        let mut relied = self.relied();
        relied.retain(|_, reliance| reliance.strong_count() > 0);
        let misplaced = |id: &RcId, reliance: &Weak<Reliance>| {
            let index = stored.get(id).copied().unwrap_or_default();
            reliance.upgrade().is_some_and(|reliance| reliance.check(index, asked))
        };
        Ok(relied
            .iter()
            .filter(|(id, reliance)| misplaced(id, reliance))
            .map(|(id, _)| *id)
            .collect())
    }

    fn relied(&self) -> MutexGuard<'_, BTreeMap<RcId, Weak<Reliance>>> {
        self.relied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The RC whose status an entry is.
fn named(entry: &Entry) -> Option<(RcId, &Entry)> {
    let prefix = key::rc_statuses();
    let id = prefix.tail(&entry.key)?.strip_suffix("/rcfarm")?.parse().ok()?;
    Some((id, entry))
}
