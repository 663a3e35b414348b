//! One node: capacity, allocations, and whether a request fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use rcfarm_api::Index;
use rcfarm_api::allocation::{Allocation, AllocationOwner, Allocations};
use rcfarm_api::ids::PodId;
use rcfarm_api::manifest::{Manifest, PortStanza};
use rcfarm_api::node::ports::PortRange;
use rcfarm_api::resource_list::{CPU, MEMORY, ResourceList};

/// Capacity and allocations of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeCapacity {
    /// Declared capacity; all zero: not declared.
    #[serde(with = "rcfarm_api::resource_list::units")]
    pub capacity: ResourceList,
    pub allocated: Allocations,
    /// Range of ports that it gives to pods; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// ModifyIndex of the record of its allocations; 0: there is none.
    pub index: Index,
    /// The record cannot be decoded: nothing is allocated, and it is not changed.
    pub is_unreadable: bool,
}

/// Limit of the record of a node's allocations, in bytes: it must fit into a transaction with others. It bounds the
/// number of devices, each of which is listed.
const LARGEST_RECORD: u64 = 304 * 1024;
/// From this size on a node gets no gang, whose pods may take the rest.
const CROWDED_RECORD: usize = 128 * 1024;

/// Why a request does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Insufficient {
    /// The node declares no capacity (p2's nodes, or an agent without `--capacity`).
    NothingDeclared,
    /// The record of its allocations cannot be decoded.
    Unreadable,
    /// Another owner's pod has this id.
    Taken(AllocationOwner),
    /// The record of its allocations has no room for the pod and its devices.
    Full,
    /// Another pod has this port.
    PortTaken { port: u16, pod: PodId },
    /// The node gives out no ports.
    NoPortRange,
    /// Other pods have all ports that the node gives out.
    NoPort(PortRange),
    /// Other pods have these devices, or the node lacks them.
    DevicesTaken(Vec<u32>),
    /// Too little of these.
    Short(Vec<Short>),
}

/// What is allocated to a pod.
#[derive(Debug, Clone, Copy)]
pub struct PodResources<'a> {
    /// Amounts; devices are counted.
    pub amounts: &'a ResourceList,
    /// Its port.
    pub port: Option<u16>,
    /// Numbers of its devices, of one kind; empty: any are right.
    pub devices: &'a BTreeSet<u32>,
    /// Ports of its manifest.
    pub named_ports: &'a [PortStanza],
}

static ANY_DEVICES: BTreeSet<u32> = BTreeSet::new();

impl<'a> PodResources<'a> {
    /// Nothing but these amounts.
    #[must_use]
    pub fn of_amounts(amounts: &'a ResourceList) -> Self {
        PodResources { amounts, port: None, devices: &ANY_DEVICES, named_ports: &[] }
    }

    /// What the manifest of an RC's pod asks for.
    #[must_use]
    pub fn of_manifest(manifest: &'a Manifest) -> Self {
        PodResources { named_ports: manifest.ports(), ..Self::of_amounts(manifest.resources()) }
    }

    /// Whether the pod needs no allocation.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.amounts.is_zero() && self.port.is_none() && self.named_ports.is_empty()
    }

    /// Kind of the devices that are named.
    fn kind(&self) -> Option<&str> {
        let mut kinds = self.amounts.devices().filter(|(_, count)| *count > 0);
        kinds.next().map(|(kind, _)| kind).filter(|_| !self.devices.is_empty())
    }
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
    fn allocated_beside(&self, pod: Option<&PodId>) -> ResourceList {
        let mut sum = ResourceList::default();
        let others = self.allocated.pods.iter().filter(|(id, _)| Some(*id) != pod);
        others.for_each(|(_, allocation)| sum.add(&allocation.resources()));
        sum
    }

    fn free_beside(&self, pod: Option<&PodId>) -> ResourceList {
        self.capacity.beyond(&self.allocated_beside(pod))
    }

    /// Capacity that is not allocated.
    #[must_use]
    pub fn free(&self) -> ResourceList {
        self.free_beside(None)
    }

    /// Another owner that has an allocation under the id `pod`.
    ///
    /// An RC's allocation is no bar to another RC. An RC's pod is created in the same transaction, which Consul refuses
    /// while the other's pod has labels; what is allocated without a pod is orphaned.
    #[must_use]
    pub fn taken_by(&self, pod: &PodId, owner: &AllocationOwner) -> Option<&AllocationOwner> {
        let holder = &self.allocated.pods.get(pod)?.owner;
        let both_rcs = matches!((holder, owner), (AllocationOwner::Rc(_), AllocationOwner::Rc(_)));
        (holder != owner && !both_rcs).then_some(holder)
    }

    /// Why `want` does not fit beside the other pods' allocations; `None`: it does. What `owner`'s pod of this id was
    /// allocated counts as free.
    #[must_use]
    pub fn insufficient(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
    ) -> Option<Insufficient> {
        if want.is_zero() {
            return None;
        }
        if let Some(holder) = self.taken_by(pod, owner) {
            return Some(Insufficient::Taken(holder.clone()));
        }
        if self.is_unreadable {
            return Some(Insufficient::Unreadable);
        }
        if self.capacity.is_zero() {
            return Some(Insufficient::NothingDeclared);
        }
        let is_new = !self.allocated.pods.contains_key(pod);
        let beside = if is_new { self.allocated.bytes() } else { 0 };
        if beside as u64 >= LARGEST_RECORD || device_bytes(want) >= LARGEST_RECORD - beside as u64 {
            return Some(Insufficient::Full);
        }
        let short = shortages(want, &self.free_beside(Some(pod)), &self.capacity);
        (!short.is_empty()).then_some(Insufficient::Short(short))
    }

    /// [`NodeCapacity::insufficient`] of everything that a pod needs.
    #[must_use]
    pub fn insufficient_for(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &PodResources<'_>,
    ) -> Option<Insufficient> {
        let of_port = || want.port.and_then(|port| self.port_refused(pod, owner, port));
        let of_named = || self.named_ports_refused(pod, owner, want.named_ports);
        let insufficient = self.insufficient(pod, owner, want.amounts);
        insufficient.or_else(of_port).or_else(of_named).or_else(|| self.devices_refused(pod, want))
    }

    /// Whether the record of its allocations is too large for the pods of another gang.
    pub(super) fn is_crowded(&self) -> bool {
        self.allocated.bytes() >= CROWDED_RECORD
    }

    /// Whether `owner`'s pod of this id was allocated exactly that.
    #[must_use]
    pub fn holds(&self, pod: &PodId, owner: &AllocationOwner, want: &ResourceList) -> bool {
        match self.allocated.pods.get(pod) {
            Some(_) if self.taken_by(pod, owner).is_some() => want.is_zero(),
            Some(allocation) => allocation.owner == *owner && allocation.resources().equals(want),
            None => want.is_zero(),
        }
    }

    /// [`NodeCapacity::holds`], and the pod has this port. Without a port only the amounts count.
    #[must_use]
    pub fn holds_with_port(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
        port: Option<u16>,
    ) -> bool {
        let has_port = |port| {
            let allocation = self.allocated.pods.get(pod);
            allocation.is_some_and(|a| a.owner == *owner && a.port == Some(port))
        };
        self.holds(pod, owner, want) && port.is_none_or(has_port)
    }

    /// [`NodeCapacity::holds_with_port`], and the pod has the ports of its manifest and these devices, if any are named.
    #[must_use]
    pub fn holds_devices(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &PodResources<'_>,
    ) -> bool {
        let has_devices = || {
            let allocation = self.allocated.pods.get(pod);
            allocation.is_some_and(|a| a.devices.values().all(|of| of == want.devices))
        };
        self.holds_with_port(pod, owner, want.amounts, want.port)
            && self.holds_named_ports(pod, owner, want.named_ports)
            && (want.devices.is_empty() || has_devices())
    }

    /// Those of these devices that other pods have, or that the node lacks.
    fn devices_refused(&self, pod: &PodId, want: &PodResources<'_>) -> Option<Insufficient> {
        let kind = want.kind()?;
        let others = self.allocated.pods.iter().filter(|(id, _)| *id != pod);
        let taken: BTreeSet<u32> =
            others.filter_map(|(_, a)| a.devices.get(kind)).flatten().copied().collect();
        let has = self.capacity.amount(kind);
        let missing = want.devices.iter().filter(|n| taken.contains(n) || u64::from(**n) >= has);
        let missing: Vec<u32> = missing.copied().collect();
        (!missing.is_empty()).then_some(Insufficient::DevicesTaken(missing))
    }

    /// Ports that pods have.
    #[must_use]
    pub fn ports_in_use(&self) -> BTreeSet<u16> {
        self.allocated.pods.values().flat_map(Allocation::port_numbers).collect()
    }

    /// Number of ports that no pod has; `None`: the node gives out none.
    #[must_use]
    pub fn free_ports(&self) -> Option<u64> {
        let range = self.ports?.ports();
        let in_use = self.ports_in_use().into_iter().filter(|port| range.contains(port)).count();
        Some((range.len() as u64).saturating_sub(in_use as u64))
    }

    /// Why the record of its allocations gets no entry of a pod that needs ports.
    pub(super) fn entry_refused(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
    ) -> Option<Insufficient> {
        if let Some(holder) = self.taken_by(pod, owner) {
            return Some(Insufficient::Taken(holder.clone()));
        }
        if self.is_unreadable {
            return Some(Insufficient::Unreadable);
        }
        let is_new = !self.allocated.pods.contains_key(pod);
        (is_new && self.allocated.bytes() as u64 >= LARGEST_RECORD).then_some(Insufficient::Full)
    }

    fn port_refused(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        port: u16,
    ) -> Option<Insufficient> {
        let taken = || {
            let mut others = self.allocated.pods.iter().filter(|(id, _)| *id != pod);
            let holder =
                others.find(|(_, allocation)| allocation.port_numbers().any(|p| p == port));
            holder.map(|(id, _)| Insufficient::PortTaken { port, pod: id.clone() })
        };
        self.entry_refused(pod, owner).or_else(taken)
    }

    /// Allocates `want` to `owner`'s pod of this id, replacing its allocation; removes it if `want` is zero. A pod keeps
    /// its devices; new ones are the free ones with the lowest numbers. An equal allocation stays as it is, even if the
    /// capacity has shrunk.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit. Nothing is changed.
    pub fn allocate(
        &mut self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
    ) -> Result<(), Insufficient> {
        self.allocate_with_port(pod, owner, want, None)
    }

    /// [`NodeCapacity::allocate`], with a port that no other pod has.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit. Nothing is changed.
    pub fn allocate_with_port(
        &mut self,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
        port: Option<u16>,
    ) -> Result<(), Insufficient> {
        self.allocate_devices(pod, owner, &PodResources { port, ..PodResources::of_amounts(want) })
    }

    /// [`NodeCapacity::allocate_with_port`], with the ports of the pod's manifest, and devices of these numbers if any
    /// are named. A port of the manifest keeps its number while the pod may have it.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit. Nothing is changed.
    pub fn allocate_devices(
        &mut self,
        pod: &PodId,
        owner: &AllocationOwner,
        wanted: &PodResources<'_>,
    ) -> Result<(), Insufficient> {
        if self.holds_devices(pod, owner, wanted) {
            return Ok(());
        }
        let (want, port) = (wanted.amounts, wanted.port);
        if wanted.is_nothing() {
            self.allocated.pods.remove(pod);
            return Ok(());
        }
        if let Some(insufficient) = self.insufficient_for(pod, owner, wanted) {
            return Err(insufficient);
        }
        let ports = self.choose_ports(pod, owner, wanted.named_ports)?;
        let old = self.allocated.pods.remove(pod).filter(|old| old.owner == *owner);
        let old = old.unwrap_or_default();
        let devices = want.devices().filter(|(_, count)| *count > 0);
        let devices = devices.map(|(kind, count)| {
            let kept = match wanted.devices.is_empty() {
                true => old.devices.get(kind).cloned().unwrap_or_default(),
                false => wanted.devices.clone(),
            };
            (kind.to_owned(), self.choose(kind, count, &kept))
        });
        let allocation = Allocation {
            owner: owner.clone(),
            cpu_milli: want.amount(CPU),
            memory_bytes: want.amount(MEMORY),
            devices: devices.collect(),
            port,
            ports,
            other: old.other,
        };
        self.allocated.pods.insert(pod.clone(), allocation);
        Ok(())
    }

    /// Chooses `count` devices of a kind: free ones of `kept`, then the free ones with the lowest numbers.
    fn choose(&self, kind: &str, count: u64, kept: &BTreeSet<u32>) -> BTreeSet<u32> {
        let all = 0..u32::try_from(self.capacity.amount(kind)).unwrap_or(u32::MAX);
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
        first.chain(then).take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
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
        let over = |name: &&str| {
            let [allocated, capacity] = [allocated.amount(name), self.capacity.amount(name)];
            let [used, there] = [allocated, capacity].map(|n| ResourceList::spell(name, n));
            (allocated > capacity).then(|| format!("{name}: {used} allocated of {there}"))
        };
        let mut faults: Vec<String> = [CPU, MEMORY].iter().filter_map(over).collect();
        let mut holders: BTreeMap<(&str, u32), Vec<&PodId>> = BTreeMap::new();
        for (pod, allocation) in &self.allocated.pods {
            for (kind, numbers) in &allocation.devices {
                numbers.iter().for_each(|n| holders.entry((kind, *n)).or_default().push(pod));
            }
        }
        let mut ports: BTreeMap<u16, &PodId> = BTreeMap::new();
        for (pod, allocation) in &self.allocated.pods {
            for port in allocation.port_numbers() {
                if let Some(other) = ports.insert(port, pod) {
                    faults.push(format!("port {port} is allocated to {other} and {pod}"));
                }
            }
        }
        for ((kind, number), pods) in holders {
            let has = self.capacity.amount(kind);
            if u64::from(number) >= has {
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

/// Size of the numbers of as many devices in a record, in bytes; an upper bound.
fn device_bytes(want: &ResourceList) -> u64 {
    want.devices().fold(0_u64, |sum, (_, count)| sum.saturating_add(count.saturating_mul(8)))
}

/// Resources of which `free` is less than `want`.
pub(super) fn shortages(
    want: &ResourceList,
    free: &ResourceList,
    capacity: &ResourceList,
) -> Vec<Short> {
    let short = |(what, wanted): (&str, u64)| {
        let (free, capacity) = (free.amount(what), capacity.amount(what));
        (wanted > free).then(|| Short { what: what.to_owned(), wanted, free, capacity })
    };
    want.iter().filter_map(short).collect()
}

impl fmt::Display for PodResources<'_> {
    /// Amounts, and ports by name or number: `cpu=1 and ports http, 9000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = self.named_ports.iter();
        let ports = ports.map(|port| port.port.map_or(port.name.clone(), |port| port.to_string()));
        let ports: Vec<String> = ports.collect();
        let word = if ports.len() == 1 { "port" } else { "ports" };
        match (self.amounts.is_zero(), ports.is_empty()) {
            (_, true) => self.amounts.fmt(f),
            (true, false) => write!(f, "{word} {}", ports.join(", ")),
            (false, false) => write!(f, "{} and {word} {}", self.amounts, ports.join(", ")),
        }
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |amount| ResourceList::spell(&self.what, amount);
        let (wanted, free) = (words(self.wanted), words(self.free));
        write!(f, "{}: {wanted} wanted, {free} of {} free", self.what, words(self.capacity))
    }
}

impl fmt::Display for Insufficient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Insufficient::NothingDeclared => f.write_str("it declares no capacity"),
            Insufficient::Unreadable => f.write_str("the record of its allocations cannot be read"),
            Insufficient::Taken(owner) => write!(f, "a pod of {owner} has its id"),
            Insufficient::Full => {
                f.write_str("the record of its allocations is full: too many pods or devices")
            }
            Insufficient::PortTaken { port, pod } => write!(f, "pod {pod} has port {port}"),
            Insufficient::NoPortRange => f.write_str("it gives out no ports (--ports)"),
            Insufficient::NoPort(range) => write!(f, "all its ports, {range}, are taken"),
            Insufficient::DevicesTaken(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                write!(f, "its devices {} are taken, or not there", numbers.join(", "))
            }
            Insufficient::Short(all) => {
                let all: Vec<String> = all.iter().map(Short::to_string).collect();
                f.write_str(&all.join("; "))
            }
        }
    }
}
