//! A real Consul for tests: on loopback, on free ports, gone when the test is, however the test ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::process::{Process, consul, free_ports};

/// Name of every test agent's node.
pub const NODE: &str = "test-agent";

/// How often a start is tried: another process may take a port between our look and Consul's.
const STARTS: usize = 5;

/// A start that takes longer hangs. (A `-dev` agent is ready in about a second on an idle machine.)
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running `consul agent -dev`, or a server that keeps its data on disk.
pub struct ConsulServer {
    http: SocketAddr,
    /// `None`: it was killed.
    process: Option<Process>,
    program: PathBuf,
    is_durable: bool,
    dir: TempDir,
}

impl ConsulServer {
    /// A `-dev` agent with default settings.
    pub async fn dev() -> Self {
        Self::with_config("").await
    }

    /// A `-dev` agent with more configuration, in HCL or JSON.
    pub async fn with_config(config: &str) -> Self {
        Self::of(config, false).await
    }

    /// A server that can be killed and started again.
    pub async fn durable() -> Self {
        // Elections of a single server at their fastest.
        Self::of("performance { raft_multiplier = 1 }", true).await
    }

    async fn of(config: &str, is_durable: bool) -> Self {
        let program = consul();
        let mut last = String::new();
        for _ in 0..STARTS {
            match Self::start(&program, config, is_durable).await {
                Ok(server) => return server,
                Err(log) => last = log,
            }
        }
        panic!(
            "{} did not start in {STARTS} attempts; the last one said:\n{last}",
            program.display()
        );
    }

    /// Where its HTTP API listens.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again after [`ConsulServer::kill`], on the same ports and with its data.
    pub async fn start_again(&mut self) {
        let mut last = String::new();
        for _ in 0..STARTS {
            self.process = Some(run(&self.program, &self.dir, self.is_durable));
            match self.wait_until_ready().await {
                Ok(()) => return,
                Err(log) => last = log,
            }
        }
        panic!("it did not come back in {STARTS} attempts:\n{last}");
    }

    async fn start(program: &Path, config: &str, is_durable: bool) -> Result<Self, String> {
        let dir = TempDir::with_prefix_in("consul-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ports: [u16; 3] = free_ports();
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]));
        let own = json!({
            "bind_addr": "127.0.0.1",
            "node_name": NODE,
            "disable_update_check": true,
            "ports": {
                "http": ports[0], "server": ports[1], "serf_lan": ports[2],
                "serf_wan": -1, "dns": -1, "grpc": -1
            }
        });
        std::fs::write(dir.path().join("1.json"), own.to_string()).unwrap();
        std::fs::write(dir.path().join("2.hcl"), config).unwrap();
        let process = Some(run(program, &dir, is_durable));
        let program = program.to_owned();
        let mut server = ConsulServer { http, process, program, is_durable, dir };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Waits for a leader, and for the agent's own node: sessions need it registered and healthy.
    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let health = format!("http://{}/v1/health/node/{NODE}", self.http);
        let give_up = Instant::now() + START_LIMIT;
        loop {
            let runs = self.process.as_mut().is_some_and(Process::runs);
            if !runs || Instant::now() > give_up {
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

fn run(program: &Path, dir: &TempDir, is_durable: bool) -> Process {
    let mut command = Command::new(program);
    command.args(["agent", "-log-level=info", "-config-file"]).arg(dir.path().join("1.json"));
    command.arg("-config-file").arg(dir.path().join("2.hcl"));
    match is_durable {
        true => {
            let data = dir.path().join("data");
            command.args(["-server", "-bootstrap-expect=1", "-data-dir"]).arg(data)
        }
        false => command.arg("-dev"),
    };
    Process::start(&mut command, dir.path(), "log")
}

impl Drop for ConsulServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!("Consul's log is kept: {}", self.dir.path().join("log").display());
        }
    }
}
