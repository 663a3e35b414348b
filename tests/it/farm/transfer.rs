//! Node transfers: p2's conditions (`p2.md` §2.3, §5), and failing steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use async_trait::async_trait;
use rcfarm::placement::{
    Discovery, EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, WantedNodes,
};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_emulator::{Fate, FaultOutcome, Request as Asked};
use rcfarm_store::{Store, StoreError};
use rcfarm_testing::wait::within;
use serde_json::json;
use uuid::Uuid;

/// A scheduler that records allocations and fails on request.
#[derive(Default)]
struct AllocationLedger {
    eligible: Mutex<BTreeSet<NodeName>>,
    allocated: Mutex<BTreeMap<Uuid, Vec<NodeName>>>,
    returned: Mutex<BTreeSet<NodeName>>,
    refuse_allocation: Mutex<bool>,
    refuse_return_of: Mutex<Option<NodeName>>,
    panics: Mutex<bool>,
}

#[async_trait]
impl Scheduler for AllocationLedger {
    async fn eligible_nodes(&self, _: ScheduleRequest<'_>) -> Result<EligibleNodes, ScheduleError> {
        Ok(Arc::new(self.eligible.lock().unwrap().clone()))
    }

    async fn allocate_nodes(
        &self,
        wanted: WantedNodes<'_>,
    ) -> Result<Vec<NodeName>, ScheduleError> {
        let WantedNodes { current, count, token, .. } = wanted;
        if *self.refuse_allocation.lock().unwrap() {
            return Err(ScheduleError::Exhausted("none left".to_owned()));
        }
        let mut allocated = self.allocated.lock().unwrap();
        let nodes = allocated.entry(token).or_insert_with(|| {
            let spare = (50..60).map(node).filter(|node| !current.contains(node));
            spare.take(count).collect()
        });
        self.eligible.lock().unwrap().extend(nodes.iter().cloned());
        Ok(nodes.clone())
    }

    async fn deallocate_nodes(
        &self,
        _: ScheduleRequest<'_>,
        nodes: &[NodeName],
        _: Uuid,
    ) -> Result<(), ScheduleError> {
        let panics = *self.panics.lock().unwrap();
        assert!(!panics, "a fault of the scheduler's client");
        let refused = self.refuse_return_of.lock().unwrap().clone();
        if refused.is_some_and(|node| nodes.contains(&node)) {
            return Err(ScheduleError::Unreachable("down".to_owned()));
        }
        self.returned.lock().unwrap().extend(nodes.iter().cloned());
        let mut eligible = self.eligible.lock().unwrap();
        eligible.retain(|node| !nodes.contains(node));
        Ok(())
    }
}

struct Behind(Mutex<bool>);

#[async_trait]
impl Discovery for Behind {
    async fn synced(&self, _: &PodId, _: &BTreeSet<NodeName>) -> Result<bool, StoreError> {
        Ok(!*self.0.lock().unwrap())
    }
}

/// A dynamic controller with two healthy pods on n0 and n1.
async fn cluster() -> (Cluster, Arc<AllocationLedger>) {
    let mut cluster = Cluster::new(2).await;
    let ledger = Arc::new(AllocationLedger::default());
    *ledger.eligible.lock().unwrap() = [node(0), node(1)].into();
    cluster.scheduler = Some(ledger.clone());
    let mut record = cluster.record(1, 2);
    record["allocation_strategy"] = json!("dynamic_strategy");
    cluster.write_rc(1, &record).await;
    for n in 0..2 {
        cluster.set_health(&node(n), 1, "passing").await;
    }
    (cluster, ledger)
}

/// Makes n0 ineligible; a change of node labels makes every task reconcile.
async fn forbid_n0(cluster: &Cluster, ledger: &AllocationLedger) {
    ledger.eligible.lock().unwrap().remove(&node(0));
    cluster.label_node(&node(0), json!({"pool": "drained"})).await;
}

fn names(nodes: &[usize]) -> BTreeSet<String> {
    nodes.iter().map(|n| node(*n).to_string()).collect()
}

async fn placed(cluster: &Cluster) -> Option<RcReason> {
    Some(cluster.status(1).await?.condition(RcConditionType::Placed)?.reason)
}

async fn scheduled(cluster: &Cluster) {
    within(3 * SECOND, "scheduled", || async { cluster.nodes_of(1).await.len() == 2 }).await;
    tokio::time::sleep(3 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn when_all_pods_are_healthy_the_pod_moves_and_the_books_agree() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(5 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    assert_eq!(*ledger.returned.lock().unwrap(), [node(0)].into());
    assert!(
        cluster.store.inspect(|t| t.kv.get(key::rc_mutation_lock(rc_id(1)).as_str()).is_none())
    );
    let events: Vec<_> =
        cluster.audit().await.iter().map(|r| r.event_type.as_str().to_owned()).collect();
    let count = |kind: &str| events.iter().filter(|e| *e == kind).count();
    assert_eq!((count("NODE_TRANSFER_START"), count("NODE_TRANSFER_COMPLETION")), (1, 1));
    assert!(cluster.status(1).await.unwrap().transfer.is_none());
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_rc_never_moves() {
    let (cluster, ledger) = cluster().await;
    let record = cluster.record(1, 2);
    cluster.write_rc(1, &record).await;
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(3 * SECOND, "said so", || async {
        placed(&cluster).await == Some(RcReason::IneligibleNodes)
    })
    .await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn transfer_waits_for_unhealthy_pods_but_not_the_leaving_one() {
    let (cluster, ledger) = cluster().await;
    cluster.set_health(&node(1), 1, "critical").await;
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(3 * SECOND, "waits", || async {
        placed(&cluster).await == Some(RcReason::PodsUnhealthy)
    })
    .await;
    cluster.set_health(&node(0), 1, "critical").await;
    within(5 * SECOND, "moves", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn not_while_somebody_holds_a_lock_and_no_session_leaks() {
    for lock in [key::rc_mutation_lock(rc_id(1)), key::rc_transfer_lock(rc_id(1))] {
        let (cluster, ledger) = cluster().await;
        let farm = cluster.start("a");
        scheduled(&cluster).await;
        let session = cluster.store.create_session(&Default::default()).await.unwrap();
        cluster.put_locked(lock, "", &session).await;
        tokio::time::sleep(SECOND).await;
        forbid_n0(&cluster, &ledger).await;
        within(3 * SECOND, "waits", || async {
            placed(&cluster).await == Some(RcReason::LockHeld)
        })
        .await;
        assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
        cluster.store.destroy_session(&session).await.unwrap();
        within(25 * SECOND, "moves", || async { cluster.nodes_of(1).await == names(&[1, 50]) })
            .await;
        assert_eq!(cluster.store.inspect(|t| t.sessions.all().count()), 1, "the farm's own");
        farm.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn not_while_service_discovery_is_behind() {
    let (mut cluster, ledger) = cluster().await;
    let behind = Arc::new(Behind(Mutex::new(true)));
    cluster.discovery = behind.clone();
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(3 * SECOND, "waits", || async {
        placed(&cluster).await == Some(RcReason::DiscoveryNotSynced)
    })
    .await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    *behind.0.lock().unwrap() = false;
    within(60 * SECOND, "moves", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_allocation_leaves_membership_and_lock_as_they_were() {
    let (cluster, ledger) = cluster().await;
    *ledger.refuse_allocation.lock().unwrap() = true;
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(5 * SECOND, "undone", || async {
        placed(&cluster).await == Some(RcReason::TransferFailed)
    })
    .await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    assert!(
        cluster.store.inspect(|t| t.kv.get(key::rc_mutation_lock(rc_id(1)).as_str()).is_none())
    );
    *ledger.refuse_allocation.lock().unwrap() = false;
    within(120 * SECOND, "later it moves", || async {
        cluster.nodes_of(1).await == names(&[1, 50])
    })
    .await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_deallocation_gives_the_new_node_back() {
    let (cluster, ledger) = cluster().await;
    *ledger.refuse_return_of.lock().unwrap() = Some(node(0));
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(120 * SECOND, "undone", || async {
        placed(&cluster).await == Some(RcReason::TransferFailed)
    })
    .await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    assert!(ledger.returned.lock().unwrap().contains(&node(50)));
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transfer_survives_the_death_of_its_farm() {
    let (cluster, ledger) = cluster().await;
    *ledger.refuse_return_of.lock().unwrap() = Some(node(0));
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    within(5 * SECOND, "half done", || async {
        cluster.status(1).await.unwrap().transfer.is_some_and(|t| t.new_node.is_some())
    })
    .await;
    let id = cluster.status(1).await.unwrap().transfer.unwrap().id;
    farm.kill().await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    let next = cluster.start("b");
    within(10 * SECOND, "finished", || async { cluster.nodes_of(1).await == names(&[1, 50]) })
        .await;
    assert_eq!(ledger.allocated.lock().unwrap().keys().copied().collect::<Vec<_>>(), [id]);
    assert!(cluster.intent(&node(0), 1).await.is_none(), "{}", pod_id(1));
    next.stop().await;
}

/// Starts a transfer that stops after its second step: n50 is allocated, n0 cannot be released.
async fn half_done(cluster: &Cluster, ledger: &AllocationLedger) -> Uuid {
    *ledger.refuse_return_of.lock().unwrap() = Some(node(0));
    scheduled(cluster).await;
    forbid_n0(cluster, ledger).await;
    within(5 * SECOND, "half done", || async {
        cluster.status(1).await.unwrap().transfer.is_some_and(|t| t.new_node.is_some())
    })
    .await;
    cluster.status(1).await.unwrap().transfer.unwrap().id
}

fn mutation_lock(cluster: &Cluster) -> bool {
    let key = key::rc_mutation_lock(rc_id(1));
    cluster.store.inspect(|tables| tables.kv.get(key.as_str()).is_some())
}

#[tokio::test(start_paused = true)]
async fn transfer_is_undone_when_another_pod_fails_meanwhile() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    half_done(&cluster, &ledger).await;
    cluster.set_health(&node(1), 1, "critical").await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    within(60 * SECOND, "undone", || async {
        ledger.returned.lock().unwrap().contains(&node(50)) && !mutation_lock(&cluster)
    })
    .await;
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    assert_eq!(placed(&cluster).await, Some(RcReason::PodsUnhealthy));
    cluster.set_health(&node(1), 1, "passing").await;
    within(60 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transfer_stands_still_while_the_trees_are_not_trusted() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    half_done(&cluster, &ledger).await;
    for n in 0..2 {
        cluster.delete(key::node_labels(&node(n))).await;
    }
    tokio::time::sleep(SECOND / 10).await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(cluster.nodes_of(1).await, names(&[0, 1]));
    for n in 0..2 {
        cluster.label_node(&node(n), json!({"pool": "drained"})).await;
    }
    within(60 * SECOND, "goes on", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_goes_to_another_farm_takes_its_transfer_along() {
    let (cluster, ledger) = cluster().await;
    let labels = key::rc_labels(rc_id(1));
    cluster.put(labels.as_str(), r#"{"tier":"a"}"#).await;
    let (a, b) = (cluster.start_selecting("a", "tier=a"), cluster.start_selecting("b", "tier=b"));
    let id = half_done(&cluster, &ledger).await;
    cluster.put(labels.as_str(), r#"{"tier":"b"}"#).await;
    within(5 * SECOND, "the other's", || async { b.claims() == 1 }).await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    within(30 * SECOND, "finished", || async { cluster.nodes_of(1).await == names(&[1, 50]) })
        .await;
    assert_eq!(ledger.allocated.lock().unwrap().keys().copied().collect::<Vec<_>>(), [id]);
    assert!(!mutation_lock(&cluster));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_record_deleted_during_its_transfer_leaves_no_lock() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    half_done(&cluster, &ledger).await;
    assert!(mutation_lock(&cluster));
    cluster.delete(key::rc(rc_id(1))).await;
    within(5 * SECOND, "given up", || async { !mutation_lock(&cluster) }).await;
    assert_eq!(cluster.owner(1).await, None);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_transfer_is_not_taken_by_a_higher_count() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    half_done(&cluster, &ledger).await;
    let mut record = cluster.record(1, 3);
    record["allocation_strategy"] = json!("dynamic_strategy");
    cluster.write_rc(1, &record).await;
    tokio::time::sleep(SECOND).await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    within(30 * SECOND, "moved", || async { cluster.nodes_of(1).await == names(&[1, 50]) }).await;
    assert_eq!(*ledger.returned.lock().unwrap(), [node(0)].into(), "n50 was never given back");
    farm.stop().await;
}

/// Crash between releasing the new node and recording it.
#[tokio::test(start_paused = true)]
async fn next_owner_does_not_finish_a_transfer_being_undone() {
    let (cluster, ledger) = cluster().await;
    let seen = ledger.clone();
    let farm = cluster.start_faulty("a", move |request| match request {
        Asked::Txn(_) if seen.returned.lock().unwrap().contains(&node(50)) => {
            Fate::of(FaultOutcome::Lose)
        }
        _ => Fate::DELIVER,
    });
    half_done(&cluster, &ledger).await;
    within(120 * SECOND, "given back", || async {
        ledger.returned.lock().unwrap().contains(&node(50))
    })
    .await;
    farm.kill().await;
    *ledger.refuse_return_of.lock().unwrap() = None;
    let next = cluster.start("b");
    within(120 * SECOND, "moved once", || async { cluster.nodes_of(1).await == names(&[1, 50]) })
        .await;
    assert!(ledger.eligible.lock().unwrap().contains(&node(50)), "allocated anew");
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_keeps_failing_is_tried_ever_more_rarely() {
    let (cluster, ledger) = cluster().await;
    *ledger.refuse_allocation.lock().unwrap() = true;
    let farm = cluster.start("a");
    scheduled(&cluster).await;
    forbid_n0(&cluster, &ledger).await;
    tokio::time::sleep(3600 * SECOND).await;
    let audit = cluster.audit().await;
    let begun = audit.iter().filter(|r| r.event_type.as_str() == "NODE_TRANSFER_START").count();
    assert!((3..=15).contains(&begun), "{begun} times in an hour");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_does_not_forget_the_transfer() {
    let (cluster, ledger) = cluster().await;
    let farm = cluster.start("a");
    let id = half_done(&cluster, &ledger).await;
    *ledger.panics.lock().unwrap() = true;
    within(60 * SECOND, "quarantined", || async {
        cluster.status(1).await.unwrap().quarantined_until.is_some()
    })
    .await;
    let status = cluster.status(1).await.unwrap();
    assert_eq!(status.transfer.map(|t| t.id), Some(id));
    assert_eq!(status.replicas.current, 2);
    *ledger.panics.lock().unwrap() = false;
    *ledger.refuse_return_of.lock().unwrap() = None;
    within(60 * SECOND, "finished", || async { cluster.nodes_of(1).await == names(&[1, 50]) })
        .await;
    farm.stop().await;
}
