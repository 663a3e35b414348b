//! Members that have ended give back what they had, by example.

use serde_json::{Value, json};

use super::{NODE, TestScheduler, id, queue, workers};
use crate::batch::queues::Queues;
use crate::batch::writes::{QueueBook, batch};
use rcfarm_api::pod_group::status::{PlacementState, PodGroupPhase, PodGroupReason};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Op, TxnLimits};

impl TestScheduler {
    /// What the group's owner reports: counts, and members that have ended, as ranges.
    fn ended(&mut self, name: &str, members: Value, ended: &str) {
        self.members(name, members);
        let old = self.groups[&id(name)].clone();
        let mut record: Value =
            serde_json::from_slice(&old.value.as_ref().unwrap().encode()).unwrap();
        record["spec"]["ended"] = match ended {
            "" => json!({}),
            ranges => json!({"w": ranges}),
        };
        self.write(name, &record, Some(old.created));
    }

    /// Runs passes until none changes anything; the number of transactions that check the default queue's record.
    fn charges(&mut self) -> usize {
        let mut checks = 0;
        loop {
            let plan = self.plan();
            if plan.changes.is_empty() {
                return checks;
            }
            let queues = Queues::of(&self.queues, self.classes.clone());
            let (rooms, book) = (&self.fleet.node_capacities, QueueBook::new());
            let batch = batch(&plan.changes, rooms, &queues, &book, TxnLimits::default());
            let queue = key::queue(&queue("default"));
            let is_check = |op: &&Op| matches!(op, Op::CheckIndex { key, .. } if *key == queue);
            checks += batch.ops.iter().filter(is_check).count();
            plan.changes.iter().for_each(|change| self.apply(change));
        }
    }

    fn placed(&self, name: &str) -> Vec<u32> {
        let place = self.status(name).placement.as_ref().unwrap();
        assert_eq!(place.state, PlacementState::Bound);
        place.placed().map(|(_, n, _)| n).collect()
    }
}

#[test]
fn ended_members_free_capacity_and_quota_while_the_rest_runs() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("default", json!({"capability": {"cpu": 4}}));
    sched.group("a", json!({"tasks": workers(4, "1")}));
    sched.run();
    sched.group("b", json!({"tasks": workers(3, "1")}));
    sched.run();
    assert_eq!(sched.status("b").reason, PodGroupReason::QueueFull);
    sched.ended("a", json!({"running": 1, "succeeded": 3}), "0,2-3");
    sched.run();
    assert_eq!(sched.placed("a"), [1]);
    assert_eq!(sched.status("a").charged, "cpu=1,pods=1".parse().unwrap());
    assert_eq!(sched.status("a").phase, PodGroupPhase::Running);
    let place = sched.status("a").placement.as_ref().unwrap();
    assert_eq!(place.ended().map(|(_, n, _)| n).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(sched.placed("b"), [0, 1, 2], "it has what the ended members had");
}

/// Its place may be taken meanwhile; it never has a node without an allocation.
#[test]
fn ended_member_that_starts_again_waits_for_a_place() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(2, "2")}));
    sched.run();
    sched.ended("a", json!({"running": 1, "succeeded": 1}), "0");
    sched.group("b", json!({"tasks": workers(1, "2")}));
    sched.run();
    assert_eq!((sched.placed("a"), sched.placed("b")), (vec![1], vec![0]));
    sched.ended("a", json!({"running": 1, "pending": 1}), "");
    sched.run();
    assert_eq!(sched.placed("a"), [1], "there is no room");
    sched.groups.remove(&id("b"));
    sched.run();
    assert_eq!(sched.placed("a"), [0, 1]);
    assert!(sched.status("a").placement.as_ref().unwrap().ended.is_empty());
}

/// Its limit may have been lowered meanwhile: whatever charges a queue more depends on the queue's record.
#[test]
fn transaction_that_charges_a_group_more_checks_its_queue() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(2, "2")}));
    assert_eq!(sched.charges(), 1, "it is admitted");
    sched.ended("a", json!({"running": 1, "succeeded": 1}), "0");
    assert_eq!(sched.charges(), 0, "it is charged less");
    sched.ended("a", json!({"running": 1, "pending": 1}), "");
    assert_eq!(sched.charges(), 1, "it is charged more");
}

/// All had ended; one is to run again. The others need no place.
#[test]
fn new_round_places_only_members_that_start_again() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(4, "1")}));
    sched.run();
    sched.ended("a", json!({"succeeded": 4}), "0-3");
    sched.group("b", json!({"tasks": workers(3, "1")}));
    sched.run();
    assert_eq!(sched.status("a").phase, PodGroupPhase::Completed);
    sched.ended("a", json!({"succeeded": 3, "pending": 1}), "0-1,3");
    let old = sched.groups[&id("a")].clone();
    let mut record: Value = serde_json::from_slice(&old.value.as_ref().unwrap().encode()).unwrap();
    record["spec"]["round"] = json!(1);
    sched.write("a", &record, Some(old.created));
    let mut binding = 0;
    for _ in 0..5 {
        let plan = sched.plan();
        for change in &plan.changes {
            let is_binding = change.id == id("a") && !change.allocate.is_empty();
            assert!(!is_binding || change.record_index.is_some(), "others may start again");
            binding += usize::from(is_binding);
            sched.apply(change);
        }
    }
    assert_eq!((binding, sched.placed("a")), (1, vec![2]));
    assert!(sched.status("a").phase.is_admitted());
}

/// As many have ended as the group needs; one has not run yet. Its owner has not seen yet that it has a node.
#[test]
fn elastic_group_is_not_completed_while_a_placed_member_has_not_run() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("b", json!({"tasks": workers(1, "1")}));
    sched.run();
    sched.group("a", json!({"minMember": 3, "tasks": workers(4, "1")}));
    sched.run();
    sched.ended("a", json!({"succeeded": 3, "pending": 1}), "0-2");
    sched.run();
    assert_eq!(sched.status("a").phase, PodGroupPhase::Completed);
    let old = sched.groups[&id("a")].clone();
    let mut record: Value = serde_json::from_slice(&old.value.as_ref().unwrap().encode()).unwrap();
    record["spec"]["round"] = json!(1);
    sched.write("a", &record, Some(old.created));
    sched.run();
    assert_eq!(sched.placed("a"), [3]);
    assert!(sched.status("a").phase.is_admitted(), "{:?}", sched.status("a"));
}

/// The farm that releases them dies after any transaction: the next one goes on.
#[test]
fn many_ended_members_are_released_in_parts() {
    let mut sched = TestScheduler::new(&[NODE; 4]);
    sched.group("a", json!({"tasks": workers(16, "1")}));
    sched.run();
    sched.bounds.nodes = 1;
    sched.ended("a", json!({"running": 2, "succeeded": 14}), "0-13");
    let plan = sched.plan();
    assert_eq!(plan.changes[0].nodes().len(), 1, "one transaction changes one node");
    sched.run();
    assert_eq!(sched.placed("a"), [14, 15]);
    assert_eq!(sched.status("a").charged, "cpu=2,pods=2".parse().unwrap());
}

/// One task shrinks, and another grows so much that its placement cannot be stored.
#[test]
fn surplus_is_released_though_the_record_has_grown_too_large() {
    let mut sched = TestScheduler::new(&[NODE]);
    let task = |name: &str, replicas: u32, cpu: &str| json!({"name": name, "replicas": replicas, "resources": {"cpu": cpu}});
    sched.group("a", json!({"minMember": 1, "tasks": [task("v", 1, "1"), task("w", 3, "1")]}));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 4);
    sched.bounds.bytes = 2_000;
    sched.group("a", json!({"minMember": 1, "tasks": [task("v", 9_000, "1"), task("w", 1, "1")]}));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 2);
    assert_eq!(sched.status("a").charged, "cpu=2,pods=2".parse().unwrap());
    let status = sched.status("a");
    assert_eq!(status.reason, PodGroupReason::InvalidRecord);
    assert!(status.phase.is_admitted() && status.message.contains("lower replicas"), "{status:?}");
    sched.group("a", json!({"minMember": 1, "tasks": [task("v", 2, "1"), task("w", 1, "1")]}));
    sched.run();
    assert_eq!((sched.status("a").reason, sched.nodes("a").len()), (PodGroupReason::AsDesired, 3));
}
