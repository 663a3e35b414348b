//! Restored snapshots and late reads: old states that no watch reports (`consul-semantics.md` §0 #12).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::harness::{Cluster, RunningFarm, SECOND, node, rc_id};
use rcfarm::cluster::nodes::NodeIndex;
use rcfarm_api::key;
use rcfarm_api::key::LabelKind;
use rcfarm_emulator::{Applied, Fate, Request, Tables};
use rcfarm_store::cache::Cache;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{NewSession, Store};
use rcfarm_testing::wait::within;
use serde_json::json;

async fn label(cluster: &Cluster, n: u128, tier: &str) {
    cluster.put(key::rc_labels(rc_id(n)), format!(r#"{{"tier":"{tier}"}}"#)).await;
}

async fn owner_said(cluster: &Cluster, n: u128, farm: &str) -> bool {
    let owner = cluster.status(n).await.and_then(|status| status.owner);
    owner.is_some_and(|owner| owner.farm.as_str() == farm)
}

/// A farm whose claim was undone by restoring an older snapshot.
async fn claimed_and_taken_away() -> (Cluster, RunningFarm) {
    let cluster = Cluster::new(5).await;
    label(&cluster, 0, "batch").await;
    cluster.create_rc(0, 2).await;
    let farm = cluster.start_selecting("a", "tier=web");
    tokio::time::sleep(SECOND).await;
    let snapshot = cluster.store.snapshot();
    label(&cluster, 0, "web").await;
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(0).await.len() == 2 }).await;
    cluster.store.restore(snapshot);
    (cluster, farm)
}

/// Of a large prefix only changed parts are read; a part with an older index counts as changed.
#[tokio::test(start_paused = true)]
async fn restored_snapshot_of_large_prefix_shows_with_next_write() {
    let cluster = Cluster::new(100).await;
    let labels = key::labels(LabelKind::Node);
    let tree = Cache::<NodeIndex>::new(Arc::new(cluster.store.clone()), labels, PollPolicy::PROMPT);
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), |_, _| {}));
    tree.first_read().await;
    let snapshot = cluster.store.snapshot();
    let seen = tree.clone();
    let is = move |n: usize, pool: &str| {
        let seen = seen.snapshot();
        seen.value.labels.nodes.get(&node(n)).is_some_and(|labels| labels["pool"] == pool)
    };
    cluster.label_node(&node(5), json!({"pool": "db"})).await;
    within(5 * SECOND, "the change", || async { is(5, "db") }).await;
    cluster.store.restore(snapshot);
    cluster.label_node(&node(95), json!({"pool": "db"})).await;
    within(5 * SECOND, "the write", || async { is(95, "db") }).await;
    assert!(is(5, "web"), "the other part is as the snapshot has it");
    watch.abort();
}

/// The lock is gone, but the cache still shows it as ours.
#[tokio::test(start_paused = true)]
async fn claim_lost_to_a_restored_snapshot_is_retaken_at_once() {
    let (cluster, farm) = claimed_and_taken_away().await;
    label(&cluster, 0, "web").await;
    cluster.create_rc(0, 4).await;
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(0).await.len() == 4 }).await;
    farm.stop().await;
}

/// A farm that trusts its cache would be refused several times a second until the next read.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_lost_again_and_again_is_looked_at_instead() {
    let (cluster, farm) = claimed_and_taken_away().await;
    // The lock now belongs to a session that is not a farm's.
    let session = cluster.store.create_session(&NewSession::default()).await.unwrap();
    cluster.put_locked(key::rc_lock(rc_id(0)), "p2", &session).await;
    label(&cluster, 0, "web").await;
    cluster.create_rc(0, 4).await;
    tokio::time::sleep(20 * SECOND).await;
    let lost = farm.report.lock().unwrap().claims_lost;
    assert!(lost <= 2, "{lost} claims lost");
    farm.stop().await;
}

/// An idle owner writes nothing that could be refused.
#[tokio::test(start_paused = true)]
async fn an_owner_says_again_what_a_restored_snapshot_took_back() {
    let cluster = Cluster::new(5).await;
    cluster.create_rc(0, 2).await;
    let a = cluster.start("a");
    within(3 * SECOND, "said", || owner_said(&cluster, 0, "a")).await;
    a.kill().await;
    // The state in which the next owner has the lock and has not written its status.
    let moment: Arc<Mutex<Option<Tables>>> = Arc::default();
    let seen = moment.clone();
    cluster.store.observe(move |applied: &Applied, tables: &Tables| {
        let lock = key::rc_lock(rc_id(0));
        if applied.changes.iter().any(|c| c.key == lock.as_str() && c.after.is_some()) {
            *seen.lock().unwrap() = Some(tables.clone());
        }
    });
    let b = cluster.start("b");
    within(10 * SECOND, "said", || owner_said(&cluster, 0, "b")).await;
    tokio::time::sleep(SECOND).await;
    cluster.store.restore(moment.lock().unwrap().take().unwrap());
    assert!(owner_said(&cluster, 0, "a").await);
    within(400 * SECOND, "said again", || owner_said(&cluster, 0, "b")).await;
    b.stop().await;
}

/// The new owner knows a version of the record that a restored snapshot has undone.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_older_than_seen_is_read_and_not_waited_for() {
    let cluster = Cluster::new(5).await;
    cluster.create_rc(0, 2).await;
    cluster.put(key::rc_labels(rc_id(0)), r#"{"never":"no"}"#).await;
    let a = cluster.start("a");
    within(3 * SECOND, "owned", || owner_said(&cluster, 0, "a")).await;
    let b = cluster.start_selecting("b", "never=so");
    tokio::time::sleep(5 * SECOND).await;
    let snapshot = cluster.store.snapshot();
    cluster.create_rc(0, 4).await;
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(0).await.len() == 4 }).await;
    tokio::time::sleep(SECOND).await;
    cluster.store.restore(snapshot);
    cluster.put(key::rc_labels(rc_id(0)), r#"{"never":"so"}"#).await;
    a.stop().await;
    let took = within(9 * SECOND, "taken over", || owner_said(&cluster, 0, "b")).await;
    assert!(took < SECOND / 2, "it took {took:?}");
    assert_eq!(cluster.nodes_of(0).await.len(), 2);
    b.stop().await;
}

/// One farm reads labels late and hands over a record that the other does not select.
#[tokio::test(start_paused = true)]
async fn farms_with_different_label_views_do_not_swap_a_record() {
    let cluster = Cluster::new(1).await;
    for n in 0..10 {
        label(&cluster, n, "web").await;
        cluster.create_rc(n, 1).await;
    }
    let asked = AtomicU64::new(0);
    let a = cluster.start_faulty("a", move |request| match request {
        // The second one waits for a change, and is answered after a minute.
        Request::List("labels/replication_controller/")
            if asked.fetch_add(1, Ordering::SeqCst) == 1 =>
        {
            Fate { after: 60 * SECOND, ..Fate::DELIVER }
        }
        _ => Fate::DELIVER,
    });
    within(3 * SECOND, "claimed", || async { a.claims() == 10 }).await;
    for n in 0..10 {
        label(&cluster, n, "batch").await;
    }
    let changes = Arc::new(AtomicU64::new(0));
    let count = changes.clone();
    cluster.store.observe(move |applied: &Applied, _: &Tables| {
        let lock = |key: &str| key::rc_locks().tail(key).is_some();
        let changed = applied.changes.iter().filter(|change| lock(&change.key)).count();
        count.fetch_add(changed as u64, Ordering::SeqCst);
    });
    let c = cluster.start_selecting("c", "tier=web");
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!((changes.load(Ordering::SeqCst), a.claims(), c.claims()), (0, 10, 0));
    a.stop().await;
    c.stop().await;
}
