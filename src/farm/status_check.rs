//! Statuses of owned records, compared with what their owners know.
//!
//! Only its owner writes a record's status, so the owner plans from what it wrote last. A restored snapshot may bring
//! back an older status, and an idle owner sends no transaction that Consul would refuse. So the farm asks Consul every
//! 5 to 6 minutes whether each status still has the ModifyIndex that its owner expects. Owners of others are woken, and
//! read status and caches again. Many statuses are asked for in one transaction, which returns no values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use rcfarm_api::backoff;
use rcfarm_api::ids::RecordId;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{Index, Key, Question, Reader, StoreError, TxnOutcome};

/// Interval of the check, plus up to a fifth as jitter.
const CHECK_EVERY: Duration = Duration::from_secs(300);

/// The status of one record, as its owner expects it in Consul.
#[derive(Debug)]
pub struct ExpectedStatus {
    key: Key,
    known: Mutex<StatusCheckState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct StatusCheckState {
    /// ModifyIndex; 0: no status.
    index: Index,
    /// When it was read or written; `None`: not yet, or it is being written.
    since: Option<Instant>,
    /// The check found the status at another index.
    differs: bool,
}

impl ExpectedStatus {
    fn lock(&self) -> MutexGuard<'_, StatusCheckState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the owner has read or written the status at this index.
    pub(super) fn set(&self, index: Index) {
        *self.lock() = StatusCheckState { index, since: Some(monotonic()), differs: false };
    }

    /// Notes that the owner sends a write of the status. Nothing is compared until the owner knows its result.
    pub(super) fn sent(&self) {
        self.lock().since = None;
    }

    /// Whether the check has found another index, and the owner has not read the status since.
    pub(super) fn differs(&self) -> bool {
        self.lock().differs
    }

    /// What Consul is asked. It refuses what is not as expected, and a status that is expected to be absent.
    fn question(&self) -> Option<(Question, Index)> {
        let known = self.lock();
        known.since?;
        let key = self.key.clone();
        Some(match known.index {
            Index::ZERO => (Question::Get { key }, Index::ZERO),
            index => (Question::IsAt { key, index }, index),
        })
    }

    /// Processes the answer to a question that was asked at `asked` about `index`. What was set later is not compared.
    fn answered(&self, index: Index, is_refused: bool, asked: Instant) -> bool {
        let mut known = self.lock();
        let is_current = known.index == index && known.since.is_some_and(|since| since < asked);
        known.differs |= is_current && is_refused == (index > Index::ZERO);
        known.differs
    }
}

/// The owned records of one kind whose statuses are compared.
pub struct StatusCheck {
    kind: &'static str,
    reader: Arc<dyn Reader>,
    /// Limit of questions in one transaction.
    ops: usize,
    owners: Mutex<BTreeMap<RecordId, Weak<ExpectedStatus>>>,
}

impl StatusCheck {
    /// A check without records. `ops`: limit of operations in one transaction.
    pub fn new(kind: &'static str, reader: Arc<dyn Reader>, ops: usize) -> StatusCheck {
        StatusCheck { kind, reader, ops: ops.max(1), owners: Mutex::default() }
    }

    /// Compares the record's status until the returned value is dropped. The owner keeps it up to date.
    pub(super) fn register(&self, id: &RecordId, key: &Key) -> Arc<ExpectedStatus> {
        let expected = Arc::new(ExpectedStatus { key: key.clone(), known: Mutex::default() });
        self.owners().insert(id.clone(), Arc::downgrade(&expected));
        expected
    }

    /// Compares periodically. `changed` receives the records whose status is not the one that their owner expects.
    pub(super) async fn run(&self, ids: IdSource, changed: impl Fn(BTreeSet<RecordId>) + Send) {
        let mut failures = 0;
        let mut pause = ids.jitter(CHECK_EVERY, 0.2);
        loop {
            sleep(pause).await;
            match self.check().await {
                Ok(found) => {
                    (failures, pause) = (0, ids.jitter(CHECK_EVERY, 0.2));
                    if !found.is_empty() {
                        warn!(
                            kind = self.kind,
                            records = found.len(),
                            "statuses were changed by somebody else: rereading them"
                        );
                        changed(found);
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        warn!(kind = self.kind, %error, "statuses cannot be checked");
                    }
                    let pauses = (Duration::from_secs(1), Duration::from_secs(30));
                    pause = ids.jitter(backoff(pauses.0, pauses.1, failures - 1), 0.5);
                }
            }
        }
    }

    /// The records whose status is not as expected.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn check(&self) -> Result<BTreeSet<RecordId>, StoreError> {
        let owners: Vec<(RecordId, Arc<ExpectedStatus>)> = {
            let mut owners = self.owners();
            owners.retain(|_, owner| owner.strong_count() > 0);
            owners.iter().filter_map(|(id, owner)| Some((id.clone(), owner.upgrade()?))).collect()
        };
        let mut found = BTreeSet::new();
        for some in owners.chunks(self.ops) {
            let asked = some.iter().filter_map(|(id, owner)| Some((id, owner, owner.question()?)));
            let asked: Vec<_> = asked.collect();
            let questions: Vec<Question> =
                asked.iter().map(|(_, _, (question, _))| question.clone()).collect();
            if questions.is_empty() {
                continue;
            }
            let at = monotonic();
            let refused: BTreeSet<usize> = match self.reader.ask(&questions).await? {
                TxnOutcome::Committed { .. } => BTreeSet::new(),
                TxnOutcome::Refused(why) => why.iter().map(|refusal| refusal.op).collect(),
            };
            for (op, (id, owner, (_, index))) in asked.into_iter().enumerate() {
                if owner.answered(index, refused.contains(&op), at) {
                    found.insert(id.clone());
                }
            }
        }
        Ok(found)
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<RecordId, Weak<ExpectedStatus>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
