//! One kind of record in a farm: its caches, its running tasks, and input of the claim plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::claims::{BUSY_PAUSE, LONGEST_BUSY_PAUSE};
use super::kind::{Kind, KindSpec, RegisteredKind};
use super::record_labels::OwnLabels;
use super::record_task::TaskHandle;
use super::records::{Locks, RecordLabels, Records};
use super::status_check::StatusCheck;
use super::subscriptions::Subscriptions;
use rcfarm_api::backoff;
use rcfarm_api::ids::RecordId;
use rcfarm_api::ids::{FarmName, SessionId};
use rcfarm_store::cache::{Cache, Snapshot};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Claim, Index, Key, Op, Reader, VersionedIndex};

pub(super) struct KindState {
    pub(super) spec: Arc<KindSpec>,
    pub(super) kind: Arc<dyn Kind>,
    pub(super) records: Arc<Cache<Records>>,
    pub(super) labels: Arc<Cache<RecordLabels>>,
    /// Labels in the records' values; empty unless something needs labels.
    pub(super) own_labels: Arc<OwnLabels>,
    pub(super) locks: Arc<Cache<Locks>>,
    pub(super) statuses: Arc<StatusCheck>,
    /// Cancelled when the kind has its first record. Then its locks, and the caches that its controllers read, are
    /// watched.
    pub(super) begun: CancellationToken,
    /// Cancelled when something needs the records' labels. Then they are watched.
    pub(super) labelled: CancellationToken,
    pub(super) running: BTreeMap<RecordId, RunningRecord>,
    /// See [`super::record_task::RecordTask::permits`].
    pub(super) permits: Arc<Semaphore>,
    pub(super) claiming: BTreeSet<RecordId>,
    /// Until when a record must not be claimed: time since the farm's start.
    pub(super) barred: BTreeMap<RecordId, Duration>,
    /// Refused claims in a row, by record without an owner.
    pub(super) refused: BTreeMap<RecordId, u32>,
    /// Records that have had an owner, so the store may hold more than the record.
    pub(super) had_owner: BTreeSet<RecordId>,
    /// Time since the farm's start.
    pub(super) unowned_since: BTreeMap<RecordId, Duration>,
    pub(super) unusable: BTreeSet<RecordId>,
    /// Its locks and labels are being read again, because Consul refused a transaction based on them.
    pub(super) is_doubted: bool,
    /// Snapshots that `count` used last.
    stock: Option<Stock>,
}

type Stock = (Arc<Snapshot<Records>>, Arc<Snapshot<Locks>>);

pub(super) struct RunningRecord {
    pub(super) handle: Arc<TaskHandle>,
    pub(super) claim: Claim,
    pub(super) parting: Option<LockRelease>,
}

/// What happens to the lock once the task has stopped. If labels are the reason, each [`Op`] guards them: otherwise two
/// farms that saw different labels could pass the record to and fro.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockRelease {
    Release(Vec<Op>),
    HandOver(FarmName, SessionId, Vec<Op>),
    Drop,
}

impl KindState {
    /// `ops`: limit of operations in one transaction.
    pub(super) fn new(kind: &RegisteredKind, reader: &Arc<dyn Reader>, ops: usize) -> Self {
        let RegisteredKind { spec, kind } = kind.clone();
        let cache = if spec.is_guarded { Cache::guarded } else { Cache::new };
        KindState {
            records: cache(reader.clone(), spec.records.clone(), spec.poll_policy),
            labels: Cache::new(reader.clone(), spec.labels.clone(), spec.poll_policy),
            own_labels: Arc::default(),
            locks: Cache::new(
                reader.clone(),
                spec.locks.clone(),
                PollPolicy { reading: PollPolicy::LOCKS.reading, ..spec.poll_policy },
            ),
            statuses: Arc::new(StatusCheck::new(spec.name, reader.clone(), ops)),
            begun: CancellationToken::new(),
            labelled: CancellationToken::new(),
            kind,
            running: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(spec.concurrency)),
            claiming: BTreeSet::new(),
            barred: BTreeMap::new(),
            refused: BTreeMap::new(),
            had_owner: BTreeSet::new(),
            unowned_since: BTreeMap::new(),
            unusable: BTreeSet::new(),
            is_doubted: false,
            stock: None,
            spec,
        }
    }

    /// Subscribes to the caches that claims depend on, and to those that controllers read.
    pub(super) fn subscribe(&self, all: &mut Subscriptions) {
        let mut of_kind = all.of_kind(self.spec.name, self.begun.clone());
        let (own_labels, labelled) = (self.spec.own_labels, self.labelled.clone());
        of_kind.on(&self.records, move |wake, old, new| {
            let changed = Records::touched_keys(&old.value, &new.value);
            // A changed record wakes only its own task. Claims depend on which records exist, and on their labels.
            let labels = |records: &Records, id: &RecordId| {
                own_labels
                    .zip(records.0.get(id))
                    .map(|(labels_in, record)| labels_in(&record.value))
            };
            let is_relabelled = |id: &RecordId| labels(&old.value, id) != labels(&new.value, id);
            let moved = old.value.0.len() != new.value.0.len()
                || changed.iter().any(|id| !old.value.0.contains_key(id))
                || labelled.is_cancelled() && changed.iter().any(is_relabelled);
            wake.records(changed);
            if moved || !new.is_trusted_as(old) {
                wake.plan_claims();
            }
        });
        of_kind.on_from(&self.labels, self.labelled.clone(), |wake, old, new| {
            wake.records(VersionedIndex::touched_keys(&old.value.0, &new.value.0));
            wake.plan_claims();
        });
        of_kind.on_with_records(&self.locks, |wake, old, new| {
            let others = |locks: &Locks, id| locks.0.get(id).map(|of| of.others.clone());
            let others = |locks: &Locks, id| others(locks, id).unwrap_or_default();
            let ids = old.value.0.keys().chain(new.value.0.keys());
            let changed = ids.filter(|id| others(&old.value, id) != others(&new.value, id));
            wake.records(changed.cloned());
            wake.plan_claims();
        });
        let statuses = self.statuses.clone();
        of_kind.run(|wake, ids| async move {
            statuses.run(ids, move |found| wake.records(found)).await;
        });
        self.kind.subscribe(&mut of_kind);
    }

    /// Whether every cache that the claim plan needs has been read.
    pub(super) fn is_read(&self) -> bool {
        let locks = !self.begun.is_cancelled() || self.locks.snapshot().is_read();
        let labels = !self.labelled.is_cancelled() || self.labels.snapshot().is_read();
        self.records.snapshot().is_read() && locks && labels
    }

    /// Starts watches that are needed from now on. `by_labels`: some farm selects records by labels.
    pub(super) fn wake_watches(&self, by_labels: bool) {
        if !self.records.snapshot().value.0.is_empty() || self.kind.has_leftovers() {
            self.begun.cancel();
        }
        if by_labels || self.spec.needs_labels {
            self.labelled.cancel();
        }
    }

    /// Reads the labels in the records' values, if something needs labels.
    pub(super) fn read_own_labels(&mut self, records: &Snapshot<Records>) {
        if let Some(labels_in) = self.spec.own_labels.filter(|_| self.labelled.is_cancelled()) {
            Arc::make_mut(&mut self.own_labels).update(&records.value, labels_in);
        }
    }

    /// Bars a record whose claim was refused, for longer each time. Returns whether it was refused before and the cache
    /// of locks has shown no owner since: the cache is out of date.
    pub(super) fn bar(&mut self, id: RecordId, now: Duration) -> bool {
        let times = self.refused.entry(id.clone()).or_default();
        let pause = backoff(BUSY_PAUSE, LONGEST_BUSY_PAUSE, *times);
        *times = times.saturating_add(1);
        let again = *times > 1;
        self.barred.insert(id, now + pause);
        again
    }

    /// Updates what the claim plan reads: since when records have no owner, and which names are not valid.
    /// `left_behind` are names without a record that are claimed all the same.
    pub(super) fn take_stock(&mut self, left_behind: &BTreeSet<RecordId>, now: Duration) {
        self.barred.retain(|_, until| *until > now);
        let seen = (self.records.snapshot(), self.locks.snapshot());
        let stocked =
            |(records, locks): &Stock| Arc::ptr_eq(&seen.0, records) && Arc::ptr_eq(&seen.1, locks);
        if !self.stock.as_ref().is_some_and(stocked) {
            self.count(&seen.0.value, &seen.1.value, left_behind, now);
            self.stock = Some(seen);
        }
        let locks = self.locks.snapshot();
        let is_owned = |id: &RecordId| locks.value.0.get(id).is_some_and(|of| of.owner.is_some());
        for id in left_behind.iter().filter(|id| !is_owned(id)) {
            self.unowned_since.entry(id.clone()).or_insert(now);
        }
        let never = now + Duration::from_secs(3600);
        self.barred.extend(self.unusable.iter().map(|id| (id.clone(), never)));
    }

    fn count(
        &mut self,
        records: &Records,
        locks: &Locks,
        left_behind: &BTreeSet<RecordId>,
        now: Duration,
    ) {
        let owned = |id: &RecordId| locks.0.get(id).is_some_and(|locks| locks.owner.is_some());
        self.unowned_since
            .retain(|id, _| (records.0.contains_key(id) || left_behind.contains(id)) && !owned(id));
        let barred = &mut self.barred;
        self.refused.retain(|id, _| {
            let is_unowned = records.0.contains_key(id) && !owned(id);
            // Its owner may hand it over at once.
            is_unowned || {
                barred.remove(id);
                false
            }
        });
        self.unusable.retain(|id| records.0.contains_key(id));
        self.had_owner.retain(|id| records.0.contains_key(id));
        for id in records.0.keys() {
            if owned(id) {
                if !self.had_owner.contains(id) {
                    self.had_owner.insert(id.clone());
                }
                continue;
            }
            self.unowned_since.entry(id.clone()).or_insert(now);
            let Err(error) = (self.spec.check_name)(id.as_str()) else { continue };
            if self.unusable.insert(id.clone()) {
                warn!(
                    alert = true,
                    key = format!("{}{id}", self.spec.records),
                    why = error.reason(),
                    "a key below the records' prefix is no valid record name; it is ignored"
                );
            }
        }
    }
}

impl RunningRecord {
    pub(super) fn wake(&self) {
        self.handle.wake.notify_one();
    }
}

impl KindState {
    /// Wakes the record's owner if it is here. `rung`: ModifyIndex of the doorbell.
    pub(super) fn answer_bell(&self, id: &RecordId, rung: Index) -> BellAnswer {
        if let Some(running) = self.running.get(id) {
            if self.records.snapshot().index < rung {
                self.records.refresh_soon();
            }
            self.kind.rung(id);
            running.wake();
            return BellAnswer::Handled;
        }
        let records = self.records.snapshot();
        if !records.is_read() || records.value.0.contains_key(id) {
            return BellAnswer::Others;
        }
        match self.spec.records.key_of(id.as_str()) {
            // The index of a prefix is that of its own last change, so the cache may be current nevertheless.
            Some(record) if records.index < rung => BellAnswer::IfAbsent(record),
            _ => BellAnswer::Handled,
        }
    }
}

/// What becomes of a doorbell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BellAnswer {
    /// It is deleted: its record is owned here, or exists no more.
    Handled,
    /// It is deleted if this record does not exist. The cache lacks it, but may be older than the doorbell.
    IfAbsent(Key),
    /// It is left to another farm.
    Others,
}
