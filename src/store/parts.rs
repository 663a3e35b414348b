//! Which parts of a large tree have changed. Consul says of every prefix at which index something below it changed last,
//! whether or not a part of a name: so the tree is divided, and of the parts that are newer the entries are read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

use futures_util::future::try_join_all;

use super::{Answer, Entry, Index, Key, Prefix, Query, Reader, StoreError};

/// A tree of so many entries is read in parts.
pub const MANY: usize = 64;
/// No more parts than this are asked for, unless a single step of dividing makes more.
const MOST_PARTS: usize = 16;
/// A part of so few entries is not divided.
const FEW: usize = 48;

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
        let looks = parts.iter().map(|part| {
            let is_certain = fresh.iter().any(|key| part.tail(key).is_some());
            // Below what is known of it, a part is as a restored snapshot has it.
            let known = self.entries.values().filter(|entry| part.tail(&entry.key).is_some());
            let newest = known.map(|entry| entry.modify_index).max().unwrap_or(Index::ZERO);
            look(reader, part, newest..=after, is_certain)
        });
        let looks = try_join_all(looks).await?;
        let explained = looks.iter().any(|look| look.index >= keys.index) || gone > 0;
        if !explained {
            // Somebody answered with the past, or a list was cut.
            return Ok(None);
        }
        let filtered = keys.filtered || looks.iter().any(|look| look.filtered);
        self.entries.retain(|key, _| now.contains(key.as_str()));
        let mut transferred = now.len() / 8;
        for (part, look) in parts.iter().zip(looks) {
            let Some(entries) = look.entries else { continue };
            transferred += entries.len();
            self.entries.retain(|key, _| part.tail(key).is_none());
            self.entries.extend(entries.into_iter().map(|entry| (entry.key.clone(), entry)));
        }
        let value = self.entries.values().cloned().collect();
        let answer = Answer { value, index: keys.index, filtered };
        Ok(Some(Changed { answer, transferred }))
    }
}

/// What a look at one part has shown.
struct Look {
    index: Index,
    filtered: bool,
    /// `None`: it is as it was.
    entries: Option<Vec<Entry>>,
}

/// Looks whether a part has changed: whether its index is not among those at which it is as it was. Reads it if so.
///
/// A server that lags behind would hide a change until all is read anew, so the leader is asked.
async fn look(
    reader: &dyn Reader,
    part: &Prefix,
    as_it_was: RangeInclusive<Index>,
    is_certain: bool,
) -> Result<Look, StoreError> {
    if !is_certain {
        let keys = reader.keys(part, None, Query::CONSISTENT).await?;
        if as_it_was.contains(&keys.index) {
            return Ok(Look { index: keys.index, filtered: keys.filtered, entries: None });
        }
    }
    let Answer { value, index, filtered } = reader.list(part, Query::CONSISTENT).await?;
    Ok(Look { index, filtered, entries: Some(value) })
}

/// Divides sorted keys by how they begin, so that each belongs to exactly one part. `None` where that cannot be.
fn divide(keys: &[String]) -> Option<Vec<Prefix>> {
    // What breaks the grammar might not survive the way through a URL.
    let keys: Vec<Key> = keys.iter().map(|key| Key::parse(key).ok()).collect::<Option<_>>()?;
    if keys.len() < MANY || !keys.is_sorted() {
        return None;
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
