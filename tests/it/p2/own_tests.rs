//! The 27 tests of p2's `pkg/rc/replication_controller_test.go`, from outside: p2's programs make the changes, a farm
//! acts, and what is asserted is read from Consul. An alert of p2 is a condition of the status here.
//!
//! Two of them assert what `docs/reference/differences-p2.md` names as different: `unschedule_partial`,
//! `node_transfer_alerts_if_deallocate_fails`.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use rcfarm::cluster::ClusterView;
use rcfarm::daemon::selector_scheduler;
use rcfarm::farm::Farm;
use rcfarm::placement::{
    Discovery, EligibleNodes, ScheduleError, ScheduleRequest, Scheduler, SelectorScheduler,
    WantedNodes,
};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus};
use rcfarm_consul::Consul;
use rcfarm_store::{NewSession, PutMode, Store, StoreError};
use rcfarm_testing::wait::until;
use serde_json::{Value, json};
use uuid::Uuid;

use super::P2;
use crate::harness::{RunningFarm, run};

/// The manifest of p2's tests, with a launchable: p2-rctl refuses one without.
const MANIFEST: &str = "id: testPod\nlaunchables:\n  web:\n    launchable_type: hoist\n    \
                        location: file:///web_1.tar.gz\n";
const NEW_NODE: &str = "new_node";
/// The strategy of p2's tests. p2 takes what it does not know for static.
const SOME: &str = "some_strategy";
const DYNAMIC: &str = "dynamic_strategy";

/// What the cluster around the farm does.
#[derive(Debug, Clone, Copy, Default)]
struct Around {
    allocation_fails: bool,
    deallocation_fails: bool,
    discovery_is_behind: bool,
}

/// `testScheduler` of p2: by labels; an allocation labels `new_node`.
struct TestScheduler {
    by_labels: SelectorScheduler,
    store: Consul,
    around: Around,
}

#[async_trait]
impl Scheduler for TestScheduler {
    async fn eligible_nodes(
        &self,
        request: ScheduleRequest<'_>,
    ) -> Result<EligibleNodes, ScheduleError> {
        self.by_labels.eligible_nodes(request).await
    }

    async fn allocate_nodes(&self, _: WantedNodes<'_>) -> Result<Vec<NodeName>, ScheduleError> {
        if self.around.allocation_fails {
            return Err(ScheduleError::Unreachable("intentional error".to_owned()));
        }
        let node: NodeName = NEW_NODE.parse().unwrap();
        let labels = json!({"nodeQuality": "good"}).to_string().into();
        self.store.put(&key::node_labels(&node), labels, 0, PutMode::Set).await.unwrap();
        Ok(vec![node])
    }

    async fn deallocate_nodes(
        &self,
        _: ScheduleRequest<'_>,
        _: &[NodeName],
        _: Uuid,
    ) -> Result<(), ScheduleError> {
        match self.around.deallocation_fails {
            true => Err(ScheduleError::Unreachable("intentional error".to_owned())),
            false => Ok(()),
        }
    }

    fn goes_by_labels(&self) -> bool {
        true
    }
}

#[async_trait]
impl Discovery for Around {
    async fn synced(&self, _: &PodId, _: &BTreeSet<NodeName>) -> Result<bool, StoreError> {
        Ok(!self.discovery_is_behind)
    }
}

struct Stage {
    p2: P2,
    id: String,
    farm: RunningFarm,
}

impl Stage {
    /// `setup` of p2: a controller of `testPod` without replicas, on nodes with `nodeQuality=good`.
    async fn new(test: &str, strategy: &str, around: Around) -> Stage {
        let p2 = P2::new(test).await;
        let more = [
            &["-n", "nodeQuality=good", "-a", "some_az", "-c", "some_cn"][..],
            &["-p", "podTest=successful", "-s", strategy],
        ];
        let id = p2.create(MANIFEST, &more.concat()).await;
        let store: Arc<dyn Store> = Arc::new(p2.cluster.server.client());
        let (settings, env) = p2.cluster.settings("f", "", store);
        let client = p2.cluster.server.client();
        let scheduler = Box::new(move |view: &Arc<ClusterView>| -> Arc<dyn Scheduler> {
            let by_labels = selector_scheduler(view);
            Arc::new(TestScheduler { by_labels, store: client, around })
        });
        let farm = run(Farm::of_all_kinds(settings, env, scheduler, Arc::new(around)));
        Stage { p2, id, farm }
    }

    async fn simple(test: &str) -> Stage {
        Stage::new(test, SOME, Around::default()).await
    }

    /// Labels a node by p2-label.
    async fn label(&self, node: &str, quality: &str) {
        let add = format!("nodeQuality={quality}");
        let arguments = ["apply", "-y", "--labelType", "node", "--id", node, "--add", &add];
        self.p2.run("p2-label", &arguments).await;
    }

    async fn label_all(&self, names: impl IntoIterator<Item = usize>) {
        for n in names {
            self.label(&format!("node{n}"), "good").await;
        }
    }

    async fn set_replicas(&self, count: usize) {
        let id = self.id.clone();
        self.p2.rctl(&["set-replicas", "-y", &id, &count.to_string()]).await;
    }

    async fn nodes(&self) -> Vec<String> {
        self.p2.nodes_of(&self.id).await
    }

    async fn until_on(&self, nodes: &[&str]) {
        until("the pods' nodes", async || self.nodes().await == nodes).await;
        let intents: Vec<String> = nodes.iter().map(|n| format!("intent/{n}/testPod")).collect();
        assert_eq!(self.p2.cluster.keys(&key::intents()).await, intents);
    }

    async fn until_pods(&self, count: usize) {
        until("the pods", async || self.nodes().await.len() == count).await;
    }

    async fn status(&self) -> Option<RcStatus> {
        self.p2.cluster.read(key::rc_status(self.id.parse().unwrap())).await
    }

    /// Waits until the farm says this of the record as it is now.
    async fn until_said(&self, kind: RcConditionType, reason: RcReason) {
        until(&format!("{kind:?} {reason}"), async || {
            let record = self.p2.cluster.entry(key::rc(self.id.parse().unwrap())).await.unwrap();
            self.status().await.is_some_and(|status| {
                status.observed_index == record.modify_index
                    && status.condition(kind).is_some_and(|found| found.reason == reason)
            })
        })
        .await;
    }

    async fn is_scheduled(&self) {
        self.until_said(RcConditionType::Scheduled, RcReason::AsDesired).await;
    }

    /// Nodes of each audit record of the farm, oldest first.
    async fn retargeted(&self) -> Vec<Value> {
        let log = self.p2.cluster.audit().await;
        let its = log
            .iter()
            .filter(|record| record.event_type.as_str() == "REPLICATION_CONTROLLER_RETARGET");
        its.map(|record| record.event_details["nodes"].clone()).collect()
    }

    async fn intent(&self, node: &str) -> Option<String> {
        self.p2.cluster.get(format!("intent/{node}/testPod")).await
    }

    async fn report(&self, healths: &[(&str, &str)]) {
        for (node, status) in healths {
            let health = json!({"Id": "testPod", "Node": node, "Service": "testPod",
                "Status": status, "Time": "2026-01-01T00:00:00Z",
                "Expires": "2126-01-01T00:00:00Z"});
            self.p2.cluster.put(format!("health/testPod/{node}"), health.to_string()).await;
        }
    }

    async fn stays(&self) {
        assert_eq!(self.nodes().await, ["node0", "node1", "node2"]);
    }

    async fn moves(&self) {
        self.until_on(&["new_node", "node0", "node1"]).await;
    }

    async fn end(self) {
        self.farm.stop().await;
    }
}

/// `nodeTransferSetup` of p2: three pods, of which the one on node2 should leave.
struct NodeTransfer {
    strategy: &'static str,
    around: Around,
    /// Health of the pods.
    health: [&'static str; 3],
}

/// What becomes of that pod.
enum Outcome {
    Moves,
    /// It stays, and the condition `Placed` says why.
    Waits(RcReason),
    /// It stays, and the status has an error with this text.
    Fails(&'static str),
}

impl Default for NodeTransfer {
    fn default() -> NodeTransfer {
        let health = ["passing", "passing", "passing"];
        NodeTransfer { strategy: DYNAMIC, around: Around::default(), health }
    }
}

impl NodeTransfer {
    async fn ends(self, test: &str, outcome: Outcome) {
        let stage = Stage::new(test, self.strategy, self.around).await;
        stage.label_all(0..3).await;
        stage.set_replicas(3).await;
        stage.until_on(&["node0", "node1", "node2"]).await;
        let [a, b, c] = self.health;
        stage.report(&[("node0", a), ("node1", b), ("node2", c)]).await;
        stage.label("node2", "bad").await;
        match outcome {
            Outcome::Moves => stage.moves().await,
            Outcome::Waits(why) => {
                stage.until_said(RcConditionType::Placed, why).await;
                stage.stays().await;
            }
            Outcome::Fails(why) => {
                until("it is said", async || {
                    let error = stage.status().await.and_then(|status| status.last_error);
                    error.is_some_and(|error| error.contains(why))
                })
                .await;
                stage.stays().await;
            }
        }
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn do_nothing() {
    let stage = Stage::simple("do_nothing").await;
    stage.is_scheduled().await;
    stage.until_on(&[]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cant_schedule() {
    let stage = Stage::simple("cant_schedule").await;
    stage.set_replicas(1).await;
    stage.until_said(RcConditionType::Scheduled, RcReason::NoEligibleNodes).await;
    stage.until_on(&[]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule() {
    let stage = Stage::simple("schedule").await;
    stage.label("node1", "bad").await;
    stage.label("node2", "good").await;
    stage.set_replicas(1).await;
    stage.until_on(&["node2"]).await;
    stage.is_scheduled().await;
    assert_eq!(stage.retargeted().await, [json!(["node2"])]);
    // p2 sees the pod.
    let shown = stage.p2.shown("p2-inspect", &["--pod", "testPod"]);
    if let Some(shown) = shown.await {
        assert!(shown.contains("node2") && shown.contains("intent_manifest_sha"), "{shown}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_partial() {
    let stage = Stage::simple("schedule_partial").await;
    stage.label("node1", "bad").await;
    stage.label("node2", "good").await;
    stage.set_replicas(2).await;
    stage.until_on(&["node2"]).await;
    stage.until_said(RcConditionType::Scheduled, RcReason::InsufficientNodes).await;
    stage.end().await;
}

/// Different: p2 removes every pod and fails. Here the record is refused, and the pods stay.
#[tokio::test(flavor = "multi_thread")]
async fn unschedule_partial() {
    let stage = Stage::simple("unschedule_partial").await;
    stage.label("node2", "good").await;
    stage.set_replicas(1).await;
    stage.until_on(&["node2"]).await;
    // p2-rctl refuses such a count, too.
    let key = key::rc(stage.id.parse().unwrap());
    let mut record: Value = stage.p2.cluster.value(&key).await;
    record["replicas_desired"] = json!(-1);
    stage.p2.cluster.put(&key, record.to_string()).await;
    stage.until_said(RcConditionType::Valid, RcReason::InvalidRecord).await;
    stage.until_on(&["node2"]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_twice() {
    let stage = Stage::simple("schedule_twice").await;
    stage.label_all([1, 2]).await;
    stage.set_replicas(1).await;
    stage.until_on(&["node1"]).await;
    stage.set_replicas(2).await;
    stage.until_on(&["node1", "node2"]).await;
    stage.is_scheduled().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unschedule() {
    let stage = Stage::simple("unschedule").await;
    stage.label("node1", "bad").await;
    stage.label("node2", "good").await;
    stage.set_replicas(1).await;
    stage.until_on(&["node2"]).await;
    stage.set_replicas(0).await;
    stage.until_on(&[]).await;
    stage.is_scheduled().await;
    assert_eq!(stage.retargeted().await, [json!(["node2"]), json!([])]);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefer_unschedule_ineligible() {
    let stage = Stage::simple("prefer_unschedule_ineligible").await;
    for n in 0..1000 {
        let labels = json!({"nodeQuality": "good"}).to_string();
        stage.p2.cluster.put(format!("labels/node/node{n}"), labels).await;
    }
    stage.set_replicas(1000).await;
    stage.until_pods(1000).await;
    assert_eq!(stage.p2.cluster.keys(&key::intents()).await.len(), 1000);
    stage.label("node503", "bad").await;
    // p2 reads the nodes' labels at each pass. The farm watches them, and must have seen this one.
    stage.until_said(RcConditionType::Placed, RcReason::IneligibleNodes).await;
    stage.set_replicas(999).await;
    stage.until_pods(999).await;
    assert!(!stage.nodes().await.contains(&"node503".to_owned()));
    stage.is_scheduled().await;
    stage.end().await;
}

/// A stage with one pod on node1.
async fn consistent(test: &str) -> Stage {
    let stage = Stage::simple(test).await;
    stage.label("node1", "good").await;
    stage.set_replicas(1).await;
    stage.until_on(&["node1"]).await;
    assert_eq!(stage.intent("node1").await.as_deref(), Some(MANIFEST));
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn consistency_no_change() {
    let stage = consistent("consistency_no_change").await;
    let key = "intent/node1/testPod";
    let before = stage.p2.cluster.entry(key).await.unwrap().modify_index;
    // A change that makes the farm look again.
    stage.label("node2", "good").await;
    stage.set_replicas(2).await;
    stage.until_on(&["node1", "node2"]).await;
    assert_eq!(stage.p2.cluster.entry(key).await.unwrap().modify_index, before);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consistency_modify() {
    let stage = consistent("consistency_modify").await;
    let changed = format!("{MANIFEST}config:\n  test: true\n");
    stage.p2.cluster.put("intent/node1/testPod", changed).await;
    until("it is put back", async || stage.intent("node1").await.as_deref() == Some(MANIFEST))
        .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consistency_delete() {
    let stage = consistent("consistency_delete").await;
    stage.p2.cluster.delete("intent/node1/testPod").await;
    until("it is put back", async || stage.intent("node1").await.as_deref() == Some(MANIFEST))
        .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_labels() {
    let stage = consistent("reserved_labels").await;
    let labels = stage.p2.cluster.value("labels/pod/node1/testPod").await;
    assert_eq!(labels["pod_id"], "testPod");
    assert_eq!(labels["replication_controller_id"], stage.id.as_str());
    assert_eq!(labels["podTest"], "successful");
    let arguments = ["show", "--labelType", "pod", "--id", "node1/testPod"];
    if let Some(shown) = stage.p2.shown("p2-label", &arguments).await {
        assert!(shown.contains(&stage.id), "{shown}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_more_than_5() {
    let stage = Stage::simple("schedule_more_than_5").await;
    stage.label_all(0..7).await;
    stage.set_replicas(7).await;
    stage.until_pods(7).await;
    stage.is_scheduled().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unschedule_more_than_5() {
    let stage = Stage::simple("unschedule_more_than_5").await;
    stage.label_all(0..7).await;
    stage.set_replicas(7).await;
    stage.until_pods(7).await;
    stage.set_replicas(0).await;
    stage.until_on(&[]).await;
    stage.is_scheduled().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rc_does_not_fix_membership() {
    let stage = consistent("rc_does_not_fix_membership").await;
    stage.is_scheduled().await;
    stage.label("node1", "bad").await;
    stage.label("node2", "good").await;
    stage.until_said(RcConditionType::Placed, RcReason::IneligibleNodes).await;
    stage.until_on(&["node1"]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pods() {
    let stage = Stage::simple("add_pods").await;
    stage.label_all(1..=5).await;
    stage.set_replicas(5).await;
    stage.until_on(&["node1", "node2", "node3", "node4", "node5"]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn add_pods_disabled() {
    let stage = Stage::simple("add_pods_disabled").await;
    stage.label_all(1..=5).await;
    let id = stage.id.clone();
    stage.p2.rctl(&["disable", &id]).await;
    stage.set_replicas(5).await;
    stage.until_said(RcConditionType::Scheduled, RcReason::Disabled).await;
    stage.until_on(&[]).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_pods() {
    let stage = Stage::simple("remove_pods").await;
    stage.label_all(1..=5).await;
    stage.set_replicas(5).await;
    stage.until_pods(5).await;
    stage.set_replicas(3).await;
    stage.until_pods(3).await;
    stage.is_scheduled().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn remove_pods_disabled() {
    let stage = Stage::simple("remove_pods_disabled").await;
    stage.label_all(1..=5).await;
    stage.set_replicas(5).await;
    stage.until_pods(5).await;
    let id = stage.id.clone();
    stage.p2.rctl(&["disable", &id]).await;
    stage.set_replicas(3).await;
    stage.until_said(RcConditionType::Scheduled, RcReason::Disabled).await;
    assert_eq!(stage.nodes().await.len(), 5);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_noop_if_static_strategy() {
    let case = NodeTransfer { strategy: "static_strategy", ..NodeTransfer::default() };
    let outcome = Outcome::Waits(RcReason::IneligibleNodes);
    case.ends("node_transfer_noop_if_static_strategy", outcome).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_noop_if_lock_held() {
    let test = "node_transfer_noop_if_lock_held";
    let stage = Stage::new(test, DYNAMIC, Around::default()).await;
    let cluster = &stage.p2.cluster;
    let session = cluster.store.create_session(&NewSession::default()).await.unwrap();
    let lock = key::rc_mutation_lock(stage.id.parse().unwrap());
    cluster.put_locked(&lock, "", &session).await;
    stage.label_all(0..3).await;
    stage.set_replicas(3).await;
    stage.until_on(&["node0", "node1", "node2"]).await;
    stage.report(&[("node0", "passing"), ("node1", "passing"), ("node2", "passing")]).await;
    stage.label("node2", "bad").await;
    stage.until_said(RcConditionType::Placed, RcReason::LockHeld).await;
    stage.stays().await;
    stage.p2.cluster.store.destroy_session(&session).await.unwrap();
    stage.moves().await;
    until("the lock is given back", async || stage.p2.cluster.entry(&lock).await.is_none()).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_noop_if_pods_unhealthy() {
    let health = ["passing", "critical", "passing"];
    let case = NodeTransfer { health, ..NodeTransfer::default() };
    let outcome = Outcome::Waits(RcReason::PodsUnhealthy);
    case.ends("node_transfer_noop_if_pods_unhealthy", outcome).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_when_all_pods_healthy() {
    let case = NodeTransfer::default();
    case.ends("node_transfer_when_all_pods_healthy", Outcome::Moves).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_when_ineligible_node_unhealthy() {
    let health = ["passing", "passing", "critical"];
    let case = NodeTransfer { health, ..NodeTransfer::default() };
    case.ends("node_transfer_when_ineligible_node_unhealthy", Outcome::Moves).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_does_not_alert_if_allocate_fails() {
    let around = Around { allocation_fails: true, ..Around::default() };
    let case = NodeTransfer { around, ..NodeTransfer::default() };
    let outcome = Outcome::Fails("intentional");
    case.ends("node_transfer_does_not_alert_if_allocate_fails", outcome).await;
}

/// Different: p2 alerts that the old node is allocated. Here the new node is given back as well, and what could not be
/// given back is said of each.
#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_alerts_if_deallocate_fails() {
    let around = Around { deallocation_fails: true, ..Around::default() };
    let case = NodeTransfer { around, ..NodeTransfer::default() };
    let outcome = Outcome::Fails("cannot be deallocated");
    case.ends("node_transfer_alerts_if_deallocate_fails", outcome).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_transfer_noop_if_service_discovery_not_synced() {
    let around = Around { discovery_is_behind: true, ..Around::default() };
    let case = NodeTransfer { around, ..NodeTransfer::default() };
    let outcome = Outcome::Waits(RcReason::DiscoveryNotSynced);
    case.ends("node_transfer_noop_if_service_discovery_not_synced", outcome).await;
}
