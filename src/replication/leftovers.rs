//! Statuses of RCs whose record is gone: p2's programs delete a record without its status.
//!
//! The farm notes which RCs have a status, and claims those without a record
//! ([`crate::farm::kind::Kind::left_behind`]); their controllers delete it. Statuses are listed by key when records are
//! claimed and every 5 to 6 minutes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::debug;

use crate::farm::records::Records;
use rcfarm_api::ids::{RcId, RecordId};
use rcfarm_api::key;
use rcfarm_store::time::IdSource;
use rcfarm_store::{Query, Reader};

/// Interval of the lists, plus up to a fifth as jitter.
const LIST_EVERY: Duration = Duration::from_secs(300);
/// Pause before the next list after a status was found whose record is gone. Its preferred farm has deleted it by then;
/// the others would claim it in vain.
const LIST_AGAIN: Duration = Duration::from_secs(10);

/// Which RCs have a status, as far as this farm knows.
pub(super) struct RcLeftovers {
    reader: Arc<dyn Reader>,
    known: Mutex<KnownStatuses>,
    /// A status without a record was found.
    found: Notify,
    /// Other statuses are known than before: claims are to be planned.
    changed: Notify,
}

#[derive(Default)]
struct KnownStatuses {
    all: BTreeSet<RecordId>,
    /// Those without a record, when claims were planned last.
    left: BTreeSet<RecordId>,
}

impl RcLeftovers {
    pub(super) fn new(reader: Arc<dyn Reader>) -> RcLeftovers {
        let (found, changed) = (Notify::new(), Notify::new());
        RcLeftovers { reader, known: Mutex::default(), found, changed }
    }

    fn known(&self) -> MutexGuard<'_, KnownStatuses> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the RC has a status.
    pub(super) fn note(&self, id: &RecordId) {
        self.known().all.insert(id.clone());
    }

    /// Notes that the RC has no status.
    pub(super) fn collected(&self, id: &RecordId) {
        let mut known = self.known();
        known.all.remove(id);
        known.left.remove(id);
        drop(known);
        self.changed.notify_one();
    }

    /// Notes which RCs have a status, by a list of all.
    pub(super) fn listed(&self, ids: impl Iterator<Item = RcId>) {
        let all: BTreeSet<RecordId> =
            ids.map(|id| RecordId::from(id.to_string().as_str())).collect();
        let mut known = self.known();
        if known.all != all {
            known.all = all;
            drop(known);
            self.changed.notify_one();
        }
    }

    /// Waits until other statuses are known than before.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// RCs with a status and no record in the cache.
    pub(super) fn left_behind(&self, records: &Records) -> BTreeSet<RecordId> {
        let mut known = self.known();
        let gone = known.all.iter().filter(|id| !records.0.contains_key(*id));
        let left: BTreeSet<RecordId> = gone.cloned().collect();
        if left != known.left {
            known.left.clone_from(&left);
            if !left.is_empty() {
                self.found.notify_one();
            }
        }
        left
    }

    /// Whether any RC has a status.
    pub(super) fn has_any(&self) -> bool {
        !self.known().all.is_empty()
    }

    /// Lists the statuses without end: periodically, and some time after one without a record was found.
    pub(super) async fn watch(&self, ids: IdSource) {
        loop {
            let due = sleep(ids.jitter(LIST_EVERY, 0.2));
            tokio::pin!(due);
            loop {
                tokio::select! {
                    biased;
                    () = &mut due => break,
                    () = self.found.notified() => {
                        sleep(LIST_AGAIN).await;
                        if !self.known().left.is_empty() {
                            self.list().await;
                        }
                    }
                }
            }
            self.list().await;
        }
    }

    async fn list(&self) {
        match self.reader.keys(&key::rc_statuses(), None, Query::CONSISTENT).await {
            Ok(answer) => self.listed(answer.value.iter().filter_map(|key| rc_of(key))),
            Err(error) => debug!(%error, "statuses cannot be listed"),
        }
    }
}

/// The RC whose status is at a key.
pub(super) fn rc_of(status: &str) -> Option<RcId> {
    key::rc_statuses().tail(status)?.strip_suffix("/rcfarm")?.parse().ok()
}
