//! Gangs for which a scheduler over HTTP names the nodes.

use serde_json::{Value, json};

use super::{TestScheduler, id};
use crate::batch::answers::{GangAnswers, GangAsk};
use crate::placement::ScheduleError;
use crate::placement::capacity::GangPlacement;
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_store::time::monotonic;

fn gang(replicas: u32) -> Value {
    let resources = json!({"cpu": "1"});
    json!({"queue": "default", "tasks": [{"name": "w", "replicas": replicas, "resources": resources}]})
}

fn asking(nodes: &[&str]) -> TestScheduler {
    let mut sched = TestScheduler::new(nodes);
    sched.answers = Some(GangAnswers::default());
    sched
}

fn nodes(names: &[&str]) -> Result<Option<GangPlacement>, ScheduleError> {
    let nodes = names.iter().map(|name| name.parse().unwrap()).collect();
    Ok(Some(GangPlacement { tasks: [("w".to_owned(), nodes)].into() }))
}

fn answer(
    sched: &mut TestScheduler,
    asks: Vec<GangAsk>,
    answer: &Result<Option<GangPlacement>, ScheduleError>,
) {
    for ask in asks {
        sched.answers.as_mut().unwrap().note(ask, answer.clone(), monotonic());
    }
}

/// Nodes of the group's members; empty: it is not placed.
fn placed(sched: &TestScheduler, name: &str) -> Vec<String> {
    let place = sched.book.get(&id(name)).and_then(|known| known.value.placement.as_ref());
    let placed = place.into_iter().flat_map(|place| place.placed());
    placed.map(|(_, _, node)| node.to_string()).collect()
}

#[test]
fn a_gang_is_placed_where_the_scheduler_says() {
    let mut sched = asking(&["cpu=4", "cpu=4", "cpu=4"]);
    sched.group("a", gang(2));
    let plan = sched.run();
    assert_eq!(plan.asks.iter().map(|ask| ask.id.clone()).collect::<Vec<_>>(), [id("a")]);
    assert!(!sched.book.contains_key(&id("a")), "its status says nothing before the answer");
    answer(&mut sched, plan.asks, &nodes(&["n2", "n1"]));
    let plan = sched.run();
    assert_eq!(placed(&sched, "a"), ["n2", "n1"]);
    assert!(plan.asks.is_empty());
}

#[test]
fn answers_that_cannot_be_used_name_what_is_wrong() {
    let mut sched = asking(&["cpu=4", "cpu=1"]);
    sched.group("a", gang(2));
    for (given, why) in [
        (nodes(&["n0"]), "in place of"),
        (nodes(&["n0", "n9"]), "node n9 is not eligible"),
        (nodes(&["n1", "n1"]), "n1"),
        (Err(ScheduleError::Exhausted("full".to_owned())), "no more nodes: full"),
        (Err(ScheduleError::Unreachable("refused".to_owned())), "cannot be reached: refused"),
    ] {
        sched.answers = Some(GangAnswers::default());
        sched.book.clear();
        let asks = sched.run().asks;
        answer(&mut sched, asks, &given);
        let asked_again = sched.run().asks;
        assert_eq!((placed(&sched, "a").len(), asked_again.len()), (0, 0), "{given:?}");
        let status = sched.status("a");
        assert_eq!(status.reason, PodGroupReason::InsufficientCapacity);
        assert!(status.message.contains(why), "{}: {why}", status.message);
    }
}

#[test]
fn a_node_that_went_unfit_after_the_answer_is_refused() {
    let mut sched = asking(&["cpu=4", "cpu=4"]);
    sched.group("a", gang(1));
    let asks = sched.run().asks;
    answer(&mut sched, asks, &nodes(&["n1"]));
    sched.fleet.unfit.insert("n1".parse().unwrap());
    sched.run();
    assert_eq!(placed(&sched, "a"), [""; 0]);
    assert!(sched.status("a").message.contains("n1 is not eligible"));
}

#[test]
fn a_scheduler_without_gangs_leaves_them_to_the_farm() {
    let mut sched = asking(&["cpu=4"]);
    sched.group("a", gang(2));
    let asks = sched.run().asks;
    answer(&mut sched, asks, &Ok(None));
    sched.group("b", gang(1));
    let asks = sched.run().asks;
    assert_eq!((placed(&sched, "a").len(), placed(&sched, "b").len(), asks.len()), (2, 1, 0));
}

#[test]
fn fewer_members_are_asked_for_once_all_have_no_place() {
    let mut sched = asking(&["cpu=4"]);
    let mut spec = gang(6);
    spec["minMember"] = json!(2);
    sched.group("a", spec);
    let asks = sched.run().asks;
    let replicas =
        |asks: &[GangAsk]| asks.iter().map(|a| a.gang.tasks[0].replicas).collect::<Vec<_>>();
    assert_eq!(replicas(&asks), [6]);
    answer(&mut sched, asks, &Err(ScheduleError::Exhausted("4 of 6".to_owned())));
    let asks = sched.run().asks;
    assert_eq!(replicas(&asks), [2]);
    answer(&mut sched, asks, &nodes(&["n0", "n0"]));
    sched.run();
    assert!(placed(&sched, "a").len() >= 2);
}

#[test]
fn in_a_fifo_queue_nobody_overtakes_a_gang_that_is_asked_about() {
    let mut sched = asking(&["cpu=4", "cpu=4"]);
    sched.queue("default", json!({"dequeueStrategy": "fifo"}));
    sched.group("a", gang(1));
    sched.group("b", gang(1));
    let asks = sched.run().asks;
    assert_eq!(asks.iter().map(|ask| ask.id.clone()).collect::<Vec<_>>(), [id("a")]);
    answer(&mut sched, asks, &nodes(&["n1"]));
    let asks = sched.run().asks;
    assert_eq!(placed(&sched, "a"), ["n1"]);
    assert_eq!(asks.iter().map(|ask| ask.id.clone()).collect::<Vec<_>>(), [id("b")]);
}
