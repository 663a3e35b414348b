//! What is left alone in a pass, and what waits, by example.

use serde_json::json;

use super::plan_tests::{NODE, TestCluster, id, queue, workers};
use crate::pod_group::status::{PodGroupPhase, PodGroupReason};

/// Its owner may have made a pod there again since.
#[test]
fn what_a_smaller_group_gives_back_it_gives_back_only_as_its_record_was_seen() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("a", json!({"tasks": workers(4, "1")}));
    world.settle();
    world.group("a", json!({"tasks": workers(1, "1")}));
    let plan = world.plan();
    let [change] = &plan.changes[..] else { panic!("{:?}", plan.changes) };
    assert_eq!(change.release.len(), 3);
    assert_eq!(change.as_said, Some(world.groups[&id("a")].index));
}

/// What it holds is not known: neither is its place given back, nor does it get another.
#[test]
fn a_group_whose_status_cannot_be_understood_is_left_alone() {
    let mut world = TestCluster::new(&[NODE]);
    world.group("a", json!({"tasks": workers(3, "1")}));
    world.settle();
    world.book.remove(&id("a"));
    world.unreadable.insert(id("a"));
    world.group("b", json!({"tasks": workers(1, "1")}));
    world.group("c", json!({"tasks": workers(1, "1")}));
    world.settle();
    assert!(!world.book.contains_key(&id("a")));
    assert_eq!(world.status("b").phase, PodGroupPhase::Inqueue);
    assert_eq!(
        world.status("c").reason,
        PodGroupReason::InsufficientCapacity,
        "its promises stand"
    );
}

#[test]
fn many_single_pods_wait_and_those_behind_them_that_fit_do_not() {
    let mut world = TestCluster::new(&[NODE]);
    world.queue("full", json!({"capability": {"cpu": 1}}));
    for n in 0..20 {
        world.group(&format!("full{n:02}"), json!({"queue": "full", "tasks": workers(1, "1")}));
        world.group(&format!("large{n:02}"), json!({"tasks": workers(1, "9")}));
    }
    world.group("small", json!({"tasks": workers(1, "1")}));
    let plan = world.settle();
    assert_eq!(world.status("small").phase, PodGroupPhase::Inqueue);
    let waiting = |name: &str| plan.waiting[&queue(name)].iter().map(|w| w.reason);
    assert_eq!(waiting("full").collect::<Vec<_>>(), [PodGroupReason::QueueFull; 19]);
    assert_eq!(waiting("default").collect::<Vec<_>>(), [PodGroupReason::InsufficientCapacity; 20]);
}
