//! The node agent: makes `intent/<node>/` real, and says so.
//!
//! Keys read: `intent/<node>/` (one blocking query), `labels/pod/<node>/` for the owners of new pods,
//! `rcfarm/allocations/<node>` for their devices, `reality/<node>/` once per session; before a single instance is
//! started, `status/pods/<pod>/` and the intents and records of other nodes that have the pod.
//! Keys written, all fenced by the lock on `rcfarm/nodes/<node>`: that record and `labels/node/<node>` when a session
//! begins; per pod `reality/<node>/<pod>`, `status/pods/<pod>/<node>`, `health/<pod>/<node>` (a lock of a session
//! that ends with the agent) and the owner's `rcfarm/bell/rc/<rc>`, in one transaction; at a pod's end its
//! job's `rcfarm/bell/job/<ns>/<name>`.
//! Who else writes them: operators and farms the node's record, by CAS; farms answer the doorbells.
//! A crash between two writes leaves pods running under their shims, which the next agent adopts from the data
//! directory ([`state`]), and reports that it writes again.
//!
//! | part | is |
//! |---|---|
//! | [`plan`], [`restart`], [`report`] | pure: what to do next, when to restart, what to write |
//! | [`driver`], [`process`] | what runs pods: the port, and the one for processes |
//! | [`state`], [`logs`], [`cgroup`] | what is on disk |
//! | [`health`] | checks |
//! | [`single_instance`] | that no other node runs a single instance |
//! | [`intents`], [`presence`], [`run`] | what is intended, the node's session, and the loop |

pub mod cgroup;
pub mod driver;
pub mod health;
mod intents;
pub mod logs;
pub mod plan;
mod pod;
mod presence;
pub mod process;
pub mod report;
pub mod restart;
mod run;
pub mod serve;
mod single_instance;
pub mod state;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rcfarm_api::ids::NodeName;
use rcfarm_api::manifest::Resources;
use rcfarm_store::TxnLimits;
use rcfarm_store::session::SessionSettings;

pub use run::{Agent, AgentError};

/// The name under which all agents register.
pub const SERVICE: &str = "rcfarm-node";

/// What becomes of the pods when the agent is told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtShutdown {
    /// They go on, for the next agent to adopt.
    #[default]
    LeavePods,
    /// They are stopped; if the agent is killed, as soon as its lease ends.
    StopPods,
}

/// How an agent is set up.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// The node's name.
    pub name: NodeName,
    /// Where pods on the node can be reached.
    pub address: String,
    /// Where the agent serves logs, as others reach it.
    pub http: Option<String>,
    /// Labels that it puts on the node.
    pub labels: BTreeMap<String, String>,
    /// What the node has.
    pub capacity: Resources,
    /// Variables that every process gets.
    pub env: BTreeMap<String, String>,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// How it proves that it is alive.
    pub session: SessionSettings,
    /// What fits into one transaction.
    pub limits: TxnLimits,
    /// What becomes of the pods when it stops.
    pub at_shutdown: AtShutdown,
}

/// Without Consul an agent tries again at least so often: it is to be in step again soon after Consul is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How an agent proves that it lives, unless set otherwise. Slower than a farm's: there are many agents, and each
/// beat is a request.
#[must_use]
pub fn session_settings() -> SessionSettings {
    SessionSettings {
        check_ttl: Some(Duration::from_secs(10)),
        session_ttl: Duration::from_secs(30),
    }
}
