//! Resources by name: what a node has, what a pod asks for, what a queue may use. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::FieldError;
use crate::ids::check_segment;
use crate::manifest::plain;

/// Name of the processor, counted in thousandths.
pub const CPU: &str = "cpu";
/// Name of memory, counted in bytes.
pub const MEMORY: &str = "memory";
/// Name of the number of pods.
pub const PODS: &str = "pods";

/// Amounts by resource, as in Kubernetes: `cpu` in thousandths, `memory` in bytes, `pods` and every kind of device
/// counted.
///
/// In a *request* a resource that is not named is not asked for; in a *limit* it is not limited. As text
/// `cpu=4,memory=8Gi,gpu=8`. In JSON `{"cpu": "500m", "memory": "8Gi", "gpu": 8}`, numbers or text; see [`units`] for
/// the other form.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceList {
    cpu: Option<u64>,
    memory: Option<u64>,
    counted: BTreeMap<String, u64>,
}

impl ResourceList {
    /// The amount of a resource; `None` where it is not named.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        match name {
            CPU => self.cpu,
            MEMORY => self.memory,
            counted => self.counted.get(counted).copied(),
        }
    }

    /// The amount of a resource; 0 where it is not named.
    #[must_use]
    pub fn amount(&self, name: &str) -> u64 {
        self.get(name).unwrap_or(0)
    }

    /// The same with one amount set, in its unit.
    #[must_use]
    pub fn with(mut self, name: &str, amount: u64) -> Self {
        *self.entry(name) = amount;
        self
    }

    fn entry(&mut self, name: &str) -> &mut u64 {
        match name {
            CPU => self.cpu.get_or_insert(0),
            MEMORY => self.memory.get_or_insert(0),
            counted if self.counted.contains_key(counted) => {
                self.counted.get_mut(counted).expect("it was just found")
            }
            counted => self.counted.entry(counted.to_owned()).or_default(),
        }
    }

    /// Sets one amount from text.
    ///
    /// # Errors
    /// [`FieldError`], with the resource as its path.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), FieldError> {
        let text = text.trim();
        let bad = |fix| FieldError::new(name, format!("{text:?} is no amount of {name}"), fix);
        let count = || text.parse::<u32>().map(u64::from).ok();
        let amount = match name {
            CPU => millis(text).ok_or("write processors as 2, 0.5, or thousandths as 500m"),
            MEMORY => bytes(text).ok_or("write bytes, or with K, M, G, T or Ki, Mi, Gi, Ti"),
            PODS => text.parse().map_err(|_| "pods are counted: 0, 1, 2, …"),
            device => {
                check_segment(device).map_err(|error| bad(error.why))?;
                count().ok_or("devices are counted: 0, 1, 2, …")
            }
        };
        *self.entry(name) = amount.map_err(bad)?;
        Ok(())
    }

    /// Whether no resource is named. A limit of 0 is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether there is nothing of any resource.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.iter().all(|(_, amount)| amount == 0)
    }

    /// The same without the resources of which there is 0.
    #[must_use]
    pub fn nonzero(&self) -> ResourceList {
        self.iter().filter(|(_, amount)| *amount > 0).collect()
    }

    /// All that are named: processor, memory, then the others by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let cpu = self.cpu.map(|amount| (CPU, amount));
        let memory = self.memory.map(|amount| (MEMORY, amount));
        cpu.into_iter().chain(memory).chain(self.devices())
    }

    /// Everything besides processor and memory.
    pub fn devices(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counted.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Sum for `pods` pods of which each asks for this. The pods are counted, too.
    #[must_use]
    pub fn of_pods(&self, pods: u64) -> ResourceList {
        let mut all = ResourceList::default();
        for (name, amount) in self.iter() {
            *all.entry(name) = amount.saturating_mul(pods);
        }
        all.with(PODS, pods)
    }

    /// Adds; the result never wraps.
    pub fn add(&mut self, more: &ResourceList) {
        for (name, amount) in more.iter() {
            let sum = self.entry(name);
            *sum = sum.saturating_add(amount);
        }
    }

    /// Subtracts, down to 0. A resource that comes to 0 is removed, so that adding and subtracting leaves no trace.
    pub fn sub(&mut self, less: &ResourceList) {
        let rest = |name: &str, amount: u64| amount.saturating_sub(less.amount(name));
        self.cpu = self.cpu.map(|cpu| rest(CPU, cpu)).filter(|cpu| *cpu > 0);
        self.memory = self.memory.map(|memory| rest(MEMORY, memory)).filter(|memory| *memory > 0);
        self.counted.retain(|name, amount| {
            *amount = rest(name, *amount);
            *amount > 0
        });
    }

    /// Raises each amount to that of `other`, if that is more.
    pub fn raise(&mut self, other: &ResourceList) {
        for (name, amount) in other.iter() {
            let most = self.entry(name);
            *most = (*most).max(amount);
        }
    }

    /// How much of `self` is beyond `other`.
    #[must_use]
    pub fn beyond(&self, other: &ResourceList) -> ResourceList {
        let mut rest = self.clone();
        rest.sub(other);
        rest
    }

    /// The sum of many.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a ResourceList>) -> ResourceList {
        let mut sum = ResourceList::default();
        all.into_iter().for_each(|one| sum.add(one));
        sum
    }

    /// Whether there is enough for `request`.
    #[must_use]
    pub fn fits(&self, request: &ResourceList) -> bool {
        request.iter().all(|(name, asked)| asked <= self.amount(name))
    }

    /// Whether both are the same amounts; a resource of which there is 0 may be named or not.
    #[must_use]
    pub fn equals(&self, other: &ResourceList) -> bool {
        self.fits(other) && other.fits(self)
    }

    /// As a limit: the first resource of which `request` is more than is allowed, with both amounts. A request of 0 is
    /// never too much.
    #[must_use]
    pub fn exceeded_by<'r>(&self, request: &'r ResourceList) -> Option<(&'r str, u64, u64)> {
        request.iter().find_map(|(name, asked)| {
            let limit = self.get(name)?;
            (asked > limit && asked > 0).then_some((name, asked, limit))
        })
    }

    /// One amount as text: `500m`, `8Gi`, `3`.
    #[must_use]
    pub fn spell(name: &str, amount: u64) -> String {
        match name {
            CPU if !amount.is_multiple_of(1000) => format!("{amount}m"),
            CPU => (amount / 1000).to_string(),
            MEMORY => {
                let divides = |unit: u64| amount >= unit && amount.is_multiple_of(unit);
                let unit = UNITS[..4].iter().find(|(_, unit)| divides(*unit));
                let (suffix, unit) = unit.unwrap_or(&("", 1));
                format!("{}{suffix}", amount / unit)
            }
            _ => amount.to_string(),
        }
    }
}

impl<N: AsRef<str>> FromIterator<(N, u64)> for ResourceList {
    fn from_iter<I: IntoIterator<Item = (N, u64)>>(all: I) -> Self {
        all.into_iter().fold(Self::default(), |list, (name, n)| list.with(name.as_ref(), n))
    }
}

impl FromStr for ResourceList {
    type Err = FieldError;

    /// As in `cpu=4,memory=8Gi,gpu=8,pods=10`.
    fn from_str(text: &str) -> Result<Self, FieldError> {
        let mut list = ResourceList::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, amount) = part.split_once('=').ok_or_else(|| {
                FieldError::new(part, "it has no amount", "write it like cpu=4,memory=8Gi,gpu=8")
            })?;
            list.set(name.trim(), amount)?;
        }
        Ok(list)
    }
}

impl fmt::Display for ResourceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(name, amount)| format!("{name}={}", ResourceList::spell(name, amount));
        f.pad(&self.iter().map(part).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for ResourceList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = |(name, amount)| match name {
            CPU | MEMORY => (name, Value::from(ResourceList::spell(name, amount))),
            _ => (name, Value::from(amount)),
        };
        self.iter().map(value).collect::<BTreeMap<_, _>>().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut list = ResourceList::default();
        for (name, value) in BTreeMap::<String, Value>::deserialize(deserializer)? {
            list.set(&name, &plain(&value)).map_err(|error| D::Error::custom(error.reason()))?;
        }
        Ok(list)
    }
}

/// The other JSON form, of nodes' records and of what the command line prints:
/// `{"cpu_milli": 500, "memory_bytes": 8589934592, "devices": {"gpu": 8}}`. For `#[serde(with = "…")]`.
pub mod units {
    use super::{BTreeMap, CPU, Deserialize, MEMORY, ResourceList, Serialize, Value};

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Units {
        cpu_milli: u64,
        memory_bytes: u64,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        devices: BTreeMap<String, u32>,
    }

    /// Writes the form with units.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: serde::Serializer>(list: &ResourceList, to: S) -> Result<S::Ok, S::Error> {
        let number = |amount| u32::try_from(amount).unwrap_or(u32::MAX);
        Units {
            cpu_milli: list.amount(CPU),
            memory_bytes: list.amount(MEMORY),
            devices: list.devices().map(|(name, n)| (name.to_owned(), number(n))).collect(),
        }
        .serialize(to)
    }

    /// The form with units as a JSON value.
    #[must_use]
    pub fn json(list: &ResourceList) -> Value {
        serialize(list, serde_json::value::Serializer).unwrap_or_default()
    }

    /// Reads the form with units. A processor or memory of 0 is not named.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(
        from: D,
    ) -> Result<ResourceList, D::Error> {
        let Units { cpu_milli, memory_bytes, devices } = Units::deserialize(from)?;
        let counted = devices.into_iter().map(|(name, n)| (name, n.into()));
        let counted = counted.filter(|(name, _)| ![CPU, MEMORY].contains(&name.as_str())).collect();
        let [cpu, memory] = [cpu_milli, memory_bytes].map(|amount| Some(amount).filter(|n| *n > 0));
        Ok(ResourceList { cpu, memory, counted })
    }
}

fn millis(text: &str) -> Option<u64> {
    if let Some(millis) = text.strip_suffix('m') {
        return millis.parse().ok();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 3 || !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(part)
}

/// Binary units first: text is written in these.
const UNITS: [(&str, u64); 9] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("K", 1_000),
    ("k", 1_000),
];

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_bytes = unit == 1 && !part.is_empty();
    if whole.is_empty() || is_bytes || part.len() > 9 || !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let nanos: u64 = format!("{part:0<9}").parse().ok()?;
    // Rounded up, as in Kubernetes.
    let part = (u128::from(nanos) * u128::from(unit)).div_ceil(1_000_000_000);
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> ResourceList {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_read_in_all_spellings() {
        assert_eq!(list(""), ResourceList::default());
        let some = list("cpu=4, memory=8Gi,gpu=8");
        assert_eq!((some.amount(CPU), some.amount(MEMORY)), (4_000, 8 << 30));
        assert_eq!(some.devices().collect::<Vec<_>>(), [("gpu", 8)]);
        for (text, bytes) in [("1.5Gi", 3 << 29), ("0.5k", 500), ("1.0000001k", 1_001)] {
            assert_eq!(list(&format!("memory={text}")).amount(MEMORY), bytes, "{text}");
        }
        for (text, millis) in [("cpu=0.5", 500), ("cpu=250m", 250), ("cpu=1.025", 1_025)] {
            assert_eq!(list(text).amount(CPU), millis, "{text}");
        }
        for (text, bytes) in [("memory=10", 10), ("memory=1k", 1_000), ("memory=2M", 2_000_000)] {
            assert_eq!(list(text).amount(MEMORY), bytes, "{text}");
        }
    }

    #[test]
    fn errors_name_the_resource_and_the_form() {
        for (text, words) in [
            ("cpu", "cpu=4,memory=8Gi"),
            ("cpu=four", "500m"),
            ("cpu=.5", "500m"),
            ("cpu=1.2345", "500m"),
            ("memory=8GB", "Gi"),
            ("memory=-1", "Gi"),
            ("memory=99999999999999999Gi", "Gi"),
            ("gpu=1.5", "counted"),
            ("pods=1.5", "counted"),
            ("a/b=1", "allowed"),
        ] {
            let error = text.parse::<ResourceList>().unwrap_err();
            assert_eq!(error.path, text.split('=').next().unwrap());
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn json_is_as_in_kubernetes() {
        let text = r#"{"cpu":2,"gpu":8,"memory":"8Gi","pods":"3"}"#;
        let read: ResourceList = serde_json::from_str(text).unwrap();
        assert_eq!(read, list("cpu=2,memory=8Gi,gpu=8,pods=3"));
        let again = serde_json::to_string(&read).unwrap();
        assert_eq!(again, r#"{"cpu":"2","gpu":8,"memory":"8Gi","pods":3}"#);
        for bad in [r#"{"cpu":"four"}"#, r#"{"memory":-1}"#, r#"{"pods":1.5}"#, r#"{"cpu":[]}"#] {
            assert!(serde_json::from_str::<ResourceList>(bad).is_err(), "{bad}");
        }
        let none: ResourceList = serde_json::from_str(r#"{"cpu":"0","memory":0}"#).unwrap();
        let text = serde_json::to_string(&none).unwrap();
        assert_eq!(serde_json::from_str::<ResourceList>(&text).unwrap(), none, "{text}");
    }

    #[test]
    fn json_with_units_round_trips() {
        for text in [
            r#"{"cpu_milli":500,"memory_bytes":8589934592,"devices":{"gpu":8,"tpu":0}}"#,
            r#"{"cpu_milli":0,"memory_bytes":0}"#,
        ] {
            let read = units::deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap();
            let mut again = Vec::new();
            units::serialize(&read, &mut serde_json::Serializer::new(&mut again)).unwrap();
            assert_eq!(String::from_utf8(again).unwrap(), text);
        }
    }

    #[test]
    fn an_unnamed_resource_is_not_asked_for_and_not_limited() {
        let limit = list("cpu=2,gpu=0");
        assert_eq!(limit.exceeded_by(&list("cpu=2,memory=9Ti")), None);
        assert_eq!(limit.exceeded_by(&list("cpu=2001m")), Some((CPU, 2_001, 2_000)));
        assert_eq!(limit.exceeded_by(&list("gpu=1")), Some(("gpu", 1, 0)));
        assert_eq!(ResourceList::default().exceeded_by(&list("gpu=1")), None);
        assert!(limit.equals(&list("cpu=2")) && !limit.equals(&list("cpu=2,gpu=1")));
    }

    prop_compose! {
        fn any_list(most: u64)(
            cpu in prop::option::of(1..most),
            memory in prop::option::of(1..most),
            counted in prop::collection::btree_map("[a-c]", 1u64..9, 0..3),
        ) -> ResourceList {
            ResourceList { cpu, memory, counted }
        }
    }

    proptest! {
        #[test]
        fn text_and_amounts_are_one_to_one(list in any_list(1 << 40)) {
            prop_assert_eq!(list.to_string().parse::<ResourceList>().unwrap(), list);
        }

        #[test]
        fn adding_and_subtracting_leaves_no_trace(a in any_list(9), b in any_list(9)) {
            let mut sum = a.clone();
            sum.add(&b);
            prop_assert_eq!(sum.beyond(&a), b.clone());
            sum.sub(&b);
            prop_assert_eq!(sum, a);
        }
    }
}
