//! Amounts of CPU, memory and devices. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::check_segment;

/// CPU, memory and devices: a node's capacity, a pod's request, or an allocation.
///
/// As text, `cpu=4,memory=8Gi,gpu=8`: every word besides `cpu` and `memory` is a kind of device, which is counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
    /// Number of devices of each kind; devices are numbered from 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, u32>,
}

/// A text that is not a valid amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no amount of {what}: {why}")]
pub struct BadQuantity {
    text: String,
    what: String,
    why: &'static str,
}

impl Resources {
    /// Sets one amount by its word.
    ///
    /// # Errors
    /// [`BadQuantity`], which names the word and the form that is wanted.
    pub fn set(&mut self, what: &str, text: &str) -> Result<(), BadQuantity> {
        let text = text.trim();
        let bad = |why| BadQuantity { text: text.to_owned(), what: what.to_owned(), why };
        match what {
            "cpu" => {
                self.cpu_milli = millis(text)
                    .ok_or_else(|| bad("write processors as 2, 0.5, or thousandths as 500m"))?;
            }
            "memory" => {
                self.memory_bytes = bytes(text)
                    .ok_or_else(|| bad("write bytes, or with K, M, G, T or Ki, Mi, Gi, Ti"))?;
            }
            device => {
                check_segment(device).map_err(|error| bad(error.why))?;
                let count = text.parse().map_err(|_| bad("devices are counted: 0, 1, 2, …"))?;
                self.devices.insert(device.to_owned(), count);
            }
        }
        Ok(())
    }

    /// Thousandths of a processor as text: `2`, `500m`.
    #[must_use]
    pub fn cpu_in_words(milli: u64) -> String {
        match milli % 1000 {
            0 => (milli / 1000).to_string(),
            _ => format!("{milli}m"),
        }
    }

    /// Bytes as text, in the largest binary unit that divides them: `8Gi`.
    #[must_use]
    pub fn memory_in_words(bytes: u64) -> String {
        let unit =
            UNITS[..4].iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
        unit.map_or_else(|| bytes.to_string(), |(suffix, unit)| format!("{}{suffix}", bytes / unit))
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.cpu_milli == 0 && self.memory_bytes == 0 && self.devices.values().all(|n| *n == 0)
    }
}

impl FromStr for Resources {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let mut resources = Resources::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let Some((what, amount)) = part.split_once('=') else {
                let why = "write it like cpu=4,memory=8Gi,gpu=8";
                return Err(BadQuantity {
                    text: part.to_owned(),
                    what: "anything".to_owned(),
                    why,
                });
            };
            resources.set(what.trim(), amount)?;
        }
        Ok(resources)
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = Some(self.cpu_milli).filter(|milli| *milli > 0);
        let memory = Some(self.memory_bytes).filter(|bytes| *bytes > 0);
        let cpu = cpu.map(|milli| format!("cpu={}", Resources::cpu_in_words(milli)));
        let memory = memory.map(|bytes| format!("memory={}", Resources::memory_in_words(bytes)));
        let devices = self.devices.iter().map(|(device, count)| format!("{device}={count}"));
        let all: Vec<String> = cpu.into_iter().chain(memory).chain(devices).collect();
        f.write_str(&all.join(","))
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
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| number.parse::<u64>().ok()?.checked_mul(unit))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_in_the_fields_spellings() {
        let read = |text: &str| text.parse::<Resources>().unwrap();
        assert_eq!(read(""), Resources::default());
        let some = read("cpu=4, memory=8Gi,gpu=8");
        assert_eq!((some.cpu_milli, some.memory_bytes), (4_000, 8 << 30));
        assert_eq!(some.devices, [("gpu".to_owned(), 8)].into());
        for (text, millis) in [("cpu=0.5", 500), ("cpu=250m", 250), ("cpu=1.025", 1_025)] {
            assert_eq!(read(text).cpu_milli, millis, "{text}");
        }
        for (text, bytes) in [("memory=10", 10), ("memory=1k", 1_000), ("memory=2M", 2_000_000)] {
            assert_eq!(read(text).memory_bytes, bytes, "{text}");
        }
    }

    #[test]
    fn mistakes_name_the_word_and_the_form() {
        for (text, words) in [
            ("cpu", "cpu=4,memory=8Gi"),
            ("cpu=four", "500m"),
            ("cpu=.5", "500m"),
            ("cpu=1.2345", "500m"),
            ("memory=8GB", "Gi"),
            ("memory=-1", "Gi"),
            ("memory=99999999999999999Gi", "Gi"),
            ("gpu=1.5", "counted"),
            ("a/b=1", "allowed"),
        ] {
            let error = text.parse::<Resources>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_and_amounts_are_one_to_one(
            cpu_milli in 0u64..1 << 40,
            memory_bytes: u64,
            devices in prop::collection::btree_map("[a-z]{3,6}", 0u32..99, 0..3),
        ) {
            prop_assume!(!devices.contains_key("cpu") && !devices.contains_key("memory"));
            let resources = Resources { cpu_milli, memory_bytes, devices };
            prop_assert_eq!(resources.to_string().parse::<Resources>().unwrap(), resources);
        }
    }
}
