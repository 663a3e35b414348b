//! Groups that hold cells on nodes that are drained or down, by example.

use serde_json::{Value, json};

use super::TestScheduler;
use super::cells::{on, request, tasks};
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::pod_group::status::{PlacementState, PodGroupPhase, PodGroupReason};

use PodGroupPhase::{Inqueue, Pending, Running};
use PodGroupReason::{AsDesired, Evicted, InsufficientCapacity};

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

impl TestScheduler {
    fn drain(&mut self, name: &str, jobs: DrainJobs) {
        self.fleet.unfit.insert(node(name));
        self.draining.insert(node(name), jobs);
    }

    fn fall(&mut self, name: &str) {
        self.fleet.unfit.insert(node(name));
        self.down.insert(node(name));
    }

    fn is_back(&mut self, name: &str) {
        self.fleet.unfit.remove(&node(name));
        self.draining.remove(&node(name));
        self.down.remove(&node(name));
    }

    /// A group of A of one node, which runs.
    fn running(&mut self, name: &str) {
        self.cell_group(name, "A", 0, (1, 4));
        self.run();
        self.members(name, json!({"running": 1}));
        self.run();
    }
}

/// It stops whole, with its grace, and is placed on what is left.
#[test]
fn group_with_cells_leaves_a_drained_node_or_one_that_is_down() {
    type Event = fn(&mut TestScheduler);
    let events: [(&str, Event); 2] = [
        ("node n0 is drained", |sched| sched.drain("n0", DrainJobs::Evict)),
        ("node n0 is down", |sched| sched.fall("n0")),
    ];
    for (why, event) in events {
        let mut sched = TestScheduler::with_cells(4);
        sched.running("train");
        assert_eq!(sched.devices("train"), on(&[("n0", &[0, 1, 2, 3])]));
        let since = sched.status("train").since;
        event(&mut sched);
        sched.run();
        assert_eq!(sched.phases(&["train"]), [(Running, Evicted)], "{why}");
        let status = sched.status("train");
        let eviction = status.evicted().unwrap();
        assert_eq!((eviction.why.as_str(), eviction.by()), (why, None));
        assert_eq!(eviction.drain.as_ref(), Some(&node("n0")));
        assert!(status.message.ends_with(&format!(": {why}")), "{}", status.message);
        sched.members("train", json!({"releasing": 1}));
        sched.run();
        assert_eq!(sched.devices("train").len(), 1, "its pods still run");
        sched.members("train", json!({}));
        sched.run();
        assert_eq!(sched.phases(&["train"]), [(Inqueue, AsDesired)], "{why}");
        assert_eq!(sched.devices("train"), on(&[("n1", &[0, 1, 2, 3])]), "{why}");
        let status = sched.status("train");
        assert_eq!((status.since, status.sent_back, &status.eviction), (since, 0, &None));
    }
}

/// Without other cells it waits, says why, and goes on when the node is back.
#[test]
fn evicted_group_waits_for_its_node_where_nothing_else_is_free() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("train", "A", 0, (2, 4));
    sched.run();
    sched.members("train", json!({"running": 2}));
    sched.run();
    sched.cell_group("other", "B", 0, (1, 4));
    sched.run();
    sched.drain("n1", DrainJobs::Evict);
    sched.run();
    assert_eq!(sched.phases(&["train", "other"]), [(Running, Evicted), (Inqueue, AsDesired)]);
    sched.members("train", json!({}));
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Pending, InsufficientCapacity)]);
    let (_, message) = sched.why("train");
    assert!(message.contains("node n1 is drained; now: chain RACK: "), "{message}");
    sched.is_back("n1");
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Inqueue, AsDesired)]);
    assert_eq!(sched.devices("train").into_keys().collect::<Vec<_>>(), ["n0", "n1"]);
}

#[test]
fn group_runs_on_when_the_drain_ends_before_it_stops() {
    let mut sched = TestScheduler::with_cells(4);
    sched.running("train");
    sched.drain("n0", DrainJobs::Evict);
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, Evicted)]);
    // The drain goes on where the node is down, too: the group is told the other reason, if any.
    sched.fall("n0");
    sched.run();
    assert!(sched.status("train").evicted().is_some());
    sched.is_back("n0");
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, AsDesired)]);
    assert_eq!(sched.status("train").eviction, None);
    assert_eq!(sched.devices("train"), on(&[("n0", &[0, 1, 2, 3])]));
}

/// A drain that waits for members evicts nobody who runs. A member that has to start again has nowhere to go alone.
#[test]
fn drain_that_waits_evicts_once_a_member_has_to_start_anew() {
    let mut sched = TestScheduler::with_cells(4);
    sched.running("train");
    sched.drain("n0", DrainJobs::Wait);
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, AsDesired)]);
    let moved = |node: &str| -> Value {
        let cells = request("A", "train", 0, (1, 4));
        json!({"tasks": tasks((1, 4)), "cells": cells, "moves": {"w": {"0": node}}})
    };
    sched.group("train", moved("n1"));
    sched.members("train", json!({"running": 1}));
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, AsDesired)], "it is of another node");
    sched.group("train", moved("n0"));
    sched.run();
    assert_eq!(sched.devices("train"), on(&[("n1", &[0, 1, 2, 3])]), "no member is left to stop");
    assert_eq!(sched.phases(&["train"]), [(Inqueue, AsDesired)]);
}

#[test]
fn groups_without_cells_are_not_evicted_from_a_node() {
    let mut sched = TestScheduler::with_cells(4);
    sched.group("plain", json!({"tasks": tasks((4, 1))}));
    sched.run();
    sched.members("plain", json!({"running": 4}));
    sched.run();
    (0..4).for_each(|n| sched.drain(&format!("n{n}"), DrainJobs::Evict));
    sched.run();
    assert_eq!(sched.phases(&["plain"]), [(Running, AsDesired)]);
}

/// Another node of the group, or another group that takes its cells, does not change what it was told.
#[test]
fn group_is_told_one_cause_until_it_stops() {
    let mut sched = TestScheduler::with_cells(4);
    sched.cell_group("train", "A", 0, (2, 4));
    sched.run();
    sched.members("train", json!({"running": 2}));
    sched.run();
    sched.drain("n1", DrainJobs::Evict);
    sched.run();
    let told = sched.status("train").eviction.clone();
    sched.later(60);
    sched.drain("n0", DrainJobs::Evict);
    sched.run();
    assert_eq!(sched.status("train").eviction, told);
    sched.is_back("n1");
    sched.run();
    let eviction = sched.status("train").evicted().unwrap();
    assert_eq!(eviction.drain.as_ref(), Some(&node("n0")), "the first cause has gone");
    let place = sched.status("train").placement.as_ref().unwrap();
    assert_eq!(place.state, PlacementState::Bound);
}

/// A drain asks the budget. A node that is down does not.
#[test]
fn budget_keeps_a_group_on_a_drained_node() {
    let mut sched = TestScheduler::with_cells(4);
    let cells = request("A", "train", 0, (1, 4));
    let spec = json!({"tasks": tasks((1, 4)), "cells": cells, "budget": {"minAvailable": 1}});
    sched.group("train", spec);
    sched.run();
    sched.members("train", json!({"running": 1}));
    sched.run();
    sched.drain("n0", DrainJobs::Evict);
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, AsDesired)]);
    sched.fall("n0");
    sched.run();
    assert_eq!(sched.phases(&["train"]), [(Running, Evicted)]);
}
