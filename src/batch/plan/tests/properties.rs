//! Random histories of groups, queues and interrupted passes keep the invariants.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{NODE, TestScheduler, id, workers};
use crate::batch::plan::{BatchPlan, Bounds, positions};
use crate::batch::queues::{Queues, Usage};
use crate::placement::capacity::{Decision, place};
use rcfarm_api::Stored;
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::queue::spec::QueueStrategy as Dequeue;

#[derive(Debug, Clone)]
enum Move {
    Group {
        n: u8,
        queue: u8,
        priority: u8,
        replicas: u8,
        cpu: u8,
        least: Option<u8>,
        timeout: u8,
    },
    Delete(u8),
    /// Running ones, ended ones, and whether the first of these are listed as ended.
    Members(u8, u8, u8, bool),
    Hold(u8, bool),
    Round(u8),
    Queue {
        queue: u8,
        strict: bool,
        closed: bool,
        cpu: Option<u8>,
        parent: bool,
    },
    Later(u16),
    /// A pod of another kind gets so many processors of a node, or leaves it.
    Foreign(u8, Option<u8>),
    /// A pass that is interrupted after this many changes.
    Pass(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let group = (0u8..6, 0u8..3, 0u8..3, 1u8..7, 0u8..5, prop::option::of(0u8..4), 1u8..100)
        .prop_map(|(n, queue, priority, replicas, cpu, least, timeout)| Move::Group {
            n,
            queue,
            priority,
            replicas,
            cpu,
            least,
            timeout,
        });
    let queue = (0u8..3, any::<bool>(), any::<bool>(), prop::option::of(0u8..12), any::<bool>())
        .prop_map(|(queue, strict, closed, cpu, parent)| Move::Queue {
            queue,
            strict,
            closed,
            cpu,
            parent,
        });
    let one = prop_oneof![
        6 => group,
        1 => (0u8..6).prop_map(Move::Delete),
        3 => (0u8..6, 0u8..5, 0u8..5, any::<bool>())
            .prop_map(|(n, running, ended, listed)| Move::Members(n, running, ended, listed)),
        1 => (0u8..6, any::<bool>()).prop_map(|(n, held)| Move::Hold(n, held)),
        1 => (0u8..6).prop_map(Move::Round),
        2 => queue,
        1 => (1u16..400).prop_map(Move::Later),
        2 => (0u8..4, prop::option::of(1u8..5)).prop_map(|(node, cpu)| Move::Foreign(node, cpu)),
        5 => (0usize..8).prop_map(Move::Pass),
    ];
    prop::collection::vec(one, 1..40)
}

impl TestScheduler {
    fn edit(&mut self, n: u8, change: impl FnOnce(&mut Value)) {
        let Some(old) = self.groups.get(&id(&format!("g{n}"))).cloned() else { return };
        let Ok(record) = &old.value else { return };
        let mut value: Value = serde_json::from_slice(&record.encode()).unwrap();
        change(&mut value);
        self.write(&format!("g{n}"), &value, Some(old.created));
    }

    fn make(&mut self, step: &Move) {
        match step.clone() {
            Move::Group { n, queue, priority, replicas, cpu, least, timeout } => {
                let least = least.map(|least| least.min(replicas));
                let mut tasks = workers(replicas.into(), &cpu.to_string());
                if n == 5 {
                    let other = workers(1, "1")[0].clone();
                    tasks.as_array_mut().unwrap().push(other);
                    tasks[1]["name"] = json!("other");
                }
                self.group(
                    &format!("g{n}"),
                    json!({
                        "queue": format!("q{queue}"), "priority": priority, "minMember": least,
                        "tasks": tasks, "scheduleTimeoutSeconds": timeout,
                    }),
                );
            }
            Move::Delete(n) => drop(self.groups.remove(&id(&format!("g{n}")))),
            Move::Members(n, running, ended, listed) => self.edit(n, |value| {
                value["members"] = json!({"running": running, "succeeded": ended});
                let replicas = value["spec"]["tasks"][0]["replicas"].as_u64().unwrap_or(0);
                let listed = if listed { replicas.min(ended.into()) } else { 0 };
                value["spec"]["ended"] = match listed {
                    0 => json!({}),
                    count => json!({"w": format!("0-{}", count - 1)}),
                };
            }),
            Move::Hold(n, held) => self.edit(n, |value| {
                value["spec"]["hold"] =
                    if held { json!({"reason": "Suspended"}) } else { Value::Null };
            }),
            Move::Round(n) => self.edit(n, |value| {
                let round = value["spec"]["round"].as_u64().unwrap_or(0);
                value["spec"]["round"] = json!(round + 1);
            }),
            Move::Queue { queue, strict, closed, cpu, parent } => {
                // Usage may exceed a capability that is lowered later; the check excludes that case.
                let used = self.book.values().any(|known| known.value.phase.is_admitted());
                let capability = match cpu.filter(|_| !used) {
                    Some(cpu) => json!({"cpu": cpu}),
                    None => json!({}),
                };
                let mut spec = json!({
                    "dequeueStrategy": if strict { "fifo" } else { "traverse" },
                    "state": if closed { "Closed" } else { "Open" }, "capability": capability,
                });
                if parent && queue > 0 && !used {
                    spec["parent"] = json!("q0");
                }
                self.queue(&format!("q{queue}"), spec);
            }
            Move::Foreign(node, cpu) => {
                let owner = "rc/8f3ac1bc-b1d8-4ffe-8dd3-0d3c3a1b5d5f".parse().unwrap();
                let (node, pod) = (format!("n{node}").parse().unwrap(), "rc".parse().unwrap());
                let mut room = self.fleet.node_capacities.of(&node).clone();
                room.release(&pod, &owner);
                if let Some(cpu) = cpu {
                    // What does not fit is not placed.
                    let want = format!("cpu={cpu}").parse().unwrap();
                    let _ = room.allocate(&pod, &owner, &want);
                }
                self.fleet.node_capacities.insert(node, room);
            }
            Move::Later(seconds) => self.later(seconds.into()),
            Move::Pass(most) => {
                let plan = self.plan();
                self.check_order(&plan);
                plan.changes.iter().take(most).for_each(|change| self.apply(change));
            }
        }
    }

    /// Invariant 18: a FIFO queue admits no group before a higher one that could be admitted.
    fn check_order(&self, plan: &BatchPlan) {
        let queues = Queues::of(&self.queues, self.classes.clone());
        let order = positions(&queues, &self.groups, &self.book);
        for (name, waiting) in order {
            let Some(queue) = queues.0.get(&name) else { continue };
            if queue.spec.dequeue_strategy != Dequeue::Fifo {
                continue;
            }
            let mut first_left = None;
            for id in waiting {
                let change = plan.changes.iter().find(|change| change.id == id);
                let after = change.and_then(|change| change.after.as_ref());
                // A reservation of an earlier group of the name may be completed before its release.
                let of = self.groups[&id].created;
                let admitted =
                    after.is_some_and(|after| after.of == of && after.phase.is_admitted());
                if admitted {
                    assert_eq!(first_left, None, "invariant 18: {id} goes before it in {name}");
                    continue;
                }
                let spec = self.spec_of(&id).unwrap();
                let known = self.book.get(&id);
                let paused =
                    known.is_some_and(|k| k.value.not_before.is_some_and(|t| t > self.now));
                // It waits for the release of the earlier group of its name.
                let paused = paused || known.is_some_and(|k| k.value.of != of);
                let sent_back =
                    after.is_some_and(|after| after.reason == PodGroupReason::BackedOff);
                let least = spec.charge(&spec.least_to_place());
                let never = queues
                    .fits(&Usage::default(), &name, &least)
                    .is_err_and(|e| e.reason == PodGroupReason::ExceedsCapability);
                if spec.hold.is_none() && !paused && !sent_back && !never && first_left.is_none() {
                    first_left = Some(id);
                }
            }
        }
    }

    /// When idle, the first unblocked group of each queue does not fit.
    fn check_at_rest(&self) {
        let queues = Queues::of(&self.queues, self.classes.clone());
        let mut usage = Usage::default();
        for known in self.book.values().filter(|known| known.value.phase.is_admitted()) {
            usage.charge(&queues, known.value.queue.as_ref().unwrap(), &known.value.charged);
        }
        for (name, waiting) in positions(&queues, &self.groups, &self.book) {
            if queues.refusal(&name).is_some() {
                continue;
            }
            for id in waiting {
                let (spec, status) = (self.spec_of(&id).unwrap(), &self.book[&id].value);
                if spec.hold.is_some() || status.not_before.is_some_and(|t| t > self.now) {
                    continue;
                }
                if status.reason == PodGroupReason::BehindInQueue {
                    continue;
                }
                let least = spec.least_to_place();
                let fits = queues.fits(&usage, &name, &spec.charge(&least)).is_ok();
                let gang = crate::batch::placing::gang(&id, spec, &least, &self.spec);
                let room = matches!(place(&gang, &self.fleet), Decision::Bind(_));
                assert!(!fits || !room, "{id} waits ({}) and would fit", status.reason);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Invariants 14, 16 and 17 after each change, 18 in each pass; finally the passes become idle.
    #[test]
    fn any_history_keeps_the_invariants_and_comes_to_rest(moves in moves(), nodes in 1usize..3) {
        let mut sched = TestScheduler::new(&[NODE; 4]);
        sched.bounds = Bounds { placed: 3, nodes, ..sched.bounds };
        for queue in 0..3 {
            sched.queue(&format!("q{queue}"), json!({}));
        }
        moves.iter().for_each(|step| sched.make(step));
        sched.run();
        sched.check_at_rest();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Many waiting groups of few shapes: a pass that examines only what has changed plans as one that knows nothing
    /// ([`TestScheduler::plan`] compares them).
    #[test]
    fn known_groups_change_no_plan(moves in moves(), messages in 0usize..4, cap in 0u64..9, passes in 0u8..4) {
        let mut sched = TestScheduler::new(&[NODE; 4]);
        sched.bounds = Bounds { placed: 2, message_changes: messages, ..sched.bounds };
        sched.queue("q0", json!({"capability": {"cpu": cap}}));
        sched.queue("q1", json!({"maxPasses": passes}));
        sched.queue("q2", json!({"dequeueStrategy": "fifo"}));
        for n in 0..30 {
            let spec = json!({"queue": format!("q{}", n % 3), "tasks": workers(1 + n / 10, &(n % 5).to_string())});
            sched.group(&format!("h{n:02}"), spec);
        }
        for step in &moves {
            sched.make(step);
            let plan = sched.plan();
            plan.changes.iter().take(1).for_each(|change| sched.apply(change));
            plan.message_changes.iter().for_each(|change| {
                if sched.book.get(&change.id) == change.before.as_ref() {
                    sched.apply(change);
                }
            });
        }
    }
}

/// Invariant 17 after each change: a release comes before the allocation that uses it.
#[test]
fn invalid_group_is_uncharged_before_another_is_charged() {
    let mut sched = TestScheduler::new(&[NODE; 4]);
    sched.bounds = Bounds { placed: 3, nodes: 1, ..sched.bounds };
    sched.queue("q1", json!({"capability": {"cpu": 4}}));
    sched.group("g0", json!({"queue": "q1", "tasks": workers(3, "1")}));
    // Admitted, with a reservation in progress.
    sched.make(&Move::Pass(1));
    let created = sched.groups[&id("g0")].created;
    sched.write("g0", &json!({"spec": {"queue": "q1", "tasks": workers(1, "x")}}), Some(created));
    sched.group("g1", json!({"queue": "q1", "tasks": workers(1, "2")}));
    sched.run();
    assert_eq!(sched.status("g0").reason, PodGroupReason::InvalidRecord);
    assert!(sched.status("g1").phase.is_admitted());
}
