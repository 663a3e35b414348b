//! Members of an active job that do not run, each with the reason.

use std::collections::BTreeMap;

use serde::Serialize;

use super::find::{FoundJob, FoundPod};
use crate::cli::context::CommandContext;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::job::pod_status::{PodState, stands};
use crate::placement::capacity::{Decision, Gang, place};
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobTask, Slot};
use rcfarm_api::job::status::{JobReason, JobStatus, PodPhase};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::pod_group::status::{GroupPlacement, PlacementState, PodGroupStatus};
use rcfarm_api::scheduler::Packing;
use rcfarm_store::StoreError;

/// Members that a text names at most.
pub(super) const MOST_NAMED: usize = 20;

/// A member that does not run.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct MissingMember {
    pub(super) member: Slot,
    /// Of an array: the index of its task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) array_index: Option<u32>,
    pub(super) node: Option<NodeName>,
    /// Fixed token: a reason of jobs or of PodGroups, `NodeDown`, `Failed`, or `Starting`.
    pub(super) reason: String,
    pub(super) message: String,
}

impl MissingMember {
    /// The line of a text.
    pub(super) fn line(&self) -> String {
        let node = self.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let message = match self.message.is_empty() {
            true => String::new(),
            false => format!(": {}", self.message),
        };
        let index = self.array_index.map(|n| format!(" (index {n})")).unwrap_or_default();
        format!("{}{index}{node}: {}{message}", self.member, self.reason)
    }
}

/// What is known of a job besides its record.
struct JobReading<'a> {
    job: &'a JobSpec,
    status: &'a JobStatus,
    /// The last pod of each member.
    pods: BTreeMap<&'a Slot, &'a FoundPod>,
    group: Option<&'a PodGroupStatus>,
    cluster: &'a ClusterSnapshot,
}

/// Members that do not run and should, in the order of their tasks.
///
/// # Errors
/// Any [`StoreError`].
pub(super) async fn missing(
    context: &CommandContext,
    found: &FoundJob,
    pods: &[FoundPod],
    group: Option<&PodGroupStatus>,
) -> Result<Vec<MissingMember>, StoreError> {
    let (Ok(read), Some(status)) = (&found.read, &found.status) else { return Ok(Vec::new()) };
    let is_active =
        status.state.phase.starts_members() || status.state.phase == JobPhase::Restarting;
    if !is_active || read.spec.suspend {
        return Ok(Vec::new());
    }
    let prefixes = [key::labels(LabelKind::Node), key::nodes(), key::allocations()];
    let cluster = ClusterSnapshot::read_once(context.store.as_ref(), prefixes).await?;
    let attempt = |pod: &FoundPod| (pod.identity.version, pod.identity.attempt);
    let is_own = |pod: &&FoundPod| pod.identity.uid.0 == found.uid();
    let mut pods: Vec<&FoundPod> = pods.iter().filter(is_own).collect();
    pods.sort_by_key(|pod| attempt(pod));
    let pods = pods.into_iter().map(|pod| (&pod.identity.slot, pod)).collect();
    let known = JobReading { job: &read.spec, status, pods, group, cluster: &cluster };
    Ok(known.missing())
}

impl JobReading<'_> {
    fn missing(&self) -> Vec<MissingMember> {
        let mut missing = Vec::new();
        for task in &self.job.tasks {
            let mut without_node = None;
            for index in self.expected(task) {
                let slot = Slot::new(&task.name, index);
                let why = match self.pods.get(&slot) {
                    Some(pod) => self.why_not_running(pod),
                    None => self.why_no_pod(task, &slot, &mut without_node),
                };
                let Some((node, reason, message)) = why else { continue };
                let array_index = self.array_index(index);
                missing.push(MissingMember { member: slot, array_index, node, reason, message });
            }
        }
        missing
    }

    /// Members that should run. Those of an array for which no task is left are not missed.
    fn expected(&self, task: &JobTask) -> Vec<u32> {
        match (&self.job.array, &self.status.array) {
            (Some(array), Some(progress)) => progress.busy(array, task.replicas),
            _ => (0..task.replicas).collect(),
        }
    }

    /// The task that a member of an array runs, or will start.
    fn array_index(&self, member: u32) -> Option<u32> {
        let progress = self.status.array.as_ref()?;
        progress.members.get(&member).copied().filter(|index| !progress.has_ended(*index))
    }

    /// `None`: it runs, or has succeeded.
    fn why_not_running(&self, pod: &FoundPod) -> Option<Why> {
        let node = &pod.place.node;
        let state = pod.status.as_ref().map(stands);
        let phase = state.as_ref().map_or(PodPhase::Pending, |state| state.phase);
        let is_down = self.cluster.readiness(node) == NodeReadiness::Down;
        let (reason, message) = match (phase, state) {
            (PodPhase::Succeeded, _) => return None,
            (PodPhase::Failed, Some(state)) => ("Failed".to_owned(), failed(&state)),
            _ if is_down => ("NodeDown".to_owned(), "its node's agent is gone".to_owned()),
            (PodPhase::Running, _) => return None,
            (_, Some(state)) => (JobReason::Starting.to_string(), state.message),
            (_, None) => {
                let message = "its node has not reported it yet".to_owned();
                (JobReason::Starting.to_string(), message)
            }
        };
        Some((Some(node.clone()), reason, message))
    }

    /// `without_node`: why members of its task have no node, once it is known.
    fn why_no_pod(
        &self,
        task: &JobTask,
        slot: &Slot,
        without_node: &mut Option<(String, String)>,
    ) -> Option<Why> {
        let (name, state) = (task.lower_name(), &self.status.state);
        let placement = self.group.and_then(|group| group.placement.as_ref());
        let bound = placement.filter(|place| place.state == PlacementState::Bound);
        let Some(bound) = bound else {
            let (reason, message) = match self.group {
                Some(group) => {
                    (group.reason.to_string(), of_task(&group.message, &name).to_owned())
                }
                None => (state.reason.clone(), state.message.clone()),
            };
            return Some((None, reason, message));
        };
        let node_in = |nodes: &BTreeMap<String, Vec<Option<NodeName>>>| {
            nodes.get(&name)?.get(slot.index as usize)?.clone()
        };
        if node_in(&bound.ended).is_some() {
            return None;
        }
        let Some(node) = node_in(&bound.members) else {
            let why = || self.why_no_node(task, bound);
            let (reason, message) = without_node.get_or_insert_with(why).clone();
            return Some((None, reason, message));
        };
        let (reason, message) = self.why_not_started(task, slot, &node);
        Some((Some(node), reason, message))
    }

    fn why_not_started(&self, task: &JobTask, slot: &Slot, node: &NodeName) -> (String, String) {
        let (status, state) = (self.status, &self.status.state);
        let memory = status.tasks.get(&task.name);
        let paused = memory.and_then(|memory| memory.not_before.get(&slot.index));
        if let Some(until) = status.not_before.as_ref().or(paused) {
            return (JobReason::RestartDelayed.to_string(), format!("it starts again at {until}"));
        }
        match self.cluster.readiness(node) {
            NodeReadiness::Down => {
                return ("NodeDown".to_owned(), "its node's agent is gone".to_owned());
            }
            NodeReadiness::Draining => {
                return ("Draining".to_owned(), "its node takes no pods".to_owned());
            }
            _ => {}
        }
        let has_started = memory.is_some_and(|memory| !memory.started.is_empty());
        if !task.depends_on.is_empty() && !has_started {
            let message = format!("its task waits for {}", task.depends_on.join(", "));
            return (JobReason::WaitingForDependency.to_string(), message);
        }
        let of_state = [
            JobReason::PlaceTaken,
            JobReason::WaitingForOldMembers,
            JobReason::MembersUnplaced,
            JobReason::Quarantined,
            JobReason::HookFailed,
            JobReason::ShapeChanged,
        ];
        if of_state.iter().any(|reason| reason.to_string() == state.reason) {
            return (state.reason.clone(), state.message.clone());
        }
        (JobReason::Starting.to_string(), "its pod is not created yet".to_owned())
    }

    /// Why a member of a group that is placed has no node itself.
    fn why_no_node(&self, task: &JobTask, bound: &GroupPlacement) -> (String, String) {
        let name = task.lower_name();
        let resources = bound.asks.get(&name).cloned();
        let one = TaskSpec {
            resources: resources.unwrap_or_else(|| task.template.resources().nonzero()),
            node_selector: task.template.node_selector.to_string(),
            replicas: 1,
            ports: 0,
            name,
        };
        let fleet = self.cluster.fleet();
        let packing = Packing::default();
        match place(&Gang { name: String::new(), packing, tasks: vec![one] }, &fleet) {
            Decision::Wait(waits) => match waits.into_iter().next() {
                Some(wait) => (wait.reason.to_string(), wait.message),
                None => (JobReason::MembersUnplaced.to_string(), String::new()),
            },
            Decision::Bind(_) | Decision::Preempt(_) => {
                let message = format!(
                    "a node has room for it; what its queue has left: rcfarm queue get {}",
                    self.job.queue
                );
                (JobReason::MembersUnplaced.to_string(), message)
            }
        }
    }
}

/// Node, reason and message.
type Why = (Option<NodeName>, String, String);

/// The part of a group's message about one of its tasks; all of it, if it does not name the task.
fn of_task<'m>(message: &'m str, task: &str) -> &'m str {
    let start = format!("task {task}: ");
    let Some(at) = message.find(&start) else { return message };
    let own = &message[at + start.len()..];
    own.split("; task ").next().unwrap_or(own)
}

fn failed(state: &PodState) -> String {
    let code = state.exit_code(None).map(|code| format!("exit code {code}")).unwrap_or_default();
    let message = state.failure.as_ref().map_or(state.message.as_str(), |one| one.message.as_str());
    match (code.is_empty(), message.is_empty()) {
        (true, _) => message.to_owned(),
        (_, true) => code,
        _ => format!("{code}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_group_is_divided_by_task() {
        let message = "task ps: room for 0 of 1; n1: full; task w: no ready node matches";
        assert_eq!(of_task(message, "ps"), "room for 0 of 1; n1: full");
        assert_eq!(of_task(message, "w"), "no ready node matches");
        assert_eq!(of_task("its queue is full", "w"), "its queue is full");
    }
}
