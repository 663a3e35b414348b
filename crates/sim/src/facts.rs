//! What the checks know besides the store: authors of writes, and the processes with their sessions and clocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use rcfarm_api::Timestamp;
use rcfarm_api::ids::{FarmName, NodeName, PodId, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::labels::Selector;
use rcfarm_store::Op;
use rcfarm_testing::clock::VirtualClock;

/// Greatest age of a view that a live farm acts on. Where no transaction guards a rule (labels of nodes, health), the
/// rule holds if the write was right at some moment within this time.
pub const VIEW: Duration = Duration::from_secs(25);

/// The TTL of the check of simulated farms.
pub const CHECK_TTL: Duration = Duration::from_secs(2);

/// After the end of the faults a farm may have to be claimed, or to wait for a quarantine.
pub const AFTER_FAULTS: Duration = Duration::from_secs(150);

/// A farm notices within this time that its clock was set.
pub const CLOCK_NOTICED: Duration = Duration::from_secs(60);

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: u32,
    /// What happened.
    pub what: String,
}

/// Collects violations: the number of the invariant, and what happened.
pub type Report<'a> = &'a mut dyn FnMut(u32, String);

/// Author of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimActor {
    /// Consul itself, for keys that expire.
    Consul,
    /// A user, or the setup of the world.
    User,
    /// The stand-in of a node's agent.
    Node,
    /// The real agent of the node of this number.
    Agent(u32),
    /// A farm's process.
    Process(u32),
}

/// A farm's process.
#[derive(Debug, Clone)]
pub struct SimProcess {
    pub farm: FarmName,
    pub selector: Selector,
}

/// A process that a machine has run.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessRun {
    /// The launchable of its pod.
    pub launchable: String,
    /// Its process id. No other run on the machine has it. 0: it could not be started.
    pub pid: i32,
    /// The manifest that it was started from.
    pub manifest: Arc<str>,
    /// When it was started, since the start of the world.
    pub since: Duration,
    /// Its exit code as a status says it, once it has ended: -1 when a signal ended it or nothing is known.
    pub exit_code: Option<i32>,
}

/// Runs by pod, in their order.
pub type Runs = BTreeMap<PodId, Vec<ProcessRun>>;

/// A machine that the real agent runs: what its processes did.
pub trait MachineRuns: Send + Sync {
    /// Whether it has power.
    fn is_on(&self) -> bool;

    /// Shows all runs so far, once.
    fn look(&self, look: &mut dyn FnMut(&Runs));
}

impl dyn MachineRuns + '_ {
    /// What `look` finds in all runs so far.
    pub fn runs<T>(&self, look: impl FnOnce(&Runs) -> T) -> T {
        let (mut look, mut found) = (Some(look), None);
        MachineRuns::look(self, &mut |runs| found = look.take().map(|look| look(runs)));
        found.expect("a machine shows its runs")
    }
}

/// What the checks know besides the store: authors of writes, and the processes with their sessions and clocks.
#[derive(Default)]
pub struct CheckFacts {
    /// The processes. Each start of a farm is one.
    pub processes: BTreeMap<u32, SimProcess>,
    /// The clock of the users, which is right.
    pub users_clock: Option<Arc<VirtualClock>>,
    /// Since when nothing is at fault any more.
    pub healed_at: Option<Timestamp>,
    /// The clock of each process.
    pub clocks: BTreeMap<u32, Arc<VirtualClock>>,
    /// The process that created each session.
    pub sessions: BTreeMap<SessionId, u32>,
    /// Since when each process has been reading the store.
    pub looks_since: BTreeMap<u32, Duration>,
    /// The session that each process relies on.
    pub current: BTreeMap<u32, SessionId>,
    /// The machines of nodes that the real agent runs: what their processes did.
    pub machines: BTreeMap<NodeName, Arc<dyn MachineRuns>>,
    /// Records whose pods a user changed by hand, and when last. The audit log does not show these changes.
    pub by_hand: BTreeMap<RcId, Duration>,
}

/// Until when a process may rely on its session, from the answers that it got.
#[derive(Debug, Clone, Default)]
pub struct SessionProof {
    /// Until when the last acknowledged heartbeat is good. `None`: there is no check.
    pub check: Option<Instant>,
    /// Until when the last acknowledged renewal is good. `None`: there is no session yet.
    pub renewal: Option<Instant>,
    /// The check's TTL, if there is one, and the session's.
    pub terms: (Option<Duration>, Duration),
}

impl SessionProof {
    /// 2: whether a write may be started now.
    #[must_use]
    pub fn holds(&self, now: Instant) -> bool {
        [self.check, self.renewal].into_iter().flatten().all(|until| now < until)
    }
}

/// Whether a transaction is a controller's: it replaces its record's status.
#[must_use]
pub fn is_controllers(ops: &[Op]) -> bool {
    let statuses = [
        key::rc_statuses(),
        key::job_statuses(),
        key::scheduler_statuses(),
        key::cron_job_statuses(),
        key::job_flow_statuses(),
    ];
    let of_status = |op: &Op| statuses.iter().any(|tree| tree.tail(op.subject()).is_some());
    ops.iter().any(of_status)
}
