//! The key-value table: entries, tombstones and locks (`consul-semantics.md` §1.4, §4.1).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use rcfarm_api::ids::SessionId;
use rcfarm_store::{Behavior, Entry, Index};

/// One key before and after a write. The two differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvChange {
    /// The whole key.
    pub key: String,
    /// The entry before; `None`: it was created.
    pub before: Option<Arc<Entry>>,
    /// The entry after; `None`: it was deleted.
    pub after: Option<Arc<Entry>>,
}

/// Entries by key, and tombstones of deleted keys for the index rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kv {
    entries: BTreeMap<String, Arc<Entry>>,
    graves: BTreeMap<String, Index>,
    held: BTreeSet<(SessionId, String)>,
    newest: Index,
}

impl Kv {
    /// The entry of a key.
    pub fn get(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// Entries whose key begins with `prefix`, in key order. `n1` matches `n10` too.
    pub fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        below(&self.entries, prefix).map(|(_, entry)| entry)
    }

    /// Keys that begin with `prefix`. With a separator, each is cut after its first occurrence past the prefix.
    pub fn keys(&self, prefix: &str, separator: Option<&str>) -> Vec<String> {
        let whole = below(&self.entries, prefix).map(|(key, _)| key.as_str());
        let Some(separator) = separator.filter(|s| !s.is_empty()) else {
            return whole.map(str::to_owned).collect();
        };
        let mut folded: Vec<String> = Vec::new();
        for key in whole {
            let shown = match key[prefix.len()..].find(separator) {
                Some(at) => &key[..prefix.len() + at + separator.len()],
                None => key,
            };
            if folded.last().is_none_or(|last| last != shown) {
                folded.push(shown.to_owned());
            }
        }
        folded
    }

    /// The keys that a session holds, in key order.
    pub fn held_by<'a>(&'a self, session: &'a SessionId) -> impl Iterator<Item = &'a str> {
        self.held
            .range((Bound::Included((session.clone(), String::new())), Bound::Unbounded))
            .take_while(move |(holder, _)| holder == session)
            .map(|(_, key)| key.as_str())
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The index of a read of one key: its ModifyIndex, or the table's index if it does not exist.
    pub fn key_index(&self, key: &str) -> Index {
        self.get(key).map_or(self.newest, |entry| entry.modify_index)
    }

    /// The index of a read of a prefix: the newest of its entries and tombstones. Without any, and for the empty prefix,
    /// the table's index.
    pub fn prefix_index(&self, prefix: &str) -> Index {
        if prefix.is_empty() {
            return self.newest;
        }
        let live = self.list(prefix).map(|entry| entry.modify_index);
        let dead = below(&self.graves, prefix).map(|(_, index)| *index);
        live.chain(dead).max().unwrap_or(self.newest)
    }

    /// Begins a write with this index.
    pub(super) fn draft(&mut self, index: Index) -> Draft<'_> {
        Draft { kv: self, index, changes: Vec::new(), graves: Vec::new() }
    }

    /// Removes tombstones up to and including `index`. The indexes of their prefixes then decrease.
    pub(super) fn reap(&mut self, index: Index) {
        self.graves.retain(|_, at| *at > index);
    }

    pub(super) fn has_tombstones(&self) -> bool {
        !self.graves.is_empty()
    }

    /// The entries and tombstones below a prefix, for a stale read.
    pub(super) fn part(&self, prefix: &str) -> Kv {
        let entries = below(&self.entries, prefix).map(|(k, e)| (k.clone(), e.clone())).collect();
        let graves = below(&self.graves, prefix).map(|(k, index)| (k.clone(), *index)).collect();
        Kv { entries, graves, held: BTreeSet::new(), newest: self.newest }
    }

    /// Undoes a committed write below a prefix. Writes must be undone newest first.
    pub(super) fn unwind(&mut self, index: Index, changes: &[KvChange], prefix: &str) {
        for change in changes.iter().rev().filter(|change| change.key.starts_with(prefix)) {
            self.swap(&change.key, change.before.clone());
        }
        self.graves.retain(|_, at| *at < index);
        self.newest = self.newest.min(Index(index.0 - 1));
    }

    fn swap(&mut self, key: &str, entry: Option<Arc<Entry>>) -> Option<Arc<Entry>> {
        let now_held = entry.as_ref().and_then(|e| e.session.clone());
        let before = match entry {
            Some(entry) => self.entries.insert(key.to_owned(), entry),
            None => self.entries.remove(key),
        };
        let was_held = before.as_ref().and_then(|e| e.session.clone());
        if was_held != now_held {
            if let Some(session) = was_held {
                self.held.remove(&(session, key.to_owned()));
            }
            if let Some(session) = now_held {
                self.held.insert((session, key.to_owned()));
            }
        }
        before
    }
}

fn below<'a, V>(
    map: &'a BTreeMap<String, V>,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a String, &'a V)> {
    map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.starts_with(prefix))
}

/// A write in progress. Its later operations see the earlier ones. [`Draft::commit`] keeps it, [`Draft::revert`] undoes
/// it.
pub(super) struct Draft<'a> {
    kv: &'a mut Kv,
    index: Index,
    changes: Vec<KvChange>,
    graves: Vec<String>,
}

impl Draft<'_> {
    /// The state after the operations so far.
    pub(super) fn kv(&self) -> &Kv {
        self.kv
    }

    /// Writes unconditionally: keeps the lock's holder, sets LockIndex to 0.
    pub(super) fn set(&mut self, key: &str, value: Bytes, flags: u64) -> Arc<Entry> {
        let session = self.kv.get(key).and_then(|e| e.session.clone());
        self.store(key, value, flags, session, 0)
    }

    /// Writes if the key's ModifyIndex is `expected`; 0: if it does not exist.
    pub(super) fn cas(
        &mut self,
        key: &str,
        value: Bytes,
        flags: u64,
        expected: Index,
    ) -> Option<Arc<Entry>> {
        let current = self.kv.get(key).map_or(Index::ZERO, |e| e.modify_index);
        (current == expected).then(|| self.set(key, value, flags))
    }

    /// Acquires the lock, unless another session holds it. The caller has checked that the session exists.
    pub(super) fn lock(
        &mut self,
        key: &str,
        value: Bytes,
        flags: u64,
        session: &SessionId,
    ) -> Option<Arc<Entry>> {
        let lock_index = match self.kv.get(key) {
            None => 1,
            Some(entry) => match &entry.session {
                None => entry.lock_index + 1,
                Some(holder) if holder == session => entry.lock_index,
                Some(_) => return None,
            },
        };
        Some(self.store(key, value, flags, Some(session.clone()), lock_index))
    }

    /// Releases the lock, if `session` holds it.
    pub(super) fn unlock(
        &mut self,
        key: &str,
        value: Bytes,
        flags: u64,
        session: &str,
    ) -> Option<Arc<Entry>> {
        let entry = self.kv.get(key)?;
        if entry.session.as_ref().map(SessionId::as_str) != Some(session) {
            return None;
        }
        let lock_index = entry.lock_index;
        Some(self.store(key, value, flags, None, lock_index))
    }

    /// Deletes a key. An absent key is no error.
    pub(super) fn delete(&mut self, key: &str) {
        if self.kv.get(key).is_some() {
            self.record(key, None);
            self.graves.push(key.to_owned());
        }
    }

    /// Deletes if the key's ModifyIndex is `expected`. `false`: it is another. An absent key counts as deleted.
    pub(super) fn delete_cas(&mut self, key: &str, expected: Index) -> bool {
        match self.kv.get(key) {
            Some(entry) if entry.modify_index != expected => false,
            _ => {
                self.delete(key);
                true
            }
        }
    }

    /// Deletes everything under a prefix. If there was anything, leaves one tombstone, named by the prefix.
    pub(super) fn delete_tree(&mut self, prefix: &str) {
        let doomed: Vec<String> = below(&self.kv.entries, prefix).map(|(k, _)| k.clone()).collect();
        for key in &doomed {
            self.record(key, None);
        }
        if !doomed.is_empty() && !prefix.is_empty() {
            self.graves.push(prefix.to_owned());
        }
    }

    /// Releases or deletes the keys of an ended session, as its behavior says. Returns those keys.
    pub(super) fn free(&mut self, session: &SessionId, behavior: Behavior) -> Vec<String> {
        let keys: Vec<String> = self.kv.held_by(session).map(str::to_owned).collect();
        for key in &keys {
            match (behavior, self.kv.get(key).cloned()) {
                (Behavior::Delete, _) => self.delete(key),
                (Behavior::Release, Some(entry)) => {
                    let (value, flags) = (entry.value.clone(), entry.flags);
                    self.store(key, value, flags, None, entry.lock_index);
                }
                (Behavior::Release, None) => {}
            }
        }
        keys
    }

    /// Keeps the write.
    pub(super) fn commit(self) -> Vec<KvChange> {
        if !self.changes.is_empty() {
            self.kv.newest = self.index;
        }
        for key in self.graves {
            self.kv.graves.insert(key, self.index);
        }
        self.changes
    }

    /// Undoes the write.
    pub(super) fn revert(self) {
        for change in self.changes.into_iter().rev() {
            self.kv.swap(&change.key, change.before);
        }
    }

    /// Stores an entry. If nothing changes, ModifyIndex stays and no watch wakes.
    fn store(
        &mut self,
        key: &str,
        value: Bytes,
        flags: u64,
        session: Option<SessionId>,
        lock_index: u64,
    ) -> Arc<Entry> {
        let create_index = match self.kv.get(key) {
            Some(old)
                if old.value == value
                    && old.flags == flags
                    && old.session == session
                    && old.lock_index == lock_index =>
            {
                return old.clone();
            }
            Some(old) => old.create_index,
            None => self.index,
        };
        let entry = Arc::new(Entry {
            key: key.to_owned(),
            value,
            flags,
            session,
            lock_index,
            create_index,
            modify_index: self.index,
        });
        self.record(key, Some(entry.clone()));
        entry
    }

    fn record(&mut self, key: &str, after: Option<Arc<Entry>>) {
        let before = self.kv.swap(key, after.clone());
        self.changes.push(KvChange { key: key.to_owned(), before, after });
    }
}
