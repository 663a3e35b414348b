//! Claims, takeover, handover and release.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Cluster, SECOND, rc_id};
use rcfarm_api::key;
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_testing::wait::within;

async fn owned_by_somebody(cluster: &Cluster, records: u128) -> bool {
    for n in 0..records {
        if cluster.owner(n).await.is_none() {
            return false;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_farm_claims_every_record_and_schedules_it() {
    let cluster = Cluster::new(10).await;
    for n in 0..100 {
        cluster.create_rc(n, 3).await;
    }
    let farm = cluster.start("a");
    within(2 * SECOND, "all scheduled", || async {
        for n in 0..100 {
            if cluster.nodes_of(n).await.len() != 3 {
                return false;
            }
        }
        true
    })
    .await;
    assert_eq!(farm.claims(), 100);
    let status = cluster.status(7).await.unwrap();
    assert!(status.is_settled(), "{status:?}");
    assert_eq!((status.replicas.current, status.replicas.desired), (3, 3));
    assert_eq!(status.owner.unwrap().farm.as_str(), "a");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_farms_records_are_taken_over_without_any_other_write() {
    let cluster = Cluster::new(5).await;
    for n in 0..50 {
        cluster.create_rc(n, 1).await;
    }
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    within(5 * SECOND, "shared", || async { a.claims() + b.claims() == 50 && b.claims() > 0 })
        .await;
    within(10 * SECOND, "fairly", || async { a.claims() > 10 && b.claims() > 10 }).await;
    a.kill().await;
    let took = within(20 * SECOND, "taken over", || async { b.claims() == 50 }).await;
    assert!(took <= 3 * SECOND, "check TTL + 1 s, but it took {took:?}");
    within(SECOND, "acted on", || async {
        let status = cluster.status(3).await.unwrap();
        status.owner.unwrap().farm.as_str() == "b"
    })
    .await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_farm_that_stops_hands_everything_over_at_once() {
    let cluster = Cluster::new(5).await;
    for n in 0..50 {
        cluster.create_rc(n, 1).await;
    }
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    within(10 * SECOND, "shared", || async { a.claims() > 10 && b.claims() > 10 }).await;
    a.stop().await;
    let took = within(5 * SECOND, "taken over", || async { b.claims() == 50 }).await;
    assert!(took <= SECOND / 2, "{took:?}");
    b.stop().await;
    assert_eq!(cluster.owner(1).await, None, "the last farm leaves no lock");
    assert!(cluster.store.inspect(|tables| tables.kv.list("rcfarm/farms/").next().is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_gets_its_share_without_a_moment_of_nobody() {
    let cluster = Cluster::new(5).await;
    for n in 0..60 {
        cluster.create_rc(n, 1).await;
    }
    let a = cluster.start("a");
    within(2 * SECOND, "claimed", || async { a.claims() == 60 }).await;
    let b = cluster.start("b");
    within(10 * SECOND, "shared", || async {
        assert!(owned_by_somebody(&cluster, 60).await, "a record without an owner");
        b.claims() >= 15 && a.claims() + b.claims() == 60
    })
    .await;
    a.stop().await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn relabelled_record_moves_to_the_selecting_farm() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 1).await;
    let labels = key::rc_labels(rc_id(1));
    cluster.put(labels.as_str(), r#"{"tier":"web"}"#).await;
    let web = cluster.start_selecting("web", "tier=web");
    let batch = cluster.start_selecting("batch", "tier=batch");
    within(3 * SECOND, "claimed", || async { web.claims() == 1 }).await;
    assert_eq!(batch.claims(), 0);
    cluster.put(labels.as_str(), r#"{"tier":"batch"}"#).await;
    within(3 * SECOND, "moved", || async { web.claims() == 0 && batch.claims() == 1 }).await;
    web.stop().await;
    batch.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_means_claiming_anew() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start("a");
    within(2 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    let session = cluster.owner(1).await.unwrap();
    cluster.store.kill_session(&session.as_str().into());
    within(15 * SECOND, "claimed anew", || async {
        cluster.owner(1).await.is_some_and(|owner| owner != session) && farm.claims() == 1
    })
    .await;
    cluster.write_rc(1, &cluster.record(1, 3)).await;
    within(2 * SECOND, "works on", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    assert_eq!(farm.report.lock().unwrap().epochs_lost, 1);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_farms_of_one_name_never_work_at_once() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 1).await;
    let first = cluster.start("a");
    within(2 * SECOND, "claimed", || async { first.claims() == 1 }).await;
    let second = cluster.start("a");
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((first.claims(), second.claims()), (1, 0));
    first.kill().await;
    within(5 * SECOND, "taken over", || async { second.claims() == 1 }).await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_farm_of_an_older_layout_refuses_to_start() {
    let cluster = Cluster::new(0).await;
    cluster.put(key::layout(), r#"{"version":2}"#).await;
    let farm = cluster.start("a");
    let error = farm.outcome().await.unwrap_err().to_string();
    assert!(error.contains("rcfarm/layout") && error.contains('2'), "{error}");
}

/// With every fourth question lost, a farm that began again at each would not get through 30 of them.
#[tokio::test(start_paused = true)]
async fn rights_that_were_found_at_start_are_not_asked_again() {
    let cluster = Cluster::new(0).await;
    let asked: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let (count, is_over) = (asked.clone(), AtomicBool::new(false));
    let sent = AtomicU64::new(0);
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        let Request::Get(key) = request else { return Fate::DELIVER };
        // The layout is read when all rights are known.
        if *key == key::layout().as_str() {
            is_over.store(true, Ordering::SeqCst);
        }
        if is_over.load(Ordering::SeqCst) {
            return Fate::DELIVER;
        }
        if sent.fetch_add(1, Ordering::SeqCst) % 4 == 3 {
            return Fate::of(FaultOutcome::Lose);
        }
        *count.lock().unwrap().entry((*key).to_owned()).or_default() += 1;
        Fate::DELIVER
    });
    cluster.create_rc(1, 0).await;
    within(60 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    let asked = asked.lock().unwrap().clone();
    assert!(asked.len() > 20, "{asked:?}");
    assert!(asked.values().all(|times| *times == 1), "{asked:?}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_farm_hardly_asks() {
    let cluster = Cluster::new(10).await;
    for n in 0..200 {
        cluster.create_rc(n, 2).await;
    }
    let (farm, counted) = cluster.start_counted("a");
    within(5 * SECOND, "claimed", || async { farm.claims() == 200 }).await;
    tokio::time::sleep(30 * SECOND).await;
    let before = counted.total();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let rate = (counted.total() - before) as f64 / 100.0;
    assert!(rate <= 3.0, "{rate} requests/s at rest");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_take_over_reads_the_statuses_together() {
    let cluster = Cluster::new(5).await;
    cluster.create_rc(100, 1).await;
    let one_by_one = Arc::new(AtomicU64::new(0));
    let count = one_by_one.clone();
    let b = cluster.start_faulty("b", move |request| {
        if matches!(request, Request::Get(key) if key.ends_with("/rcfarm")) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Fate::DELIVER
    });
    within(3 * SECOND, "claimed", || async { b.claims() == 1 }).await;
    let a = cluster.start("a");
    tokio::time::sleep(3 * SECOND).await;
    for n in 0..100 {
        cluster.create_rc(n, 1).await;
    }
    within(10 * SECOND, "shared", || async { a.claims() > 20 && b.claims() > 20 }).await;
    tokio::time::sleep(5 * SECOND).await;
    a.kill().await;
    within(5 * SECOND, "taken over", || async { b.claims() == 101 }).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(one_by_one.load(Ordering::SeqCst), 0);
    b.stop().await;
}
