//! Changes of what several nodes have allocated, made together: in one transaction, or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::node_capacity::{Insufficient, NodeCapacity};
use rcfarm_api::Stored;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::manifest::Resources;
use rcfarm_store::{Index, Op};

/// What each node has and what of it is allocated. A node that is not there has nothing and promised nothing. Cheap to
/// clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCapacities(Arc<BTreeMap<NodeName, Arc<NodeCapacity>>>);

static NOTHING: LazyLock<NodeCapacity> = LazyLock::new(NodeCapacity::default);

impl NodeCapacities {
    /// A node's.
    #[must_use]
    pub fn of(&self, node: &NodeName) -> &NodeCapacity {
        self.0.get(node).map_or(&*NOTHING, |room| &**room)
    }

    /// Those that are known, in the order of the nodes' names.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, &NodeCapacity)> {
        self.0.iter().map(|(node, room)| (node, &**room))
    }

    /// Puts a node's in place of what was known of it.
    pub fn insert(&mut self, node: NodeName, room: impl Into<Arc<NodeCapacity>>) {
        Arc::make_mut(&mut self.0).insert(node, room.into());
    }

    /// A node's, to be kept; `None`: it is not known.
    #[must_use]
    pub fn get(&self, node: &NodeName) -> Option<&Arc<NodeCapacity>> {
        self.0.get(node)
    }
}

impl FromIterator<(NodeName, Arc<NodeCapacity>)> for NodeCapacities {
    fn from_iter<I: IntoIterator<Item = (NodeName, Arc<NodeCapacity>)>>(rooms: I) -> Self {
        NodeCapacities(Arc::new(rooms.into_iter().collect()))
    }
}

/// Promises and releases, one after the other, on a copy of what was seen.
#[derive(Debug)]
pub struct Ledger<'a> {
    seen: &'a NodeCapacities,
    touched: BTreeMap<NodeName, NodeCapacity>,
}

impl<'a> Ledger<'a> {
    /// Books in which nothing is changed yet.
    #[must_use]
    pub fn on(seen: &'a NodeCapacities) -> Self {
        Ledger { seen, touched: BTreeMap::new() }
    }

    /// A node as it is after the changes so far.
    #[must_use]
    pub fn node(&self, node: &NodeName) -> &NodeCapacity {
        self.touched.get(node).unwrap_or_else(|| self.seen.of(node))
    }

    /// [`NodeCapacity::allocate`]. A pod that wants nothing and has nothing touches no node.
    ///
    /// # Errors
    /// [`Insufficient`]: it does not fit.
    pub fn allocate(
        &mut self,
        node: &NodeName,
        pod: &PodId,
        owner: &AllocationOwner,
        want: &Resources,
    ) -> Result<(), Insufficient> {
        let room = self.node(node);
        if want.is_zero() && (room.is_unreadable || !room.allocated.pods.contains_key(pod)) {
            return Ok(());
        }
        self.touch(node).allocate(pod, owner, want)
    }

    /// [`NodeCapacity::release`]. Where nothing was allocated, no node is touched.
    pub fn release(&mut self, node: &NodeName, pod: &PodId, owner: &AllocationOwner) {
        if self.node(node).allocated.pods.get(pod).is_some_and(|a| a.owner == *owner) {
            self.touch(node).release(pod, owner);
        }
    }

    /// What the changes so far do to a node; `None`: nothing.
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

    /// One booking per node that was touched, in the order of their names.
    #[must_use]
    pub fn bookings(&self) -> Vec<Booking> {
        self.touched.keys().filter_map(|node| self.booking(node)).collect()
    }
}

/// What a transaction does to one node's record, guarded by the index at which the record was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// The node.
    pub node: NodeName,
    /// It and its promises afterwards; `index` is still that of the record as it was seen.
    pub room: NodeCapacity,
    /// Whether anything changes. If not, the promise that stands there must only still stand.
    pub is_change: bool,
}

impl Booking {
    /// The operation.
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
