//! The built program on a real Consul: farms that are killed, stopped and frozen, and a user at the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::rc::status::RcStatus;
use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_node::shim::start_ticks;
use rcfarm_store::{DeleteMode, Entry, Key, Prefix, PutMode, Query, Store};

use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::pod_processes;
use rcfarm_testing::wait::{eventually, until};

pub struct Scene {
    server: ConsulServer,
    pub store: Arc<dyn Store>,
}

/// A farm or an agent; killed when dropped, and what the agent keeps with it.
pub struct Daemon {
    child: Child,
    /// An agent's data.
    data: Option<PathBuf>,
}

impl Daemon {
    fn start(command: &mut Command, data: Option<PathBuf>) -> Daemon {
        Daemon { child: command.stdin(Stdio::null()).spawn().unwrap(), data }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub async fn stop(mut self) {
        self.signal("TERM");
        let done = tokio::task::spawn_blocking(move || self.child.wait().unwrap()).await.unwrap();
        assert!(done.success(), "a farm that is told to stop ends with {done}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(data) = &self.data {
            pod_processes::kill(data);
        }
    }
}

impl Scene {
    pub async fn new(nodes: usize) -> Scene {
        Self::on(ConsulServer::dev().await, nodes)
    }

    fn on(server: ConsulServer, nodes: usize) -> Scene {
        let address = Some(server.http().to_string());
        let config = ConsulConfig { address, ..ConsulConfig::default() };
        let scene = Scene { server, store: Arc::new(Consul::new(&config).unwrap()) };
        for n in 0..nodes {
            scene.ok(&["label", "set", "node", &format!("n{n:02}"), "pool=web"]);
        }
        scene
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rcfarm"));
        command.args(args).env("CONSUL_HTTP_ADDR", self.server.http().to_string());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed; what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rcfarm {}: {stderr}", args.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn farm(&self, name: &str) -> Daemon {
        Daemon::start(&mut self.command(&["farm", "run", "--name", name, "--log", "warn"]), None)
    }

    /// A node's agent, with its data in `dir`.
    pub fn agent(&self, name: &str, more: &[&str], dir: &Path) -> Daemon {
        let data = dir.join(name);
        let mut command = self.command(&["node", "run", "--name", name, "--log", "warn"]);
        command.args(more).arg("--data-dir").arg(&data);
        Daemon::start(&mut command, Some(data))
    }

    /// The pids of the pods that run, by pod and node. Empty while Consul does not answer.
    async fn running(&self) -> BTreeMap<(String, String), i32> {
        let prefix = key::pod_statuses();
        let listed = self.store.list(&prefix, Query::CONSISTENT).await;
        let pid = |entry: &Entry| {
            let (pod, node) = key::pod_and_node(&prefix, &entry.key)?;
            let status = PodStatus::decode(&entry.value).ok()?;
            let pid =
                status.processes.first()?.pid.filter(|_| status.phase == NodePodPhase::Running)?;
            Some(((pod.to_string(), node.to_string()), pid))
        };
        listed.map(|listed| listed.value.iter().filter_map(pid).collect()).unwrap_or_default()
    }

    /// Devices that are promised; none twice, and none that is not there.
    async fn devices(&self) -> usize {
        let mut count = 0;
        for entry in self.list(&key::allocations()).await {
            let promised = Allocations::decode(&entry.value).unwrap();
            let mut seen = BTreeSet::new();
            for number in promised.pods.values().flat_map(|a| a.devices.values().flatten()) {
                assert!(*number < 2 && seen.insert(*number), "{}: {promised:?}", entry.key);
                count += 1;
            }
        }
        count
    }

    /// A controller of `replicas` pods; its id.
    fn create(&self, pod: &str, replicas: usize) -> String {
        self.create_of(&format!("id: {pod}\n"), replicas)
    }

    fn create_of(&self, manifest: &str, replicas: usize) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), manifest).unwrap();
        let (file, replicas) = (file.path().to_str().unwrap(), replicas.to_string());
        let args = ["rc", "create", "-f", file, "--node-selector", "pool=web"];
        self.ok(&[&args[..], &["--replicas", &replicas]].concat()).trim().to_owned()
    }

    pub async fn list(&self, prefix: &Prefix) -> Vec<Entry> {
        self.store.list(prefix, Query::CONSISTENT).await.unwrap().value
    }

    /// Pods by what they are called.
    async fn pods(&self) -> BTreeMap<String, usize> {
        let mut pods = BTreeMap::new();
        for entry in self.list(&key::intents()).await {
            let (_, pod) = key::node_and_pod(&key::intents(), &entry.key).unwrap();
            *pods.entry(pod.to_string()).or_insert(0) += 1;
        }
        pods
    }

    async fn status(&self, id: &str) -> Option<RcStatus> {
        let key = key::rc_status(id.parse().unwrap());
        let entry = self.store.get(&key, Query::CONSISTENT).await.unwrap().value?;
        Some(RcStatus::decode(&entry.value).unwrap())
    }

    async fn acting(&self, id: &str) -> Option<String> {
        Some(self.status(id).await?.owner?.farm.to_string())
    }

    /// Sessions that hold ownership locks, and how many each.
    async fn owners(&self) -> BTreeMap<String, usize> {
        let mut owners = BTreeMap::new();
        for session in self.list(&key::rc_locks()).await.into_iter().filter_map(|e| e.session) {
            *owners.entry(session.to_string()).or_insert(0) += 1;
        }
        owners
    }

    fn audit_agrees(&self) {
        let output = self.run(&["audit", "verify"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
}

/// Of an agent whose session ends soon after it.
const SHORT: [&str; 4] = ["--label", "pool=web", "--check-ttl", "6s"];

#[tokio::test(flavor = "multi_thread")]
async fn create_scale_kill_the_owner_scale_again_verify() {
    let scene = Scene::new(8).await;
    let a = scene.farm("a");
    let id = scene.create("web", 3);
    until("scheduled", || async { scene.pods().await.get("web") == Some(&3) }).await;
    scene.ok(&["rc", "scale", "web", "5", "--wait", "--timeout", "60s"]);
    assert_eq!(scene.pods().await["web"], 5);
    let b = scene.farm("b");
    until("two farms", || async { scene.list(&key::farms()).await.len() == 2 }).await;
    // Whoever owns it now, the one that is killed is the one that acted.
    until("acted on", || async { scene.acting(&id).await.is_some() }).await;
    let (victim, survivor, rest) = match scene.acting(&id).await.as_deref() {
        Some("a") => (a, "b", b),
        _ => (b, "a", a),
    };
    drop(victim);
    until("taken over with no other write", || async {
        scene.acting(&id).await.as_deref() == Some(survivor)
    })
    .await;
    scene.ok(&["rc", "scale", &id[..8], "2", "--wait", "--timeout", "60s"]);
    assert_eq!(scene.pods().await["web"], 2);
    scene.audit_agrees();
    rest.stop().await;
    assert!(scene.owners().await.is_empty(), "a farm that stops leaves no lock");
    assert!(scene.list(&key::farms()).await.is_empty(), "nor its presence");
}

/// Two farms at once on machines with few devices: what is promised is there, to one pod each, whoever dies.
#[tokio::test(flavor = "multi_thread")]
async fn invariant_14_two_farms_never_allocate_a_device_twice() {
    let scene = Scene::new(3).await;
    for n in 0..3 {
        let record =
            r#"{"capacity":{"cpu_milli":8000,"memory_bytes":8589934592,"devices":{"gpu":2}}}"#;
        let key = key::node(&format!("n{n:02}").parse().unwrap());
        scene.store.put(&key, record.into(), 0, PutMode::Set).await.unwrap();
    }
    let a = scene.farm("a");
    let b = scene.farm("b");
    until("two farms", || async { scene.list(&key::farms()).await.len() == 2 }).await;
    for n in 0..4 {
        scene.create_of(&format!("id: train-{n}\nresources: {{gpu: 1}}\n"), 3);
    }
    // Twelve are wanted, six are there.
    until("all devices are taken", || async { scene.devices().await == 6 }).await;
    drop(a);
    for n in 0..4 {
        scene.ok(&["rc", "scale", &format!("train-{n}"), "1"]);
    }
    until("one each", || async { scene.devices().await == 4 && scene.pods().await.len() == 4 })
        .await;
    let why = scene.ok(&["rc", "explain", "train-0"]);
    assert!(why.contains("as desired: 1 of 1"), "{why}");
    // What is given back can be promised again. (Two of the four may share a node, and then not every node has room.)
    for n in 1..4 {
        scene.ok(&["rc", "scale", &format!("train-{n}"), "0"]);
    }
    scene.ok(&["rc", "scale", "train-0", "3"]);
    let three = || async { scene.devices().await == 3 && scene.pods().await["train-0"] == 3 };
    until("one on each node", three).await;
    scene.audit_agrees();
    assert!(scene.ok(&["doctor"]).contains("resources for 3 pods on 3 nodes"));
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_farm_writes_nothing_when_it_wakes_and_claims_anew() {
    const MANY: usize = 20;
    let scene = Scene::new(6).await;
    let a = scene.farm("a");
    // Their ids are random, and each prefers one of the two farms: of so many both get some.
    let ids: Vec<String> = (0..MANY).map(|n| scene.create(&format!("pod-{n}"), 1)).collect();
    until("scheduled", || async { scene.pods().await.len() == MANY }).await;
    until("owned by a", || async { scene.owners().await.values().sum::<usize>() == MANY }).await;
    let old = scene.owners().await.into_keys().next().unwrap();
    a.signal("STOP");
    let b = scene.farm("b");
    until("taken over", || async {
        let owners = scene.owners().await;
        owners.values().sum::<usize>() == MANY && !owners.contains_key(&old)
    })
    .await;
    for id in &ids {
        until("acted on by b", || async { scene.acting(id).await.as_deref() == Some("b") }).await;
    }
    for n in 0..MANY {
        scene.ok(&["rc", "scale", &format!("pod-{n}"), "3"]);
    }
    let scaled = || async { scene.pods().await.values().all(|count| *count == 3) };
    until("scaled by b", scaled).await;
    // Frozen in the middle of its work; whatever it still believes, Consul refuses.
    a.signal("CONT");
    until("a is back with a session of its own", || async {
        let sessions = scene.store.sessions().await.unwrap().value;
        sessions.iter().filter(|s| s.name.ends_with(" a") && s.id.as_str() != old).count() == 1
    })
    .await;
    until("and gets its share", || async { scene.owners().await.len() == 2 }).await;
    assert!(!scene.owners().await.contains_key(&old));
    let pods = scene.pods().await;
    assert!(pods.values().all(|count| *count == 3) && pods.len() == MANY, "{pods:?}");
    scene.audit_agrees();
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_reported_and_harm_no_other() {
    let scene = Scene::new(3).await;
    let _farm = scene.farm("a");
    let bad = "11111111-2222-4333-8444-555555555555";
    let put = |key: &str, value: &str| {
        let key = Key::parse(key).unwrap();
        let value = bytes::Bytes::copy_from_slice(value.as_bytes());
        let store = scene.store.clone();
        async move { store.put(&key, value, 0, rcfarm_store::PutMode::Set).await.unwrap() }
    };
    put("replication_controllers/no-uuid", "{}").await;
    put(&format!("replication_controllers/{bad}"), r#"{"id":"x"}"#).await;
    put("labels/node/n00", "[").await;
    let good = scene.create("good", 2);
    until("the good one is scheduled", || async { scene.pods().await.get("good") == Some(&2) })
        .await;
    until("the bad one says why", || async {
        scene
            .status(bad)
            .await
            .is_some_and(|s| s.last_error.is_some_and(|e| e.contains("manifest")))
    })
    .await;
    let explained = scene.ok(&["rc", "explain", &good]);
    assert!(explained.contains("as desired"), "{explained}");
}

/// A pod that ends by itself, should the test not come to its end.
fn sleeper(pod: &str) -> String {
    format!("id: {pod}\nlaunchables:\n  main: {{launchable_type: process, command: sleep 300}}\n")
}

/// Consul dies and comes back: nothing that runs is stopped, and what was intended meanwhile becomes real.
#[tokio::test(flavor = "multi_thread")]
async fn pods_survive_consul_outage_and_reality_catches_up() {
    let mut scene = Scene::on(ConsulServer::durable().await, 0);
    let dir = tempfile::tempdir().unwrap();
    let agent = scene.agent("n1", &SHORT, dir.path());
    let node = "n1".parse().unwrap();
    let intent = |n: usize| key::intent(&node, &format!("pod-{n}").parse().unwrap());
    for n in 0..4 {
        let manifest = sleeper(&format!("pod-{n}")).into();
        scene.store.put(&intent(n), manifest, 0, PutMode::Set).await.unwrap();
    }
    until("four pods run", || async { scene.running().await.len() == 4 }).await;
    let before = scene.running().await;
    let manifest = sleeper("pod-4").into();
    scene.store.put(&intent(4), manifest, 0, PutMode::Set).await.unwrap();
    scene.server.kill();
    // Whatever the agent makes of it in the meantime.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(before.values().all(|pid| start_ticks(*pid).is_some()), "a pod was stopped");
    scene.server.start_again().await;
    until("Consul has a leader", || async {
        scene.store.delete(&intent(0), DeleteMode::Always).await.is_ok()
    })
    .await;
    let pods = |running: &BTreeMap<(String, String), i32>| {
        running.keys().map(|(pod, _)| pod.clone()).collect::<Vec<_>>()
    };
    let wanted = ["pod-1", "pod-2", "pod-3", "pod-4"];
    until("reality is as intended", || async { pods(&scene.running().await) == wanted }).await;
    let after = scene.running().await;
    for (place, pid) in before.iter().filter(|(place, _)| after.contains_key(*place)) {
        assert_eq!(after[place], *pid, "{place:?} was started again");
    }
    scene.store.delete_tree(&key::node_intents(&node)).await.unwrap();
    until("all are stopped", || async { after.values().all(|pid| start_ticks(*pid).is_none()) })
        .await;
    agent.stop().await;
}

/// Agent and pods of a node die together: the pods of a dynamic controller are made anew on another.
#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_node_that_is_killed_run_elsewhere() {
    let scene = Scene::new(0).await;
    let dir = tempfile::tempdir().unwrap();
    let args = ["farm", "run", "--name", "a", "--log", "warn", "--node-grace", "1s"];
    let farm = Daemon::start(&mut scene.command(&args), None);
    let mut agents: BTreeMap<&str, Daemon> =
        ["n1", "n2"].map(|name| (name, scene.agent(name, &SHORT, dir.path()))).into();
    let file = dir.path().join("web.yaml");
    std::fs::write(&file, sleeper("web")).unwrap();
    let args = ["rc", "create", "-f", file.to_str().unwrap(), "--node-selector", "pool=web"];
    scene.ok(&[&args[..], &["--replicas", "1", "--strategy", "dynamic"]].concat());
    until("it runs", || async { scene.running().await.len() == 1 }).await;
    let ((_, at), pid) = scene.running().await.into_iter().next().unwrap();
    let (died, lives) = if at == "n1" { ("n1", "n2") } else { ("n2", "n1") };
    drop(agents.remove(died));
    eventually("its pod died with it", || start_ticks(pid).is_none()).await;
    until("it runs on the other", || async {
        scene.running().await.contains_key(&("web".to_owned(), lives.to_owned()))
    })
    .await;
    let intents = scene.list(&key::intents()).await;
    let nodes = intents.iter().filter_map(|e| key::node_and_pod(&key::intents(), &e.key));
    assert_eq!(nodes.map(|(node, _)| node.to_string()).collect::<Vec<_>>(), [lives]);
    scene.audit_agrees();
    scene.ok(&["rc", "scale", "web", "0", "--wait", "--timeout", "60s"]);
    until("nothing runs", || async { !scene.running().await.keys().any(|(_, at)| at == lives) })
        .await;
    for agent in agents.into_values() {
        agent.stop().await;
    }
    farm.stop().await;
}
