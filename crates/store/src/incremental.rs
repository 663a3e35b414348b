//! Incremental reads of a large tree.
//!
//! For every prefix, even one that ends within a name, Consul returns the index of the last change below it. So the keys
//! are divided into parts by prefix, and the index of each part shows whether it changed. For the entries of a changed
//! part, one read-only transaction compares their ModifyIndexes. Only changed entries are then read.

use std::ops::Range;

use futures_util::future::{try_join, try_join_all};

use super::{
    Answer, Entry, Index, Key, Prefix, Query, Question, Reader, StoreError, TxnLimits, TxnOutcome,
};
use crate::failpoints;

/// Aimed number of parts. Dividing stops before twice this number.
const MOST_PARTS: usize = 16;

/// Thresholds of incremental reads. Simulated worlds are small and use lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// A tree with fewer entries is always read whole.
    pub many: usize,
    /// A part with at most this many entries is not divided.
    pub few: usize,
    /// A part with more entries is listed instead of compared: the list is faster. A tree with at most this many
    /// entries is not divided.
    pub asked: usize,
    /// A part whose values have at most this many bytes in all is listed instead of compared. Consul takes 64 µs to
    /// list a record of 1,500 bytes, 10 µs to list a lock, and 16 µs to compare the index of either.
    pub little: usize,
    /// If more than one in `share` keys was created or deleted, the tree is read whole.
    pub share: usize,
}

impl Sizes {
    /// Divides any tree of two keys or more, into parts as small as one key.
    pub(super) const SMALLEST: Sizes = Sizes { many: 2, few: 1, asked: 1, little: 0, share: 1 };
}

impl Default for Sizes {
    fn default() -> Self {
        let usual = Sizes { many: 64, few: 48, asked: 128, little: 16 * 1024, share: 8 };
        failpoints::sizes().unwrap_or(usual)
    }
}

/// A tree as last read. Empty if the tree was too small.
#[derive(Debug)]
pub(super) struct IncrementalReader {
    /// Sorted by key.
    entries: Vec<Entry>,
    sizes: Sizes,
}

/// How much was transferred for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transferred {
    /// Number of entries, with their values.
    pub entries: usize,
    /// Number of keys without values.
    pub names: usize,
}

/// A tree brought up to date.
pub(super) struct IncrementalRead {
    /// The whole tree.
    pub(super) answer: Answer<Vec<Entry>>,
    pub(super) transferred: Transferred,
}

enum PartEntries {
    /// All entries of the part.
    All(Vec<Entry>),
    /// New and changed entries.
    Changed(Vec<Entry>),
}

impl IncrementalReader {
    /// A reader that knows no tree yet.
    pub(super) fn new(sizes: Sizes) -> Self {
        IncrementalReader { entries: Vec::new(), sizes }
    }

    /// Takes a tree that was read whole. A small tree is not stored: it is read whole again.
    pub(super) fn replace_all(&mut self, entries: &[Entry]) {
        self.entries = match entries.len() >= self.sizes.many
            && entries.is_sorted_by_key(|entry| &entry.key)
        {
            true => entries.to_vec(),
            false => Vec::new(),
        };
    }

    /// Reads what changed since `after`, the index of the stored tree. `keys` are the current keys. `None`: the tree must
    /// be read whole.
    ///
    /// # Errors
    /// Any [`StoreError`]; the stored tree is then unchanged.
    pub(super) async fn changed(
        &mut self,
        reader: &dyn Reader,
        after: Index,
        keys: Answer<Vec<String>>,
    ) -> Result<Option<IncrementalRead>, StoreError> {
        let now = &keys.value;
        if now.len() < self.sizes.many || !now.is_sorted() {
            return Ok(None);
        }
        let (fresh, gone) = self.difference(now);
        if fresh.len() + gone.len() > now.len() / self.sizes.share {
            return Ok(None);
        }
        let Some(parts) = divide(now, self.sizes) else { return Ok(None) };
        let is_alone = parts.len() == 1;
        let reads = parts.into_iter().map(|prefix| {
            let fresh = &fresh[range(&fresh, &prefix, |key| key)];
            let known = &self.entries[self.range(&prefix)];
            let part =
                Part { prefix, now, known, fresh, is_certain: is_alone || !fresh.is_empty() };
            read_part(reader, part, after, self.sizes)
        });
        let reads: Option<Vec<PartRead>> = try_join_all(reads).await?.into_iter().collect();
        let Some(reads) = reads else { return Ok(None) };
        let newest = reads.iter().map(|read| read.newest).max().unwrap_or(Index::ZERO);
        if gone.is_empty() && newest < keys.index {
            // No part explains the tree's index: an answer was stale, or the token may not read everything.
            return Ok(None);
        }
        let filtered = keys.filtered || reads.iter().any(|read| read.filtered);
        let entries = self.apply(reads, gone);
        let transferred = Transferred { entries, names: now.len() };
        let answer = Answer { value: self.entries.clone(), index: keys.index, filtered };
        Ok(Some(IncrementalRead { answer, transferred }))
    }

    /// Removes the entries at the positions `gone` and applies the reads. Returns the number of entries read.
    fn apply(&mut self, reads: Vec<PartRead>, gone: Vec<usize>) -> usize {
        let mut gone = gone.into_iter().peekable();
        let mut at = 0;
        self.entries.retain(|_| {
            at += 1;
            gone.next_if_eq(&(at - 1)).is_none()
        });
        let mut count = 0;
        for PartRead { prefix, found, .. } in reads {
            match found {
                None => {}
                Some(PartEntries::All(mut entries)) => {
                    count += entries.len();
                    entries.sort_by(|a, b| a.key.cmp(&b.key));
                    let range = self.range(&prefix);
                    self.entries.splice(range, entries);
                }
                Some(PartEntries::Changed(entries)) => {
                    count += entries.len();
                    entries.into_iter().for_each(|entry| self.replace(entry));
                }
            }
        }
        count
    }

    fn replace(&mut self, entry: Entry) {
        match self.entries.binary_search_by(|old| old.key.cmp(&entry.key)) {
            Ok(at) => self.entries[at] = entry,
            Err(at) => self.entries.insert(at, entry),
        }
    }

    /// Compares sorted keys with the stored tree: new keys, and positions of stored entries whose key is gone.
    fn difference<'k>(&self, now: &'k [String]) -> (Vec<&'k str>, Vec<usize>) {
        let (mut fresh, mut gone) = (Vec::new(), Vec::new());
        let mut known = self.entries.iter().map(|entry| &entry.key).enumerate().peekable();
        for key in now {
            while let Some((at, _)) = known.next_if(|(_, old)| *old < key) {
                gone.push(at);
            }
            if known.next_if(|(_, old)| *old == key).is_none() {
                fresh.push(key.as_str());
            }
        }
        gone.extend(known.map(|(at, _)| at));
        (fresh, gone)
    }

    /// Positions of a part in the stored tree.
    fn range(&self, part: &Prefix) -> Range<usize> {
        range(&self.entries, part, |entry| &entry.key)
    }
}

/// Positions of a part in a slice that is sorted by key.
fn range<T>(sorted: &[T], part: &Prefix, key: impl Fn(&T) -> &str) -> Range<usize> {
    let first = sorted.partition_point(|one| key(one) < part.as_str());
    let count = sorted[first..].partition_point(|one| part.tail(key(one)).is_some());
    first..first + count
}

struct Part<'p> {
    prefix: Prefix,
    /// All current keys of the tree.
    now: &'p [String],
    /// Stored entries of the part.
    known: &'p [Entry],
    /// New keys of the part.
    fresh: &'p [&'p str],
    /// Whether the part certainly changed, so that its index need not be read.
    is_certain: bool,
}

/// Result of the read of one part.
struct PartRead {
    prefix: Prefix,
    /// The newest index of the answers.
    newest: Index,
    filtered: bool,
    /// `None`: the part has not changed.
    found: Option<PartEntries>,
}

/// Reads what changed in a part, if its index shows a change. `None`: a key was deleted meanwhile, or may not be read.
///
/// Reads are consistent: a stale answer would hide a change until the next full read.
async fn read_part(
    reader: &dyn Reader,
    part: Part<'_>,
    after: Index,
    sizes: Sizes,
) -> Result<Option<PartRead>, StoreError> {
    let Part { prefix, now, known, fresh, is_certain } = part;
    let (mut seen, mut filtered) = (Index::ZERO, false);
    if !is_certain {
        // An index below that of a stored entry means that a snapshot was restored.
        let newest = known.iter().map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
        let keys = reader.keys(&prefix, None, Query::CONSISTENT).await?;
        (seen, filtered) = (keys.index, keys.filtered);
        if (newest..=after).contains(&seen) {
            return Ok(Some(PartRead { prefix, newest: seen, filtered, found: None }));
        }
    }
    let known: Vec<&Entry> =
        known.iter().filter(|entry| now.binary_search(&entry.key).is_ok()).collect();
    let bytes: usize = known.iter().map(|entry| entry.value.len()).sum();
    // A key outside the grammar cannot be asked for.
    let is_named = |key: &str| Key::parse(key).is_ok();
    let are_named = fresh.iter().all(|key| is_named(key)) && known.iter().all(|e| is_named(&e.key));
    if known.len() + fresh.len() > sizes.asked || bytes <= sizes.little || !are_named {
        let answer = reader.list(&prefix, Query::CONSISTENT).await?;
        let (newest, filtered) = (answer.index.max(seen), filtered || answer.filtered);
        let found = Some(PartEntries::All(answer.value));
        return Ok(Some(PartRead { prefix, newest, filtered, found }));
    }
    let Some(changed) = read_changed(reader, &known, fresh).await? else { return Ok(None) };
    let newest = changed.iter().map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
    let found = Some(PartEntries::Changed(changed));
    Ok(Some(PartRead { prefix, newest: newest.max(seen), filtered, found }))
}

/// Reads the new entries and the changed ones. `None`: a key was deleted meanwhile, or may not be read.
async fn read_changed(
    reader: &dyn Reader,
    known: &[&Entry],
    fresh: &[&str],
) -> Result<Option<Vec<Entry>>, StoreError> {
    let fresh = fresh.iter().map(|key| Key::parse(key)).collect::<Result<Vec<_>, _>>();
    let known = known.iter().map(|entry| Some((Key::parse(&entry.key).ok()?, entry.modify_index)));
    let (Ok(fresh), Some(known)) = (fresh, known.collect::<Option<Vec<_>>>()) else {
        return Ok(None);
    };
    let (read, changed) = try_join(get(reader, fresh), changed_keys(reader, known)).await?;
    let changed = get(reader, changed).await?;
    let (Some(mut entries), Some(changed)) = (read, changed) else { return Ok(None) };
    entries.extend(changed);
    Ok(Some(entries))
}

/// The keys whose ModifyIndex differs from the given one.
async fn changed_keys(
    reader: &dyn Reader,
    known: Vec<(Key, Index)>,
) -> Result<Vec<Key>, StoreError> {
    let answers = known.chunks(TxnLimits::default().ops).map(|known| async move {
        let is_at =
            |(key, index): &(Key, Index)| Question::IsAt { key: key.clone(), index: *index };
        let questions: Vec<Question> = known.iter().map(is_at).collect();
        Ok::<_, StoreError>(match reader.ask(&questions).await? {
            TxnOutcome::Committed { .. } => Vec::new(),
            TxnOutcome::Refused(why) => {
                why.iter().filter_map(|refusal| Some(known.get(refusal.op)?.0.clone())).collect()
            }
        })
    });
    Ok(try_join_all(answers).await?.concat())
}

/// The entries of the keys. `None`: one of them does not exist, or may not be read.
async fn get(reader: &dyn Reader, keys: Vec<Key>) -> Result<Option<Vec<Entry>>, StoreError> {
    let answers = keys.chunks(TxnLimits::default().ops).map(|keys| async move {
        let questions: Vec<Question> =
            keys.iter().map(|key| Question::Get { key: key.clone() }).collect();
        Ok::<_, StoreError>(match reader.ask(&questions).await? {
            TxnOutcome::Committed { entries, .. } => Some(entries),
            TxnOutcome::Refused(_) => None,
        })
    });
    let answers: Option<Vec<_>> = try_join_all(answers).await?.into_iter().collect();
    Ok(answers.map(|answers| answers.concat()).filter(|entries| entries.len() == keys.len()))
}

/// Divides sorted keys into prefixes, so that each key belongs to exactly one. `None` if that is impossible.
pub(super) fn divide(keys: &[String], sizes: Sizes) -> Option<Vec<Prefix>> {
    if keys.len() < sizes.many || !keys.is_sorted() {
        return None;
    }
    if keys.len() <= sizes.asked {
        let (own, last) = (keys.first()?, keys.last()?);
        return Some(vec![Prefix::beginning(own, common(own, last))?]);
    }
    let enough = sizes.few.max(keys.len() / (MOST_PARTS / 2));
    let mut open: Vec<Range<usize>> = std::iter::once(0..keys.len()).collect();
    let mut parts = Vec::new();
    while let Some(range) = open.pop() {
        match split(&keys[range.clone()]).filter(|_| range.len() > enough) {
            Some(pieces) if parts.len() + open.len() + pieces.len() <= 2 * MOST_PARTS => {
                let of_all =
                    |piece: Range<usize>| range.start + piece.start..range.start + piece.end;
                open.extend(pieces.into_iter().map(of_all));
            }
            _ => parts.push(range),
        }
    }
    parts.sort_by_key(|range| range.start);
    if parts.len() < 2 {
        return None;
    }
    let ends = |range: &Range<usize>| {
        let (own, last) = (&keys[range.start], &keys[range.end - 1]);
        // The shortest prefix that its neighbours do not share: new keys beside it then belong to it too.
        let left = range.start.checked_sub(1).map_or(0, |at| common(&keys[at], own));
        let right = keys.get(range.end).map_or(0, |next| common(own, next));
        let end = left.max(right) + 1;
        // A prefix ends between two characters.
        let end = (end..=own.len()).find(|end| own.is_char_boundary(*end))?;
        (end <= common(own, last)).then_some(())?;
        Prefix::beginning(own, end)
    };
    parts.iter().map(ends).collect()
}

/// Length of the common prefix of two keys, in bytes.
fn common(first: &str, last: &str) -> usize {
    first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count()
}

/// Divides sorted keys by the first byte in which they differ. `None` if one is a prefix of the others.
fn split(keys: &[String]) -> Option<Vec<Range<usize>>> {
    let at = common(keys.first()?, keys.last()?);
    let byte = |n: usize| keys[n].as_bytes().get(at).copied();
    byte(0)?;
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    while start < keys.len() {
        let same = byte(start);
        let count = keys[start..].partition_point(|key| key.as_bytes().get(at).copied() <= same);
        pieces.push(start..start + count);
        start += count;
    }
    (pieces.len() > 1).then_some(pieces)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(keys: &BTreeSet<String>) -> usize {
        let keys: Vec<String> = keys.iter().cloned().collect();
        let Some(parts) = divide(&keys, Sizes::default()) else { return 0 };
        for key in &keys {
            let of = parts.iter().filter(|part| part.tail(key).is_some()).count();
            assert_eq!(of, 1, "{key} in {parts:?}");
        }
        parts.len()
    }

    #[test]
    fn divide_splits_large_trees_evenly_and_leaves_small_ones_whole() {
        let uuid = |n: u128| {
            let scattered = n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            format!("rc/{}", uuid::Uuid::from_u128(scattered).as_hyphenated())
        };
        assert_eq!(check(&(0..63).map(uuid).collect()), 0);
        assert_eq!(check(&(0..1_000).map(uuid).collect()), 16);
        let nodes = check(&(0..2_000).map(|n| format!("nodes/node-{n:05}")).collect());
        assert!((8..=32).contains(&nodes), "{nodes}");
        let with_locks = (0..200).map(uuid).flat_map(|key| [format!("{key}/update"), key]);
        assert!(check(&with_locks.collect()) > 4);
        // One key outside the grammar does not keep the tree from being divided.
        for odd in ["rc/ x", "rc/ü/y", "rc/a b", "rc/99?%"] {
            assert!(check(&(0..999).map(uuid).chain([odd.to_owned()]).collect()) > 4, "{odd}");
        }
        let unnamed = (0..999).map(|n| format!("rc//{n}")).collect();
        assert_eq!(check(&unnamed), 0, "keys that a URL does not carry unchanged are not divided");
    }

    proptest! {
        #[test]
        fn divide_puts_each_key_into_one_part(
            keys in proptest::collection::btree_set("[ab_]{1,3}(/[ab.]{1,3})?(/c)?", 64..200),
        ) {
            check(&keys);
        }
    }
}
