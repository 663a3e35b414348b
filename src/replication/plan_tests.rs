//! Properties of the plan: whatever is seen, it stays within its bounds, and what it does leads to rest.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::plan::*;
use super::writes;
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::{Booking, NodeCapacities, NodeCapacity};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::key;
use rcfarm_api::labels::Selector;
use rcfarm_api::manifest::Manifest;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::{RcSpec, RcStrategy as Allocation};
use rcfarm_api::rc::status::RcReason;
use rcfarm_api::scheduler::Packing;
use rcfarm_store::{Index, Op, TxnLimits};

/// A world of ten nodes.
#[derive(Debug, Clone)]
struct Fixture {
    spec: RcSpec,
    pods: BTreeMap<PodRef, RcPod>,
    eligible: BTreeSet<NodeName>,
    occupied: BTreeMap<NodeName, SlotState>,
    rooms: NodeCapacities,
    allowed_actions: AllowedActions,
    readiness: BTreeMap<NodeName, NodeReadiness>,
    synced: bool,
    locked: bool,
    only_eligible: bool,
}

fn node(n: usize) -> NodeName {
    format!("n{n}").parse().unwrap()
}

fn place(n: usize, pod: &str) -> PodRef {
    PodRef { node: node(n), pod: pod.parse().unwrap() }
}

fn spec(desired: u32) -> RcSpec {
    RcSpec {
        id: RcId(uuid::Uuid::from_u128(7)),
        manifest: Manifest::parse("id: web\n").unwrap(),
        node_selector: Selector::everything(),
        pod_labels: [("team".to_owned(), "a".to_owned())].into(),
        replicas_desired: desired,
        disabled: false,
        strategy: Allocation::Static,
        min_health: None,
        packing: Packing::default(),
    }
}

fn pod(spec: &RcSpec, n: u64) -> RcPod {
    RcPod {
        label_index: Index(10 + n),
        created: Index(10 + n),
        labels: spec.labels_of_pod(),
        intent: Intent::Same(Index(10 + n)),
        health: Health::Passing,
    }
}

#[test]
fn a_removal_leaves_no_intent_behind_that_was_not_seen() {
    let spec = spec(0);
    let pod = RcPod { intent: Intent::Missing, ..pod(&spec, 1) };
    let step = PodStep::Remove { place: place(1, "web"), pod, why: PodRemoveReason::Surplus };
    let key = key::intent(&node(1), spec.manifest.id());
    assert!(writes::ops(&spec, &step).contains(&Op::CheckNotExists { key }));
}

impl Fixture {
    fn resting(desired: u32, pods: usize, eligible: usize) -> Fixture {
        let spec = spec(desired);
        let pods = (0..pods).map(|n| (place(n, "web"), pod(&spec, n as u64))).collect();
        Fixture {
            spec,
            pods,
            eligible: (0..eligible).map(node).collect(),
            occupied: BTreeMap::new(),
            rooms: NodeCapacities::default(),
            allowed_actions: AllowedActions::Full,
            readiness: BTreeMap::new(),
            synced: true,
            locked: false,
            only_eligible: false,
        }
    }

    fn readiness(&self, node: &NodeName) -> NodeReadiness {
        self.readiness.get(node).copied().unwrap_or(NodeReadiness::Ready)
    }

    fn healthy(&self) -> usize {
        let up = |place: &PodRef| self.readiness(&place.node) != NodeReadiness::Down;
        self.pods.iter().filter(|(place, pod)| pod.health == Health::Passing && up(place)).count()
    }

    fn plan(&self) -> ReplicationPlan {
        let slot = |node: &NodeName| self.occupied.get(node).copied().unwrap_or(SlotState::Nobody);
        plan(&ReplicationObserved {
            spec: &self.spec,
            pods: &self.pods,
            eligible: &self.eligible,
            readiness: &|node| self.readiness(node),
            slot: &slot,
            rooms: &self.rooms,
            allowed_actions: self.allowed_actions,
            transfer: TransferConditions {
                under_way: None,
                lock_held: self.locked,
                discovery_synced: self.synced,
                only_eligible: self.only_eligible,
            },
        })
    }

    /// The world after the plan's steps.
    fn after(&self, plan: &ReplicationPlan) -> Fixture {
        let mut after = self.clone();
        for (n, step) in plan.steps.iter().enumerate() {
            writes::apply(&mut after.pods, &self.spec, step, Index(1_000 + n as u64));
        }
        let bookings = writes::bookings(&self.spec, &plan.steps, &self.rooms);
        for booking in bookings.expect("what was planned can be promised") {
            after.rooms.insert(booking.node.clone(), booking.applied(Index(2_000)));
        }
        after
    }
}

prop_compose! {
    fn any_pod()(
        n in 0usize..10,
        old_id in prop::bool::weighted(0.1),
        intent in 0..3,
        drifted in prop::bool::weighted(0.2),
        health in 0usize..4,
        index in 10u64..99,
    ) -> (PodRef, RcPod) {
        let spec = spec(0);
        let mut pod = pod(&spec, index);
        pod.intent = match intent {
            0 => Intent::Missing,
            1 => Intent::Differs(Index(index)),
            _ => Intent::Same(Index(index)),
        };
        if drifted {
            pod.labels.insert("team".to_owned(), "b".to_owned());
        }
        pod.health =
            [Health::Passing, Health::Critical, Health::Absent, Health::Unknown][health];
        (place(n, if old_id { "old" } else { "web" }), pod)
    }
}

prop_compose! {
    fn any_world()(
        desired in 0u32..12,
        pods in prop::collection::vec(any_pod(), 0..10),
        eligible in prop::collection::btree_set(0usize..10, 0..10),
        readiness in prop::collection::btree_map(0usize..10, prop::bool::ANY, 0..4),
        min_health in prop::option::of(0u32..8),
        occupied in prop::collection::btree_map(0usize..10, prop::bool::ANY, 0..4),
        allowed_actions in 0usize..4,
        dynamic in prop::bool::ANY,
        disabled in prop::bool::weighted(0.1),
        synced in prop::bool::ANY,
        locked in prop::bool::ANY,
        want in 0u64..3,
        cpus in prop::collection::vec((0u64..5, 0u64..4, 0u64..3), 10),
    ) -> Fixture {
        let mut fixture = Fixture::resting(desired, 0, 0);
        for (place, pod) in pods {
            // One pod of an RC per node, as the layout has it.
            if !fixture.pods.keys().any(|other| other.node == place.node) {
                fixture.pods.insert(place, pod);
            }
        }
        let taken = |n: &usize| fixture.pods.contains_key(&place(*n, "web"));
        fixture.occupied = occupied
            .into_iter()
            .filter(|(n, _)| !taken(n))
            .map(|(n, ours)| (node(n), if ours { SlotState::Ours(Index(5)) } else { SlotState::Other }))
            .collect();
        fixture.eligible = eligible.into_iter().map(node).collect();
        fixture.allowed_actions = [AllowedActions::Full, AllowedActions::Full, AllowedActions::NoRemoval, AllowedActions::Nothing][allowed_actions];
        fixture.spec.strategy = if dynamic { Allocation::Dynamic } else { Allocation::Static };
        fixture.readiness = readiness
            .into_iter()
            .map(|(n, down)| (node(n), if down { NodeReadiness::Down } else { NodeReadiness::Draining }))
            .collect();
        fixture.spec.min_health = min_health;
        fixture.spec.disabled = disabled;
        (fixture.synced, fixture.locked) = (synced, locked);
        if want > 0 {
            let text = format!("id: web\nresources: {{cpu: {want}}}\n");
            fixture.spec.manifest = Manifest::parse(&text).unwrap();
        }
        for (n, (capacity, others, own)) in cpus.into_iter().enumerate() {
            let cpu = |n: u64| format!("cpu={n}").parse().unwrap();
            let mut room = NodeCapacity { capacity: cpu(capacity), ..NodeCapacity::default() };
            let _ = room.allocate(&"other".parse().unwrap(), &AllocationOwner::Other("job/x".to_owned()), &cpu(others));
            for place in fixture.pods.keys().filter(|place| place.node == node(n)) {
                let _ = room.allocate(&place.pod, &fixture.spec.owner(), &cpu(own));
            }
            fixture.rooms.insert(node(n), room);
        }
        fixture
    }
}

proptest! {
    #[test]
    fn planning_again_after_the_steps_finds_no_more_steps(fixture in any_world()) {
        let after = fixture.after(&fixture.plan());
        prop_assert_eq!(after.plan().steps, Vec::new());
    }

    #[test]
    fn it_never_adds_more_than_asked_or_where_it_may_not(fixture in any_world()) {
        let plan = fixture.plan();
        let after = fixture.after(&plan);
        let desired = fixture.spec.replicas_desired as usize;
        prop_assert!(after.pods.len() <= desired.max(fixture.pods.len()));
        for step in &plan.steps {
            if let PodStep::Add { place, .. } = step {
                prop_assert!(fixture.eligible.contains(&place.node));
                prop_assert_eq!(fixture.readiness(&place.node), NodeReadiness::Ready);
                prop_assert_ne!(fixture.occupied.get(&place.node), Some(&SlotState::Other));
                prop_assert!(fixture.pods.keys().all(|other| other.node != place.node));
            }
        }
        let nodes: BTreeSet<_> = after.pods.keys().map(|place| &place.node).collect();
        prop_assert_eq!(nodes.len(), after.pods.len(), "one pod per node");
        for (node, room) in after.rooms.iter() {
            prop_assert!(room.faults().is_empty(), "{node}: {:?}", room.faults());
        }
        for step in &plan.steps {
            let (place, owner, want) = (step.place(), fixture.spec.owner(), fixture.spec.resources());
            let room = after.rooms.of(&place.node);
            match step {
                PodStep::Add { .. } => prop_assert!(room.holds(&place.pod, &owner, want)),
                PodStep::Repair { .. } => prop_assert!(room.holds(fixture.spec.manifest.id(), &owner, want)),
                PodStep::Remove { .. } => prop_assert!(!room.allocated.pods.contains_key(&place.pod)),
            }
        }
    }

    #[test]
    fn it_never_removes_more_than_asked_and_never_in_doubt(fixture in any_world()) {
        let plan = fixture.plan();
        let removed = plan.steps.iter().filter(|s| matches!(s, PodStep::Remove { .. })).count();
        let surplus = fixture.pods.len().saturating_sub(fixture.spec.replicas_desired as usize);
        prop_assert!(removed <= surplus);
        if fixture.allowed_actions != AllowedActions::Full || fixture.spec.disabled {
            prop_assert_eq!(removed, 0);
            prop_assert!(!matches!(plan.transfer, TransferPlan::Start(_)));
        }
        if fixture.spec.disabled || fixture.allowed_actions == AllowedActions::Nothing {
            prop_assert!(plan.steps.is_empty());
        }
    }

    #[test]
    fn it_never_takes_the_healthy_below_the_declared_minimum(fixture in any_world()) {
        let plan = fixture.plan();
        let least = fixture.spec.min_health.unwrap_or(0).min(fixture.spec.replicas_desired) as usize;
        prop_assert!(fixture.after(&plan).healthy() >= least.min(fixture.healthy()));
        if let (TransferPlan::Start(leaving), Some(least)) = (&plan.transfer, fixture.spec.min_health) {
            let healthy_elsewhere = {
                let mut without = fixture.clone();
                without.pods.retain(|place, _| place.node != *leaving);
                without.healthy()
            };
            let bound = (least as usize).min(fixture.healthy());
            prop_assert!(healthy_elsewhere >= bound || healthy_elsewhere + 1 == fixture.pods.len());
        }
    }

    #[test]
    fn a_removed_pod_is_never_worse_off_than_one_that_stays(fixture in any_world()) {
        prop_assume!(fixture.spec.min_health.is_none());
        let plan = fixture.plan();
        let rank = |place: &PodRef, pod: &RcPod| {
            let ineligible = !fixture.eligible.contains(&place.node)
                || fixture.readiness(&place.node) != NodeReadiness::Ready
                || !has_room(&fixture.spec, &fixture.rooms, place);
            let ailing = !matches!(pod.health, Health::Passing | Health::Absent);
            (!ineligible, ineligible || !ailing)
        };
        let gone: BTreeSet<_> = plan
            .steps
            .iter()
            .filter(|s| matches!(s, PodStep::Remove { .. }))
            .map(PodStep::place)
            .collect();
        for (place, pod) in fixture.pods.iter().filter(|(place, _)| gone.contains(place)) {
            for (other, stays) in fixture.pods.iter().filter(|(place, _)| !gone.contains(place)) {
                prop_assert!(rank(place, pod) <= rank(other, stays));
            }
        }
    }

    #[test]
    fn a_batch_keeps_to_the_limits_and_loses_no_step(
        fixture in any_world(),
        ops in 16usize..65,
        bytes in 68_000usize..81_000,
    ) {
        let limits = TxnLimits { ops, bytes };
        let plan = fixture.plan();
        let mut rest = &plan.steps[..];
        let mut seen = 0;
        while !rest.is_empty() {
            let count = writes::fitting(&fixture.spec, rest, limits, &fixture.rooms);
            prop_assert!(count > 0);
            let mut batch: Vec<Op> =
                rest[..count].iter().flat_map(|step| writes::ops(&fixture.spec, step)).collect();
            let bookings = writes::bookings(&fixture.spec, &rest[..count], &fixture.rooms).unwrap();
            batch.extend(bookings.iter().map(Booking::op));
            prop_assert!(batch.len() + writes::FIXED_OPS <= limits.ops);
            prop_assert!(batch.iter().map(Op::body_bytes).sum::<usize>() <= limits.bytes);
            seen += count;
            rest = &rest[count..];
        }
        prop_assert_eq!(seen, plan.steps.len());
    }

    #[test]
    fn every_shortage_has_a_reason(fixture in any_world()) {
        let plan = fixture.plan();
        let scheduled = &plan.conditions[1];
        prop_assert_eq!(scheduled.status, plan.replicas.current == plan.replicas.desired);
        prop_assert!(scheduled.status || scheduled.reason != RcReason::AsDesired);
    }
}

#[test]
fn the_conditions_of_a_transfer_are_asked_in_p2s_order() {
    let mut fixture = Fixture::resting(3, 3, 3);
    fixture.eligible.remove(&node(0));
    assert_eq!(fixture.plan().transfer, TransferPlan::Wait(RcReason::IneligibleNodes));
    fixture.spec.strategy = Allocation::Dynamic;
    (fixture.synced, fixture.locked) = (false, true);
    fixture.pods.get_mut(&place(1, "web")).unwrap().health = Health::Critical;
    for (reason, mend) in [
        (RcReason::DiscoveryNotSynced, (|w: &mut Fixture| w.synced = true) as fn(&mut Fixture)),
        (RcReason::PodsUnhealthy, |w| {
            w.pods.get_mut(&place(1, "web")).unwrap().health = Health::Passing;
        }),
        (RcReason::LockHeld, |w| w.locked = false),
    ] {
        assert_eq!(fixture.plan().transfer, TransferPlan::Wait(reason));
        mend(&mut fixture);
    }
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(0)));
}

#[test]
fn a_pod_that_has_nowhere_to_go_waits_where_it_is() {
    let mut fixture = Fixture::resting(2, 2, 4);
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.eligible.remove(&node(0));
    fixture.only_eligible = true;
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(0)));
    fixture.eligible.remove(&node(2));
    fixture.readiness.insert(node(3), NodeReadiness::Suspect);
    assert_eq!(fixture.plan().transfer, TransferPlan::Wait(RcReason::InsufficientNodes));
    fixture.readiness.clear();
    fixture.occupied.insert(node(3), SlotState::Other);
    assert_eq!(fixture.plan().transfer, TransferPlan::Wait(RcReason::PlaceTaken));
    // A scheduler that may know of more nodes is asked.
    fixture.only_eligible = false;
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(0)));
}

#[test]
fn a_suspect_node_gets_no_pod_and_keeps_those_that_it_has() {
    let mut fixture = Fixture::resting(2, 1, 3);
    for n in [0, 1] {
        fixture.readiness.insert(node(n), NodeReadiness::Suspect);
    }
    let plan = fixture.plan();
    let [PodStep::Add { place, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(place.node, node(2));
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.spec.replicas_desired = 1;
    assert!(fixture.plan().is_idle());
}

#[test]
fn packed_as_full_as_they_may_be() {
    let fixture = Fixture::resting(400, 0, 0);
    let steps: Vec<PodStep> =
        (0..400).map(|n| PodStep::Add { place: place(n, "web"), intent: Index::ZERO }).collect();
    assert_eq!(
        writes::fitting(&fixture.spec, &steps, TxnLimits::default(), &NodeCapacities::default()),
        30
    );
}
