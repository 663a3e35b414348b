//! Sets of members' indexes in a form that stays small.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::pod_group::spec::MOST_MEMBERS;

/// Ranges of a set that take more bytes are stored as a bitmap, if that is shorter.
const RANGES_BYTES: usize = 256;

/// A set of numbers, stored as ranges: `0-99,104`. If these are many, it is stored as a bitmap: `#` and hexadecimal
/// digits of four numbers each; the lowest bit of the first digit is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Slots(BTreeSet<u32>);

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

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for Slots {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Slots(numbers.into_iter().collect())
    }
}

impl Slots {
    /// The numbers as ranges, for people: `0-99,104`.
    #[must_use]
    pub fn ranges(&self) -> String {
        text_of(&ranges_of(self))
    }
}

/// First and last numbers of the ranges.
fn ranges_of(slots: &Slots) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for n in &slots.0 {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => ranges.push((*n, *n)),
        }
    }
    ranges
}

fn text_of(ranges: &[(u32, u32)]) -> String {
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

impl From<Slots> for String {
    fn from(slots: Slots) -> String {
        let ranges = ranges_of(&slots);
        let text = text_of(&ranges);
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
            if digits.len() as u64 > MOST_MEMBERS / 4 {
                return Err(format!("{} digits are too many", digits.len()));
            }
            for (n, digit) in (0_u32..).step_by(4).zip(digits.chars()) {
                let digit = digit.to_digit(16).ok_or_else(|| format!("{digit:?} is no digit"))?;
                slots.0.extend((0..4).filter(|bit| digit >> bit & 1 == 1).map(|bit| n + bit));
            }
            return Ok(slots);
        }
        let mut all = 0;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number =
                |text: &str| text.parse::<u32>().map_err(|_| format!("{part:?} is no range"));
            let (first, last) = (number(first)?, number(last)?);
            // Ranges written by hand must exhaust neither the memory nor the time, and may overlap.
            all += u64::from(last.saturating_sub(first)) + 1;
            if u64::from(last) >= MOST_MEMBERS || all > MOST_MEMBERS {
                return Err(format!("{part:?}: more than {MOST_MEMBERS} members"));
            }
            slots.0.extend(first..=last);
        }
        Ok(slots)
    }
}
