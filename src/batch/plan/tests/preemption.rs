//! Groups that preempt others in their cells, by example.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::cells::{NODE, config, on, request, tasks};
use super::{TestScheduler, id};
use crate::batch::plan::PassMemory;
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason};

use PodGroupPhase::{Completed, Inqueue, Pending, Running};
use PodGroupReason::{AsDesired, Evicted, InsufficientCapacity, Preempting};

impl TestScheduler {
    /// All four nodes are lent to opportunistic groups of A, which run.
    fn lent() -> TestScheduler {
        let mut sched = TestScheduler::with_cells(4);
        for n in 0..4 {
            sched.runs(&format!("lent-{n}"), "A", -1, (1, 4));
        }
        sched
    }

    /// A group that is placed, and runs.
    fn runs(&mut self, name: &str, vc: &str, priority: i64, shape: (u32, u32)) {
        self.cell_group(name, vc, priority, shape);
        self.run();
        self.members(name, json!({"running": shape.0}));
        self.run();
        assert_eq!(self.status(name).phase, Running, "{name}");
    }

    /// Groups that are being evicted, with their preemptors.
    fn victims(&self) -> BTreeMap<String, String> {
        let of = |(id, known): (&super::GroupId, &super::super::VersionedStatus)| {
            let eviction = known.value.evicted()?;
            Some((id.name.to_string(), eviction.preemptor.name.to_string()))
        };
        self.book.iter().filter_map(of).collect()
    }

    /// The owners of these groups stop their members.
    fn stop(&mut self, names: &[&str]) {
        for name in names {
            self.members(name, json!({"releasing": 1}));
            self.run();
            assert!(self.status(name).placement.is_some(), "{name}: its pods still run");
            self.members(name, json!({}));
        }
        self.run();
    }

    fn crash(&mut self) {
        self.memory = RefCell::new(PassMemory::default());
    }

    fn fail_node(&mut self, name: &str) {
        let node: NodeName = name.parse().unwrap();
        self.fleet.unfit.insert(node);
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn guaranteed_group_evicts_an_opportunistic_one_and_gets_its_devices() {
    let mut sched = TestScheduler::lent();
    let since = sched.status("lent-2").since;
    let before = sched.devices("lent-2");
    sched.cell_group("own", "B", 0, (1, 4));
    sched.run();
    assert_eq!(sched.phases(&["own", "lent-2"]), [(Inqueue, Preempting), (Running, Evicted)]);
    assert_eq!(sched.victims(), [("lent-2".to_owned(), "own".to_owned())].into());
    let (_, why) = sched.why("own");
    assert_eq!(why, "chain RACK: it waits for the end of a group of lower priority: A/lent-2");
    let (_, why) = sched.why("lent-2");
    assert!(why.ends_with("for ns/own: its cells go to a group of B of priority 0"), "{why}");
    let own = sched.status("own");
    assert!(own.placement.is_none() && own.reservation.as_ref().unwrap().preempting);
    assert!(!own.charged.is_zero(), "its queue is charged");

    sched.stop(&["lent-2"]);
    assert_eq!(sched.phases(&["own"]), [(Inqueue, AsDesired)]);
    assert_eq!(sched.devices("own"), before);
    assert!(sched.status("own").reservation.is_none());
    let victim = sched.status("lent-2");
    assert_eq!((victim.phase, victim.since), (Pending, since), "it keeps its place");
    assert_eq!((victim.sent_back, victim.not_before), (0, None));
    assert!(victim.message.contains("evicted at") && victim.message.contains("for ns/own"));

    sched.delete("own");
    sched.run();
    assert_eq!(sched.phases(&["lent-2"]), [(Inqueue, AsDesired)]);
    assert_eq!(sched.status("lent-2").eviction, None);
}

#[test]
fn group_of_higher_priority_evicts_one_of_its_virtual_cluster_alone() {
    let mut sched = TestScheduler::with_cells(4);
    sched.runs("low", "B", 0, (1, 4));
    sched.runs("other", "A", 0, (2, 4));
    sched.cell_group("equal", "B", 0, (1, 4));
    sched.run();
    assert_eq!(sched.phases(&["equal"]), [(Pending, InsufficientCapacity)]);
    sched.cell_group("high", "B", 7, (1, 4));
    sched.run();
    assert_eq!(sched.victims(), [("low".to_owned(), "high".to_owned())].into());
    sched.stop(&["low"]);
    assert_eq!(sched.devices("high"), on(&[("n2", &[0, 1, 2, 3])]));
    assert_eq!(
        sched.phases(&["low", "equal"]).iter().map(|p| p.0).collect::<Vec<_>>(),
        [Pending; 2]
    );
}

/// Cells of a victim that has gone are nobody's but the preemptor's.
#[test]
fn freed_cells_are_held_until_the_last_victim_has_gone() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "A", 5, (2, 4));
    sched.run();
    let victims: Vec<String> = sched.victims().into_keys().collect();
    assert_eq!(victims.len(), 2);
    sched.stop(&[&victims[0]]);
    sched.cell_group("late", "B", -1, (1, 4));
    sched.run();
    assert_eq!(
        sched.phases(&["own", "late"]),
        [(Inqueue, Preempting), (Pending, InsufficientCapacity)]
    );
    assert_eq!(sched.status(&victims[0]).phase, Pending);
    sched.stop(&[&victims[1]]);
    assert_eq!(sched.devices("own").into_keys().collect::<Vec<_>>(), ["n0", "n1"]);
    assert_eq!(sched.victims(), [].into());
}

/// The processors of the victims count, too: devices alone would be of no use.
#[test]
fn victims_give_up_their_processors_with_their_devices() {
    let busy =
        |pods: u32| json!([{"name": "w", "replicas": pods, "resources": {"gpu": 4, "cpu": "8"}}]);
    let mut sched = TestScheduler::with_cells(4);
    for n in 0..4 {
        let name = format!("lent-{n}");
        sched.group(&name, json!({"tasks": busy(1), "cells": request("A", &name, -1, (1, 4))}));
        sched.run();
        sched.members(&name, json!({"running": 1}));
        sched.run();
    }
    sched.group("own", json!({"tasks": busy(1), "cells": request("B", "own", 0, (1, 4))}));
    sched.run();
    assert_eq!(sched.victims().len(), 1);
    let victim = sched.victims().into_keys().next().unwrap();
    sched.stop(&[&victim]);
    assert_eq!(sched.phases(&["own"]), [(Inqueue, AsDesired)]);

    let more = json!([{"name": "w", "replicas": 1, "resources": {"gpu": 4, "cpu": "9"}}]);
    sched.group("huge", json!({"tasks": more, "cells": request("A", "huge", 9, (1, 4))}));
    sched.run();
    assert_eq!(sched.phases(&["huge"]), [(Pending, InsufficientCapacity)]);
    assert_eq!(sched.victims(), [].into(), "nobody goes for nothing");
}

/// How a preemption ends without its preemptor: the victims that still run go on.
#[test]
fn victims_run_on_when_the_preemptor_goes_midway() {
    type End = fn(&mut TestScheduler);
    let ends: [(&str, End); 4] = [
        ("deleted", |sched| sched.delete("own")),
        ("held", |sched| {
            let cells = request("A", "own", 5, (2, 4));
            let hold = json!({"reason": "Suspended", "message": "by me"});
            sched.group("own", json!({"tasks": tasks((2, 4)), "cells": cells, "hold": hold}));
        }),
        ("changed", |sched| sched.cell_group("own", "A", -1, (2, 4))),
        ("late", |sched| sched.later(100_000)),
    ];
    for (how, end) in ends {
        let mut sched = TestScheduler::lent();
        sched.cell_group("own", "A", 5, (2, 4));
        sched.run();
        let victims: Vec<String> = sched.victims().into_keys().collect();
        sched.stop(&[&victims[0]]);
        sched.queue("default", json!({}));
        end(&mut sched);
        let plan = if how == "late" { sched.pass_alone() } else { sched.run() };
        drop(plan);
        if how == "late" {
            assert_eq!(sched.status("own").reason, PodGroupReason::BackedOff, "{how}");
        }
        sched.run();
        assert_eq!(sched.victims(), [].into(), "{how}");
        assert_eq!(sched.phases(&[&victims[1]]), [(Running, AsDesired)], "{how}");
        assert_eq!(sched.phases(&[&victims[0]]), [(Inqueue, AsDesired)], "{how}: its node is free");
    }
}

impl TestScheduler {
    /// One pass, with its changes.
    fn pass_alone(&mut self) -> super::BatchPlan {
        let plan = self.plan();
        plan.changes.iter().for_each(|change| self.apply(change));
        plan
    }
}

/// The deadline is that of victims that do not react. Those that are being stopped have their grace.
#[test]
fn reservation_waits_for_victims_that_are_being_stopped() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "B", 0, (1, 4));
    sched.run();
    let victim = sched.victims().into_keys().next().unwrap();
    sched.members(&victim, json!({"releasing": 1}));
    sched.run();
    sched.later(100_000);
    let plan = sched.run();
    assert_eq!(sched.phases(&["own"]), [(Inqueue, Preempting)]);
    assert!(plan.next.is_some_and(|next| next > sched.now), "its deadline is a new one");
    sched.members(&victim, json!({}));
    sched.run();
    assert_eq!(sched.phases(&["own"]), [(Inqueue, AsDesired)]);
}

#[test]
fn victim_that_ends_by_itself_leaves_its_cells_to_the_preemptor() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "B", 0, (1, 4));
    sched.run();
    let victim = sched.victims().into_keys().next().unwrap();
    sched.members(&victim, json!({"succeeded": 1}));
    sched.run();
    assert_eq!(sched.phases(&[&victim, "own"]), [(Completed, AsDesired), (Inqueue, AsDesired)]);
    assert_eq!(sched.status(&victim).eviction, None);
}

#[test]
fn reservation_on_a_node_that_goes_down_is_made_elsewhere_or_ends() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "A", 5, (1, 4));
    sched.run();
    assert_eq!(sched.victims(), [("lent-0".to_owned(), "own".to_owned())].into());
    sched.fail_node("n0");
    sched.run();
    assert_eq!(sched.victims(), [("lent-1".to_owned(), "own".to_owned())].into());
    assert_eq!(sched.phases(&["lent-0", "own"]), [(Running, AsDesired), (Inqueue, Preempting)]);
    sched.fail_node("n1");
    sched.run();
    assert_eq!(sched.victims(), [].into());
    assert_eq!(
        sched.phases(&["lent-1", "own"]),
        [(Running, AsDesired), (Pending, InsufficientCapacity)]
    );
    assert!(sched.status("own").charged.is_zero());
    sched.fleet.unfit.clear();
    sched.run();
    assert_eq!(sched.phases(&["own"]), [(Inqueue, Preempting)]);
}

#[test]
fn second_preemptor_of_higher_priority_takes_the_reservation() {
    for crash in [false, true] {
        let mut sched = TestScheduler::lent();
        sched.cell_group("first", "B", 0, (1, 4));
        sched.run();
        let victim = sched.victims().into_keys().next().unwrap();
        sched.cell_group("second", "B", 7, (1, 4));
        if crash {
            sched.crash();
        }
        sched.run();
        assert_eq!(sched.victims(), [(victim.clone(), "second".to_owned())].into());
        assert_eq!(sched.phases(&["first"]), [(Pending, InsufficientCapacity)]);
        assert!(sched.status("first").reservation.is_none());
        assert!(sched.status("first").charged.is_zero());
        sched.stop(&[&victim]);
        assert_eq!(sched.devices("second").len(), 1);
        assert_eq!(sched.devices("first").len(), 0);
    }
}

#[test]
fn two_preemptors_never_wait_for_the_same_victim() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("a", "A", 3, (1, 4));
    sched.cell_group("b", "A", 3, (1, 4));
    sched.run();
    let victims = sched.victims();
    let preemptors: BTreeSet<&String> = victims.values().collect();
    assert_eq!((victims.len(), preemptors.len()), (2, 2), "{victims:?}");
    let all: Vec<&str> = victims.keys().map(String::as_str).collect();
    sched.stop(&all);
    assert_eq!((sched.devices("a").len(), sched.devices("b").len()), (1, 1));
}

/// What evicted it no longer matters then: its message comes to rest each time one of its own victims has gone.
#[test]
fn evicted_group_preempts_others_later() {
    let mut sched = TestScheduler::with_cells(4);
    sched.runs("low", "A", 0, (2, 4));
    sched.cell_group("high", "A", 7, (2, 4));
    sched.run();
    sched.stop(&["low"]);
    let hold = json!({"reason": "Suspended", "message": "by me"});
    let cells = request("A", "low", 0, (2, 4));
    sched.group("low", json!({"tasks": tasks((2, 4)), "cells": cells, "hold": hold}));
    sched.delete("high");
    for n in 0..4 {
        sched.runs(&format!("lent-{n}"), "B", -1, (1, 4));
    }
    sched.cell_group("low", "A", 0, (2, 4));
    sched.run();
    assert_eq!(sched.victims().into_keys().collect::<Vec<_>>(), ["lent-0", "lent-1"]);
    sched.stop(&["lent-0"]);
    assert_eq!(sched.phases(&["low"]), [(Inqueue, Preempting)]);
    sched.stop(&["lent-1"]);
    assert_eq!(sched.phases(&["low"]), [(Inqueue, AsDesired)]);
}

/// Nobody of a queue overtakes what was evicted, where the queue is strict.
#[test]
fn victim_is_the_first_of_its_strict_queue_again() {
    let mut sched = TestScheduler::with_cells(4);
    sched.queue("strict", json!({"dequeueStrategy": "fifo"}));
    let lent = |name: &str| {
        let cells = request("A", name, -1, (1, 4));
        json!({"tasks": tasks((1, 4)), "cells": cells, "queue": "strict"})
    };
    for n in 0..4 {
        let name = format!("lent-{n}");
        sched.group(&name, lent(&name));
        sched.run();
        sched.members(&name, json!({"running": 1}));
    }
    sched.group("next", lent("next"));
    sched.run();
    sched.cell_group("own", "B", 0, (1, 4));
    sched.run();
    let victim = sched.victims().into_keys().next().unwrap();
    sched.stop(&[&victim]);
    assert_eq!(
        sched.phases(&["own", "next"]),
        [(Inqueue, AsDesired), (Pending, PodGroupReason::BehindInQueue)]
    );
    sched.delete("own");
    sched.run();
    assert_eq!(sched.phases(&[&victim]), [(Inqueue, AsDesired)]);
    assert_eq!(sched.status("next").phase, Pending);
}

/// A farm that dies after any of its changes is followed by one that evicts the same, nobody twice, and places the group.
#[test]
fn preemption_goes_on_after_a_crash_at_each_change() {
    let whole = preempt(usize::MAX);
    assert_eq!(whole.1, names(&["lent-0", "lent-1"]));
    for cut in 0..whole.0 {
        assert_eq!(preempt(cut).1, whole.1, "dead after {cut} changes");
    }
}

/// Runs a preemption of two groups; the farm dies once, after `cut` changes. Returns the number of changes and who was
/// evicted, in order.
fn preempt(cut: usize) -> (usize, Vec<String>) {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "A", 5, (2, 4));
    let (mut done, mut evicted) = (0, Vec::new());
    for _ in 0..60 {
        let plan = sched.plan();
        for change in &plan.changes {
            if done == cut {
                sched.crash();
                done += 1;
                break;
            }
            sched.apply(change);
            done += 1;
            let was = change.before.as_ref().is_some_and(|before| before.value.eviction.is_some());
            let is = change.after.as_ref().is_some_and(|after| after.eviction.is_some());
            if is && !was {
                evicted.push(change.id.name.to_string());
            }
        }
        for name in sched.victims().into_keys() {
            // Its owner stops it.
            let counts = sched.groups[&id(&name)].value.as_ref().unwrap().members;
            let next: Value = if counts.running > 0 { json!({"releasing": 1}) } else { json!({}) };
            sched.members(&name, next);
        }
    }
    assert_eq!(sched.phases(&["own"]), [(Inqueue, AsDesired)], "dead after {cut} changes");
    assert_eq!(sched.devices("own").into_keys().collect::<Vec<_>>(), ["n0", "n1"]);
    evicted.sort();
    (done, evicted)
}

/// More victims than one pass tells to stop.
#[test]
fn evictions_of_one_pass_are_bounded() {
    let mut cells = config();
    cells["physicalCluster"] = json!({
        "cellTypes": {
            "NODE": {"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": true},
            "ROOM": {"childCellType": "NODE", "childCellNumber": 10},
        },
        "physicalCells": [{"cellType": "ROOM",
            "cellChildren": (0..10).map(|n| json!({"cellAddress": format!("n{n}")})).collect::<Vec<_>>()}],
    });
    cells["virtualClusters"] =
        json!({"A": {"virtualCells": [{"cellType": "ROOM", "cellNumber": 1}]}});
    let mut sched = TestScheduler::new(&[NODE; 10]);
    sched.configure(&cells);
    for n in 0..40 {
        sched.runs(&format!("lent-{n}"), "A", -1, (1, 1));
    }
    sched.cell_group("own", "A", 0, (10, 4));
    sched.pass_alone();
    let told = sched.victims().len();
    assert!((1..40).contains(&told), "{told}");
    sched.run();
    assert_eq!(sched.victims().len(), 40);
    let all: Vec<String> = sched.victims().into_keys().collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    sched.stop(&all);
    assert_eq!(sched.devices("own").len(), 10);
}

impl TestScheduler {
    /// A running group of two pods of B, of which so many have to be available.
    fn runs_with_budget(&mut self, name: &str, priority: i64, least: Value) {
        let cells = request("B", name, priority, (2, 2));
        let budget = json!({"minAvailable": least});
        self.group(name, json!({"tasks": tasks((2, 2)), "cells": cells, "budget": budget}));
        self.run();
        self.members(name, json!({"running": 2}));
        self.run();
        assert_eq!(self.status(name).phase, Running, "{name}");
    }
}

#[test]
fn budget_spares_a_group_of_the_own_virtual_cluster() {
    for (least, spared) in [(json!(1), true), (json!("1%"), true), (json!(0), false)] {
        let mut sched = TestScheduler::with_cells(4);
        sched.runs_with_budget("low", 0, least.clone());
        sched.cell_group("high", "B", 7, (1, 4));
        sched.run();
        if !spared {
            assert_eq!(sched.victims(), [("low".to_owned(), "high".to_owned())].into());
            continue;
        }
        assert_eq!(sched.victims(), [].into(), "{least}");
        assert_eq!(sched.phases(&["high"]), [(Pending, PodGroupReason::BudgetExhausted)]);
        let (_, why) = sched.why("high");
        let end = format!(
            "B/low may not be stopped: its disruption budget is minAvailable {least}, and 2 of 2 members run"
        );
        assert!(why.ends_with(&end.replace('"', "")), "{why}");
        // What does not run is not spared.
        sched.members("low", json!({"pending": 2}));
        sched.run();
        assert_eq!(sched.devices("high").len(), 1, "{least}");
    }
}

/// What a budget forbids is not asked for again in each pass: groups behind have their turn.
#[test]
fn forbidden_preemptions_leave_room_for_groups_behind() {
    let mut sched = TestScheduler::with_cells(4);
    sched.runs_with_budget("low", 0, json!(1));
    for n in 0..6 {
        sched.cell_group(&format!("high-{n}"), "B", 7 + n, (1, 4));
    }
    sched.group("plain", json!({"tasks": [{"name": "w", "replicas": 1}]}));
    sched.bounds.steps = 10;
    let passes = (0..20).take_while(|_| sched.pass_alone().more).count();
    assert!(passes < 20, "the pass is never over");
    assert_eq!(sched.phases(&["plain"]), [(Inqueue, AsDesired)]);
    sched.run();
    assert_eq!(sched.phases(&["high-5"]), [(Pending, PodGroupReason::BudgetExhausted)]);
    // What does not run is not spared.
    sched.members("low", json!({"pending": 2}));
    sched.run();
    assert_eq!(sched.devices("high-5").len(), 1);
}

/// The virtual cluster was promised its cells: who has them on loan goes.
#[test]
fn budget_does_not_spare_a_group_that_cells_were_lent_to() {
    let mut sched = TestScheduler::with_cells(4);
    for n in 0..4 {
        sched.runs_with_budget(&format!("lent-{n}"), -1, json!("100%"));
    }
    sched.cell_group("own", "A", 0, (1, 4));
    sched.run();
    assert_eq!(sched.victims().len(), 1);
    assert_eq!(sched.phases(&["own"]), [(Inqueue, Preempting)]);
}

/// Each time a node of its reservation goes down others would have to stop.
#[test]
fn group_that_has_had_too_many_evicted_gives_up_for_a_while() {
    let mut sched = TestScheduler::lent();
    sched.cell_group("own", "A", 5, (1, 4));
    sched.run();
    assert_eq!((sched.victims().len(), sched.status("own").evictions), (1, 1));
    let set = |sched: &mut TestScheduler, evictions: u32| {
        let known = sched.book.get_mut(&id("own")).unwrap();
        let status =
            rcfarm_api::pod_group::status::PodGroupStatus { evictions, ..(*known.value).clone() };
        known.value = std::sync::Arc::new(status);
    };
    set(&mut sched, 7);
    sched.fail_node("n0");
    sched.run();
    assert_eq!((sched.victims().len(), sched.status("own").evictions), (1, 8), "twice its devices");
    sched.fail_node("n1");
    sched.fleet.unfit.remove(&"n0".parse().unwrap());
    sched.queue("default", json!({}));
    sched.run();
    assert_eq!(sched.victims(), [].into());
    assert_eq!(sched.phases(&["own"]), [(Pending, PodGroupReason::BackedOff)]);
    let own = sched.status("own");
    assert!(own.reservation.is_none() && own.charged.is_zero() && own.not_before.is_some());
    assert!(own.message.starts_with("it has had 8 groups stopped"), "{}", own.message);
    sched.later(100_000);
    sched.run();
    assert_eq!(sched.phases(&["own"]), [(Inqueue, Preempting)], "later it may try again");
}
