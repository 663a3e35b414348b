//! A real Consul on free ports of the loopback interface. It ends with the test process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_store::time::monotonic;
use serde_json::json;
use tempfile::TempDir;

use crate::process::{Process, consul_program, free_ports};

/// Name of a server's node, unless its options name it.
pub const NODE: &str = "test-agent";

/// Number of attempts to start: another process may take a port between the check and Consul's start.
const STARTS: usize = 5;

/// Limit of one start. (A `-dev` agent is ready in about a second on an idle machine.)
const START_LIMIT: Duration = Duration::from_secs(60);

/// Where a server keeps its data.
#[derive(Debug, Clone, Default)]
pub enum ConsulData {
    /// In memory (`-dev`).
    #[default]
    Memory,
    /// In a temporary directory, so that the server can be killed and started again.
    Temporary,
    /// In this directory, which stays.
    At(PathBuf),
}

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct ConsulOptions {
    /// The Consul program; `None`: see [`consul_program`].
    pub program: Option<PathBuf>,
    /// More configuration, in HCL.
    pub config: String,
    /// Where the data is.
    pub data: ConsulData,
    /// Name and ports (HTTP, RPC, gossip) of one of several servers.
    pub member: Option<(String, [u16; 3])>,
    /// Directory in which the server's own directory, with its log, stays. `None`: it is removed with the server.
    pub keep_in: Option<PathBuf>,
}

/// A running Consul server.
pub struct ConsulServer {
    options: ConsulOptions,
    node: String,
    ports: [u16; 3],
    /// `None`: it was killed.
    process: Option<Process>,
    dir: TempDir,
}

impl ConsulServer {
    /// A `-dev` agent with default settings.
    pub async fn dev() -> Self {
        Self::start(ConsulOptions::default()).await
    }

    /// A `-dev` agent with more configuration, in HCL.
    pub async fn with_config(config: &str) -> Self {
        Self::start(ConsulOptions { config: config.to_owned(), ..ConsulOptions::default() }).await
    }

    /// A server that can be killed and started again. Its elections take as little time as Consul allows.
    pub async fn durable() -> Self {
        let config = "performance { raft_multiplier = 1 }".to_owned();
        let data = ConsulData::Temporary;
        Self::start(ConsulOptions { config, data, ..ConsulOptions::default() }).await
    }

    /// A server with `options`.
    ///
    /// # Panics
    /// With Consul's log, when it does not start.
    pub async fn start(options: ConsulOptions) -> Self {
        let mut last = String::new();
        for _ in 0..STARTS {
            match Self::try_start(&options).await {
                Ok(server) => return server,
                Err(log) => last = log,
            }
        }
        panic!("Consul did not start in {STARTS} attempts; its last log:\n{last}");
    }

    /// Address of its HTTP API.
    #[must_use]
    pub fn http(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0]).into()
    }

    /// Its address for other servers.
    #[must_use]
    pub fn rpc(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[1]).into()
    }

    /// A client of it.
    ///
    /// # Panics
    /// When the configuration of a client is wrong.
    #[must_use]
    pub fn client(&self) -> Consul {
        let address = Some(self.http().to_string());
        Consul::new(&ConsulConfig { address, ..ConsulConfig::default() }).expect("a client")
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn stop(&mut self) {
        self.signal("TERM");
        self.process.take().expect("it runs").ended().await;
    }

    /// Sends a signal, by its name without `SIG`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, name: &str) {
        self.process.as_ref().expect("it runs").signal(name);
    }

    /// Starts it if it does not run, on the same ports and with its data; waits until it can be used.
    ///
    /// # Panics
    /// With Consul's log, when it does not start.
    pub async fn until_ready(&mut self) {
        let mut last = String::new();
        for _ in 0..STARTS {
            if !self.process.as_mut().is_some_and(Process::runs) {
                self.run();
            }
            match self.wait_until_ready().await {
                Ok(()) => return,
                Err(log) => last = log,
            }
        }
        panic!("Consul did not start again in {STARTS} attempts; its last log:\n{last}");
    }

    async fn try_start(options: &ConsulOptions) -> Result<Self, String> {
        let member = options.member.clone();
        let (node, ports) = member.unwrap_or_else(|| (NODE.to_owned(), free_ports()));
        let mut dir = match &options.keep_in {
            Some(parent) => TempDir::with_prefix_in(format!("{node}-"), parent),
            None => TempDir::with_prefix("consul-"),
        }
        .expect("a temporary directory");
        dir.disable_cleanup(options.keep_in.is_some());
        let own = json!({
            "bind_addr": "127.0.0.1",
            "node_name": node,
            "log_level": "info",
            "disable_update_check": true,
            "ports": {
                "http": ports[0], "server": ports[1], "serf_lan": ports[2],
                "serf_wan": -1, "dns": -1, "grpc": -1
            }
        });
        for (name, text) in [("1.json", &own.to_string()), ("2.hcl", &options.config)] {
            std::fs::write(dir.path().join(name), text).expect("a file of configuration");
        }
        let options = options.clone();
        let mut server = ConsulServer { options, node, ports, process: None, dir };
        server.run();
        server.wait_until_ready().await?;
        Ok(server)
    }

    fn run(&mut self) {
        let dir = self.dir.path();
        let program = self.options.program.clone().unwrap_or_else(consul_program);
        let mut command = Command::new(program);
        command.args(["agent", "-config-file"]).arg(dir.join("1.json"));
        command.arg("-config-file").arg(dir.join("2.hcl"));
        let data = match &self.options.data {
            ConsulData::Memory => None,
            ConsulData::Temporary => Some(dir.join("data")),
            ConsulData::At(data) => Some(data.clone()),
        };
        // Several servers configure how many they are.
        let alone = self.options.member.is_none().then_some("-bootstrap-expect=1");
        match data {
            Some(data) => command.arg("-server").args(alone).arg("-data-dir").arg(data),
            None => command.arg("-dev"),
        };
        self.process = Some(Process::start(&mut command, dir, "log"));
    }

    /// Waits for a leader, and for the agent's own node: sessions need it registered and healthy.
    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
        let health = format!("http://{}/v1/health/node/{}", self.http(), self.node);
        let give_up = monotonic() + START_LIMIT;
        loop {
            let runs = self.process.as_mut().is_some_and(Process::runs);
            if !runs || monotonic() > give_up {
                return Err(self.log());
            }
            let answer = client.get(&health).timeout(Duration::from_secs(10)).send().await;
            if let Ok(answer) = answer
                && answer.text().await.is_ok_and(|body| body.contains("passing"))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for ConsulServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!("Consul's log is kept: {}", self.dir.path().join("log").display());
        }
    }
}
