//! What the owner of a job remembers of each task's members, in a form that stays small.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
pub use crate::slots::Slots;

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
    /// Members whose pods were lost, until `PodEvicted` is answered: a command may have come first.
    #[serde(skip_serializing_if = "Slots::is_empty")]
    pub evicted: Slots,
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

/// Values by index. More than [`by_index::PLAIN`] are stored as a list of values with their indexes:
/// `[[1, "0-99"], [2, "104"]]`. Both forms are read.
pub(in crate::job) mod by_index {
    use std::collections::BTreeMap;
    use std::marker::PhantomData;

    use serde::de::{MapAccess, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Slots;

    /// Up to this number of members the form is `{"104": 2}`.
    const PLAIN: usize = 64;

    pub fn serialize<V, S>(values: &BTreeMap<u32, V>, to: S) -> Result<S::Ok, S::Error>
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

    pub fn deserialize<'de, V, D>(from: D) -> Result<BTreeMap<u32, V>, D::Error>
    where
        V: Deserialize<'de> + Clone,
        D: Deserializer<'de>,
    {
        from.deserialize_any(ByIndex(PhantomData))
    }
}
