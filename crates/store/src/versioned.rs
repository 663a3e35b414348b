//! Decoded records with their versions, and an index for prefixes that hold one kind of record.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::cache::CacheIndex;
use crate::{Entry, Index, Key, Prefix};

/// A decoded value and the version of the key that it was read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Versioned<T> {
    /// ModifyIndex.
    pub index: Index,
    pub created: Index,
    pub value: T,
}

impl<T> Versioned<T> {
    /// `value`, decoded from `entry`.
    #[must_use]
    pub fn of(entry: &Entry, value: T) -> Self {
        Versioned { index: entry.modify_index, created: entry.create_index, value }
    }

    /// The same version with another value.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Versioned<U> {
        Versioned { index: self.index, created: self.created, value: f(self.value) }
    }
}

/// How the keys and values below one prefix are decoded.
pub trait Decoder: Send + Sync + 'static {
    /// Decoded part of a key below the prefix.
    type Key: Ord + Clone + fmt::Debug + Send + Sync + 'static;
    /// Decoded value. A type whose users must know about invalid values is an `Option` or a `Result`.
    type Value: PartialEq + fmt::Debug + Send + Sync + 'static;

    /// Decodes a key; `None`: it is left out of the index.
    fn key(prefix: &Prefix, key: &str) -> Option<Self::Key>;

    /// Decodes an entry; `None`: it is left out of the index.
    fn decode(key: &Self::Key, entry: &Entry) -> Option<Self::Value>;
}

/// All records below one prefix, by key. Entries that have not changed since the last read are not decoded again.
pub struct VersionedIndex<D: Decoder>(pub BTreeMap<D::Key, Arc<Versioned<D::Value>>>);

/// Keys that two maps do not both have with the same value, in their order. One walk over both.
pub fn differing<'a, K: Ord, V>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
    is_same: impl Fn(&V, &V) -> bool,
) -> Vec<&'a K> {
    let mut differing = Vec::new();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some((old, _)), Some((new, _))) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return differing,
        };
        let before = (order != Ordering::Greater).then(|| old.next()).flatten();
        let after = (order != Ordering::Less).then(|| new.next()).flatten();
        match (before, after) {
            (Some((_, before)), Some((_, after))) if is_same(before, after) => {}
            (one, other) => differing.extend(one.or(other).map(|(key, _)| key)),
        }
    }
}

impl<D: Decoder> VersionedIndex<D> {
    /// The record at `key`.
    pub fn get(&self, key: &D::Key) -> Option<&Versioned<D::Value>> {
        self.0.get(key).map(|record| &**record)
    }

    /// The value at `key`, whatever its version.
    pub fn value(&self, key: &D::Key) -> Option<&D::Value> {
        self.get(key).map(|record| &record.value)
    }

    /// Keys whose version differs between the two.
    pub fn touched<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a D::Key> {
        differing(&old.0, &new.0, |old, new| old.index == new.index).into_iter()
    }

    /// Keys whose value differs between the two.
    pub fn changed<'a>(old: &'a Self, new: &'a Self) -> impl Iterator<Item = &'a D::Key> {
        Self::touched(old, new).filter(|key| old.value(key) != new.value(key))
    }

    /// [`VersionedIndex::touched`] as a set.
    #[must_use]
    pub fn touched_keys(old: &Self, new: &Self) -> BTreeSet<D::Key> {
        Self::touched(old, new).cloned().collect()
    }

    /// Whether a key of `old` is gone in `new`.
    #[must_use]
    pub fn has_lost_keys(old: &Self, new: &Self) -> bool {
        Self::touched(old, new).any(|key| !new.0.contains_key(key))
    }
}

impl<D: Decoder> CacheIndex for VersionedIndex<D> {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        // Consul sorts almost as the map does, so the same key is mostly the next one.
        let mut next = old.0.iter().peekable();
        let record = |entry: Entry| {
            let key = D::key(prefix, &entry.key)?;
            while next.next_if(|(old, _)| **old < key).is_some() {}
            let known = next.peek().copied().filter(|(old, _)| **old == key);
            let known = known.or_else(|| old.0.get_key_value(&key));
            match known.filter(|(_, old)| old.index == entry.modify_index) {
                Some((key, same)) => Some((key.clone(), same.clone())),
                None => {
                    let value = D::decode(&key, &entry)?;
                    Some((key, Arc::new(Versioned::of(&entry, value))))
                }
            }
        };
        VersionedIndex(entries.into_iter().filter_map(record).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn has_key(&self, prefix: &Prefix, key: &Key) -> bool {
        D::key(prefix, key.as_str()).is_some_and(|key| self.0.contains_key(&key))
    }
}

impl<D: Decoder> Default for VersionedIndex<D> {
    fn default() -> Self {
        VersionedIndex(BTreeMap::new())
    }
}

impl<D: Decoder> Clone for VersionedIndex<D> {
    fn clone(&self) -> Self {
        VersionedIndex(self.0.clone())
    }
}

impl<D: Decoder> PartialEq for VersionedIndex<D> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<D: Decoder> fmt::Debug for VersionedIndex<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static DECODED: AtomicUsize = AtomicUsize::new(0);

    struct Numbers;

    impl Decoder for Numbers {
        type Key = String;
        type Value = Option<u32>;

        fn key(prefix: &Prefix, key: &str) -> Option<String> {
            prefix.tail(key).filter(|name| !name.contains('/')).map(str::to_owned)
        }

        fn decode(key: &String, entry: &Entry) -> Option<Option<u32>> {
            DECODED.fetch_add(1, Ordering::SeqCst);
            (key != "skip").then(|| std::str::from_utf8(&entry.value).ok()?.parse().ok())
        }
    }

    fn entry(key: &str, value: &'static str, index: u64) -> Entry {
        Entry {
            key: format!("n/{key}"),
            value: bytes::Bytes::from_static(value.as_bytes()),
            flags: 0,
            session: None,
            lock_index: 0,
            create_index: Index(1),
            modify_index: Index(index),
        }
    }

    #[test]
    fn unchanged_records_are_not_decoded_again() {
        let prefix = Prefix::parse("n/").unwrap();
        let build = |old: &VersionedIndex<Numbers>, entries| {
            VersionedIndex::<Numbers>::build(old, &prefix, entries)
        };
        let first = build(
            &VersionedIndex::default(),
            vec![
                entry("a", "1", 2),
                entry("b", "x", 3),
                entry("c/d", "1", 4),
                entry("skip", "", 5),
            ],
        );
        assert_eq!(first.0.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(first.get(&"a".to_owned()).unwrap().value, Some(1));
        assert_eq!(first.get(&"b".to_owned()).unwrap().value, None, "kept, though malformed");
        assert_eq!(DECODED.swap(0, Ordering::SeqCst), 3);
        let second = build(&first, vec![entry("a", "1", 2), entry("e", "2", 6)]);
        assert_eq!(DECODED.load(Ordering::SeqCst), 1);
        assert!(Arc::ptr_eq(&first.0["a"], &second.0["a"]));
        let touched = VersionedIndex::touched_keys(&first, &second);
        assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["b", "e"]);
        assert!(VersionedIndex::has_lost_keys(&first, &second));
        assert!(!VersionedIndex::has_lost_keys(&second, &second));
    }
}
