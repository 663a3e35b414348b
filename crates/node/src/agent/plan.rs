//! Next actions of the agent. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::proof::Proof;
use rcfarm_api::ids::PodId;

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentPodState {
    /// To be started at this time since the agent's start, or later.
    Waiting(Duration),
    /// The driver is starting it.
    Starting,
    Running,
    /// The driver is stopping it.
    Stopping,
    /// Ended, and the restart policy does not start it again.
    Ended,
    /// This node cannot run it, because of its manifest.
    Unfit,
}

impl AgentPodState {
    /// The state of a process that is not started before `then`.
    #[must_use]
    pub fn not_before(self, then: Duration) -> AgentPodState {
        match self {
            AgentPodState::Waiting(at) => AgentPodState::Waiting(at.max(then)),
            state => state,
        }
    }

    fn is_alive(self) -> bool {
        matches!(self, AgentPodState::Starting | AgentPodState::Running | AgentPodState::Stopping)
    }
}

/// Whether other nodes permit the start of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SingleInstance {
    /// The pod is no single instance: other nodes may run it too.
    NotNeeded,
    /// A single instance that was not checked in this session.
    Unchecked,
    /// The check is under way.
    Checking,
    /// No other node runs it.
    Confirmed,
}

/// A pod of the agent, reduced to what the plan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    /// Hash of manifest, devices and ports.
    pub hash: u64,
    /// Whether other nodes permit its start.
    pub single_instance: SingleInstance,
    /// Whether its processes may be started: a report names its intent, or they were started before.
    pub may_start: bool,
    /// Whether a process of it was ever started.
    pub was_started: bool,
    /// What is known of its intent while the list of intents lacks it.
    pub proof: Proof,
    /// When it may be forgotten: an earlier attempt to store that failed.
    pub forget_at: Option<Duration>,
    /// State of each process, by launchable.
    pub processes: BTreeMap<String, AgentPodState>,
}

/// Input of [`plan`].
#[derive(Debug, Clone, Copy)]
pub struct AgentObserved<'a> {
    /// Hash of each intended pod, as last read. `None` before the first read: the pods of the previous agent then count
    /// as intended.
    pub intents: Option<&'a BTreeMap<PodId, u64>>,
    /// Pods without an intent that the mass-deletion guard keeps running.
    pub guarded: &'a BTreeSet<PodId>,
    pub pods: &'a BTreeMap<PodId, AgentPod>,
    /// Whether a proof may be asked for: one at a time.
    pub can_prove: bool,
    /// Whether the agent's session is live, and for long enough to start a single instance.
    pub has_lease: bool,
    /// Time since the agent's start.
    pub now: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAction {
    /// Accept the intended manifest, devices and ports.
    Accept(PodId),
    /// Ask Consul for a proof that the pod's intent is gone.
    Prove(PodId),
    /// Check that no other node runs the pod.
    CheckSingleInstance(PodId),
    /// Start the process of a launchable.
    Start(PodId, String),
    /// Stop the process of a launchable, for a reason.
    Stop(PodId, String, &'static str),
    /// Forget a pod that is not intended and has no process.
    Forget(PodId),
}

/// Output of [`plan`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct AgentPlan {
    /// Actions in the order of execution.
    pub actions: Vec<AgentAction>,
    /// When the next restart pause ends: plan again then, even without an event.
    pub again_at: Option<Duration>,
}

/// Interval of looks at a lease that is too short for a single instance.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);

impl AgentPlan {
    fn wake_at(&mut self, at: Duration) {
        self.again_at = Some(self.again_at.map_or(at, |other| other.min(at)));
    }
}

/// Compares the intended pods with those of the agent. A pod whose hash changed is stopped, then accepted again. A pod
/// whose intent is proved to be gone is stopped, then forgotten ([`super::proof`]).
pub fn plan(observed: AgentObserved<'_>) -> AgentPlan {
    let mut plan = AgentPlan::default();
    for (id, pod) in observed.pods {
        let intended = match observed.intents {
            None => Some(pod.hash),
            Some(_) if observed.guarded.contains(id) => Some(pod.hash),
            Some(intents) => intents.get(id).copied(),
        };
        match intended {
            Some(hash) if hash == pod.hash => keep(&mut plan, observed, id, pod),
            Some(_) => replace(
                &mut plan,
                id,
                pod,
                "its manifest, devices or ports have changed",
                AgentAction::Accept,
            ),
            None => unintended(&mut plan, observed, id, pod),
        }
    }
    let intended = observed.intents.into_iter().flat_map(BTreeMap::keys);
    let new = intended.filter(|id| !observed.pods.contains_key(id));
    plan.actions.extend(new.cloned().map(AgentAction::Accept));
    plan
}

/// A pod that the list of intents lacks. What was never started needs no proof.
fn unintended(plan: &mut AgentPlan, observed: AgentObserved<'_>, id: &PodId, pod: &AgentPod) {
    let gone = "it is no longer intended here";
    match pod.proof {
        Proof::Gone => forget(plan, observed, id, pod, gone),
        _ if !pod.was_started => forget(plan, observed, id, pod, gone),
        Proof::Lost => keep(plan, observed, id, pod),
        Proof::Unclear(at) if at > observed.now => plan.wake_at(at),
        Proof::Unasked | Proof::Unclear(_) if observed.can_prove => {
            plan.actions.push(AgentAction::Prove(id.clone()));
        }
        Proof::Unasked | Proof::Unclear(_) | Proof::Asked => {}
    }
}

fn forget(
    plan: &mut AgentPlan,
    observed: AgentObserved<'_>,
    id: &PodId,
    pod: &AgentPod,
    why: &'static str,
) {
    match pod.forget_at {
        Some(at) if at > observed.now => plan.wake_at(at),
        _ => replace(plan, id, pod, why, AgentAction::Forget),
    }
}

/// Starts the processes whose pause is over. Before the first list of intents no single instance is started: the intent
/// that the last agent stored may be another one now.
fn keep(plan: &mut AgentPlan, observed: AgentObserved<'_>, id: &PodId, pod: &AgentPod) {
    for (name, state) in &pod.processes {
        match state {
            AgentPodState::Waiting(_)
                if pod.single_instance != SingleInstance::NotNeeded && !observed.has_lease =>
            {
                plan.wake_at(observed.now + LEASE_INTERVAL);
            }
            AgentPodState::Waiting(at) if *at <= observed.now => match pod.single_instance {
                SingleInstance::NotNeeded if !pod.may_start => {}
                SingleInstance::NotNeeded | SingleInstance::Confirmed => {
                    plan.actions.push(AgentAction::Start(id.clone(), name.clone()));
                }
                SingleInstance::Unchecked
                    if observed.intents.is_some()
                        && plan.actions.last()
                            != Some(&AgentAction::CheckSingleInstance(id.clone())) =>
                {
                    plan.actions.push(AgentAction::CheckSingleInstance(id.clone()));
                }
                SingleInstance::Unchecked | SingleInstance::Checking => {}
            },
            AgentPodState::Waiting(at) => plan.wake_at(*at),
            _ => {}
        }
    }
}

/// Stops the running processes. When none is left, the action `then` follows.
fn replace(
    plan: &mut AgentPlan,
    id: &PodId,
    pod: &AgentPod,
    why: &'static str,
    then: impl FnOnce(PodId) -> AgentAction,
) {
    let running = pod.processes.iter().filter(|(_, state)| **state == AgentPodState::Running);
    plan.actions.extend(running.map(|(name, _)| AgentAction::Stop(id.clone(), name.clone(), why)));
    if !pod.processes.values().any(|state| state.is_alive()) {
        plan.actions.push(then(id.clone()));
    }
}

#[cfg(test)]
mod tests;
