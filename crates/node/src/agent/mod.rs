//! The node agent: runs the pods that `intent/<node>/` asks for and reports their state.
//!
//! Keys read: `intent/<node>/` (one blocking query), `labels/pod/<node>/` for the owners of new pods,
//! `rcfarm/allocations/<node>` for their devices and ports, `rcfarm/peers/<node>/` (one blocking query, while a pod has
//! `peers`), `reality/<node>/` (a blocking query of its keys while there are some, and every five minutes) and then its
//! own reports; before a pod is stopped because it is no longer intended, its `status/pods/<pod>/<node>` and its intent;
//! before a single instance is started, `status/pods/<pod>/` and the intents and records of other nodes that have the
//! pod.
//! Keys written, all fenced by the lock on `rcfarm/nodes/<node>`: that record and `labels/node/<node>` when a session
//! begins; per pod `reality/<node>/<pod>`, `status/pods/<pod>/<node>`, `health/<pod>/<node>` (a lock of a session
//! that ends with the agent) and the owner's `rcfarm/bell/rc/<rc>`, in one transaction; at a pod's end its
//! job's `rcfarm/bell/job/<ns>/<name>`.
//! Who else writes them: operators and farms change the node's record by CAS; farms delete the doorbells; operators and
//! p2-wipe-reality may delete reports, which are written again.
//! Services of pods are registered with the local Consul agent ([`services`]), not by keys.
//! A crash between two writes leaves pods running under their shims. The next agent adopts them from the data
//! directory ([`state`]) and writes all their reports again.
//!
//! | module | contents |
//! |---|---|
//! | [`plan`], [`proof`] | pure: next actions; proof that the intent of a pod is gone |
//! | [`restart`], [`report`] | pure: restart pauses, operations of a report |
//! | `launch` | what a process is started with |
//! | `peers` | files that tell members of jobs where their peers are |
//! | `peer_change` | signals and restarts of members whose peers have moved: pure decision, and what they know |
//! | [`driver`], [`process`] | trait that runs processes; its implementation on this machine |
//! | [`state`], [`logs`], [`cgroup`] | files: the data directory, pod logs, limits |
//! | [`log_position`], [`log_starts`] | places in a log that is rotated; where the output of each start begins |
//! | [`health`] | health checks |
//! | [`metrics`] | counters, and the state of the loop, for `/metrics` |
//! | [`users`] | users that pods may run as |
//! | `single_instance` | check that no other node runs a single instance |
//! | `event`, `intended` | events of the loop, intended pods |
//! | `intents`, `presence` | watch of the intents, session and node record |
//! | `reported`, `realities` | keys of acknowledged reports; watch of `reality/<node>/` |
//! | `proof_check` | reads of reports and intents that prove or refute what the agent assumes |
//! | [`serve`] | server of pod logs |
//! | [`services`], `service_sync` | services of pods in Consul's catalog: pure plan; requests to the local Consul agent |
//! | `pods`, `pod`, `reporter`, `run` | the pods in memory, the writer of reports, the loop |
//! | `ssh_files` | files with which members of jobs reach each other by ssh |
//! | `tasks` | background tasks |

pub mod cgroup;
pub mod driver;
pub mod ended_logs;
mod event;
pub mod health;
pub mod health_check;
mod intended;
mod intents;
mod launch;
pub mod log_position;
pub mod log_starts;
pub mod logs;
pub mod metrics;
mod peer_change;
mod peers;
pub mod plan;
mod pod;
mod pods;
mod presence;
pub mod process;
pub mod proof;
mod proof_check;
mod realities;
pub mod report;
mod reported;
mod reporter;
pub mod restart;
mod run;
pub mod serve;
mod service_sync;
pub mod services;
mod single_instance;
mod ssh_files;
pub mod state;
mod tasks;
pub mod users;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rcfarm_api::ResourceList;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::ports::PortRange;
use rcfarm_store::TxnLimits;
use rcfarm_store::session::SessionSettings;

pub use run::{Agent, AgentError};
pub use ssh_files::SshKeyAccess;
pub use state::LogRetention;
pub use users::PodPermits;

/// Consul service that all agents register.
pub const SERVICE: &str = "rcfarm-node";

/// What happens to the pods when the agent is asked to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtShutdown {
    /// They keep running; the next agent adopts them.
    #[default]
    LeavePods,
    /// They are stopped. If the agent is killed, their shims stop them before its lease ends.
    StopPods,
}

/// Configuration of an agent.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// The node's name.
    pub name: NodeName,
    /// Host or IP address of the node's pods.
    pub address: String,
    /// `host:port` of the agent's log server, as others reach it.
    pub http: Option<String>,
    /// Whether it serves logs on a socket in its data directory.
    pub serves_logs: bool,
    /// Labels that the agent sets on the node.
    pub labels: BTreeMap<String, String>,
    /// Resources of the node.
    pub capacity: ResourceList,
    /// Ports that pods are given; `None`: none, and members of jobs use their framework's ports.
    pub ports: Option<PortRange>,
    /// Environment variables of every process.
    pub env: BTreeMap<String, String>,
    /// The data directory ([`state`]); one agent per directory.
    pub data_dir: PathBuf,
    /// Size in bytes above which a log is rotated.
    pub log_bytes: u64,
    /// How long the logs of jobs' pods are kept once the pods are gone.
    pub ended_logs: LogRetention,
    /// TTLs of the agent's check and session.
    pub session: SessionSettings,
    /// Size limits of one transaction.
    pub limits: TxnLimits,
    /// What happens to the pods when the agent stops.
    pub at_shutdown: AtShutdown,
    /// Users and privileges that pods may have.
    pub permits: PodPermits,
    /// Which ssh keys of jobs it gives to their members.
    pub ssh_keys: SshKeyAccess,
}

/// Longest pause between two attempts to reach Consul: the agent reconnects soon after Consul is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Default TTLs: check 10 s, session 30 s. They are longer than a farm's, because there are many agents and each
/// renewal is a request.
#[must_use]
pub fn session_settings() -> SessionSettings {
    SessionSettings {
        check_ttl: Some(Duration::from_secs(10)),
        session_ttl: Duration::from_secs(30),
    }
}

impl AgentSettings {
    /// Settings of a node without labels, capacity or a log server.
    #[must_use]
    pub fn new(name: NodeName, address: impl Into<String>, data_dir: PathBuf) -> AgentSettings {
        AgentSettings {
            name,
            address: address.into(),
            http: None,
            serves_logs: false,
            labels: BTreeMap::new(),
            capacity: ResourceList::default(),
            ports: None,
            env: BTreeMap::new(),
            data_dir,
            log_bytes: logs::MAX_BYTES,
            ended_logs: LogRetention::default(),
            session: session_settings(),
            limits: TxnLimits::default(),
            at_shutdown: AtShutdown::default(),
            permits: PodPermits::default(),
            ssh_keys: SshKeyAccess::default(),
        }
    }
}

#[cfg(test)]
fn test_settings() -> AgentSettings {
    AgentSettings::new("n1".parse().expect("a name"), "127.0.0.1", PathBuf::new())
}
