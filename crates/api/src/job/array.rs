//! Arrays: jobs of many tasks that differ in an index, of which a limited number runs at a time. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::by_index;
use crate::InvalidText;
use crate::pod_group::spec::MOST_MEMBERS;
use crate::slots::Slots;

/// Tasks that run at a time, at most.
pub const MOST_AT_ONCE: u32 = 1_000;

/// The indexes of an array, and how many of its tasks run at a time. Slurm's syntax: `0-999%50`, `1,3,5-7`, `0-99:10`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArraySpec {
    /// The indexes of its tasks.
    pub indexes: Slots,
    /// Tasks that run at a time.
    pub limit: u32,
}

impl ArraySpec {
    /// Members of its job: each runs one task after the other.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.limit.min(self.len())
    }

    /// Number of its tasks.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.indexes.len()).unwrap_or(u32::MAX)
    }

    /// Never: a text without indexes is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%{}", self.indexes.ranges(), self.limit)
    }
}

impl FromStr for ArraySpec {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<ArraySpec, InvalidText> {
        let wrong = |why| InvalidText { text: text.to_owned(), what: "array", why };
        let (listed, limit) = match text.split_once('%') {
            Some((listed, limit)) => (listed, Some(limit)),
            None => (text, None),
        };
        let number = |part: &str| {
            let number = part.trim().parse::<u32>().ok();
            let number = number.filter(|n| u64::from(*n) < MOST_MEMBERS);
            number.ok_or_else(|| wrong("write numbers below 100000, as in 0-999%50"))
        };
        let mut indexes = Slots::default();
        for part in listed.split(',') {
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, number(step)?),
                None => (part, 1),
            };
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (number(first)?, number(last)?);
            if step == 0 || last < first {
                return Err(wrong("a range is first-last or first-last:step"));
            }
            for index in (first..=last).step_by(step as usize) {
                indexes.insert(index);
            }
        }
        let limit = match limit {
            None => MOST_AT_ONCE,
            Some(limit) => number(limit)?,
        };
        if !(1..=MOST_AT_ONCE).contains(&limit) {
            return Err(wrong("1 to 1000 tasks run at a time"));
        }
        Ok(ArraySpec { indexes, limit })
    }
}

/// What has become of the tasks of an array.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ArrayProgress {
    /// Indexes of tasks that have succeeded, as in a Job of Kubernetes.
    pub completed_indexes: Slots,
    /// Indexes of tasks that have failed and are not tried again.
    pub failed_indexes: Slots,
    /// By member, the index of its task: the one that it runs, or has run last.
    #[serde(with = "by_index")]
    pub members: BTreeMap<u32, u32>,
    /// How often tasks that are tried again have failed, by index.
    #[serde(with = "by_index", skip_serializing_if = "BTreeMap::is_empty")]
    pub retries: BTreeMap<u32, u32>,
}

impl ArrayProgress {
    /// Upper bound of its bytes. No more than [`MOST_AT_ONCE`] tasks have begun and not ended, whatever becomes of the
    /// limit: the first ones that are open are taken.
    pub(super) fn largest(array: &ArraySpec) -> usize {
        let last = array.indexes.iter().last().unwrap_or_default() as usize;
        // As ranges or as a bitmap: [`Slots`].
        let set = (last / 4 + 8).max(264);
        // `[99999,"999"],` and `[4294967295,"99999"],`.
        120 + 2 * set + (14 + 21) * MOST_AT_ONCE as usize
    }

    /// Members, of these at most, that run a task or are to be given one: those whose task has not ended, and the first
    /// of the others while there are tasks that nobody has. In ascending order.
    #[must_use]
    pub fn busy(&self, array: &ArraySpec, members: u32) -> Vec<u32> {
        let mut open = self.open(array, members as usize).len();
        let is_busy = |member: &u32| match self.members.get(member) {
            Some(index) if !self.has_ended(*index) => true,
            _ if open > 0 => {
                open -= 1;
                true
            }
            _ => false,
        };
        (0..members).filter(is_busy).collect()
    }

    /// Whether the task of an index has ended for good.
    #[must_use]
    pub fn has_ended(&self, index: u32) -> bool {
        self.completed_indexes.contains(index) || self.failed_indexes.contains(index)
    }

    /// Number of tasks that have ended for good.
    #[must_use]
    pub fn ended(&self) -> u32 {
        let ended = self.completed_indexes.len() + self.failed_indexes.len();
        u32::try_from(ended).unwrap_or(u32::MAX)
    }

    /// The first indexes, at most `most`, whose tasks have not ended and that no member has.
    #[must_use]
    pub fn open(&self, array: &ArraySpec, most: usize) -> Vec<u32> {
        let taken: std::collections::BTreeSet<u32> = self.members.values().copied().collect();
        let is_open = |index: &u32| !self.has_ended(*index) && !taken.contains(index);
        array.indexes.iter().filter(is_open).take(most).collect()
    }
}

impl fmt::Display for ArrayProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (completed, failed) = (self.completed_indexes.len(), self.failed_indexes.len());
        write!(f, "{completed} completed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_syntax_is_read_and_wrong_texts_are_refused() {
        for (text, indexes, limit, members) in [
            ("0-999%50", "0-999", 50, 50),
            ("0-3", "0-3", MOST_AT_ONCE, 4),
            ("1,3,5-7%2", "1,3,5-7", 2, 2),
            ("0-9:3%1", "0,3,6,9", 1, 1),
            ("7", "7", MOST_AT_ONCE, 1),
            ("1-3,2-5", "1-5", MOST_AT_ONCE, 5),
        ] {
            let array: ArraySpec = text.parse().unwrap();
            assert_eq!(String::from(array.indexes.clone()), indexes, "{text}");
            assert_eq!((array.limit, array.members()), (limit, members), "{text}");
            assert_eq!(array.to_string().parse(), Ok(array), "{text}");
        }
        for text in
            ["", "a", "3-1", "0-9:0", "0-9%0", "0-9%1001", "0-100000", "1,,2", "-1", "0-9%", "%5"]
        {
            assert!(text.parse::<ArraySpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn progress_is_stored_as_ranges() {
        let progress = ArrayProgress {
            completed_indexes: (0..57).chain([60]).collect(),
            failed_indexes: [58].into_iter().collect(),
            members: [(0, 57), (1, 59)].into(),
            retries: [(57, 2)].into(),
        };
        let text = serde_json::to_string(&progress).unwrap();
        assert_eq!(
            text,
            r#"{"completedIndexes":"0-56,60","failedIndexes":"58","members":{"0":57,"1":59},"retries":{"57":2}}"#
        );
        assert_eq!(serde_json::from_str::<ArrayProgress>(&text).unwrap(), progress);
        let array: ArraySpec = "0-99%5".parse().unwrap();
        assert_eq!(progress.open(&array, 3), [61, 62, 63]);
        assert_eq!((progress.ended(), progress.has_ended(58)), (59, true));
    }

    #[test]
    fn busy_members_are_those_whose_task_has_not_ended() {
        let array: ArraySpec = "0-9%5".parse().unwrap();
        let mut progress = ArrayProgress {
            completed_indexes: (0..7).collect(),
            members: [(0, 4), (1, 5), (2, 6), (3, 7), (4, 8)].into(),
            ..ArrayProgress::default()
        };
        assert_eq!(progress.busy(&array, 5), [0, 3, 4], "one task is open");
        progress.completed_indexes.insert(9);
        assert_eq!(progress.busy(&array, 5), [3, 4], "the tasks left are those of other members");
        assert_eq!(ArrayProgress::default().busy(&array, 5), [0, 1, 2, 3, 4]);
    }
}
