//! Gangs for which a scheduler over HTTP names the nodes. They are checked: it may know less about the nodes than farms
//! do, and its answer may be older than the last change.

use std::collections::BTreeMap;

use super::{Candidate, Message, Pass, Why};
use crate::batch::answers::{GangAnswer, GangAsk};
use crate::placement::capacity::{Gang, GangPlacement};
use rcfarm_api::ids::NodeName;
use rcfarm_api::labels::{Labels, Selector};
use rcfarm_api::pod_group::status::PodGroupReason;

impl<'a> Pass<'a, '_> {
    /// Placement of a gang as the scheduler said; `None`: it leaves that to us. A gang about which it has said nothing is
    /// asked about after the pass.
    pub(super) fn answered(
        &mut self,
        c: &Candidate<'a>,
        gang: &Gang,
    ) -> Option<Result<GangPlacement, Why>> {
        let refuse =
            |text: String| Err((PodGroupReason::InsufficientCapacity, Message::Text(text)));
        match self.seen.answers?.about(c.id, gang) {
            None => {
                let ask = GangAsk { id: c.id.clone(), queue: c.queue.clone(), gang: gang.clone() };
                self.plan.asks.push(ask);
                let reason = c.known.map(|known| known.value.reason);
                let reason = reason.unwrap_or(PodGroupReason::InsufficientCapacity);
                Some(Err((reason, Message::Asked)))
            }
            Some(GangAnswer::LeftToFarm) => None,
            Some(GangAnswer::Refused(why)) => Some(refuse(why.clone())),
            Some(GangAnswer::Nodes(found)) => Some(match self.unusable(c, gang, found) {
                None => self.check_beside_head(c, found.clone()),
                Some(why) => refuse(format!("the scheduler's answer cannot be used: {why}")),
            }),
        }
    }

    /// Whether the scheduler is to be asked about the group after this pass.
    pub(super) fn is_asked(&self, c: &Candidate<'a>) -> bool {
        self.plan.asks.last().is_some_and(|ask| ask.id == *c.id)
    }

    /// Why a placement cannot be used: numbers of pods, nodes that are not fit, pods of others with the same ids.
    /// Capacity is checked when it is booked.
    fn unusable(&self, c: &Candidate<'a>, gang: &Gang, found: &GangPlacement) -> Option<String> {
        let wanted: BTreeMap<&str, usize> =
            gang.tasks.iter().map(|task| (&*task.name, task.replicas as usize)).collect();
        let given: BTreeMap<&str, usize> =
            found.tasks.iter().map(|(task, nodes)| (&**task, nodes.len())).collect();
        if wanted != given {
            return Some(format!("nodes for {given:?} in place of {wanted:?}"));
        }
        let fleet = self.seen.fleet;
        let is_fit = |node: &NodeName, selector: &Selector| {
            let labels: Option<&Labels> = fleet.labels.nodes.get(node);
            labels.is_some_and(|labels| selector.matches(labels)) && !fleet.unfit.contains(node)
        };
        let ids = (c.id, c.record.spec.pod_ids);
        found.pods(gang).find_map(|(task, _, node)| {
            if !is_fit(node, &task.selector_or_all()) {
                return Some(format!("task {}: node {node} is not eligible", task.name));
            }
            let (pod, owner) = self.holder(ids, &gang.tasks, node)?;
            Some(format!("{node}: {pod} is the id of a pod of {owner}"))
        })
    }
}
