//! What all controllers of CronJobs share: statuses read before claims, doorbells, and names that have a status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::farm::claim_read::ClaimRead;
use crate::farm::records::Records;
use rcfarm_api::cron::CronStatus;
use rcfarm_api::ids::{Namespaced, RecordId};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Index, Reader, StoreError, list_surely};

type Statuses = BTreeMap<Namespaced, (Index, Option<CronStatus>)>;

/// Shared state of the CronJobs of a farm. It watches nothing.
pub struct CronCaches {
    reader: Arc<dyn Reader>,
    at_claim: ClaimRead<Statuses>,
    /// CronJobs that may have a status: claimed ones, and those found before claims.
    known: Mutex<BTreeSet<RecordId>>,
    /// CronJobs whose jobs have changed.
    rung: Mutex<BTreeSet<RecordId>>,
}

impl CronCaches {
    /// Creates the caches without reading.
    #[must_use]
    pub fn new(reader: Arc<dyn Reader>) -> Arc<CronCaches> {
        Arc::new(CronCaches {
            reader,
            at_claim: ClaimRead::default(),
            known: Mutex::default(),
            rung: Mutex::default(),
        })
    }

    /// Reads the statuses before CronJobs are claimed, unless all of them were created after the last read.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn prepare(&self, oldest: Index) -> Result<(), StoreError> {
        let read = async {
            let prefix = key::cron_job_statuses();
            let listed = list_surely(self.reader.as_ref(), &prefix).await?;
            let status = |entry: &rcfarm_store::Entry| {
                let id = key::namespaced(&prefix, &entry.key)?;
                Some((id, (entry.modify_index, CronStatus::decode(&entry.value).ok())))
            };
            let statuses: Statuses = listed.value.iter().filter_map(status).collect();
            lock(&self.known).extend(statuses.keys().map(record_id));
            Ok((listed.index, statuses))
        };
        self.at_claim.refresh(oldest, read).await
    }

    /// The status of a claimed CronJob as [`CronCaches::prepare`] read it, once. `None`: the caller reads it.
    #[must_use]
    pub fn take_status(&self, id: &Namespaced) -> Option<(Index, CronStatus)> {
        let take = |all: &mut Statuses| match all.remove(id) {
            Some((index, Some(status))) => Some((index, status)),
            Some((_, None)) => None,
            None => Some(Default::default()),
        };
        self.at_claim.take(take).flatten()
    }

    /// The CronJob may have a status from now on.
    pub fn note(&self, id: &Namespaced) {
        lock(&self.known).insert(record_id(id));
    }

    /// Its status was deleted.
    pub fn forget(&self, id: &Namespaced) {
        lock(&self.known).remove(&record_id(id));
        lock(&self.rung).remove(&record_id(id));
    }

    /// Whether any CronJob may have a status.
    #[must_use]
    pub fn has_something(&self) -> bool {
        !lock(&self.known).is_empty()
    }

    /// CronJobs that may have a status, and have no record in the cache.
    #[must_use]
    pub fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        let known = lock(&self.known);
        known.iter().filter(|id| !records.0.contains_key(*id)).cloned().collect()
    }

    /// The doorbell of a CronJob was rung.
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
