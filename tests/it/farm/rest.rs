//! Requests of an idle or nearly idle farm; counts, not times.

use std::time::Duration;

use crate::harness::{Cluster, SECOND, node, rc_id};
use rcfarm_api::key;
use rcfarm_store::{Op, Prefix, Store, TxnOutcome};
use rcfarm_testing::wait::within;
use serde_json::json;

async fn scheduled(cluster: &Cluster, pods: usize) {
    within(30 * SECOND, "scheduled", || async {
        let pod = |tables: &rcfarm_emulator::Tables| tables.kv.list("intent/").count();
        cluster.store.inspect(pod) == pods
    })
    .await;
    tokio::time::sleep(10 * SECOND).await;
}

/// Each watched prefix needs a connection; Consul allows 200 per client address.
#[tokio::test(start_paused = true)]
async fn idle_farm_watches_few_prefixes_and_job_prefixes_with_jobs() {
    let cluster = Cluster::new(3).await;
    for n in 0..20 {
        cluster.create_rc(n, 1).await;
    }
    let (farm, counter) = cluster.start_counted("a");
    scheduled(&cluster, 20).await;
    counter.reset();
    tokio::time::sleep(120 * SECOND).await;
    let (trees, requests) = (counter.prefixes(), counter.total());
    // Each kind of record adds one.
    assert!(trees.len() <= 20, "{} trees: {trees:?}", trees.len());
    assert!(requests <= 120 * 3, "{requests} requests in two minutes");
    let of_jobs = ["reality/", "status/pods/", "lock/rcfarm/jobs/", "labels/job/"];
    assert!(of_jobs.iter().all(|tree| !trees.contains(*tree)), "{trees:?}");

    // A job is still claimed; from then on the prefixes of jobs are watched.
    let task = json!({"name": "t", "replicas": 1, "template": {"id": "x", "launchables": {}}});
    cluster.put("rcfarm/jobs/default/j", json!({"spec": {"tasks": [task]}}).to_string()).await;
    within(30 * SECOND, "claimed", || async {
        let lock = |tables: &rcfarm_emulator::Tables| tables.kv.list("lock/rcfarm/jobs/").count();
        cluster.store.inspect(lock) == 1
    })
    .await;
    counter.reset();
    tokio::time::sleep(120 * SECOND).await;
    let trees = counter.prefixes();
    assert!(of_jobs[..3].iter().all(|tree| trees.contains(*tree)), "{trees:?}");
    assert!(!trees.contains("labels/job/"), "nobody selects by labels: {trees:?}");
    farm.stop().await;
}

/// Several kinds share one blocking query per prefix.
#[tokio::test(start_paused = true)]
async fn one_blocking_query_per_prefix() {
    let cluster = Cluster::new(3).await;
    for n in 0..5 {
        cluster.create_rc(n, 1).await;
    }
    let task = json!({"name": "t", "replicas": 2, "template": {"id": "x", "launchables": {}}});
    cluster.put("rcfarm/jobs/default/j", json!({"spec": {"tasks": [task]}}).to_string()).await;
    let farm = cluster.start("a");
    scheduled(&cluster, 5).await;
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..30 {
        tokio::time::sleep(SECOND).await;
        for (prefix, blocked) in cluster.store.blocked_by_prefix() {
            let most: &mut usize = seen.entry(prefix).or_default();
            *most = blocked.max(*most);
        }
    }
    for prefix in ["labels/pod/", "intent/", "reality/", "status/pods/", "rcfarm/jobs/"] {
        assert_eq!(seen.get(prefix), Some(&1), "{prefix}: {seen:?}");
    }
    assert!(seen.values().all(|blocked| *blocked <= 1), "{seen:?}");
    farm.stop().await;
}

/// A farm with a label selector makes the others watch labels.
#[tokio::test(start_paused = true)]
async fn labels_are_watched_when_a_farm_selects_by_them() {
    let cluster = Cluster::new(1).await;
    let (farm, counter) = cluster.start_counted("a");
    tokio::time::sleep(70 * SECOND).await;
    assert!(!counter.prefixes().contains("labels/scheduler/"));
    let other = cluster.start_selecting("b", "tier=b");
    tokio::time::sleep(10 * SECOND).await;
    assert!(counter.prefixes().contains("labels/scheduler/"));
    other.stop().await;
    farm.stop().await;
}

/// A watch of an empty prefix wakes on unrelated writes (not in the emulator), so none of ours may be empty.
#[tokio::test(start_paused = true)]
async fn no_tree_of_ours_that_is_watched_is_empty() {
    let cluster = Cluster::new(1).await;
    cluster.create_rc(1, 1).await;
    let (farm, counter) = cluster.start_counted("a");
    scheduled(&cluster, 1).await;
    counter.reset();
    tokio::time::sleep(120 * SECOND).await;
    // Allocations are created with the first requests; until then there are few writes below `rcfarm/`.
    for tree in counter.prefixes() {
        if tree.starts_with("rcfarm/") && tree != "rcfarm/allocations/" {
            let prefix = Prefix::parse(&tree).unwrap();
            let keys = cluster.keys(&prefix).await;
            assert!(!keys.is_empty(), "{tree} is empty");
        }
    }
    farm.stop().await;
}

/// Consul needs 15 ms to list 700 records, however few have changed.
#[tokio::test(start_paused = true)]
async fn of_many_records_those_that_changed_are_read() {
    let cluster = Cluster::new(2).await;
    for n in 0..200 {
        cluster.create_rc(n, 0).await;
    }
    let (farm, counter) = cluster.start_counted("a");
    within(30 * SECOND, "claimed", || async { farm.claims() == 200 }).await;
    tokio::time::sleep(10 * SECOND).await;
    counter.reset();
    for n in 0..10 {
        cluster.create_rc(n * 19, 1).await;
        within(SECOND, "an edit", || async { cluster.nodes_of(n * 19).await.len() == 1 }).await;
        tokio::time::sleep(SECOND).await;
    }
    cluster.create_rc(500, 1).await;
    within(SECOND, "a new one", || async { cluster.nodes_of(500).await.len() == 1 }).await;
    cluster.delete(key::rc(rc_id(7))).await;
    within(SECOND, "one less", || async { farm.claims() == 200 }).await;
    assert_eq!(counter.count("list replication_controllers/"), 0, "{counter:?}");
    assert_eq!(counter.count("list lock/replication_controllers/"), 0, "{counter:?}");
    farm.stop().await;
}

/// Only farms write these, and the owner knows its own writes.
#[tokio::test(start_paused = true)]
async fn pod_prefixes_are_read_seldom_during_own_writes() {
    let cluster = Cluster::new(420).await;
    cluster.create_rc(1, 400).await;
    let (farm, counter) = cluster.start_counted("a");
    scheduled(&cluster, 400).await;
    counter.reset();
    for n in 1..=20 {
        cluster.create_rc(1, 400 + n).await;
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!(cluster.nodes_of(1).await.len(), 420);
    let read = |tree: &str| counter.count(&format!("list {tree}"));
    assert!(read("labels/pod/") <= 2 && read("intent/") <= 2, "{counter:?}");
    // Changes by users are still seen.
    tokio::time::sleep(10 * SECOND).await;
    let gone = key::pod_labels(&node(3), &crate::harness::pod_id(1));
    cluster.delete(gone.as_str()).await;
    within(10 * SECOND, "labelled again", || async { cluster.entry(&gone).await.is_some() }).await;
    farm.stop().await;
}

/// The status waits for the doorbell's delete: on a real disk each write before it costs a sync.
#[tokio::test(start_paused = true)]
async fn bells_are_taken_down_together_and_after_they_were_answered() {
    const RCS: u128 = 10;
    let cluster = Cluster::new(RCS as usize).await;
    for n in 0..RCS {
        cluster.create_rc(n, 1).await;
    }
    let (farm, counter) = cluster.start_counted("a");
    scheduled(&cluster, RCS as usize).await;
    for round in 1..=3u32 {
        counter.reset();
        let mut ops = Vec::new();
        for n in 0..RCS {
            let at = cluster.nodes_of(n).await.into_iter().next().unwrap().parse().unwrap();
            let status = if round % 2 == 1 { "passing" } else { "critical" };
            let record = json!({"Status": status}).to_string();
            let health = key::health(&crate::harness::pod_id(n), &at);
            ops.push(Op::Set { key: health, value: record.into(), flags: 0 });
            let bell = format!("{round}-{n}").into();
            ops.push(Op::Set { key: key::rc_bell(rc_id(n)), value: bell, flags: 0 });
        }
        assert!(matches!(cluster.store.txn(&ops).await.unwrap(), TxnOutcome::Committed { .. }));
        let bells = || cluster.store.inspect(|tables| tables.kv.list("rcfarm/bell/rc/").count());
        let wanted = round % 2;
        within(SECOND, "told", || async {
            let mut told = 0;
            for n in 0..RCS {
                told += usize::from(cluster.status(n).await.unwrap().replicas.healthy == wanted);
            }
            told == RCS as usize
        })
        .await;
        assert_eq!(bells(), RCS as usize, "the answers come first");
        within(2 * SECOND, "taken down", || async { bells() == 0 }).await;
        // One transaction per status and one for all doorbells.
        assert_eq!(counter.count("txn"), RCS as u64 + 1, "{counter:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    farm.stop().await;
}
