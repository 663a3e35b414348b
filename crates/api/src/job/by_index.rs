//! Maps by a member's index in a form that stays small. More than [`PLAIN`] entries are stored as a list of values with
//! their indexes: `[[1, "0-99"], [2, "104"]]`. Both forms are read.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::slots::Slots;

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
