//! Range of ports that a node gives to pods.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A range of ports; both ends belong to it. In JSON a text such as `20000-29999`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// `None`: the first port is 0 or beyond the last.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        (first > 0 && first <= last).then_some(PortRange { first, last })
    }

    /// From the first to the last, both included.
    #[must_use]
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }

    /// The `n`th of `parts` ranges of equal size that lie in it; `None`: it has too few ports, or there is no
    /// such part.
    #[must_use]
    pub fn part(self, n: u16, parts: u16) -> Option<PortRange> {
        if n >= parts {
            return None;
        }
        let size = (u32::from(self.last - self.first) + 1).checked_div(parts.into())?;
        let first = u32::from(self.first) + size * u32::from(n);
        let last = first + size.checked_sub(1)?;
        PortRange::new(u16::try_from(first).ok()?, u16::try_from(last).ok()?)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once('-').and_then(|(first, last)| {
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        });
        let range = ends.and_then(|(first, last)| PortRange::new(first, last));
        range.ok_or_else(|| format!("{text:?} is no range of ports; write it like 20000-29999"))
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> String {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_read_and_divided() {
        let range: PortRange = "20000-29999".parse().unwrap();
        assert_eq!(range.to_string(), "20000-29999");
        assert_eq!(range.part(0, 3).unwrap().to_string(), "20000-23332");
        assert_eq!(range.part(2, 3).unwrap().to_string(), "26666-29998");
        assert_eq!((range.part(0, 0), range.part(0, 20_000)), (None, None));
        assert_eq!(range.part(3, 3), None, "it lies beyond the range");
        assert_eq!("1-65535".parse::<PortRange>().unwrap().part(0, 1).unwrap().ports(), 1..=65_535);
        for wrong in ["", "20000", "5-4", "0-9", "1-65536", "a-b"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }
}
