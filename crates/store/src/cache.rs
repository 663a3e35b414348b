//! Cache of one Consul prefix: one blocking query, decoded once, shared by all readers.

mod overlay;
mod unseen_writes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use super::failpoints::{Failpoint, enabled};
use super::mass_deletion_guard::{self, UntrustedReason};
use crate::rights::may_read;
use crate::time::{IdSource, monotonic};
use crate::watch::{PollPolicy, Transferred, TreeWatch};
use crate::{
    Answer, Entry, Index, Key, Prefix, PrefixLister, Query, Reader, StoreError, TokenBucket,
    offload,
};
use rcfarm_api::backoff;

pub use overlay::Overlay;
use unseen_writes::UnseenWrites;

/// Index built from the entries of one Consul prefix.
#[expect(
    clippy::len_without_is_empty,
    reason = "a length is only ever compared with the one before"
)]
pub trait CacheIndex: Default + Send + Sync + 'static {
    /// Builds the index of `entries`, all below `prefix`. `old` is the last index, so that unchanged entries need not
    /// be decoded again.
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self;

    /// Number of entries, for the mass deletion guard.
    fn len(&self) -> usize;

    /// Whether `key`, which is below `prefix`, was among the entries. Only trees of which [`Cache::note_write`] is told
    /// need it.
    fn has_key(&self, _prefix: &Prefix, _key: &Key) -> bool {
        true
    }
}

/// Reads a prefix once and indexes it, as a [`Cache`] of it would. For commands, which watch nothing.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read_once<I: CacheIndex>(
    reader: &dyn Reader,
    prefix: &Prefix,
) -> Result<I, StoreError> {
    let mut entries = reader.list(prefix, Query::PLAIN).await?.value;
    entries.retain(|entry| !prefix.is_sentinel(&entry.key));
    Ok(I::build(&I::default(), prefix, entries))
}

/// Contents of a prefix at one read.
#[derive(Debug, Default)]
pub struct Snapshot<T> {
    /// The index built from the entries.
    pub value: Arc<T>,
    /// `X-Consul-Index` of the answer.
    pub index: Index,
    /// When the read was sent; `None` before the first.
    pub asked: Option<Instant>,
    /// Number of reads that had been sent when this one was answered.
    sent_by_then: u64,
    /// Why it is untrusted, if it is.
    pub untrusted: Option<UntrustedReason>,
    /// How often it became untrusted. Controllers may have seen that although the watch did not report it.
    doubts: u32,
    /// Number of entries when it was last trusted.
    trusted_len: usize,
    /// Number of entries in the answer.
    entries: usize,
    /// Sum of the entries' indexes. A prefix that is read in parts may show entries newer than its own index. A
    /// restored snapshot removes them under the same index.
    indexes: u64,
}

impl<T> Clone for Snapshot<T> {
    fn clone(&self) -> Self {
        Snapshot { value: self.value.clone(), ..*self }
    }
}

impl<T> Snapshot<T> {
    /// Whether the prefix was read at least once.
    pub fn is_read(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether a write that was committed at `index`, and answered at `at`, is in the snapshot. The index alone does
    /// not tell: it decreases when Consul drops tombstones (`consul-semantics.md` §4.4).
    pub fn shows(&self, index: Index, at: Option<Instant>) -> bool {
        let surely_later = |at: Instant| self.asked.is_some_and(|asked| asked > at + SURELY_LATER);
        self.index >= index || at.is_some_and(surely_later)
    }

    /// Whether nothing has changed since `then`. The index of an empty prefix moves with unrelated writes.
    fn says_the_same_as(&self, then: &Self) -> bool {
        let same = Arc::ptr_eq(&self.value, &then.value) || (self.entries, then.entries) == (0, 0);
        same && then.is_read() && self.is_trusted_as(then)
    }

    /// Whether it is trusted as `then`, and was all the time in between.
    pub fn is_trusted_as(&self, then: &Self) -> bool {
        (self.untrusted, self.doubts) == (then.untrusted, then.doubts)
    }
}

/// A read this long after a write was answered shows the write, whatever the indexes are.
const SURELY_LATER: Duration = Duration::from_secs(30);

/// A read that was sent: its time and its sequence number.
#[derive(Debug, Clone, Copy)]
struct SentRead {
    at: Instant,
    number: u64,
}

/// Cache of one Consul prefix, kept current by one blocking query and shared by all readers.
pub struct Cache<T> {
    lister: Arc<PrefixLister>,
    poll_policy: PollPolicy,
    guarded: bool,
    seen: Mutex<Arc<Snapshot<T>>>,
    sent: AtomicU64,
    /// Held while an answer is indexed and replaces the snapshot: several tasks may read one prefix.
    taking: Mutex<()>,
    read_at_once: Notify,
    doubted: Notify,
    first: Notify,
    listeners: Mutex<Vec<Listener<T>>>,
    unseen: UnseenWrites,
    lag: OnceLock<ObserveLag>,
    /// Index of the last write that was in the snapshot when it was noted.
    shown_at_once: AtomicU64,
    /// The error of a read that had no answer in time, and until when [`Cache::read_now`] returns it again.
    failed_until: Mutex<Option<(Instant, StoreError)>>,
}

/// Called with the time from a noted write to the snapshot that shows it.
type ObserveLag = Box<dyn Fn(Duration) + Send + Sync>;

/// Called with the snapshot reported last and the new one.
type Listener<T> = Box<dyn Fn(&Snapshot<T>, &Snapshot<T>) + Send + Sync>;

/// Pause between reads of an empty prefix, whose watch wakes on unrelated writes.
const EMPTY_PAUSE: Duration = Duration::from_millis(500);

/// Pause between reads of an untrusted prefix.
const DOUBTFUL_PAUSE: Duration = Duration::from_secs(2);

/// Interval of full reads, whatever the watch reports.
const FULL_EVERY: Duration = Duration::from_secs(300);

impl<T: CacheIndex> Cache<T> {
    /// A cache to be watched with `poll_policy`.
    pub fn new(reader: Arc<dyn Reader>, prefix: Prefix, poll_policy: PollPolicy) -> Arc<Self> {
        Self::build(reader, prefix, poll_policy, false)
    }

    /// A cache with the mass deletion guard: it is untrusted when it suddenly shrinks.
    pub fn guarded(reader: Arc<dyn Reader>, prefix: Prefix, poll_policy: PollPolicy) -> Arc<Self> {
        Self::build(reader, prefix, poll_policy, true)
    }

    fn build(
        reader: Arc<dyn Reader>,
        prefix: Prefix,
        poll_policy: PollPolicy,
        guarded: bool,
    ) -> Arc<Self> {
        Arc::new(Cache {
            lister: Arc::new(PrefixLister::new(reader, prefix)),
            poll_policy,
            guarded,
            failed_until: Mutex::default(),
            seen: Mutex::default(),
            sent: AtomicU64::new(0),
            taking: Mutex::default(),
            read_at_once: Notify::new(),
            doubted: Notify::new(),
            first: Notify::new(),
            listeners: Mutex::default(),
            unseen: UnseenWrites::default(),
            lag: OnceLock::new(),
            shown_at_once: AtomicU64::new(0),
        })
    }

    /// The prefix.
    pub fn prefix(&self) -> &Prefix {
        self.lister.prefix()
    }

    /// The last snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot<T>> {
        self.lock().clone()
    }

    /// Reads the prefix now. The snapshot is from a consistent read sent after this call began.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_now(&self) -> Result<Arc<Snapshot<T>>, StoreError> {
        loop {
            let request = self.request();
            let answer = self.list_now().await?;
            let (answer, _) = self.verified(answer, true).await?;
            let before = self.snapshot().index;
            if !offload(answer.value.len(), || self.take(answer, request, true)).await {
                continue;
            }
            let seen = self.snapshot();
            if seen.untrusted.is_some() || seen.index < before {
                self.doubted.notify_one();
            }
            return Ok(seen);
        }
    }

    /// Lists the tree. After a list without an answer in time, the error is returned again for as long as that list took:
    /// such a read costs Consul the whole tree, and each record's task would repeat it.
    async fn list_now(&self) -> Result<Answer<Vec<Entry>>, StoreError> {
        let asked = monotonic();
        let failed = self.failed_until.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((until, error)) = failed
            && asked < until
        {
            return Err(error);
        }
        let answer = self.lister.list(Query::CONSISTENT).await;
        let now = monotonic();
        let failed = answer.as_ref().err().filter(|e| matches!(e, StoreError::Timeout { .. }));
        *self.failed_until.lock().unwrap_or_else(PoisonError::into_inner) = failed
            .map(|error| (now + (now - asked).min(self.poll_policy.max_pause), error.clone()));
        answer
    }

    fn request(&self) -> SentRead {
        SentRead { at: monotonic(), number: self.sent.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    /// Resolves when the prefix was read once.
    pub async fn first_read(&self) {
        loop {
            let notified = self.first.notified();
            if self.snapshot().is_read() {
                return;
            }
            notified.await;
        }
    }

    /// An operator confirmed that the prefix is meant to be as small as it is.
    pub fn confirm(&self) {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = self.lock();
        let trusted_len = seen.value.len();
        *seen = Arc::new(Snapshot { untrusted: None, trusted_len, ..(**seen).clone() });
    }

    /// Ends the pause before the next read.
    pub fn refresh_soon(&self) {
        self.read_at_once.notify_one();
    }

    /// Calls `listener` with the last snapshot and the new one at each change, besides the callback of
    /// [`Cache::watch`]. A listener that comes after the first read is called with an empty snapshot and the current
    /// one.
    pub fn subscribe(&self, listener: impl Fn(&Snapshot<T>, &Snapshot<T>) + Send + Sync + 'static) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.snapshot();
        if seen.is_read() {
            listener(&Snapshot::default(), &seen);
        }
        listeners.push(Box::new(listener));
    }

    /// Notes that `key` was written at `index`. If the first snapshot that shows the write has no such key, `writer` is
    /// notified: somebody else deleted it meanwhile, which is no difference between two snapshots. A writer whose write
    /// the current snapshot shows is not notified. It has to look at the snapshot after this call.
    pub fn note_write(&self, key: Key, index: Index, writer: &Arc<Notify>) {
        let is_shown = self.unseen.add(key, index, writer, || self.snapshot());
        // A transaction writes many keys.
        if is_shown && self.shown_at_once.swap(index.0, Ordering::Relaxed) != index.0 {
            self.observe([Duration::ZERO]);
        }
    }

    /// Calls `observe` with the time from each write of which [`Cache::note_write`] was told to the snapshot that shows
    /// it; with 0 where the snapshot came first. Keys that one snapshot shows at one index count once. There is one
    /// observer: later ones are ignored.
    pub fn on_lag(&self, observe: impl Fn(Duration) + Send + Sync + 'static) {
        let _ = self.lag.set(Box::new(observe));
    }

    fn observe(&self, lags: impl IntoIterator<Item = Duration>) {
        if let Some(observe) = self.lag.get() {
            lags.into_iter().for_each(observe);
        }
    }

    /// Notes that the writer of `key` has deleted it.
    pub fn note_delete(&self, key: &Key) {
        self.unseen.remove(key);
    }

    /// Watches without end. `changed` is called with the snapshot reported last and the new one after a change,
    /// whichever task read it.
    pub async fn watch(
        self: Arc<Self>,
        ids: IdSource,
        changed: impl Fn(&Snapshot<T>, &Snapshot<T>) + Send + Sync,
    ) {
        let reading = self.poll_policy.reading;
        let mut watch = TreeWatch::reading(self.lister.clone(), FULL_EVERY, reading);
        let mut told = Arc::new(Snapshot::default());
        let mut budget = TokenBucket::default();
        let mut failures = 0;
        loop {
            let request = self.request();
            let next = tokio::select! {
                biased;
                next = watch.next() => next,
                // Another read found the prefix untrusted, or an older state from a restored snapshot. This read would
                // block until another change.
                () = self.doubted.notified() => {
                    watch.reset();
                    tokio::time::sleep(DOUBTFUL_PAUSE).await;
                    continue;
                }
            };
            let answer = match next {
                Ok(answer) => self.verified(answer, watch.is_confirmed()).await,
                Err(error) => Err(error),
            };
            let pause = match answer {
                Ok((answer, confirmed)) => {
                    if failures > 0 {
                        info!(tree = %self.prefix(), failures, "the cache's prefix can be read again");
                    }
                    failures = 0;
                    let before = self.snapshot();
                    let (woken, entries) = (monotonic(), answer.value.len());
                    let take_and_tell = || {
                        let is_taken = self.take(answer, request, confirmed);
                        let seen = self.snapshot();
                        if !seen.says_the_same_as(&told) {
                            changed(&told, &seen);
                            let all = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
                            all.iter().for_each(|listener| listener(&told, &seen));
                        }
                        (is_taken, seen)
                    };
                    let (is_taken, seen) = offload(entries, take_and_tell).await;
                    if !is_taken {
                        watch.reset();
                    }
                    let (empty, doubtful) = (seen.entries == 0, seen.untrusted.is_some());
                    told = seen;
                    let cost = cost(&before, watch.transferred(), request.at, woken);
                    let pause = self.poll_policy.pause_after_read(&mut budget, cost, monotonic());
                    if doubtful {
                        // Restored rights change no index, so no watch wakes for them.
                        watch.reset();
                        pause.max(DOUBTFUL_PAUSE)
                    } else if empty {
                        pause.max(EMPTY_PAUSE)
                    } else {
                        pause
                    }
                }
                Err(error) => {
                    watch.reset();
                    failures += 1;
                    if failures == 1 || failures % 20 == 0 {
                        warn!(tree = %self.prefix(), failures, %error, "cannot read the cache's prefix");
                    }
                    let base = Duration::from_millis(100);
                    let pause = backoff(base, Duration::from_secs(5), failures - 1);
                    ids.jitter(pause, 0.5).max(self.pause_after_failure(
                        &mut budget,
                        &error,
                        watch.is_confirmed().then_some(request.at),
                    ))
                }
            };
            if pause > Duration::ZERO {
                tokio::select! {
                    biased;
                    () = self.read_at_once.notified() => watch.reset(),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }

    /// The pause after a failed read. A list without an answer in time costs Consul as much as one that succeeded.
    /// `sent`: when a list was sent; `None` for a blocking query, whose wait cannot be told from its cost.
    fn pause_after_failure(
        &self,
        budget: &mut TokenBucket,
        error: &StoreError,
        sent: Option<Instant>,
    ) -> Duration {
        match (error, sent) {
            (StoreError::Timeout { .. }, Some(sent)) => {
                let now = monotonic();
                self.poll_policy.pause_after_read(budget, now - sent, now)
            }
            _ => Duration::ZERO,
        }
    }

    /// Checks the token's rights if the prefix shrank suspiciously, became empty, or is empty at the first read:
    /// without rights a list is silently cut, while a read of one key is refused. Returns whether the answer is
    /// consistent.
    async fn verified(
        &self,
        mut answer: Answer<Vec<Entry>>,
        confirmed: bool,
    ) -> Result<(Answer<Vec<Entry>>, bool), StoreError> {
        let seen = self.snapshot();
        let never_trusted = !seen.is_read() || seen.untrusted.is_some() && seen.trusted_len == 0;
        let is_blank = answer.value.is_empty()
            && (never_trusted || emptied(seen.entries, seen.untrusted.as_ref()));
        if !is_blank && judge(seen.trusted_len, answer.value.len(), answer.filtered).is_none() {
            return Ok((answer, confirmed));
        }
        if may_read(self.lister.reader(), self.prefix()).await? {
            return Ok((self.lister.list(Query::CONSISTENT).await?, true));
        }
        answer.filtered = true;
        Ok((answer, confirmed))
    }

    /// Takes an answer, unless a later read was taken before. `false`: it shows an older state than the last one and
    /// may be out of date: it is not consistent, so a deposed leader may have sent it, or it overlapped with the read
    /// of the last one.
    fn take(&self, answer: Answer<Vec<Entry>>, request: SentRead, confirmed: bool) -> bool {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = self.replace_snapshot(answer, request, confirmed);
        let seen = self.snapshot();
        let shown = self.unseen.check(&seen, |key| seen.value.has_key(self.prefix(), key));
        self.observe(shown.into_values());
        is_taken
    }

    /// [`Cache::take`] without its lock.
    fn replace_snapshot(
        &self,
        answer: Answer<Vec<Entry>>,
        request: SentRead,
        confirmed: bool,
    ) -> bool {
        let old = self.snapshot();
        // A blocking read was sent long ago but is new if its index is higher. One that was sent earlier and has no
        // higher index was overtaken, or it shows a snapshot that was restored in between: the next read tells.
        if old.asked.is_some_and(|then| then > request.at) && answer.index <= old.index {
            return answer.index == old.index;
        }
        if answer.index < old.index && !(confirmed && request.number > old.sent_by_then) {
            return false;
        }
        let asked = Some(old.asked.map_or(request.at, |then| then.max(request.at)));
        let sent_by_then = self.sent.load(Ordering::SeqCst);
        let (first, entries) = (!old.is_read(), answer.value.len());
        let indexes = answer.value.iter().fold(0, |sum: u64, e| sum.wrapping_add(e.modify_index.0));
        // Lost or restored rights change the entries but no index.
        let same = (answer.index, entries, indexes) == (old.index, old.entries, old.indexes)
            && !answer.filtered;
        if !first && same && old.untrusted.is_none() {
            *self.lock() = Arc::new(Snapshot { asked, sent_by_then, ..(*old).clone() });
            return true;
        }
        let mut news = answer.value;
        news.retain(|entry| !self.prefix().is_sentinel(&entry.key));
        let value = T::build(&old.value, self.prefix(), news);
        let untrusted = if self.guarded {
            judge(old.trusted_len, value.len(), answer.filtered)
        } else {
            answer.filtered.then_some(UntrustedReason::Filtered)
        };
        match (&old.untrusted, &untrusted) {
            (None, Some(why)) => warn!(
                alert = true, tree = %self.prefix(), entries = value.len(), before = old.trusted_len,
                %why, "the prefix shrank suspiciously: nothing is removed or moved until its keys \
                are back, or `rcfarm farm confirm` accepts the loss"
            ),
            (Some(_), None) => {
                info!(tree = %self.prefix(), "the mass deletion guard no longer holds this prefix")
            }
            _ => {}
        }
        let begins = old.untrusted.is_none() && untrusted.is_some();
        let doubts = old.doubts.wrapping_add(u32::from(begins));
        let trusted_len = if untrusted.is_some() { old.trusted_len } else { value.len() };
        let value = Arc::new(value);
        *self.lock() = Arc::new(Snapshot {
            value,
            index: answer.index,
            asked,
            sent_by_then,
            untrusted,
            doubts,
            trusted_len,
            entries,
            indexes,
        });
        if first {
            self.first.notify_waiters();
        }
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Arc<Snapshot<T>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cost of the last read. Of a blocking read only the indexing time is known; the transferred amount stands for the
/// rest.
fn cost<T>(
    before: &Snapshot<T>,
    transferred: Transferred,
    asked: Instant,
    woken: Instant,
) -> Duration {
    let digestion = monotonic() - woken;
    let times = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    // Keys are listed twice, whole and by parts.
    let names = Duration::from_micros(2) * times(transferred.names);
    let by_size = Duration::from_micros(8) * times(transferred.entries) + names;
    let waited = woken.duration_since(asked);
    if before.is_read() { digestion + by_size } else { digestion + waited }
}

/// The mass deletion guard, unless the failpoint switches it off.
fn judge(trusted: usize, now: usize, filtered: bool) -> Option<UntrustedReason> {
    if enabled(Failpoint::NoEmptinessGuard) {
        return None;
    }
    mass_deletion_guard::judge(trusted, now, filtered)
}

/// Whether the prefix became empty, unless the failpoint switches the guard off.
fn emptied(entries: usize, untrusted: Option<&UntrustedReason>) -> bool {
    !enabled(Failpoint::NoEmptinessGuard) && mass_deletion_guard::emptied(entries, untrusted)
}
