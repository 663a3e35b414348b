//! Keys that a farm creates where they are missing: at its start, and again when Consul has lost them, as when it comes
//! back empty.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::warn;

use super::farm_loop::{Done, FarmLoop, SessionState};
use super::kind::KindSpec;
use super::kind_state::KindState;
use rcfarm_api::ids::RecordId;
use rcfarm_api::{Index, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{PutMode, Store, StoreError};

/// Writes a key only if it does not exist.
pub(super) const NEW: PutMode = PutMode::Cas(Index::ZERO);
/// Pause until missing keys are created again: another farm's are not shown yet, or the token may not write them.
const AGAIN: Duration = Duration::from_secs(60);

/// Creates sentinels and seed records; returns how many seed records were missing. A farm works without what its token may
/// not write.
pub(super) async fn create<'s>(
    store: &dyn Store,
    specs: impl Iterator<Item = &'s KindSpec> + Clone,
) -> Result<usize, StoreError> {
    // A watch on an empty prefix wakes on unrelated writes; the sentinel keeps the prefix from being empty.
    store.put(&key::bell_sentinel(), Bytes::new(), 0, NEW).await?;
    for prefix in specs.clone().flat_map(|spec| &spec.sentinels) {
        match store.put(&prefix.sentinel(), Bytes::new(), 0, NEW).await {
            // Without the sentinel the watch wakes more often.
            Ok(_) | Err(StoreError::Forbidden { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let mut created = 0;
    for (key, value) in specs.flat_map(|spec| &spec.seeds) {
        match store.put(key, value.clone(), 0, NEW).await {
            Ok(is_new) => created += usize::from(is_new),
            Err(StoreError::Forbidden { .. }) => {
                warn!(%key, "the token may not create this record: create it with another token");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(created)
}

impl FarmLoop<'_> {
    /// Creates the keys again if a seed record has gone. Returns when to look again.
    pub(super) fn restore_seeds(&self, e: &mut SessionState) -> Option<Instant> {
        if !self.states.iter().any(KindState::lacks_seeds) {
            return None;
        }
        let now = monotonic();
        if let Some(at) = e.seeds_again_at.filter(|at| *at > now) {
            return Some(at);
        }
        let specs: Vec<Arc<KindSpec>> =
            self.states.iter().map(|state| state.spec.clone()).collect();
        let store = self.farm.env.store.clone();
        e.beside.push(Box::pin(async move {
            match create(store.as_ref(), specs.iter().map(Arc::as_ref)).await {
                // Another farm has created them, or the token may not.
                Ok(0) => {}
                Ok(records) => warn!(records, "records that farms need were gone; created again"),
                Err(error) => warn!(%error, "records that farms need are gone"),
            }
            Done::Seeded
        }));
        e.seeds_again_at = Some(now + AGAIN);
        e.seeds_again_at
    }
}

impl KindState {
    /// Whether a seed record is missing among the records.
    fn lacks_seeds(&self) -> bool {
        let seen = self.records.snapshot();
        let is_missing = |key: &rcfarm_store::Key| {
            let id = self.spec.records.tail(key.as_str());
            id.is_some_and(|id| !seen.value.0.contains_key(&RecordId::from(id)))
        };
        seen.is_read() && self.spec.seeds.iter().any(|(key, _)| is_missing(key))
    }
}
