//! Beside square/p2's own programs, on a real Consul. `.ci/get-p2` builds them, where Go and the source can be had.
//! Where they cannot, most of these tests replay what the programs wrote when they were last run (`testdata/p2/`), and
//! say so. `P2_RECORD=1 .ci/test -E 'test(/p2::/)'` records it anew. [`rolling`] needs the programs themselves;
//! `farm::rolling_updates` makes the same writes without them.

mod own_tests;
mod programs;
mod reports;
mod rolling;

use std::collections::BTreeMap;
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_consul::Consul;
use rcfarm_store::{DeleteMode, PutMode, Query, Reader, Store};
use rcfarm_testing::wait::until;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::harness::RealCluster;
use programs::Programs;

/// How long a node takes to start a manifest.
const START: Duration = Duration::from_millis(300);

/// A cluster with p2's programs.
struct P2 {
    cluster: RealCluster,
    programs: Mutex<Programs>,
    nodes: Option<JoinHandle<()>>,
}

impl P2 {
    /// For the test of this name.
    async fn new(test: &str) -> P2 {
        let cluster = RealCluster::real().await;
        let programs = Mutex::new(Programs::new(test, &cluster).await);
        P2 { programs, cluster, nodes: None }
    }

    /// With the programs in a directory.
    async fn live(dir: std::path::PathBuf) -> P2 {
        let cluster = RealCluster::real().await;
        P2 { programs: Mutex::new(Programs::Live(dir)), cluster, nodes: None }
    }

    /// Adds nodes `n1`, `n2`, … that run what is intended, as p2's preparers do.
    async fn with_nodes(mut self, nodes: usize) -> P2 {
        self.cluster.nodes(nodes).await;
        self.nodes = Some(tokio::spawn(run_nodes(self.cluster.server.client())));
        self
    }

    /// Runs p2-rctl, which must succeed.
    async fn rctl(&self, arguments: &[&str]) -> String {
        self.run("p2-rctl", arguments).await
    }

    /// Runs a program, which must succeed; returns what it printed.
    async fn run(&self, program: &str, arguments: &[&str]) -> String {
        let (code, text) = self.programs.lock().await.run(&self.cluster, program, arguments).await;
        assert_eq!(code, 0, "{program} {arguments:?}: {text}");
        text
    }

    /// What a program that only reads shows of the cluster as it is now. `None`: there is no program to ask.
    async fn shown(&self, program: &str, arguments: &[&str]) -> Option<String> {
        self.programs.lock().await.shown(&self.cluster, program, arguments).await
    }

    /// Creates a controller by p2-rctl; returns its id.
    async fn create(&self, manifest: &str, more: &[&str]) -> String {
        std::fs::write(self.cluster.dir.path().join("p2.yaml"), manifest).unwrap();
        let before = self.cluster.keys(&key::rcs()).await;
        self.rctl(&[&["create", "-m", "p2.yaml"], more].concat()).await;
        let after = self.cluster.keys(&key::rcs()).await;
        let new = after.iter().find(|key| !before.contains(key)).unwrap();
        key::rcs().tail(new).unwrap().to_owned()
    }

    /// Creates a controller of a version of the pod `web`, on nodes with `role=web`.
    async fn create_web(&self, version: usize) -> String {
        let manifest = format!(
            "id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n    location: file:///web_{version}.tar.gz\n"
        );
        let more = ["-n", "role=web", "-a", "az", "-c", "c", "-s", "static_strategy"];
        self.create(&manifest, &more).await
    }

    /// Nodes with pods of a controller, in order.
    async fn nodes_of(&self, id: &str) -> Vec<String> {
        let labels = self.cluster.list(&key::labels(key::LabelKind::Pod)).await;
        let is_its = |value: &[u8]| {
            let labels: BTreeMap<String, String> = serde_json::from_slice(value).unwrap();
            labels.get("replication_controller_id").is_some_and(|rc| rc == id)
        };
        let its = labels.into_iter().filter(|entry| is_its(&entry.value));
        its.map(|entry| entry.key.split('/').nth(2).unwrap().to_owned()).collect()
    }

    async fn healthy(&self) -> usize {
        self.cluster.keys(&key::healths()).await.len()
    }

    async fn settled(&self, id: &str) {
        until("three healthy pods", || async {
            self.nodes_of(id).await.len() == 3 && self.healthy().await == 3
        })
        .await;
    }
}

impl Drop for P2 {
    fn drop(&mut self) {
        self.nodes.iter().for_each(JoinHandle::abort);
    }
}

/// Copies intents to reality. A changed manifest is not healthy until it was started.
async fn run_nodes(store: Consul) {
    loop {
        let mut started = Vec::new();
        let intents = store.list(&key::intents(), Query::CONSISTENT).await.unwrap().value;
        for entry in intents {
            let (node, pod) = key::node_and_pod(&key::intents(), &entry.key).unwrap();
            let real = store.get(&key::reality(&node, &pod), Query::CONSISTENT).await.unwrap();
            if real.value.is_none_or(|real| real.value != entry.value) {
                store.delete(&key::health(&pod, &node), DeleteMode::Always).await.unwrap();
                started.push((node, pod, entry.value));
            }
        }
        tokio::time::sleep(START).await;
        for (node, pod, manifest) in started {
            let health = json!({"Id": pod, "Node": node, "Service": pod, "Status": "passing",
                "Time": "2026-01-01T00:00:00Z", "Expires": "2126-01-01T00:00:00Z"});
            let health = health.to_string().into();
            store.put(&key::reality(&node, &pod), manifest, 0, PutMode::Set).await.unwrap();
            store.put(&key::health(&pod, &node), health, 0, PutMode::Set).await.unwrap();
        }
    }
}
