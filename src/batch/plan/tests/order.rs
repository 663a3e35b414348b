//! The order of a queue, by example: strict queues, priority classes.

use std::collections::BTreeMap;

use serde_json::json;

use super::{NODE, TestScheduler, id, queue, workers};
use crate::batch::plan::positions;
use crate::batch::queues::Queues;
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason};
use rcfarm_api::priority_class::{PriorityClassRecord, PriorityClasses};

/// However long it waits, and whatever its timeout says: nothing goes before it.
#[test]
fn strict_queue_head_without_nodes_keeps_its_place() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("q", json!({"dequeueStrategy": "fifo"}));
    sched.group(
        "first",
        json!({"queue": "q", "tasks": workers(2, "4"), "scheduleTimeoutSeconds": 60}),
    );
    sched.group("second", json!({"queue": "q", "tasks": workers(1, "1")}));
    let waiting = [
        (PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity),
        (PodGroupPhase::Pending, PodGroupReason::BehindInQueue),
    ];
    for seconds in [0, 61, 301, 3600, 86_400] {
        sched.later(seconds);
        let plan = sched.run();
        assert_eq!(sched.phases(&["first", "second"]), waiting, "{seconds} s");
        assert_eq!(plan.next, None, "nothing is due");
    }
    sched.add_node(NODE);
    sched.run();
    assert_eq!(sched.status("first").phase, PodGroupPhase::Inqueue);
    assert_eq!(sched.status("first").sent_back, 0);
    assert_eq!(sched.status("second").reason, PodGroupReason::InsufficientCapacity);
}

/// It gives its charge back, and is still the first.
#[test]
fn admitted_group_of_a_strict_queue_keeps_its_place_without_its_charge() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("q", json!({"dequeueStrategy": "fifo"}));
    sched.group("first", json!({"queue": "q", "tasks": workers(1, "2")}));
    sched.run();
    sched.group("first", json!({"queue": "q", "tasks": workers(2, "4"), "round": 1}));
    sched.group("second", json!({"queue": "q", "tasks": workers(1, "1")}));
    sched.run();
    let since = sched.status("first").since;
    for seconds in [301, 11, 601] {
        sched.later(seconds);
        sched.run();
        assert_eq!(
            sched.phases(&["first", "second"]),
            [
                (PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity),
                (PodGroupPhase::Pending, PodGroupReason::BehindInQueue)
            ]
        );
        assert!(sched.status("first").charged.is_empty());
        assert_eq!(sched.status("first").since, since);
    }
}

/// Its record names another queue since; it stays in the queue that is charged.
#[test]
fn new_round_blocks_the_queue_that_is_charged() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("research", json!({}));
    let of =
        |queue: &str, round: u32| json!({"queue": queue, "tasks": workers(1, "4"), "round": round});
    sched.group("restarted", of("default", 0));
    sched.run();
    sched.group("second", of("default", 0));
    sched.run();
    sched.group("restarted", of("research", 1));
    sched.group("other", of("research", 0));
    sched.add_node(NODE);
    sched.run();
    let phases = |sched: &TestScheduler| {
        ["restarted", "second", "other"].map(|name| sched.status(name).phase)
    };
    let expected = [PodGroupPhase::Inqueue, PodGroupPhase::Pending, PodGroupPhase::Inqueue];
    assert_eq!(phases(&sched), expected, "the other queue is not held up");
    sched.run();
    assert_eq!(phases(&sched), expected);
    assert_eq!(sched.nodes("restarted").len(), 1, "nobody took its node");
}

/// A changed class counts at once, also for groups that wait already.
#[test]
fn priority_classes_order_groups_and_unknown_ones_wait() {
    let mut sched = TestScheduler::new(&[NODE]);
    let of = |class: &str| json!({"tasks": workers(1, "4"), "priorityClassName": class});
    let set = |sched: &mut TestScheduler, classes: &[(&str, i64)]| {
        let record = |value| PriorityClassRecord { value, ..PriorityClassRecord::default() };
        let classes = classes.iter().map(|(name, value)| (name.parse().unwrap(), record(*value)));
        let classes: BTreeMap<_, _> = classes.collect();
        sched.classes = PriorityClasses::of(&classes);
    };
    sched.group("running", json!({"tasks": workers(1, "4")}));
    sched.run();
    for (name, class) in [("none", ""), ("low", "low"), ("high", "high"), ("number", "500")] {
        sched.group(name, of(class));
    }
    sched.group("system", of("system-cluster-critical"));
    let order = |sched: &TestScheduler| -> Vec<String> {
        let queues = Queues::of(&sched.queues, sched.classes.clone());
        let all = positions(&queues, &sched.groups, &sched.book);
        all[&queue("default")].iter().map(|id| id.name.to_string()).collect()
    };
    set(&mut sched, &[("high", 1000), ("low", -1)]);
    sched.run();
    assert_eq!(order(&sched), ["system", "high", "number", "none", "low"]);
    set(&mut sched, &[("low", 2000)]);
    sched.run();
    assert_eq!(order(&sched), ["system", "low", "number", "none", "high"]);
    let status = sched.status("high").clone();
    assert_eq!(status.reason, PodGroupReason::InvalidRecord);
    let why = "there is no priority class high: rcfarm priority-class create high --value N";
    assert!(status.message.contains(why), "{}", status.message);
    // It holds nobody up, and what runs is left alone.
    for name in ["running", "system", "low", "number", "none"] {
        assert!(sched.status(name).phase.is_admitted(), "{name}");
        sched.groups.remove(&id(name));
        sched.run();
    }
    assert_eq!(sched.status("high").phase, PodGroupPhase::Pending);
    set(&mut sched, &[("high", 1)]);
    sched.run();
    assert!(sched.status("high").phase.is_admitted());
    set(&mut sched, &[]);
    sched.run();
    assert!(sched.status("high").phase.is_admitted(), "only admission asks for the class");
}
