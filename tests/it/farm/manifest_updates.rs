//! A changed manifest reaches the pods of an RC in order, so that the minimum health is kept; without a minimum at once,
//! as in p2.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::{Cluster, SECOND, node, pod_id, rc_id};
use rcfarm_api::rc::status::{RcConditionType, RcReason};
use rcfarm_api::rc::update::{UpdateChoice, UpdateOrder};
use rcfarm_api::{Stored, key};
use rcfarm_emulator::{Emulator, Fate, Request};
use rcfarm_store::{NewSession, Op, Query, Reader, Store, TxnOutcome};
use rcfarm_testing::wait::within;
use serde_json::json;
use tokio::task::JoinHandle;

const RC: u128 = 1;
const BAD: &str = "id: pod-1\nbad: true\n";
/// Its process ends three seconds after each start, and is started again three seconds later.
const CRASHES: &str = "id: pod-1\ncrashes: true\n";

fn manifest(version: u32) -> String {
    format!("id: pod-1\nversion: {version}\n")
}

/// Nodes that see a new manifest late: until then they report the old one's health. They report reality with the health
/// of a manifest that has started.
struct Nodes {
    tasks: Vec<JoinHandle<()>>,
    /// Pods that do not serve now, and the most that ever did not.
    down: Arc<AtomicUsize>,
    most_down: Arc<AtomicUsize>,
}

impl Nodes {
    fn start(cluster: &Cluster, count: usize) -> Nodes {
        let (down, most_down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let run = |n| {
            let (down, most) = (down.clone(), most_down.clone());
            tokio::spawn(run_node(cluster.store.clone(), n, down, most))
        };
        let tasks = (0..count).map(run).collect();
        Nodes { tasks, down, most_down }
    }

    fn forget(&self) {
        self.most_down.store(self.down.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn most_down(&self) -> usize {
        self.most_down.load(Ordering::SeqCst)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn run_node(store: Emulator, n: usize, down: Arc<AtomicUsize>, most: Arc<AtomicUsize>) {
    let (intent, reality) =
        (key::intent(&node(n), &pod_id(RC)), key::reality(&node(n), &pod_id(RC)));
    let (mut runs, is_down) = (None, AtomicBool::new(false));
    let mut has_crashed = false;
    let report = async |value: &[u8], status: &str| {
        let health =
            json!({"Id": pod_id(RC), "Node": node(n), "Service": pod_id(RC), "Status": status});
        let set = |key, value| Op::Set { key, value, flags: 0 };
        let ops = [
            set(reality.clone(), value.to_vec().into()),
            set(key::health(&pod_id(RC), &node(n)), health.to_string().into()),
        ];
        let done = store.txn(&ops).await.unwrap();
        assert!(matches!(done, TxnOutcome::Committed { .. }));
    };
    loop {
        let seen = store.get(&intent, Query::CONSISTENT).await.unwrap().value;
        let Some(seen) = seen.filter(|seen| runs.as_ref() != Some(&seen.value)) else {
            if runs.as_ref().is_some_and(|runs| *runs == CRASHES) {
                tokio::time::sleep(3 * SECOND).await;
                has_crashed = !has_crashed;
                report(CRASHES.as_bytes(), if has_crashed { "critical" } else { "passing" }).await;
            }
            tokio::time::sleep(SECOND / 10).await;
            continue;
        };
        // Its report of the old manifest stands meanwhile, and it writes it once more.
        tokio::time::sleep(SECOND).await;
        if let Some(old) = &runs {
            report(old, "passing").await;
        }
        if !is_down.swap(true, Ordering::SeqCst) {
            most.fetch_max(down.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        report(runs.as_deref().unwrap_or_default(), "unknown").await;
        tokio::time::sleep(SECOND).await;
        let is_good = seen.value != BAD;
        if is_good && is_down.swap(false, Ordering::SeqCst) {
            down.fetch_sub(1, Ordering::SeqCst);
        }
        report(&seen.value, if is_good { "passing" } else { "critical" }).await;
        runs = Some(seen.value);
    }
}

/// Four healthy pods of version 1, whose RC has these labels.
async fn running(labels: serde_json::Value) -> (Cluster, Nodes) {
    let cluster = Cluster::new(4).await;
    // Agents report reality and health together, also of the manifest that they still stop. p2's preparers do not.
    for n in 0..4 {
        let session = cluster.store.create_session(&NewSession::default()).await.unwrap();
        let record = json!({"state": "ready", "session": session}).to_string();
        cluster.put_locked(key::node(&node(n)), &record, &session).await;
    }
    let nodes = Nodes::start(&cluster, 4);
    cluster.put(key::rc_labels(rc_id(RC)), labels.to_string()).await;
    write(&cluster, &manifest(1)).await;
    (cluster, nodes)
}

fn record(cluster: &Cluster, manifest: &str) -> serde_json::Value {
    let mut record = cluster.record(RC, 4);
    record["manifest"] = json!(manifest);
    record
}

async fn write(cluster: &Cluster, manifest: &str) {
    cluster.write_rc(RC, &record(cluster, manifest)).await;
}

/// How many intents have this manifest.
async fn having(cluster: &Cluster, manifest: &str) -> usize {
    let mut having = 0;
    for n in 0..4 {
        having += usize::from(cluster.intent(&node(n), RC).await.as_deref() == Some(manifest));
    }
    having
}

async fn settled(cluster: &Cluster, manifest: &str) {
    within(120 * SECOND, "all have it and are healthy", || async {
        let status = cluster.status(RC).await;
        let is_settled = status.is_some_and(|s| s.is_settled() && s.replicas.healthy == 4);
        is_settled && having(cluster, manifest).await == 4
    })
    .await;
}

/// Waits until this many pods were down at once, and then until all are healthy.
async fn settled_after(cluster: &Cluster, nodes: &Nodes, manifest: &str, down: usize) {
    within(30 * SECOND, "down", || async { nodes.most_down() >= down }).await;
    settled(cluster, manifest).await;
    assert_eq!(nodes.most_down(), down);
}

async fn updated(cluster: &Cluster) -> (bool, RcReason, String) {
    let status = cluster.status(RC).await.unwrap();
    let updated = status.condition(RcConditionType::Updated).unwrap();
    (updated.status, updated.reason, updated.message.clone())
}

#[tokio::test(start_paused = true)]
async fn changed_record_keeps_the_minimum_health() {
    let (cluster, nodes) = running(json!({"rcfarm/min_health": "3"})).await;
    let farm = cluster.start("a");
    settled(&cluster, &manifest(1)).await;
    for version in 2..5 {
        nodes.forget();
        write(&cluster, &manifest(version)).await;
        settled(&cluster, &manifest(version)).await;
        assert_eq!(nodes.most_down(), 1);
    }
    // The next version comes in the middle of an update; another farm takes over in the middle of that.
    nodes.forget();
    write(&cluster, &manifest(5)).await;
    within(30 * SECOND, "two", || async { having(&cluster, &manifest(5)).await == 2 }).await;
    write(&cluster, &manifest(6)).await;
    within(60 * SECOND, "two", || async { having(&cluster, &manifest(6)).await == 2 }).await;
    farm.kill().await;
    let farm = cluster.start("b");
    settled(&cluster, &manifest(6)).await;
    assert_eq!(nodes.most_down(), 1);
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bad_manifest_takes_down_what_the_minimum_spares() {
    let (cluster, nodes) = running(json!({"rcfarm/min_health": "3"})).await;
    let farm = cluster.start("a");
    settled(&cluster, &manifest(1)).await;
    nodes.forget();
    write(&cluster, BAD).await;
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!((having(&cluster, BAD).await, nodes.most_down()), (1, 1));
    let (is_updated, reason, message) = updated(&cluster).await;
    assert_eq!((is_updated, reason), (false, RcReason::UpdateUnderWay));
    assert!(message.ends_with("not yet healthy: n0000"), "{message}");
    write(&cluster, &manifest(2)).await;
    settled(&cluster, &manifest(2)).await;
    assert_eq!(nodes.most_down(), 1);
    farm.stop().await;
}

/// Each time that its process is started, the pod passes for a moment.
#[tokio::test(start_paused = true)]
async fn crashing_program_takes_down_what_the_minimum_spares() {
    let (cluster, _nodes) = running(json!({"rcfarm/min_health": "3"})).await;
    let farm = cluster.start("a");
    settled(&cluster, &manifest(1)).await;
    write(&cluster, CRASHES).await;
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!(having(&cluster, CRASHES).await, 1);
    assert_eq!(updated(&cluster).await.1, RcReason::UpdateUnderWay);
    write(&cluster, &manifest(2)).await;
    settled(&cluster, &manifest(2)).await;
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn changed_record_without_a_minimum_reaches_all_pods_at_once() {
    let (cluster, nodes) = running(json!({})).await;
    let farm = cluster.start("a");
    settled(&cluster, &manifest(1)).await;
    nodes.forget();
    write(&cluster, &manifest(2)).await;
    within(SECOND, "all", || async { having(&cluster, &manifest(2)).await == 4 }).await;
    settled_after(&cluster, &nodes, &manifest(2), 4).await;
    farm.stop().await;
}

/// The owner's watch of the labels is late: the plan must not go by the labels of before.
#[tokio::test(start_paused = true)]
async fn order_written_with_the_manifest_is_kept_although_the_labels_are_seen_late() {
    for (labels, order, most_down) in [
        (json!({}), UpdateOrder::InOrder, 1),
        (json!({"rcfarm/min_health": "3"}), UpdateOrder::AtOnce, 4),
    ] {
        let (cluster, nodes) = running(labels.clone()).await;
        let farm = cluster.start_faulty("a", |request: &Request<'_>| match request {
            Request::List("labels/replication_controller/") => {
                Fate { after: 5 * SECOND, ..Fate::DELIVER }
            }
            _ => Fate::DELIVER,
        });
        settled(&cluster, &manifest(1)).await;
        tokio::time::sleep(30 * SECOND).await;
        nodes.forget();
        let choice = UpdateChoice::new(order, &manifest(2)).to_string();
        let mut labels = labels;
        labels[key::UPDATE_LABEL] = json!(choice);
        let value = rcfarm_api::rc::spec::RcRecord::decode(
            record(&cluster, &manifest(2)).to_string().as_bytes(),
        );
        let ops = [
            Op::Set { key: key::rc(rc_id(RC)), value: value.unwrap().encode(), flags: 0 },
            Op::Set { key: key::rc_labels(rc_id(RC)), value: labels.to_string().into(), flags: 0 },
        ];
        assert!(matches!(cluster.store.txn(&ops).await, Ok(TxnOutcome::Committed { .. })));
        settled_after(&cluster, &nodes, &manifest(2), most_down).await;
        // The choice was for that manifest: the next one goes by the minimum.
        nodes.forget();
        write(&cluster, &manifest(3)).await;
        let most_down = if most_down == 4 { 1 } else { 4 };
        settled_after(&cluster, &nodes, &manifest(3), most_down).await;
        farm.stop().await;
    }
}
