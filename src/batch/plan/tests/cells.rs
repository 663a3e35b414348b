//! Groups that ask for cells, by example.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{TestScheduler, id};
use crate::cluster::cells::StoredCells;
use crate::placement::cells::decode;
use rcfarm_api::Index;
use rcfarm_api::allocation::{Allocation, AllocationOwner};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::status::{PlacementState, PodGroupPhase, PodGroupReason};

pub(super) const NODE: &str = "cpu=8,memory=8Gi,gpu=4";

/// Nodes n0 to n3 of two pairs of devices, in two racks. A has a rack, B a node and a pinned one.
pub(super) fn config() -> Value {
    let node = |name: &str| json!({"cellAddress": name});
    json!({
        "physicalCluster": {
            "cellTypes": {
                "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
                "NODE": {"childCellType": "PAIR", "childCellNumber": 2, "isNodeLevel": true},
                "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            },
            "physicalCells": [
                {"cellType": "RACK", "cellChildren": [node("n0"), node("n1")]},
                {"cellType": "RACK", "cellChildren": [node("n2"),
                    {"cellAddress": "n3", "pinnedCellId": "p"}]},
            ],
        },
        "virtualClusters": {
            "A": {"virtualCells": [{"cellType": "RACK", "cellNumber": 1}]},
            "B": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 1}],
                  "pinnedCells": [{"pinnedCellId": "p"}]},
        },
    })
}

/// A request of `pods` pods of `devices` devices.
pub(super) fn request(vc: &str, name: &str, priority: i64, (pods, devices): (u32, u32)) -> Value {
    json!({
        "group": {"key": {"virtualCluster": vc, "name": name}, "priority": priority,
            "ignoreSuggestedNodes": true, "members": [{"pods": pods, "cells": devices}]},
        "tasks": {"w": 0},
    })
}

pub(super) fn tasks((pods, devices): (u32, u32)) -> Value {
    json!([{"name": "w", "replicas": pods, "resources": {"gpu": devices, "cpu": "1"}}])
}

impl TestScheduler {
    pub(super) fn with_cells(nodes: usize) -> TestScheduler {
        let mut sched = TestScheduler::new(&vec![NODE; nodes]);
        sched.configure(&config());
        sched
    }

    pub(super) fn configure(&mut self, config: &Value) {
        let value = decode(config.to_string().as_bytes()).map(|(_, model)| Arc::new(model));
        let index = self.next_index();
        self.cells = Some(Arc::new(StoredCells { index, created: index, value }));
    }

    pub(super) fn cell_group(&mut self, name: &str, vc: &str, priority: i64, shape: (u32, u32)) {
        let cells = request(vc, name, priority, shape);
        self.group(name, json!({"tasks": tasks(shape), "cells": cells}));
    }

    /// Devices of each pod of a group by node, from the nodes' allocations.
    pub(super) fn devices(&self, name: &str) -> BTreeMap<String, Vec<u32>> {
        let owner = AllocationOwner::of_group(&id(name));
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (node, room) in self.fleet.node_capacities.iter() {
            for allocation in room.allocated.pods.values().filter(|a| a.owner == owner) {
                let devices = allocation.devices["gpu"].iter();
                found.entry(node.to_string()).or_default().extend(devices);
            }
        }
        found
    }

    pub(super) fn why(&self, name: &str) -> (PodGroupReason, &str) {
        (self.status(name).reason, &self.status(name).message)
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.groups.remove(&id(name));
        self.run();
    }

    fn foreign(&mut self, node: &str, devices: &[u32]) {
        let node: NodeName = node.parse().unwrap();
        let mut room = self.fleet.node_capacities.of(&node).clone();
        let devices = [("gpu".to_owned(), devices.iter().copied().collect())].into();
        let owner = AllocationOwner::Other("rc/other".to_owned());
        let allocation = Allocation { owner, devices, ..Allocation::default() };
        room.allocated.pods.insert("other".parse().unwrap(), allocation);
        self.fleet.node_capacities.insert(node, room);
    }
}

pub(super) fn on(places: &[(&str, &[u32])]) -> BTreeMap<String, Vec<u32>> {
    places.iter().map(|(node, devices)| ((*node).to_owned(), devices.to_vec())).collect()
}

#[test]
fn groups_get_the_devices_of_their_cells() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("one", "A", 0, (1, 1));
    sched.run();
    sched.cell_group("two", "A", 0, (1, 2));
    sched.run();
    sched.cell_group("three", "A", 0, (1, 1));
    sched.run();
    assert_eq!(sched.devices("one"), on(&[("n0", &[0])]));
    assert_eq!(sched.devices("two"), on(&[("n0", &[2, 3])]), "a whole pair");
    assert_eq!(sched.devices("three"), on(&[("n0", &[1])]), "the other half of the first pair");
    sched.cell_group("node", "B", 5, (1, 4));
    sched.run();
    assert_eq!(
        sched.devices("node"),
        on(&[("n2", &[0, 1, 2, 3])]),
        "n3 is pinned, n1 is of A's rack"
    );
    let place = sched.status("node").placement.as_ref().unwrap();
    let held = place.cells.as_ref().unwrap();
    assert_eq!((place.state, held.chain.as_str()), (PlacementState::Bound, "RACK"));
    assert_eq!(held.pods[0].cell.as_deref(), Some("B/0"));
}

/// What others run does not matter: the cells of a virtual cluster are its own.
#[test]
fn virtual_cluster_is_held_to_its_cells_and_waits_with_the_reason_of_each_chain() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("large", "B", 0, (2, 4));
    sched.run();
    let (reason, message) = sched.why("large");
    assert_eq!(reason, PodGroupReason::InsufficientCapacity);
    assert!(message.starts_with("chain RACK: "), "{message}");
    assert_eq!(sched.status("large").phase, PodGroupPhase::Pending);
    sched.cell_group("rack", "A", 0, (2, 4));
    sched.run();
    assert_eq!(sched.devices("rack").into_keys().collect::<Vec<_>>(), ["n0", "n1"]);
}

/// Its reason stays the same, and what stands in the way does not.
#[test]
fn reasons_of_two_chains_are_told_as_they_are_now() {
    let mut sched = TestScheduler::with_cells(6);
    let mut more = config();
    add_boxes(&mut more);
    let boxes = json!({"cellType": "BOX", "cellNumber": 1});
    more["virtualClusters"]["A"]["virtualCells"].as_array_mut().unwrap().push(boxes);
    sched.configure(&more);
    for (name, shape) in [("rack", (2, 4)), ("box", (1, 4)), ("waits", (1, 4))] {
        sched.cell_group(name, "A", 0, shape);
        sched.run();
    }
    let text = "insufficient capacity when scheduling in VC A";
    let reasons = |sched: &TestScheduler| -> Vec<(String, String)> {
        let reasons = sched.status("waits").chain_reasons.clone();
        reasons.into_iter().map(|of| (of.chain, of.reason)).collect()
    };
    let both = ["BOX", "RACK"].map(|chain| (chain.to_owned(), text.to_owned()));
    let mut first = reasons(&sched);
    first.sort();
    assert_eq!(first, both);
    assert_eq!(sched.why("waits").0, PodGroupReason::InsufficientCapacity);
    let mut down = ["n4", "n5"].map(|node| node.parse::<NodeName>().unwrap()).into();
    sched.fleet.unfit.append(&mut down);
    sched.delete("box");
    let (reason, message) = sched.why("waits");
    assert_eq!(reason, PodGroupReason::InsufficientCapacity);
    assert!(message.contains("chain BOX: have to use at least one bad node"), "{message}");
    assert!(message.contains(&format!("chain RACK: {text}")), "{message}");
    assert_eq!(reasons(&sched).len(), 2);
    sched.fleet.unfit.clear();
    sched.run();
    assert!(sched.status("waits").chain_reasons.is_empty(), "it is placed");
}

/// Adds a chain of two nodes, n4 and n5.
fn add_boxes(config: &mut Value) {
    let cluster = &mut config["physicalCluster"];
    cluster["cellTypes"]["BOX"] =
        json!({"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": true});
    for node in ["n4", "n5"] {
        let cell = json!({"cellType": "BOX", "cellAddress": node});
        cluster["physicalCells"].as_array_mut().unwrap().push(cell);
    }
}

#[test]
fn cells_of_a_group_that_has_gone_are_free_again() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("one", "A", 0, (2, 4));
    sched.run();
    sched.cell_group("two", "A", 0, (2, 4));
    sched.run();
    assert_eq!(sched.status("two").reason, PodGroupReason::InsufficientCapacity);
    sched.delete("one");
    sched.run();
    assert_eq!(sched.devices("two").len(), 2);
}

#[test]
fn group_of_higher_priority_takes_the_cells_of_a_lazy_one_that_runs_on() {
    let mut sched = TestScheduler::with_cells(6);
    let mut more = config();
    add_boxes(&mut more);
    more["virtualClusters"]["C"] = json!({"virtualCells": [{"cellType": "BOX", "cellNumber": 1}]});
    sched.configure(&more);
    let mut cells = request("C", "lazy", 0, (1, 4));
    cells["group"]["lazyPreemptionEnable"] = json!(true);
    sched.group("lazy", json!({"tasks": tasks((1, 4)), "cells": cells}));
    sched.run();
    let before = sched.devices("lazy");
    sched.cell_group("first", "C", 7, (1, 4));
    sched.run();
    let held = |sched: &TestScheduler, name: &str| {
        sched.status(name).placement.as_ref().unwrap().cells.clone().unwrap()
    };
    let lazy = held(&sched, "lazy").lazy_preemption.expect("it is opportunistic now");
    assert_eq!(lazy.preemptor, "first");
    assert_eq!(sched.devices("lazy"), before, "it runs on where it is");
    assert_eq!(held(&sched, "first").pods[0].cell.as_deref(), Some("C/0"));
    assert_eq!(sched.devices("first").len(), 1);
    sched.delete("first");
    sched.run();
    assert_eq!(held(&sched, "lazy").lazy_preemption, None, "its guarantee is back");
}

#[test]
fn group_that_cannot_be_right_says_what_is_wrong() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("tenant", "C", 0, (1, 1));
    sched.cell_group("first", "A", 0, (1, 1));
    let twin = json!({"tasks": tasks((1, 1)), "cells": request("A", "first", 0, (1, 1))});
    sched.group("twin", twin);
    let count = json!({"tasks": tasks((2, 1)), "cells": request("A", "count", 0, (3, 1))});
    sched.group("count", count);
    let device = json!({"tasks": tasks((1, 2)), "cells": request("A", "device", 0, (1, 1))});
    sched.group("device", device);
    sched.run();
    for (name, words) in [
        ("tenant", "VC C does not exists!"),
        ("twin", "another PodGroup is the affinity group A/first"),
        ("count", "it has 3 pods, the group's tasks have 2"),
        ("device", "its cells are 1 devices"),
    ] {
        let (reason, message) = sched.why(name);
        assert_eq!(reason, PodGroupReason::InvalidRecord, "{name}: {message}");
        assert!(message.contains(words), "{name}: {message}");
    }
    let mut cells = request("A", "deep", 2000, (1, 1));
    cells["tasks"] = json!({"w": 9});
    sched.group("deep", json!({"tasks": tasks((1, 1)), "cells": cells}));
    sched.run();
    let (_, message) = sched.why("deep");
    assert!(message.contains("spec.cells.group.priority"), "{message}");
    assert!(message.contains("spec.cells.tasks.w"), "{message}");
}

#[test]
fn without_valid_cells_groups_wait_and_others_do_not() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.cell_group("cells", "A", 0, (1, 1));
    sched.group("other", json!({"tasks": tasks((1, 1))}));
    sched.run();
    assert!(sched.why("cells").1.contains("rcfarm cell config apply"));
    assert_eq!(sched.nodes("other"), ["n0"]);
    let mut wrong = config();
    wrong["physicalCluster"]["physicalCells"][0]["cellType"] = json!("NONE");
    sched.configure(&wrong);
    sched.run();
    assert_eq!(sched.status("cells").reason, PodGroupReason::NoEligibleNodes);
}

/// The one capacity book: devices of others are not given away, whoever they are.
#[test]
fn nodes_with_devices_of_others_count_as_bad() {
    let mut sched = TestScheduler::with_cells(4);
    sched.foreign("n0", &[1]);
    sched.cell_group("one", "A", 0, (1, 2));
    sched.run();
    assert!(!sched.devices("one").contains_key("n0"), "{:?}", sched.devices("one"));
    assert_eq!(sched.devices("one").len(), 1);
}

#[test]
fn selectors_and_processors_bind_groups_in_cells() {
    let mut sched = TestScheduler::with_cells(4);
    let mut spec = json!({"tasks": tasks((1, 1)), "cells": request("A", "one", 0, (1, 1))});
    spec["tasks"][0]["nodeSelector"] = json!("n=1");
    sched.group("one", spec.clone());
    sched.run();
    assert_eq!(sched.devices("one").into_keys().collect::<Vec<_>>(), ["n1"]);
    spec["cells"] = request("A", "two", 0, (1, 1));
    spec["tasks"][0]["nodeSelector"] = json!("");
    spec["tasks"][0]["resources"]["cpu"] = json!("9");
    sched.group("two", spec);
    sched.run();
    assert_eq!(sched.status("two").reason, PodGroupReason::InsufficientCapacity);
}

/// Others may not get the cells of a member that has ended, and it gets its own devices back.
#[test]
fn member_that_starts_again_has_its_own_cells() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("a", "A", 0, (2, 4));
    sched.run();
    let before = sched.devices("a");
    let ended = |sched: &mut TestScheduler, members: Value, ended: Value| {
        let mut spec = json!({"tasks": tasks((2, 4)), "cells": request("A", "a", 0, (2, 4))});
        spec["ended"] = ended;
        let created = sched.groups[&id("a")].created;
        sched.write("a", &json!({"spec": spec, "members": members}), Some(created));
        sched.run();
    };
    ended(&mut sched, json!({"running": 1, "succeeded": 1}), json!({"w": "0"}));
    assert_eq!(sched.devices("a").len(), 1);
    sched.cell_group("b", "A", 0, (1, 4));
    sched.run();
    assert_eq!(sched.status("b").reason, PodGroupReason::InsufficientCapacity);
    ended(&mut sched, json!({"running": 1, "pending": 1}), json!({}));
    assert_eq!(sched.devices("a"), before);
}

/// A change of the configuration takes nothing from groups that run.
#[test]
fn groups_run_on_when_their_cells_are_gone() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("a", "A", 0, (2, 4));
    sched.run();
    let before = sched.status("a").clone();
    let mut less = config();
    less["physicalCluster"]["physicalCells"].as_array_mut().unwrap().remove(0);
    less["virtualClusters"].as_object_mut().unwrap().remove("A");
    sched.configure(&less);
    sched.cell_group("b", "B", 0, (1, 4));
    sched.run();
    assert_eq!(*sched.status("a"), before);
    assert_eq!(sched.devices("b"), on(&[("n2", &[0, 1, 2, 3])]));
    assert_ne!(sched.cells.as_ref().unwrap().index, Index::ZERO);
}

/// What earlier passes have found does not last longer than what it was found for.
#[test]
fn refused_request_is_tried_again_once_something_changes() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("one", "A", 0, (2, 4));
    for name in ["two", "three"] {
        sched.cell_group(name, "A", 0, (2, 4));
    }
    sched.run();
    for _ in 0..3 {
        sched.add_node("cpu=1");
        sched.run();
        assert_eq!(sched.status("three").reason, PodGroupReason::InsufficientCapacity);
    }
    sched.delete("one");
    sched.run();
    let placed = ["two", "three"].map(|name| sched.status(name).placement.is_some());
    assert_eq!(placed, [true, false]);
    assert_eq!(sched.status("three").reason, PodGroupReason::InsufficientCapacity);
}

/// Processors are not counted by cells. A group that a node has none left for waits, and keeps nothing.
#[test]
fn group_that_cannot_be_bound_takes_no_cells() {
    let mut sched = TestScheduler::with_cells(4);
    let mut spec = json!({"tasks": tasks((4, 1)), "cells": request("A", "one", 0, (4, 1))});
    spec["tasks"][0]["resources"]["cpu"] = json!("3");
    sched.group("one", spec);
    sched.run();
    let (reason, message) = sched.why("one");
    assert_eq!(reason, PodGroupReason::InsufficientCapacity, "{message}");
    assert!(message.contains("cpu"), "{message}");
    sched.cell_group("two", "A", 0, (2, 4));
    sched.run();
    assert_eq!(sched.devices("two").into_keys().collect::<Vec<_>>(), ["n0", "n1"]);
}
