//! What the owner of a job remembers of each task's members, in a form that stays small.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Ranges of a set that take more bytes are stored as a bitmap, if that is shorter.
const RANGES_BYTES: usize = 256;

/// The owner's memory of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskMemory {
    /// Members that were started in this attempt.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub started: Slots,
    /// Members of `started` whose pods are created by later transactions. Until the status is written again, a missing
    /// pod does not mean that it was lost.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub starting: Slots,
    /// Members whose end was handled.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub handled: Slots,
    /// Whether its completion was handled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub completed: bool,
    /// Restarts of each member for any reason, by index.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub attempts: BTreeMap<u32, u32>,
    /// Restarts of members after failures, in total.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Restarts of each member after failures, by index: the pauses grow with them.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<u32, u32>,
    /// Earliest start of members, by index.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub not_before: BTreeMap<u32, Timestamp>,
}

impl TaskMemory {
    /// Number of entries of the maps by member.
    pub(super) fn entries(&self) -> usize {
        self.attempts.len() + self.failed.len() + self.not_before.len()
    }

    /// Makes it smaller: members that have failed pause after the next failure as the one that failed most often.
    /// Returns when the last of those that pause now may start.
    pub(super) fn merge_pauses(&mut self) -> Option<Timestamp> {
        let most = self.failed.values().max().copied();
        self.failed.values_mut().for_each(|n| *n = most.unwrap_or(*n));
        std::mem::take(&mut self.not_before).into_values().max()
    }

    /// Notes that a member's pod is gone: a new pod is another attempt.
    pub fn forget(&mut self, index: u32) {
        self.started.remove(index);
        self.handled.remove(index);
        *self.attempts.entry(index).or_default() += 1;
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A set of numbers, stored as ranges: `0-99,104`. If these are many, it is stored as a bitmap: `#` and hexadecimal digits of
/// four numbers each; the lowest bit of the first digit is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slots(std::collections::BTreeSet<u32>);

impl Slots {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is there.
    #[must_use]
    pub fn contains(&self, n: u32) -> bool {
        self.0.contains(&n)
    }

    /// Adds one; `false`: it was there.
    pub fn insert(&mut self, n: u32) -> bool {
        self.0.insert(n)
    }

    /// Removes one; `false`: it was not there.
    pub fn remove(&mut self, n: u32) -> bool {
        self.0.remove(&n)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl From<Slots> for String {
    fn from(slots: Slots) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for n in &slots.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *n => *last = *n,
                _ => ranges.push((*n, *n)),
            }
        }
        let text = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let text = ranges.iter().map(text).collect::<Vec<_>>().join(",");
        let digits = ranges.last().map_or(0, |(_, last)| *last as usize / 4 + 1);
        if text.len() <= RANGES_BYTES.max(digits) {
            return text;
        }
        let mut bits = vec![0_u8; digits];
        for (first, last) in ranges {
            (first..=last).for_each(|n| bits[n as usize / 4] |= 1 << (n % 4));
        }
        let digits = bits.into_iter().filter_map(|digit| char::from_digit(digit.into(), 16));
        std::iter::once('#').chain(digits).collect()
    }
}

impl TryFrom<String> for Slots {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let mut slots = Slots::default();
        if let Some(digits) = text.strip_prefix('#') {
            for (n, digit) in (0_u32..).step_by(4).zip(digits.chars()) {
                let digit = digit.to_digit(16).ok_or_else(|| format!("{digit:?} is no digit"))?;
                slots.0.extend((0..4).filter(|bit| digit >> bit & 1 == 1).map(|bit| n + bit));
            }
            return Ok(slots);
        }
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number =
                |text: &str| text.parse::<u32>().map_err(|_| format!("{part:?} is no range"));
            let (first, last) = (number(first)?, number(last)?);
            // A range written by hand must not exhaust the memory.
            if last.saturating_sub(first) > 1_000_000 {
                return Err(format!("{part:?} is too long a range"));
            }
            slots.0.extend(first..=last);
        }
        Ok(slots)
    }
}

/// Values by index. More than [`by_index::PLAIN`] are stored as a list of values with their indexes:
/// `[[1, "0-99"], [2, "104"]]`. Both forms are read.
mod by_index {
    use std::collections::BTreeMap;
    use std::marker::PhantomData;

    use serde::de::{MapAccess, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Slots;

    /// Up to this number of members the form is `{"104": 2}`.
    const PLAIN: usize = 64;

    pub(super) fn serialize<V, S>(values: &BTreeMap<u32, V>, to: S) -> Result<S::Ok, S::Error>
    where
        V: Serialize + Ord,
        S: Serializer,
    {
        if values.len() <= PLAIN {
            return values.serialize(to);
        }
        let mut by_value: BTreeMap<&V, Slots> = BTreeMap::new();
        for (index, value) in values {
            by_value.entry(value).or_default().insert(*index);
        }
        by_value.into_iter().collect::<Vec<_>>().serialize(to)
    }

    struct ByIndex<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de> + Clone> Visitor<'de> for ByIndex<V> {
        type Value = BTreeMap<u32, V>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("values by index, or a list of values with their indexes")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut values = BTreeMap::new();
            while let Some((index, value)) = from.next_entry()? {
                values.insert(index, value);
            }
            Ok(values)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut values = BTreeMap::new();
            while let Some((value, slots)) = from.next_element::<(V, Slots)>()? {
                values.extend(slots.iter().map(|index| (index, value.clone())));
            }
            Ok(values)
        }
    }

    pub(super) fn deserialize<'de, V, D>(from: D) -> Result<BTreeMap<u32, V>, D::Error>
    where
        V: Deserialize<'de> + Clone,
        D: Deserializer<'de>,
    {
        from.deserialize_any(ByIndex(PhantomData))
    }
}
