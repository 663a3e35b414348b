//! Caches that a farm watches, and the records that a change wakes. A cache is watched once, however many kinds
//! subscribe to it.

use std::sync::Arc;

use futures_util::future::{BoxFuture, select_all};
use tokio_util::sync::CancellationToken;

use super::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::ids::RecordId;
use rcfarm_store::cache::{Cache, CacheIndex, Snapshot};
use rcfarm_store::mass_deletion_guard::UntrustedReason;
use rcfarm_store::time::IdSource;

/// Wakes the records of one kind.
#[derive(Clone)]
pub struct Waker {
    kind: &'static str,
    queue: Arc<WakeQueue>,
}

impl Waker {
    /// Makes the controllers of these records reconcile.
    pub fn records(&self, ids: impl IntoIterator<Item = RecordId>) {
        let ids = ids.into_iter().collect();
        self.queue.push(FarmEvent::Changed { kind: self.kind, ids });
    }

    /// Makes all controllers of the kind reconcile.
    pub fn all(&self) {
        self.queue.push(FarmEvent::AllChanged { kind: self.kind });
    }

    /// Makes all controllers of the kind reconcile if the cache became untrusted, or trusted again. A controller may
    /// wait for that without having an entry in the cache.
    pub fn all_if_trust_changed<T>(&self, old: &Snapshot<T>, new: &Snapshot<T>) {
        if !new.is_trusted_as(old) {
            self.all();
        }
    }

    /// Makes the farm plan its claims again.
    pub fn plan_claims(&self) {
        self.queue.push(FarmEvent::Claims);
    }
}

/// A cache, whatever its index type.
pub(super) trait WatchedCache: Send + Sync {
    fn watch(self: Arc<Self>, ids: IdSource) -> BoxFuture<'static, ()>;

    /// Accepts the current size of the cache. Entries hidden by ACLs are not confirmed: their number is unknown.
    fn confirm(&self);

    /// Why the cache is not trusted, for people.
    fn untrusted(&self) -> Option<String>;
}

impl<T: CacheIndex> WatchedCache for Cache<T> {
    fn watch(self: Arc<Self>, ids: IdSource) -> BoxFuture<'static, ()> {
        Box::pin(Cache::watch(self, ids, |_, _| {}))
    }

    fn confirm(&self) {
        if self.snapshot().untrusted != Some(UntrustedReason::Filtered) {
            Cache::confirm(self);
        }
    }

    fn untrusted(&self) -> Option<String> {
        Some(format!("{}: {}", self.prefix(), self.snapshot().untrusted?))
    }
}

/// A cache and its start tokens. The watch starts when the first of them is cancelled.
struct Subscribed {
    cache: Arc<dyn WatchedCache>,
    starts: Vec<CancellationToken>,
}

pub(super) struct Subscriptions {
    queue: Arc<WakeQueue>,
    ids: Arc<IdSource>,
    caches: Vec<Subscribed>,
    tasks: Vec<BoxFuture<'static, ()>>,
}

impl Subscriptions {
    pub(super) fn new(queue: Arc<WakeQueue>, ids: Arc<IdSource>) -> Subscriptions {
        Subscriptions { queue, ids, caches: Vec::new(), tasks: Vec::new() }
    }

    /// Calls `changed` whenever `cache` has changed. The watch begins when `start` is cancelled, or earlier if another
    /// subscriber needs it.
    pub(super) fn on<T: CacheIndex>(
        &mut self,
        cache: &Arc<Cache<T>>,
        start: CancellationToken,
        changed: impl Fn(&Snapshot<T>, &Snapshot<T>) + Send + Sync + 'static,
    ) {
        cache.subscribe(changed);
        let cache: Arc<dyn WatchedCache> = cache.clone();
        let is_same = |other: &&mut Subscribed| {
            std::ptr::addr_eq(Arc::as_ptr(&other.cache), Arc::as_ptr(&cache))
        };
        match self.caches.iter_mut().find(is_same) {
            Some(subscribed) => subscribed.starts.push(start),
            None => self.caches.push(Subscribed { cache, starts: vec![start] }),
        }
    }

    /// Subscriptions of a kind. `begun` is cancelled when the kind has its first record.
    pub(super) fn of_kind(
        &mut self,
        kind: &'static str,
        begun: CancellationToken,
    ) -> Subscriber<'_> {
        let waker = Waker { kind, queue: self.queue.clone() };
        Subscriber { all: self, waker, begun }
    }

    /// The caches subscribed to, and the futures of their watches and of [`Subscriber::run`]. None of them ends.
    pub(super) fn into_parts(self) -> (Vec<Arc<dyn WatchedCache>>, Vec<BoxFuture<'static, ()>>) {
        let mut tasks = self.tasks;
        for Subscribed { cache, starts } in &self.caches {
            let (watch, starts) = (cache.clone().watch(self.ids.fork()), starts.clone());
            tasks.push(Box::pin(async move {
                drop(select_all(starts.iter().map(|start| Box::pin(start.cancelled()))).await);
                watch.await;
            }));
        }
        (self.caches.into_iter().map(|subscribed| subscribed.cache).collect(), tasks)
    }
}

/// Subscriptions of one kind.
pub struct Subscriber<'s> {
    all: &'s mut Subscriptions,
    waker: Waker,
    begun: CancellationToken,
}

impl Subscriber<'_> {
    /// Calls `changed` with the snapshots before and after each change of `cache`, which is watched from the start.
    pub fn on<T: CacheIndex>(
        &mut self,
        cache: &Arc<Cache<T>>,
        changed: impl Fn(&Waker, &Snapshot<T>, &Snapshot<T>) + Send + Sync + 'static,
    ) {
        self.on_from(cache, started(), changed);
    }

    /// As [`Subscriber::on`], but the watch starts with the first record of this kind.
    pub fn on_with_records<T: CacheIndex>(
        &mut self,
        cache: &Arc<Cache<T>>,
        changed: impl Fn(&Waker, &Snapshot<T>, &Snapshot<T>) + Send + Sync + 'static,
    ) {
        self.on_from(cache, self.begun.clone(), changed);
    }

    /// Runs a task beside the farm. It must not end: the farm stops if it does.
    pub fn run<F>(&mut self, task: impl FnOnce(Waker, IdSource) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = task(self.waker.clone(), self.all.ids.fork());
        self.all.tasks.push(Box::pin(task));
    }

    /// As [`Subscriber::on`], but the watch starts when `start` is cancelled.
    pub fn on_from<T: CacheIndex>(
        &mut self,
        cache: &Arc<Cache<T>>,
        start: CancellationToken,
        changed: impl Fn(&Waker, &Snapshot<T>, &Snapshot<T>) + Send + Sync + 'static,
    ) {
        let waker = self.waker.clone();
        self.all.on(cache, start, move |old, new| changed(&waker, old, new));
    }
}

/// A token that is cancelled already.
pub(super) fn started() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}
