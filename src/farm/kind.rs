//! A kind of record: data ([`KindSpec`]) and behaviour ([`Kind`], [`Controller`]). A new kind is one directory with
//! both, and one line in `src/daemon.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use super::metrics::RecordMetrics;
use super::records::{Locks, RecordLabels, Records};
use super::settings::FarmSettings;
use super::status_check::StatusCheck;
use super::subscriptions::Subscriber;
use rcfarm_api::FieldError;
use rcfarm_api::ids::{FarmName, RecordId};
use rcfarm_api::labels::Labels;
use rcfarm_store::cache::Cache;
use rcfarm_store::time::{Clock, IdSource};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Claim, Env, Index, Key, Prefix, Reader, StoreError, TxnLimits, Writer};

/// What the controllers of a kind use to read and write.
#[derive(Clone)]
pub struct ControllerContext {
    pub farm: FarmName,
    /// Reads.
    pub reader: Arc<dyn Reader>,
    /// Writes under a claim.
    pub writer: Writer,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers and jitter.
    pub ids: Arc<IdSource>,
    /// Size limits of one transaction.
    pub limits: TxnLimits,
}

impl ControllerContext {
    /// The context of a kind's controllers in a farm.
    #[must_use]
    pub fn new(settings: &FarmSettings, env: &Env, spec: &KindSpec) -> ControllerContext {
        ControllerContext {
            farm: settings.name.clone(),
            reader: env.store.clone(),
            writer: match spec.batches_commits {
                true => Writer::together(env.store.clone(), settings.limits),
                false => Writer::new(env.store.clone()),
            },
            clock: env.clock.clone(),
            ids: env.ids.clone(),
            limits: settings.limits,
        }
    }
}

/// A claimed record with its claim and the caches of its kind.
#[derive(Clone)]
pub struct ClaimedRecord {
    /// Name of the record.
    pub id: RecordId,
    /// Makes its controller reconcile.
    pub wake: Arc<Notify>,
    /// Fence of every transaction of its controller.
    pub claim: Claim,
    /// All records of the kind.
    pub records: Arc<Cache<Records>>,
    /// Labels of all records of the kind; watched only if something needs them ([`KindSpec::needs_labels`]).
    pub labels: Arc<Cache<RecordLabels>>,
    /// All locks of the kind.
    pub locks: Arc<Cache<Locks>>,
    /// Compares the statuses of the kind's records with what their owners know.
    pub statuses: Arc<StatusCheck>,
    /// What is measured of it.
    pub metrics: Arc<RecordMetrics>,
}

/// A kind as data: prefixes of its records, how they are claimed and watched, and which prefixes its controllers read
/// and write. The rights check at start, `doctor`, sentinels, lock and doorbell names and metric labels are derived
/// from it.
#[derive(Debug, Clone)]
pub struct KindSpec {
    /// Name in logs, metric labels and doorbells (`rcfarm/bell/<name>/<id>`).
    pub name: &'static str,
    pub records: Prefix,
    /// Prefix of the ownership locks, each under its record's name.
    pub locks: Prefix,
    /// Prefix of the records' labels, each under its record's name. A farm's selector is matched against them.
    pub labels: Prefix,
    /// Labels in the value of a record. A farm's selector is matched against them, and over them those of `labels`.
    /// `None`: values have none.
    pub own_labels: Option<fn(&[u8]) -> Labels>,
    /// Checks that a key's tail below `records` names a record. The error is for people. Keys that name no record are
    /// reported and not claimed.
    pub check_name: fn(&str) -> Result<(), FieldError>,
    /// Whether the mass deletion guard applies to the records. Not for kinds whose records come and go by the thousand:
    /// their controllers check in the store that a record is gone before they remove anything.
    pub is_guarded: bool,
    /// How records, labels and locks are watched.
    pub poll_policy: PollPolicy,
    /// Whether controllers read their records' labels. If not, labels are watched only while a farm selects by them.
    pub needs_labels: bool,
    /// Record tasks of the kind that reconcile at the same time, at most.
    pub concurrency: usize,
    /// Whether transactions of different records are sent to Consul in one request where they fit. For kinds with
    /// many small records.
    pub batches_commits: bool,
    /// Further prefixes that controllers read and do not write.
    pub reads: Vec<Prefix>,
    /// Prefixes that controllers write, besides locks.
    pub writes: Vec<Prefix>,
    /// Prefixes that controllers read and write for some records alone. A farm starts without the right to them; `doctor`
    /// checks it.
    pub optional_writes: Vec<Prefix>,
    /// Prefixes that users write, by the policy `user.hcl`.
    pub user_writes: Vec<Prefix>,
    /// Prefixes that may be empty for long. They get a sentinel key, since a watch on an empty prefix wakes on
    /// unrelated writes.
    pub sentinels: Vec<Prefix>,
    /// Records that a farm creates at its start when they are missing.
    pub seeds: Vec<(Key, Bytes)>,
    /// Documents of users that `doctor` checks.
    pub checks: Vec<RecordCheck>,
}

/// How `doctor` checks the documents below one prefix.
#[derive(Debug, Clone)]
pub struct RecordCheck {
    /// Name of the check.
    pub title: &'static str,
    /// Prefix of the documents.
    pub prefix: Prefix,
    /// What is wrong with a document, given its key's tail and its value.
    pub check: fn(&str, &[u8]) -> Result<(), FieldError>,
    /// What to do about documents that are wrong.
    pub remedy: &'static str,
}

impl KindSpec {
    /// A kind with the given name and prefixes. Everything else has its usual value: guarded, watched promptly, 64
    /// tasks, nothing else read or written, any name allowed.
    #[must_use]
    pub fn new(name: &'static str, records: Prefix, locks: Prefix, labels: Prefix) -> KindSpec {
        KindSpec {
            name,
            records,
            locks,
            labels,
            own_labels: None,
            check_name: |_| Ok(()),
            is_guarded: true,
            poll_policy: PollPolicy::PROMPT,
            needs_labels: false,
            // Enough to keep Consul busy while some of them wait for a scheduler.
            concurrency: 64,
            batches_commits: false,
            reads: Vec::new(),
            writes: Vec::new(),
            optional_writes: Vec::new(),
            user_writes: Vec::new(),
            sentinels: Vec::new(),
            seeds: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// The ownership lock of a record; `None` when no key can have that name.
    #[must_use]
    pub fn lock_key(&self, id: &RecordId) -> Option<Key> {
        self.locks.key_of(id.as_str())
    }

    /// All prefixes that a farm must be able to read for this kind.
    pub fn readable(&self) -> impl Iterator<Item = &Prefix> {
        [&self.records, &self.locks, &self.labels]
            .into_iter()
            .chain(&self.reads)
            .chain(&self.writes)
    }

    /// All prefixes that a farm writes for this kind.
    pub fn writable(&self) -> impl Iterator<Item = &Prefix> {
        std::iter::once(&self.locks).chain(&self.writes).chain(&self.optional_writes)
    }
}

/// What a kind does. Only [`Kind::controller`] is needed; the rest are hooks.
#[async_trait]
pub trait Kind: Send + Sync + 'static {
    /// Makes the controller of a claimed record.
    fn controller(&self, claimed: ClaimedRecord) -> Box<dyn Controller>;

    /// Subscribes to the caches that controllers read: which records to wake when one of them changes.
    fn subscribe(&self, _subscriber: &mut Subscriber<'_>) {}

    /// Names of deleted records of which something is left to clean up. Each is claimed like a record, and its
    /// controller finds no record.
    fn left_behind(&self, _records: &Records) -> BTreeSet<RecordId> {
        BTreeSet::new()
    }

    /// Whether anything of this kind exists although no record does.
    fn has_leftovers(&self) -> bool {
        false
    }

    /// Called after records were claimed and before their controllers start: refreshes the caches once for all of
    /// them. `oldest` is the smallest CreateIndex among them, or 0 when one of them had an owner before. A read at a
    /// lower index than `oldest` cannot contain anything of theirs.
    ///
    /// # Errors
    /// Any [`StoreError`]; the controllers start all the same and read for themselves.
    async fn prepare(&self, _oldest: Index) -> Result<(), StoreError> {
        Ok(())
    }

    /// Called when the doorbell of an owned record was rung, before its controller is woken.
    fn rung(&self, _id: &RecordId) {}
}

/// A kind as a farm runs it: its data and its behaviour.
#[derive(Clone)]
pub struct RegisteredKind {
    /// Data.
    pub spec: Arc<KindSpec>,
    /// Behaviour.
    pub kind: Arc<dyn Kind>,
}

impl RegisteredKind {
    /// Registers `kind` under `spec`.
    #[must_use]
    pub fn new(spec: KindSpec, kind: Arc<dyn Kind>) -> RegisteredKind {
        RegisteredKind { spec: Arc::new(spec), kind }
    }
}

/// When to reconcile a record again. Every record is reconciled again after 5 to 7.5 minutes at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// When something changes.
    AwaitChange,
    /// After this time, or when something changes.
    RequeueAfter(Duration),
}

/// Result of one reconciliation.
pub type ReconcileResult = Result<Action, ReconcileError>;

/// Why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The store failed: retried with backoff, up to 5 s.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something that the record depends on failed, such as its scheduler: retried with backoff, up to 30 s.
    #[error("{0}")]
    Elsewhere(String),
    /// The record is at fault: counts towards quarantine.
    #[error("{0}")]
    Record(String),
    /// The claim is lost: the task ends.
    #[error("the claim is lost")]
    ClaimLost,
}

/// The controller of one claimed record.
#[async_trait]
pub trait Controller: Send {
    /// Compares the record with what is there, and commits at most one plan that brings them closer.
    ///
    /// # Errors
    /// [`ReconcileError`]; the caller waits and calls again.
    async fn reconcile(&mut self) -> ReconcileResult;

    /// Writes into the record's status that it keeps failing and is not retried for `pause`.
    ///
    /// # Errors
    /// [`ReconcileError`]; it is logged.
    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError>;
}
