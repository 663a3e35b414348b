//! What the controllers of a kind that makes jobs share: statuses read before claims, doorbells, and names that have a
//! status. `S` is the status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::debug;

use crate::farm::claim_read::ClaimRead;
use crate::farm::records::Records;
use crate::farm::subscriptions::Waker;
use rcfarm_api::ids::{Namespaced, RecordId};
use rcfarm_api::{Stored, key};
use rcfarm_store::time::IdSource;
use rcfarm_store::{Index, Prefix, Query, Reader, StoreError, list_surely};

/// Mean interval between lists of the keys of records and statuses. One that is deleted while a farm runs is seen at
/// once.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(300);

type Statuses<S> = BTreeMap<Namespaced, (Index, Option<S>)>;

/// Shared state of the records of one kind in a farm. It watches nothing.
pub struct OwnerCaches<S> {
    /// Prefix of the records.
    records: Prefix,
    /// Prefix of the statuses.
    statuses: Prefix,
    reader: Arc<dyn Reader>,
    at_claim: ClaimRead<Statuses<S>>,
    /// Records that may have a status: claimed ones, and those found before claims.
    known: Mutex<BTreeSet<RecordId>>,
    /// Records whose jobs have changed.
    rung: Mutex<BTreeSet<RecordId>>,
}

impl<S: Stored + Default + Send> OwnerCaches<S> {
    /// Creates the caches without reading.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>, records: Prefix, statuses: Prefix) -> OwnerCaches<S> {
        OwnerCaches {
            records,
            statuses,
            reader,
            at_claim: ClaimRead::default(),
            known: Mutex::default(),
            rung: Mutex::default(),
        }
    }

    /// Reads the statuses before records are claimed, unless all of them were created after the last read.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        let read = async {
            let prefix = &self.statuses;
            let listed = list_surely(self.reader.as_ref(), prefix).await?;
            let status = |entry: &rcfarm_store::Entry| {
                let id = key::namespaced(prefix, &entry.key)?;
                Some((id, (entry.modify_index, S::decode(&entry.value).ok())))
            };
            let statuses: Statuses<S> = listed.value.iter().filter_map(status).collect();
            lock(&self.known).extend(statuses.keys().map(record_id));
            Ok((listed.index, statuses))
        };
        self.at_claim.refresh(oldest, read).await
    }

    /// Looks for statuses without a record at the start, and every five minutes: those of records that were deleted while
    /// no farm ran. It does not end.
    pub async fn watch_leftovers(&self, wake: &Waker, ids: &IdSource) {
        loop {
            match self.look_for_leftovers().await {
                Ok(true) => wake.plan_claims(),
                Ok(false) => {}
                Err(error) => {
                    debug!(%error, prefix = self.statuses.as_str(), "leftovers cannot be listed")
                }
            }
            tokio::time::sleep(ids.jitter(LEFTOVERS_EVERY, 0.5)).await;
        }
    }

    /// Notes records that are gone and have a status; forgets those that another farm has cleaned up. Returns whether
    /// there is one.
    async fn look_for_leftovers(&self) -> Result<bool, StoreError> {
        let before = lock(&self.known).clone();
        let names = async |prefix: Prefix| {
            let keys = self.reader.keys(&prefix, None, Query::PLAIN).await?.value;
            let ids = keys.iter().filter_map(|key| key::namespaced(&prefix, key));
            Ok::<BTreeSet<RecordId>, StoreError>(ids.map(|id| record_id(&id)).collect())
        };
        // In this order: a record that is made between the lists has no status in the first one.
        let statuses = names(self.statuses.clone()).await?;
        let records = names(self.records.clone()).await?;
        let mut known = lock(&self.known);
        known.retain(|id| !before.contains(id) || statuses.contains(id) || records.contains(id));
        let count = known.len();
        known.extend(statuses.difference(&records).cloned());
        Ok(known.len() > count)
    }

    /// The status of a claimed record as [`OwnerCaches::prepare`] read it, once. `None`: the caller reads it.
    #[must_use]
    pub fn take_status(&self, id: &Namespaced) -> Option<(Index, S)> {
        let take = |all: &mut Statuses<S>| match all.remove(id) {
            Some((index, Some(status))) => Some((index, status)),
            Some((_, None)) => None,
            None => Some(Default::default()),
        };
        self.at_claim.take(take).flatten()
    }

    /// The record may have a status from now on.
    pub fn note(&self, id: &Namespaced) {
        lock(&self.known).insert(record_id(id));
    }

    /// Its status was deleted.
    pub fn forget(&self, id: &Namespaced) {
        lock(&self.known).remove(&record_id(id));
        lock(&self.rung).remove(&record_id(id));
    }

    /// Whether any record may have a status.
    #[must_use]
    pub fn has_something(&self) -> bool {
        !lock(&self.known).is_empty()
    }

    /// Records that may have a status, and have no record in the cache.
    #[must_use]
    pub fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        let known = lock(&self.known);
        known.iter().filter(|id| !records.0.contains_key(*id)).cloned().collect()
    }

    /// The doorbell of a record was rung.
    pub fn ring(&self, id: &RecordId) {
        lock(&self.rung).insert(id.clone());
    }

    /// Whether its doorbell was rung since the last call.
    #[must_use]
    pub fn take_rung(&self, id: &RecordId) -> bool {
        lock(&self.rung).remove(id)
    }
}

fn lock(ids: &Mutex<BTreeSet<RecordId>>) -> MutexGuard<'_, BTreeSet<RecordId>> {
    ids.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record_id(id: &Namespaced) -> RecordId {
    RecordId::from(id.to_string().as_str())
}
