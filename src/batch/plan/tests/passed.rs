//! Groups that others go before, by example and by property.

use proptest::prelude::*;
use serde_json::json;

use super::{NODE, TestScheduler, id, workers};
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason};

fn is_admitted(sched: &TestScheduler, name: &str) -> bool {
    sched.book.get(&id(name)).is_some_and(|known| known.value.phase.is_admitted())
}

/// One group of one small pod after the other; returns how many are admitted.
fn submit(sched: &mut TestScheduler, names: &[&str]) -> usize {
    for name in names {
        sched.group(name, json!({"tasks": workers(1, "1")}));
        sched.run();
    }
    names.iter().filter(|name| is_admitted(sched, name)).count()
}

#[test]
fn passed_group_is_kept_room_for_once_the_queue_allows_no_more() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.queue("default", json!({"maxPasses": 2}));
    sched.group("first", json!({"tasks": workers(1, "4")}));
    sched.run();
    sched.group("large", json!({"tasks": workers(2, "4"), "priority": 1000}));
    assert_eq!(submit(&mut sched, &["a", "b", "c"]), 2);
    assert_eq!(sched.status("large").passed, 2);
    assert_eq!(sched.status("large").reason, PodGroupReason::InsufficientCapacity);
    let (reason, message) = (sched.status("c").reason, &sched.status("c").message);
    assert_eq!(reason, PodGroupReason::BehindInQueue);
    assert_eq!(
        message,
        "ns/large goes first: 2 groups of the queue went before it, and maxPasses of default allows no more"
    );
    // The next owner knows it, too.
    sched.memory = Default::default();
    for done in ["first", "a", "b"] {
        assert_eq!(sched.status("c").phase, PodGroupPhase::Pending);
        sched.groups.remove(&id(done));
        sched.run();
    }
    assert_eq!(sched.status("large").phase, PodGroupPhase::Inqueue);
    assert_eq!(sched.status("large").passed, 0);
    sched.groups.remove(&id("large"));
    sched.run();
    assert!(is_admitted(&sched, "c"));
}

/// Many of one kind are placed in one step.
#[test]
fn no_more_groups_pass_in_one_pass_than_are_allowed() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.queue("default", json!({"maxPasses": 3}));
    sched.group("first", json!({"tasks": workers(1, "2")}));
    sched.run();
    sched.group("large", json!({"tasks": workers(2, "4")}));
    for n in 0..6 {
        sched.group(&format!("s{n}"), json!({"tasks": workers(1, "1")}));
    }
    sched.run();
    let admitted = (0..6).filter(|n| is_admitted(&sched, &format!("s{n}"))).count();
    assert_eq!((admitted, sched.status("large").passed), (3, 3));
}

#[test]
fn nodes_that_it_cannot_use_are_not_kept() {
    let mut sched = TestScheduler::new(&[NODE, NODE, "cpu=2"]);
    sched.queue("default", json!({"maxPasses": 0}));
    sched.group(
        "first",
        json!({"tasks": [{"name": "w", "replicas": 1, "resources": {"cpu": 1},
        "nodeSelector": "n=0"}]}),
    );
    sched.run();
    sched.group("large", json!({"tasks": workers(2, "4")}));
    assert_eq!(submit(&mut sched, &["a", "b", "c"]), 2, "the third node is too small for it");
    assert_eq!(sched.nodes("a"), ["n2"]);
    assert_eq!(sched.status("c").reason, PodGroupReason::BehindInQueue);
}

/// It would hold up its queue for nothing.
#[test]
fn nothing_is_kept_for_a_group_that_never_fits() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.queue("default", json!({"maxPasses": 1}));
    sched.group("never", json!({"tasks": workers(3, "4")}));
    sched.group("large", json!({"tasks": workers(2, "4")}));
    sched.group("last", json!({"tasks": workers(2, "3")}));
    sched.run();
    assert!(is_admitted(&sched, "large"));
    assert_eq!(submit(&mut sched, &["a", "b"]), 0, "there is no room");
    sched.groups.remove(&id("large"));
    sched.run();
    assert!(["last", "a", "b"].iter().all(|name| is_admitted(&sched, name)));
    assert_eq!(sched.status("never").passed, 0);
}

#[test]
fn group_that_never_fits_does_not_delay_the_count_of_the_next() {
    let mut sched = TestScheduler::new(&[NODE, NODE]);
    sched.queue("default", json!({"maxPasses": 1}));
    sched.group("first", json!({"tasks": workers(1, "4")}));
    sched.run();
    sched.group("never", json!({"tasks": workers(3, "4")}));
    sched.group("large", json!({"tasks": workers(2, "4")}));
    assert_eq!(submit(&mut sched, &["a", "b"]), 1);
    assert_eq!((sched.status("never").passed, sched.status("large").passed), (0, 1));
}

/// A head waits for a node on which another queue places groups.
fn head_whose_node_others_take() -> TestScheduler {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("default", json!({"maxPasses": 1}));
    sched.queue("other", json!({}));
    sched.group("first", json!({"tasks": workers(1, "1"), "queue": "other"}));
    sched.run();
    sched.group("large", json!({"tasks": workers(1, "4"), "scheduleTimeoutSeconds": 60}));
    assert_eq!(submit(&mut sched, &["a", "b"]), 1);
    assert_eq!(sched.status("b").reason, PodGroupReason::BehindInQueue);
    sched
}

#[test]
fn capacity_that_other_queues_take_is_kept_for_the_timeout() {
    let mut sched = head_whose_node_others_take();
    sched.later(1_000_000);
    sched.run();
    assert!(!is_admitted(&sched, "b"), "nobody has taken what is kept: it waits for what runs");
    sched.group("taker", json!({"tasks": workers(1, "1"), "queue": "other"}));
    let plan = sched.run();
    let until = sched.status("large").kept_until.unwrap();
    assert_eq!(plan.next, Some(until));
    sched.later(59);
    sched.run();
    assert!(is_admitted(&sched, "taker") && !is_admitted(&sched, "b"));
    sched.later(1);
    sched.run();
    assert!(is_admitted(&sched, "b"));
    assert_eq!((sched.status("large").passed, sched.status("large").kept_until), (1, None));
    sched.group("c", json!({"tasks": workers(1, "1")}));
    sched.run();
    assert!(!is_admitted(&sched, "c"), "it is kept again");
    for done in ["first", "taker", "a", "b"] {
        sched.groups.remove(&id(done));
    }
    sched.run();
    assert!(is_admitted(&sched, "large") && sched.status("large").kept_until.is_none());
}

#[test]
fn quota_of_a_parent_that_siblings_take_is_kept_for_the_timeout() {
    // Whether the queue's own quota is what the head waits for.
    for own in [false, true] {
        let mut sched = TestScheduler::new(&[NODE; 4]);
        let limit = json!({"cpu": 4});
        let (of_parent, of_queue) = if own { (json!({}), limit) } else { (limit, json!({})) };
        sched.queue("top", json!({"capability": of_parent}));
        sched.queue("a", json!({"parent": "top", "maxPasses": 0, "capability": of_queue}));
        sched.queue("b", json!({"parent": "top"}));
        sched.group("first", json!({"tasks": workers(1, "1"), "queue": "a"}));
        sched.run();
        sched.group("large", json!({"tasks": workers(1, "4"), "queue": "a"}));
        sched.run();
        sched.group("taker", json!({"tasks": workers(1, "1"), "queue": "b"}));
        sched.run();
        assert_eq!(sched.status("large").reason, PodGroupReason::QueueFull);
        assert_eq!(sched.status("large").kept_until.is_some(), !own, "{own}");
        sched.group("small", json!({"tasks": workers(1, "1"), "queue": "a"}));
        sched.later(1_000_000);
        sched.run();
        assert_eq!(is_admitted(&sched, "small"), !own, "{own}");
    }
}

/// What was tried and did not fit is not tried again, and what a pass tries ends it.
#[test]
fn searches_for_heads_count_as_steps_and_are_remembered() {
    let make = |steps: usize| {
        let mut sched = TestScheduler::new(&[NODE, NODE, "cpu=2", "cpu=2"]);
        sched.bounds.steps = steps;
        sched.queue("default", json!({"maxPasses": 0}));
        sched.group(
            "first",
            json!({"tasks": [{"name": "w", "replicas": 1,
            "resources": {"cpu": 1}, "nodeSelector": "n=0"}]}),
        );
        sched.run();
        for n in 0..20 {
            sched.group(&format!("never{n:02}"), json!({"tasks": workers(3 + n, "4")}));
        }
        sched.group("large", json!({"tasks": workers(2, "4")}));
        for n in 0..10 {
            sched.group(&format!("s{n}"), json!({"tasks": workers(1 + n % 3, "1")}));
        }
        sched
    };
    let (mut short, mut long) = (make(1), make(usize::MAX));
    short.plan();
    let first = short.memory.borrow().steps();
    short.run();
    long.run();
    short.plan();
    let again = short.memory.borrow().steps();
    assert!(first > 0 && again == 0, "{first} and then {again}");
    for id in long.groups.keys() {
        let (short, long) = (&short.book[id].value, &long.book[id].value);
        assert_eq!((short.phase, short.reason), (long.phase, long.reason), "{id}");
    }
}

#[test]
fn quota_is_kept_for_a_group_that_waits_for_it() {
    let mut sched = TestScheduler::new(&[NODE; 4]);
    sched.queue("default", json!({"maxPasses": 1, "capability": {"cpu": 4}}));
    sched.group("first", json!({"tasks": workers(1, "2")}));
    sched.run();
    sched.group("large", json!({"tasks": workers(4, "1")}));
    assert_eq!(submit(&mut sched, &["a", "b"]), 1);
    assert_eq!(sched.status("large").reason, PodGroupReason::QueueFull);
    sched.groups.remove(&id("first"));
    sched.groups.remove(&id("a"));
    sched.run();
    assert!(is_admitted(&sched, "large") && !is_admitted(&sched, "b"));
}

#[test]
fn elastic_groups_do_not_grow_into_kept_room() {
    let mut sched = TestScheduler::new(&[NODE]);
    sched.queue("default", json!({"maxPasses": 0}));
    sched.group("first", json!({"tasks": workers(1, "2")}));
    sched.run();
    sched.group("elastic", json!({"tasks": workers(3, "1"), "minMember": 1}));
    sched.run();
    let placed = |sched: &TestScheduler| sched.nodes("elastic").len();
    assert_eq!(placed(&sched), 2);
    sched.group("large", json!({"tasks": workers(1, "4")}));
    sched.run();
    sched.groups.remove(&id("first"));
    sched.run();
    assert_eq!(placed(&sched), 2, "the third would take what is kept");
}

#[derive(Debug, Clone)]
enum Step {
    /// A group of so many pods, behind the one that waits.
    Submit(u8, u8),
    /// The n-th running group ends.
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let submit = (1u8..4, 1u8..4).prop_map(|(replicas, cpu)| Step::Submit(replicas, cpu));
    let step = prop_oneof![3 => submit, 1 => (0usize..8).prop_map(Step::End)];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever is submitted behind it: at most `maxPasses` groups go before a group that fits the empty nodes, and it
    /// starts when those that run have ended.
    #[test]
    fn group_that_fits_empty_nodes_starts_after_so_many_passes(
        before in 1u8..4, replicas in 2u8..5, cpu in 2u8..5, most in 0u32..6, steps in steps(),
    ) {
        let mut sched = TestScheduler::new(&[NODE; 4]);
        sched.queue("default", json!({"maxPasses": most}));
        for n in 0..before {
            sched.group(&format!("before{n}"), json!({"tasks": workers(4, "1")}));
        }
        sched.run();
        sched.group("waits", json!({"tasks": workers(replicas.into(), &cpu.to_string())}));
        sched.run();
        let (mut passed, mut made) = (0, 0);
        let running = |sched: &TestScheduler| -> Vec<String> {
            let names = sched.groups.keys().map(|id| id.name.to_string());
            names.filter(|name| name != "waits" && is_admitted(sched, name)).collect()
        };
        for step in steps.into_iter().chain(std::iter::repeat_n(Step::End(0), 100)) {
            if is_admitted(&sched, "waits") {
                break;
            }
            match step {
                Step::Submit(replicas, cpu) => {
                    let tasks = workers(replicas.into(), &cpu.to_string());
                    sched.group(&format!("s{made:03}"), json!({"tasks": tasks}));
                    made += 1;
                }
                Step::End(n) => {
                    let all = running(&sched);
                    if let Some(name) = all.get(n % all.len().max(1)) {
                        sched.groups.remove(&id(name));
                    }
                }
            }
            let were = running(&sched).len();
            sched.run();
            passed += running(&sched).len().saturating_sub(were);
            if !is_admitted(&sched, "waits") {
                prop_assert!(passed <= most as usize, "{passed} went before it");
                prop_assert_eq!(passed, sched.status("waits").passed as usize);
            }
        }
        prop_assert!(is_admitted(&sched, "waits"), "{:?}", sched.status("waits"));
    }
}
