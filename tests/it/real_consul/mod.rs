//! The built program on a real Consul: a server, farms and agents that can be killed, and command-line users.

mod acl_policies;
mod agents;
mod carried;
mod cells;
mod controllers;
mod gangs;
mod job_types;
mod jobs;
mod peers;
mod services;
mod ssh_keys;
mod tls;
mod token_rotation;
mod unix_socket;

use crate::harness::RealCluster;
use rcfarm_testing::daemon::Daemon;

/// A cluster with one node that has room for the jobs of a test, and the node's agent.
async fn with_job_node() -> (Daemon, RealCluster) {
    let cluster = RealCluster::real().await;
    let agent = cluster.agent_process("n1", &["--capacity", "cpu=8", "--label", "pool=jobs"]);
    (agent, cluster)
}
