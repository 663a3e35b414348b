//! A machine of a cluster: a data directory, and an agent with real processes that can be killed.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::node::status::PodStatus;
use rcfarm_emulator::Emulator;
use rcfarm_node::agent::driver::Driver;
use rcfarm_node::agent::process::ProcessDriver;
use rcfarm_node::agent::state::DataDir;
use rcfarm_node::agent::{Agent, AgentError, AgentSettings, AtShutdown};
use rcfarm_store::Entry;
use rcfarm_testing::pod_processes;
use rcfarm_testing::wait::{PATIENCE, eventually, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Cluster;

pub struct Host {
    cluster: Cluster,
    _directory: tempfile::TempDir,
    pub settings: AgentSettings,
    agent: Option<(JoinHandle<Result<(), AgentError>>, CancellationToken)>,
}

impl Host {
    pub fn new() -> Host {
        Self::on(&Emulator::default(), "n1")
    }

    /// Another machine on the same store.
    pub fn on(store: &Emulator, name: &str) -> Host {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().join("data");
        let settings = AgentSettings {
            serves_logs: true,
            labels: BTreeMap::from([("pool".to_owned(), "test".to_owned())]),
            capacity: "cpu=4,gpu=2".parse().unwrap(),
            env: BTreeMap::from([("NODE_PORT".to_owned(), "12345".to_owned())]),
            ..AgentSettings::new(name.parse().unwrap(), "127.0.0.1", data_dir)
        };
        Host { cluster: Cluster::on(store.clone()), settings, _directory: directory, agent: None }
    }

    pub fn node(&self) -> NodeName {
        self.settings.name.clone()
    }

    /// Starts the agent with another client of the store.
    pub fn start_on(&mut self, store: Emulator) {
        let driver = ProcessDriver::new(PathBuf::from(env!("CARGO_BIN_EXE_rcfarm")));
        self.start_with(store, Arc::new(driver));
    }

    /// Starts the agent with another client of the store and a driver.
    pub fn start_with(&mut self, store: Emulator, driver: Arc<dyn Driver>) {
        let env = self.env(Arc::new(store));
        let agent = Agent::new(self.settings.clone(), env, driver);
        let shutdown = CancellationToken::new();
        self.agent = Some((tokio::spawn(agent.run(shutdown.clone())), shutdown));
    }

    pub fn start(&mut self) {
        self.start_on(self.store.clone());
    }

    /// As `kill -9`.
    pub async fn kill(&mut self) {
        let (task, _) = self.agent.take().unwrap();
        task.abort();
        let _ = task.await;
        self.until_unlocked().await;
    }

    /// Waits until nothing that the agent started in this process has its data directory. Elsewhere the process ends.
    async fn until_unlocked(&self) {
        let data = &self.settings.data_dir;
        eventually("the agent's end", || DataDir::open(data).is_ok()).await;
    }

    /// Stops the agent as SIGTERM does.
    pub async fn stop(&mut self) -> Result<(), AgentError> {
        let (task, shutdown) = self.agent.take().unwrap();
        shutdown.cancel();
        let ended = task.await.unwrap();
        self.until_unlocked().await;
        ended
    }

    pub async fn end(mut self) {
        if self.agent.is_some() {
            self.kill().await;
        }
        self.settings.at_shutdown = AtShutdown::StopPods;
        self.start();
        // The agent takes over its pods before anything else.
        self.stop().await.unwrap();
    }

    pub async fn intend(&self, pod: &str, manifest: &str) {
        self.put(key::intent(&self.node(), &id(pod)), manifest).await;
    }

    /// Creates an intent with one process `sh -c script`, and further lines for the launchable.
    pub async fn intend_script(&self, pod: &str, script: &str, more: &str) {
        self.intend(pod, &manifest(pod, script, more)).await;
    }

    pub async fn own(&self, pod: &str, rc: RcId) {
        let labels = format!("{{\"replication_controller_id\":\"{rc}\"}}");
        self.put(key::pod_labels(&self.node(), &id(pod)), labels).await;
    }

    pub async fn unintend(&self, pod: &str) {
        self.delete(key::intent(&self.node(), &id(pod))).await;
    }

    pub async fn pod_status(&self, pod: &str) -> Option<PodStatus> {
        self.read(key::pod_status(&id(pod), &self.node())).await
    }

    pub async fn node_record(&self) -> Option<(NodeRecord, Entry)> {
        let entry = self.entry(key::node(&self.node())).await?;
        Some((NodeRecord::decode(&entry.value).unwrap(), entry))
    }

    /// Waits until the pod's status satisfies `wanted`.
    pub async fn until(&self, pod: &str, wanted: impl Fn(&PodStatus) -> bool) -> PodStatus {
        let mut last = None;
        for _ in 0..PATIENCE.as_millis() / 20 {
            last = self.pod_status(pod).await;
            if let Some(status) = last.as_ref().filter(|status| wanted(status)) {
                return status.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{pod} never came to be as wanted, but {last:#?}");
    }

    /// Waits until all keys of the pod are gone.
    pub async fn until_gone(&self, pod: &str) {
        let keys = [
            key::pod_status(&id(pod), &self.node()),
            key::reality(&self.node(), &id(pod)),
            key::health(&id(pod), &self.node()),
        ];
        until(&format!("{pod} is gone"), async || {
            for key in &keys {
                if self.entry(key).await.is_some() {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Output of the pod's process.
    pub fn log(&self, pod: &str) -> String {
        let path = self.settings.data_dir.join("pods").join(pod).join("main.log");
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

impl Deref for Host {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

/// Kills all processes if a test fails.
impl Drop for Host {
    fn drop(&mut self) {
        if let Some((task, _)) = &self.agent {
            task.abort();
        }
        pod_processes::kill(&self.settings.data_dir);
    }
}

pub fn id(pod: &str) -> PodId {
    pod.parse().unwrap()
}

pub fn manifest(pod: &str, script: &str, more: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!(
        "id: {pod}\nlaunchables:\n  main:\n    launchable_type: process\n    \
         command: [sh, -c, {script}]\n{more}"
    )
}

pub fn is_alive(pid: i32) -> bool {
    rcfarm_node::procfs::start_ticks(pid).is_some()
}
