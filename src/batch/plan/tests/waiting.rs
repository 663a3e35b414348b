//! Groups that a pass leaves unchanged, and groups that wait, by example.

use serde_json::json;

use super::{NODE, TestScheduler, id, queue, workers};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason};

/// Its owner may have created a pod there since.
#[test]
fn shrunk_group_frees_only_per_observed_record() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(4, "1")}));
    sched.run();
    sched.group("a", json!({"tasks": workers(1, "1")}));
    let plan = sched.plan();
    let [change] = &plan.changes[..] else { panic!("{:?}", plan.changes) };
    assert_eq!(change.release.len(), 3);
    assert_eq!(change.record_index, Some(sched.groups[&id("a")].index));
}

/// Its allocations are unknown: they are neither released nor replaced.
#[test]
fn a_group_whose_status_cannot_be_understood_is_left_alone() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.group("a", json!({"tasks": workers(3, "1")}));
    sched.run();
    sched.book.remove(&id("a"));
    sched.unreadable.insert(id("a"));
    sched.group("b", json!({"tasks": workers(1, "1")}));
    sched.group("c", json!({"tasks": workers(1, "1")}));
    sched.run();
    assert!(!sched.book.contains_key(&id("a")));
    assert_eq!(sched.status("b").phase, PodGroupPhase::Inqueue);
    assert_eq!(
        sched.status("c").reason,
        PodGroupReason::InsufficientCapacity,
        "its promises stand"
    );
}

#[test]
fn many_single_pods_wait_and_those_behind_them_that_fit_do_not() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("full", json!({"capability": {"cpu": 1}}));
    for n in 0..20 {
        sched.group(&format!("full{n:02}"), json!({"queue": "full", "tasks": workers(1, "1")}));
        sched.group(&format!("large{n:02}"), json!({"tasks": workers(1, "9")}));
    }
    sched.group("small", json!({"tasks": workers(1, "1")}));
    let plan = sched.run();
    assert_eq!(sched.status("small").phase, PodGroupPhase::Inqueue);
    let waiting = |name: &str| plan.waiting[&queue(name)].iter().map(|w| w.reason);
    assert_eq!(waiting("full").collect::<Vec<_>>(), [PodGroupReason::QueueFull; 19]);
    assert_eq!(waiting("default").collect::<Vec<_>>(), [PodGroupReason::InsufficientCapacity; 20]);
}

/// No other group gets its capacity while its pods stop, nor in the pass of the release.
#[test]
fn gang_keeps_placement_until_last_pod_ends_then_goes_first() {
    let mut sched = TestScheduler::new(&["cpu=2"]);
    sched.queue("default", json!({"dequeueStrategy": "fifo"}));
    sched.group("first", json!({"tasks": workers(2, "1")}));
    sched.group("then", json!({"tasks": workers(2, "1")}));
    sched.run();
    sched.members("first", json!({"running": 2}));
    sched.run();
    sched.members("first", json!({"pending": 2, "releasing": 1}));
    sched.run();
    assert_eq!(sched.status("first").phase, PodGroupPhase::Running);
    sched.members("first", json!({"pending": 2}));
    sched.run();
    assert!(sched.status("first").phase.is_admitted());
    assert_eq!(sched.status("then").phase, PodGroupPhase::Pending);
}

/// A pass that has compared enough nodes admits what it has found; the next ones go on behind it.
#[test]
fn passes_with_little_time_end_as_one_with_enough_does() {
    let make = |steps: usize| {
        let mut sched = TestScheduler::new(&["cpu=4,memory=1Gi", "cpu=2,memory=8Gi"]);
        sched.bounds.steps = steps;
        for n in 0..12 {
            let resources = json!({"cpu": "1", "memory": format!("{}Gi", n % 6 + 1)});
            let tasks = json!([{"name": "w", "replicas": 1, "resources": resources}]);
            sched.group(&format!("g{n:02}"), json!({"tasks": tasks}));
        }
        sched
    };
    let (mut short, mut long) = (make(1), make(usize::MAX));
    let first = short.plan();
    assert!(first.more && first.changes.len() == 1, "{:?}", first.changes);
    short.run();
    long.run();
    for n in 0..12 {
        let name = format!("g{n:02}");
        assert_eq!(short.status(&name).phase, long.status(&name).phase, "{name}");
        assert_eq!(short.status(&name).placement, long.status(&name).placement, "{name}");
        assert_eq!(short.status(&name).reason, long.status(&name).reason, "{name}");
    }
}

/// What does not fit is not compared with the nodes again until one of them has more room for it.
#[test]
fn waiting_groups_cost_nothing_until_capacity_grows() {
    let mut sched = TestScheduler::new(&[NODE; 20]);
    for n in 0..20 {
        sched.group(&format!("full{n:02}"), json!({"tasks": workers(1, "4")}));
    }
    for n in 0..30 {
        sched.group(
            &format!("g{n:02}"),
            json!({"tasks": workers(1 + n / 10, &format!("{}m", 1000 + n))}),
        );
    }
    sched.run();
    let steps = |sched: &TestScheduler| {
        sched.plan();
        sched.memory.borrow().index.steps()
    };
    assert_eq!(steps(&sched), 0);
    sched.members("full00", json!({"succeeded": 1}));
    sched.run();
    assert_eq!(sched.status("g00").phase, PodGroupPhase::Inqueue);
    assert!(steps(&sched) < 30, "{}", steps(&sched));
}

/// `a` with task `b-w` and `a-b` with task `w` have equal pod ids, unless they are hashed.
#[test]
fn a_group_is_placed_beside_pods_that_have_its_ids() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    let one = |task: &str| json!([{"name": task, "replicas": 1, "resources": {"cpu": "1"}}]);
    sched.group("a", json!({"tasks": one("b-w")}));
    sched.run();
    sched.group("a-b", json!({"tasks": one("w")}));
    sched.run();
    let node = |sched: &TestScheduler, name: &str| sched.nodes(name).concat();
    assert_ne!(node(&sched, "a"), node(&sched, "a-b"));
    let before = sched.fleet.node_capacities.clone();
    sched.group("other/a", json!({"tasks": one("b-w")}));
    sched.run();
    assert_eq!(sched.status("other/a").phase, PodGroupPhase::Pending);
    let message = &sched.status("other/a").message;
    let why = format!("{}: a-b-w-0 is the id of a pod of pod_group/ns/a", node(&sched, "a"));
    assert!(message.contains(&why), "{message}");
    assert_eq!(sched.fleet.node_capacities, before, "the others keep what they have");
    sched.group("third/a", json!({"podIds": "Hashed", "tasks": one("b-w")}));
    sched.run();
    assert!(sched.status("third/a").phase.is_admitted());
}

/// Several equal groups are placed by one question.
#[test]
fn equal_single_pods_with_one_id_go_to_different_nodes() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    for name in ["x/a", "y/a"] {
        sched.group(name, json!({"tasks": workers(1, "1")}));
    }
    sched.run();
    assert_ne!(sched.nodes("x/a"), sched.nodes("y/a"));
}

/// Only a new placement takes another format; allocations are found by the ids that they were made with.
#[test]
fn a_placement_keeps_the_format_of_its_ids() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.group("a", json!({"tasks": workers(2, "1"), "minMember": 1}));
    sched.run();
    let format = |sched: &TestScheduler| sched.status("a").placement.as_ref().unwrap().pod_ids;
    assert_eq!(format(&sched), PodIdFormat::Plain);
    sched.group("a", json!({"podIds": "Hashed", "tasks": workers(3, "1"), "minMember": 1}));
    sched.run();
    assert_eq!((format(&sched), sched.nodes("a").len()), (PodIdFormat::Plain, 3));
    sched.group("a", json!({"podIds": "Hashed", "tasks": workers(3, "1"), "round": 1}));
    sched.run();
    assert_eq!((format(&sched), sched.nodes("a").len()), (PodIdFormat::Hashed, 3));
}
