//! Actions in a world: faults, and writes of users and operators.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::faults::{NetworkFaults, millis};
use crate::scheduler::Mood;
use crate::workload::hostile::Hostile;
use rcfarm_api::command::CommandAction;

/// One action. Nodes, farms, replication controllers and jobs are numbered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SimAction {
    Fault(Fault),
    Node(NodeAction),
    Rc(RcAction),
    Job(JobAction),
    Flow(OwnerAction),
    /// A hostile tenant writes a record, which stays.
    Tenant(Hostile),
}

/// One injected fault. Numbers are those of farms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    // Processes.
    Kill(usize),
    Stop(usize),
    Start(usize),
    Freeze(usize),
    Thaw(usize),
    KillSession(usize),
    /// The clock jumps by this many seconds.
    Jump(usize, i64),
    // The network of one farm.
    Storm(usize, Box<NetworkFaults>),
    Cut(usize, bool),
    Deaf(usize, bool),
    /// The farm's token may not read below this prefix.
    Hide(usize, Option<String>),
    Forbid(usize, bool),
    // Consul.
    Leaderless(bool),
    SlowLists(#[serde(with = "millis")] Duration),
    Stall(#[serde(with = "millis")] Duration),
    WakeAll,
    Snapshot,
    Restore,
    /// Consul comes back without data, as one that was rebuilt.
    Lose,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeAction {
    /// Its `pool` label. `None`: the labels are malformed.
    Label(usize, Option<String>),
    /// Its services fail their health checks.
    Ill(usize, bool),
    AgentDown(usize),
    AgentUp(usize),
    /// The machine dies with its processes.
    Crash(usize),
    Drain(usize, bool),
    // Of nodes that the real agent runs.
    AgentFreeze(usize, bool),
    AgentCut(usize, bool),
    AgentDeaf(usize, bool),
    AgentStorm(usize, Box<NetworkFaults>),
    /// The agent's token may not read below this prefix.
    AgentHide(usize, Option<String>),
    AgentForbid(usize, bool),
    /// An operator ends the session that holds the node's record.
    AgentSession(usize),
}

/// Action on a replication controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RcAction {
    /// Its scheduler misbehaves.
    Mood(usize, Option<Mood>),
    Scale(usize, i64),
    Disable(usize, bool),
    Tier(usize, String),
    NodeSelector(usize, String),
    Malform(usize),
    BadLabels(usize),
    Mend(usize),
    Delete(usize),
    GivePod(usize, usize),
    DropIntent(usize),
    /// A user takes a pod away and lowers the count, in one breath.
    Deallocate(usize),
    /// A user relabels this node, if the RC has a pod there, and lowers the count, in one breath.
    ScaleOffNode(usize, usize),
    /// A user gives the RC this version of its manifest, in order, as `rcfarm rc update` does.
    Update(usize, usize),
    /// A user puts a pod with the RC's pod id on this node.
    Squat(usize, usize),
    Unsquat(usize, usize),
    HoldLock(usize, bool),
    Litter,
}

/// Action on jobs and queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobAction {
    Submit(usize),
    Suspend(usize, bool),
    Command(usize, CommandAction),
    Scale(usize, usize),
    Delete(usize),
    /// The record is deleted by hand.
    Drop(usize),
    /// Spoiled in one of three ways.
    Malform(usize, usize),
    Mend(usize),
    DropIntent(usize),
    CommandQueue(usize, bool),
    Close(usize, bool),
    /// CPU limit of the queue.
    Limit(usize, u64),
    MalformQueue(usize),
    MendQueue(usize),
    /// The cells become as this configuration says.
    Configure(usize),
    Litter,
}

/// Action on CronJobs, JobFlows, templates, and the jobs that they make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerAction {
    CreateCron(usize),
    SuspendCron(usize, bool),
    /// An unknown field is added, or it is taken away.
    MalformCron(usize, bool),
    DeleteCron(usize),
    /// The record is deleted by hand.
    DropCron(usize),
    CreateFlow(usize),
    MalformFlow(usize, bool),
    DeleteFlow(usize),
    DropFlow(usize),
    /// The template is there, or it is not.
    Template(usize, bool),
    /// A command to one of the jobs that were made. The first number chooses it.
    CommandJob(usize, CommandAction),
    /// A user deletes one of them, by a mark or by hand.
    RemoveJob(usize, bool),
    /// An array.
    SubmitArray(usize),
    /// A job that waits for the array of this number: until it has completed, or has ended anyhow.
    SubmitDependent(usize, bool),
    /// A user dispatches a template with this token.
    Dispatch(usize, usize),
}

impl From<OwnerAction> for SimAction {
    fn from(action: OwnerAction) -> SimAction {
        SimAction::Flow(action)
    }
}

impl From<Fault> for SimAction {
    fn from(fault: Fault) -> SimAction {
        SimAction::Fault(fault)
    }
}

impl From<NodeAction> for SimAction {
    fn from(action: NodeAction) -> SimAction {
        SimAction::Node(action)
    }
}

impl From<RcAction> for SimAction {
    fn from(action: RcAction) -> SimAction {
        SimAction::Rc(action)
    }
}

impl From<JobAction> for SimAction {
    fn from(action: JobAction) -> SimAction {
        SimAction::Job(action)
    }
}

impl From<Hostile> for SimAction {
    fn from(action: Hostile) -> SimAction {
        SimAction::Tenant(action)
    }
}
