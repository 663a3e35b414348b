//! Properties of allocations and of placement.

mod exhaustive;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::placement::NodeLabels;
use rcfarm_api::ResourceList;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::scheduler::Packing;
use rcfarm_store::{Index, Op};

fn node(n: usize) -> NodeName {
    format!("n{n:04}").parse().unwrap()
}

fn pod(n: usize) -> PodId {
    format!("p{n}").parse().unwrap()
}

fn owner(n: u128) -> AllocationOwner {
    AllocationOwner::Rc(RcId(uuid::Uuid::from_u128(n)))
}

/// The first two are RCs, the others PodGroups.
fn any_owner(n: u128) -> AllocationOwner {
    match n {
        0 | 1 => owner(n),
        _ => AllocationOwner::of_group(&format!("ns/g{n}").parse().unwrap()),
    }
}

fn amount(text: &str) -> ResourceList {
    text.parse().unwrap()
}

fn room(capacity: &str) -> NodeCapacity {
    NodeCapacity { capacity: amount(capacity), ..NodeCapacity::default() }
}

fn fleet(capacities: &[&str]) -> Fleet {
    let pool = |n: usize| [("n".to_owned(), n.to_string())].into();
    let nodes = (0..capacities.len()).map(|n| (node(n), pool(n))).collect();
    let mut fleet = Fleet { labels: Arc::new(NodeLabels { nodes }), ..Fleet::default() };
    for (n, capacity) in capacities.iter().enumerate() {
        fleet.node_capacities.insert(node(n), room(capacity));
    }
    fleet
}

/// A node may claim any number of devices: whoever lists them all runs out of memory.
#[test]
fn devices_beyond_the_size_of_a_record_are_refused() {
    let mut node = room("gpu=4294967295");
    let refused = node.allocate(&pod(1), &owner(1), &amount("gpu=4294967295"));
    assert_eq!(refused, Err(Insufficient::Full));
    assert_eq!(node.allocate(&pod(1), &owner(1), &amount("gpu=1000")), Ok(()));
    assert_eq!(node.allocate(&pod(2), &owner(2), &amount("gpu=1000")), Ok(()));
    // What the pod has itself is replaced.
    assert_eq!(node.allocate(&pod(1), &owner(1), &amount("gpu=30000")), Ok(()));
    assert_eq!(node.allocate(&pod(3), &owner(3), &amount("gpu=30000")), Err(Insufficient::Full));
    assert!(node.allocated.bytes() < 512 * 1024, "it fits into a transaction");
}

fn task(name: &str, count: u32, resources: &str) -> TaskSpec {
    TaskSpec {
        name: name.to_owned(),
        replicas: count,
        resources: amount(resources),
        node_selector: String::new(),
        ports: 0,
    }
}

fn gang(packing: Packing, tasks: Vec<TaskSpec>) -> Gang {
    Gang { name: "g".to_owned(), packing, tasks }
}

fn bound(decision: Decision) -> BTreeMap<String, Vec<String>> {
    let Decision::Bind(placement) = decision else { panic!("{decision:?}") };
    let names = |nodes: Vec<NodeName>| nodes.iter().map(NodeName::to_string).collect();
    placement.tasks.into_iter().map(|(task, nodes)| (task, names(nodes))).collect()
}

fn waits(decision: Decision) -> Vec<TaskWait> {
    let Decision::Wait(reasons) = decision else { panic!("{decision:?}") };
    reasons
}

#[test]
fn devices_get_the_lowest_free_numbers_and_keep_them() {
    let mut room = room("cpu=8,memory=8Gi,gpu=4");
    room.allocate(&pod(1), &owner(1), &amount("gpu=1")).unwrap();
    room.allocate(&pod(2), &owner(2), &amount("gpu=2")).unwrap();
    let numbers = |room: &NodeCapacity, n| room.allocated.pods[&pod(n)].devices["gpu"].clone();
    assert_eq!((numbers(&room, 1), numbers(&room, 2)), ([0].into(), [1, 2].into()));
    assert!(room.release(&pod(1), &owner(1)));
    room.allocate(&pod(2), &owner(2), &amount("cpu=1,gpu=3")).unwrap();
    assert_eq!(numbers(&room, 2), [0, 1, 2].into());
    room.allocate(&pod(2), &owner(2), &amount("gpu=1")).unwrap();
    assert_eq!(numbers(&room, 2), [0].into());
    assert!(!room.release(&pod(2), &owner(3)), "it is another's");
    // An RC's next pod with the id takes over what another RC left, with devices of its own.
    room.allocate(&pod(2), &owner(3), &amount("gpu=4")).unwrap();
    assert_eq!(numbers(&room, 2), [0, 1, 2, 3].into());
}

#[test]
fn an_id_with_another_owners_allocation_is_taken() {
    let group = |id: &str| AllocationOwner::of_group(&id.parse().unwrap());
    let (a, b, rc) = (group("team-a/train"), group("team-b/train"), owner(1));
    let mut room = room("cpu=8,memory=8Gi,gpu=4");
    room.allocate(&pod(1), &a, &amount("cpu=1,gpu=1")).unwrap();
    let before = room.clone();
    for other in [&b, &rc] {
        let insufficient = room.allocate(&pod(1), other, &amount("cpu=1")).unwrap_err();
        assert_eq!(insufficient.to_string(), "a pod of pod_group/team-a/train has its id");
        assert_eq!(room.insufficient(&pod(1), other, &amount("cpu=1")), Some(insufficient));
        room.allocate(&pod(1), other, &amount("")).unwrap();
        assert!(room.holds(&pod(1), other, &amount("")), "it asks for nothing and has nothing");
        assert!(!room.release(&pod(1), other));
    }
    assert_eq!(room, before);
    room.allocate(&pod(1), &a, &amount("cpu=2,gpu=1")).unwrap();
    // A group does not replace an RC's allocation either.
    room.allocate(&pod(2), &rc, &amount("cpu=1")).unwrap();
    assert_eq!(room.allocate(&pod(2), &b, &amount("cpu=1")), Err(Insufficient::Taken(rc)));
}

#[test]
fn what_does_not_fit_says_what_is_short() {
    let mut room = room("cpu=4,memory=8Gi,gpu=2");
    room.allocate(&pod(1), &owner(1), &amount("cpu=3500m,gpu=2")).unwrap();
    let before = room.clone();
    let insufficient =
        room.allocate(&pod(2), &owner(2), &amount("cpu=1,memory=1Gi,gpu=1,fpga=1")).unwrap_err();
    assert_eq!(
        insufficient.to_string(),
        "cpu: 1 wanted, 500m of 4 free; fpga: 1 wanted, 0 of 0 free; gpu: 1 wanted, 0 of 2 free"
    );
    assert_eq!(room, before);
    assert_eq!(
        NodeCapacity::default().insufficient(&pod(1), &owner(1), &amount("cpu=1")),
        Some(Insufficient::NothingDeclared)
    );
    assert_eq!(
        NodeCapacity::default().insufficient(&pod(1), &owner(1), &amount("")),
        None,
        "nothing fits everywhere"
    );
    let unreadable = NodeCapacity { is_unreadable: true, ..before };
    assert_eq!(
        unreadable.insufficient(&pod(3), &owner(3), &amount("cpu=1m")),
        Some(Insufficient::Unreadable)
    );
}

#[test]
fn allocation_survives_shrunk_capacity_and_is_reported() {
    let mut room = room("cpu=4,memory=8Gi,gpu=2");
    room.allocate(&pod(1), &owner(1), &amount("cpu=3,gpu=2")).unwrap();
    room.capacity = amount("cpu=2,gpu=1");
    room.allocate(&pod(1), &owner(1), &amount("cpu=3,gpu=2")).unwrap();
    assert_eq!(
        room.faults(),
        ["cpu: 3 allocated of 2", "gpu 1 is allocated to p1, and there are 1"]
    );
    assert!(room.allocate(&pod(2), &owner(2), &amount("memory=1")).is_err());
    let mut twice = room.clone();
    let copy = twice.allocated.pods[&pod(1)].clone();
    twice.allocated.pods.insert(pod(2), copy);
    assert!(twice.faults().contains(&"gpu 0 is allocated to p1 and p2".to_owned()));
}

#[test]
fn bookings_are_one_per_node_and_guarded_by_what_was_seen() {
    let mut node_capacities = NodeCapacities::default();
    node_capacities.insert(node(1), NodeCapacity { index: Index(7), ..room("cpu=4,memory=1Gi") });
    let mut ledger = Ledger::on(&node_capacities);
    ledger.allocate(&node(1), &pod(1), &owner(1), &amount("cpu=1")).unwrap();
    ledger.allocate(&node(1), &pod(2), &owner(1), &amount("cpu=3")).unwrap();
    ledger.allocate(&node(2), &pod(3), &owner(1), &amount("")).unwrap();
    ledger.release(&node(3), &pod(3), &owner(1));
    assert!(ledger.allocate(&node(1), &pod(3), &owner(1), &amount("cpu=1m")).is_err());
    let bookings = ledger.bookings();
    assert_eq!(bookings.len(), 1);
    assert!(matches!(bookings[0].op(), Op::Cas { index: Index(7), .. }));
    node_capacities.insert(node(1), bookings[0].applied(Index(9)));
    let mut ledger = Ledger::on(&node_capacities);
    ledger.allocate(&node(1), &pod(1), &owner(1), &amount("cpu=1")).unwrap();
    let again = ledger.bookings();
    assert!(matches!(again[0].op(), Op::CheckIndex { index: Index(9), .. }), "nothing changes");
    assert_eq!(again[0].applied(Index(20)).index, Index(9));
}

#[test]
fn a_gang_is_packed_or_spread() {
    let nodes = ["cpu=4,memory=8Gi"; 4];
    let workers = |packing| gang(packing, vec![task("w", 4, "cpu=1")]);
    let distinct = |packing| {
        let placed = bound(place(&workers(packing), &fleet(&nodes)));
        placed["w"].iter().collect::<BTreeSet<_>>().len()
    };
    assert_eq!((distinct(Packing::BinPack), distinct(Packing::Spread)), (1, 4));
    let nothing = bound(place(&gang(Packing::BinPack, vec![task("w", 8, "")]), &fleet(&nodes)));
    assert_eq!(nothing["w"].iter().collect::<BTreeSet<_>>().len(), 4, "evenly");
}

#[test]
fn nodes_with_devices_are_left_to_those_who_want_them() {
    let mixed = fleet(&["cpu=4,memory=8Gi,gpu=2", "cpu=4,memory=8Gi"]);
    for packing in [Packing::BinPack, Packing::Spread] {
        let placed = bound(place(
            &gang(packing, vec![task("ps", 2, "cpu=2"), task("w", 1, "gpu=1")]),
            &mixed,
        ));
        assert_eq!(placed["ps"], ["n0001", "n0001"], "{packing}");
        assert_eq!(placed["w"], ["n0000"]);
    }
}

#[test]
fn a_gang_that_only_fits_packed_is_packed() {
    // Spread, the small ones would take the room of the large one's second pod.
    let tasks = vec![task("small", 2, "cpu=1"), task("large", 1, "memory=8Gi,cpu=3")];
    let placed = bound(place(
        &gang(Packing::Spread, tasks),
        &fleet(&["cpu=4,memory=8Gi", "cpu=1,memory=1Gi"]),
    ));
    assert_eq!(placed["large"], ["n0000"]);
    // The pods that may go anywhere would take the only node that the others may go to.
    let narrow = TaskSpec { node_selector: "n=0".to_owned(), ..task("narrow", 2, "cpu=1") };
    let tasks = vec![task("wide", 2, "cpu=2"), narrow];
    let placed = bound(place(
        &gang(Packing::BinPack, tasks),
        &fleet(&["cpu=4,memory=8Gi", "cpu=8,memory=8Gi"]),
    ));
    assert_eq!(placed["narrow"], ["n0000", "n0000"]);
}

#[test]
fn who_waits_hears_why_with_the_numbers() {
    let mut nodes = fleet(&["cpu=4,memory=8Gi,gpu=1", "cpu=4,memory=8Gi", ""]);
    let some = task("w", 2, "gpu=1");
    let none = TaskSpec { node_selector: "n=9".to_owned(), ..task("v", 1, "cpu=1") };
    let reasons = waits(place(&gang(Packing::Spread, vec![some.clone(), none]), &nodes));
    assert_eq!(reasons[0].reason, WaitReason::InsufficientCapacity);
    assert_eq!((reasons[0].fitting, reasons[0].eligible), (1, 3));
    assert_eq!(
        reasons[0].message,
        "room for 1 of 2 on 3 nodes that match; n0000, for 2 pods of the gang: gpu: 2 wanted, \
         1 of 1 free; n0001: gpu: 1 wanted, 0 of 0 free; n0002: it declares no capacity"
    );
    assert_eq!(reasons[1].reason, WaitReason::NoEligibleNodes);
    assert_eq!(reasons[1].message, "no ready node matches n=9");
    nodes.unfit = (0..3).map(node).collect();
    assert_eq!(waits(place(&gang(Packing::Spread, vec![some]), &nodes))[0].eligible, 0);
}

/// A node with so many ports, some of which are in use.
fn with_ports(capacity: &str, ports: &str, in_use: &[u16]) -> NodeCapacity {
    let mut room = NodeCapacity { ports: Some(ports.parse().unwrap()), ..room(capacity) };
    for port in in_use {
        let (pod, none) = (format!("p{port}").parse().unwrap(), ResourceList::default());
        room.allocate_with_port(&pod, &owner(9), &none, Some(*port)).unwrap();
    }
    room
}

#[test]
fn pods_that_need_a_port_go_where_one_is_free() {
    for resources in ["cpu=1", ""] {
        let mut nodes = fleet(&["cpu=8", "cpu=8", "cpu=8"]);
        nodes.node_capacities.insert(node(0), with_ports("cpu=8", "100-101", &[100, 101]));
        nodes.node_capacities.insert(node(1), with_ports("cpu=8", "100-102", &[101, 300]));
        let need = |ports| TaskSpec { ports, ..task("w", 4, resources) };
        // The third node gives out none: pods there need none of it.
        let placed = bound(place(&gang(Packing::Spread, vec![need(4)]), &nodes));
        assert!(!placed["w"].contains(&"n0000".to_owned()), "{placed:?}");
        assert!(placed["w"].iter().filter(|node| *node == "n0001").count() <= 2, "{placed:?}");
        nodes.unfit = [node(2)].into();
        let mut index = FleetIndex::of(&nodes);
        let all = gang(Packing::Spread, vec![need(4)]);
        assert_eq!(index.fitting(&all.tasks[0]), 2);
        let version = index.version();
        let reasons = waits(index.place(&all));
        assert_eq!(reasons[0].fitting, 2);
        let why = "n0000: all its ports, 100-101, are taken";
        assert!(reasons[0].message.contains(why), "{}", reasons[0].message);
        // Two of the four need one: they come first, and only their number counts.
        let two = gang(Packing::Spread, vec![need(2)]);
        assert_eq!(bound(index.place(&two))["w"][..2], ["n0001", "n0001"]);
        assert!(!index.may_have_room(version, &all));
        nodes.node_capacities.insert(node(0), with_ports("cpu=8", "100-101", &[]));
        index.follow(&nodes);
        assert!(index.may_have_room(version, &all), "ports are free again");
        assert!(index.find(&all).is_some());
    }
}

#[test]
fn search_without_some_nodes_leaves_the_index_as_it_was() {
    let nodes = fleet(&["cpu=1", "cpu=1"]);
    let mut index = FleetIndex::of(&nodes);
    let (one, two) = (task("w", 1, "cpu=1"), task("w", 2, "cpu=1"));
    let (one, two) = (gang(Packing::Spread, vec![one]), gang(Packing::Spread, vec![two]));
    let version = index.version();
    for avoided in [node(0), node(1)] {
        let found = index.find_without(&one, &[avoided.clone()].into()).unwrap();
        assert_ne!(found.tasks["w"][0], avoided);
        assert_eq!(index.find_without(&two, &[avoided].into()), None);
    }
    assert_eq!(index.version(), version);
    assert!(index.find(&two).is_some());
}

prop_compose! {
    fn any_amount(most: u32)(cpu in 0..=most, memory in 0..=most, gpu in 0..=most) -> ResourceList {
        let devices = [("gpu", u64::from(gpu))].into_iter().filter(|(_, n)| *n > 0);
        let basic = [("cpu", u64::from(cpu) * 500), ("memory", memory.into())];
        basic.into_iter().chain(devices).collect()
    }
}

prop_compose! {
    fn any_gang()(
        packing in prop::sample::select(vec![Packing::Spread, Packing::BinPack]),
        tasks in prop::collection::vec(
            (1u32..5, any_amount(3), prop::option::of(0usize..5)),
            1..4,
        ),
    ) -> Gang {
        let task = |(n, (replicas, resources, only)): (usize, (u32, ResourceList, Option<usize>))| TaskSpec {
            name: format!("t{n}"),
            replicas,
            resources,
            node_selector: only.map_or_else(String::new, |n| format!("n={n}")),
            ports: 0,
        };
        gang(packing, tasks.into_iter().enumerate().map(task).collect())
    }
}

proptest! {
    /// Invariant 14: after any order of allocations and releases, no more is allocated than there is, and no device
    /// twice. What is released is free again, and a repeated request changes nothing.
    #[test]
    fn invariant_14_a_room_never_allocations_more_than_it_has(
        capacity in any_amount(8),
        acts in prop::collection::vec((0usize..5, 0u128..4, any_amount(4), prop::bool::ANY), 0..30),
    ) {
        let mut room = NodeCapacity { capacity, ..NodeCapacity::default() };
        for (n, who, want, releases) in acts {
            let before = room.clone();
            if releases {
                let was_his = before.allocated.pods.get(&pod(n)).is_some_and(|a| a.owner == any_owner(who));
                prop_assert_eq!(room.release(&pod(n), &any_owner(who)), was_his);
                prop_assert_eq!(room.allocated.pods.contains_key(&pod(n)), before.allocated.pods.contains_key(&pod(n)) && !was_his);
                continue;
            }
            let fits = room.insufficient(&pod(n), &any_owner(who), &want).is_none() || room.holds(&pod(n), &any_owner(who), &want);
            prop_assert_eq!(room.allocate(&pod(n), &any_owner(who), &want).is_ok(), fits);
            if fits {
                prop_assert!(room.holds(&pod(n), &any_owner(who), &want));
                let once = room.clone();
                room.allocate(&pod(n), &any_owner(who), &want).unwrap();
                prop_assert_eq!(&room, &once);
                if !before.allocated.pods.contains_key(&pod(n)) {
                    let mut restored = once;
                    restored.release(&pod(n), &any_owner(who));
                    prop_assert_eq!(&restored, &before);
                }
            } else {
                prop_assert_eq!(&room, &before);
            }
            if before.taken_by(&pod(n), &any_owner(who)).is_some() {
                prop_assert_eq!(&room, &before, "another owner's allocation stays as it is");
            }
            prop_assert!(room.faults().is_empty(), "{:?}", room.faults());
        }
    }

    /// All or nothing, on matching nodes, within their room; and the same answer again.
    #[test]
    fn a_placement_is_whole_and_can_be_allocated(
        gang in any_gang(),
        capacities in prop::collection::vec(any_amount(6), 1..5),
        allocated in prop::collection::vec((0usize..5, any_amount(3)), 0..5),
        unfit in prop::collection::btree_set(0usize..5, 0..2),
    ) {
        let mut seen = fleet(&vec![""; capacities.len()]);
        for (n, capacity) in capacities.iter().enumerate() {
            seen.node_capacities.insert(node(n), NodeCapacity { capacity: capacity.clone(), ..NodeCapacity::default() });
        }
        for (at, (n, want)) in allocated.iter().enumerate().filter(|(_, (n, _))| *n < capacities.len()) {
            let mut room = seen.node_capacities.of(&node(*n)).clone();
            let _ = room.allocate(&pod(at), &owner(9), want);
            seen.node_capacities.insert(node(*n), room);
        }
        seen.unfit = unfit.into_iter().map(node).collect();
        let decision = place(&gang, &seen);
        prop_assert_eq!(&decision, &place(&gang, &seen));
        match decision {
            Decision::Bind(placement) => {
                for task in &gang.tasks {
                    prop_assert_eq!(placement.tasks[&task.name].len(), task.replicas as usize);
                }
                let mut ledger = Ledger::on(&seen.node_capacities);
                for (task, n, on) in placement.pods(&gang) {
                    prop_assert!(task.selector_or_all().matches(&seen.labels.nodes[on]));
                    prop_assert!(!seen.unfit.contains(on));
                    let pod = format!("{}-{n}", task.name).parse().unwrap();
                    prop_assert_eq!(ledger.allocate(on, &pod, &owner(1), &task.resources), Ok(()));
                }
                for booking in ledger.bookings() {
                    prop_assert!(booking.room.faults().is_empty());
                }
            }
            Decision::Wait(reasons) => {
                prop_assert!(!reasons.is_empty());
                for wait in reasons {
                    let task = gang.tasks.iter().find(|task| task.name == wait.task).unwrap();
                    prop_assert!(wait.fitting < task.replicas);
                    prop_assert_eq!(wait.eligible == 0, wait.reason == WaitReason::NoEligibleNodes);
                }
            }
            Decision::Preempt(victims) => prop_assert!(false, "{victims:?}"),
        }
    }
}

#[test]
fn named_devices_are_given_or_nothing_is() {
    let mut node = room("cpu=8,gpu=4");
    let want = amount("gpu=2,cpu=1");
    let none = BTreeSet::new();
    let of = |devices: &'static [u32]| -> BTreeSet<u32> { devices.iter().copied().collect() };
    let mut give = |n: usize, devices: &BTreeSet<u32>| {
        let wanted = PodResources { devices, ..PodResources::of_amounts(&want) };
        let given = node.allocate_devices(&pod(n), &any_owner(2), &wanted);
        given.map(|()| {
            assert!(node.holds_devices(&pod(n), &any_owner(2), &wanted));
            node.allocated.pods[&pod(n)].devices["gpu"].clone()
        })
    };
    assert_eq!(give(0, &of(&[1, 3])).unwrap(), of(&[1, 3]));
    assert_eq!(give(1, &of(&[2, 3])), Err(Insufficient::DevicesTaken(vec![3])));
    assert_eq!(give(1, &of(&[2, 4])), Err(Insufficient::DevicesTaken(vec![4])));
    assert_eq!(give(0, &of(&[0, 1])).unwrap(), of(&[0, 1]), "others than it had");
    assert_eq!(give(0, &none).unwrap(), of(&[0, 1]), "any are right");
    assert_eq!(give(1, &none).unwrap(), of(&[2, 3]));
    assert!(node.faults().is_empty());
}
