//! Beside square/p2's own programs, on a real Consul. `.ci/get-p2` builds them, where Go and the source can be had;
//! `farm::rolling_updates` makes p2's writes without them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_consul::Consul;
use rcfarm_store::{DeleteMode, PutMode, Query, Reader, Store};
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use rcfarm_testing::wait::{in_time, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::RealCluster;

/// How long a node takes to start a manifest.
const START: Duration = Duration::from_millis(300);

/// Directory of p2's programs; `None`: they cannot be had here, which is said aloud.
fn programs() -> Option<PathBuf> {
    let named = std::env::var_os("P2_BIN").map(PathBuf::from);
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".p2/bin");
    let found = named.or(Some(built)).filter(|dir| dir.join("p2-rctl").is_file());
    if found.is_none() {
        eprintln!("SKIPPED: square/p2's programs are not here. Run .ci/get-p2, or set P2_BIN.");
    }
    found
}

/// A cluster with p2's programs and nodes `n1`, `n2`, … that run what is intended, as p2's preparers do.
struct P2 {
    cluster: RealCluster,
    programs: PathBuf,
    nodes: JoinHandle<()>,
}

impl P2 {
    async fn new(nodes: usize) -> Option<P2> {
        let programs = programs()?;
        let cluster = RealCluster::real().await;
        cluster.nodes(nodes).await;
        let nodes = tokio::spawn(run_nodes(cluster.server.client()));
        Some(P2 { cluster, programs, nodes })
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("--consul").arg(&self.cluster.address).args(arguments);
        command.current_dir(self.cluster.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a program of p2's to its end; returns its exit code and what it printed.
    async fn run(&self, program: &str, arguments: &[&str]) -> (i32, String) {
        let mut command = tokio::process::Command::from(self.command(program, arguments));
        let output = in_time(program, command.kill_on_drop(true).output()).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    async fn rctl(&self, arguments: &[&str]) -> String {
        let (code, text) = self.run("p2-rctl", arguments).await;
        assert_eq!(code, 0, "p2-rctl {arguments:?}: {text}");
        text
    }

    /// Creates a controller by p2-rctl; returns its id.
    async fn create(&self, version: usize) -> String {
        let manifest = format!(
            "id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n    location: file:///web_{version}.tar.gz\n"
        );
        std::fs::write(self.cluster.dir.path().join("p2.yaml"), manifest).unwrap();
        let before = self.cluster.keys(&key::rcs()).await;
        let basic = ["create", "-m", "p2.yaml", "-n", "role=web", "-a", "az", "-c", "c"];
        self.rctl(&[&basic[..], &["-s", "static_strategy"]].concat()).await;
        let after = self.cluster.keys(&key::rcs()).await;
        let new = after.iter().find(|key| !before.contains(key)).unwrap();
        key::rcs().tail(new).unwrap().to_owned()
    }

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

    /// Rolls three pods from one controller to another; checks the end, and that two were healthy all the time.
    async fn roll(&self, old: &str, new: &str) {
        let update = ["rolling-update", "-o", old, "-n", new, "-d", "3", "-m", "2"];
        let running = self.run("p2-rctl", &update);
        tokio::pin!(running);
        let mut least = usize::MAX;
        let (code, text) = loop {
            tokio::select! {
                ended = &mut running => break ended,
                () = tokio::time::sleep(START / 10) => least = least.min(self.healthy().await),
            }
        };
        assert_eq!(code, 0, "{text}");
        assert!(least >= 2, "{least} healthy pods, the minimum is 2");
        assert_eq!(self.nodes_of(new).await.len(), 3, "{text}");
        assert_eq!(self.cluster.list(&key::intents()).await.len(), 3, "{text}");
        assert!(self.cluster.get(key::rc(old.parse().unwrap())).await.is_none(), "{text}");
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
        self.nodes.abort();
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

async fn rolls_on(nodes: usize) {
    let Some(p2) = P2::new(nodes).await else { return };
    let farm = p2.cluster.farm_process("f", &[]);
    let old = p2.create(1).await;
    p2.rctl(&["set-replicas", "-y", &old, "3"]).await;
    p2.settled(&old).await;
    let before = p2.nodes_of(&old).await;
    let new = p2.create(2).await;
    p2.roll(&old, &new).await;
    assert_eq!(p2.nodes_of(&new).await, before);
    let listed: Value = p2.cluster.json(&["rc", "list"]).await;
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    farm.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_update_of_p2_rctl_ends_on_three_nodes() {
    rolls_on(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_update_of_p2_rctl_ends_on_six_nodes() {
    rolls_on(6).await;
}

/// Ten updates one after the other between farms of both programs; in each one of ours is killed and replaced.
#[tokio::test(flavor = "multi_thread")]
async fn rolling_updates_end_in_a_mixed_fleet() {
    let Some(p2) = P2::new(3).await else { return };
    let server = || {
        let mut command = p2.command("p2-rctl-server", &[]);
        Daemon::new(Process::start_logging_here(&mut command), None)
    };
    let _p2_farm = server();
    let _other = p2.cluster.farm_process("stays", &[]);
    let mut killed = p2.cluster.farm_process("killed-0", &[]);
    let mut old = p2.create(0).await;
    p2.rctl(&["set-replicas", "-y", &old, "3"]).await;
    p2.settled(&old).await;
    for round in 1..=10_u32 {
        let new = p2.create(round as usize).await;
        let update = p2.roll(&old, &new);
        let kill = async {
            tokio::time::sleep(Duration::from_millis(u64::from(round) * 617 % 5000)).await;
            killed = p2.cluster.farm_process(&format!("killed-{round}"), &[]);
        };
        tokio::join!(update, kill);
        p2.settled(&new).await;
        old = new;
    }
}
