//! `rcfarm/allocations/<node>`: allocations of pods on a node.
//!
//! There is one record per node, so that a CAS prevents two farms from allocating the same capacity. It is written in
//! the transaction that adds or removes the pod. The node's agent reads the device numbers of its pods here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Stored;
use crate::ids::{Namespaced, PodId, RcId};
use crate::resource_list::{CPU, MEMORY, ResourceList};

/// Owner of an allocation. In JSON a text: `rc/<uuid>`, or the name of another record, such as
/// `job/<namespace>/<name>/<uid>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AllocationOwner {
    /// A replication controller.
    Rc(RcId),
    /// A record of another kind. Only that kind's controllers release its allocations.
    Other(String),
}

impl AllocationOwner {
    /// The PodGroup `id`.
    #[must_use]
    pub fn of_group(id: &Namespaced) -> AllocationOwner {
        AllocationOwner::Other(format!("pod_group/{id}"))
    }

    /// The PodGroup; `None`: the owner is of another kind.
    #[must_use]
    pub fn group(&self) -> Option<Namespaced> {
        match self {
            AllocationOwner::Other(words) => words.strip_prefix("pod_group/")?.parse().ok(),
            AllocationOwner::Rc(_) => None,
        }
    }
}

impl Default for AllocationOwner {
    /// An unknown owner.
    fn default() -> Self {
        AllocationOwner::Other(String::new())
    }
}

impl FromStr for AllocationOwner {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rc = text.strip_prefix("rc/").and_then(|id| id.parse().ok());
        Ok(rc.map_or_else(|| AllocationOwner::Other(text.to_owned()), AllocationOwner::Rc))
    }
}

impl From<String> for AllocationOwner {
    fn from(text: String) -> Self {
        text.parse().unwrap_or_default()
    }
}

impl From<AllocationOwner> for String {
    fn from(owner: AllocationOwner) -> String {
        owner.to_string()
    }
}

impl fmt::Display for AllocationOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocationOwner::Rc(id) => write!(f, "rc/{id}"),
            AllocationOwner::Other(text) => f.pad(text),
        }
    }
}

/// Allocation of one pod on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocation {
    pub owner: AllocationOwner,
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// The numbers of the devices of each kind, from 0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeSet<u32>>,
    /// Port that a member of a job listens on, of the node's range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Numbers of the ports of its manifest, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ports: BTreeMap<String, u16>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Allocation {
    /// Its amounts: devices are counted.
    #[must_use]
    pub fn resources(&self) -> ResourceList {
        let basic = [(CPU, self.cpu_milli), (MEMORY, self.memory_bytes)];
        let devices = self.devices.iter().map(|(kind, set)| (kind.as_str(), set.len() as u64));
        basic.into_iter().filter(|(_, amount)| *amount > 0).chain(devices).collect()
    }

    /// All ports that it takes on its node.
    pub fn port_numbers(&self) -> impl Iterator<Item = u16> {
        self.port.into_iter().chain(self.ports.values().copied())
    }
}

/// The record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocations {
    /// By pod.
    pub pods: BTreeMap<PodId, Allocation>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Stored for Allocations {}

/// Upper bound of the bytes of an allocation in its record, its device numbers apart.
#[must_use]
pub const fn entry_bytes(pod: usize, owner: usize) -> usize {
    pod + owner + 113
}

impl Allocations {
    /// Upper bound of the record's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let unknown = |other: &Map<String, Value>| match other.is_empty() {
            true => 0,
            false => serde_json::to_vec(other).map_or(0, |text| text.len()),
        };
        let entry = |(pod, allocation): (&PodId, &Allocation)| {
            let owner = match &allocation.owner {
                AllocationOwner::Rc(_) => 40,
                AllocationOwner::Other(text) => text.len(),
            };
            let devices =
                |(kind, numbers): (&String, &BTreeSet<u32>)| kind.len() + 16 + 8 * numbers.len();
            // 9 with the number, and 11 for the field.
            let ports = allocation.ports.keys().map(|name| name.len() + 20).sum::<usize>();
            entry_bytes(pod.as_str().len(), owner)
                + allocation.devices.iter().map(devices).sum::<usize>()
                + ports
                + unknown(&allocation.other)
        };
        16 + self.pods.iter().map(entry).sum::<usize>() + unknown(&self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_parses_as_documented_and_keeps_unknown_fields() {
        let text = br#"{"pods":{"train":{"owner":"job/default/mnist/5f0c","cpu_milli":500,
            "devices":{"gpu":[0,3]},"cell":"c1"}},"epoch":7}"#;
        let read = Allocations::decode(text).unwrap();
        let train = &read.pods[&"train".parse().unwrap()];
        assert_eq!(train.devices["gpu"], [0, 3].into());
        assert_eq!(train.resources().to_string(), "cpu=500m,gpu=2");
        assert_eq!(train.owner.to_string(), "job/default/mnist/5f0c");
        let again: Value = serde_json::from_slice(&read.encode()).unwrap();
        assert_eq!((&again["epoch"], &again["pods"]["train"]["cell"]), (&7.into(), &"c1".into()));
    }

    #[test]
    fn size_is_never_underestimated() {
        let mut record = Allocations::default();
        for n in 0..50_u32 {
            let allocation = Allocation {
                owner: AllocationOwner::Other("pod_group/default/train".to_owned()),
                cpu_milli: u64::MAX,
                memory_bytes: u64::MAX,
                devices: [("gpu".to_owned(), (n * 100_000..n * 100_000 + n % 3).collect())].into(),
                port: Some(u16::MAX),
                ports: (0..n % 4).map(|n| (format!("p{n}"), u16::MAX)).collect(),
                other: [("cell".to_owned(), "c1".into())].into_iter().collect(),
            };
            record.pods.insert(format!("train-worker-{n}").parse().unwrap(), allocation);
            let (bound, size) = (record.bytes(), record.encode().len());
            assert!((size..2 * size).contains(&bound), "{bound} for {size}");
        }
    }

    #[test]
    fn an_owner_is_known_by_its_text() {
        let text = "rc/f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0";
        let owner: AllocationOwner = text.parse().unwrap();
        assert!(matches!(owner, AllocationOwner::Rc(_)));
        assert_eq!(owner.to_string(), text);
        let Ok(other) = "rc/nonsense".parse::<AllocationOwner>();
        assert_eq!(other, AllocationOwner::Other("rc/nonsense".to_owned()));
    }
}
