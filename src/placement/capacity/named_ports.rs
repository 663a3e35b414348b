//! Ports of a pod's manifest: which numbers it gets on a node.
//!
//! A port with a number is free or not. One without keeps the number that it has, whatever the range is now. A new one
//! is of the node's range: the first free number from a place on that depends on the names of pod and port. So a pod that comes back, or has
//! pods on several nodes, mostly has the same number, and one that another pod has just left is not the next to be given.

use std::collections::BTreeMap;

use super::node_capacity::{Insufficient, NodeCapacity};
use rcfarm_api::Fnv1a;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::PodId;
use rcfarm_api::manifest::PortStanza;
use rcfarm_api::node::ports::PortRange;

impl NodeCapacity {
    /// Whether `owner`'s pod of this id has just these ports. A number outside the node's range stays.
    pub(super) fn holds_named_ports(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        wanted: &[PortStanza],
    ) -> bool {
        let own = self.allocated.pods.get(pod).filter(|allocation| allocation.owner == *owner);
        let Some(own) = own else { return wanted.is_empty() };
        let has = |port: &PortStanza| {
            let number = own.ports.get(&port.name);
            number.is_some_and(|number| port.port.is_none_or(|fixed| fixed == *number))
        };
        own.ports.len() == wanted.len() && wanted.iter().all(has)
    }

    /// Why the pod does not get these ports.
    pub(super) fn named_ports_refused(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        wanted: &[PortStanza],
    ) -> Option<Insufficient> {
        if wanted.is_empty() {
            return None;
        }
        let refused = self.entry_refused(pod, owner);
        refused.or_else(|| self.choose_ports(pod, owner, wanted).err())
    }

    /// Numbers of these ports. Those of other pods on the node are taken.
    pub(super) fn choose_ports(
        &self,
        pod: &PodId,
        owner: &AllocationOwner,
        wanted: &[PortStanza],
    ) -> Result<BTreeMap<String, u16>, Insufficient> {
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let others = self.allocated.pods.iter().filter(|(id, _)| *id != pod);
        let taken =
            others.flat_map(|(id, allocation)| allocation.port_numbers().map(move |n| (n, id)));
        let taken: BTreeMap<u16, &PodId> = taken.collect();
        let own = self.allocated.pods.get(pod).filter(|allocation| allocation.owner == *owner);
        let kept = own.map(|allocation| &allocation.ports);
        choose(pod, wanted, self.ports, &taken, kept.unwrap_or(&BTreeMap::new()))
    }
}

/// Chooses a number for each port. `taken`: those of other pods on the node. `kept`: those that the pod has.
fn choose(
    pod: &PodId,
    wanted: &[PortStanza],
    range: Option<PortRange>,
    taken: &BTreeMap<u16, &PodId>,
    kept: &BTreeMap<String, u16>,
) -> Result<BTreeMap<String, u16>, Insufficient> {
    let mut chosen: BTreeMap<String, u16> = BTreeMap::new();
    let mut of_range = Vec::new();
    for PortStanza { name, port } in wanted {
        match port {
            None => of_range.push(name),
            Some(port) => {
                if let Some(holder) = taken.get(port) {
                    return Err(Insufficient::PortTaken { port: *port, pod: (*holder).clone() });
                }
                chosen.insert(name.clone(), *port);
            }
        }
    }
    let is_free = |port: u16, chosen: &BTreeMap<String, u16>| {
        !taken.contains_key(&port) && !chosen.values().any(|other| *other == port)
    };
    // Kept ones first: no new one may take their numbers.
    for name in &of_range {
        if let Some(port) = kept.get(*name).filter(|port| is_free(**port, &chosen)) {
            chosen.insert((*name).clone(), *port);
        }
    }
    for name in of_range {
        if chosen.contains_key(name) {
            continue;
        }
        let range = range.ok_or(Insufficient::NoPortRange)?;
        let first = first_choice(pod, name, range);
        let mut candidates = (first..=*range.ports().end()).chain(*range.ports().start()..first);
        let port = candidates.find(|port| is_free(*port, &chosen));
        chosen.insert(name.clone(), port.ok_or(Insufficient::NoPort(range))?);
    }
    Ok(chosen)
}

/// The number from which on a free one is looked for.
fn first_choice(pod: &PodId, name: &str, range: PortRange) -> u16 {
    let mut hash = Fnv1a::default();
    hash.update(pod.as_str().as_bytes());
    hash.update(b"/");
    hash.update(name.as_bytes());
    let (first, count) = (*range.ports().start(), range.ports().len() as u64);
    let offset = u16::try_from(hash.finish() % count).unwrap_or_default();
    first.saturating_add(offset)
}

#[cfg(test)]
mod tests;
