//! `minResources`, by example.

use serde_json::json;

use super::{NODE, TestScheduler, id, workers};
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason};

fn waits(sched: &TestScheduler, name: &str, reason: PodGroupReason, why: &str) {
    let status = sched.status(name);
    assert_eq!((status.phase, status.reason), (PodGroupPhase::Pending, reason), "{status:?}");
    assert!(status.message.contains(why), "{}", status.message);
}

#[test]
fn min_resources_beyond_the_queue_are_not_admitted() {
    let mut sched = TestScheduler::new(&[NODE; 4]);
    sched.queue("q", json!({"capability": {"cpu": 5}}));
    let small =
        |min: u32| json!({"queue": "q", "tasks": workers(1, "1"), "minResources": {"cpu": min}});
    sched.group("never", small(6));
    sched.group("first", small(5));
    sched.group("then", small(5));
    sched.group("plain", json!({"queue": "q", "tasks": workers(1, "1")}));
    sched.run();
    let why = "spec.minResources: cpu: 6 wanted, and queue q has 5 in all";
    waits(&sched, "never", PodGroupReason::ExceedsCapability, why);
    assert_eq!(sched.status("first").phase, PodGroupPhase::Inqueue);
    assert_eq!(sched.status("first").charged, "cpu=1,pods=1".parse().unwrap(), "what it asks for");
    let why = "spec.minResources: cpu: 5 wanted, and of queue q's 5 are 1 in use";
    waits(&sched, "then", PodGroupReason::QueueFull, why);
    assert_eq!(sched.status("plain").phase, PodGroupPhase::Inqueue);
    for name in ["first", "plain"] {
        sched.groups.remove(&id(name));
    }
    sched.run();
    assert_eq!(sched.status("then").phase, PodGroupPhase::Inqueue);
}

#[test]
fn min_resources_wait_until_the_nodes_have_them() {
    let mut sched = TestScheduler::new(&["cpu=4", "cpu=4"]);
    sched.group("running", json!({"tasks": workers(3, "1")}));
    sched.run();
    let six =
        |pods: u32| json!({"tasks": workers(1, "1"), "minResources": {"cpu": 6, "pods": pods}});
    sched.group("first", six(3));
    sched.run();
    let why = "spec.minResources: cpu: 6 wanted, 5 of 8 free on all nodes together";
    waits(&sched, "first", PodGroupReason::InsufficientCapacity, why);
    sched.group("missing", json!({"tasks": workers(1, "1"), "minResources": {"gpu": 1}}));
    sched.run();
    let why = "gpu: 1 wanted, 0 of 0 free";
    waits(&sched, "missing", PodGroupReason::InsufficientCapacity, why);
    sched.members("running", json!({"running": 2, "succeeded": 1}));
    sched.groups.remove(&id("running"));
    sched.run();
    assert_eq!(sched.status("first").phase, PodGroupPhase::Inqueue);
}

/// Only admission counts: what runs is placed anew by what its members ask for.
#[test]
fn min_resources_do_not_hold_an_admitted_group() {
    let mut sched = TestScheduler::new(&["cpu=4"]);
    let spec =
        |round: u32| json!({"tasks": workers(1, "1"), "minResources": {"cpu": 4}, "round": round});
    sched.group("a", spec(0));
    sched.run();
    sched.group("b", json!({"tasks": workers(1, "3")}));
    sched.run();
    sched.group("a", spec(1));
    sched.run();
    assert_eq!(sched.nodes("a").len(), 1);
    assert_eq!(sched.nodes("b").len(), 1);
}

/// In a strict queue it blocks; in others nodes are kept for it once it was passed often enough.
#[test]
fn what_waits_for_min_resources_is_the_head_of_its_queue() {
    for strategy in ["fifo", "traverse"] {
        let mut sched = TestScheduler::new(&["cpu=4", "cpu=4"]);
        sched.queue("default", json!({"dequeueStrategy": strategy, "maxPasses": 1}));
        sched.group("running", json!({"tasks": workers(1, "2")}));
        sched.run();
        sched.group("head", json!({"tasks": workers(1, "1"), "minResources": {"cpu": 8}}));
        let behind = if strategy == "fifo" { 0 } else { 1 };
        for n in 0..3 {
            sched.group(&format!("small{n}"), json!({"tasks": workers(1, "1")}));
        }
        sched.run();
        let admitted = (0..3).filter(|n| sched.status(&format!("small{n}")).phase.is_admitted());
        assert_eq!(admitted.count(), behind, "{strategy}");
        let running = sched.groups.keys().filter(|id| id.name.as_str() != "head").cloned();
        let running: Vec<_> =
            running.filter(|id| sched.book[id].value.phase.is_admitted()).collect();
        for id in running {
            sched.groups.remove(&id);
        }
        sched.run();
        assert!(sched.status("head").phase.is_admitted(), "{strategy}: {:?}", sched.status("head"));
    }
}
