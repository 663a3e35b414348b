//! Reports that somebody deletes, and pods that have none, in virtual time and without processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_emulator::{Fate, Request};
use rcfarm_store::{Key, Store};
use rcfarm_testing::fake_driver::FakeDriver;
use rcfarm_testing::wait::within;

use crate::harness::{Host, SECOND, id};

/// Longest time until a deleted report is written again, unless it is noticed at once.
const RESYNC: Duration = Duration::from_secs(400);

/// What the agent asks of Consul about the realities.
#[derive(Default)]
struct Realities {
    listed: AtomicUsize,
    written: AtomicUsize,
}

struct Stage {
    host: Host,
    requests: Arc<Realities>,
}

impl Stage {
    /// A node with these pods, all running.
    async fn new(pods: &[&str]) -> Stage {
        let mut host = Host::new();
        let requests = Arc::new(Realities::default());
        let seen = requests.clone();
        let store = host.store.with_faults(Arc::new(move |request: &Request<'_>| {
            match request {
                Request::Keys("reality/n1/") => _ = seen.listed.fetch_add(1, Ordering::SeqCst),
                Request::Txn(ops) => {
                    let is_write = |op: &&rcfarm_emulator::KvOp| {
                        op.verb.writes() && op.key.starts_with("reality/")
                    };
                    _ = seen
                        .written
                        .fetch_add(ops.iter().filter(is_write).count(), Ordering::SeqCst);
                }
                _ => {}
            }
            Fate::DELIVER
        }));
        host.start_with(store, Arc::new(FakeDriver));
        for pod in pods {
            host.intend_script(pod, "exec sleep 600", "").await;
        }
        for pod in pods {
            host.until(pod, |status| status.phase == NodePodPhase::Running).await;
        }
        Stage { host, requests }
    }

    fn keys(&self, pod: &str) -> [Key; 3] {
        let (node, pod) = (self.host.node(), id(pod));
        [key::reality(&node, &pod), key::health(&pod, &node), key::pod_status(&pod, &node)]
    }

    async fn is_there(&self, key: &Key) -> bool {
        self.host.entry(key).await.is_some()
    }

    async fn is_back(&self, key: &Key, limit: Duration) {
        within(limit, key.as_str(), || self.is_there(key)).await;
    }

    fn written(&self) -> usize {
        self.requests.written.load(Ordering::SeqCst)
    }

    fn listed(&self) -> usize {
        self.requests.listed.load(Ordering::SeqCst)
    }

    async fn end(mut self) {
        self.host.stop().await.unwrap();
    }
}

/// A report without its times of day. Their length differs, too: a fraction ends with its last digit that is not 0.
fn without_times(report: &str) -> String {
    let is_time = |text: &&str| text.ends_with('Z') && text.as_bytes().get(10) == Some(&b'T');
    report.split('"').filter(|text| !is_time(text)).collect::<Vec<_>>().join("\"")
}

#[tokio::test(start_paused = true)]
async fn deleted_realities_are_written_again_at_once() {
    let stage = Stage::new(&["p1", "p2"]).await;
    let values = |prefix| stage.host.list(prefix);
    let prefix = key::node_realities(&stage.host.node());
    let before: Vec<_> = values(&prefix).await.into_iter().map(|entry| entry.value).collect();
    assert_eq!(before.len(), 2);
    // As p2-wipe-reality does.
    stage.host.store.delete_tree(&prefix).await.unwrap();
    for pod in ["p1", "p2"] {
        stage.is_back(&stage.keys(pod)[0], 5 * SECOND).await;
    }
    let after: Vec<_> = values(&prefix).await.into_iter().map(|entry| entry.value).collect();
    assert_eq!(after, before);
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_deleted_part_of_a_report_is_written_again() {
    let stage = Stage::new(&["p1", "p2"]).await;
    for key in stage.keys("p1") {
        let before = without_times(&stage.host.get(&key).await.unwrap());
        stage.host.delete(&key).await;
        stage.is_back(&key, RESYNC).await;
        assert_eq!(without_times(&stage.host.get(&key).await.unwrap()), before, "{key}");
    }
    // What somebody wrote over it counts as deleted.
    let reality = &stage.keys("p2")[0];
    let before = stage.host.get(reality).await;
    stage.host.put(reality, "id: other\n").await;
    within(RESYNC, "the reality", || async { stage.host.get(reality).await == before }).await;
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn reports_that_are_there_are_not_written_again() {
    let stage = Stage::new(&["p1", "p2"]).await;
    stage.host.delete(&stage.keys("p1")[0]).await;
    stage.is_back(&stage.keys("p1")[0], 5 * SECOND).await;
    tokio::time::sleep(10 * SECOND).await;
    let before = stage.written();
    tokio::time::sleep(3_600 * SECOND).await;
    assert_eq!(stage.written(), before);
    // A new pod changes the list of realities. Its own report is the only one that is written.
    stage.host.intend_script("p3", "exec sleep 600", "").await;
    stage.host.until("p3", |status| status.phase == NodePodPhase::Running).await;
    tokio::time::sleep(600 * SECOND).await;
    let found = stage.written() - before;
    assert!((1..=2).contains(&found), "{found} writes of realities");
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_without_pods_does_not_watch_its_realities() {
    let stage = Stage::new(&[]).await;
    tokio::time::sleep(10 * SECOND).await;
    let before = stage.listed();
    for n in 0..100 {
        stage
            .host
            .put(key::reality(&"n2".parse().unwrap(), &id(&format!("p{n}"))), "id: p\n")
            .await;
        stage.host.store.wake_all();
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(stage.listed(), before, "100 s are less than a resync");
    stage.end().await;
}

/// Without the status there is no proof that Consul has had the intent: the pod goes on, and no report names it.
#[tokio::test(start_paused = true)]
async fn wiped_reports_are_no_proof_that_intents_were_deleted() {
    let stage = Stage::new(&["p1"]).await;
    let [reality, _, status] = stage.keys("p1");
    stage.host.delete(&reality).await;
    stage.host.delete(&status).await;
    stage.host.unintend("p1").await;
    let lost = stage.host.until("p1", |status| !status.notes.is_empty()).await;
    assert_eq!(lost.phase, NodePodPhase::Running, "{lost:?}");
    stage.is_back(&reality, 5 * SECOND).await;
    tokio::time::sleep(RESYNC).await;
    let lost = stage.host.pod_status("p1").await.unwrap();
    assert_eq!(lost.intent_index, Some(rcfarm_api::node::status::IntentIndex::NONE));
    stage.end().await;
}

/// p2 knows some pods by a UUID. The agent passes over their intents, also those that an older agent has reported.
#[tokio::test(start_paused = true)]
async fn pods_that_p2_knows_by_a_uuid_are_passed_over() {
    const POD: &str = "6f9b4f4e-52a6-4f3c-9d57-0c3e8a1b2c3d";
    let stage = Stage::new(&["web"]).await;
    stage.host.intend(POD, &format!("{{\"pod_key\":\"{POD}\"}}")).await;
    // A UUID is a pod id like any other where the value is a manifest.
    let other = POD.replace('6', "7");
    stage.host.intend_script(&other, "exec sleep 600", "").await;
    stage.host.until(&other, |status| status.phase == NodePodPhase::Running).await;
    for key in stage.keys(POD) {
        assert!(!stage.is_there(&key).await, "{key}");
    }
    stage.end().await;
}
