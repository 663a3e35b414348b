//! Three Consul servers on loopback that can be killed, frozen and restarted.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_store::{Reader as _, Store};
use serde_json::json;

use super::PATIENCE;
use rcfarm_testing::process::{Process, consul_program, free_ports};

/// The majority is two, so the cluster tolerates one failure.
pub const SERVERS: usize = 3;

pub struct Cluster {
    servers: Vec<Server>,
}

struct Server {
    http: SocketAddr,
    /// Address reported for the leader if it is this server.
    rpc: SocketAddr,
    dir: PathBuf,
    store: Arc<Consul>,
    process: Option<Process>,
}

impl Cluster {
    /// Starts all servers below `scratch`; waits until each has a leader and is healthy.
    pub async fn start(scratch: &Path) -> Cluster {
        let ports: [u16; 3 * SERVERS] = free_ports();
        let peers: Vec<String> = ports.chunks(3).map(|p| format!("127.0.0.1:{}", p[2])).collect();
        let mut cluster = Cluster { servers: Vec::new() };
        for (n, ports) in ports.chunks(3).enumerate() {
            let dir = scratch.join(format!("server-{n}"));
            std::fs::create_dir(&dir).unwrap();
            let config = json!({
                "server": true,
                "bootstrap_expect": SERVERS,
                "bind_addr": "127.0.0.1",
                "node_name": name(n),
                "data_dir": dir.join("data"),
                "retry_join": peers,
                "retry_interval": "1s",
                "performance": {"raft_multiplier": 1},
                // A frozen server must not be replaced.
                "autopilot": {"cleanup_dead_servers": false},
                "disable_update_check": true,
                "ports": {
                    "http": ports[0], "server": ports[1], "serf_lan": ports[2],
                    "serf_wan": -1, "dns": -1, "grpc": -1
                },
            });
            std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
            let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let (http, rpc) = (at(ports[0]), at(ports[1]));
            let config =
                ConsulConfig { address: Some(http.to_string()), ..ConsulConfig::default() };
            let store = Arc::new(Consul::new(&config).unwrap());
            cluster.servers.push(Server { http, rpc, dir, store, process: None });
        }
        for n in 0..SERVERS {
            cluster.start_server(n);
        }
        for n in 0..SERVERS {
            cluster.wait_until_ready(n).await;
        }
        cluster
    }

    /// A client per server.
    pub fn stores(&self) -> Vec<Arc<dyn Store>> {
        self.servers.iter().map(|server| server.store.clone() as Arc<dyn Store>).collect()
    }

    /// Address of a server's HTTP API.
    pub fn http(&self, n: usize) -> SocketAddr {
        self.servers[n].http
    }

    /// The leader according to any server that answers.
    pub async fn leader(&self) -> Option<usize> {
        for server in &self.servers {
            let asked = tokio::time::timeout(Duration::from_secs(1), server.store.leader());
            if let Ok(Ok(leader)) = asked.await
                && let Some(n) = self.servers.iter().position(|s| s.rpc.to_string() == leader)
            {
                return Some(n);
            }
        }
        None
    }

    pub fn start_server(&mut self, n: usize) {
        let server = &mut self.servers[n];
        let mut command = Command::new(consul_program());
        command.args(["agent", "-log-level=info", "-config-file"]);
        command.arg(server.dir.join("config.json"));
        server.process = Some(Process::start(&mut command, &server.dir, "log"));
    }

    /// `kill -9`.
    pub fn kill(&mut self, n: usize) {
        self.servers[n].process = None;
    }

    /// Sends SIGTERM and waits for the end. The server stays a member of the cluster.
    pub async fn shut_down(&mut self, n: usize) {
        let process = self.servers[n].process.take().expect("it runs");
        process.signal("TERM");
        process.ended().await;
    }

    /// Sends a signal to a running server.
    pub fn signal(&self, n: usize, name: &str) {
        self.servers[n].process.as_ref().expect("it runs").signal(name);
    }

    /// Waits until a server has a leader and its node is healthy. Restarts one that ended because a port was in use.
    pub async fn wait_until_ready(&mut self, n: usize) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let health = format!("http://{}/v1/health/node/{}", self.servers[n].http, name(n));
        let start = Instant::now();
        loop {
            let answer = client.get(&health).timeout(Duration::from_secs(2)).send().await;
            if let Ok(answer) = answer
                && answer.text().await.is_ok_and(|body| body.contains("passing"))
            {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "server {n} never got ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
            if !self.servers[n].process.as_mut().is_some_and(Process::runs) {
                self.start_server(n);
            }
        }
    }
}

fn name(n: usize) -> String {
    format!("server-{n}")
}
