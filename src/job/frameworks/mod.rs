//! What is particular to a framework: the hooks of Kubeflow's ControllerInterface that make sense here
//! (`kubeflow.md` §5.1), and one implementation for each. Pure.
//!
//! A member is reached at its node's address. Members that share an address would share its ports, too, so each but the
//! first has its ports moved up by one more ([`ClusterPeer::offset`]); with a node each, all have the ports of the reference.

pub mod mpi;
mod pytorch;
mod tensorflow;
#[cfg(test)]
mod tests;
mod volcano;
mod xgboost;

use std::collections::BTreeMap;

use super::machine::PhaseDecision;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{Framework, JobSpec, JobTask, Restart, Slot};
use rcfarm_api::job::status::{JobMembers, JobReason};

pub use volcano::argument;

/// Where a member is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPeer {
    /// A host name or an address; empty while it has no place.
    pub host: String,
    /// By how much its ports are moved up.
    pub offset: u16,
}

impl ClusterPeer {
    fn port(&self, port: u16) -> u16 {
        port.saturating_add(self.offset)
    }

    fn at(&self, port: u16) -> String {
        format!("{}:{}", self.host, self.port(port))
    }
}

/// A job whose members all have a place.
pub struct Cluster<'a> {
    /// Its name.
    pub id: &'a Namespaced,
    /// What it is.
    pub job: &'a JobSpec,
    /// Where each member is reached.
    pub peer: &'a dyn Fn(&Slot) -> ClusterPeer,
}

impl Cluster<'_> {
    fn peer(&self, task: &str, index: u32) -> ClusterPeer {
        (self.peer)(&Slot::new(task, index))
    }

    /// Where the members of a task are reached that have a place.
    fn peers<'t>(&'t self, task: &'t JobTask) -> impl Iterator<Item = ClusterPeer> + 't {
        let all = (0..task.replicas).map(|index| self.peer(&task.name, index));
        all.filter(|peer| !peer.host.is_empty())
    }
}

/// A variable that a member finds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The container that gets it; `None`: every one.
    pub container: Option<&'static str>,
    /// Whether what the user set goes before it.
    pub is_default: bool,
}

fn everywhere(name: impl Into<String>, value: impl ToString) -> Variable {
    Variable { name: name.into(), value: value.to_string(), container: None, is_default: false }
}

fn unless_set(name: impl Into<String>, value: impl ToString) -> Variable {
    Variable { is_default: true, ..everywhere(name, value) }
}

/// How the members of a task stand. A member that failed and is about to be started again is not among the failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// By phase.
    pub members: JobMembers,
    /// Whether the first of them has ended well.
    pub first_succeeded: bool,
}

/// How all members stand, by task.
pub type Counts<'a> = BTreeMap<&'a str, TaskCount>;

/// All together.
#[must_use]
pub fn total(counts: &Counts<'_>) -> JobMembers {
    counts.values().fold(JobMembers::default(), |sum, task| JobMembers {
        pending: sum.pending + task.members.pending,
        running: sum.running + task.members.running,
        succeeded: sum.succeeded + task.members.succeeded,
        failed: sum.failed + task.members.failed,
        terminating: sum.terminating + task.members.terminating,
        unknown: sum.unknown + task.members.unknown,
    })
}

/// What the counts amount to, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameworkOutcome {
    /// For the machine.
    pub verdict: PhaseDecision,
    /// Why, as a fixed token.
    pub reason: JobReason,
    /// Why, for people.
    pub message: String,
}

fn outcome(
    verdict: PhaseDecision,
    reason: JobReason,
    message: impl Into<String>,
) -> FrameworkOutcome {
    FrameworkOutcome { verdict, reason, message: message.into() }
}

/// What is particular to a framework.
pub trait Operator: Send + Sync {
    /// The container whose exit code counts; `None`: the first.
    fn container(&self) -> Option<&'static str>;

    /// Where its members listen: the port's name in that container, and its number unless the container says otherwise;
    /// `None`: members are told of no port, or plugins say which.
    fn port(&self) -> Option<(&'static str, u16)>;

    /// Whether a member is its job's master: the label `job-role`.
    fn is_master(&self, job: &JobSpec, slot: &Slot) -> bool;

    /// What a member finds in its environment.
    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable>;

    /// Members that all others are told where to find: none starts before these have their places.
    fn meets_at(&self, job: &JobSpec) -> Vec<Slot>;

    /// Whether the job runs, has succeeded or has failed.
    fn outcome(&self, job: &JobSpec, counts: &Counts<'_>) -> FrameworkOutcome;
}

/// The operator of a framework.
#[must_use]
pub fn of(framework: Framework) -> &'static dyn Operator {
    match framework {
        Framework::Volcano | Framework::Pod => &volcano::Volcano,
        Framework::TensorFlow => &tensorflow::TensorFlow,
        Framework::PyTorch => &pytorch::PyTorch,
        Framework::Mpi => &mpi::Mpi,
        Framework::XgBoost => &xgboost::XgBoost,
    }
}

/// Where the members of a task are told to listen, before it is moved; `None`: nobody tells them.
pub(super) fn listens(operator: &dyn Operator, task: &JobTask) -> Option<u16> {
    let (name, number) = operator.port()?;
    Some(task.template.port(operator.container()?, name).unwrap_or(number))
}

/// The first member of a task, if it has any.
fn first_of(task: Option<&JobTask>) -> Option<Slot> {
    task.filter(|task| task.replicas > 0).map(|task| Slot::new(&task.name, 0))
}

/// The container of a member whose exit code is the member's.
#[must_use]
pub fn counting_container<'j>(job: &JobSpec, task: &'j JobTask) -> Option<&'j str> {
    let first = || task.template.containers.first().map(|container| container.name.as_str());
    of(job.framework).container().or_else(first)
}

/// What becomes of a member that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// It is started again; `counts`: as one of `backoffLimit`.
    Restart {
        /// Whether it was its own fault.
        counts: bool,
    },
    /// It stays, and the counts tell.
    Stay,
    /// The job has failed.
    FailJob,
}

/// Exit codes from here up mean that the program was ended from outside.
const RETRYABLE: i32 = 128;

/// The measured matrix of restarts (`kubeflow.md` §1.3). A member without an exit code was lost with its node or
/// never ran: that is nobody's fault, so it does not count (D7). Volcano's jobs leave other failures to their policies.
#[must_use]
pub fn after_failure(
    framework: Framework,
    restart: Restart,
    exit_code: Option<i32>,
) -> AfterFailure {
    match (restart, exit_code) {
        (Restart::ExitCode, Some(code)) if code >= RETRYABLE => {
            AfterFailure::Restart { counts: true }
        }
        (Restart::ExitCode, Some(0)) => AfterFailure::Stay,
        (Restart::ExitCode, Some(_)) => AfterFailure::FailJob,
        (Restart::ExitCode, None) => AfterFailure::Restart { counts: false },
        // Nobody's fault, whoever's job it is; what its policies say of it goes before.
        (_, None) if !framework.is_kubeflow() => AfterFailure::Restart { counts: false },
        _ if !framework.is_kubeflow() => AfterFailure::Stay,
        (Restart::Always | Restart::OnFailure, code) => {
            AfterFailure::Restart { counts: code.is_some() }
        }
        (Restart::Never, _) => AfterFailure::Stay,
    }
}

/// The rule that Kubeflow's operators share: one type of member leads, or all workers count.
fn led(
    counts: &Counts<'_>,
    leader: Option<&str>,
    workers_done: impl FnOnce(&TaskCount) -> Option<(JobReason, &'static str)>,
    tolerated: &[&str],
) -> FrameworkOutcome {
    let of = |name: &str| counts.get(name).copied().unwrap_or_default();
    let (name, count) = match leader {
        Some(name) => (name, of(name)),
        None => ("Worker", of("Worker")),
    };
    let members = count.members;
    let all = members.pending + members.running + members.succeeded + members.failed;
    if leader.is_some() && all > 0 && members.succeeded == all {
        return outcome(
            PhaseDecision::Succeeded,
            JobReason::LeaderSucceeded,
            format!("{name} has succeeded"),
        );
    }
    if leader.is_none()
        && let Some((reason, why)) = workers_done(&count)
    {
        return outcome(PhaseDecision::Succeeded, reason, why);
    }
    let failed =
        counts.iter().find(|(name, count)| count.members.failed > 0 && !tolerated.contains(name));
    if let Some((name, count)) = failed {
        let message = format!("{} of {name} failed", count.members.failed);
        return outcome(PhaseDecision::Failed, JobReason::MemberFailed, message);
    }
    if members.running > 0 {
        outcome(PhaseDecision::Enough, JobReason::EnoughRunning, "")
    } else {
        outcome(PhaseDecision::Short, JobReason::Starting, format!("no {name} runs"))
    }
}

fn all_succeeded(count: &TaskCount) -> bool {
    let members = count.members;
    members.succeeded > 0
        && members.pending + members.running + members.failed + members.unknown == 0
}
