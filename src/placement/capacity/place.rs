//! Places a gang, or tells why it does not fit.
//!
//! A heuristic, not a search: large pods first, each on the best node with room. A gang may therefore wait although an
//! arrangement exists; before that, tighter packings than the requested one are tried. Equal input gives equal results.
//! `n` pods on nodes of `c` classes take about `c · log c + n · log n` steps, and one per node of the classes used.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::gang::{Decision, Fleet, Gang, GangPlacement, TaskWait, WaitReason};
use super::index::{FleetIndex, NodeAt};
use super::node_capacity::{Insufficient, NodeCapacity, shortages};
use rcfarm_api::Fnv1a;
use rcfarm_api::ResourceList;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::scheduler::Packing;

/// Places all pods of a gang, or none. Who asks more than once keeps a [`FleetIndex`].
#[must_use]
pub fn place(gang: &Gang, fleet: &Fleet) -> Decision {
    FleetIndex::of(fleet).place(gang)
}

/// Places all pods of a gang, or none. Returns the number of comparisons, too.
pub(super) fn decide(gang: &Gang, index: &FleetIndex) -> (Decision, usize) {
    let size = |task: &TaskSpec| Reverse(size(&task.resources, index.total()));
    let by_size = order(gang, |task| (size(task), index.pool(task).eligible));
    let by_choice = order(gang, |task| (index.pool(task).eligible, size(task)));
    let attempt = |packing, order: &[usize]| Attempt::run(gang, index, packing, order);
    let first = attempt(gang.packing, &by_size);
    let mut steps = first.steps;
    if first.missing.is_empty() {
        return (Decision::Bind(first.placement(gang)), steps);
    }
    // Of one task as many pods fit whatever the order.
    let tighter = if gang.tasks.len() > 1 { &[by_size, by_choice][..] } else { &[] };
    for order in tighter {
        let tighter = attempt(Packing::BinPack, order);
        steps += tighter.steps;
        if tighter.missing.is_empty() {
            return (Decision::Bind(tighter.placement(gang)), steps);
        }
    }
    (Decision::Wait(first.reasons(gang)), steps)
}

/// Orders nodes with room for one more pod, best first. For controllers, which add pods one by one, at most one per
/// node.
#[must_use]
pub fn ranked<'a>(
    want: &ResourceList,
    packing: Packing,
    salt: &str,
    node_capacities: impl Iterator<Item = (&'a NodeName, &'a NodeCapacity)>,
) -> Vec<&'a NodeName> {
    let salt = TieBreak::of(salt);
    let mut ranked: Vec<(Rank, &NodeName)> = node_capacities
        .map(|(node, room)| ((FreeCapacity::of(room).cost(want, packing), salt.tie(node)), node))
        .collect();
    ranked.sort();
    ranked.into_iter().map(|(_, node)| node).collect()
}

/// Largest share, over all resources, of the fleet's capacity that one pod takes, in millionths.
fn size(want: &ResourceList, total: &ResourceList) -> u64 {
    want.iter().map(|(name, amount)| share(amount, total.amount(name))).max().unwrap_or(0)
}

/// `part` of `whole` in millionths.
fn share(part: u64, whole: u64) -> u64 {
    let whole = whole.max(1);
    match part.checked_mul(1_000_000) {
        Some(millionths) => millionths / whole,
        None => {
            let millionths = u128::from(part) * 1_000_000 / u128::from(whole);
            u64::try_from(millionths).unwrap_or(u64::MAX)
        }
    }
}

/// Tasks in the order of placement.
fn order<K: Ord>(gang: &Gang, key: impl Fn(&TaskSpec) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = (0..gang.tasks.len()).collect();
    order.sort_by_cached_key(|at| (key(&gang.tasks[*at]), *at));
    order
}

/// Sort key of nodes without the tie-break: the smallest is taken first.
type Cost = (bool, u64);

/// Sort key of nodes.
type Rank = (Cost, u64);

/// Nodes of equal free capacity with the cost of a pod there.
type RankedClasses<'a> = Vec<(Cost, &'a BTreeSet<NodeAt>)>;

/// Breaks ties between equal nodes, for each name in another way.
#[derive(Clone, Copy)]
struct TieBreak(Fnv1a);

impl TieBreak {
    fn of(name: &str) -> TieBreak {
        let mut hash = Fnv1a::default();
        hash.update(name.as_bytes());
        hash.update(b"/");
        TieBreak(hash)
    }

    fn tie(mut self, node: &NodeName) -> u64 {
        self.0.update(node.as_str().as_bytes());
        self.0.finish()
    }
}

/// What placement compares of a node. Nodes with equal values differ in their names only.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FreeCapacity {
    pub(super) free: ResourceList,
    capacity: ResourceList,
    /// Whether pods with requests can be placed here.
    pub(super) is_open: bool,
    /// Number of free ports, at most [`PODS_AT_ONCE`]; also where the node gives out none, and pods need none of its.
    pub(super) ports: u64,
}

impl FreeCapacity {
    pub(super) fn of(room: &NodeCapacity) -> FreeCapacity {
        FreeCapacity {
            ports: room.free_ports().map_or(PODS_AT_ONCE, |free| free.min(PODS_AT_ONCE)),
            free: room.free(),
            capacity: room.capacity.clone(),
            is_open: !room.is_unreadable && !room.capacity.is_zero() && !room.is_crowded(),
        }
    }

    pub(super) fn has_room(&self, want: &ResourceList) -> bool {
        self.is_open && self.free.fits(want)
    }

    /// Whether a pod fits that asks for nothing or for this, and for a port if `has_port`.
    pub(super) fn takes(&self, want: &ResourceList, has_port: bool) -> bool {
        (want.is_zero() || self.has_room(want)) && (!has_port || self.ports > 0)
    }

    /// Number of pods with this request that fit, each with a port.
    pub(super) fn times_with_port(&self, want: &ResourceList) -> u64 {
        if want.is_zero() { self.ports } else { self.times(want).min(self.ports) }
    }

    /// Number of pods with this request that fit. The request is not zero.
    pub(super) fn times(&self, want: &ResourceList) -> u64 {
        if !self.has_room(want) {
            return 0;
        }
        let asked = want.iter().filter(|(_, amount)| *amount > 0);
        let times = asked.map(|(name, amount)| self.free.amount(name) / amount).min();
        times.unwrap_or(0).min(PODS_AT_ONCE)
    }

    /// Nodes with free devices that the pod does not ask for come last: pods that do may need them.
    fn cost(&self, want: &ResourceList, packing: Packing) -> Cost {
        let wastes = self.free.devices().any(|(kind, free)| free > 0 && want.amount(kind) == 0);
        let load = self.load_with(want);
        match packing {
            Packing::Spread => (wastes, load),
            Packing::BinPack => (wastes, u64::MAX - load),
        }
    }

    /// Largest share, over all resources, that is allocated once the pod is here.
    fn load_with(&self, want: &ResourceList) -> u64 {
        let load = |(name, capacity): (&str, u64)| {
            let allocated = capacity - self.free.amount(name).min(capacity);
            share(allocated + want.amount(name), capacity)
        };
        self.capacity.iter().map(load).max().unwrap_or(0)
    }
}

struct Attempt<'a> {
    index: &'a FleetIndex,
    salt: TieBreak,
    /// Nodes that got pods, and what is free there afterwards.
    taken: BTreeMap<NodeAt, FreeCapacity>,
    /// Number of pods with requests that each node got.
    pods: BTreeMap<NodeAt, u64>,
    /// By task, in the gang's order.
    placed: Vec<Vec<NodeAt>>,
    /// Tasks of which not all pods fit.
    missing: BTreeSet<usize>,
    /// Number of comparisons.
    steps: usize,
}

impl<'a> Attempt<'a> {
    fn run(gang: &Gang, index: &'a FleetIndex, packing: Packing, order: &[usize]) -> Self {
        let mut attempt = Attempt {
            index,
            salt: TieBreak::of(&gang.name),
            taken: BTreeMap::new(),
            pods: BTreeMap::new(),
            placed: vec![Vec::new(); gang.tasks.len()],
            missing: BTreeSet::new(),
            steps: 0,
        };
        for at in order {
            let task = &gang.tasks[*at];
            let nodes = match task.resources.is_zero() {
                true => attempt.evenly(task),
                false => attempt.best_first(task, packing),
            };
            if nodes.len() < task.replicas as usize {
                attempt.missing.insert(*at);
            }
            attempt.placed[*at] = nodes;
        }
        attempt
    }

    /// Nodes for the pods that need a port, then for the others.
    fn best_first(&mut self, task: &TaskSpec, packing: Packing) -> Vec<NodeAt> {
        let ports = with_port(task);
        let mut nodes = match ports {
            0 => Vec::new(),
            _ => self.best_of(task, packing, ports, true),
        };
        if nodes.len() == ports && ports < task.replicas as usize {
            nodes.extend(self.best_of(task, packing, task.replicas as usize - ports, false));
        }
        nodes
    }

    /// Takes the best node with room for each of so many pods, and ranks it again afterwards.
    fn best_of(
        &mut self,
        task: &TaskSpec,
        packing: Packing,
        count: usize,
        has_port: bool,
    ) -> Vec<NodeAt> {
        let want = &task.resources;
        let (mut queue, mut classes) = self.with_room(task, packing, has_port);
        let mut nodes = Vec::new();
        while nodes.len() < count {
            // Classes join the queue once none of its nodes is better.
            while let Some((cost, _)) = classes.last()
                && queue.first().is_none_or(|((best, _), _)| best >= cost)
            {
                let missing = count - nodes.len();
                let cost = *cost;
                let best = self.best_of_equal(task, cost, &mut classes, missing);
                queue.extend(best.into_iter().map(|(tie, at)| ((cost, tie), at)));
            }
            let Some(((_, tie), at)) = queue.pop_first() else { break };
            nodes.push(at);
            let free = || (*self.index.nodes[at].free).clone();
            let node = self.taken.entry(at).or_insert_with(free);
            node.free.sub(want);
            node.ports -= u64::from(has_port);
            let pods = self.pods.entry(at).or_default();
            *pods += 1;
            node.is_open &= *pods < PODS_AT_ONCE;
            if node.takes(want, has_port) {
                queue.insert(((node.cost(want, packing), tie), at));
            }
        }
        nodes
    }

    /// Nodes with room that got pods, ranked, and the classes with room, best last. A small pool is ranked node by node.
    fn with_room(
        &mut self,
        task: &TaskSpec,
        packing: Packing,
        has_port: bool,
    ) -> (BTreeSet<(Rank, NodeAt)>, RankedClasses<'a>) {
        let (index, want) = (self.index, &task.resources);
        let pool = index.pool(task);
        let rank = |at: NodeAt, node: &FreeCapacity| {
            ((node.cost(want, packing), self.salt.tie(&index.nodes[at].name)), at)
        };
        let has_room = |node: &FreeCapacity| node.takes(want, has_port);
        let taken = self.taken.iter().filter(|(at, node)| pool.has(**at) && has_room(node));
        let mut queue: BTreeSet<(Rank, NodeAt)> = taken.map(|(at, node)| rank(*at, node)).collect();
        let mut classes = Vec::new();
        if pool.nodes.len() < index.classes.len() {
            let untouched = pool.nodes.iter().filter(|at| !self.taken.contains_key(*at));
            let fit = untouched.map(|at| (*at, &index.nodes[*at])).filter(|(_, node)| node.is_fit);
            let with_room = fit.filter(|(_, node)| has_room(&node.free));
            queue.extend(with_room.map(|(at, node)| rank(at, &node.free)));
            self.steps += pool.nodes.len();
        } else {
            let with_room = index.classes.iter().filter(|(free, _)| has_room(free));
            classes = with_room.map(|(free, nodes)| (free.cost(want, packing), nodes)).collect();
            classes.sort_by_key(|(cost, _)| Reverse(*cost));
            self.steps += index.classes.len();
        }
        (queue, classes)
    }

    /// Takes the classes of one cost and returns the best `most` of their nodes that match and got no pods.
    fn best_of_equal(
        &mut self,
        task: &TaskSpec,
        cost: Cost,
        classes: &mut Vec<(Cost, &'a BTreeSet<NodeAt>)>,
        most: usize,
    ) -> Vec<(u64, NodeAt)> {
        let (index, pool) = (self.index, self.index.pool(task));
        let mut best = Vec::new();
        while let Some((_, nodes)) = classes.pop_if(|(next, _)| *next == cost) {
            self.steps += nodes.len();
            let mine = nodes.iter().filter(|at| pool.has(**at) && !self.taken.contains_key(*at));
            best.extend(mine.map(|at| (self.salt.tie(&index.nodes[*at].name), *at)));
        }
        if best.len() > most {
            best.select_nth_unstable(most);
            best.truncate(most);
        }
        best
    }

    /// Spreads pods that ask for nothing evenly; those that need a port, over the nodes that have some.
    fn evenly(&mut self, task: &TaskSpec) -> Vec<NodeAt> {
        let (index, pool, ports) = (self.index, self.index.pool(task), with_port(task));
        let fit = pool.nodes.iter().filter(|at| index.nodes[**at].is_fit);
        let mut order: Vec<(u64, NodeAt)> =
            fit.map(|at| (self.salt.tie(&index.nodes[*at].name), *at)).collect();
        order.sort_unstable();
        self.steps += pool.nodes.len();
        let mut with_ports: Vec<NodeAt> = order.iter().map(|(_, at)| *at).collect();
        let mut nodes = Vec::new();
        while nodes.len() < ports && !with_ports.is_empty() {
            with_ports.truncate(ports - nodes.len());
            with_ports.retain(|at| {
                let free = || (*index.nodes[*at].free).clone();
                let node = self.taken.entry(*at).or_insert_with(free);
                let has_port = node.ports > 0;
                node.ports -= u64::from(has_port);
                nodes.extend(has_port.then_some(*at));
                has_port
            });
        }
        if nodes.len() == ports {
            let rest = task.replicas as usize - ports;
            nodes.extend(order.iter().map(|(_, at)| *at).cycle().skip(ports).take(rest));
        }
        nodes
    }

    /// Pods with a port come first, as the members that need one do.
    fn placement(&self, gang: &Gang) -> GangPlacement {
        let nodes = |at: usize, task: &TaskSpec| {
            let mut nodes = self.placed[at].clone();
            let (with_port, others) = nodes.split_at_mut(with_port(task));
            with_port.sort_unstable();
            others.sort_unstable();
            nodes.into_iter().map(|at| self.index.nodes[at].name.clone()).collect()
        };
        let tasks = gang.tasks.iter().enumerate();
        let placed = tasks.map(|(at, task)| (task.name.clone(), nodes(at, task)));
        GangPlacement { tasks: placed.collect() }
    }

    fn reasons(&self, gang: &Gang) -> Vec<TaskWait> {
        self.missing.iter().map(|at| self.reason(&gang.tasks[*at], *at)).collect()
    }

    fn reason(&self, task: &TaskSpec, at: usize) -> TaskWait {
        let pool = self.index.pool(task);
        let (fitting, eligible) = (self.placed[at].len(), pool.eligible);
        let selector = task.selector_or_all();
        let selector = match selector.is_everything() {
            true => String::new(),
            false => format!(" {selector}"),
        };
        let (reason, mut message) = if eligible == 0 {
            (WaitReason::NoEligibleNodes, format!("no ready node matches{selector}"))
        } else {
            let what = format!(
                "room for {fitting} of {} on {eligible} nodes that match{selector}",
                task.replicas
            );
            (WaitReason::InsufficientCapacity, what)
        };
        let fit = pool.nodes.iter().filter(|at| self.index.nodes[**at].is_fit);
        for at in fit.take(NODES_NAMED) {
            if let Some(insufficient) = self.insufficient(*at, task) {
                let node = &self.index.nodes[*at].name;
                let with = match self.pods.get(at) {
                    None => String::new(),
                    Some(pods) => format!(", for {} pods of the gang", pods + 1),
                };
                message.push_str(&format!("; {node}{with}: {insufficient}"));
            }
        }
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
        TaskWait { task: task.name.clone(), reason, fitting, eligible, message }
    }

    /// Why one more pod does not fit on a node, beside those of the gang that are placed there. The amounts wanted are
    /// those of all of them: what is free is what others have left.
    fn insufficient(&self, at: NodeAt, task: &TaskSpec) -> Option<Insufficient> {
        let (indexed, want) = (&self.index.nodes[at], &task.resources);
        let node = self.taken.get(&at).unwrap_or(&indexed.free);
        let room = self.index.node_capacities().of(&indexed.name);
        if want.is_zero() || node.has_room(want) {
            let range = room.ports.filter(|_| task.ports > 0 && node.ports == 0);
            return range.map(Insufficient::NoPort);
        }
        Some(match (room.is_unreadable, node.is_open) {
            (true, _) => Insufficient::Unreadable,
            (false, false) if node.capacity.is_zero() => Insufficient::NothingDeclared,
            (false, false) => Insufficient::Full,
            (false, true) => {
                let mut wanted = indexed.free.free.beyond(&node.free);
                wanted.add(want);
                Insufficient::Short(shortages(&wanted, &indexed.free.free, &node.capacity))
            }
        })
    }
}

/// Number of a task's pods that need a port.
fn with_port(task: &TaskSpec) -> usize {
    task.ports.min(task.replicas) as usize
}

/// Limit of pods with requests that one gang gets on a node: the record of its allocations is limited.
const PODS_AT_ONCE: u64 = 600;

/// Number of nodes that a message names.
const NODES_NAMED: usize = 3;
