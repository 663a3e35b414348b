//! Properties of the plan: it stays within its bounds for any input, and repeated application ends.

mod updates;
mod worlds;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use self::worlds::any_world;
use super::*;
use crate::placement::capacity::{Booking, NodeCapacities, NodeCapacity};
use crate::replication::writes::{self, next_batch};
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

/// Input with ten nodes.
#[derive(Debug, Clone)]
struct Fixture {
    spec: RcSpec,
    pods: BTreeMap<PodRef, RcPod>,
    eligible: BTreeSet<NodeName>,
    occupied: BTreeMap<NodeName, SlotState>,
    capacities: NodeCapacities,
    allowed_actions: AllowedActions,
    readiness: BTreeMap<NodeName, NodeReadiness>,
    synced: bool,
    locked: bool,
    only_eligible: bool,
    surplus: BTreeMap<RcId, SurplusPods>,
    set_aside: BTreeMap<NodeName, String>,
}

fn node(n: usize) -> NodeName {
    format!("n{n}").parse().unwrap()
}

fn pod_ref(n: usize, pod: &str) -> PodRef {
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
        in_order: false,
    }
}

fn pod(spec: &RcSpec, n: u64) -> RcPod {
    RcPod {
        label_index: Index(10 + n),
        created: Index(10 + n),
        labels: spec.labels_of_pod(),
        intent: Intent::Same(Index(10 + n)),
        health: Health::Passing,
        unproved: false,
    }
}

/// Four pods of a disabled RC on n0 to n3, of which it wants two; the one on n3 does not pass.
fn with_surplus(mut fixture: ReplicationObserved) -> ReplicationObserved {
    let mut pods: BTreeMap<NodeName, RcPod> =
        (0..4).map(|n| (node(n), pod(&spec(0), n as u64))).collect();
    pods.get_mut(&node(3)).unwrap().health = Health::Critical;
    let old = SurplusPods { record: Index(77), surplus: 2, pods };
    fixture.surplus.insert(RcId(uuid::Uuid::from_u128(8)), old);
    fixture.look_up_slots(|at| if *at < node(4) { SlotState::Other } else { SlotState::Nobody });
    fixture
}

#[test]
fn surplus_of_a_disabled_rc_is_taken_first_and_no_more_than_that() {
    let observed = with_surplus(Fixture::resting(3, 0, 6).observed());
    let steps = plan(&observed).steps;
    let nodes: Vec<&str> = steps.iter().map(|step| step.pod_ref().node.as_str()).collect();
    assert_eq!(nodes, ["n3", "n0", "n4"], "not passing, then by name, then a free node");
    let PodStep::TakeOver { record, .. } = &steps[0] else { panic!("{steps:?}") };
    let ops = writes::ops(&observed.spec, &steps[0]);
    let key = key::rc(RcId(uuid::Uuid::from_u128(8)));
    assert!(ops.contains(&Op::CheckIndex { key, index: *record }), "{ops:?}");
}

#[test]
fn surplus_is_not_taken_while_a_tree_is_suspicious() {
    let mut observed = with_surplus(Fixture::resting(3, 0, 6).observed());
    observed.allowed_actions = AllowedActions::NoRemoval;
    let steps = plan(&observed).steps;
    assert!(matches!(&steps[..], [PodStep::Add { pod_ref, .. }] if pod_ref.node == node(4)));
}

#[test]
fn a_move_does_not_start_towards_the_surplus_of_another_rc() {
    let mut fixture = Fixture::resting(1, 1, 2);
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.readiness.insert(node(0), NodeReadiness::Draining);
    fixture.only_eligible = true;
    let mut observed = fixture.observed();
    let old =
        SurplusPods { record: Index(77), surplus: 1, pods: [(node(1), pod(&spec(0), 1))].into() };
    observed.surplus.insert(RcId(uuid::Uuid::from_u128(8)), old);
    let slot = |at: &NodeName| if *at == node(1) { SlotState::Other } else { SlotState::Nobody };
    assert_eq!(observed.look_up_slots(slot), 0);
    assert!(!matches!(plan(&observed).transfer, TransferPlan::Start(_)), "{:?}", plan(&observed));
}

#[test]
fn a_removal_leaves_no_intent_behind_that_was_not_seen() {
    let spec = spec(0);
    let pod = RcPod { intent: Intent::Missing, ..pod(&spec, 1) };
    let step = PodStep::Remove { pod_ref: pod_ref(1, "web"), pod, why: PodRemoveReason::Surplus };
    let key = key::intent(&node(1), spec.manifest.id());
    assert!(writes::ops(&spec, &step).contains(&Op::CheckNotExists { key }));
}

impl Fixture {
    fn resting(desired: u32, pods: usize, eligible: usize) -> Fixture {
        let spec = spec(desired);
        let pods = (0..pods).map(|n| (pod_ref(n, "web"), pod(&spec, n as u64))).collect();
        Fixture {
            spec,
            pods,
            eligible: (0..eligible).map(node).collect(),
            occupied: BTreeMap::new(),
            capacities: NodeCapacities::default(),
            allowed_actions: AllowedActions::Full,
            readiness: BTreeMap::new(),
            synced: true,
            locked: false,
            only_eligible: false,
            surplus: BTreeMap::new(),
            set_aside: BTreeMap::new(),
        }
    }

    fn readiness(&self, node: &NodeName) -> NodeReadiness {
        self.readiness.get(node).copied().unwrap_or(NodeReadiness::Ready)
    }

    fn healthy(&self) -> usize {
        let is_up = |(pod_ref, pod): &(&PodRef, &RcPod)| {
            pod.health == Health::Passing
                && !pod.unproved
                && pod.intent != Intent::Missing
                && self.readiness(&pod_ref.node) != NodeReadiness::Down
        };
        self.pods.iter().filter(is_up).count()
    }

    fn observed(&self) -> ReplicationObserved {
        let mut observed = ReplicationObserved {
            spec: Arc::new(self.spec.clone()),
            pods: Arc::new(self.pods.clone()),
            eligible: Arc::new(self.eligible.clone()),
            not_ready: self.readiness.clone(),
            unfit: BTreeMap::new(),
            restarting: BTreeMap::new(),
            set_aside: self.set_aside.clone(),
            slots: BTreeMap::new(),
            surplus: self.surplus.clone(),
            capacities: self.capacities.clone(),
            allowed_actions: self.allowed_actions,
            transfer: TransferConditions {
                under_way: None,
                lock_held: self.locked,
                discovery_synced: self.synced,
                only_eligible: self.only_eligible,
            },
        };
        observed.look_up_slots(|node| self.slot(node));
        observed
    }

    fn slot(&self, node: &NodeName) -> SlotState {
        self.occupied.get(node).copied().unwrap_or(SlotState::Nobody)
    }

    fn plan(&self) -> ReplicationPlan {
        plan(&self.observed())
    }

    /// The input after the plan's steps.
    fn after(&self, plan: &ReplicationPlan) -> Fixture {
        let mut after = self.clone();
        for (n, step) in plan.steps.iter().enumerate() {
            writes::apply(&mut after.pods, &self.spec, step, Index(1_000 + n as u64));
            if let PodStep::TakeOver { pod_ref, from, .. } = step {
                let old = after.surplus.get_mut(from).expect("a pod is taken from surplus");
                assert!(old.pods.remove(&pod_ref.node).is_some() && old.surplus > 0);
                old.surplus -= 1;
                after.occupied.remove(&pod_ref.node);
            }
        }
        let limits = TxnLimits { ops: usize::MAX, bytes: usize::MAX };
        let batch = next_batch(&self.spec, &plan.steps, limits, &self.capacities);
        for booking in batch.expect("what was planned can be allocated").bookings {
            after.capacities.insert(booking.node.clone(), booking.applied(Index(2_000)));
        }
        after
    }
}

proptest! {
    /// The plan looks at no slot that was not looked up, so the sparse input gives the plan of the whole one.
    #[test]
    fn slots_that_were_not_looked_up_make_no_difference(fixture in any_world()) {
        let observed = fixture.observed();
        let whole = ReplicationObserved { slots: fixture.occupied.clone(), ..observed.clone() };
        prop_assert_eq!(plan(&observed), plan(&whole));
    }

    #[test]
    fn a_dump_gives_the_same_plan(fixture in any_world()) {
        let observed = fixture.observed();
        let text = serde_json::to_string(&observed).unwrap();
        let read: ReplicationObserved = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(plan(&observed), plan(&read));
        prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn steps_that_change_allocations_are_foreseen(fixture in any_world()) {
        let mut observed = fixture.observed();
        let free_nodes = observed.look_up_slots(|node| fixture.slot(node));
        let steps = plan(&observed).steps;
        let limits = TxnLimits { ops: usize::MAX, bytes: usize::MAX };
        let batch = next_batch(&fixture.spec, &steps, limits, &fixture.capacities).unwrap();
        prop_assert!(batch.bookings.is_empty() || may_change_allocations(&observed, free_nodes));
    }

    #[test]
    fn planning_again_after_the_steps_finds_no_more_steps(fixture in any_world()) {
        let plan = fixture.plan();
        let again = fixture.after(&plan).plan().steps;
        let has_taken = plan.steps.iter().any(|step| matches!(step, PodStep::TakeOver { .. }));
        if fixture.spec.in_order && has_taken {
            // A healthy pod that was taken over may spare another one for an update in order.
            prop_assert!(again.iter().all(update::restarts), "{again:?}");
        } else {
            prop_assert_eq!(again, Vec::new());
        }
    }

    #[test]
    fn it_never_adds_more_than_asked_or_where_it_may_not(fixture in any_world()) {
        let plan = fixture.plan();
        let after = fixture.after(&plan);
        let desired = fixture.spec.replicas_desired as usize;
        prop_assert!(after.pods.len() <= desired.max(fixture.pods.len()));
        for step in &plan.steps {
            if let PodStep::Add { pod_ref, .. } = step {
                prop_assert!(fixture.eligible.contains(&pod_ref.node));
                prop_assert_eq!(fixture.readiness(&pod_ref.node), NodeReadiness::Ready);
                prop_assert_ne!(fixture.occupied.get(&pod_ref.node), Some(&SlotState::Other));
                prop_assert!(fixture.pods.keys().all(|other| other.node != pod_ref.node));
            }
            if let PodStep::TakeOver { pod_ref, .. } = step {
                prop_assert!(fixture.eligible.contains(&pod_ref.node));
                prop_assert_eq!(fixture.readiness(&pod_ref.node), NodeReadiness::Ready);
                prop_assert!(fixture.pods.keys().all(|other| other.node != pod_ref.node));
            }
        }
        let nodes: BTreeSet<_> = after.pods.keys().map(|pod_ref| &pod_ref.node).collect();
        prop_assert_eq!(nodes.len(), after.pods.len(), "one pod per node");
        for (node, room) in after.capacities.iter() {
            prop_assert!(room.faults().is_empty(), "{node}: {:?}", room.faults());
        }
        for step in &plan.steps {
            let (pod_ref, owner, want) = (step.pod_ref(), fixture.spec.owner(), fixture.spec.resources());
            let room = after.capacities.of(&pod_ref.node);
            match step {
                PodStep::Add { .. } | PodStep::TakeOver { .. } => {
                    prop_assert!(room.holds(&pod_ref.pod, &owner, want));
                }
                PodStep::Repair { .. } => prop_assert!(room.holds(fixture.spec.manifest.id(), &owner, want)),
                PodStep::Remove { .. } => prop_assert!(!room.allocated.pods.contains_key(&pod_ref.pod)),
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
        if fixture.spec.in_order || !plan.restarts() {
            prop_assert!(fixture.after(&plan).healthy() >= least.min(fixture.healthy()));
        }
        if let (TransferPlan::Start(leaving), Some(least)) = (&plan.transfer, fixture.spec.min_health) {
            let healthy_elsewhere = {
                let mut without = fixture.clone();
                without.pods.retain(|pod_ref, _| pod_ref.node != *leaving);
                without.healthy()
            };
            let bound = (least as usize).min(fixture.healthy());
            prop_assert!(healthy_elsewhere >= bound || healthy_elsewhere + 1 == fixture.pods.len());
        }
    }

    /// Nodes restart the pods in any order; some never become healthy again. However it goes, the farm's own writes
    /// leave the minimum, and an update of pods that become healthy ends.
    #[test]
    fn update_in_order_keeps_the_minimum_and_ends(
        pods in 1_usize..8,
        min_health in prop::option::of(0_u32..8),
        bad in prop::collection::btree_set(0_usize..8, 0..3),
        recovered in prop::collection::vec((0_usize..8, prop::bool::ANY), 0..40),
    ) {
        let mut fixture = Fixture::resting(u32::try_from(pods).unwrap(), pods, pods);
        (fixture.spec.min_health, fixture.spec.in_order) = (min_health, true);
        for pod in fixture.pods.values_mut() {
            pod.intent = Intent::Differs(Index(5));
        }
        let restarted = |fixture: &Fixture| {
            fixture.pods.values().filter(|pod| matches!(pod.intent, Intent::Same(_))).count()
        };
        let finish = (0..pods).cycle().take(pods * pods).map(|n| (n, true));
        for (n, is_up) in recovered.into_iter().chain(finish) {
            let (before, plan) = (fixture.healthy(), fixture.plan());
            fixture = fixture.after(&plan);
            let least = match min_health {
                Some(least) => before.min(least as usize),
                None if before == pods => pods - 1,
                None => before,
            };
            prop_assert!(fixture.healthy() >= least, "{} of {before}", fixture.healthy());
            if let Some(pod) = fixture.pods.get_mut(&pod_ref(n, "web")).filter(|pod| pod.unproved) {
                pod.unproved = false;
                let is_healthy = is_up && !bad.contains(&n);
                pod.health = if is_healthy { Health::Passing } else { Health::Critical };
            }
        }
        let most_bad = bad.iter().filter(|n| **n < pods).count();
        let spare = pods.saturating_sub(min_health.unwrap_or(0) as usize);
        if most_bad == 0 && min_health.is_none_or(|least| (least as usize) < pods) {
            // Those that recovered as critical stay so, and cost nothing more.
            prop_assert!(restarted(&fixture) >= 1);
        } else if min_health.is_some() {
            let down = fixture.pods.values().filter(|pod| pod.health == Health::Critical).count();
            prop_assert!(down <= spare, "{down} pods are down, {spare} may be");
        }
    }

    #[test]
    fn a_removed_pod_is_never_worse_off_than_one_that_stays(fixture in any_world()) {
        prop_assume!(fixture.spec.min_health.is_none());
        let plan = fixture.plan();
        let rank = |pod_ref: &PodRef, pod: &RcPod| {
            let ineligible = !fixture.eligible.contains(&pod_ref.node)
                || fixture.readiness(&pod_ref.node) != NodeReadiness::Ready
                || !has_capacity(&fixture.spec, &fixture.capacities, pod_ref);
            let ailing = !matches!(pod.health, Health::Passing | Health::Absent);
            (!ineligible, ineligible || !ailing)
        };
        let gone: BTreeSet<_> = plan
            .steps
            .iter()
            .filter(|s| matches!(s, PodStep::Remove { .. }))
            .map(PodStep::pod_ref)
            .collect();
        for (pod_ref, pod) in fixture.pods.iter().filter(|(pod_ref, _)| gone.contains(pod_ref)) {
            for (other, stays) in fixture.pods.iter().filter(|(pod_ref, _)| !gone.contains(pod_ref)) {
                prop_assert!(rank(pod_ref, pod) <= rank(other, stays));
            }
        }
    }

    #[test]
    fn a_batch_keeps_to_the_limits_and_loses_no_step(
        fixture in any_world(),
        ops in 16usize..65,
        // Enough for one step beside what is set aside: that of a pod taken over has an audit record of its own.
        bytes in 70_000usize..81_000,
    ) {
        let limits = TxnLimits { ops, bytes };
        let plan = fixture.plan();
        let mut rest = &plan.steps[..];
        let mut seen = 0;
        while !rest.is_empty() {
            let batch = next_batch(&fixture.spec, rest, limits, &fixture.capacities).unwrap();
            prop_assert!(batch.steps > 0);
            let steps = rest[..batch.steps].iter().flat_map(|s| writes::ops(&fixture.spec, s));
            let ops: Vec<Op> = steps.chain(batch.bookings.iter().map(Booking::op)).collect();
            prop_assert_eq!(&batch.ops, &ops);
            prop_assert!(ops.len() + writes::FIXED_OPS <= limits.ops);
            prop_assert!(ops.iter().map(Op::body_bytes).sum::<usize>() <= limits.bytes);
            seen += batch.steps;
            rest = &rest[batch.steps..];
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
    fixture.pods.get_mut(&pod_ref(1, "web")).unwrap().health = Health::Critical;
    for (reason, mend) in [
        (RcReason::DiscoveryNotSynced, (|w: &mut Fixture| w.synced = true) as fn(&mut Fixture)),
        (RcReason::PodsUnhealthy, |w| {
            w.pods.get_mut(&pod_ref(1, "web")).unwrap().health = Health::Passing;
        }),
        (RcReason::LockHeld, |w| w.locked = false),
    ] {
        assert_eq!(fixture.plan().transfer, TransferPlan::Wait(reason));
        mend(&mut fixture);
    }
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(0)));
}

#[test]
fn transfer_under_way_takes_no_passing_pod_while_others_fail() {
    let mut fixture = Fixture::resting(3, 3, 4);
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.eligible.remove(&node(0));
    fixture.pods.get_mut(&pod_ref(1, "web")).unwrap().health = Health::Critical;
    let transfer = Transfer {
        id: uuid::Uuid::from_u128(1),
        old_node: node(0),
        new_node: Some(node(3)),
        undoing: None,
    };
    let planned = |fixture: &Fixture, transfer: &Transfer| {
        let mut observed = fixture.observed();
        observed.transfer.under_way = Some(transfer.clone());
        plan(&observed).transfer
    };
    let unhealthy = TransferPlan::Wait(RcReason::PodsUnhealthy);
    assert_eq!(planned(&fixture, &transfer), unhealthy);
    let undoing = Transfer { undoing: Some("why".to_owned()), ..transfer.clone() };
    assert_eq!(planned(&fixture, &undoing), TransferPlan::Continue);
    let mut ails = fixture.clone();
    ails.pods.get_mut(&pod_ref(0, "web")).unwrap().health = Health::Critical;
    assert_eq!(planned(&ails, &transfer), TransferPlan::Continue);
    fixture.eligible.insert(node(0));
    assert_eq!(planned(&fixture, &transfer), TransferPlan::Continue, "the node is fit again");
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
    let [PodStep::Add { pod_ref, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(pod_ref.node, node(2));
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.spec.replicas_desired = 1;
    assert!(fixture.plan().is_idle());
}

#[test]
fn pod_that_is_set_aside_waits_and_holds_up_no_other() {
    let mut fixture = Fixture::resting(2, 2, 4);
    fixture.spec.strategy = Allocation::Dynamic;
    fixture.readiness.insert(node(0), NodeReadiness::Down);
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(0)));
    fixture.set_aside.insert(node(0), "until noon: 3 nodes in a row".to_owned());
    let plan = fixture.plan();
    assert_eq!(plan.transfer, TransferPlan::Wait(RcReason::NodesLost));
    let placed = &plan.conditions[2];
    assert_eq!((placed.status, placed.reason), (false, RcReason::NodesLost));
    assert!(placed.message.contains("the pod of n0 is set aside until noon"), "{placed:?}");
    fixture.readiness.insert(node(1), NodeReadiness::Down);
    assert_eq!(fixture.plan().transfer, TransferPlan::Start(node(1)));
}

#[test]
fn manifest_that_nodes_cannot_run_is_named_with_its_error() {
    let mut observed = Fixture::resting(2, 2, 2).observed();
    observed.unfit.insert(node(1), "main: unknown field `comand`".to_owned());
    let plan = plan(&observed);
    assert!(plan.is_idle());
    let placed = &plan.conditions[2];
    assert_eq!((placed.status, placed.reason), (false, RcReason::CannotStart));
    assert!(placed.message.contains("n1: main: unknown field"), "{}", placed.message);
}

#[test]
fn pods_that_are_restarted_again_and_again_are_named() {
    let mut observed = Fixture::resting(2, 2, 2).observed();
    assert!(plan(&observed).conditions[4].status);
    observed.restarting.insert(node(1), "main: exited with 1".to_owned());
    let plan = plan(&observed);
    assert!(plan.is_idle());
    let running = &plan.conditions[4];
    assert_eq!(
        (running.kind, running.status, running.reason),
        (RcConditionType::Running, false, RcReason::PodsRestarting)
    );
    assert!(running.message.contains("1 of 2 pods"), "{}", running.message);
    assert!(running.message.contains("n1: main: exited with 1"), "{}", running.message);
}

#[test]
fn packed_as_full_as_they_may_be() {
    let fixture = Fixture::resting(400, 0, 0);
    let steps: Vec<PodStep> = (0..400)
        .map(|n| PodStep::Add { pod_ref: pod_ref(n, "web"), intent: Index::ZERO })
        .collect();
    let batch = next_batch(&fixture.spec, &steps, TxnLimits::default(), &NodeCapacities::default());
    assert_eq!(batch.unwrap().steps, 30);
}

/// Replays each dump in `testdata/plan`. A dump from a bug report becomes a test by putting it there.
#[test]
fn dumps_give_the_recorded_plans() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/plan");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let is_dump = |path: &std::path::PathBuf| !path.to_str().unwrap().ends_with(".plan.json");
    let mut replayed = 0;
    for dump in files.filter(is_dump) {
        let text = std::fs::read_to_string(&dump).unwrap();
        let observed: ReplicationObserved = serde_json::from_str(&text).unwrap();
        let mut made = serde_json::to_string_pretty(&plan(&observed)).unwrap();
        made.push('\n');
        let recorded = dump.with_extension("plan.json");
        if std::env::var_os("UPDATE_PLANS").is_some() {
            std::fs::write(&recorded, &made).unwrap();
        }
        let recorded = std::fs::read_to_string(&recorded).unwrap();
        assert_eq!(made, recorded, "{}: UPDATE_PLANS=1 records it", dump.display());
        replayed += 1;
    }
    assert!(replayed >= 3);
}

#[test]
fn a_dump_of_another_version_is_refused() {
    let text = serde_json::to_string(&Fixture::resting(1, 1, 1).observed()).unwrap();
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    let error = serde_json::from_str::<ReplicationObserved>(&newer).unwrap_err().to_string();
    assert!(error.contains("version 2"), "{error}");
}

#[test]
fn a_dump_has_no_manifest_text() {
    let mut fixture = Fixture::resting(1, 1, 1);
    let text = "id: web\nconfig: {password: hunter2}\n";
    fixture.spec.manifest = Manifest::parse(text).unwrap();
    assert!(!serde_json::to_string(&fixture.observed()).unwrap().contains("hunter2"));
}
