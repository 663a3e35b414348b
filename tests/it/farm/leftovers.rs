//! What p2's programs leave of a record that they delete: its status and doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcfarm_api::key;
use rcfarm_emulator::{Fate, Request, Verb};
use rcfarm_testing::wait::within;

use crate::harness::{Cluster, SECOND, rc_id};

/// A cluster whose controllers 1 to 3 have statuses.
async fn cluster() -> Cluster {
    let cluster = Cluster::new(3).await;
    for n in 1..=3 {
        cluster.create_rc(n, 1).await;
    }
    cluster
}

async fn have_statuses(cluster: &Cluster, all: &[u128]) -> bool {
    for n in all {
        if cluster.status(*n).await.is_none() {
            return false;
        }
    }
    true
}

async fn is_collected(cluster: &Cluster, n: u128) -> bool {
    let bell = cluster.entry(key::rc_bell(rc_id(n))).await;
    let status = cluster.entry(key::rc_status(rc_id(n))).await;
    bell.is_none() && status.is_none() && cluster.owner(n).await.is_none()
}

#[tokio::test(start_paused = true)]
async fn owner_collects_the_status_and_doorbell_of_a_deleted_record() {
    let cluster = cluster().await;
    let farm = cluster.start("a");
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[1, 2, 3])).await;
    cluster.delete(key::rc(rc_id(1))).await;
    cluster.put(key::rc_bell(rc_id(1)), "1").await;
    within(5 * SECOND, "collected", || is_collected(&cluster, 1)).await;
    assert_eq!(cluster.nodes_of(1).await.len(), 1, "its pods stay");
    assert!(have_statuses(&cluster, &[2, 3]).await);
    // The record comes back, as from a backup.
    cluster.create_rc(1, 2).await;
    within(5 * SECOND, "taken on again", || async {
        cluster.status(1).await.is_some_and(|status| status.replicas.current == 2)
    })
    .await;
    farm.stop().await;
}

/// The record is deleted while no farm runs. Both farms find its status.
#[tokio::test(start_paused = true)]
async fn two_farms_collect_a_status_once() {
    let cluster = cluster().await;
    let farm = cluster.start("a");
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[1, 2, 3])).await;
    farm.stop().await;
    cluster.delete(key::rc(rc_id(1))).await;
    let (locked, deleted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (lock, status) = (key::rc_lock(rc_id(1)), key::rc_status(rc_id(1)));
    let count = {
        let (locked, deleted) = (locked.clone(), deleted.clone());
        move |request: &Request<'_>| {
            if let Request::Txn(ops) = request {
                let has =
                    |verb: Verb, key: &str| ops.iter().any(|op| op.verb == verb && op.key == *key);
                let counts = [
                    (&locked, has(Verb::Lock, lock.as_str())),
                    (&deleted, has(Verb::Delete, status.as_str())),
                ];
                for (counter, is_there) in counts {
                    counter.fetch_add(usize::from(is_there), Ordering::SeqCst);
                }
            }
            Fate::DELIVER
        }
    };
    let farms = [cluster.start_faulty("a", count.clone()), cluster.start_faulty("b", count)];
    within(400 * SECOND, "collected", || is_collected(&cluster, 1)).await;
    tokio::time::sleep(3_600 * SECOND).await;
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
    let locked = locked.load(Ordering::SeqCst);
    assert!((1..=2).contains(&locked), "the lock was asked for {locked} times");
    assert!(have_statuses(&cluster, &[2, 3]).await);
    for farm in farms {
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn statuses_without_any_record_are_collected_by_a_new_farm() {
    let cluster = Cluster::new(1).await;
    let status = "{}";
    cluster.put(key::rc_status(rc_id(1)), status).await;
    // Another program's status is not ours to delete.
    let other = format!("status/replication_controllers/{}/replication_controller", rc_id(2));
    cluster.put(&other, r#"{"node_transfer":null}"#).await;
    let farm = cluster.start("a");
    within(400 * SECOND, "collected", || is_collected(&cluster, 1)).await;
    assert!(cluster.entry(&other).await.is_some());
    assert_eq!(farm.claims(), 0);
    farm.stop().await;
}

/// All records vanish at once: the mass deletion guard holds. When they are back, each goes on with its status.
#[tokio::test(start_paused = true)]
async fn statuses_of_records_that_vanish_together_stay() {
    let cluster = cluster().await;
    let farm = cluster.start("a");
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[1, 2, 3])).await;
    let records = cluster.list(&key::rcs()).await;
    let ops = |n| rcfarm_store::Op::Delete { key: key::rc(rc_id(n)) };
    let all: Vec<rcfarm_store::Op> = (1..=3).map(ops).collect();
    let _ = rcfarm_store::Store::txn(&cluster.store, &all).await.unwrap();
    tokio::time::sleep(900 * SECOND).await;
    assert!(have_statuses(&cluster, &[1, 2, 3]).await);
    for record in records {
        cluster.put(&record.key, &record.value).await;
    }
    tokio::time::sleep(60 * SECOND).await;
    assert!(have_statuses(&cluster, &[1, 2, 3]).await);
    assert_eq!(farm.claims(), 3);
    farm.stop().await;
}

/// The record is back when the farm asks Consul about it.
#[tokio::test(start_paused = true)]
async fn status_of_a_record_that_is_back_stays() {
    let cluster = cluster().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let (seen, record) = (asked.clone(), key::rc(rc_id(1)));
    let farm = cluster.start_faulty("a", move |request| match request {
        Request::Get(key) if *key == record.as_str() => {
            seen.fetch_add(1, Ordering::SeqCst);
            Fate { before: SECOND, ..Fate::DELIVER }
        }
        _ => Fate::DELIVER,
    });
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[1, 2, 3])).await;
    let value = cluster.get(key::rc(rc_id(1))).await.unwrap();
    let before = cluster.entry(key::rc_status(rc_id(1))).await.unwrap().create_index;
    cluster.delete(key::rc(rc_id(1))).await;
    within(5 * SECOND, "asked", || async { asked.load(Ordering::SeqCst) > 0 }).await;
    cluster.put(key::rc(rc_id(1)), value).await;
    tokio::time::sleep(60 * SECOND).await;
    let after = cluster.entry(key::rc_status(rc_id(1))).await.unwrap().create_index;
    assert_eq!(after, before, "the status was deleted");
    assert_eq!(farm.claims(), 3);
    farm.stop().await;
}

/// An agent rings for the owner of a pod whose record is long gone.
#[tokio::test(start_paused = true)]
async fn doorbell_of_a_record_that_is_gone_is_deleted() {
    let cluster = cluster().await;
    let farm = cluster.start("a");
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[1, 2, 3])).await;
    tokio::time::sleep(60 * SECOND).await;
    let bell = key::rc_bell(rc_id(9));
    cluster.put(&bell, "1").await;
    within(5 * SECOND, "deleted", || async { cluster.entry(&bell).await.is_none() }).await;
    farm.stop().await;
}

/// The doorbell of a record that a farm of p2 owns stays until the record is gone.
#[tokio::test(start_paused = true)]
async fn doorbell_of_a_record_of_p2_is_deleted_with_the_record() {
    let cluster = cluster().await;
    let session = rcfarm_store::NewSession::default();
    let session = rcfarm_store::Store::create_session(&cluster.store, &session).await.unwrap();
    cluster.put_locked(key::rc_lock(rc_id(1)), "", &session).await;
    let farm = cluster.start("a");
    within(5 * SECOND, "statuses", || have_statuses(&cluster, &[2, 3])).await;
    let bell = key::rc_bell(rc_id(1));
    cluster.put(&bell, "1").await;
    tokio::time::sleep(60 * SECOND).await;
    assert!(cluster.entry(&bell).await.is_some());
    cluster.delete(key::rc(rc_id(1))).await;
    within(5 * SECOND, "deleted", || async { cluster.entry(&bell).await.is_none() }).await;
    farm.stop().await;
}
