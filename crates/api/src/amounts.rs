//! Amounts of CPU, memory, devices and pods: limits of queues, and requests. Pure.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::Resources;

/// Name of CPU, in thousandths of a core.
pub const CPU: &str = "cpu";
/// Name of memory, in bytes.
pub const MEMORY: &str = "memory";
/// Name of pods, counted.
pub const PODS: &str = "pods";

/// Amounts by resource: `cpu` in thousandths, `memory` in bytes, `pods` and every kind of device counted.
///
/// In a *request* a missing resource is 0; in a *limit* it is unlimited. In JSON: `{"cpu": "500m", "memory": "8Gi",
/// "gpu": 8}`, numbers or text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<String, u64>);

impl Amounts {
    /// Amount of a resource; `None` if it is missing.
    #[must_use]
    pub fn of(&self, what: &str) -> Option<u64> {
        self.0.get(what).copied()
    }

    /// Sets one amount, in its unit.
    #[must_use]
    pub fn with(mut self, what: &str, amount: u64) -> Self {
        self.0.insert(what.to_owned(), amount);
        self
    }

    /// Whether no resource is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All amounts by resource.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(what, amount)| (what.as_str(), *amount))
    }

    /// Request of `pods` pods together, with their count as `pods`.
    #[must_use]
    pub fn of_pods(each: &Amounts, pods: u64) -> Amounts {
        let mut all =
            Amounts(each.0.iter().map(|(w, n)| (w.clone(), n.saturating_mul(pods))).collect());
        all.0.insert(PODS.to_owned(), pods);
        all
    }

    /// Adds; saturates.
    pub fn add(&mut self, more: &Amounts) {
        for (what, amount) in more.iter() {
            let sum = self.0.entry(what.to_owned()).or_default();
            *sum = sum.saturating_add(amount);
        }
    }

    /// Subtracts, down to 0. Resources that become 0 are removed, so that adding and subtracting the same amounts
    /// leaves no trace.
    pub fn take(&mut self, less: &Amounts) {
        for (what, amount) in less.iter() {
            if let Some(sum) = self.0.get_mut(what) {
                *sum = sum.saturating_sub(amount);
            }
        }
        self.0.retain(|_, amount| *amount > 0);
    }

    /// Sum of all.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Amounts>) -> Amounts {
        let mut sum = Amounts::default();
        all.into_iter().for_each(|one| sum.add(one));
        sum
    }

    /// The part of `self` that exceeds `other`.
    #[must_use]
    pub fn beyond(&self, other: &Amounts) -> Amounts {
        let mut rest = self.clone();
        rest.take(other);
        rest
    }

    /// Uses `self` as a limit: returns the first resource of which `request` exceeds it, with both amounts. A request
    /// of 0 exceeds nothing.
    #[must_use]
    pub fn exceeded_by<'r>(&self, request: &'r Amounts) -> Option<(&'r str, u64, u64)> {
        request.iter().find_map(|(what, asked)| {
            let limit = self.of(what)?;
            (asked > limit && asked > 0).then_some((what, asked, limit))
        })
    }

    /// One amount as text, such as `500m` or `8Gi`.
    #[must_use]
    pub fn spell(what: &str, amount: u64) -> String {
        let mut one = Resources::default();
        match what {
            CPU => one.cpu_milli = amount,
            MEMORY => one.memory_bytes = amount,
            _ => return amount.to_string(),
        }
        let text = one.to_string();
        let part = text.split(',').find_map(|part| part.strip_prefix(what)?.strip_prefix('='));
        // An amount of 0 is left out there.
        part.unwrap_or("0").to_owned()
    }

    fn read(what: &str, text: &str) -> Result<u64, String> {
        if what == PODS {
            return text
                .parse()
                .map_err(|_| format!("{text:?} is no number of pods: write 0, 1, 2, …"));
        }
        let mut one = Resources::default();
        one.set(what, text).map_err(|error| error.to_string())?;
        Ok(match what {
            CPU => one.cpu_milli,
            MEMORY => one.memory_bytes,
            device => one.devices.get(device).copied().unwrap_or(0).into(),
        })
    }

    /// As a pod's resources, which do not include `pods`.
    #[must_use]
    pub fn to_resources(&self) -> Resources {
        let devices = self.iter().filter(|(what, _)| ![CPU, MEMORY, PODS].contains(what));
        Resources {
            cpu_milli: self.of(CPU).unwrap_or(0),
            memory_bytes: self.of(MEMORY).unwrap_or(0),
            devices: devices
                .map(|(what, n)| (what.to_owned(), u32::try_from(n).unwrap_or(u32::MAX)))
                .collect(),
        }
    }
}

impl From<&Resources> for Amounts {
    fn from(resources: &Resources) -> Self {
        let devices = resources.devices.iter().map(|(what, n)| (what.clone(), u64::from(*n)));
        let basic = [(CPU, resources.cpu_milli), (MEMORY, resources.memory_bytes)];
        let basic = basic.into_iter().map(|(what, n)| (what.to_owned(), n));
        Amounts(basic.chain(devices).filter(|(_, n)| *n > 0).collect())
    }
}

impl std::str::FromStr for Amounts {
    type Err = String;

    /// As in `cpu=4,memory=8Gi,gpu=8,pods=10`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut amounts = Amounts::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((what, amount)) = part.split_once('=') else {
                return Err(format!("{part:?}: write it like cpu=4,memory=8Gi,gpu=8,pods=10"));
            };
            let (what, amount) = (what.trim(), amount.trim());
            amounts.0.insert(what.to_owned(), Amounts::read(what, amount)?);
        }
        Ok(amounts)
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.iter().map(|(what, n)| format!("{what}={}", Amounts::spell(what, n))).collect();
        f.pad(&parts.join(","))
    }
}

impl Serialize for Amounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(what, n)| match what {
            CPU | MEMORY => (what, Value::from(Amounts::spell(what, n))),
            _ => (what, Value::from(n)),
        }))
    }
}

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let read = |(what, value): (String, Value)| {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                other => return Err(D::Error::custom(format!("{what}: {other} is no amount"))),
            };
            let amount = Amounts::read(&what, &text).map_err(D::Error::custom)?;
            Ok((what, amount))
        };
        Ok(Amounts(all.into_iter().map(read).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts(text: &str) -> Amounts {
        text.parse().unwrap()
    }

    #[test]
    fn they_are_written_as_people_write_resources() {
        let text = r#"{"cpu":2,"gpu":8,"memory":"8Gi","pods":"3"}"#;
        let read: Amounts = serde_json::from_str(text).unwrap();
        assert_eq!(read, amounts("cpu=2,memory=8Gi,gpu=8,pods=3"));
        let again = serde_json::to_string(&read).unwrap();
        assert_eq!(again, r#"{"cpu":"2","gpu":8,"memory":"8Gi","pods":3}"#);
        for bad in [r#"{"cpu":"four"}"#, r#"{"memory":-1}"#, r#"{"pods":1.5}"#, r#"{"cpu":[]}"#] {
            assert!(serde_json::from_str::<Amounts>(bad).is_err(), "{bad}");
            let none: Amounts = serde_json::from_str(r#"{"cpu":"0","memory":0}"#).unwrap();
            let text = serde_json::to_string(&none).unwrap();
            assert_eq!(serde_json::from_str::<Amounts>(&text).unwrap(), none, "{text}");
        }
    }

    #[test]
    fn an_absent_word_is_none_asked_for_and_no_limit() {
        let limit = amounts("cpu=2,gpu=0");
        assert_eq!(limit.exceeded_by(&amounts("cpu=2,memory=9Ti")), None);
        assert_eq!(limit.exceeded_by(&amounts("cpu=2001m")), Some((CPU, 2_001, 2_000)));
        assert_eq!(limit.exceeded_by(&amounts("gpu=1")), Some(("gpu", 1, 0)));
        assert_eq!(Amounts::default().exceeded_by(&amounts("gpu=1")), None);
    }

    proptest! {
        #[test]
        fn what_is_added_and_taken_away_leaves_no_trace(
            a in prop::collection::btree_map("[a-c]", 1u64..9, 0..3),
            b in prop::collection::btree_map("[a-c]", 1u64..9, 0..3),
        ) {
            let (a, b) = (Amounts(a), Amounts(b));
            let mut sum = a.clone();
            sum.add(&b);
            prop_assert_eq!(sum.beyond(&a), b.clone());
            sum.take(&b);
            prop_assert_eq!(sum, a);
        }
    }
}
