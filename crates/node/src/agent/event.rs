//! Events of the agent's loop, and what its other tasks send with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::driver::{ProcessExit, StartFailure, Started};
use super::intended::NodeIntents;
use super::peer_change::PeersSignalled;
use super::peers::PeersRead;
use super::proof::{ProofVerdict, ReportBasis};
use super::report::PodReport;
use super::reported::ChangedReport;
use rcfarm_api::ids::{NodeName, PodId, SessionId};
use rcfarm_api::job::peers::PeersRecord;
use rcfarm_api::node::Health;
use rcfarm_store::{Answer, Claim, Commit, Entry, StoreError};

/// What the agent needs in order to write: a locked node record and two sessions.
#[derive(Debug, Clone)]
pub struct PresenceState {
    /// Fence of every transaction: the lock on the node's record.
    pub claim: Claim,
    /// Session that holds the health keys. It has behavior `delete`, so the keys vanish with the agent; the node's
    /// record stays.
    pub health: SessionId,
    /// Whether the node's own service has a check, which the services of pods follow.
    pub has_check: bool,
}

/// What Consul holds once a transaction is applied, and what that depends on.
#[derive(Debug, Default)]
pub(super) struct SentReports {
    /// `None`: the pod's keys are deleted.
    pub(super) reports: BTreeMap<PodId, Option<PodReport>>,
    /// By position in the transaction, the pod of each guard and what its report is based on.
    pub(super) guards: BTreeMap<usize, (PodId, ReportBasis)>,
}

/// What the loop is told after each read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServiceResult {
    /// Services that the Consul agent has.
    pub(super) registered: usize,
    /// Why services of a pod are not registered.
    pub(super) problems: BTreeMap<PodId, String>,
}

/// The state of an agent at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentGauges {
    /// Whether it is registered and may write.
    pub has_session: bool,
    /// Pods by phase.
    pub pods: BTreeMap<String, u64>,
    /// Pods whose health is critical and that have not ended.
    pub critical: u64,
}

/// Input of the agent's loop. Process events carry the pod and the launchable.
pub(super) enum AgentEvent {
    /// The node is registered and may write.
    Presence(PresenceState),
    /// The session ended.
    SessionLost,
    /// The intents of this node, and when they were asked for.
    Intents(NodeIntents, Instant),
    /// A start finished: the process, or why there is none.
    Started(PodId, String, Result<Started, StartFailure>),
    /// A process ended.
    Exited(PodId, String, ProcessExit),
    /// A task of the pod panicked. With a launchable, that was the task that starts or watches its process.
    PodPanicked { pod: PodId, launchable: Option<String>, panic: String },
    /// A health check returned. `attempt` is the start that was checked.
    HealthChecked { pod: PodId, launchable: String, attempt: u64, health: Health, message: String },
    /// No other node runs this single instance.
    SingleInstance(PodId),
    /// Nodes that may still run this single instance.
    OtherNodes(PodId, Vec<NodeName>),
    /// Pods with a key under `reality/<node>/`.
    Realities(BTreeSet<PodId>),
    /// A transaction of reports finished, with the entries that it left.
    Reported(Result<(Commit, Vec<Entry>), StoreError>, SentReports),
    /// What Consul says of pods that it does not intend.
    Proved(BTreeMap<PodId, ProofVerdict>),
    /// Time to compare the reports in Consul with those that this agent wrote.
    CompareReports,
    /// Pods whose keys in Consul are not those that this agent wrote last, with what it wrote.
    Unreported(BTreeMap<PodId, ChangedReport>),
    /// A watched read of the keys under `reality/<node>/`; `None`: it failed.
    RealitiesListed(Option<Answer<BTreeSet<PodId>>>),
    /// What came of the services.
    ServicesWritten(ServiceResult),
    /// A watched read of where the peers of this node's pods are; `None`: it failed.
    PeersListed(Option<PeersRead>),
    /// Files of a pod, whose intent had this hash, were written for a record, or why not.
    PeersWritten { pod: PodId, hash: u64, record: Arc<PeersRecord>, written: Result<(), String> },
    /// What came of a signal that tells a process of its peers.
    PeersSignalled { pod: PodId, launchable: String, told: PeersSignalled },
    /// Somebody asks for the state.
    Measure(oneshot::Sender<AgentGauges>),
}
