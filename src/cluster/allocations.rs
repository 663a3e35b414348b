//! Cache of `rcfarm/allocations/`, with this farm's own writes and reads after refusals on top.
//!
//! Keys read: `rcfarm/allocations/`. Keys written: none; whoever places pods writes them by CAS, in the transaction of the
//! pods ([`crate::placement::capacity`]). Who else writes them: every farm. A crash leaves nothing half done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::placement::capacity::{Booking, NodeCapacities, NodeCapacity};
use rcfarm_api::allocation::{AllocationOwner, Allocations};
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::node::ports::PortRange;
use rcfarm_api::{ResourceList, Stored, key};
use rcfarm_store::cache::{Cache, CacheIndex, Overlay};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{
    Decoder, Entry, Index, Key, Op, Prefix, Query, Reader, StoreError, Versioned, VersionedIndex,
};

/// What a node's record declares for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredCapacity {
    pub capacity: ResourceList,
    pub ports: Option<PortRange>,
}

/// Declared capacity of each node. The same `Arc` is kept while nothing changes.
pub type Capacities = Arc<BTreeMap<NodeName, DeclaredCapacity>>;

/// A node's record; `None`: it cannot be decoded.
type StoredAllocations = Versioned<Option<Allocations>>;

fn decode(entry: &Entry) -> Option<Allocations> {
    let allocations = Allocations::decode(&entry.value).ok();
    if allocations.is_none() {
        warn!(
            alert = true,
            key = entry.key,
            "a node's allocations cannot be read: nothing is allocated there"
        );
    }
    allocations
}

fn node_capacity(stored: &StoredAllocations, declared: DeclaredCapacity) -> NodeCapacity {
    let DeclaredCapacity { capacity, ports } = declared;
    NodeCapacity {
        capacity,
        ports,
        allocated: stored.value.clone().unwrap_or_default(),
        index: stored.index,
        is_unreadable: stored.value.is_none(),
    }
}

/// Capacity and allocations of all nodes. What is as in `old` is taken from there.
fn node_capacities(
    stored: &BTreeMap<NodeName, Arc<StoredAllocations>>,
    capacities: &Capacities,
    old: &NodeCapacities,
) -> NodeCapacities {
    let nodes: BTreeSet<&NodeName> = capacities.keys().chain(stored.keys()).collect();
    let of_node = |node: &NodeName| {
        let declared = capacities.get(node).cloned().unwrap_or_default();
        let stored = stored.get(node);
        let index = stored.map_or(Index::ZERO, |stored| stored.index);
        let is_same = |old: &&Arc<NodeCapacity>| {
            old.index == index && old.capacity == declared.capacity && old.ports == declared.ports
        };
        if let Some(old) = old.get(node).filter(is_same) {
            return old.clone();
        }
        let DeclaredCapacity { capacity, ports } = declared.clone();
        let empty = || NodeCapacity { capacity, ports, ..NodeCapacity::default() };
        Arc::new(stored.map_or_else(empty, |stored| node_capacity(stored, declared)))
    };
    nodes.into_iter().map(|node| (node.clone(), of_node(node))).collect()
}

/// Decodes `rcfarm/allocations/<node>`; `None`: it cannot be decoded.
pub struct AllocationDecoder;

impl Decoder for AllocationDecoder {
    type Key = NodeName;
    type Value = Option<Allocations>;

    fn key(prefix: &Prefix, key: &str) -> Option<NodeName> {
        prefix.tail(key)?.parse().ok()
    }

    fn decode(_: &NodeName, entry: &Entry) -> Option<Self::Value> {
        Some(decode(entry))
    }
}

/// `rcfarm/allocations/`, by node and by controller.
#[derive(Debug, Default)]
pub struct AllocationIndex {
    nodes: VersionedIndex<AllocationDecoder>,
    by_rc: BTreeMap<RcId, BTreeSet<(NodeName, PodId)>>,
}

impl AllocationIndex {
    /// RCs of which an allocation was removed or changed.
    pub fn touched(old: &Self, new: &Self) -> BTreeSet<RcId> {
        let pods = |of: &Self, node: &NodeName| {
            of.nodes.value(node).cloned().flatten().unwrap_or_default().pods
        };
        let mut touched = BTreeSet::new();
        for node in VersionedIndex::touched(&old.nodes, &new.nodes) {
            let now = pods(new, node);
            for (pod, allocation) in pods(old, node) {
                if let (AllocationOwner::Rc(rc), true) =
                    (&allocation.owner, now.get(&pod) != Some(&allocation))
                {
                    touched.insert(*rc);
                }
            }
        }
        touched
    }

    /// Capacity and allocations of the nodes.
    pub fn node_capacities(&self, capacities: &Capacities) -> NodeCapacities {
        node_capacities(&self.nodes.0, capacities, &NodeCapacities::default())
    }

    /// Nodes and pods of an RC's allocations.
    pub fn of_rc(&self, rc: RcId) -> impl Iterator<Item = &(NodeName, PodId)> {
        self.by_rc.get(&rc).into_iter().flatten()
    }
}

impl CacheIndex for AllocationIndex {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let nodes = VersionedIndex::build(&old.nodes, prefix, entries);
        let mut by_rc: BTreeMap<RcId, BTreeSet<(NodeName, PodId)>> = BTreeMap::new();
        for (node, stored) in &nodes.0 {
            for (pod, allocation) in stored.value.iter().flat_map(|record| &record.pods) {
                if let AllocationOwner::Rc(rc) = &allocation.owner {
                    by_rc.entry(*rc).or_default().insert((node.clone(), pod.clone()));
                }
            }
        }
        AllocationIndex { nodes, by_rc }
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// Prompt, because pods wait for freed capacity; bounded, because every placement changes the prefix.
const PACE: PollPolicy = PollPolicy {
    min_pause: Duration::ZERO,
    cost_factor: 10,
    burst: Duration::from_millis(100),
    max_pause: Duration::from_secs(10),
    reading: PollPolicy::PROMPT.reading,
};

/// Capacities as last computed, and their inputs.
#[derive(Default)]
struct View {
    tree: Option<Arc<AllocationIndex>>,
    capacities: Capacities,
    node_capacities: NodeCapacities,
    /// Nodes written by this farm, or read after a refusal.
    newer: Overlay<NodeName, Arc<StoredAllocations>>,
}

/// Cache of `rcfarm/allocations/`, with the writes of this farm on top.
pub struct AllocationCache {
    reader: Arc<dyn Reader>,
    /// `rcfarm/allocations/`
    pub tree: Arc<Cache<AllocationIndex>>,
    plan_lock: tokio::sync::Mutex<()>,
    view: Mutex<View>,
}

impl AllocationCache {
    /// A cache that is not read yet.
    pub fn new(reader: Arc<dyn Reader>) -> Self {
        let tree = Cache::new(reader.clone(), key::allocations(), PACE);
        AllocationCache {
            reader,
            tree,
            plan_lock: tokio::sync::Mutex::default(),
            view: Mutex::default(),
        }
    }

    /// Capacity and allocations of the nodes, with this farm's own writes.
    pub fn node_capacities(&self, capacities: &Capacities) -> NodeCapacities {
        let seen = self.tree.snapshot();
        let mut view = self.view();
        let is_of = view.tree.as_ref().is_some_and(|tree| Arc::ptr_eq(tree, &seen.value))
            && Arc::ptr_eq(&view.capacities, capacities);
        if !is_of {
            view.newer.forget_shown(&seen);
            let mut nodes = seen.value.nodes.0.clone();
            view.newer.apply(&seen, &mut nodes);
            view.node_capacities = node_capacities(&nodes, capacities, &view.node_capacities);
            (view.tree, view.capacities) = (Some(seen.value.clone()), capacities.clone());
        }
        view.node_capacities.clone()
    }

    /// Whether any node has a record of allocations.
    pub fn is_used(&self) -> bool {
        self.tree.snapshot().value.len() > 0
    }

    /// Farm-wide mutex around plan and commit of allocations. It only avoids conflicts between tasks of this farm;
    /// conflicts with other farms are resolved by CAS.
    pub async fn lock_plans(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.plan_lock.lock().await
    }

    /// Notes bookings that were committed at this index.
    pub fn wrote(&self, bookings: &[Booking], index: Index) {
        for booking in bookings.iter().filter(|booking| booking.is_change) {
            let room = booking.applied(index);
            let stored = Versioned { index, created: Index::ZERO, value: Some(room.allocated) };
            self.view().tell(&booking.node, stored, index);
        }
    }

    /// Reads some nodes now, after a transaction was refused because of them.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn reread(&self, nodes: &BTreeSet<NodeName>) -> Result<(), StoreError> {
        let read = |node: &NodeName| {
            let key = key::allocation(node);
            async move { self.reader.get(&key, Query::CONSISTENT).await }
        };
        let answers = futures_util::future::try_join_all(nodes.iter().map(read)).await?;
        for (node, answer) in nodes.iter().zip(answers) {
            let absent =
                || Versioned { value: Some(Allocations::default()), ..Versioned::default() };
            let stored = answer.value.as_ref();
            let stored = stored.map_or_else(absent, |entry| Versioned::of(entry, decode(entry)));
            let index = if stored.index == Index::ZERO { answer.index } else { stored.index };
            self.view().tell(node, stored, index);
        }
        Ok(())
    }

    fn view(&self) -> std::sync::MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn tell(&mut self, node: &NodeName, stored: StoredAllocations, index: Index) {
        let NodeCapacity { capacity, ports, .. } = self.node_capacities.of(node).clone();
        let declared = DeclaredCapacity { capacity, ports };
        self.node_capacities.insert(node.clone(), node_capacity(&stored, declared));
        self.newer.wrote(node.clone(), Some(Arc::new(stored)), index);
    }
}

/// The node whose allocations an operation writes or checks.
pub fn booked_node(op: &Op) -> Option<NodeName> {
    let key: Option<&Key> = match op {
        Op::Cas { key, .. } | Op::CheckIndex { key, .. } => Some(key),
        _ => None,
    };
    key::allocations().tail(key?.as_str())?.parse().ok()
}
