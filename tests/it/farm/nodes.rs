//! Draining and dying nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use async_trait::async_trait;
use rcfarm::placement::Discovery;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::{Behavior, NewSession, Store, StoreError};
use rcfarm_testing::wait::within;
use serde_json::json;

fn names(nodes: &[usize]) -> BTreeSet<String> {
    nodes.iter().map(|n| node(*n).to_string()).collect()
}

async fn placed(cluster: &Cluster, n: u128) -> Option<RcReason> {
    Some(cluster.status(n).await?.condition(RcConditionType::Placed)?.reason)
}

/// An agent's record, locked by a session.
async fn agent(cluster: &Cluster, n: usize) -> rcfarm_api::ids::SessionId {
    let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
    let session = cluster.store.create_session(&new).await.unwrap();
    let record = json!({"state": "ready", "session": session}).to_string();
    cluster.put_locked(key::node(&node(n)), &record, &session).await;
    session
}

async fn with_strategy(cluster: &Cluster, n: u128, replicas: i64, strategy: &str) {
    let mut record = cluster.record(n, replicas);
    record["allocation_strategy"] = json!(strategy);
    cluster.write_rc(n, &record).await;
}

/// Makes scheduled pods healthy.
async fn keep_healthy(cluster: &Cluster, records: u128, nodes: usize) {
    for n in 0..records {
        let on = cluster.nodes_of(n).await;
        for at in 0..nodes {
            let key = key::health(&crate::harness::pod_id(n), &node(at));
            let known = cluster.store.inspect(|t| t.kv.get(key.as_str()).is_some());
            match (on.contains(node(at).as_str()), known) {
                (true, false) => cluster.set_health(&node(at), n, "passing").await,
                (false, true) => cluster.delete(key.as_str()).await,
                _ => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_node_is_emptied_and_no_rc_falls_below_its_minimum() {
    let cluster = Cluster::new(8).await;
    for n in 0..5 {
        with_strategy(&cluster, n, 4, "static_strategy").await;
        cluster.put(key::rc_labels(rc_id(n)), r#"{"rcfarm/min_health":"3"}"#).await;
    }
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async {
        cluster.store.inspect(|t| t.kv.list("intent/").count()) == 20
    })
    .await;
    keep_healthy(&cluster, 5, 8).await;
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..4 {
        cluster.put(key::node(&node(n)), r#"{"state":"draining"}"#).await;
    }
    within(600 * SECOND, "emptied", || async {
        for n in 0..5u128 {
            let on = cluster.nodes_of(n).await;
            assert_eq!(on.len(), 4, "the count holds at any moment");
            let healthy = on
                .iter()
                .filter(|at| {
                    let key = key::health(&crate::harness::pod_id(n), &at.parse().unwrap());
                    cluster.store.inspect(|t| t.kv.get(key.as_str()).is_some())
                })
                .count();
            assert!(healthy >= 3, "RC {n} has {healthy} healthy pods");
        }
        keep_healthy(&cluster, 5, 8).await;
        let left = |t: &rcfarm_emulator::Tables| {
            (0..4).map(|n| t.kv.list(&format!("intent/{}/", node(n))).count()).sum::<usize>()
        };
        cluster.store.inspect(left) == 0
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dead_node_replaces_dynamic_and_reports_static_pods() {
    let cluster = Cluster::new(4).await;
    with_strategy(&cluster, 1, 2, "dynamic_strategy").await;
    with_strategy(&cluster, 2, 2, "static_strategy").await;
    let session = agent(&cluster, 0).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async {
        cluster.nodes_of(1).await.len() == 2 && cluster.nodes_of(2).await.len() == 2
    })
    .await;
    tokio::time::sleep(3 * SECOND).await;
    cluster.store.kill_session(&session);
    tokio::time::sleep(9 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]), "not before the grace has passed");
    within(3 * SECOND, "replaced", || async { cluster.nodes_of(1).await == names(&[1, 2]) }).await;
    within(3 * SECOND, "reported", || async {
        placed(&cluster, 2).await == Some(RcReason::NodeDown)
    })
    .await;
    assert_eq!(cluster.nodes_of(2).await, names(&[0, 1]));
    agent(&cluster, 0).await;
    within(3 * SECOND, "back", || async { placed(&cluster, 2).await == Some(RcReason::AsDesired) })
        .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_new_is_put_on_a_node_that_drains_or_is_down() {
    let cluster = Cluster::new(3).await;
    cluster.put(key::node(&node(0)), r#"{"state":"draining"}"#).await;
    let session = agent(&cluster, 1).await;
    cluster.store.kill_session(&session);
    let farm = cluster.start("a");
    tokio::time::sleep(15 * SECOND).await;
    cluster.create_rc(1, 3).await;
    within(3 * SECOND, "the one that is ready", || async {
        cluster.nodes_of(1).await == names(&[2])
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_minimum_that_is_no_number_is_said_and_changes_nothing() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 1).await;
    cluster.put(key::rc_labels(rc_id(1)), r#"{"rcfarm/min_health":"most"}"#).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "said so", || async {
        let status = cluster.status(1).await.unwrap_or_default();
        status.last_error.is_some_and(|error| error.contains("min_health"))
    })
    .await;
    assert!(cluster.nodes_of(1).await.is_empty());
    cluster.put(key::rc_labels(rc_id(1)), r#"{"rcfarm/min_health":"1"}"#).await;
    within(3 * SECOND, "mended", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    farm.stop().await;
}

/// Nodes that clients are sent to.
struct Shown(BTreeSet<NodeName>);

#[async_trait]
impl Discovery for Shown {
    async fn synced(&self, _: &PodId, healthy: &BTreeSet<NodeName>) -> Result<bool, StoreError> {
        Ok(healthy.is_subset(&self.0))
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_nodes_last_words_do_not_hold_its_replacement_back() {
    let mut cluster = Cluster::new(3).await;
    cluster.discovery = Arc::new(Shown([node(1), node(2)].into()));
    with_strategy(&cluster, 1, 2, "dynamic_strategy").await;
    let session = agent(&cluster, 0).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await == names(&[0, 1]) }).await;
    for n in 0..2 {
        cluster.set_health(&node(n), 1, "passing").await;
    }
    tokio::time::sleep(5 * SECOND).await;
    cluster.store.kill_session(&session);
    within(15 * SECOND, "replaced", || async { cluster.nodes_of(1).await == names(&[1, 2]) }).await;
    within(5 * SECOND, "counted right", || async {
        cluster.status(1).await.unwrap().replicas.healthy == 1
    })
    .await;
    farm.stop().await;
}

/// Fails all reads of a prefix for the first ten seconds.
fn late(prefix: &'static str) -> impl Fn(&Request<'_>) -> Fate + Send + Sync + 'static {
    let start = tokio::time::Instant::now();
    move |request: &Request<'_>| match request {
        Request::List(asked) if *asked == prefix && start.elapsed() < 10 * SECOND => {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    }
}

#[tokio::test(start_paused = true)]
async fn a_farm_that_cannot_yet_see_which_nodes_drain_adds_nothing() {
    let cluster = Cluster::new(2).await;
    cluster.put(key::node(&node(0)), r#"{"state":"draining"}"#).await;
    cluster.create_rc(1, 1).await;
    let farm = cluster.start_faulty("a", late("rcfarm/nodes/"));
    within(20 * SECOND, "scheduled", || async { !cluster.nodes_of(1).await.is_empty() }).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[1]));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_farm_that_cannot_yet_see_who_is_healthy_removes_nothing() {
    let cluster = Cluster::new(4).await;
    cluster.create_rc(1, 4).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 4 }).await;
    for n in 0..4 {
        cluster.set_health(&node(n), 1, if n < 2 { "passing" } else { "critical" }).await;
    }
    farm.stop().await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start_faulty("b", late("health/"));
    within(20 * SECOND, "scaled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]), "the healthy ones stay");
    farm.stop().await;
}

async fn ring(cluster: &Cluster, n: u128) {
    let value = cluster.ids.uuid().to_string();
    cluster.put(key::rc_bell(rc_id(n)), value).await;
}

/// Reports a pod that an agent cannot start, as agents do that do not say whether its program is at fault.
async fn fail_to_start(cluster: &Cluster, at: usize, n: u128) {
    report_failed_start(cluster, at, n, json!({})).await;
}

async fn report_failed_start(cluster: &Cluster, at: usize, n: u128, more: serde_json::Value) {
    let pod = crate::harness::pod_id(n);
    let mut record = json!({"Status": "critical", "CannotStart": "main: no such program"});
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    cluster.put(key::health(&pod, &node(at)), record.to_string()).await;
    ring(cluster, n).await;
}

#[tokio::test(start_paused = true)]
async fn doorbell_reads_health_of_its_pods_at_once() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 2).await;
    let start = tokio::time::Instant::now();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| match request {
        // The watch of the prefix receives nothing after five seconds.
        Request::List(prefix) if *prefix == "health/" && start.elapsed() > 5 * SECOND => {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    });
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(70 * SECOND).await;
    for (healthy, status) in [(1, "passing"), (0, "critical")] {
        cluster.set_health(&node(0), 1, status).await;
        ring(&cluster, 1).await;
        within(SECOND / 10, status, || async {
            cluster.status(1).await.unwrap().replicas.healthy == healthy
        })
        .await;
        tokio::time::sleep(5 * SECOND).await;
    }
    // Frequent changes are written at intervals, and finally the last state.
    let revision = cluster.status(1).await.unwrap().revision;
    for n in 0..1_000 {
        cluster.set_health(&node(0), 1, if n % 2 == 0 { "critical" } else { "passing" }).await;
        ring(&cluster, 1).await;
        tokio::time::sleep(SECOND / 10).await;
    }
    within(3 * SECOND, "the last word", || async {
        cluster.status(1).await.unwrap().replicas.healthy == 1
    })
    .await;
    let writes = cluster.status(1).await.unwrap().revision - revision;
    assert!((20..=60).contains(&writes), "{writes} writes in 100 s");
    // After a quiet time the next changes are written at once: end, start, end.
    tokio::time::sleep(30 * SECOND).await;
    for healthy in [0, 1, 0, 1] {
        let status = if healthy == 1 { "passing" } else { "critical" };
        cluster.set_health(&node(0), 1, status).await;
        ring(&cluster, 1).await;
        within(SECOND / 10, status, || async {
            cluster.status(1).await.unwrap().replicas.healthy == healthy
        })
        .await;
    }
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_failing_for_many_controllers_is_avoided_by_all() {
    let cluster = Cluster::new(2).await;
    for n in 0..4 {
        with_strategy(&cluster, n, if n < 3 { 2 } else { 1 }, "static_strategy").await;
    }
    let farm = cluster.start("a");
    let is_on = |n: u128, nodes: Vec<usize>| {
        let cluster = &cluster;
        async move { cluster.nodes_of(n).await == names(&nodes) }
    };
    for n in 0..3 {
        within(3 * SECOND, "scheduled", || is_on(n, vec![0, 1])).await;
    }
    within(3 * SECOND, "scheduled", || is_on(3, vec![0])).await;
    tokio::time::sleep(3 * SECOND).await;
    for n in 0..3 {
        cluster.set_health(&node(1), n, "passing").await;
        fail_to_start(&cluster, 0, n).await;
    }
    tokio::time::sleep(3 * SECOND).await;
    within(5 * SECOND, "named", || suspects(&cluster, vec![node(0)])).await;
    with_strategy(&cluster, 10, 1, "static_strategy").await;
    within(3 * SECOND, "avoided", || is_on(10, vec![1])).await;
    with_strategy(&cluster, 11, 2, "static_strategy").await;
    within(3 * SECOND, "one is missing", || is_on(11, vec![1])).await;
    tokio::time::sleep(SECOND).await;
    let status = cluster.status(11).await.unwrap();
    let scheduled = status.condition(RcConditionType::Scheduled).unwrap();
    assert!(scheduled.message.contains("1 of them avoided"), "{scheduled:?}");
    assert_eq!(cluster.nodes_of(3).await, names(&[0]), "what runs there stays");

    // After the quarantine the node is tried again; one failure is then enough.
    within(90 * SECOND, "tried again", || async { cluster.nodes_of(11).await.len() == 2 }).await;
    within(5 * SECOND, "not named any more", || suspects(&cluster, vec![])).await;
    tokio::time::sleep(3 * SECOND).await;
    fail_to_start(&cluster, 0, 11).await;
    tokio::time::sleep(3 * SECOND).await;
    assert!(suspects(&cluster, vec![]).await, "the manifest may be at fault");
    cluster.set_health(&node(1), 11, "passing").await;
    within(70 * SECOND, "named", || suspects(&cluster, vec![node(0)])).await;
    with_strategy(&cluster, 12, 1, "static_strategy").await;
    within(3 * SECOND, "avoided", || is_on(12, vec![1])).await;
    farm.stop().await;
}

/// Two controllers of one tenant whose program is missing on n0 take it from nobody.
#[tokio::test(start_paused = true)]
async fn node_on_which_more_records_are_well_is_no_suspect() {
    let cluster = Cluster::new(2).await;
    for n in 0..7 {
        with_strategy(&cluster, n, 2, "static_strategy").await;
    }
    let farm = cluster.start("a");
    for n in 0..7 {
        within(3 * SECOND, "scheduled", || async { cluster.nodes_of(n).await.len() == 2 }).await;
        cluster.set_health(&node(1), n, "passing").await;
        if n >= 2 {
            cluster.set_health(&node(0), n, "passing").await;
        }
    }
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..2 {
        fail_to_start(&cluster, 0, n).await;
    }
    for _ in 0..70 {
        tokio::time::sleep(SECOND).await;
        assert!(suspects(&cluster, vec![]).await);
    }
    // Most of them fail now: it is the node.
    for n in 2..5 {
        fail_to_start(&cluster, 0, n).await;
    }
    within(70 * SECOND, "named", || suspects(&cluster, vec![node(0)])).await;
    farm.stop().await;
}

/// The node has no other pods that would speak for it.
#[tokio::test(start_paused = true)]
async fn programs_that_are_missing_on_a_node_take_it_from_nobody() {
    let cluster = Cluster::new(2).await;
    for n in 0..4 {
        with_strategy(&cluster, n, 2, "static_strategy").await;
    }
    let farm = cluster.start("a");
    for n in 0..4 {
        within(3 * SECOND, "scheduled", || async { cluster.nodes_of(n).await.len() == 2 }).await;
        cluster.set_health(&node(1), n, "passing").await;
    }
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..4 {
        report_failed_start(&cluster, 0, n, json!({"StartError": true})).await;
    }
    within(5 * SECOND, "said", || async {
        placed(&cluster, 0).await == Some(RcReason::CannotStart)
    })
    .await;
    for _ in 0..70 {
        tokio::time::sleep(SECOND).await;
        assert!(suspects(&cluster, vec![]).await);
    }
    with_strategy(&cluster, 10, 1, "static_strategy").await;
    let is_on_n0 = || async { cluster.nodes_of(10).await == names(&[0]) };
    within(3 * SECOND, "others use the node", is_on_n0).await;
    farm.stop().await;
}

async fn suspects(cluster: &Cluster, nodes: Vec<NodeName>) -> bool {
    cluster.presence("a").await.unwrap().suspect_nodes.into_iter().eq(nodes)
}

#[tokio::test(start_paused = true)]
async fn broken_manifests_take_no_healthy_node_from_others() {
    let cluster = Cluster::new(3).await;
    for n in 0..4 {
        with_strategy(&cluster, n, 1, "static_strategy").await;
    }
    with_strategy(&cluster, 4, 2, "dynamic_strategy").await;
    with_strategy(&cluster, 5, 3, "static_strategy").await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(5).await.len() == 3 }).await;
    for n in 0..3 {
        cluster.set_health(&node(n), 5, "passing").await;
    }
    // They ran well until a manifest came that starts nowhere.
    for n in 0..4 {
        cluster.set_health(&node(0), n, "passing").await;
    }
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..4 {
        let mut record = cluster.record(n, 1);
        record["manifest"] = json!(format!("id: pod-{n}\nbroken: true\n"));
        cluster.write_rc(n, &record).await;
    }
    tokio::time::sleep(5 * SECOND).await;
    for n in 0..4 {
        fail_to_start(&cluster, 0, n).await;
    }
    // One is carried on and fails everywhere.
    for at in 0..3 {
        let is_there = || async { cluster.nodes_of(4).await.contains(node(at).as_str()) };
        within(5 * SECOND, "carried on", is_there).await;
        fail_to_start(&cluster, at, 4).await;
    }
    within(3 * SECOND, "named", || async {
        let status = cluster.status(4).await.unwrap();
        let says = "see to the manifest of pod-4: 3 nodes cannot start it (n0000, n0001, n0002)";
        status.condition(RcConditionType::Placed).unwrap().message.contains(says)
    })
    .await;
    for _ in 0..70 {
        tokio::time::sleep(SECOND).await;
        assert!(suspects(&cluster, vec![]).await);
    }
    with_strategy(&cluster, 10, 1, "static_strategy").await;
    let is_on_n0 = || async { cluster.nodes_of(10).await == names(&[0]) };
    within(3 * SECOND, "others use the node", is_on_n0).await;
    farm.stop().await;
}

/// It starts no transition that would have to be undone.
#[tokio::test(start_paused = true)]
async fn a_pod_that_must_move_and_cannot_waits_without_a_write() {
    let cluster = Cluster::new(2).await;
    with_strategy(&cluster, 1, 2, "dynamic_strategy").await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(5 * SECOND).await;
    cluster.label_node(&node(0), json!({"pool": "db"})).await;
    within(5 * SECOND, "said so", || async {
        placed(&cluster, 1).await == Some(RcReason::InsufficientNodes)
    })
    .await;
    let revision = cluster.status(1).await.unwrap().revision;
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!(cluster.status(1).await.unwrap().revision, revision, "said once");
    cluster.label_node(&node(2), json!({"pool": "web"})).await;
    within(5 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[1, 2]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_that_cannot_start_a_pod_is_left_and_avoided() {
    let cluster = Cluster::new(4).await;
    with_strategy(&cluster, 1, 2, "dynamic_strategy").await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await == names(&[0, 1]) }).await;
    tokio::time::sleep(3 * SECOND).await;
    fail_to_start(&cluster, 0, 1).await;
    within(3 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[1, 2]) }).await;
    let entry = cluster.status(1).await.unwrap().quarantined_nodes[&node(0)].clone();
    assert_eq!((entry.failures, entry.why.as_str()), (1, "main: no such program"));
    cluster.delete(key::health(&pod_id(1), &node(0))).await;

    // A change of node labels does not end the quarantine, which belongs to the record.
    cluster.label_node(&node(3), json!({"pool": "db"})).await;
    cluster.label_node(&node(1), json!({"pool": "db"})).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[1, 2]), "n0 is the only other one");
    within(150 * SECOND, "its time is over", || async {
        cluster.nodes_of(1).await == names(&[0, 2])
    })
    .await;

    // The next failure doubles the quarantine, unless the record changes.
    cluster.label_node(&node(3), json!({"pool": "web"})).await;
    fail_to_start(&cluster, 0, 1).await;
    within(40 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[2, 3]) }).await;
    assert_eq!(cluster.status(1).await.unwrap().quarantined_nodes[&node(0)].failures, 2);
    cluster.delete(key::health(&pod_id(1), &node(0))).await;
    with_strategy(&cluster, 1, 3, "dynamic_strategy").await;
    within(3 * SECOND, "the record is new", || async {
        cluster.nodes_of(1).await == names(&[0, 2, 3])
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pod_that_no_node_can_start_is_reported_and_kept() {
    let cluster = Cluster::new(2).await;
    with_strategy(&cluster, 1, 2, "dynamic_strategy").await;
    with_strategy(&cluster, 2, 1, "static_strategy").await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async {
        cluster.nodes_of(1).await.len() == 2 && cluster.nodes_of(2).await.len() == 1
    })
    .await;
    tokio::time::sleep(3 * SECOND).await;
    for (at, n) in [(0, 1), (1, 1), (0, 2)] {
        fail_to_start(&cluster, at, n).await;
    }
    for n in [1, 2] {
        within(3 * SECOND, "said", || async {
            placed(&cluster, n).await == Some(RcReason::CannotStart)
        })
        .await;
    }
    let revision = cluster.status(1).await.unwrap().revision;
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(cluster.status(1).await.unwrap().revision, revision, "said once");
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    assert_eq!(cluster.nodes_of(2).await, names(&[0]));
    let mut record = cluster.record(2, 1);
    record["manifest"] = json!("id: pod-2\nmended: true\n");
    cluster.write_rc(2, &record).await;
    within(3 * SECOND, "the new manifest", || async {
        cluster.intent(&node(0), 2).await.unwrap().contains("mended")
    })
    .await;
    farm.stop().await;
}

/// As a pod does that takes all memory of its machine, on each machine that it is given.
#[tokio::test(start_paused = true)]
async fn pod_that_takes_its_nodes_down_is_set_aside_until_its_record_changes() {
    let cluster = Cluster::new(8).await;
    let mut sessions = Vec::new();
    for n in 0..8 {
        sessions.push(agent(&cluster, n).await);
    }
    with_strategy(&cluster, 1, 1, "dynamic_strategy").await;
    let farm = cluster.start("a");
    // Kills the agent of each node that has the pod, for this long. Returns how many were killed.
    let lost = async |seconds: u32| {
        let mut killed = BTreeSet::new();
        for _ in 0..seconds {
            tokio::time::sleep(SECOND).await;
            let on = cluster.nodes_of(1).await;
            assert!(on.len() < 2);
            for n in (0..8).filter(|n| on.contains(node(*n).as_str())) {
                cluster.store.kill_session(&sessions[n]);
                killed.insert(n);
            }
        }
        killed
    };
    let killed = lost(300).await;
    assert_eq!(killed.len(), 3, "{killed:?}");
    let status = cluster.status(1).await.unwrap();
    let condition = status.condition(RcConditionType::Placed).unwrap();
    assert_eq!((condition.status, condition.reason), (false, RcReason::NodesLost));
    assert!(condition.message.contains("3 nodes in a row"), "{}", condition.message);
    // It is tried again ten minutes after it was given to the third node, and twenty after the fourth.
    assert_eq!(lost(900).await.len(), 2, "the third, which has it, and a fourth");
    // A change of the record may fix the cause.
    let before = cluster.nodes_of(1).await;
    let mut record = cluster.record(1, 1);
    record["allocation_strategy"] = json!("dynamic_strategy");
    record["pod_labels"] = json!({"mended": "yes"});
    cluster.write_rc(1, &record).await;
    within(10 * SECOND, "it goes on", || async { cluster.nodes_of(1).await != before }).await;
    farm.stop().await;
}
