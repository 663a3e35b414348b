//! What an agent does next. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use rcfarm_api::ids::PodId;

/// How a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentPodState {
    /// It is to be started, from this moment on.
    Waiting(Instant),
    /// It is being started.
    Starting,
    /// It runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It ended, and is not started again.
    Ended,
    /// It cannot be run.
    Unfit,
}

impl AgentPodState {
    fn is_alive(self) -> bool {
        matches!(self, AgentPodState::Starting | AgentPodState::Running | AgentPodState::Stopping)
    }
}

/// Whether a pod may be started as far as other nodes are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SingleInstance {
    /// Others may run it, too.
    NotNeeded,
    /// Never two of it alive, and nobody has looked yet.
    Unasked,
    /// Somebody is looking.
    Asked,
    /// No other node runs it.
    Sure,
}

/// A pod that the agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    /// Hash of its manifest.
    pub hash: u64,
    /// Whether others run it.
    pub single_instance: SingleInstance,
    /// Its processes.
    pub processes: BTreeMap<String, AgentPodState>,
}

/// What the agent sees.
#[derive(Debug, Clone, Copy)]
pub struct AgentObserved<'a> {
    /// Pods intended for this node with the hashes of their manifests, as last read; `None` before the first read:
    /// what was intended when the last agent ran still counts.
    pub intents: Option<&'a BTreeMap<PodId, u64>>,
    /// Pods that are missing from the intents in a way that is not believed.
    pub doubted: &'a BTreeSet<PodId>,
    /// Pods that the agent knows.
    pub pods: &'a BTreeMap<PodId, AgentPod>,
    /// Whether the node can prove that it lives.
    pub has_lease: bool,
    /// Now.
    pub now: Instant,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAction {
    /// Take the intended manifest as the pod's.
    Take(PodId),
    /// Find out whether another node runs the pod.
    Ask(PodId),
    /// Start a process.
    Start(PodId, String),
    /// Stop a process.
    Stop(PodId, String, &'static str),
    /// Nothing of the pod lives and nobody wants it: forget it.
    Forget(PodId),
}

/// What to do, and when to look again even if nothing happens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct AgentPlan {
    /// In order.
    pub actions: Vec<AgentAction>,
    /// The end of the next pause.
    pub again_at: Option<Instant>,
}

/// Decides.
pub fn plan(seen: AgentObserved<'_>) -> AgentPlan {
    let mut plan = AgentPlan::default();
    for (id, pod) in seen.pods {
        let wanted = match seen.intents {
            None => Some(pod.hash),
            Some(_) if seen.doubted.contains(id) => Some(pod.hash),
            Some(intents) => intents.get(id).copied(),
        };
        match wanted {
            Some(hash) if hash == pod.hash => keep(&mut plan, seen, id, pod),
            Some(_) => replace(
                &mut plan,
                id,
                pod,
                "its manifest or its devices have changed",
                AgentAction::Take,
            ),
            None => {
                replace(&mut plan, id, pod, "it is no longer intended here", AgentAction::Forget)
            }
        }
    }
    let new = seen.intents.into_iter().flat_map(BTreeMap::keys);
    plan.actions
        .extend(new.filter(|id| !seen.pods.contains_key(id)).cloned().map(AgentAction::Take));
    plan
}

/// Starts what is due.
fn keep(plan: &mut AgentPlan, seen: AgentObserved<'_>, id: &PodId, pod: &AgentPod) {
    for (name, state) in &pod.processes {
        match state {
            AgentPodState::Waiting(_)
                if pod.single_instance != SingleInstance::NotNeeded && !seen.has_lease => {}
            AgentPodState::Waiting(at) if *at <= seen.now => match pod.single_instance {
                SingleInstance::NotNeeded | SingleInstance::Sure => {
                    plan.actions.push(AgentAction::Start(id.clone(), name.clone()));
                }
                SingleInstance::Unasked
                    if plan.actions.last() != Some(&AgentAction::Ask(id.clone())) =>
                {
                    plan.actions.push(AgentAction::Ask(id.clone()));
                }
                SingleInstance::Unasked | SingleInstance::Asked => {}
            },
            AgentPodState::Waiting(at) => {
                plan.again_at = Some(plan.again_at.map_or(*at, |other| other.min(*at)));
            }
            _ => {}
        }
    }
}

/// Stops what runs; when nothing lives any more, goes on to `then`.
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
