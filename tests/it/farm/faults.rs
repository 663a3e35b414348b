//! Failing reads, writes, ACLs and sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use rcfarm_api::key;
use rcfarm_api::rc::status::RcReason;
use rcfarm_emulator::{Fate, FaultOutcome, Request, Verb};
use rcfarm_store::{Behavior, NewSession, Store, StoreError};
use rcfarm_testing::wait::within;
use serde_json::json;
use tokio::time::Instant;

/// Two pods on n0 and n1 as p2 leaves them, without a status; only n2 and n3 are eligible.
async fn pods_of_p2() -> Cluster {
    let cluster = Cluster::new(4).await;
    for n in 0..2 {
        cluster.label_node(&node(n), json!({"pool": "elsewhere"})).await;
        let labels = json!({"replication_controller_id": rc_id(1), "pod_id": pod_id(1),
            "availability_zone": "az1", "cluster_name": "test"});
        cluster.put(key::pod_labels(&node(n), &pod_id(1)), labels.to_string()).await;
        cluster.put(key::intent(&node(n), &pod_id(1)), "id: pod-1\n").await;
    }
    cluster.create_rc(1, 2).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_farm_that_cannot_read_the_pods_adds_none() {
    let cluster = pods_of_p2().await;
    let start = Instant::now();
    let farm = cluster.start_faulty("a", move |request| match request {
        Request::List("labels/pod/") if start.elapsed() < 5 * SECOND => {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    });
    within(20 * SECOND, "looked at", || async { cluster.status(1).await.is_some() }).await;
    tokio::time::sleep(10 * SECOND).await;
    let stayed = [node(0).to_string(), node(1).to_string()].into();
    assert_eq!(cluster.nodes_of(1).await, stayed);
    assert!(cluster.audit().await.is_empty());
    farm.stop().await;
}

/// Without rights a list is empty, not refused (`consul-semantics.md` §0 #13).
#[tokio::test(start_paused = true)]
async fn pods_that_may_not_be_seen_any_more_are_not_replaced() {
    let cluster = pods_of_p2().await;
    let revoked = Arc::new(AtomicBool::new(false));
    let now = revoked.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        _ if !now.load(Ordering::SeqCst) => Fate::DELIVER,
        Request::List("labels/pod/") => Fate::of(FaultOutcome::Short(0)),
        Request::Get(key) if key.starts_with("labels/pod/") => {
            Fate::of(FaultOutcome::Fail(StoreError::Forbidden { what: (*key).to_owned() }))
        }
        _ => Fate::DELIVER,
    });
    within(5 * SECOND, "looked at", || async { cluster.status(1).await.is_some() }).await;
    revoked.store(true, Ordering::SeqCst);
    cluster.put("labels/pod/n0009/other", "{}").await;
    tokio::time::sleep(5 * SECOND).await;
    cluster.create_rc(1, 3).await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await.len(), 2);
    let said = farm.report.lock().unwrap().suspicions.clone();
    assert!(said.iter().any(|why| why.contains("labels/pod/")), "{said:?}");
    revoked.store(false, Ordering::SeqCst);
    cluster.put("labels/pod/n0009/other", r#"{"a":"b"}"#).await;
    within(120 * SECOND, "goes on", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    farm.stop().await;
}

/// A write that cannot succeed, since the conflicting key is hidden.
#[tokio::test(start_paused = true)]
async fn refused_transaction_backs_off() {
    let cluster = pods_of_p2().await;
    for n in 0..2 {
        cluster.label_node(&node(n), json!({"pool": "web"})).await;
    }
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let farm = cluster.start_faulty("a", move |request| {
        count.fetch_add(1, Ordering::SeqCst);
        match request {
            Request::List("labels/pod/" | "intent/") => Fate::of(FaultOutcome::Short(0)),
            _ => Fate::DELIVER,
        }
    });
    within(5 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    tokio::time::sleep(30 * SECOND).await;
    let before = asked.load(Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    let requests = asked.load(Ordering::SeqCst) - before;
    assert!(requests < 240, "{requests} in a minute");
    farm.stop().await;
}

/// A lock-delay, as p2's farms have, keeps a lock closed after its holder died.
#[tokio::test(start_paused = true)]
async fn held_lock_is_retried_with_backoff_and_taken_when_free() {
    let cluster = Cluster::new(1).await;
    let (lock_delay, behavior) = (60 * SECOND, Behavior::Delete);
    let new = NewSession { lock_delay, behavior, ..NewSession::default() };
    let session = cluster.store.create_session(&new).await.unwrap();
    cluster.put_locked(key::rc_lock(rc_id(1)), "p2", &session).await;
    cluster.create_rc(1, 1).await;
    let (farm, counted) = cluster.start_counted("a");
    tokio::time::sleep(5 * SECOND).await;
    cluster.store.kill_session(&session);
    let before = counted.transactions();
    let took = within(70 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    let transactions = counted.transactions() - before;
    assert!(transactions < 60, "{transactions}");
    assert!(took < 63 * SECOND, "{took:?}");
    farm.stop().await;
}

/// Consul received the renewals, but the farm received no answers, and destroying the session failed, too.
#[tokio::test(start_paused = true)]
async fn unclosed_session_is_closed_before_the_next_begins() {
    let cluster = Cluster::new(1).await;
    cluster.create_rc(1, 1).await;
    let deaf = Arc::new(AtomicBool::new(false));
    let now = deaf.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        _ if !now.load(Ordering::SeqCst) => Fate::DELIVER,
        Request::BeatCheck(_) => Fate::of(FaultOutcome::LoseReply),
        Request::DestroySession(_) => Fate::of(FaultOutcome::Lose),
        _ => Fate::DELIVER,
    });
    within(3 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    let session = cluster.owner(1).await;
    deaf.store(true, Ordering::SeqCst);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!((farm.claims(), cluster.owner(1).await), (0, session.clone()));
    deaf.store(false, Ordering::SeqCst);
    within(10 * SECOND, "claimed anew", || async {
        farm.claims() == 1 && cluster.owner(1).await != session
    })
    .await;
    farm.stop().await;
}

/// With a dead watch it would act on old data, and no other farm could claim its records.
#[tokio::test(start_paused = true)]
async fn a_farm_whose_watch_dies_gives_everything_up_and_says_so() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 1).await;
    let start = tokio::time::Instant::now();
    let farm = cluster.start_faulty("a", move |request| {
        let dies = start.elapsed() > 60 * SECOND && matches!(request, Request::List("health/"));
        assert!(!dies, "a defect of the program");
        Fate::DELIVER
    });
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 1 }).await;
    let error = farm.outcome().await.unwrap_err().to_string();
    assert!(error.contains("a watch ended after a panic"), "{error}");
    assert_eq!(cluster.owner(1).await, None, "another may have it");
    let other = cluster.start("b");
    cluster.create_rc(1, 2).await;
    within(10 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    other.stop().await;
}

/// p2's users take a pod from its controller by deleting its labels; the pod is then theirs.
#[tokio::test(start_paused = true)]
async fn a_pod_taken_away_at_the_last_moment_is_not_removed() {
    let cluster = Cluster::new(2).await;
    cluster.create_rc(1, 2).await;
    let farm = cluster.start_faulty("a", |request| match request {
        Request::Txn(ops) if ops.iter().any(|op| op.verb == Verb::DeleteCas) => {
            Fate { before: SECOND, ..Fate::DELIVER }
        }
        _ => Fate::DELIVER,
    });
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(5 * SECOND).await;
    cluster.create_rc(1, 1).await;
    tokio::time::sleep(SECOND / 2).await;
    for n in 0..2 {
        cluster.delete(key::pod_labels(&node(n), &pod_id(1))).await;
    }
    tokio::time::sleep(SECOND / 10).await;
    tokio::time::sleep(10 * SECOND).await;
    for n in 0..2 {
        assert!(cluster.intent(&node(n), 1).await.is_some(), "n{n}'s pod was not ours any more");
    }
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_spelling_of_an_id_is_no_record() {
    let cluster = Cluster::new(2).await;
    let key = key::rc(rc_id(1)).as_str().to_uppercase();
    let key = key.replace("REPLICATION_CONTROLLERS", "replication_controllers");
    cluster.put(&key, cluster.record(1, 1).to_string()).await;
    let farm = cluster.start("a");
    within(10 * SECOND, "said so", || async {
        let presence = cluster.presence("a").await;
        presence.is_some_and(|presence| presence.unusable_keys == [key.clone()])
    })
    .await;
    assert_eq!(farm.claims(), 0);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_presence_deleted_by_hand_comes_back() {
    let cluster = Cluster::new(1).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "there", || async { cluster.presence("a").await.is_some() }).await;
    cluster.delete("rcfarm/farms/a").await;
    within(10 * SECOND, "there again", || async { cluster.presence("a").await.is_some() }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_labels_cannot_be_read_changes_nothing() {
    let cluster = Cluster::new(3).await;
    cluster.create_rc(1, 3).await;
    let farm = cluster.start("a");
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 3 }).await;
    cluster.put(key::rc_labels(rc_id(1)), r#"{"rcfarm/min_health":3}"#).await;
    tokio::time::sleep(SECOND).await;
    cluster.create_rc(1, 1).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await.len(), 3, "its minimum may be anything");
    let valid = rcfarm_api::rc::status::RcConditionType::Valid;
    let status = cluster.status(1).await.unwrap();
    assert_eq!(status.condition(valid).unwrap().reason, RcReason::InvalidRecord);
    farm.stop().await;
}
