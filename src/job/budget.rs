//! The disruption budget of a job and drains: members leave drained nodes as far as it permits. Pure.

use super::members::MemberPod;
use rcfarm_api::budget::{BudgetMembers, allowed};
use rcfarm_api::ids::NodeName;
use rcfarm_api::job::spec::JobSpec;
use rcfarm_api::job::status::PodPhase;

/// Keeps members on nodes that are drained, if too few others are ready: they are not lost then. Members that are not ready
/// leave in any case, and those on nodes that are down ask nobody.
pub(super) fn keep(own: &mut [MemberPod], job: &JobSpec, is_drained: impl Fn(&NodeName) -> bool) {
    let Some(budget) = &job.budget else { return };
    let is_ready = |pod: &MemberPod| pod.phase == PodPhase::Running && pod.ready;
    let would_leave = |pod: &MemberPod| {
        pod.lost && !pod.on_down_node && is_ready(pod) && is_drained(&pod.place.node)
    };
    let count = own.iter().filter(|pod| is_ready(pod) && (!pod.lost || would_leave(pod))).count();
    let available = u32::try_from(count).unwrap_or(u32::MAX);
    let members = BudgetMembers { total: job.replicas(), available };
    let may_leave = allowed(Some(budget), members) as usize;
    for pod in own.iter_mut().filter(|pod| would_leave(pod)).skip(may_leave) {
        pod.lost = false;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::document::read;
    use rcfarm_api::Index;
    use rcfarm_api::ids::PodRef;
    use rcfarm_api::job::spec::Slot;

    fn job(budget: Option<&str>) -> JobSpec {
        let annotations = budget.map(|least| json!({"volcano.sh/jdb-min-available": least}));
        let template = json!({"spec": {"containers": [{"name": "c", "command": ["true"]}]}});
        let document = json!({"metadata": {"annotations": annotations.unwrap_or(json!({}))},
            "spec": {"tasks": [{"name": "a", "replicas": 4, "template": template}]}});
        read(&"ns/j".parse().unwrap(), &document).unwrap().spec
    }

    /// Members on the nodes of these names, each ready; those on `bad` are lost.
    fn pods(nodes: [&str; 4]) -> Vec<MemberPod> {
        let pod = |(index, node): (u32, &str)| MemberPod {
            slot: Slot::new("a", index),
            place: PodRef {
                node: node.parse().unwrap(),
                pod: format!("j-{index}").parse().unwrap(),
            },
            version: 0,
            attempt: 0,
            label_index: Index(1),
            intent: Some(Index(1)),
            phase: PodPhase::Running,
            ready: true,
            exit_code: None,
            restarts: 0,
            lost: node.starts_with("bad") || node.starts_with("down"),
            on_down_node: node.starts_with("down"),
            message: String::new(),
            failure: None,
            is_due: false,
        };
        (0..).zip(nodes).map(pod).collect()
    }

    fn lost(job: &JobSpec, mut own: Vec<MemberPod>) -> Vec<bool> {
        keep(&mut own, job, |node| node.as_str().starts_with("bad"));
        own.iter().map(|pod| pod.lost).collect()
    }

    #[test]
    fn drained_members_leave_as_far_as_the_budget_permits() {
        let nodes = ["bad-1", "bad-2", "good", "good"];
        assert_eq!(lost(&job(None), pods(nodes)), [true, true, false, false]);
        assert_eq!(lost(&job(Some("3")), pods(nodes)), [true, false, false, false]);
        assert_eq!(lost(&job(Some("50%")), pods(nodes)), [true, true, false, false]);
        assert_eq!(lost(&job(Some("4")), pods(nodes)), [false; 4]);
    }

    #[test]
    fn members_that_are_not_ready_use_up_the_budget_and_leave() {
        let mut own = pods(["bad-1", "bad-2", "good", "good"]);
        own[1].ready = false;
        assert_eq!(lost(&job(Some("3")), own.clone()), [false, true, false, false]);
        own[1].phase = PodPhase::Pending;
        assert_eq!(lost(&job(Some("2")), own), [true, true, false, false]);
    }

    #[test]
    fn members_on_nodes_that_are_down_ask_nobody() {
        let own = pods(["down", "bad", "good", "good"]);
        assert_eq!(lost(&job(Some("3")), own), [true, false, false, false]);
    }
}
