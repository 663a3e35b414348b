//! Gangs that need several transactions, and gangs on lost nodes.

use serde_json::{Value, json};

use super::{NODE, TestScheduler, id, workers};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::status::{PlacementState, PodGroupPhase, PodGroupReason};

/// A gang written ahead: after any number of changes the next pass completes or releases it.
#[test]
fn a_large_gang_interrupted_anywhere_ends_whole_or_not_at_all() {
    for changed in [false, true] {
        for stop in 0..12 {
            let mut sched = TestScheduler::new(&[NODE; 9]);
            sched.bounds.nodes = 2;
            sched.group("g", json!({"tasks": workers(9, "3")}));
            let mut made = 0;
            while made < stop {
                let plan = sched.plan();
                if plan.changes.is_empty() {
                    break;
                }
                for change in plan.changes.iter().take(stop - made) {
                    sched.apply(change);
                    made += 1;
                }
            }
            // Another owner continues; the group may be deleted meanwhile.
            if changed {
                sched.groups.remove(&id("g"));
            }
            sched.run();
            let allocated: usize =
                sched.fleet.node_capacities.iter().map(|(_, room)| room.allocated.pods.len()).sum();
            match changed {
                true => assert_eq!((allocated, sched.book.len()), (0, 0), "after {stop}"),
                false => {
                    assert_eq!(allocated, 9, "after {stop}");
                    assert_eq!(
                        sched.status("g").placement.as_ref().unwrap().state,
                        PlacementState::Bound
                    );
                }
            }
        }
    }
}

#[test]
fn large_gang_that_lost_a_node_frees_all_and_retries() {
    let mut sched = TestScheduler::new(&[NODE; 6]);
    sched.bounds.nodes = 2;
    sched.group("g", json!({"tasks": workers(5, "3")}));
    let first = sched.plan();
    sched.apply(&first.changes[0]);
    assert_eq!(sched.status("g").reason, PodGroupReason::Reserving);
    let forward = sched.plan();
    sched.apply(&forward.changes[0]);
    // Another controller's pod uses the capacity of a node without an allocation yet.
    let taken = sched.nodes("g").into_iter().find(|node| {
        sched.fleet.node_capacities.of(&node.parse().unwrap()).allocated.pods.is_empty()
    });
    let node: NodeName = taken.unwrap().parse().unwrap();
    let mut room = sched.fleet.node_capacities.of(&node).clone();
    let owner = "rc/other".parse().unwrap();
    room.allocate(&"other".parse().unwrap(), &owner, &"cpu=2".parse().unwrap()).unwrap();
    sched.fleet.node_capacities.insert(node.clone(), room);
    let back = sched.plan();
    sched.apply(&back.changes[0]);
    assert_eq!(sched.status("g").reason, PodGroupReason::ReservationFailed);
    sched.run();
    assert_eq!(sched.phases(&["g"]), [(PodGroupPhase::Inqueue, PodGroupReason::AsDesired)]);
    assert!(!sched.nodes("g").contains(&node.to_string()), "placed around it");
}

/// A node goes down while other members run: members of that node are replaced, others stay.
#[test]
fn member_of_a_down_node_is_replaced_once_its_pod_ends() {
    let mut sched = TestScheduler::new(&["cpu=1", "cpu=1", "cpu=1"]);
    sched.group("g", json!({"tasks": workers(2, "1")}));
    sched.run();
    assert_eq!(sched.nodes("g"), ["n0", "n1"]);
    sched.down = ["n1".parse().unwrap()].into();
    sched.fleet.unfit = sched.down.clone();
    sched.members("g", json!({"running": 2}));
    sched.run();
    assert_eq!(sched.nodes("g"), ["n0", "n1"], "its pod may still be there");
    sched.members("g", json!({"running": 1, "pending": 1}));
    sched.run();
    assert_eq!(sched.nodes("g"), ["n0", "n2"]);
    assert_eq!(sched.status("g").phase, PodGroupPhase::Running);
    sched.down = ["n1".parse().unwrap(), "n2".parse().unwrap()].into();
    sched.fleet.unfit = sched.down.clone();
    sched.run();
    assert_eq!(
        (sched.nodes("g").len(), sched.status("g").phase),
        (1, PodGroupPhase::Unknown),
        "no room"
    );
}

#[test]
fn member_that_failed_moves_only_if_another_node_has_room() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    let spec = |moves: Value| json!({"tasks": workers(1, "3"), "moves": moves});
    sched.group("a", spec(json!({})));
    sched.run();
    let first = sched.nodes("a").remove(0);
    sched.group("a", spec(json!({"w": {"0": first}})));
    sched.run();
    let second = sched.nodes("a").remove(0);
    assert_ne!(second, first);
    sched.group("other", json!({"tasks": workers(1, "3")}));
    sched.run();
    assert_eq!(sched.nodes("other"), [first]);
    sched.group("a", spec(json!({"w": {"0": second}})));
    sched.run();
    assert_eq!(sched.nodes("a"), std::slice::from_ref(&second), "the other node is full");
    // The node takes no pods any more: the member has no node until there is room elsewhere.
    sched.fleet.unfit = [second.parse().unwrap()].into();
    sched.run();
    assert!(sched.nodes("a").is_empty());
}

/// The one on a node that is down finds no room; the other has failed on a node that is fit.
#[test]
fn member_keeps_a_fit_node_if_another_finds_no_room() {
    let mut sched = TestScheduler::new(&["cpu=1", "cpu=1"]);
    sched.group("g", json!({"tasks": workers(2, "1")}));
    sched.run();
    assert_eq!(sched.nodes("g"), ["n0", "n1"]);
    sched.group("g", json!({"tasks": workers(2, "1"), "moves": {"w": {"0": "n0"}}}));
    sched.members("g", json!({"pending": 2}));
    sched.down = ["n1".parse().unwrap()].into();
    sched.fleet.unfit = sched.down.clone();
    sched.run();
    assert_eq!(sched.nodes("g"), ["n0"]);
}

/// All ports of the first node are taken: that is no reason to wait beside one that has some.
#[test]
fn gang_that_needs_ports_goes_where_they_are_free() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    for (node, ports) in [("n0", "100-100"), ("n1", "100-101")] {
        let node = node.parse().unwrap();
        let mut room = sched.fleet.node_capacities.of(&node).clone();
        room.ports = Some(ports.parse().unwrap());
        sched.fleet.node_capacities.insert(node, room);
    }
    let listens = |count: u32, ports: u32, resources: Value| json!({"tasks": [{"name": "w", "replicas": count, "resources": resources, "ports": ports}]});
    // One of two listens; the other goes anywhere.
    sched.group("a", listens(2, 1, json!({"cpu": "1"})));
    sched.group("b", listens(2, 2, json!({})));
    sched.run();
    let mut ports: Vec<(String, Option<u16>)> = Vec::new();
    for group in ["a", "b"] {
        let placed = sched.status(group).placement.as_ref().unwrap();
        ports
            .extend(placed.placed().map(|(_, n, node)| (node.to_string(), placed.port_of("w", n))));
    }
    let given: std::collections::BTreeSet<_> =
        ports.iter().filter(|(_, port)| port.is_some()).cloned().collect();
    assert_eq!(given.len(), 3, "three listen, and no two have the same: {ports:?}");
    sched.group("c", listens(1, 1, json!({"cpu": "1"})));
    sched.run();
    let status = sched.status("c");
    assert_eq!(status.phase, PodGroupPhase::Pending);
    assert!(status.message.contains("n1: all its ports, 100-101, are taken"), "{}", status.message);
}
