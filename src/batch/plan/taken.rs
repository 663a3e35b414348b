//! Placement without nodes on which another owner's pod has an id of the group's pods.

use std::collections::BTreeSet;

use super::Pass;
use crate::placement::capacity::{Decision, Fleet, Gang, GangPlacement, WaitReason, place};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_api::pod_group::spec::{GroupId, TaskSpec};
use rcfarm_api::pod_group::status::PodGroupReason;

/// Bytes of a group's name that each of its pods' ids begins with; longer names may be cut.
const SURE_PREFIX: usize = 100;

impl Pass<'_, '_> {
    /// The placement `found` of a gang of the group `id`; if another owner's pod has an id of the group's pods on one
    /// of its nodes, a placement on other nodes.
    ///
    /// # Errors
    /// Too few other nodes have room: reason and text for people.
    pub(in crate::batch) fn beside(
        &self,
        (id, format): (&GroupId, PodIdFormat),
        gang: &Gang,
        found: GangPlacement,
    ) -> Result<GangPlacement, (PodGroupReason, String)> {
        let node_capacities = self.memory.index.node_capacities().clone();
        let mut fleet: Option<Fleet> = None;
        let (mut found, mut taken) = (found, Vec::new());
        loop {
            let nodes: BTreeSet<&NodeName> = found.tasks.values().flatten().collect();
            let holder = |node| Some((node, self.holder((id, format), &gang.tasks, node)?));
            let others: Vec<_> = nodes.into_iter().filter_map(holder).collect();
            if others.is_empty() {
                return Ok(found);
            }
            let seen =
                || Fleet { node_capacities: node_capacities.clone(), ..self.seen.fleet.clone() };
            let fleet = fleet.get_or_insert_with(seen);
            for (node, (pod, owner)) in others {
                taken.push(format!("{node}: {pod} is the id of a pod of {owner}"));
                fleet.unfit.insert(node.clone());
            }
            let waits = match place(gang, fleet) {
                Decision::Bind(other) => {
                    found = other;
                    continue;
                }
                Decision::Preempt(_) => Vec::new(),
                Decision::Wait(waits) => waits,
            };
            let is_nowhere = waits.iter().any(|wait| wait.reason == WaitReason::NoEligibleNodes);
            let reason = match is_nowhere {
                true => PodGroupReason::NoEligibleNodes,
                false => PodGroupReason::InsufficientCapacity,
            };
            let texts = waits.iter().map(|wait| format!("task {}: {}", wait.task, wait.message));
            let text = texts.chain(taken).collect::<Vec<_>>().join("; ");
            return Err((reason, text));
        }
    }

    /// A pod of another owner on this node that has an id of the group's pods.
    pub(super) fn holder(
        &self,
        (id, format): (&GroupId, PodIdFormat),
        tasks: &[TaskSpec],
        node: &NodeName,
    ) -> Option<(&PodId, &AllocationOwner)> {
        let own = AllocationOwner::of_group(id);
        let name = id.name.as_str();
        let prefix = &name[..name.len().min(SURE_PREFIX)];
        let is_member = |pod: &PodId| {
            let mut tasks = tasks.iter();
            pod.as_str().starts_with(prefix)
                && tasks.any(|task| format.index_of(id, &task.name, pod).is_some())
        };
        let pods = self.memory.index.node_capacities().of(node).allocated.pods.iter();
        let mut others = pods.filter(|(pod, a)| is_member(pod) && a.owner != own);
        others.next().map(|(pod, allocation)| (pod, &allocation.owner))
    }
}
