//! Framework-specific rules: the applicable hooks of Kubeflow's ControllerInterface (`kubeflow.md` §5.1). Pure.
//!
//! A member's address is that of its node. The node gives a port to each member that listens ([`Operator::listeners`]).
//! Where it has no range of ports, members of a job at the same address get different ports: [`ClusterPeer::offset`] is
//! added to each port.

mod described;
pub mod mpi;
mod pytorch;
pub mod ray;
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
use rcfarm_api::manifest::{PeerForm, PeerPart, PeersStanza};

pub(super) use volcano::TASK_INDEX;
pub use volcano::{argument, ssh};

/// Address of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPeer {
    /// Host name or IP address; empty without a node.
    pub host: String,
    /// Added to each of its ports, unless it was given one.
    pub offset: u16,
    /// Port that its node gave to it.
    pub assigned: Option<u16>,
}

impl ClusterPeer {
    /// Where it listens. `port`: of its framework.
    pub(super) fn port(&self, port: u16) -> u16 {
        self.assigned.unwrap_or_else(|| port.saturating_add(self.offset))
    }

    fn at(&self, port: u16) -> String {
        format!("{}:{}", self.host, self.port(port))
    }
}

/// A job with the addresses of its members.
pub struct Cluster<'a> {
    /// Namespace and name of the job.
    pub id: &'a Namespaced,
    pub job: &'a JobSpec,
    /// Address of each member.
    pub peer: &'a dyn Fn(&Slot) -> ClusterPeer,
}

impl Cluster<'_> {
    fn peer(&self, task: &str, index: u32) -> ClusterPeer {
        (self.peer)(&Slot::new(task, index))
    }

    /// Addresses of a task's placed members.
    fn peers<'t>(&'t self, task: &'t JobTask) -> impl Iterator<Item = ClusterPeer> + 't {
        let all = (0..task.replicas).map(|index| self.peer(&task.name, index));
        all.filter(|peer| !peer.host.is_empty())
    }
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable {
    pub name: String,
    pub value: String,
    /// Container that gets it; `None`: all containers.
    pub container: Option<&'static str>,
    /// Whether the user's value takes precedence.
    pub is_default: bool,
}

pub(super) fn everywhere(name: impl Into<String>, value: impl ToString) -> Variable {
    Variable { name: name.into(), value: value.to_string(), container: None, is_default: false }
}

fn unless_set(name: impl Into<String>, value: impl ToString) -> Variable {
    Variable { is_default: true, ..everywhere(name, value) }
}

/// Counts of a task's members. A failed member that will be restarted counts as pending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCount {
    /// Members by phase.
    pub members: JobMembers,
    /// Whether the member with index 0 has succeeded.
    pub first_succeeded: bool,
}

pub type TaskCounts<'a> = BTreeMap<&'a str, TaskCount>;

/// Sum over all tasks.
#[must_use]
pub fn total(counts: &TaskCounts<'_>) -> JobMembers {
    counts.values().fold(JobMembers::default(), |sum, task| JobMembers {
        pending: sum.pending + task.members.pending,
        running: sum.running + task.members.running,
        succeeded: sum.succeeded + task.members.succeeded,
        failed: sum.failed + task.members.failed,
        terminating: sum.terminating + task.members.terminating,
        unknown: sum.unknown + task.members.unknown,
    })
}

/// Result of the counts, with reason and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameworkOutcome {
    /// Input of the state machine.
    pub verdict: PhaseDecision,
    /// Reason for the status.
    pub reason: JobReason,
    /// Message for users.
    pub message: String,
}

fn outcome(
    verdict: PhaseDecision,
    reason: JobReason,
    message: impl Into<String>,
) -> FrameworkOutcome {
    FrameworkOutcome { verdict, reason, message: message.into() }
}

/// Framework-specific rules.
pub trait Operator: Send + Sync {
    /// Name of the container port that members listen on, and its default. `None`: members get no port, or plugins set
    /// it.
    fn port(&self) -> Option<(&'static str, u16)> {
        None
    }

    /// Port at which a task's members listen, before they get one of their node; `None`: they get no port.
    fn listens(&self, job: &JobSpec, task: &JobTask) -> Option<u16> {
        listens(job.framework, task)
    }

    /// Number of a task's first members that need a port of their own.
    fn listeners(&self, _: &JobSpec, _: &JobTask) -> u32 {
        0
    }

    /// Whether the member gets the label `job-role: master`.
    fn is_master(&self, _: &JobSpec, slot: &Slot) -> bool {
        slot.task == "Master"
    }

    /// Environment variables of a member.
    fn environment(&self, cluster: &Cluster<'_>, slot: &Slot) -> Vec<Variable>;

    /// Files and variables of a member that follow the addresses of the others. A variable has the value that
    /// [`Operator::environment`] gives it. Empty: it is told of nobody.
    fn peers(&self, job: &JobSpec, slot: &Slot) -> PeersStanza;

    /// Members whose addresses all others need: no member starts before they have nodes.
    fn meets_at(&self, job: &JobSpec) -> Vec<Slot>;

    /// Result of the counts.
    fn outcome(&self, job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome;
}

/// `TF_CONFIG`, as a variable and as a file.
fn tf_config_of(parts: Vec<PeerPart>) -> PeersStanza {
    PeersStanza {
        files: [("tf_config.json".to_owned(), parts.clone())].into(),
        variables: [("TF_CONFIG".to_owned(), parts)].into(),
        ..PeersStanza::default()
    }
}

/// Address and port of a member, as variables of these names.
fn told_of(task: &str, index: u32, names: &[(&str, PeerForm)]) -> PeersStanza {
    let one = |(name, form): &(&str, PeerForm)| {
        ((*name).to_owned(), vec![PeerPart::one(task, index, *form)])
    };
    PeersStanza { variables: names.iter().map(one).collect(), ..PeersStanza::default() }
}

/// Message of a job whose replicas are 0.
const NO_MEMBERS: &str = "its replicas are 0; raise them to start it";

/// Result of the counts by the rules of the job's framework. A job without members neither ends nor fails.
#[must_use]
pub fn outcome_of(job: &JobSpec, counts: &TaskCounts<'_>) -> FrameworkOutcome {
    match job.replicas() == 0 && job.framework.is_kubeflow() {
        true => outcome(PhaseDecision::Short, JobReason::NoMembers, NO_MEMBERS),
        false => of(job.framework).outcome(job, counts),
    }
}

/// Rules of a framework.
#[must_use]
pub fn of(framework: Framework) -> &'static dyn Operator {
    match framework {
        Framework::Volcano | Framework::Pod => &volcano::Volcano,
        Framework::TensorFlow => &tensorflow::TensorFlow,
        Framework::PyTorch => &pytorch::PyTorch,
        Framework::Mpi => &mpi::Mpi,
        Framework::XgBoost => &xgboost::XgBoost,
        Framework::Described => &described::Described,
    }
}

/// Port of a task's members, without offset; `None`: they get no port.
fn listens(framework: Framework, task: &JobTask) -> Option<u16> {
    let (name, number) = of(framework).port()?;
    Some(task.template.port(framework.container()?, name).unwrap_or(number))
}

/// Member with index 0, if the task has members.
fn first_of(task: Option<&JobTask>) -> Option<Slot> {
    task.filter(|task| task.replicas > 0).map(|task| Slot::new(&task.name, 0))
}

/// Container whose exit code is the member's.
#[must_use]
pub fn counting_container<'j>(job: &'j JobSpec, task: &'j JobTask) -> Option<&'j str> {
    let first = || task.template.containers.first().map(|container| container.name.as_str());
    job.container().or_else(first)
}

/// Action after the failure of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    Restart {
        /// Whether it counts towards `backoffLimit`.
        counts: bool,
    },
    /// Leave it; the counts decide.
    Stay,
    FailJob,
}

/// Exit codes from here on mean a kill by a signal.
const RETRYABLE: i32 = 128;

/// Restart matrix (`kubeflow.md` §1.3). A member without an exit code was lost with its node or never ran, so its
/// restart does not count (D7). Other failures in Volcano jobs are left to their policies.
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
        // Policies of the job take precedence.
        (_, None) if !framework.is_kubeflow() => AfterFailure::Restart { counts: false },
        _ if !framework.is_kubeflow() => AfterFailure::Stay,
        (Restart::Always | Restart::OnFailure, code) => {
            AfterFailure::Restart { counts: code.is_some() }
        }
        (Restart::Never, _) => AfterFailure::Stay,
    }
}

/// Rule of Kubeflow's operators: a leading replica type decides; without one, all workers.
fn led(
    counts: &TaskCounts<'_>,
    leader: Option<&str>,
    workers_done: impl FnOnce(&TaskCount) -> Option<(JobReason, &'static str)>,
    tolerated: &[&str],
) -> FrameworkOutcome {
    let name = leader.unwrap_or("Worker");
    let done = |count: &TaskCount| {
        let members = count.members;
        let all = members.pending + members.running + members.succeeded + members.failed;
        let succeeded = || (JobReason::LeaderSucceeded, format!("{name} has succeeded"));
        match leader {
            Some(_) => (all > 0 && members.succeeded == all).then(succeeded),
            None => workers_done(count).map(|(reason, why)| (reason, why.to_owned())),
        }
    };
    decided(counts, name, done, tolerated)
}

/// One replica type decides when the job has succeeded; a member that fails, of a type that is not `tolerated`, fails it.
fn decided(
    counts: &TaskCounts<'_>,
    name: &str,
    done: impl FnOnce(&TaskCount) -> Option<(JobReason, String)>,
    tolerated: &[&str],
) -> FrameworkOutcome {
    let count = counts.get(name).copied().unwrap_or_default();
    if let Some((reason, why)) = done(&count) {
        return outcome(PhaseDecision::Succeeded, reason, why);
    }
    let failed =
        counts.iter().find(|(name, count)| count.members.failed > 0 && !tolerated.contains(name));
    if let Some((name, count)) = failed {
        let message = format!("{} of {name} failed", count.members.failed);
        return outcome(PhaseDecision::Failed, JobReason::MemberFailed, message);
    }
    if count.members.running > 0 {
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
