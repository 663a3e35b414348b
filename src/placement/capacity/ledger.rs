//! Allocations and releases on several nodes, committed in one transaction.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::node_capacity::{Insufficient, NodeCapacity, PodResources};
use rcfarm_api::ResourceList;
use rcfarm_api::Stored;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_store::{Index, Op, differing};

/// Capacity and allocations of each node. An unknown node has no capacity. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCapacities(Arc<BTreeMap<NodeName, Arc<NodeCapacity>>>);

static NOTHING: LazyLock<NodeCapacity> = LazyLock::new(NodeCapacity::default);

impl NodeCapacities {
    #[must_use]
    pub fn of(&self, node: &NodeName) -> &NodeCapacity {
        self.0.get(node).map_or(&*NOTHING, |room| &**room)
    }

    /// Known nodes in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &NodeCapacity)> {
        self.0.iter().map(|(node, room)| (node, &**room))
    }

    /// Replaces a node's capacity.
    pub fn insert(&mut self, node: NodeName, room: impl Into<Arc<NodeCapacity>>) {
        Arc::make_mut(&mut self.0).insert(node, room.into());
    }

    /// Nodes that are another object in `old`, or are not in both.
    #[must_use]
    pub fn differing<'a>(&'a self, old: &'a NodeCapacities) -> Vec<&'a NodeName> {
        if Arc::ptr_eq(&self.0, &old.0) {
            return Vec::new();
        }
        differing(&old.0, &self.0, Arc::ptr_eq)
    }

    /// Capacity of a node, shared; `None`: it is not known.
    #[must_use]
    pub fn get(&self, node: &NodeName) -> Option<&Arc<NodeCapacity>> {
        self.0.get(node)
    }
}

impl FromIterator<(NodeName, Arc<NodeCapacity>)> for NodeCapacities {
    fn from_iter<I: IntoIterator<Item = (NodeName, Arc<NodeCapacity>)>>(
        node_capacities: I,
    ) -> Self {
        NodeCapacities(Arc::new(node_capacities.into_iter().collect()))
    }
}

/// Allocations and releases on a copy of what was seen.
#[derive(Debug)]
pub struct Ledger<'a> {
    seen: &'a NodeCapacities,
    touched: BTreeMap<NodeName, NodeCapacity>,
}

impl<'a> Ledger<'a> {
    /// A ledger without changes.
    #[must_use]
    pub fn on(seen: &'a NodeCapacities) -> Self {
        Ledger { seen, touched: BTreeMap::new() }
    }

    /// A node as it is after the changes so far.
    #[must_use]
    pub fn node(&self, node: &NodeName) -> &NodeCapacity {
        self.touched.get(node).unwrap_or_else(|| self.seen.of(node))
    }

    /// [`NodeCapacity::allocate`]. A pod that asks for nothing and has nothing changes no node.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit.
    pub fn allocate(
        &mut self,
        node: &NodeName,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
    ) -> Result<(), Insufficient> {
        self.allocate_with_port(node, pod, owner, want, None)
    }

    /// [`NodeCapacity::allocate_with_port`].
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit.
    pub fn allocate_with_port(
        &mut self,
        node: &NodeName,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &ResourceList,
        port: Option<u16>,
    ) -> Result<(), Insufficient> {
        let want = PodResources { port, ..PodResources::of_amounts(want) };
        self.allocate_devices(node, pod, owner, &want)
    }

    /// [`NodeCapacity::allocate_devices`].
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit.
    pub fn allocate_devices(
        &mut self,
        node: &NodeName,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &PodResources<'_>,
    ) -> Result<(), Insufficient> {
        let room = self.node(node);
        if want.is_nothing() && (room.is_unreadable || !room.allocated.pods.contains_key(pod)) {
            return Ok(());
        }
        self.touch(node).allocate_devices(pod, owner, want)
    }

    /// [`NodeCapacity::release`]. Does nothing if nothing was allocated.
    pub fn release(&mut self, node: &NodeName, pod: &PodId, owner: &AllocationOwner) {
        if self.node(node).allocated.pods.get(pod).is_some_and(|a| a.owner == *owner) {
            self.touch(node).release(pod, owner);
        }
    }

    /// Makes the transaction depend on the node's record as it was seen, where it has one.
    pub fn check(&mut self, node: &NodeName) {
        if self.node(node).index > Index::ZERO {
            self.touch(node);
        }
    }

    /// The booking of a node; `None`: it is not touched.
    #[must_use]
    pub fn booking(&self, node: &NodeName) -> Option<Booking> {
        let room = self.touched.get(node)?.clone();
        let is_change = room.allocated != self.seen.of(node).allocated;
        Some(Booking { node: node.clone(), room, is_change })
    }

    fn touch(&mut self, node: &NodeName) -> &mut NodeCapacity {
        let seen = self.seen;
        self.touched.entry(node.clone()).or_insert_with(|| seen.of(node).clone())
    }

    /// One booking per touched node, in the order of their names.
    #[must_use]
    pub fn bookings(&self) -> Vec<Booking> {
        self.touched.keys().filter_map(|node| self.booking(node)).collect()
    }
}

/// Change of one node's record, guarded by the index at which it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    pub node: NodeName,
    /// The node after the change. `index` is that at which the record was seen.
    pub room: NodeCapacity,
    /// Whether anything changes. If not, the operation only checks the index.
    pub is_change: bool,
}

impl Booking {
    #[must_use]
    pub fn op(&self) -> Op {
        let (key, index) = (key::allocation(&self.node), self.room.index);
        match self.is_change {
            true => Op::Cas { key, value: self.room.allocated.encode(), flags: 0, index },
            false => Op::CheckIndex { key, index },
        }
    }

    /// The node once the transaction was applied at `index`.
    #[must_use]
    pub fn applied(&self, index: Index) -> NodeCapacity {
        let index = if self.is_change { index } else { self.room.index };
        NodeCapacity { index, ..self.room.clone() }
    }
}
