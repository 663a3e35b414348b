//! Placement by comparing each pod with each node, and that the index gives the same answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{any_amount, any_gang, fleet, node, owner, pod};
use crate::placement::capacity::node_capacity::shortages;
use crate::placement::capacity::{
    Decision, Fleet, FleetIndex, Gang, GangPlacement, Insufficient, NodeCapacity, TaskWait,
    WaitReason,
};
use rcfarm_api::ResourceList;
use rcfarm_api::content_hash;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::scheduler::Packing;

/// Places all pods of a gang, or none, comparing each pod with each node.
fn place_exhaustively(gang: &Gang, fleet: &Fleet) -> Decision {
    let candidates: Vec<Vec<&NodeName>> =
        gang.tasks.iter().map(|task| candidates(task, fleet)).collect();
    let by_size =
        order(gang, |task, nodes| (Reverse(size(&task.resources, fleet)), nodes), &candidates);
    let by_choice =
        order(gang, |task, nodes| (nodes, Reverse(size(&task.resources, fleet))), &candidates);
    let attempt = |packing, order: &[usize]| Attempt::run(gang, fleet, packing, order, &candidates);
    let first = attempt(gang.packing, &by_size);
    if first.missing.is_empty() {
        return Decision::Bind(first.placement(gang));
    }
    for order in [&by_size, &by_choice] {
        let tighter = attempt(Packing::BinPack, order);
        if tighter.missing.is_empty() {
            return Decision::Bind(tighter.placement(gang));
        }
    }
    Decision::Wait(first.reasons(gang, fleet, &candidates))
}

/// Nodes that may run a task's pods, in the order of their names.
fn candidates<'a>(task: &TaskSpec, fleet: &'a Fleet) -> Vec<&'a NodeName> {
    let selector = task.selector_or_all();
    let matching = fleet.labels.nodes.iter().filter(|(_, labels)| selector.matches(labels));
    matching.map(|(node, _)| node).filter(|node| !fleet.unfit.contains(*node)).collect()
}

/// Largest share, over all resources, of the fleet's capacity that one pod takes, in millionths.
fn size(want: &ResourceList, fleet: &Fleet) -> u64 {
    let mut all = ResourceList::default();
    fleet.node_capacities.iter().for_each(|(_, room)| all.add(&room.capacity));
    want.iter().map(|(name, amount)| share(amount, all.amount(name))).max().unwrap_or(0)
}

/// `part` of `whole` in millionths.
fn share(part: u64, whole: u64) -> u64 {
    if part == 0 {
        return 0;
    }
    let millionths = u128::from(part) * 1_000_000 / u128::from(whole.max(1));
    u64::try_from(millionths).unwrap_or(u64::MAX)
}

/// Tasks in the order of placement.
fn order<K: Ord>(
    gang: &Gang,
    key: impl Fn(&TaskSpec, usize) -> K,
    candidates: &[Vec<&NodeName>],
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..gang.tasks.len()).collect();
    order.sort_by_cached_key(|at| (key(&gang.tasks[*at], candidates[*at].len()), *at));
    order
}

/// Sort key of nodes: the smallest is taken first.
type Rank = (bool, u64, u64);

/// A node and its free capacity during an attempt.
#[derive(Debug, Clone)]
struct CandidateNode {
    capacity: ResourceList,
    free: ResourceList,
    /// Whether pods with requests can be placed here.
    is_open: bool,
    /// Breaks ties between equal nodes.
    tie: u64,
    /// Number of pods of the gang.
    pods: usize,
}

impl CandidateNode {
    fn of(node: &NodeName, room: &NodeCapacity, salt: &str) -> CandidateNode {
        let text = [salt.as_bytes(), b"/", node.as_str().as_bytes()].concat();
        CandidateNode {
            capacity: room.capacity.clone(),
            free: room.free(),
            is_open: !room.is_unreadable && !room.capacity.is_zero(),
            tie: content_hash(&text),
            pods: 0,
        }
    }

    fn has_room(&self, want: &ResourceList) -> bool {
        self.is_open && self.free.fits(want)
    }

    /// Nodes with free devices that the pod does not ask for come last: pods that do may need them.
    fn rank(&self, want: &ResourceList, packing: Packing) -> Rank {
        let wastes = self.free.devices().any(|(kind, free)| free > 0 && want.amount(kind) == 0);
        let load = self.load_with(want);
        match packing {
            Packing::Spread => (wastes, load, self.tie),
            Packing::BinPack => (wastes, u64::MAX - load, self.tie),
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
    sites: BTreeMap<&'a NodeName, CandidateNode>,
    /// By task, in the gang's order.
    placed: Vec<Vec<&'a NodeName>>,
    /// Tasks of which not all pods fit.
    missing: BTreeSet<usize>,
}

impl<'a> Attempt<'a> {
    fn run(
        gang: &Gang,
        fleet: &'a Fleet,
        packing: Packing,
        order: &[usize],
        candidates: &[Vec<&'a NodeName>],
    ) -> Self {
        let sites = candidates.iter().flatten().map(|node| {
            (*node, CandidateNode::of(node, fleet.node_capacities.of(node), &gang.name))
        });
        let placed = vec![Vec::new(); gang.tasks.len()];
        let mut attempt = Attempt { sites: sites.collect(), placed, missing: BTreeSet::new() };
        for at in order {
            let task = &gang.tasks[*at];
            let nodes = match task.resources.is_zero() {
                true => attempt.evenly(task, &candidates[*at]),
                false => attempt.best_first(task, packing, &candidates[*at]),
            };
            if nodes.len() < task.replicas as usize {
                attempt.missing.insert(*at);
            }
            attempt.placed[*at] = nodes;
        }
        attempt
    }

    /// Takes the best node with room for each pod, and ranks it again afterwards.
    fn best_first(
        &mut self,
        task: &TaskSpec,
        packing: Packing,
        candidates: &[&'a NodeName],
    ) -> Vec<&'a NodeName> {
        let want = &task.resources;
        let with_room = candidates.iter().filter(|node| self.sites[*node].has_room(want));
        let mut queue: BTreeSet<(Rank, &'a NodeName)> =
            with_room.map(|node| (self.sites[*node].rank(want, packing), *node)).collect();
        let mut nodes = Vec::new();
        while nodes.len() < task.replicas as usize {
            let Some((_, node)) = queue.pop_first() else { break };
            let candidate = self.sites.get_mut(node).expect("a candidate has a site");
            candidate.free.sub(want);
            candidate.pods += 1;
            nodes.push(node);
            if candidate.has_room(want) {
                queue.insert((candidate.rank(want, packing), node));
            }
        }
        nodes
    }

    /// Spreads pods that ask for nothing evenly.
    fn evenly(&self, task: &TaskSpec, candidates: &[&'a NodeName]) -> Vec<&'a NodeName> {
        let mut order: Vec<&'a NodeName> = candidates.to_vec();
        order.sort_by_key(|node| (self.sites[*node].tie, *node));
        order.iter().copied().cycle().take(task.replicas as usize).collect()
    }

    fn placement(&self, gang: &Gang) -> GangPlacement {
        let nodes = |at: usize| {
            let mut nodes: Vec<NodeName> = self.placed[at].iter().map(|n| (*n).clone()).collect();
            nodes.sort();
            nodes
        };
        let tasks = gang.tasks.iter().enumerate();
        GangPlacement { tasks: tasks.map(|(at, task)| (task.name.clone(), nodes(at))).collect() }
    }

    fn reasons(&self, gang: &Gang, fleet: &Fleet, candidates: &[Vec<&NodeName>]) -> Vec<TaskWait> {
        self.missing
            .iter()
            .map(|at| self.reason(&gang.tasks[*at], *at, fleet, candidates))
            .collect()
    }

    fn reason(
        &self,
        task: &TaskSpec,
        at: usize,
        fleet: &Fleet,
        candidates: &[Vec<&NodeName>],
    ) -> TaskWait {
        let fitting = self.placed[at].len();
        let eligible = candidates[at].len();
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
        for node in candidates[at].iter().take(NODES_NAMED) {
            if let Some(insufficient) = self.insufficient(node, &task.resources, fleet) {
                let with = match self.sites[node].pods {
                    0 => String::new(),
                    pods => format!(", for {} pods of the gang", pods + 1),
                };
                message.push_str(&format!("; {node}{with}: {insufficient}"));
            }
        }
        let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
        TaskWait { task: task.name.clone(), reason, fitting, eligible, message }
    }

    /// Why one more pod does not fit on a node, beside those of the gang that are placed there.
    fn insufficient(
        &self,
        node: &NodeName,
        want: &ResourceList,
        fleet: &Fleet,
    ) -> Option<Insufficient> {
        let (candidate, room) = (&self.sites[node], fleet.node_capacities.of(node));
        if want.is_zero() || candidate.has_room(want) {
            return None;
        }
        Some(match (room.is_unreadable, candidate.is_open) {
            (true, _) => Insufficient::Unreadable,
            (false, false) => Insufficient::NothingDeclared,
            (false, true) => {
                let mut wanted = room.free().beyond(&candidate.free);
                wanted.add(want);
                Insufficient::Short(shortages(&wanted, &room.free(), &candidate.capacity))
            }
        })
    }
}

/// Number of nodes that a message names.
const NODES_NAMED: usize = 3;

/// What happens to a fleet between placements.
#[derive(Debug, Clone)]
enum Event {
    /// A node gets this capacity.
    Capacity(usize, ResourceList),
    /// A pod of this number is allocated, or loses its allocation.
    Allocate(usize, usize, ResourceList),
    Fit(usize, bool),
    /// A node's labels appear or disappear.
    Labels(usize, bool),
    /// The index alone gets the pods of the gang, as in a pass whose transaction is refused.
    Refused(Gang),
}

fn events() -> impl Strategy<Value = Vec<(Event, Gang)>> {
    let event = prop_oneof![
        1 => (0usize..8, any_amount(8)).prop_map(|(n, capacity)| Event::Capacity(n, capacity)),
        6 => (0usize..8, 0usize..4, any_amount(4)).prop_map(|(n, p, want)| Event::Allocate(n, p, want)),
        1 => (0usize..8, any::<bool>()).prop_map(|(n, fit)| Event::Fit(n, fit)),
        1 => (0usize..8, any::<bool>()).prop_map(|(n, there)| Event::Labels(n, there)),
        2 => any_gang().prop_map(Event::Refused),
    ];
    prop::collection::vec((event, any_gang()), 1..25)
}

impl Event {
    fn happen(self, fleet: &mut Fleet, index: &mut FleetIndex) {
        match self {
            Event::Capacity(n, capacity) => {
                let room = NodeCapacity { capacity, ..fleet.node_capacities.of(&node(n)).clone() };
                fleet.node_capacities.insert(node(n), room);
            }
            Event::Allocate(n, p, want) => {
                let mut room = fleet.node_capacities.of(&node(n)).clone();
                let _ = room.allocate(&pod(p), &owner(1), &want);
                fleet.node_capacities.insert(node(n), room);
            }
            Event::Fit(n, true) => drop(fleet.unfit.remove(&node(n))),
            Event::Fit(n, false) => drop(fleet.unfit.insert(node(n))),
            Event::Labels(n, is_there) => {
                let mut labels = (*fleet.labels).clone();
                match is_there {
                    true => labels.nodes.insert(node(n), [("n".to_owned(), n.to_string())].into()),
                    false => labels.nodes.remove(&node(n)),
                };
                fleet.labels = labels.into();
            }
            Event::Refused(gang) => {
                let Decision::Bind(placement) = index.place(&gang) else { return };
                for (task, n, on) in placement.pods(&gang) {
                    let mut room = index.node_capacities().of(on).clone();
                    let pod = format!("{}-{n}", task.name).parse().unwrap();
                    room.allocate(&pod, &owner(2), &task.resources).unwrap();
                    index.insert(on.clone(), room);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// After any history the index that was kept decides as the comparison with all nodes does: the same nodes, the same
    /// reasons. What did not fit and has no more room since then still does not fit.
    #[test]
    fn an_index_decides_as_the_comparison_with_all_nodes(
        capacities in prop::collection::vec(any_amount(6), 1..8),
        alike in any::<bool>(),
        events in events(),
    ) {
        let mut now = fleet(&vec![""; capacities.len()]);
        for n in 0..capacities.len() {
            let capacity = capacities[if alike { 0 } else { n }].clone();
            now.node_capacities.insert(node(n), NodeCapacity { capacity, ..NodeCapacity::default() });
        }
        let mut index = FleetIndex::of(&now);
        let mut waiting = Vec::new();
        for (event, mut gang) in events {
            event.happen(&mut now, &mut index);
            index.follow(&now);
            gang.name = format!("g{}", waiting.len());
            let expected = place_exhaustively(&gang, &now);
            prop_assert_eq!(&index.place(&gang), &expected);
            let found = match &expected {
                Decision::Bind(placement) => Some(placement.clone()),
                _ => None,
            };
            prop_assert_eq!(index.find(&gang), found);
            for (version, gang) in &waiting {
                if !index.may_have_room(*version, gang) {
                    let is_placed = matches!(place_exhaustively(gang, &now), Decision::Bind(_));
                    prop_assert!(!is_placed, "{gang:?} would fit");
                }
            }
            if !matches!(expected, Decision::Bind(_)) {
                waiting.push((index.version(), gang));
            }
        }
    }
}
