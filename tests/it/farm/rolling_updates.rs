//! p2's rolling update (`p2.md` §2.5) between two controllers of the farm: the same writes in the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Cluster, SECOND, pod_id, rc_id};
use rcfarm_api::Stored;
use rcfarm_api::audit::{Actual, Logged, compare, fold};
use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::rc::status::RcReason;
use rcfarm_emulator::{Emulator, Fate, KvOp, Request};
use rcfarm_store::{DeleteMode, NewSession, Op, PutMode, Query, Reader, Store, TxnOutcome};
use rcfarm_testing::wait::within;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const OLD: u128 = 1;
const NEW: u128 = 2;
/// How long a node takes to start another manifest.
const START: Duration = Duration::from_millis(1500);

/// A record of either controller: both have the pod id of the old one.
fn record(cluster: &Cluster, n: u128, replicas: i64) -> Value {
    let mut record = cluster.record(n, replicas);
    record["manifest"] = format!("id: {}\nconfig:\n  version: {n}\n", pod_id(OLD)).into();
    record
}

/// Nodes as p2's preparer keeps them: another manifest is not healthy until it was started.
struct Preparers(JoinHandle<()>);

impl Preparers {
    fn start(store: Emulator) -> Preparers {
        Preparers(tokio::spawn(async move {
            loop {
                let intents = store.list(&key::intents(), Query::CONSISTENT).await.unwrap().value;
                for entry in &intents {
                    let (node, pod) = key::node_and_pod(&key::intents(), &entry.key).unwrap();
                    let real = key::reality(&node, &pod);
                    let seen = store.get(&real, Query::CONSISTENT).await.unwrap().value;
                    if seen.is_none_or(|seen| seen.value != entry.value) {
                        let health = key::health(&pod, &node);
                        store.delete(&health, DeleteMode::Always).await.unwrap();
                        tokio::time::sleep(START).await;
                        let value =
                            json!({"Id": pod, "Node": node, "Service": pod, "Status": "passing"});
                        let value = value.to_string().into();
                        store.put(&real, entry.value.clone(), 0, PutMode::Set).await.unwrap();
                        store.put(&health, value, 0, PutMode::Set).await.unwrap();
                    }
                }
                tokio::time::sleep(SECOND / 10).await;
            }
        }))
    }
}

impl Drop for Preparers {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What `countHealthy` of p2 reads of a controller.
struct Count {
    desired: i64,
    current: i64,
    healthy: i64,
}

type Edit<'e> = (u128, &'e dyn Fn(&mut Value));

/// The update from [`OLD`] to [`NEW`].
struct Update<'c> {
    cluster: &'c Cluster,
    target: i64,
    minimum: i64,
}

impl Update<'_> {
    async fn places(&self, n: u128) -> BTreeSet<PodRef> {
        let nodes = self.cluster.nodes_of(n).await;
        nodes.iter().map(|n| PodRef { node: n.parse().unwrap(), pod: pod_id(OLD) }).collect()
    }

    async fn healthy_at(&self, place: &PodRef) -> bool {
        let health = self.cluster.get(key::health(&place.pod, &place.node)).await;
        health.is_some_and(|health| health.contains("passing"))
    }

    async fn count(&self, n: u128) -> Count {
        let record = self.cluster.value(key::rc(rc_id(n))).await;
        let mut healthy = 0;
        let places = self.places(n).await;
        for place in &places {
            let real = self.cluster.get(key::reality(&place.node, &place.pod)).await;
            let runs = real.as_deref() == record["manifest"].as_str();
            healthy += i64::from(runs && self.healthy_at(place).await);
        }
        let desired = record["replicas_desired"].as_i64().unwrap();
        Count { desired, current: places.len().try_into().unwrap(), healthy }
    }

    /// Edits of both records in one transaction, guarded by their indexes.
    async fn edit(&self, edits: &[Edit<'_>]) {
        let mut ops = Vec::new();
        for (n, edit) in edits {
            let entry = self.cluster.entry(key::rc(rc_id(*n))).await.unwrap();
            let mut record: Value = serde_json::from_slice(&entry.value).unwrap();
            edit(&mut record);
            let (key, value) = (key::rc(rc_id(*n)), record.to_string().into());
            ops.push(Op::Cas { key, value, flags: 0, index: entry.modify_index });
        }
        let done = self.cluster.store.txn(&ops).await.unwrap();
        assert!(matches!(done, TxnOutcome::Committed { .. }), "{done:?}");
    }

    /// `rollAlgorithm` of p2: how many to remove and to add.
    fn step(&self, old: &Count, new: &Count) -> (i64, i64) {
        let old_healthy = old.healthy.min(old.desired);
        let increase = (self.target - (old.desired + new.desired)).max(0);
        let headroom = old_healthy + new.healthy - self.minimum + increase;
        let remaining = self.target - new.desired;
        if remaining <= 0 {
            return (0, 0);
        }
        if new.healthy >= self.minimum {
            return ((remaining - increase).max(0), remaining);
        }
        let add = remaining.min(headroom.max(0));
        ((add - increase).max(0), add)
    }

    /// Runs to the end; returns the smallest number of healthy pods that was seen.
    async fn run(&self) -> i64 {
        let session = self.cluster.store.create_session(&NewSession::default()).await.unwrap();
        for n in [OLD, NEW] {
            self.cluster.put_locked(key::rc_mutation_lock(rc_id(n)), "", &session).await;
        }
        self.edit(&[
            (OLD, &|r| r["disabled"] = true.into()),
            (NEW, &|r| r["disabled"] = false.into()),
        ])
        .await;
        let mut least = i64::MAX;
        for _ in 0..600 {
            let (old, new) = (self.count(OLD).await, self.count(NEW).await);
            let mut healthy = 0;
            for place in self.places(OLD).await.union(&self.places(NEW).await) {
                healthy += i64::from(self.healthy_at(place).await);
            }
            least = least.min(healthy);
            if new.desired >= self.target {
                if new.current >= self.target && old.current == 0 {
                    assert_eq!(old.desired, 0);
                    self.cluster.delete(key::rc(rc_id(OLD))).await;
                    self.cluster.store.destroy_session(&session).await.unwrap();
                    return least;
                }
            } else {
                let (remove, add) = self.step(&old, &new);
                if (remove, add) != (0, 0) {
                    let count = |record: &mut Value, by: i64| {
                        let count = record["replicas_desired"].as_i64().unwrap();
                        record["replicas_desired"] = (count + by).into();
                    };
                    self.edit(&[(OLD, &|r| count(r, -remove)), (NEW, &|r| count(r, add))]).await;
                }
            }
            tokio::time::sleep(SECOND / 5).await;
        }
        let (old, new) = (self.count(OLD).await, self.count(NEW).await);
        panic!(
            "no end: {} of {} old pods, {} of {} new ones",
            old.current, old.desired, new.current, new.desired
        );
    }
}

/// Updates three pods on so many nodes, owned by one farm or by two; returns the nodes afterwards.
async fn rolls(nodes: usize, farms: &[(&str, &str)]) -> BTreeSet<String> {
    let cluster = Cluster::new(nodes).await;
    let _nodes = Preparers::start(cluster.store.clone());
    for (n, replicas) in [(OLD, 3), (NEW, 0)] {
        cluster.put(key::rc_labels(rc_id(n)), json!({"n": n.to_string()}).to_string()).await;
        cluster.write_rc(n, &record(&cluster, n, replicas)).await;
    }
    let _farms: Vec<_> =
        farms.iter().map(|(name, selector)| cluster.start_selecting(name, selector)).collect();
    let update = Update { cluster: &cluster, target: 3, minimum: 2 };
    within(60 * SECOND, "healthy", || async { update.count(OLD).await.healthy == 3 }).await;
    let before = cluster.nodes_of(OLD).await;
    let least = update.run().await;
    assert!(least >= 2, "{least} healthy pods, the minimum is 2");
    let after = cluster.nodes_of(NEW).await;
    assert_eq!(after, before, "the new controller takes over the old one's places");
    assert_eq!(cluster.list(&key::intents()).await.len(), 3);
    // The log explains the pods of both.
    let log = cluster.list(&key::audit_logs()).await;
    let logged = |entry: &rcfarm_store::Entry| Logged {
        id: entry.key.rsplit('/').next().unwrap().parse().unwrap(),
        index: entry.create_index,
        record: rcfarm_api::audit::AuditRecord::decode(&entry.value).unwrap(),
    };
    let folded = fold(&log.iter().map(logged).collect::<Vec<_>>());
    assert_eq!(folded.gaps, [], "{folded:?}");
    let nodes = after.iter().map(|node| node.parse().unwrap()).collect();
    let actual = BTreeMap::from([
        (rc_id(OLD), Actual { nodes: BTreeSet::new(), desired: Some(0) }),
        (rc_id(NEW), Actual { nodes, desired: Some(3) }),
    ]);
    assert_eq!(compare(&folded, &actual), []);
    after
}

#[tokio::test(start_paused = true)]
async fn p2_rolling_update_ends_on_as_many_nodes_as_pods() {
    rolls(3, &[("f", "")]).await;
}

#[tokio::test(start_paused = true)]
async fn p2_rolling_update_ends_where_other_nodes_are_free() {
    rolls(6, &[("f", "")]).await;
}

#[tokio::test(start_paused = true)]
async fn p2_rolling_update_ends_between_two_farms() {
    rolls(6, &[("f", "n=1"), ("g", "n=2")]).await;
}

/// Old and new controller with so many pods wanted, the old one with three pods on n0000 to n0002.
async fn beside(disabled: bool, old: i64) -> Cluster {
    let cluster = Cluster::new(3).await;
    cluster.write_rc(OLD, &record(&cluster, OLD, 3)).await;
    let farm = cluster.start("f");
    within(60 * SECOND, "placed", || async { cluster.nodes_of(OLD).await.len() == 3 }).await;
    farm.stop().await;
    let mut left = record(&cluster, OLD, old);
    left["disabled"] = disabled.into();
    cluster.write_rc(OLD, &left).await;
    cluster.write_rc(NEW, &record(&cluster, NEW, 3)).await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn only_the_surplus_of_a_disabled_controller_is_taken() {
    let cluster = beside(true, 1).await;
    let _farm = cluster.start("f");
    within(60 * SECOND, "two taken", || async { cluster.nodes_of(NEW).await.len() == 2 }).await;
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!((cluster.nodes_of(NEW).await.len(), cluster.nodes_of(OLD).await.len()), (2, 1));
    let status = cluster.status(NEW).await.unwrap();
    assert!(status.conditions.iter().any(|c| c.reason == RcReason::PlaceTaken), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn places_of_a_disabled_controller_without_surplus_stay() {
    let cluster = beside(true, 3).await;
    let _farm = cluster.start("f");
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!((cluster.nodes_of(NEW).await.len(), cluster.nodes_of(OLD).await.len()), (0, 3));
    // Its owner learns of a lower count, although no event concerns it.
    let mut lower = record(&cluster, OLD, 0);
    lower["disabled"] = true.into();
    cluster.write_rc(OLD, &lower).await;
    within(60 * SECOND, "taken", || async { cluster.nodes_of(NEW).await.len() == 3 }).await;
    assert_eq!(cluster.nodes_of(OLD).await.len(), 0);
}

/// The transaction is guarded by the old record: enabled in the same moment, it keeps its pods.
#[tokio::test(start_paused = true)]
async fn take_over_is_refused_once_the_old_record_changed() {
    let cluster = beside(true, 2).await;
    let sent = Arc::new(AtomicBool::new(false));
    let seen = sent.clone();
    let _farm = cluster.start_faulty("f", move |request| {
        let takes = |op: &KvOp| op.verb.writes() && op.key.starts_with("labels/pod/");
        match request {
            Request::Txn(ops) if ops.iter().any(takes) && !seen.swap(true, Ordering::SeqCst) => {
                Fate { before: SECOND, ..Fate::DELIVER }
            }
            _ => Fate::DELIVER,
        }
    });
    within(60 * SECOND, "sent", || async { sent.load(Ordering::SeqCst) }).await;
    cluster.write_rc(OLD, &record(&cluster, OLD, 3)).await;
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!((cluster.nodes_of(NEW).await.len(), cluster.nodes_of(OLD).await.len()), (0, 3));
}
