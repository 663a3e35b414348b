//! Three Consul servers on loopback.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcfarm_store::Store;
use rcfarm_testing::consul_server::{ConsulData, ConsulOptions, ConsulServer};
use rcfarm_testing::process::free_ports;

/// The majority is two, so the cluster tolerates one failure.
pub const SERVERS: usize = 3;

/// The servers, and a client of each.
pub struct Cluster {
    pub servers: [ConsulServer; SERVERS],
    pub stores: Vec<Arc<dyn Store>>,
}

impl Cluster {
    /// Starts all servers below `scratch`; waits until each has a leader and is healthy.
    pub async fn start(scratch: &Path) -> Cluster {
        let ports: [u16; 3 * SERVERS] = free_ports();
        let peers: Vec<String> = ports.chunks(3).map(|p| format!("127.0.0.1:{}", p[2])).collect();
        // A frozen server must not be replaced.
        let config = format!(
            "bootstrap_expect = {SERVERS}\nretry_join = {peers:?}\nretry_interval = \"1s\"\n\
             performance {{ raft_multiplier = 1 }}\nautopilot {{ cleanup_dead_servers = false }}"
        );
        let server = |n: usize| {
            let ports = [ports[3 * n], ports[3 * n + 1], ports[3 * n + 2]];
            ConsulServer::start(ConsulOptions {
                program: None,
                config: config.clone(),
                data: ConsulData::Temporary,
                member: Some((format!("server-{n}"), ports)),
                keep_in: Some(scratch.to_owned()),
            })
        };
        let servers: [ConsulServer; SERVERS] = tokio::join!(server(0), server(1), server(2)).into();
        let store = |server: &ConsulServer| Arc::new(server.client()) as Arc<dyn Store>;
        let stores = servers.iter().map(store).collect();
        Cluster { servers, stores }
    }

    /// The leader according to any server that answers.
    pub async fn leader(&self) -> Option<usize> {
        for store in &self.stores {
            let asked = tokio::time::timeout(Duration::from_secs(1), store.leader());
            if let Ok(Ok(leader)) = asked.await
                && let Some(n) = self.servers.iter().position(|s| s.rpc().to_string() == leader)
            {
                return Some(n);
            }
        }
        None
    }
}
