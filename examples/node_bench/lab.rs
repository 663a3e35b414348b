//! A Consul that can be restarted, nodes that can be killed, and a farm.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rcfarm_api::Stored;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::node::status::PodStatus;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_consul::Consul;
use rcfarm_store::{Entry, Key, PutMode, Query, Reader as _, Store as _};
use rcfarm_testing::consul_server::{ConsulData, ConsulOptions, ConsulServer};
use rcfarm_testing::pod_processes;
use rcfarm_testing::process::Process;
pub use rcfarm_testing::wait::PATIENCE;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;
use uuid::Uuid;

/// Interval of polls where no time is measured.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Lab {
    pub store: Arc<Consul>,
    pub address: String,
    dir: TempDir,
    consul: ConsulServer,
}

/// CPU time of all processes of the machine, and when it was read.
pub struct Busy(Instant, f64);

fn jiffies() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().context("empty /proc/stat")?.split_whitespace().skip(1);
    let fields: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    Ok([0, 1, 2, 5, 6, 7].iter().filter_map(|n| fields.get(*n)).sum())
}

pub fn busy() -> anyhow::Result<Busy> {
    Ok(Busy(Instant::now(), jiffies()?))
}

impl Busy {
    pub fn cores(&self) -> anyhow::Result<f64> {
        Ok((jiffies()? - self.1) / 100.0 / self.0.elapsed().as_secs_f64())
    }
}

impl Lab {
    /// A server with data on disk, so that it can be restarted. It allows each client this many connections.
    pub async fn new(program: &Path, connections: u32) -> anyhow::Result<Lab> {
        let config =
            format!("log_level = \"warn\"\nlimits {{ http_max_conns_per_client = {connections} }}");
        let (program, data) = (Some(program.to_owned()), ConsulData::Temporary);
        let options = ConsulOptions { program, config, data, ..ConsulOptions::default() };
        let consul = ConsulServer::start(options).await;
        let (address, store) = (consul.http().to_string(), Arc::new(consul.client()));
        let lab = Lab { store, address, dir: tempfile::tempdir()?, consul };
        lab.until_led().await?;
        Ok(lab)
    }

    pub fn kill_consul(&mut self) {
        self.consul.kill();
    }

    /// Starts Consul again after [`Lab::kill_consul`], and waits until it can be written to.
    pub async fn start_consul(&mut self) -> anyhow::Result<()> {
        self.consul.until_ready().await;
        self.until_led().await
    }

    /// Waits until it accepts writes and has registered its node, which sessions need.
    async fn until_led(&self) -> anyhow::Result<()> {
        let probe = Key::parse("bench-probe")?;
        until("a leader", || async {
            let new = rcfarm_store::NewSession::default();
            match self.store.create_session(&new).await {
                Ok(session) => {
                    self.store.destroy_session(&session).await?;
                    Ok(self.store.put(&probe, "x".into(), 0, PutMode::Set).await?)
                }
                Err(_) => Ok(false),
            }
        })
        .await
    }

    /// The program that was built beside this one.
    fn rcfarm(&self) -> anyhow::Result<Command> {
        let own = std::env::current_exe()?;
        let beside = own.parent().and_then(Path::parent).context("no directory")?.join("rcfarm");
        if !beside.exists() {
            bail!("{} is missing: cargo build, in the same profile", beside.display());
        }
        let mut command = Command::new(beside);
        command.env("CONSUL_HTTP_ADDR", &self.address).stdin(Stdio::null());
        Ok(command)
    }

    fn daemon(&self, name: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        let mut command = self.rcfarm()?;
        Ok(Process::start(command.args(arguments), self.dir.path(), &format!("{name}.log")))
    }

    /// Starts a farm, which is killed when dropped.
    pub fn farm(&self) -> anyhow::Result<impl Drop + use<>> {
        self.daemon("farm", &["farm", "run", "--name", "bench"])
    }

    /// A node with its agent, labelled pool=bench.
    pub async fn node(&self, name: &str) -> anyhow::Result<Node> {
        let data = self.dir.path().join(name);
        let mut node = Node { name: name.parse()?, data, agent: None };
        node.start(self)?;
        until("a node", || async { Ok(node.session(self).await?.is_some()) }).await?;
        Ok(node)
    }

    pub async fn get(&self, key: &Key) -> anyhow::Result<Option<Entry>> {
        Ok(self.store.get(key, Query::PLAIN).await?.value)
    }

    pub async fn put(&self, key: &Key, value: impl Into<bytes::Bytes>) -> anyhow::Result<()> {
        if !self.store.put(key, value.into(), 0, PutMode::Set).await? {
            bail!("Consul refused a plain write");
        }
        Ok(())
    }

    /// Writes a controller on pool=bench.
    pub async fn controller(
        &self,
        manifest: &str,
        replicas: usize,
        min_health: Option<usize>,
    ) -> anyhow::Result<RcId> {
        let id = RcId(Uuid::new_v4());
        if let Some(least) = min_health {
            let labels = json!({key::MIN_HEALTH_LABEL: least.to_string()}).to_string();
            self.put(&key::rc_labels(id), labels).await?;
        }
        let record = json!({
            "id": id, "manifest": manifest, "node_selector": "pool=bench", "pod_labels": {},
            "replicas_desired": replicas, "disabled": false,
            "allocation_strategy": "dynamic_strategy",
        });
        self.put(&key::rc(id), record.to_string()).await?;
        Ok(id)
    }

    pub async fn controller_status(&self, id: RcId) -> anyhow::Result<RcStatus> {
        let entry = self.get(&key::rc_status(id)).await?;
        Ok(entry.map(|entry| RcStatus::decode(&entry.value)).transpose()?.unwrap_or_default())
    }

    /// All pods' statuses.
    pub async fn pods(&self) -> anyhow::Result<BTreeMap<(PodId, NodeName), PodStatus>> {
        let prefix = key::pod_statuses();
        let entries = self.store.list(&prefix, Query::PLAIN).await?.value;
        let pod = |entry: &Entry| {
            let place = key::pod_and_node(&prefix, &entry.key)?;
            Some((place, PodStatus::decode(&entry.value).ok()?))
        };
        Ok(entries.iter().filter_map(pod).collect())
    }
}

pub struct Node {
    pub name: NodeName,
    pub data: PathBuf,
    agent: Option<Process>,
}

impl Node {
    pub fn start(&mut self, lab: &Lab) -> anyhow::Result<()> {
        let data = self.data.display().to_string();
        let name = self.name.as_str();
        let arguments =
            ["node", "run", "--name", name, "--label", "pool=bench", "--data-dir", &data];
        self.agent = Some(lab.daemon(name, &arguments)?);
        Ok(())
    }

    /// `kill -9` of the agent; its pods keep running.
    pub fn kill_agent(&mut self) {
        self.agent = None;
    }

    /// Kills the agent and its pods, as a power failure does.
    pub fn kill_everything(&mut self) {
        self.agent = None;
        pod_processes::kill(&self.data);
    }

    /// The session that holds the node's record.
    pub async fn session(&self, lab: &Lab) -> anyhow::Result<Option<String>> {
        let entry = lab.get(&key::node(&self.name)).await?;
        Ok(entry.and_then(|entry| entry.session).map(|session| session.to_string()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_everything();
    }
}

/// Waits until something holds.
pub async fn until<F: Future<Output = anyhow::Result<bool>>>(
    what: &str,
    mut holds: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !holds().await? {
        if Instant::now() > give_up {
            bail!("never came: {what}");
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// p50 and p99.
pub fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.99))
}
