//! Queues and gangs: admission, placement, and farms that die in between (invariants 14 to 18).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcfarm::placement::capacity::NodeCapacity;
use rcfarm_api::ResourceList;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::QueueName;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupSpec};
use rcfarm_api::pod_group::status::{
    PlacementState, PodGroupPhase, PodGroupReason, PodGroupStatus,
};
use rcfarm_api::queue::status::{Counters, QueueState, QueueStatus};
use rcfarm_api::resource_list::units;
use rcfarm_emulator::{Fate, FaultOutcome, Request, Tables};
use rcfarm_store::{PutMode, Store};
use serde_json::{Value, json};

use crate::harness::{Cluster, SECOND, node};
use rcfarm_testing::wait::within;

const EACH: &str = "cpu=4,memory=8Gi";

async fn cluster(nodes: usize) -> Cluster {
    let cluster = Cluster::new(nodes).await;
    let capacity: ResourceList = EACH.parse().unwrap();
    for n in 0..nodes {
        let record = json!({"capacity": units::json(&capacity)});
        cluster.put(key::node(&node(n)), record.to_string()).await;
    }
    cluster
}

fn id(name: &str) -> GroupId {
    format!("ns/{name}").parse().unwrap()
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

fn workers(count: u32, cpu: &str) -> Value {
    json!([{"name": "w", "replicas": count, "resources": {"cpu": cpu}}])
}

async fn put_queue(cluster: &Cluster, name: &str, spec: Value) {
    cluster.put(key::queue(&queue(name)), json!({"spec": spec}).to_string()).await;
}

async fn put_group(cluster: &Cluster, name: &str, spec: Value) {
    cluster.put(key::pod_group(&id(name)), json!({"spec": spec}).to_string()).await;
}

async fn status(cluster: &Cluster, name: &str) -> Option<PodGroupStatus> {
    cluster.read(key::pod_group_status(&id(name))).await
}

async fn queue_status(cluster: &Cluster, name: &str) -> QueueStatus {
    cluster.read(key::queue_status(&queue(name))).await.unwrap_or_default()
}

async fn is(cluster: &Cluster, name: &str, phase: PodGroupPhase, reason: PodGroupReason) -> bool {
    check(cluster);
    status(cluster, name).await.is_some_and(|s| (s.phase, s.reason) == (phase, reason))
}

/// Whether counters and charges of the default queue are those of one group of two.
async fn counts_one_of_two(cluster: &Cluster) -> bool {
    let status = queue_status(cluster, "default").await;
    let charged = ResourceList::of_pods(&"cpu=1".parse().unwrap(), 2);
    status.groups == Counters { inqueue: 1, ..Counters::default() } && status.allocated == charged
}

#[tokio::test(start_paused = true)]
async fn deleted_statuses_leave_counters_and_allocations_right() {
    let cluster = cluster(2).await;
    let farm = cluster.start("a");
    for name in ["one", "two"] {
        put_group(&cluster, name, json!({"tasks": workers(2, "1")})).await;
        within(20 * SECOND, "it is bound", || bound(&cluster, name)).await;
    }
    // A group and its status, deleted directly; without a recount it would be counted forever.
    cluster.delete(key::pod_group(&id("one"))).await;
    cluster.delete(key::pod_group_status(&id("one"))).await;
    within(1_000 * SECOND, "it is counted no more", || counts_one_of_two(&cluster)).await;
    // Only a status: its group is admitted again, and counted once.
    cluster.delete(key::pod_group_status(&id("two"))).await;
    within(1_000 * SECOND, "it is there again", || async {
        status(&cluster, "two").await.is_some() && counts_one_of_two(&cluster).await
    })
    .await;
    // The counters.
    cluster.delete(key::queue_status(&queue("default"))).await;
    within(1_000 * SECOND, "they are there again", || counts_one_of_two(&cluster)).await;
    within(20 * SECOND, "two is bound", || bound(&cluster, "two")).await;
    farm.stop().await;
}

async fn becomes(cluster: &Cluster, name: &str, phase: PodGroupPhase, reason: PodGroupReason) {
    let what = format!("{name} is {phase} ({reason})");
    within(20 * SECOND, &what, || is(cluster, name, phase, reason)).await;
}

/// Whether a gang may start.
async fn bound(cluster: &Cluster, name: &str) -> bool {
    check(cluster);
    let status = status(cluster, name).await;
    status.is_some_and(|s| s.may_start(&PodGroupSpec::default()))
}

/// Checks in one snapshot: allocations, capacities, complete gangs, and counters equal to a recount.
fn check(cluster: &Cluster) {
    cluster.store.inspect(|state| {
        let mut counters: BTreeMap<QueueName, Vec<PodGroupPhase>> = BTreeMap::new();
        let mut charged: BTreeMap<QueueName, ResourceList> = BTreeMap::new();
        let mut allocated: BTreeSet<(String, String)> = BTreeSet::new();
        let capacity: ResourceList = EACH.parse().unwrap();
        for entry in state.kv.list("rcfarm/allocations/") {
            let node = key::allocations().tail(&entry.key).unwrap().to_owned();
            let room = NodeCapacity {
                capacity: capacity.clone(),
                allocated: Allocations::decode(&entry.value).unwrap(),
                ..NodeCapacity::default()
            };
            assert!(room.faults().is_empty(), "invariant 14: {node}: {:?}", room.faults());
            allocated.extend(room.allocated.pods.keys().map(|pod| (node.clone(), pod.to_string())));
        }
        let mut known = BTreeSet::new();
        for entry in state.kv.list("rcfarm/pod_group_status/") {
            let prefix = key::pod_group_statuses();
            // The sentinel is not a group.
            let Some(id) = key::namespaced(&prefix, &entry.key) else { continue };
            let status = PodGroupStatus::decode(&entry.value).unwrap();
            if let Some(queue) = &status.queue {
                counters.entry(queue.clone()).or_default().push(status.phase);
                if status.phase.is_admitted() {
                    charged.entry(queue.clone()).or_default().add(&status.charged);
                }
            }
            let Some(place) = &status.placement else { continue };
            for (task, n, node) in place.placed() {
                let pod = place.pod_ids.pod_id(&id, task, n).unwrap();
                let member = (node.to_string(), pod.to_string());
                let is_promised = allocated.contains(&member) || place.asks[task].is_empty();
                let whole = place.state != PlacementState::Bound || is_promised;
                assert!(whole, "invariant 16: {id} may start, and {pod} was promised nothing");
                known.insert(member);
            }
        }
        let left: Vec<_> = allocated.difference(&known).collect();
        assert!(left.is_empty(), "promised to nobody: {left:?}");
        for entry in state.kv.list("rcfarm/queue_status/") {
            let name: QueueName = key::queue_statuses().tail(&entry.key).unwrap().parse().unwrap();
            let status = QueueStatus::decode(&entry.value).unwrap();
            let recount = Counters::recount(counters.remove(&name).unwrap_or_default());
            assert_eq!(status.groups, recount, "counters of {name}");
            assert_eq!(status.allocated, charged.remove(&name).unwrap_or_default(), "of {name}");
        }
        assert!(counters.is_empty(), "uncounted: {counters:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn gang_runs_from_submission_to_end_in_default_queue() {
    let cluster = cluster(4).await;
    cluster.delete(key::queue(&queue("default"))).await;
    put_group(&cluster, "g", json!({"tasks": workers(8, "2")})).await;
    let farm = cluster.start("a");
    within(10 * SECOND, "bound", || bound(&cluster, "g")).await;
    let placed = status(&cluster, "g").await.unwrap().placement.unwrap();
    let nodes: BTreeSet<_> = placed.placed().map(|(_, _, node)| node.clone()).collect();
    assert_eq!(nodes.len(), 4);
    within(5 * SECOND, "the queue is open", || async {
        queue_status(&cluster, "default").await.state == Some(QueueState::Open)
    })
    .await;
    let record = json!({"spec": {"tasks": workers(8, "2")}, "members": {"succeeded": 8}});
    cluster.put(key::pod_group(&id("g")), record.to_string()).await;
    becomes(&cluster, "g", PodGroupPhase::Completed, PodGroupReason::AsDesired).await;
    assert_eq!(queue_status(&cluster, "default").await.groups.completed, 1);
    cluster.delete(key::pod_group(&id("g"))).await;
    within(5 * SECOND, "forgotten", || async { status(&cluster, "g").await.is_none() }).await;
    check(&cluster);
    let audit = cluster.audit().await;
    let events: Vec<&str> = audit.iter().map(|record| record.event_type.as_str()).collect();
    assert_eq!(events[0], "QUEUE_CREATED");
    let ordered = audit.iter().filter(|r| r.event_type.as_str() == "POD_GROUPS_ORDERED");
    let story: Vec<Value> = ordered.map(|r| r.event_details["groups"][0]["to"].clone()).collect();
    assert_eq!(story, [json!("Inqueue"), json!("Completed"), Value::Null]);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn strict_and_best_effort_queues_side_by_side() {
    let cluster = cluster(2).await;
    put_queue(&cluster, "strict", json!({"dequeueStrategy": "fifo", "capability": {"cpu": 3}}))
        .await;
    put_queue(&cluster, "loose", json!({"capability": {"cpu": 3}})).await;
    for name in ["strict", "loose"] {
        put_group(&cluster, &format!("{name}-1"), json!({"queue": name, "tasks": workers(1, "2")}))
            .await;
        put_group(&cluster, &format!("{name}-2"), json!({"queue": name, "tasks": workers(2, "1")}))
            .await;
        put_group(&cluster, &format!("{name}-3"), json!({"queue": name, "tasks": workers(1, "1")}))
            .await;
    }
    let farm = cluster.start("a");
    becomes(&cluster, "strict-2", PodGroupPhase::Pending, PodGroupReason::QueueFull).await;
    becomes(&cluster, "strict-3", PodGroupPhase::Pending, PodGroupReason::BehindInQueue).await;
    becomes(&cluster, "loose-2", PodGroupPhase::Pending, PodGroupReason::QueueFull).await;
    becomes(&cluster, "loose-3", PodGroupPhase::Inqueue, PodGroupReason::AsDesired).await;
    within(5 * SECOND, "positions", || async {
        let waiting = queue_status(&cluster, "strict").await.waiting;
        let told: Vec<_> = waiting.iter().map(|w| (w.position, w.reason)).collect();
        told == [(1, PodGroupReason::QueueFull), (2, PodGroupReason::BehindInQueue)]
    })
    .await;
    cluster.delete(key::pod_group(&id("strict-1"))).await;
    becomes(&cluster, "strict-2", PodGroupPhase::Inqueue, PodGroupReason::AsDesired).await;
    becomes(&cluster, "strict-3", PodGroupPhase::Inqueue, PodGroupReason::AsDesired).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn queue_closes_after_its_groups_end_and_reopens() {
    let cluster = cluster(2).await;
    put_queue(&cluster, "top", json!({})).await;
    put_queue(&cluster, "q", json!({"parent": "top"})).await;
    put_group(&cluster, "a", json!({"queue": "q", "tasks": workers(1, "1")})).await;
    let farm = cluster.start("a");
    becomes(&cluster, "a", PodGroupPhase::Inqueue, PodGroupReason::AsDesired).await;
    put_queue(&cluster, "top", json!({"state": "Closed"})).await;
    let state = |wanted: QueueState| {
        let cluster = &cluster;
        move || async move { queue_status(cluster, "q").await.state == Some(wanted) }
    };
    within(5 * SECOND, "closing", state(QueueState::Closing)).await;
    let top = queue_status(&cluster, "top").await.state;
    assert_eq!(top, Some(QueueState::Closing), "what is below it still runs");
    put_group(&cluster, "b", json!({"queue": "q", "tasks": workers(1, "1")})).await;
    becomes(&cluster, "b", PodGroupPhase::Pending, PodGroupReason::QueueClosed).await;
    cluster.delete(key::pod_group(&id("a"))).await;
    within(5 * SECOND, "closed although one waits", state(QueueState::Closed)).await;
    let is_closed =
        || async { queue_status(&cluster, "top").await.state == Some(QueueState::Closed) };
    within(5 * SECOND, "the one above, too", is_closed).await;
    put_queue(&cluster, "top", json!({})).await;
    within(5 * SECOND, "open again", state(QueueState::Open)).await;
    becomes(&cluster, "b", PodGroupPhase::Inqueue, PodGroupReason::AsDesired).await;
    cluster.put(key::queue(&queue("q")), r#"{"spec":{"weight":"x"}}"#).await;
    within(5 * SECOND, "unreadable", state(QueueState::Unknown)).await;
    let told = queue_status(&cluster, "q").await.message;
    assert!(told.contains("spec.weight"), "{told}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn exactly_one_farm_orders_and_another_takes_over() {
    let cluster = cluster(2).await;
    let (one, two) = (cluster.start("a"), cluster.start("b"));
    put_group(&cluster, "g1", json!({"tasks": workers(2, "1")})).await;
    within(10 * SECOND, "bound", || bound(&cluster, "g1")).await;
    let owns = |farm: &crate::harness::RunningFarm| {
        farm.report.lock().unwrap().claims.get("scheduler").copied().unwrap_or(0)
    };
    assert_eq!(owns(&one) + owns(&two), 1);
    let (dies, lives) = if owns(&one) == 1 { (one, two) } else { (two, one) };
    dies.kill().await;
    put_group(&cluster, "g2", json!({"tasks": workers(2, "1")})).await;
    let took = within(10 * SECOND, "bound by the other", || bound(&cluster, "g2")).await;
    assert!(took < 4 * SECOND, "{took:?}: the check's 2 s and a moment");
    lives.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_scheduler_record_admits_nothing_and_says_so() {
    let cluster = cluster(1).await;
    let key = "rcfarm/schedulers/default";
    cluster.put(key, r#"{"spec":{"preemption":"all"}}"#).await;
    put_group(&cluster, "g", json!({"tasks": workers(1, "1")})).await;
    let farm = cluster.start("a");
    within(10 * SECOND, "said so", || async {
        let status = cluster.get(key::scheduler_status(&"default".parse().unwrap())).await;
        status.is_some_and(|status| status.contains("spec.preemption"))
    })
    .await;
    assert!(status(&cluster, "g").await.is_none());
    cluster.put(key, "{}").await;
    within(10 * SECOND, "bound", || bound(&cluster, "g")).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_allocated_to_a_group_that_is_not_there_is_given_back() {
    let cluster = cluster(2).await;
    let allocation = json!({"pods": {
        "ghost-w-0": {"owner": "pod_group/ns/ghost", "cpu_milli": 4000},
    }});
    for n in 0..2 {
        cluster.put(key::allocation(&node(n)), allocation.to_string()).await;
    }
    let farm = cluster.start("a");
    let allocated = async || {
        let mut pods = BTreeSet::new();
        for entry in cluster.list(&key::allocations()).await {
            pods.extend(Allocations::decode(&entry.value).unwrap().pods.into_keys());
        }
        pods.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    within(30 * SECOND, "the ghost's are free", || async { allocated().await.is_empty() }).await;
    put_group(&cluster, "g", json!({"tasks": workers(2, "3")})).await;
    within(20 * SECOND, "bound", || bound(&cluster, "g")).await;
    // Status and record are deleted directly.
    farm.stop().await;
    cluster.delete(key::pod_group(&id("g"))).await;
    cluster.delete(key::pod_group_status(&id("g"))).await;
    let farm = cluster.start("b");
    within(30 * SECOND, "free again", || async { allocated().await.is_empty() }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn crash_at_any_transaction_of_a_large_gang_leaves_all_or_none() {
    for fate in [FaultOutcome::Lose, FaultOutcome::LoseReply] {
        for deadly in 0..9 {
            let cluster = cluster(150).await;
            put_group(&cluster, "g", json!({"tasks": workers(150, "3")})).await;
            let (farm, made) =
                cluster.start_dying(&["rcfarm/scheduler_status/"], deadly, fate.clone());
            within(20 * SECOND, "its last transaction", || async {
                check(&cluster);
                made.load(Ordering::SeqCst) > deadly || bound(&cluster, "g").await
            })
            .await;
            farm.kill().await;
            let started = bound(&cluster, "g").await;
            let next = cluster.start("lives");
            within(20 * SECOND, "bound by the next owner", || bound(&cluster, "g")).await;
            let placed = status(&cluster, "g").await.unwrap().placement.unwrap();
            assert_eq!(placed.placed().count(), 150, "{deadly}: {started}");
            next.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_gang_deleted_in_the_middle_leaves_nothing() {
    for deadly in 0..7 {
        let cluster = cluster(150).await;
        put_group(&cluster, "g", json!({"tasks": workers(150, "3")})).await;
        let (farm, made) =
            cluster.start_dying(&["rcfarm/scheduler_status/"], deadly, FaultOutcome::LoseReply);
        within(20 * SECOND, "its last transaction", || async {
            made.load(Ordering::SeqCst) > deadly || bound(&cluster, "g").await
        })
        .await;
        farm.kill().await;
        cluster.delete(key::pod_group(&id("g"))).await;
        let next = cluster.start("lives");
        within(20 * SECOND, "nothing is left", || async {
            check(&cluster);
            let allocated = cluster.store.inspect(|state| {
                let of = |e: &Arc<rcfarm_store::Entry>| {
                    Allocations::decode(&e.value).unwrap().pods.len()
                };
                state.kv.list("rcfarm/allocations/").map(of).sum::<usize>()
            });
            status(&cluster, "g").await.is_none() && allocated == 0
        })
        .await;
        next.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn many_single_pods_are_admitted_in_full_transactions() {
    let cluster = cluster(100).await;
    for n in 0..2_000 {
        let tasks = json!([{"name": "w", "replicas": 1, "resources": {"cpu": "100m"}}]);
        put_group(&cluster, &format!("g{n:04}"), json!({"tasks": tasks})).await;
    }
    let (farm, counted) = cluster.start_counted("a");
    within(60 * SECOND, "all are admitted", || async {
        queue_status(&cluster, "default").await.groups.inqueue == 2_000
    })
    .await;
    check(&cluster);
    let transactions = counted.transactions();
    assert!(transactions < 150, "{transactions} transactions for 2,000 groups");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn records_that_vanish_behind_lost_rights_cost_no_place() {
    let cluster = cluster(2).await;
    for n in 0..8 {
        put_group(&cluster, &format!("g{n}"), json!({"tasks": workers(1, "1")})).await;
    }
    let hidden = Arc::new(AtomicUsize::new(0));
    let hide = hidden.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        let hides = hide.load(Ordering::SeqCst) == 1;
        match request {
            Request::List(prefix) if hides && prefix.starts_with("rcfarm/pod_groups/") => {
                Fate::of(FaultOutcome::Short(0))
            }
            Request::Get(key) if hides && key.starts_with("rcfarm/pod_groups/") => {
                let what = (*key).to_owned();
                Fate::of(FaultOutcome::Fail(rcfarm_store::StoreError::Forbidden { what }))
            }
            _ => Fate::DELIVER,
        }
    });
    within(10 * SECOND, "admitted", || async {
        queue_status(&cluster, "default").await.groups.inqueue == 8
    })
    .await;
    hidden.store(1, Ordering::SeqCst);
    // A change, so that the cache is read again.
    put_group(&cluster, "g8", json!({"tasks": workers(1, "9")})).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(queue_status(&cluster, "default").await.groups.inqueue, 8);
    hidden.store(0, Ordering::SeqCst);
    becomes(&cluster, "g8", PodGroupPhase::Pending, PodGroupReason::InsufficientCapacity).await;
    farm.stop().await;
}

/// The mass deletion guard: groups that wait keep the classes that they had.
#[tokio::test(start_paused = true)]
async fn priority_classes_that_vanish_at_once_count_until_it_is_confirmed() {
    let cluster = cluster(1).await;
    put_queue(&cluster, "q", json!({"dequeueStrategy": "fifo"})).await;
    let class = |name: &str| format!("rcfarm/priority_classes/{name}");
    let names: Vec<String> = (0..9).map(|n| format!("c{n}")).chain(["high".to_owned()]).collect();
    for (n, name) in names.iter().enumerate() {
        cluster.put(class(name), json!({"value": n}).to_string()).await;
    }
    put_group(&cluster, "running", json!({"queue": "q", "tasks": workers(1, "4")})).await;
    let farm = cluster.start("a");
    within(20 * SECOND, "bound", || bound(&cluster, "running")).await;
    let of =
        |class: &str| json!({"queue": "q", "tasks": workers(1, "4"), "priorityClassName": class});
    put_group(&cluster, "plain", of("")).await;
    put_group(&cluster, "first", of("high")).await;
    let waits = |name, reason| becomes(&cluster, name, PodGroupPhase::Pending, reason);
    waits("first", PodGroupReason::InsufficientCapacity).await;
    waits("plain", PodGroupReason::BehindInQueue).await;
    for name in &names {
        cluster.delete(class(name)).await;
    }
    // One that is new counts at once.
    cluster.put(class("new"), json!({"value": 5}).to_string()).await;
    put_group(&cluster, "second", of("new")).await;
    put_group(&cluster, "unknown", of("none")).await;
    waits("second", PodGroupReason::BehindInQueue).await;
    waits("unknown", PodGroupReason::InvalidRecord).await;
    let said = status(&cluster, "unknown").await.unwrap().message;
    assert!(said.contains("it is not known whether there is a priority class none"), "{said}");
    waits("first", PodGroupReason::InsufficientCapacity).await;
    cluster.put("rcfarm/bell/confirm/a", "yes").await;
    waits("first", PodGroupReason::InvalidRecord).await;
    waits("second", PodGroupReason::InsufficientCapacity).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_changed_by_hand_is_looked_at_anew() {
    let cluster = cluster(2).await;
    put_group(&cluster, "a", json!({"tasks": workers(1, "1")})).await;
    let farm = cluster.start("a");
    within(10 * SECOND, "bound", || bound(&cluster, "a")).await;
    let key = key::pod_group_status(&id("a"));
    let entry = cluster.entry(&key).await.unwrap();
    assert!(cluster.store.put(&key, entry.value, 7, PutMode::Set).await.unwrap());
    cluster.delete(key::pod_group(&id("a"))).await;
    within(10 * SECOND, "forgotten", || async { status(&cluster, "a").await.is_none() }).await;
    check(&cluster);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn command_is_applied_once_in_its_consuming_transaction() {
    for fate in [FaultOutcome::Deliver, FaultOutcome::Lose, FaultOutcome::LoseReply] {
        let cluster = cluster(1).await;
        put_queue(&cluster, "q", json!({"weight": 3})).await;
        let (tried, dying) = (Arc::new(AtomicUsize::new(0)), fate.clone());
        let counter = tried.clone();
        let farm = cluster.start_faulty("dies", move |request: &Request<'_>| {
            let Request::Txn(ops) = request else { return Fate::DELIVER };
            let is_last = ops.iter().any(|op| op.key.starts_with("rcfarm/commands/"));
            match counter.fetch_add(usize::from(is_last), Ordering::SeqCst) {
                0 if is_last => Fate::of(dying.clone()),
                0 => Fate::DELIVER,
                _ => Fate::of(FaultOutcome::Lose),
            }
        });
        let command = |n: u128, action: &str| {
            let target = json!({"kind": "Queue", "queue": "q"});
            let value = json!({"action": action, "target": target, "issued_by": "alice"});
            let key = key::command(uuid::Uuid::from_u128(n));
            let cluster = &cluster;
            async move { cluster.put(key.as_str(), value.to_string()).await }
        };
        command(1, "CloseQueue").await;
        within(30 * SECOND, "it is tried", || async { tried.load(Ordering::SeqCst) > 0 }).await;
        farm.kill().await;
        let farm = cluster.start("lives");
        let left = || {
            let tree = key::commands();
            let list = |state: &Tables| {
                let commands = state.kv.list(tree.as_str());
                commands.filter(|entry| !tree.is_sentinel(&entry.key)).count()
            };
            cluster.store.inspect(list)
        };
        within(10 * SECOND, "consumed", || async { left() == 0 }).await;
        let record = cluster.value(key::queue(&queue("q"))).await;
        assert_eq!(
            (&record["spec"]["state"], &record["spec"]["weight"]),
            (&json!("Closed"), &json!(3))
        );
        command(2, "RestartJob").await;
        within(10 * SECOND, "dropped", || async { left() == 0 }).await;
        let told = cluster.audit().await;
        let told = told.iter().filter(|r| r.event_type.as_str() == "QUEUE_CHANGED");
        let by: Vec<Value> = told.map(|r| r.event_details["actor"].clone()).collect();
        assert_eq!(by, [json!("user:alice")], "{fate:?}");
        farm.stop().await;
    }
}

/// A command refers to the queue that existed when it was given.
#[tokio::test(start_paused = true)]
async fn a_command_does_not_wait_for_a_queue_that_is_made_later() {
    let cluster = cluster(1).await;
    let command = |n: u128, queue: &str| {
        let target = json!({"kind": "Queue", "queue": queue});
        let value = json!({"action": "CloseQueue", "target": target});
        let key = key::command(uuid::Uuid::from_u128(n));
        let cluster = &cluster;
        async move { cluster.put(key.as_str(), value.to_string()).await }
    };
    let left = || {
        let tree = key::commands();
        let list = |state: &Tables| {
            let commands = state.kv.list(tree.as_str());
            commands.filter(|entry| !tree.is_sentinel(&entry.key)).count()
        };
        cluster.store.inspect(list)
    };
    command(1, "late").await;
    put_queue(&cluster, "late", json!({"weight": 1})).await;
    let farm = cluster.start("a");
    command(2, "never").await;
    within(30 * SECOND, "both are dropped", || async { left() == 0 }).await;
    put_queue(&cluster, "never", json!({"weight": 1})).await;
    for name in ["late", "never"] {
        within(30 * SECOND, "it is open", || async {
            queue_status(&cluster, name).await.state == Some(QueueState::Open)
        })
        .await;
    }
    farm.stop().await;
}
