//! Selection of audit records. Pure.

use rcfarm_api::Timestamp;
use rcfarm_api::audit::{AuditRecord, Details};
use rcfarm_api::ids::{Namespaced, NodeName, QueueName, RcId};

/// Selects the records to print.
pub(super) struct Filter {
    pub(super) since: Option<Timestamp>,
    pub(super) rc: Option<RcId>,
    pub(super) job: Option<Namespaced>,
    pub(super) queue: Option<QueueName>,
    pub(super) node: Option<NodeName>,
}

/// Whether the details name this job.
fn is_of_job(details: &Details, job: &Namespaced) -> bool {
    match details {
        Details::JobStep(d) => d.job == *job,
        Details::JobChanged(d) => d.job == *job,
        Details::GroupsOrdered(d) => d.groups.iter().any(|group| group.group == *job),
        Details::RecordStep(d) => {
            let mut jobs = d.jobs_created.iter().chain(&d.jobs_deleted);
            let is_in = d.record.namespace == job.namespace;
            d.record == *job || is_in && jobs.any(|name| name == job.name.as_str())
        }
        Details::RecordChanged(d) => d.record == *job,
        _ => false,
    }
}

/// Whether the details name this queue.
fn is_of_queue(details: &Details, queue: &QueueName) -> bool {
    match details {
        Details::QueueCreated(d) | Details::QueueChanged(d) | Details::QueueDeleted(d) => {
            d.queue == *queue
        }
        Details::GroupsOrdered(d) => {
            d.groups.iter().any(|group| group.queue.as_ref() == Some(queue))
        }
        _ => false,
    }
}

/// Whether the details name this node.
fn is_of_node(details: &Details, node: &NodeName) -> bool {
    let is_member =
        |text: &String| text.rsplit_once('@').is_some_and(|(_, at)| at == node.as_str());
    match details {
        Details::Retarget(d) => {
            let own = [&d.nodes_added, &d.nodes_removed, &d.nodes_repaired];
            d.nodes.iter().chain(own).any(|nodes| nodes.contains(node))
        }
        Details::NodeTransferStart(d)
        | Details::NodeTransferCompletion(d)
        | Details::NodeTransferRollback(d) => {
            d.old_node == *node || d.new_node.as_ref() == Some(node)
        }
        Details::ControllerDeleted(d) => d.orphans.contains(node),
        // Labels of a node, and of a pod: `<node>/<pod>`.
        Details::LabelsChanged(d) => match d.kind.as_str() {
            "node" => d.id == node.as_str(),
            "pod" => d.id.split_once('/').is_some_and(|(at, _)| at == node.as_str()),
            _ => false,
        },
        Details::OrphansRemoved(d) => d.nodes.contains(node),
        Details::NodeDrained(d) | Details::NodeUndrained(d) | Details::NodeRemoved(d) => {
            d.node == *node
        }
        Details::ChangeAcknowledged(d) => d.nodes.contains(node),
        Details::JobStep(d) => {
            let all = [&d.pods_added, &d.pods_removed, &d.pods_adopted, &d.pods_released];
            all.into_iter().flatten().any(is_member)
        }
        // Retargets by p2.
        Details::Other(_, json) => json["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.iter().any(|name| name == node.as_str())),
        _ => false,
    }
}

impl Filter {
    pub(super) fn wants(&self, record: &AuditRecord) -> bool {
        if self.since.is_some_and(|since| record.timestamp < since) {
            return false;
        }
        if self.rc.is_none() && self.job.is_none() && self.queue.is_none() && self.node.is_none() {
            return true;
        }
        let Ok(details) = record.details() else { return false };
        self.rc.is_none_or(|rc| details.controller() == Some(rc))
            && self.job.as_ref().is_none_or(|job| is_of_job(&details, job))
            && self.queue.as_ref().is_none_or(|queue| is_of_queue(&details, queue))
            && self.node.as_ref().is_none_or(|node| is_of_node(&details, node))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rcfarm_api::audit::{Actor, EventType, LabelsChange};
    use serde_json::json;

    use super::*;

    #[test]
    fn records_are_chosen_by_the_nodes_that_they_name() {
        let node: NodeName = "n1".parse().unwrap();
        let labels = |kind: &str, id: &str| {
            Details::LabelsChanged(LabelsChange {
                kind: kind.to_owned(),
                id: id.to_owned(),
                actor: Actor::Farm,
                reason: "n1".to_owned(),
                set: [("rack".to_owned(), "n1".to_owned())].into(),
                removed: BTreeMap::new(),
            })
        };
        for (kind, id, is_named) in [
            ("node", "n1", true),
            ("pod", "n1/web", true),
            ("pod", "n2/n1", false),
            ("node", "n2", false),
            ("rolls", "n1", false),
        ] {
            assert_eq!(is_of_node(&labels(kind, id), &node), is_named, "{kind} {id}");
        }
        let by_p2 = Details::Other(EventType::Retarget, json!({"nodes": ["n1"], "pod_id": "n2"}));
        assert!(is_of_node(&by_p2, &node) && !is_of_node(&by_p2, &"n2".parse().unwrap()));
    }
}
