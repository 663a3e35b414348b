//! What of a large tree has changed. Consul says of every prefix at which index something below it changed last, whether
//! or not a part of a name: so the tree is divided until few entries can have changed. Of these a transaction that only
//! reads tells which have, all of them in one answer, and only they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Included, Unbounded};
use std::ops::{Range, RangeInclusive};

use futures_util::future::{try_join, try_join_all};

use super::{
    Answer, Entry, Index, Key, Limits, Prefix, Query, Question, Reader, StoreError, TxnOutcome,
};

/// A tree of so many entries is read in parts.
pub const MANY: usize = 64;
/// No more parts than this are asked for, unless a single step of dividing makes more.
const MOST_PARTS: usize = 16;
/// A part of so few entries is not divided.
const FEW: usize = 48;
/// Of more entries than this it is not asked which have changed: to list them is faster. A tree that is no larger is
/// not divided.
const ASKED: usize = 128;
/// Nor of entries whose values are this short in all: Consul takes 64 µs to list a record of 1,500 bytes, 10 µs to list a
/// lock, and 16 µs to compare the index of either.
const LITTLE: usize = 16 * 1024;

/// A tree as it was last read.
#[derive(Debug, Default)]
pub(super) struct Parts {
    entries: BTreeMap<String, Entry>,
}

/// A tree brought up to date.
pub(super) struct Changed {
    /// All of it.
    pub(super) answer: Answer<Vec<Entry>>,
    /// How many entries of it were read.
    pub(super) transferred: usize,
}

/// What was read of the parts that had changed.
struct Read {
    entries: Vec<Entry>,
    /// The newest index that explains a change.
    newest: Index,
    filtered: bool,
}

impl Parts {
    /// The tree was read whole. A small one will be again.
    pub(super) fn are_all(&mut self, entries: &[Entry]) {
        self.entries.clear();
        if entries.len() >= MANY {
            self.entries.extend(entries.iter().map(|entry| (entry.key.clone(), entry.clone())));
        }
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
    ) -> Result<Option<Changed>, StoreError> {
        let now: BTreeSet<&str> = keys.value.iter().map(String::as_str).collect();
        let fresh = now.iter().filter(|key| !self.entries.contains_key(**key));
        let fresh: Vec<&str> = fresh.copied().collect();
        let gone = self.entries.keys().filter(|key| !now.contains(key.as_str())).count();
        let Some(parts) = divide(&keys.value).filter(|_| fresh.len() + gone <= now.len() / 8)
        else {
            return Ok(None);
        };
        let is_alone = parts.len() == 1;
        let looks = parts.into_iter().map(|part| {
            let is_certain = is_alone || fresh.iter().any(|key| part.tail(key).is_some());
            // Below what is known of it, a part is as a restored snapshot has it.
            let newest = self.below(&part).map(|entry| entry.modify_index).max();
            look(reader, part, newest.unwrap_or(Index::ZERO)..=after, is_certain)
        });
        let looks = try_join_all(looks).await?;
        let newest = looks.iter().map(|look| look.index).max().unwrap_or(Index::ZERO);
        let filtered = keys.filtered || looks.iter().any(|look| look.filtered);
        let dirty: Vec<Prefix> =
            looks.into_iter().filter(|look| look.is_dirty).map(|look| look.part).collect();
        let known: Vec<&Entry> = dirty
            .iter()
            .flat_map(|part| self.below(part))
            .filter(|entry| now.contains(entry.key.as_str()))
            .collect();
        let bytes: usize = known.iter().map(|entry| entry.value.len()).sum();
        let is_asked = known.len() + fresh.len() <= ASKED && bytes > LITTLE;
        let read = match is_asked {
            true => ask(reader, &known, &fresh).await?,
            false => Some(list(reader, &dirty).await?),
        };
        let Some(read) = read else { return Ok(None) };
        if gone == 0 && newest.max(read.newest) < keys.index {
            // Somebody answered with the past, or a list was cut.
            return Ok(None);
        }
        let transferred = now.len() / 8 + read.entries.len();
        if !is_asked {
            let stale = dirty.iter().flat_map(|part| self.below(part));
            let stale: Vec<String> = stale.map(|entry| entry.key.clone()).collect();
            stale.iter().for_each(|key| drop(self.entries.remove(key)));
        }
        self.entries.retain(|key, _| now.contains(key.as_str()));
        self.entries.extend(read.entries.into_iter().map(|entry| (entry.key.clone(), entry)));
        let value = self.entries.values().cloned().collect();
        let answer = Answer { value, index: keys.index, filtered: filtered || read.filtered };
        Ok(Some(Changed { answer, transferred }))
    }

    /// The known entries of a part.
    fn below(&self, part: &Prefix) -> impl Iterator<Item = &Entry> {
        let from = self.entries.range::<str, _>((Included(part.as_str()), Unbounded));
        let below = from.take_while(move |(key, _)| key.starts_with(part.as_str()));
        below.map(|(_, entry)| entry)
    }
}

/// What a look at one part has shown.
struct Look {
    part: Prefix,
    /// Zero where it was not asked for.
    index: Index,
    filtered: bool,
    is_dirty: bool,
}

/// Looks whether a part has changed: whether its index is not among those at which it is as it was.
///
/// A server that lags behind would hide a change until all is read anew, so the leader is asked.
async fn look(
    reader: &dyn Reader,
    part: Prefix,
    as_it_was: RangeInclusive<Index>,
    is_certain: bool,
) -> Result<Look, StoreError> {
    if is_certain {
        return Ok(Look { part, index: Index::ZERO, filtered: false, is_dirty: true });
    }
    let keys = reader.keys(&part, None, Query::CONSISTENT).await?;
    let is_dirty = !as_it_was.contains(&keys.index);
    Ok(Look { part, index: keys.index, filtered: keys.filtered, is_dirty })
}

/// Reads parts whole.
async fn list(reader: &dyn Reader, parts: &[Prefix]) -> Result<Read, StoreError> {
    let lists = parts.iter().map(|part| reader.list(part, Query::CONSISTENT));
    let mut read = Read { entries: Vec::new(), newest: Index::ZERO, filtered: false };
    for answer in try_join_all(lists).await? {
        read.entries.extend(answer.value);
        read.newest = read.newest.max(answer.index);
        read.filtered |= answer.filtered;
    }
    Ok(read)
}

/// Reads what is fresh and those of the known that have changed. `None`: a key went away meanwhile, or may not be read.
async fn ask(
    reader: &dyn Reader,
    known: &[&Entry],
    fresh: &[&str],
) -> Result<Option<Read>, StoreError> {
    let fresh = fresh.iter().map(|key| Key::parse(key)).collect::<Result<Vec<_>, _>>();
    let known = known.iter().map(|entry| Some((Key::parse(&entry.key).ok()?, entry.modify_index)));
    let (Ok(fresh), Some(known)) = (fresh, known.collect::<Option<Vec<_>>>()) else {
        return Ok(None);
    };
    let (read, changed) = try_join(get(reader, fresh), other(reader, known)).await?;
    let changed = get(reader, changed).await?;
    let (Some(mut entries), Some(changed)) = (read, changed) else { return Ok(None) };
    entries.extend(changed);
    let newest = entries.iter().map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
    Ok(Some(Read { entries, newest, filtered: false }))
}

/// Those of the keys whose index is not this one any more.
async fn other(reader: &dyn Reader, known: Vec<(Key, Index)>) -> Result<Vec<Key>, StoreError> {
    let asked = known.chunks(Limits::default().ops).map(|known| async move {
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
    let asked = keys.chunks(Limits::default().ops).map(|keys| async move {
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
fn divide(keys: &[String]) -> Option<Vec<Prefix>> {
    // What breaks the grammar might not survive the way through a URL.
    let keys: Vec<Key> = keys.iter().map(|key| Key::parse(key).ok()).collect::<Option<_>>()?;
    if keys.len() < MANY || !keys.is_sorted() {
        return None;
    }
    if keys.len() <= ASKED {
        let own = keys.first()?;
        return Some(vec![Prefix::beginning(own, common(&keys))]);
    }
    let enough = FEW.max(keys.len() / (MOST_PARTS / 2));
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
        let (own, end) = (&keys[range.start], common(&keys[range.clone()]));
        // As short as tells it from its neighbours: what is new there belongs to it, too.
        let left =
            range.start.checked_sub(1).map_or(0, |at| common(&[keys[at].clone(), own.clone()]));
        let right = keys.get(range.end).map_or(0, |next| common(&[own.clone(), next.clone()]));
        (left.max(right) < end).then(|| Prefix::beginning(own, left.max(right) + 1))
    };
    parts.iter().map(ends).collect()
}

/// Where sorted keys differ first.
fn common(keys: &[Key]) -> usize {
    let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return 0 };
    let pairs = first.as_str().bytes().zip(last.as_str().bytes());
    pairs.take_while(|(a, b)| a == b).count()
}

/// Divides sorted keys by the first character in which they differ; `None` if one is the beginning of the others.
fn split(keys: &[Key]) -> Option<Vec<Range<usize>>> {
    let at = common(keys);
    let byte = |key: &Key| key.as_str().as_bytes().get(at).copied();
    byte(keys.first()?)?;
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for n in 0..keys.len() {
        match pieces.last_mut() {
            Some(piece) if byte(&keys[piece.start]) == byte(&keys[n]) => piece.end = n + 1,
            _ => pieces.push(n..n + 1),
        }
    }
    (pieces.len() > 1).then_some(pieces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(keys: &BTreeSet<String>) -> usize {
        let keys: Vec<String> = keys.iter().cloned().collect();
        let Some(parts) = divide(&keys) else { return 0 };
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
