//! One node: capacity, allocations, and whether a request fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use rcfarm_api::Index;
use rcfarm_api::allocation::{Allocation, AllocationOwner, Allocations};
use rcfarm_api::ids::PodId;
use rcfarm_api::manifest::Resources;

/// Capacity and allocations of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCapacity {
    /// Declared capacity; all zero: not declared.
    pub capacity: Resources,
    /// What is allocated.
    pub allocated: Allocations,
    /// ModifyIndex of the record of its allocations; 0: there is none.
    pub index: Index,
    /// The record cannot be decoded: nothing is allocated, and it is not changed.
    pub is_unreadable: bool,
}

/// Why a request does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insufficient {
    /// The node declares no capacity (p2's nodes, or an agent without `--capacity`).
    NothingDeclared,
    /// The record of its allocations cannot be decoded.
    Unreadable,
    /// Too little of these.
    Short(Vec<Short>),
}

/// Too little of one resource. CPU is in thousandths, memory in bytes, devices are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// `cpu`, `memory`, or a kind of device.
    pub what: String,
    /// Asked for.
    pub wanted: u64,
    /// Not allocated.
    pub free: u64,
    /// Declared capacity.
    pub capacity: u64,
}

impl NodeCapacity {
    /// Sum of the allocations of all pods but `pod`.
    fn allocated_beside(&self, pod: Option<&PodId>) -> Resources {
        let mut sum = Resources::default();
        for allocation in
            self.allocated.pods.iter().filter(|(id, _)| Some(*id) != pod).map(|(_, a)| a)
        {
            sum.cpu_milli = sum.cpu_milli.saturating_add(allocation.cpu_milli);
            sum.memory_bytes = sum.memory_bytes.saturating_add(allocation.memory_bytes);
            for (kind, numbers) in &allocation.devices {
                let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                let allocated = sum.devices.entry(kind.clone()).or_default();
                *allocated = allocated.saturating_add(count);
            }
        }
        sum
    }

    fn free_beside(&self, pod: Option<&PodId>) -> Resources {
        let allocated = self.allocated_beside(pod);
        let devices = self.capacity.devices.iter().map(|(kind, count)| {
            let allocated = allocated.devices.get(kind).copied().unwrap_or(0);
            (kind.clone(), count.saturating_sub(allocated))
        });
        Resources {
            cpu_milli: self.capacity.cpu_milli.saturating_sub(allocated.cpu_milli),
            memory_bytes: self.capacity.memory_bytes.saturating_sub(allocated.memory_bytes),
            devices: devices.collect(),
        }
    }

    /// Capacity that is not allocated.
    #[must_use]
    pub fn free(&self) -> Resources {
        self.free_beside(None)
    }

    /// Why `want` does not fit beside the other pods' allocations; `None`: it does. What `pod` itself was allocated
    /// counts as free.
    #[must_use]
    pub fn insufficient(&self, pod: &PodId, want: &Resources) -> Option<Insufficient> {
        if want.is_zero() {
            return None;
        }
        if self.is_unreadable {
            return Some(Insufficient::Unreadable);
        }
        if self.capacity.is_zero() {
            return Some(Insufficient::NothingDeclared);
        }
        let short = shortages(want, &self.free_beside(Some(pod)), &self.capacity);
        (!short.is_empty()).then_some(Insufficient::Short(short))
    }

    /// Whether `pod` was allocated exactly that.
    #[must_use]
    pub fn holds(&self, pod: &PodId, owner: &AllocationOwner, want: &Resources) -> bool {
        match self.allocated.pods.get(pod) {
            Some(allocation) => allocation.owner == *owner && same(&allocation.amounts(), want),
            None => want.is_zero(),
        }
    }

    /// Allocates `want` to `pod`, replacing its allocation; removes it if `want` is zero. A pod keeps its devices; new
    /// ones are the free ones with the lowest numbers. An equal allocation stays as it is, even if the capacity has
    /// shrunk.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit. Nothing is changed.
    pub fn allocate(
        &mut self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &Resources,
    ) -> Result<(), Insufficient> {
        if self.holds(pod, owner, want) {
            return Ok(());
        }
        if want.is_zero() {
            self.allocated.pods.remove(pod);
            return Ok(());
        }
        if let Some(insufficient) = self.insufficient(pod, want) {
            return Err(insufficient);
        }
        let old = self.allocated.pods.remove(pod).filter(|old| old.owner == *owner);
        let old = old.unwrap_or_default();
        let devices = want.devices.iter().filter(|(_, count)| **count > 0);
        let devices = devices.map(|(kind, count)| {
            let kept = old.devices.get(kind).cloned().unwrap_or_default();
            (kind.clone(), self.choose(kind, *count, &kept))
        });
        let allocation = Allocation {
            owner: owner.clone(),
            cpu_milli: want.cpu_milli,
            memory_bytes: want.memory_bytes,
            devices: devices.collect(),
            other: old.other,
        };
        self.allocated.pods.insert(pod.clone(), allocation);
        Ok(())
    }

    /// Chooses `count` devices of a kind: free ones of `kept`, then the free ones with the lowest numbers.
    fn choose(&self, kind: &str, count: u32, kept: &BTreeSet<u32>) -> BTreeSet<u32> {
        let all = 0..self.capacity.devices.get(kind).copied().unwrap_or(0);
        let taken: BTreeSet<u32> = self
            .allocated
            .pods
            .values()
            .filter_map(|a| a.devices.get(kind))
            .flatten()
            .copied()
            .collect();
        let free = |number: &u32| all.contains(number) && !taken.contains(number);
        let first = kept.iter().copied().filter(free);
        let then = all.clone().filter(|number| free(number) && !kept.contains(number));
        first.chain(then).take(count as usize).collect()
    }

    /// Releases the allocation of `owner`'s pod; `false`: there was none.
    pub fn release(&mut self, pod: &PodId, owner: &AllocationOwner) -> bool {
        let is_owners = self.allocated.pods.get(pod).is_some_and(|a| a.owner == *owner);
        is_owners && self.allocated.pods.remove(pod).is_some()
    }

    /// Describes inconsistent allocations: more than the capacity, or a device twice. Placing pods causes neither; a
    /// lowered capacity or a manual edit does.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let allocated = self.allocated_beside(None);
        let over = |what: &str, allocated: u64, capacity: u64| {
            let words = |amount| in_words(what, amount);
            (allocated > capacity)
                .then(|| format!("{what}: {} allocated of {}", words(allocated), words(capacity)))
        };
        let capacity = &self.capacity;
        let mut faults: Vec<String> = Vec::new();
        faults.extend(over("cpu", allocated.cpu_milli, capacity.cpu_milli));
        faults.extend(over("memory", allocated.memory_bytes, capacity.memory_bytes));
        let mut holders: BTreeMap<(&str, u32), Vec<&PodId>> = BTreeMap::new();
        for (pod, allocation) in &self.allocated.pods {
            for (kind, numbers) in &allocation.devices {
                numbers.iter().for_each(|n| holders.entry((kind, *n)).or_default().push(pod));
            }
        }
        for ((kind, number), pods) in holders {
            let has = capacity.devices.get(kind).copied().unwrap_or(0);
            if number >= has {
                faults.push(format!(
                    "{kind} {number} is allocated to {}, and there are {has}",
                    pods[0]
                ));
            }
            if pods.len() > 1 {
                let pods: Vec<&str> = pods.iter().map(|pod| pod.as_str()).collect();
                faults.push(format!("{kind} {number} is allocated to {}", pods.join(" and ")));
            }
        }
        faults
    }
}

/// Resources of which `free` is less than `want`.
pub(super) fn shortages(want: &Resources, free: &Resources, capacity: &Resources) -> Vec<Short> {
    let short = |what: &str, wanted: u64, free: u64, capacity: u64| {
        (wanted > free).then(|| Short { what: what.to_owned(), wanted, free, capacity })
    };
    let count = |of: &Resources, kind: &str| u64::from(of.devices.get(kind).copied().unwrap_or(0));
    let cpu = short("cpu", want.cpu_milli, free.cpu_milli, capacity.cpu_milli);
    let memory = short("memory", want.memory_bytes, free.memory_bytes, capacity.memory_bytes);
    let devices = want.devices.iter().filter_map(|(kind, wanted)| {
        short(kind, u64::from(*wanted), count(free, kind), count(capacity, kind))
    });
    cpu.into_iter().chain(memory).chain(devices).collect()
}

/// Compares requests, ignoring devices with a count of 0.
fn same(a: &Resources, b: &Resources) -> bool {
    let devices = |of: &Resources| -> Vec<(String, u32)> {
        of.devices.iter().filter(|(_, n)| **n > 0).map(|(k, n)| (k.clone(), *n)).collect()
    };
    (a.cpu_milli, a.memory_bytes) == (b.cpu_milli, b.memory_bytes) && devices(a) == devices(b)
}

/// An amount as people write it.
fn in_words(what: &str, amount: u64) -> String {
    match what {
        "cpu" => Resources::cpu_in_words(amount),
        "memory" => Resources::memory_in_words(amount),
        _ => amount.to_string(),
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |amount| in_words(&self.what, amount);
        let (wanted, free) = (words(self.wanted), words(self.free));
        write!(f, "{}: {wanted} wanted, {free} of {} free", self.what, words(self.capacity))
    }
}

impl fmt::Display for Insufficient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Insufficient::NothingDeclared => f.write_str("it declares no capacity"),
            Insufficient::Unreadable => f.write_str("the record of its allocations cannot be read"),
            Insufficient::Short(all) => {
                let all: Vec<String> = all.iter().map(Short::to_string).collect();
                f.write_str(&all.join("; "))
            }
        }
    }
}
