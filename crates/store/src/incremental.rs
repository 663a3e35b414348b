//! What of a large tree has changed. Consul says of every prefix at which index something below it changed last, whether
//! or not a part of a name: so the tree is divided until few entries can have changed. Of these a transaction that only
//! reads tells which have, all of them in one answer, and only they are read.

use std::ops::Range;

use futures_util::future::{try_join, try_join_all};

use super::{
    Answer, Entry, Index, Key, Prefix, Query, Question, Reader, StoreError, TxnLimits, TxnOutcome,
};
use crate::failpoints;

/// A tree of so many entries is read in parts.
const MANY: usize = 64;
/// No more parts than this are asked for, unless a single step of dividing makes more.
const MOST_PARTS: usize = 16;
/// A part of so few entries is not divided.
const FEW: usize = 48;
/// Of a part of more entries than this it is not asked which have changed: to list them is faster. A tree that is no
/// larger is not divided.
const ASKED: usize = 128;
/// Nor of a part whose values are this short in all: Consul takes 64 µs to list a record of 1,500 bytes, 10 µs to list a
/// lock, and 16 µs to compare the index of either.
const LITTLE: usize = 16 * 1024;

/// Where more than this part of the keys came or went, all is read.
const SHARE: usize = 8;

/// What counts as many entries, and what as few: less in simulated worlds, which are small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// A tree of so many entries is read in parts.
    pub many: usize,
    /// A part of so few entries is not divided.
    pub few: usize,
    /// Of more entries than this it is not asked which have changed.
    pub asked: usize,
    /// Nor of entries whose values are this short in all.
    pub little: usize,
    /// Where more than this part of the keys came or went, all is read.
    pub share: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        let usual = Sizes { many: MANY, few: FEW, asked: ASKED, little: LITTLE, share: SHARE };
        failpoints::sizes().unwrap_or(usual)
    }
}

/// A tree as it was last read.
#[derive(Debug)]
pub(super) struct IncrementalReader {
    /// By key.
    entries: Vec<Entry>,
    sizes: Sizes,
}

/// How much was read for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transferred {
    /// Entries with their values.
    pub entries: usize,
    /// Names alone.
    pub names: usize,
}

/// A tree brought up to date.
pub(super) struct IncrementalRead {
    /// All of it.
    pub(super) answer: Answer<Vec<Entry>>,
    /// What was read for it.
    pub(super) transferred: Transferred,
}

/// What was read of a part that may have changed.
enum Found {
    /// All that it holds.
    All(Vec<Entry>),
    /// What has changed.
    Changed(Vec<Entry>),
}

impl IncrementalReader {
    /// Nothing was read yet.
    pub(super) fn new(sizes: Sizes) -> Self {
        IncrementalReader { entries: Vec::new(), sizes }
    }

    /// The tree was read whole. A small one will be again.
    pub(super) fn are_all(&mut self, entries: &[Entry]) {
        self.entries = match entries.len() >= self.sizes.many
            && entries.is_sorted_by_key(|entry| &entry.key)
        {
            true => entries.to_vec(),
            false => Vec::new(),
        };
    }

    /// Reads what has changed since `after`, the index of what is known, given the keys that there are now. `None`: it
    /// is better to read all.
    ///
    /// # Errors
    /// Any [`StoreError`]; what is known stays as it was.
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
        let looks = parts.into_iter().map(|prefix| {
            let fresh = &fresh[range(&fresh, &prefix, |key| key)];
            let known = &self.entries[self.range(&prefix)];
            let part =
                Part { prefix, now, known, fresh, is_certain: is_alone || !fresh.is_empty() };
            look(reader, part, after, self.sizes)
        });
        let looks: Option<Vec<Look>> = try_join_all(looks).await?.into_iter().collect();
        let Some(looks) = looks else { return Ok(None) };
        let newest = looks.iter().map(|look| look.newest).max().unwrap_or(Index::ZERO);
        if gone.is_empty() && newest < keys.index {
            // Somebody answered with the past, or a list was cut.
            return Ok(None);
        }
        let filtered = keys.filtered || looks.iter().any(|look| look.filtered);
        let entries = self.take(looks, gone);
        let transferred = Transferred { entries, names: now.len() };
        let answer = Answer { value: self.entries.clone(), index: keys.index, filtered };
        Ok(Some(IncrementalRead { answer, transferred }))
    }

    /// Puts what was read in its place; how many entries it was. `gone` are the places of what is there no more.
    fn take(&mut self, looks: Vec<Look>, gone: Vec<usize>) -> usize {
        let mut gone = gone.into_iter().peekable();
        let mut at = 0;
        self.entries.retain(|_| {
            at += 1;
            gone.next_if_eq(&(at - 1)).is_none()
        });
        let mut count = 0;
        for Look { prefix, found, .. } in looks {
            match found {
                None => {}
                Some(Found::All(mut entries)) => {
                    count += entries.len();
                    entries.sort_by(|a, b| a.key.cmp(&b.key));
                    let range = self.range(&prefix);
                    self.entries.splice(range, entries);
                }
                Some(Found::Changed(entries)) => {
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

    /// Of sorted keys those that are not known, and the places of those that are known and are not among them.
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

    /// Where a part of it stands.
    fn range(&self, part: &Prefix) -> Range<usize> {
        range(&self.entries, part, |entry| &entry.key)
    }
}

/// Where, in what is sorted by key, a part stands.
fn range<T>(sorted: &[T], part: &Prefix, key: impl Fn(&T) -> &str) -> Range<usize> {
    let first = sorted.partition_point(|one| key(one) < part.as_str());
    let count = sorted[first..].partition_point(|one| part.tail(key(one)).is_some());
    first..first + count
}

/// A part of a tree.
struct Part<'p> {
    prefix: Prefix,
    /// All keys that there are now, in this part and elsewhere.
    now: &'p [String],
    /// What was known of it.
    known: &'p [Entry],
    /// Those of its keys that were not known.
    fresh: &'p [&'p str],
    /// Whether it is certain that it has changed.
    is_certain: bool,
}

/// What a look at one part has shown.
struct Look {
    prefix: Prefix,
    /// The newest index that was seen, which explains a change.
    newest: Index,
    filtered: bool,
    /// `None`: it is as it was.
    found: Option<Found>,
}

/// Looks whether a part has changed: whether its index is not among those at which it is as it was. Reads what has.
/// `None`: something went away meanwhile, or may not be read.
///
/// A server that lags behind would hide a change until all is read anew, so the leader is asked.
async fn look(
    reader: &dyn Reader,
    part: Part<'_>,
    after: Index,
    sizes: Sizes,
) -> Result<Option<Look>, StoreError> {
    let Part { prefix, now, known, fresh, is_certain } = part;
    let (mut seen, mut filtered) = (Index::ZERO, false);
    if !is_certain {
        // Below what is known of it, a part is as a restored snapshot has it.
        let newest = known.iter().map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
        let keys = reader.keys(&prefix, None, Query::CONSISTENT).await?;
        (seen, filtered) = (keys.index, keys.filtered);
        if (newest..=after).contains(&seen) {
            return Ok(Some(Look { prefix, newest: seen, filtered, found: None }));
        }
    }
    let known: Vec<&Entry> =
        known.iter().filter(|entry| now.binary_search(&entry.key).is_ok()).collect();
    let bytes: usize = known.iter().map(|entry| entry.value.len()).sum();
    if known.len() + fresh.len() > sizes.asked || bytes <= sizes.little {
        let answer = reader.list(&prefix, Query::CONSISTENT).await?;
        let (newest, filtered) = (answer.index.max(seen), filtered || answer.filtered);
        let found = Some(Found::All(answer.value));
        return Ok(Some(Look { prefix, newest, filtered, found }));
    }
    let Some(changed) = ask(reader, &known, fresh).await? else { return Ok(None) };
    let newest = changed.iter().map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
    let found = Some(Found::Changed(changed));
    Ok(Some(Look { prefix, newest: newest.max(seen), filtered, found }))
}

/// Reads what is fresh and those of the known that have changed. `None`: a key went away meanwhile, or may not be read.
async fn ask(
    reader: &dyn Reader,
    known: &[&Entry],
    fresh: &[&str],
) -> Result<Option<Vec<Entry>>, StoreError> {
    let fresh = fresh.iter().map(|key| Key::parse(key)).collect::<Result<Vec<_>, _>>();
    let known = known.iter().map(|entry| Some((Key::parse(&entry.key).ok()?, entry.modify_index)));
    let (Ok(fresh), Some(known)) = (fresh, known.collect::<Option<Vec<_>>>()) else {
        return Ok(None);
    };
    let (read, changed) = try_join(get(reader, fresh), other(reader, known)).await?;
    let changed = get(reader, changed).await?;
    let (Some(mut entries), Some(changed)) = (read, changed) else { return Ok(None) };
    entries.extend(changed);
    Ok(Some(entries))
}

/// Those of the keys whose index is not this one any more.
async fn other(reader: &dyn Reader, known: Vec<(Key, Index)>) -> Result<Vec<Key>, StoreError> {
    let asked = known.chunks(TxnLimits::default().ops).map(|known| async move {
        let still =
            |(key, index): &(Key, Index)| Question::IsAt { key: key.clone(), index: *index };
        let questions: Vec<Question> = known.iter().map(still).collect();
        Ok::<_, StoreError>(match reader.ask(&questions).await? {
            TxnOutcome::Committed { .. } => Vec::new(),
            TxnOutcome::Refused(why) => {
                why.iter().filter_map(|refusal| Some(known.get(refusal.op)?.0.clone())).collect()
            }
        })
    });
    Ok(try_join_all(asked).await?.concat())
}

/// What the keys hold; `None` when one of them is not there, or may not be read.
async fn get(reader: &dyn Reader, keys: Vec<Key>) -> Result<Option<Vec<Entry>>, StoreError> {
    let asked = keys.chunks(TxnLimits::default().ops).map(|keys| async move {
        let questions: Vec<Question> =
            keys.iter().map(|key| Question::Get { key: key.clone() }).collect();
        Ok::<_, StoreError>(match reader.ask(&questions).await? {
            TxnOutcome::Committed { entries, .. } => Some(entries),
            TxnOutcome::Refused(_) => None,
        })
    });
    let answers: Option<Vec<_>> = try_join_all(asked).await?.into_iter().collect();
    Ok(answers.map(|answers| answers.concat()).filter(|entries| entries.len() == keys.len()))
}

/// Divides sorted keys by how they begin, so that each belongs to exactly one part. `None` where that cannot be.
fn divide(keys: &[String], sizes: Sizes) -> Option<Vec<Prefix>> {
    if keys.len() < sizes.many || !keys.is_sorted() {
        return None;
    }
    if keys.len() <= sizes.asked {
        let (own, last) = (keys.first()?, keys.last()?);
        return Some(vec![Prefix::beginning(&Key::parse(own).ok()?, common(own, last))]);
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
        // As short as tells it from its neighbours: what is new there belongs to it, too.
        let left = range.start.checked_sub(1).map_or(0, |at| common(&keys[at], own));
        let right = keys.get(range.end).map_or(0, |next| common(own, next));
        let end = left.max(right) + 1;
        // What breaks the grammar might not survive the way through a URL.
        (end <= common(own, last)).then_some(())?;
        Some(Prefix::beginning(&Key::parse(own).ok()?, end))
    };
    parts.iter().map(ends).collect()
}

/// How many bytes two keys begin with in common.
fn common(first: &str, last: &str) -> usize {
    first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count()
}

/// Divides sorted keys by the first character in which they differ; `None` if one is the beginning of the others.
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
    fn records_and_nodes_are_divided_evenly_and_few_are_not() {
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
        let strange = (0..99).map(|n| format!("rc/a b{n}")).collect();
        assert_eq!(check(&strange), 0, "what no URL carries unchanged is read whole");
    }

    proptest! {
        #[test]
        fn every_key_is_in_one_part(
            keys in proptest::collection::btree_set("[ab_]{1,3}(/[ab.]{1,3})?(/c)?", 64..200),
        ) {
            check(&keys);
        }
    }
}
