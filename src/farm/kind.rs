//! What a kind of record must say of itself so that a farm can claim its records and run their tasks. A new kind
//! is one directory that implements [`Kind`], and one line where the farm is put together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::records::{Locks, RecordLabels, Records};
use crate::farm::wake_queue::WakeQueue;
use rcfarm_api::ids::{FarmName, NodeName, RecordId};
use rcfarm_store::cache::Cache;
use rcfarm_store::time::{Clock, IdSource};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Claim, Index, Key, Prefix, Reader, StoreError, Writer};

/// What a farm gives to every controller and every kind.
#[derive(Clone)]
pub struct ControllerContext {
    /// The farm.
    pub farm: FarmName,
    /// Reads.
    pub reader: Arc<dyn Reader>,
    /// Writes under a claim.
    pub writer: Writer,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers and jitter.
    pub ids: Arc<IdSource>,
    /// What fits into one transaction.
    pub limits: rcfarm_store::TxnLimits,
}

/// A claimed record with its claim and the caches of its kind.
#[derive(Clone)]
pub struct ClaimedRecord {
    /// The record.
    pub id: RecordId,
    /// The right to write it.
    pub claim: Claim,
    /// All records of the kind, as last read.
    pub records: Arc<Cache<Records>>,
    /// Their labels, as last read.
    pub labels: Arc<Cache<RecordLabels>>,
    /// All locks of the kind, as last read.
    pub locks: Arc<Cache<Locks>>,
}

/// A kind of record.
#[async_trait]
pub trait Kind: Send + Sync + 'static {
    /// Its word in logs, metrics and doorbells (`rcfarm/bell/<name>/<id>`).
    fn name(&self) -> &'static str;

    /// Where its records stand.
    fn records(&self) -> Prefix;

    /// Where their ownership locks stand, each under the record's name.
    fn locks(&self) -> Prefix;

    /// Where their labels stand, each under the record's name; what a farm's selector looks at.
    fn labels(&self) -> Prefix;

    /// Whether its records cannot well become few all of a sudden. Not where records come and go by the thousand, and
    /// whatever is removed because one is gone has the store make sure of that.
    fn is_guarded(&self) -> bool {
        true
    }

    /// How its records, their labels and locks are watched.
    fn poll_policy(&self) -> PollPolicy {
        PollPolicy::PROMPT
    }

    /// The other trees that its controllers read.
    fn trees(&self) -> Vec<Prefix>;

    /// Checks that a key below [`Kind::records`] names a record; says why not.
    ///
    /// # Errors
    /// What is wrong with the name, for people.
    fn check_name(&self, tail: &str) -> Result<(), String>;

    /// Records that a farm makes at its start where they are missing, so that it works out of the box.
    fn seeds(&self) -> Vec<(Key, Bytes)> {
        Vec::new()
    }

    /// Trees of ours that may be empty for long, and are to have a sentinel.
    fn sentinels(&self) -> Vec<Prefix> {
        Vec::new()
    }

    /// Whether its controllers look at the labels of their records; else those are watched only while some farm selects
    /// by them.
    fn needs_labels(&self) -> bool {
        false
    }

    /// The watches of the trees that its controllers look at, to be run beside the farm.
    fn watches(&self, wake_queue: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>>;

    /// Names without a record of which something is left to be tidied up. Each is claimed like a record, and its
    /// controller finds no record.
    fn left_behind(&self, _records: &Records) -> BTreeSet<RecordId> {
        BTreeSet::new()
    }

    /// Whether something besides a record shows that [`Kind::watches_of_records`] are needed.
    fn is_wanted(&self) -> bool {
        false
    }

    /// The watches that nobody needs before there has been a record. Until then they cost nothing.
    fn watches_of_records(&self, _inbox: &Arc<WakeQueue>) -> Vec<BoxFuture<'static, ()>> {
        Vec::new()
    }

    /// Called after records were claimed and before their controllers start: brings what the kind knows up to
    /// date, once for all of them. `oldest` is the smallest CreateIndex among them, or 0 when one of them had an
    /// owner before; what was read before that index can hold nothing of theirs.
    ///
    /// # Errors
    /// Any [`StoreError`]; the controllers start all the same and find out by themselves.
    async fn prepare(&self, oldest: Index) -> Result<(), StoreError>;

    /// A person confirmed that trees which became suspiciously small are meant to be so.
    fn confirm(&self);

    /// What holds destructive plans back, for people; empty when nothing does.
    fn untrusted_caches(&self) -> Vec<String>;

    /// Nodes that could not start pods of several records, and until when its controllers add none there.
    fn suspects(&self) -> BTreeMap<NodeName, Instant> {
        BTreeMap::new()
    }

    /// Where the scheduler of its records is asked, if that is outside the farm.
    fn scheduler(&self) -> Option<String> {
        None
    }

    /// The doorbell of a record of ours was rung; its controller is woken next.
    fn rung(&self, _id: &RecordId) {}

    /// A controller for a claimed record.
    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller>;
}

/// When to reconcile again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// When something changes.
    AwaitChange,
    /// After this long, or when something changes.
    RequeueAfter(Duration),
}

/// What one reconciliation of a record came to.
pub type ReconcileResult = Result<Action, ReconcileError>;

/// Why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The store failed; not the record's fault.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fault of something that the record depends on, such as its scheduler: waited out, longer.
    #[error("{0}")]
    Elsewhere(String),
    /// The record's own fault: counts towards quarantine.
    #[error("{0}")]
    Record(String),
    /// The claim does not hold any more.
    #[error("the claim is lost")]
    ClaimLost,
}

/// The task of one claimed record.
#[async_trait]
pub trait Controller: Send {
    /// Looks at the record and its world, and brings them closer to each other by at most one plan.
    ///
    /// # Errors
    /// [`ReconcileError`]; the caller waits and calls again.
    async fn reconcile(&mut self) -> Result<Action, ReconcileError>;

    /// Writes into the record's status that it keeps failing and is left alone for `pause`.
    ///
    /// # Errors
    /// [`ReconcileError`], when even that fails.
    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError>;
}

/// The lock key of a record.
#[must_use]
pub fn lock_key(kind: &dyn Kind, id: &RecordId) -> Option<Key> {
    kind.locks().key_of(id.as_str())
}
