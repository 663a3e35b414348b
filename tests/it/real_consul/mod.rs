//! The built program on a real Consul: a server, farms and agents that can be killed, and command-line users.

mod acl_policies;
mod controllers;
mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rcfarm_api::Stored as _;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::rc::status::RcStatus;

use rcfarm_store::{Entry, Prefix, Query, Store};
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::pod_processes;
use rcfarm_testing::process::Process;
use rcfarm_testing::program::{Program, Ran};
use rcfarm_testing::wait::in_time;
use tempfile::TempDir;

/// A server, a client of it, and the program connected to it.
pub struct RealConsul {
    pub server: ConsulServer,
    pub store: Arc<dyn Store>,
    pub program: Program,
    pub dir: TempDir,
}

/// A farm or an agent; killed when dropped, an agent together with its pods.
pub struct Daemon {
    process: Process,
    /// Data directory of an agent.
    data: Option<PathBuf>,
}

impl Daemon {
    pub fn start(command: &mut Command, data: Option<PathBuf>) -> Daemon {
        Daemon { process: Process::start_logging_here(command), data }
    }

    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Sends SIGTERM; the daemon must exit with 0.
    pub async fn stop(mut self) {
        self.signal("TERM");
        let ended = in_time("the daemon's end", async { self.process.wait().await }).await;
        assert!(ended.success(), "a daemon that is told to stop ends with {ended}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(data) = &self.data {
            pod_processes::kill(data);
        }
    }
}

impl RealConsul {
    pub async fn new(nodes: usize) -> RealConsul {
        Self::on(ConsulServer::dev().await, nodes)
    }

    /// With this many nodes labelled `pool=web`.
    pub fn on(server: ConsulServer, nodes: usize) -> RealConsul {
        let address = server.http().to_string();
        let dir = tempfile::tempdir().unwrap();
        let program = Program::new(env!("CARGO_BIN_EXE_rcfarm"), &address, dir.path());
        let store = Arc::new(server.client());
        let consul = RealConsul { server, store, program, dir };
        for n in 0..nodes {
            consul.ok(&["label", "set", "node", &format!("n{n:02}"), "pool=web"]);
        }
        consul
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.program.command(args)
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().unwrap().into()
    }

    /// Runs a command that must succeed; returns its standard output.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        self.run(args).ok()
    }

    pub fn farm(&self, name: &str) -> Daemon {
        Daemon::start(&mut self.command(&["farm", "run", "--name", name, "--log", "warn"]), None)
    }

    /// Agent of a node, with its data in `dir`.
    pub fn agent(&self, name: &str, more: &[&str], dir: &Path) -> Daemon {
        let data = dir.join(name);
        let mut command = self.command(&["node", "run", "--name", name, "--log", "warn"]);
        command.args(more).arg("--data-dir").arg(&data);
        Daemon::start(&mut command, Some(data))
    }

    /// Process ids of running pods, by pod and node; empty while Consul does not answer.
    pub async fn running(&self) -> BTreeMap<(String, String), i32> {
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

    /// Number of allocated devices. Checks that each exists and is allocated once.
    pub async fn devices(&self) -> usize {
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

    /// Creates a controller of `replicas` pods; returns its id.
    pub fn create(&self, pod: &str, replicas: usize) -> String {
        self.create_of(&format!("id: {pod}\n"), replicas)
    }

    pub fn create_of(&self, manifest: &str, replicas: usize) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), manifest).unwrap();
        let (file, replicas) = (file.path().to_str().unwrap(), replicas.to_string());
        let args = ["rc", "create", "-f", file, "--node-selector", "pool=web"];
        self.ok(&[&args[..], &["--replicas", &replicas]].concat()).trim().to_owned()
    }

    pub async fn list(&self, prefix: &Prefix) -> Vec<Entry> {
        self.store.list(prefix, Query::CONSISTENT).await.unwrap().value
    }

    /// Number of pods by pod id.
    pub async fn pods(&self) -> BTreeMap<String, usize> {
        let mut pods = BTreeMap::new();
        for entry in self.list(&key::intents()).await {
            let (_, pod) = key::node_and_pod(&key::intents(), &entry.key).unwrap();
            *pods.entry(pod.to_string()).or_insert(0) += 1;
        }
        pods
    }

    pub async fn status(&self, id: &str) -> Option<RcStatus> {
        let key = key::rc_status(id.parse().unwrap());
        let entry = self.store.get(&key, Query::CONSISTENT).await.unwrap().value?;
        Some(RcStatus::decode(&entry.value).unwrap())
    }

    pub async fn acting(&self, id: &str) -> Option<String> {
        Some(self.status(id).await?.owner?.farm.to_string())
    }

    /// Number of ownership locks by session.
    pub async fn owners(&self) -> BTreeMap<String, usize> {
        let mut owners = BTreeMap::new();
        for session in self.list(&key::rc_locks()).await.into_iter().filter_map(|e| e.session) {
            *owners.entry(session.to_string()).or_insert(0) += 1;
        }
        owners
    }

    pub fn audit_agrees(&self) {
        self.ok(&["audit", "verify"]);
    }
}
