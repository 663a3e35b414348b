//! Removals and moves are decided on pods as new as the record, and on health read at the decision (invariant 31).

use std::collections::BTreeSet;

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_testing::wait::within;
use serde_json::json;

fn names(nodes: &[usize]) -> BTreeSet<String> {
    nodes.iter().map(|n| node(*n).to_string()).collect()
}

/// Takes a pod from its RC, as `p2-rm` does.
async fn take_away(cluster: &Cluster, at: usize, n: u128) {
    cluster.delete(key::pod_labels(&node(at), &pod_id(n))).await;
    cluster.delete(key::intent(&node(at), &pod_id(n))).await;
}

/// Nodes that the RC's audit records name as removed.
async fn removed(cluster: &Cluster, n: u128) -> Vec<serde_json::Value> {
    let of = |record: &rcfarm_api::audit::AuditRecord| {
        let details = &record.event_details;
        let is_its = details["replication_controller_id"] == json!(rc_id(n).to_string());
        let removed = details["nodes_removed"].as_array().filter(|nodes| !nodes.is_empty())?;
        is_its.then(|| json!(removed))
    };
    cluster.audit().await.iter().filter_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn quiet_labels_do_not_hold_a_removal_up() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "two", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(70 * SECOND).await;
    // Nothing else changes the labels: their index stays older than the record's.
    cluster.create_rc(1, 1).await;
    within(2 * SECOND, "one", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    assert_eq!(removed(&cluster, 1).await.len(), 1);
    farm.stop().await;
}

/// Such a node counts as ready, and its record is as old as the decision that was made on it.
#[tokio::test(start_paused = true)]
async fn node_record_that_cannot_be_decoded_holds_no_removal_up() {
    let cluster = Cluster::new(3).await;
    cluster.put(key::node(&node(1)), "{").await;
    cluster.create_rc(1, 3).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "three", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    tokio::time::sleep(70 * SECOND).await;
    cluster.create_rc(1, 1).await;
    within(2 * SECOND, "one", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    farm.stop().await;
}

/// Disables, deletes the pod, lowers the count, enables; meanwhile another RC is scaled once a second.
#[tokio::test(start_paused = true)]
async fn p2_rm_with_deallocate_takes_one_pod_each_time() {
    let cluster = Cluster::new(6).await;
    cluster.create_rc(1, 4).await;
    cluster.create_rc(2, 3).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 4 }).await;
    let edit = async |replicas: i64, disabled: bool| {
        let mut record = cluster.record(1, replicas);
        record["disabled"] = json!(disabled);
        cluster.write_rc(1, &record).await;
        tokio::time::sleep(SECOND / 100).await;
    };
    for round in 0..20 {
        tokio::time::sleep(SECOND * 2 + SECOND / 100 * round).await;
        // The watch of the labels has just been woken by this and pauses.
        cluster.create_rc(2, 5).await;
        tokio::time::sleep(SECOND / 5 + SECOND / 20 * (round % 7)).await;
        let before = cluster.nodes_of(1).await;
        let taken = (0..6).filter(|n| before.contains(node(*n).as_str())).nth(round as usize % 4);
        edit(4, true).await;
        take_away(&cluster, taken.unwrap(), 1).await;
        tokio::time::sleep(SECOND / 100).await;
        edit(3, true).await;
        edit(3, false).await;
        let mut left = before;
        left.remove(node(taken.unwrap()).as_str());
        for tenth in 0..40 {
            if tenth % 10 == 5 {
                cluster.create_rc(2, 3 + tenth / 10 % 2).await;
            }
            assert_eq!(cluster.nodes_of(1).await, left, "round {round}, {tenth} tenths later");
            tokio::time::sleep(SECOND / 10).await;
        }
        cluster.create_rc(1, 4).await;
        within(5 * SECOND, "four again", || async { cluster.nodes_of(1).await.len() == 4 }).await;
    }
    farm.stop().await;
}

/// A farm whose cache of health is never read again after ten seconds.
fn health_watch_ends() -> impl Fn(&Request<'_>) -> Fate + Send + Sync + 'static {
    let start = tokio::time::Instant::now();
    move |request: &Request<'_>| match request {
        Request::List(prefix) if *prefix == "health/" && start.elapsed() > 10 * SECOND => {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    }
}

async fn passing_on(cluster: &Cluster, nodes: usize, replicas: i64, strategy: &str) {
    let mut record = cluster.record(1, replicas);
    record["allocation_strategy"] = json!(strategy);
    cluster.write_rc(1, &record).await;
    for n in 0..nodes {
        cluster.set_health(&node(n), 1, "passing").await;
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_does_not_begin_on_health_of_the_past() {
    let cluster = Cluster::new(4).await;
    passing_on(&cluster, 3, 3, "dynamic_strategy").await;
    let farm = cluster.start_faulty("a", health_watch_ends());
    within(5 * SECOND, "three", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    tokio::time::sleep(80 * SECOND).await;
    cluster.set_health(&node(1), 1, "critical").await;
    cluster.label_node(&node(2), json!({"pool": "drained"})).await;
    let waits = || async {
        let status = cluster.status(1).await.unwrap();
        status.condition(RcConditionType::Placed).unwrap().reason == RcReason::PodsUnhealthy
    };
    within(3 * SECOND, "waits", waits).await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1, 2]));
    let audit = cluster.audit().await;
    assert!(!audit.iter().any(|r| r.event_type.as_str().starts_with("NODE_TRANSFER")));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lower_count_takes_the_pod_that_ails_now() {
    let cluster = Cluster::new(3).await;
    passing_on(&cluster, 3, 3, "static_strategy").await;
    let farm = cluster.start_faulty("a", health_watch_ends());
    within(5 * SECOND, "three", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    tokio::time::sleep(80 * SECOND).await;
    cluster.set_health(&node(1), 1, "critical").await;
    cluster.create_rc(1, 2).await;
    within(3 * SECOND, "two", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 2]), "by what the cache shows n0 would go");
    farm.stop().await;
}

/// The watch of the nodes learns of the change two seconds after that of the records has the lower count.
#[tokio::test(start_paused = true)]
async fn lower_count_is_judged_by_nodes_as_new_as_the_record() {
    let pool = |pool: &str| json!({"pool": pool}).to_string();
    let state = |state: &str| json!({"state": state}).to_string();
    let (labels, record) = (key::node_labels(&node(1)), key::node(&node(1)));
    let cases = [
        (&labels, Some(pool("web")), pool("db"), [0, 2]),
        (&labels, Some(pool("db")), pool("web"), [1, 2]),
        (&record, Some(state("ready")), state("draining"), [0, 2]),
        (&record, None, state("draining"), [0, 2]),
    ];
    for (key, before, now, left) in cases {
        let cluster = Cluster::new(3).await;
        cluster.create_rc(1, 3).await;
        let farm = cluster.start_faulty("a", |request| match request {
            Request::List("labels/node/" | "rcfarm/nodes/") => {
                Fate { after: 2 * SECOND, ..Fate::DELIVER }
            }
            _ => Fate::DELIVER,
        });
        within(20 * SECOND, "three", || async { cluster.nodes_of(1).await.len() == 3 }).await;
        if let Some(before) = before {
            cluster.put(key, before).await;
        }
        tokio::time::sleep(70 * SECOND).await;
        cluster.put(key, &now).await;
        cluster.create_rc(1, 2).await;
        within(20 * SECOND, "two", || async { cluster.nodes_of(1).await.len() == 2 }).await;
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!(cluster.nodes_of(1).await, names(&left), "{key} became {now}");
        assert_eq!(removed(&cluster, 1).await.len(), 1, "{key} became {now}");
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn higher_count_and_zero_need_no_read() {
    let cluster = Cluster::new(10).await;
    cluster.create_rc(1, 3).await;
    let (farm, counted) = cluster.start_counted("a");
    within(3 * SECOND, "three", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    let health = format!("list health/{}/", pod_id(1));
    for (replicas, transactions, reads) in [(9, 1, 0), (6, 2, 1), (0, 1, 0)] {
        tokio::time::sleep(30 * SECOND).await;
        counted.reset();
        cluster.create_rc(1, replicas).await;
        let there = usize::try_from(replicas).unwrap();
        within(3 * SECOND, "scaled", || async { cluster.nodes_of(1).await.len() == there }).await;
        assert_eq!(
            (counted.transactions(), counted.count(&health)),
            (transactions, reads),
            "{replicas}"
        );
    }
    farm.stop().await;
}
