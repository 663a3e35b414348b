//! Nodes by what is free on them, so that a placement compares classes of equal nodes and not each node. Pure.
//!
//! Nodes of equal capacity and equal free capacity form a class: a pod fits on all of them or on none, and they rank
//! the same but for the tie-break. The index is kept between passes and follows the fleet by its differences.
//!
//! A caller that remembers what did not fit takes an [`IndexVersion`]. [`FleetIndex::may_have_room`] tells whether anything
//! has happened since then that could make it fit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gang::{Decision, Fleet, Gang, GangPlacement};
use super::ledger::NodeCapacities;
use super::node_capacity::NodeCapacity;
use super::place::{FreeCapacity, decide};
use rcfarm_api::ResourceList;
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::Selector;
use rcfarm_api::pod_group::spec::TaskSpec;

/// Limit of the selectors whose nodes are kept between passes; beyond it they are found again.
const MOST_POOLS: usize = 256;

/// Position of a node among those with labels, in the order of their names.
pub(super) type NodeAt = usize;

/// A node with labels.
#[derive(Debug)]
pub(super) struct IndexedNode {
    pub(super) name: NodeName,
    pub(super) free: Arc<FreeCapacity>,
    /// Whether it may get pods; only then it is in a class.
    pub(super) is_fit: bool,
}

/// Nodes that match a selector.
#[derive(Debug)]
pub(super) struct Pool {
    /// In the order of their names, fit or not.
    pub(super) nodes: Vec<NodeAt>,
    /// Whether each node of the index matches.
    is_member: Vec<bool>,
    /// Number of matching fit nodes.
    pub(super) eligible: usize,
}

impl Pool {
    pub(super) fn has(&self, at: NodeAt) -> bool {
        self.is_member[at]
    }
}

/// Moment at which something did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexVersion {
    /// Number of changes of any node.
    changes: u64,
    /// Number of changes of labels and of fit nodes.
    pools: u64,
    /// Number of times that a node had more room than before.
    grown: u64,
}

/// Nodes by free capacity.
#[derive(Debug, Default)]
pub struct FleetIndex {
    fleet: Fleet,
    /// Sum of the declared capacities of all nodes.
    total: ResourceList,
    pub(super) nodes: Vec<IndexedNode>,
    /// Fit nodes by class.
    pub(super) classes: BTreeMap<Arc<FreeCapacity>, BTreeSet<NodeAt>>,
    /// Of each resource, no class has more free.
    most: ResourceList,
    pools: BTreeMap<String, Pool>,
    /// Nodes that had more room than before, oldest first; those before [`FleetIndex::grown_from`] are forgotten.
    grown: Vec<NodeAt>,
    grown_from: u64,
    changes: u64,
    pools_changed: u64,
    steps: usize,
}

impl FleetIndex {
    /// Index of a fleet.
    #[must_use]
    pub fn of(fleet: &Fleet) -> FleetIndex {
        let mut index = FleetIndex::default();
        index.follow(fleet);
        index
    }

    /// Takes over a fleet. What equals the present one costs nothing. Begins to count steps anew.
    pub fn follow(&mut self, fleet: &Fleet) {
        self.steps = 0;
        let old = &self.fleet.labels;
        if !Arc::ptr_eq(old, &fleet.labels) && **old != *fleet.labels {
            return self.rebuild(fleet);
        }
        self.fleet.labels = fleet.labels.clone();
        self.set_unfit(fleet);
        let changed = fleet.node_capacities.differing(&self.fleet.node_capacities);
        let changed: Vec<NodeName> = changed.into_iter().cloned().collect();
        let old = std::mem::replace(&mut self.fleet.node_capacities, fleet.node_capacities.clone());
        let mut is_total = true;
        for name in &changed {
            let now = fleet.node_capacities.of(name);
            is_total &= now.capacity == old.of(name).capacity;
            self.set(name, FreeCapacity::of(now));
        }
        if !is_total {
            self.changes += 1;
            self.total = total(&self.fleet.node_capacities);
        }
        if !changed.is_empty() {
            self.most = ResourceList::default();
            let free: Vec<Arc<FreeCapacity>> = self.classes.keys().cloned().collect();
            free.iter().for_each(|free| self.raise_most(free));
        }
        if self.grown.len() > self.nodes.len() {
            self.grown_from += self.grown.len() as u64;
            self.grown.clear();
        }
        if self.pools.len() > MOST_POOLS {
            self.pools.clear();
        }
    }

    fn rebuild(&mut self, fleet: &Fleet) {
        let node = |name: &NodeName| IndexedNode {
            name: name.clone(),
            free: Arc::new(FreeCapacity::of(fleet.node_capacities.of(name))),
            is_fit: !fleet.unfit.contains(name),
        };
        let built = FleetIndex {
            fleet: fleet.clone(),
            total: total(&fleet.node_capacities),
            nodes: fleet.labels.nodes.keys().map(node).collect(),
            changes: self.changes + 1,
            pools_changed: self.pools_changed + 1,
            grown_from: self.grown_from + self.grown.len() as u64,
            ..FleetIndex::default()
        };
        *self = built;
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_fit {
                self.enter(at);
            }
        }
    }

    /// Nodes as they are now, with the allocations of [`FleetIndex::insert`].
    #[must_use]
    pub fn node_capacities(&self) -> &NodeCapacities {
        &self.fleet.node_capacities
    }

    /// Replaces the allocations of a node. Its declared capacity stays.
    pub fn insert(&mut self, node: NodeName, room: NodeCapacity) {
        let free = FreeCapacity::of(&room);
        self.set(&node, free);
        self.fleet.node_capacities.insert(node, room);
    }

    /// Comparisons since [`FleetIndex::follow`]: a measure of time that does not depend on the machine.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    #[must_use]
    pub fn version(&self) -> IndexVersion {
        let grown = self.grown_from + self.grown.len() as u64;
        IndexVersion { changes: self.changes, pools: self.pools_changed, grown }
    }

    /// Whether a gang that did not fit at a version may fit now. Pods of one task fit together if there is room for each,
    /// so only nodes with more room than before count. Of several tasks the choice of nodes counts, too: any change may
    /// help.
    pub fn may_have_room(&mut self, since: IndexVersion, gang: &Gang) -> bool {
        let [task] = &gang.tasks[..] else { return since.changes != self.changes };
        if since.pools != self.pools_changed || since.grown < self.grown_from {
            return true;
        }
        let from = usize::try_from(since.grown - self.grown_from).unwrap_or(usize::MAX);
        let Some(grown) = self.grown.get(from..) else { return true };
        let with_room = |at: &&NodeAt| self.nodes[**at].free.takes(&task.resources, false);
        let with_room: Vec<NodeAt> = grown.iter().filter(with_room).copied().collect();
        self.steps += grown.len();
        if with_room.is_empty() {
            return false;
        }
        self.prepare(task);
        with_room.iter().any(|at| self.nodes[*at].is_fit && self.pool(task).has(*at))
    }

    /// Number of a task's pods that fit if nothing else is placed; at most its replicas.
    pub fn fitting(&mut self, task: &TaskSpec) -> u32 {
        self.prepare(task);
        let want = &task.resources;
        let all = match want.is_zero() {
            true if self.pool(task).eligible == 0 => 0,
            true => task.replicas,
            false => self.count(task, task.replicas, |node| node.times(want)),
        };
        let ports = task.ports.min(task.replicas);
        if all == 0 || ports == 0 {
            return all;
        }
        let with_port = self.count(task, ports, |node| node.times_with_port(want));
        all.min(with_port + (task.replicas - ports))
    }

    /// Sum of `times` over the nodes of a task; at most `most`.
    fn count(&mut self, task: &TaskSpec, most: u32, times: impl Fn(&FreeCapacity) -> u64) -> u32 {
        let pool = &self.pools[&task.node_selector];
        self.steps += 1;
        if !self.most.fits(&task.resources) {
            return 0;
        }
        let (limit, mut count) = (u64::from(most), 0);
        if pool.nodes.len() < self.classes.len() {
            for node in pool.nodes.iter().map(|at| &self.nodes[*at]).filter(|node| node.is_fit) {
                self.steps += 1;
                count += times(&node.free);
                if count >= limit {
                    break;
                }
            }
        } else {
            for (free, nodes) in &self.classes {
                self.steps += 1;
                let times = times(free);
                if times > 0 {
                    self.steps += nodes.len();
                    let nodes = nodes.iter().filter(|at| pool.has(**at)).count() as u64;
                    count += times.saturating_mul(nodes);
                }
                if count >= limit {
                    break;
                }
            }
        }
        u32::try_from(count.min(limit)).unwrap_or(most)
    }

    /// Number of fit nodes that match a task's selector.
    pub fn eligible(&mut self, task: &TaskSpec) -> usize {
        self.prepare(task);
        self.pool(task).eligible
    }

    /// Places all pods of a gang, or none.
    pub fn place(&mut self, gang: &Gang) -> Decision {
        gang.tasks.iter().for_each(|task| self.prepare(task));
        let (decision, steps) = decide(gang, self);
        self.steps += steps;
        decision
    }

    /// [`FleetIndex::place`] without the reasons, which is faster where the gang does not fit.
    pub fn find(&mut self, gang: &Gang) -> Option<GangPlacement> {
        if gang.tasks.iter().any(|task| self.fitting(task) < task.replicas) {
            return None;
        }
        match self.place(gang) {
            Decision::Bind(placement) => Some(placement),
            Decision::Preempt(_) | Decision::Wait(_) => None,
        }
    }

    /// [`FleetIndex::find`] without some nodes. The index is afterwards as it was.
    pub fn find_without(
        &mut self,
        gang: &Gang,
        avoided: &BTreeSet<NodeName>,
    ) -> Option<GangPlacement> {
        let avoided = avoided.iter().filter_map(|name| self.at(name));
        let avoided: Vec<NodeAt> = avoided.filter(|at| self.nodes[*at].is_fit).collect();
        let changes = self.changes;
        avoided.iter().for_each(|at| self.set_fit(*at, false));
        let found = self.find(gang);
        avoided.iter().for_each(|at| self.set_fit(*at, true));
        self.changes = changes;
        found
    }

    /// Sum of the declared capacities of all nodes.
    pub(super) fn total(&self) -> &ResourceList {
        &self.total
    }

    /// Nodes of a task's selector. [`FleetIndex::prepare`] has found them.
    pub(super) fn pool(&self, task: &TaskSpec) -> &Pool {
        &self.pools[&task.node_selector]
    }

    /// Finds the nodes of a task's selector, unless they are known.
    fn prepare(&mut self, task: &TaskSpec) {
        if self.pools.contains_key(&task.node_selector) {
            return;
        }
        let selector: Selector = task.selector_or_all();
        let labels = self.fleet.labels.nodes.values();
        let is_member: Vec<bool> = labels.map(|labels| selector.matches(labels)).collect();
        let nodes: Vec<NodeAt> = (0..is_member.len()).filter(|at| is_member[*at]).collect();
        let eligible = nodes.iter().filter(|at| self.nodes[**at].is_fit).count();
        self.steps += is_member.len();
        self.pools.insert(task.node_selector.clone(), Pool { nodes, is_member, eligible });
    }

    fn set_unfit(&mut self, fleet: &Fleet) {
        if self.fleet.unfit == fleet.unfit {
            return;
        }
        let differing = self.fleet.unfit.symmetric_difference(&fleet.unfit);
        let differing: Vec<NodeAt> = differing.filter_map(|name| self.at(name)).collect();
        self.fleet.unfit = fleet.unfit.clone();
        self.pools_changed += 1;
        for at in differing {
            self.set_fit(at, !self.nodes[at].is_fit);
        }
    }

    /// Makes an unfit node fit, or a fit one unfit.
    fn set_fit(&mut self, at: NodeAt, is_fit: bool) {
        self.nodes[at].is_fit = is_fit;
        match is_fit {
            true => self.enter(at),
            false => self.leave(at),
        }
        for pool in self.pools.values_mut().filter(|pool| pool.has(at)) {
            pool.eligible = if is_fit { pool.eligible + 1 } else { pool.eligible - 1 };
        }
    }

    fn set(&mut self, name: &NodeName, free: FreeCapacity) {
        let Some(at) = self.at(name) else { return };
        if *self.nodes[at].free == free {
            return;
        }
        if self.nodes[at].is_fit {
            self.leave(at);
        }
        let old = std::mem::replace(&mut self.nodes[at].free, Arc::new(free));
        let now = &self.nodes[at].free;
        let has_grown = now.is_open && !(old.is_open && old.free.fits(&now.free));
        if has_grown || now.ports > old.ports {
            self.grown.push(at);
        }
        if self.nodes[at].is_fit {
            self.enter(at);
        }
    }

    fn at(&self, name: &NodeName) -> Option<NodeAt> {
        self.nodes.binary_search_by(|node| node.name.cmp(name)).ok()
    }

    fn enter(&mut self, at: NodeAt) {
        let free = self.nodes[at].free.clone();
        self.changes += 1;
        self.raise_most(&free);
        self.classes.entry(free).or_default().insert(at);
    }

    fn leave(&mut self, at: NodeAt) {
        let free = &self.nodes[at].free;
        self.changes += 1;
        if let Some(nodes) = self.classes.get_mut(free) {
            nodes.remove(&at);
            if nodes.is_empty() {
                self.classes.remove(free);
            }
        }
    }

    fn raise_most(&mut self, free: &FreeCapacity) {
        if free.is_open {
            self.most.raise(&free.free);
        }
    }
}

fn total(node_capacities: &NodeCapacities) -> ResourceList {
    ResourceList::sum(node_capacities.iter().map(|(_, room)| &room.capacity))
}
