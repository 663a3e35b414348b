//! Keys that were written and that no snapshot of a cache has shown yet.
//!
//! Somebody else may delete such a key before the cache is read. The snapshots before and after are then equal, so
//! that no comparison of them finds the deletion.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Snapshot;
use crate::time::monotonic;
use crate::{Index, Key};

/// Keys, each until a snapshot shows its write.
#[derive(Debug, Default)]
pub(super) struct UnseenWrites(Mutex<BTreeMap<Key, UnseenWrite>>);

/// A write that was committed at `index` and answered at `at`. `writer` is woken if its key is gone.
#[derive(Debug)]
struct UnseenWrite {
    index: Index,
    at: Instant,
    writer: Arc<Notify>,
}

impl UnseenWrites {
    /// Notes a write, unless the snapshot that `latest` returns shows it. Returns whether it does.
    pub(super) fn add<T>(
        &self,
        key: Key,
        index: Index,
        writer: &Arc<Notify>,
        latest: impl FnOnce() -> Arc<Snapshot<T>>,
    ) -> bool {
        let at = monotonic();
        // The snapshot is read under the lock: `check` is called after this with every later one.
        let mut unseen = self.lock();
        let is_shown = latest().shows(index, Some(at));
        if is_shown {
            unseen.remove(&key);
        } else {
            unseen.insert(key, UnseenWrite { index, at, writer: writer.clone() });
        }
        is_shown
    }

    /// Forgets a key that its writer has deleted.
    pub(super) fn remove(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Forgets the writes that `seen` shows, and wakes the writers of keys that it does not have. Call it when `seen` is
    /// the snapshot that they read. Returns how long ago each forgotten transaction was noted.
    pub(super) fn check<T>(
        &self,
        seen: &Snapshot<T>,
        has: impl Fn(&Key) -> bool,
    ) -> BTreeMap<Index, Duration> {
        let (now, mut shown) = (monotonic(), BTreeMap::new());
        let is_unseen = |write: &UnseenWrite| !seen.shows(write.index, Some(write.at));
        self.lock().retain(|key, write| {
            let stays = is_unseen(write);
            if !stays && !has(key) {
                write.writer.notify_one();
            }
            if !stays {
                shown.insert(write.index, now - write.at);
            }
            stays
        });
        shown
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, UnseenWrite>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
