//! The reasons of a plan as conditions of the status.

use std::collections::BTreeSet;

use super::update::restarts;
use super::{PlannedCondition, PodStep, RcPod, ReplicationObserved, Shortage, TransferPlan};
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::{Insufficient, PodResources};
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::key::MIN_HEALTH_LABEL;
use rcfarm_api::rc::status::{RcConditionType, RcReason, Replicas};

pub(super) fn valid() -> PlannedCondition {
    PlannedCondition {
        kind: RcConditionType::Valid,
        status: true,
        reason: RcReason::AsDesired,
        message: String::new(),
    }
}

/// How many nodes a message names.
const NODES_NAMED: usize = 3;

/// Message that names what the first few nodes lack.
pub(super) fn capacity_shortage(
    observed: &ReplicationObserved,
    nodes: &[(&NodeName, Insufficient)],
) -> String {
    let (count, want) = (nodes.len(), PodResources::of_manifest(&observed.spec.manifest));
    let named: Vec<String> =
        nodes.iter().take(NODES_NAMED).map(|(node, why)| format!("{node}: {why}")).collect();
    let named = named.join("; ");
    let more = if count > NODES_NAMED { "; …" } else { "" };
    format!("no room for {want} on {count} nodes that match ({named}{more})")
}

/// Whether as many pods are scheduled as are desired.
pub(super) fn scheduled_condition(
    observed: &ReplicationObserved,
    after: Replicas,
    shortage: Shortage,
) -> PlannedCondition {
    let Replicas { desired, current, eligible, .. } = after;
    let selector = &observed.spec.node_selector;
    let (reason, message) = if current == desired {
        (RcReason::AsDesired, String::new())
    } else if observed.allowed_actions != AllowedActions::Full {
        (RcReason::SuspiciousTree, format!("{current} of {desired}; changes are paused"))
    } else if eligible == 0 {
        (RcReason::NoEligibleNodes, format!("{current} of {desired}: no node matches {selector}"))
    } else if let Shortage::Capacity(why) = shortage {
        (RcReason::InsufficientCapacity, format!("{current} of {desired}: {why}"))
    } else if let Shortage::Slots(n) = shortage {
        let pod = observed.spec.manifest.id();
        let message = format!("{current} of {desired}: on {n} nodes {pod} is another record's pod");
        (RcReason::PlaceTaken, message)
    } else {
        let of = |readiness| {
            observed.eligible.iter().filter(|n| observed.readiness(n) == readiness).count()
        };
        let unready = of(NodeReadiness::Draining) + of(NodeReadiness::Down);
        let mut note = match unready {
            0 => String::new(),
            unready => format!(", {unready} of them draining or down"),
        };
        let quarantined = of(NodeReadiness::Quarantined);
        if quarantined > 0 {
            note.push_str(&format!(", {quarantined} of them quarantined: they cannot start it"));
        }
        let suspect = of(NodeReadiness::Suspect);
        if suspect > 0 {
            note.push_str(&format!(
                ", {suspect} of them avoided: they could not start several pods"
            ));
        }
        let message = format!("{current} of {desired}: {eligible} nodes match {selector}{note}");
        (RcReason::InsufficientNodes, message)
    };
    PlannedCondition {
        kind: RcConditionType::Scheduled,
        status: current == desired,
        reason,
        message,
    }
}

/// Whether each pod may stay where it is.
pub(super) fn placed_condition(
    observed: &ReplicationObserved,
    steps: &[PodStep],
    transfer: &TransferPlan,
) -> PlannedCondition {
    let kind = RcConditionType::Placed;
    let changed: BTreeSet<&PodRef> = steps.iter().map(PodStep::pod_ref).collect();
    let misplaced: Vec<&str> = observed
        .pods
        .keys()
        .filter(|pod_ref| !observed.may_stay(pod_ref) && !changed.contains(pod_ref))
        .map(|pod_ref| pod_ref.node.as_str())
        .collect();
    let reason = match transfer {
        TransferPlan::Start(_) | TransferPlan::Continue => RcReason::TransferUnderWay,
        TransferPlan::Wait(reason) => *reason,
        TransferPlan::Nothing if misplaced.is_empty() && !observed.unfit.is_empty() => {
            return unfit_condition(observed);
        }
        TransferPlan::Nothing if misplaced.is_empty() => {
            return PlannedCondition {
                kind,
                status: true,
                reason: RcReason::AsDesired,
                message: String::new(),
            };
        }
        TransferPlan::Nothing => RcReason::IneligibleNodes,
    };
    let some = misplaced.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    let what = match reason {
        RcReason::NodesLost => "pods wait on nodes that are down",
        RcReason::CannotStart => "pods on nodes that cannot start them",
        RcReason::InsufficientNodes => {
            "pods should leave their nodes, but no other node can take them"
        }
        RcReason::PlaceTaken => {
            "pods should leave their nodes, but the others have another record's pod"
        }
        _ => "pods on nodes that they should leave",
    };
    let mut message = format!("{} {what}: {some}", misplaced.len());
    if let Some((node, why)) = observed.set_aside.first_key_value() {
        message.push_str(&format!("; the pod of {node} is set aside {why}"));
    }
    message.push_str(&blamed_manifest(observed));
    PlannedCondition { kind, status: false, reason, message }
}

/// Pods whose manifest no node can run.
fn unfit_condition(observed: &ReplicationObserved) -> PlannedCondition {
    let (pod, count) = (observed.spec.manifest.id(), observed.unfit.len());
    let named: Vec<String> = observed
        .unfit
        .iter()
        .take(NODES_NAMED)
        .map(|(node, why)| format!("{node}: {why}"))
        .collect();
    let message =
        format!("{count} pods {pod} cannot run, see to the manifest: {}", named.join("; "));
    let (kind, reason) = (RcConditionType::Placed, RcReason::CannotStart);
    PlannedCondition { kind, status: false, reason, message }
}

/// Whether no pod is restarted again and again.
pub(super) fn running_condition(observed: &ReplicationObserved) -> PlannedCondition {
    let (kind, count) = (RcConditionType::Running, observed.restarting.len());
    if count == 0 {
        let (reason, message) = (RcReason::AsDesired, String::new());
        return PlannedCondition { kind, status: true, reason, message };
    }
    let named = observed.restarting.iter().take(NODES_NAMED);
    let named: Vec<String> = named.map(|(node, why)| format!("{node}: {why}")).collect();
    let (all, more) = (observed.pods.len(), if count > NODES_NAMED { "; …" } else { "" });
    let message =
        format!("{count} of {all} pods are restarted again and again ({}{more})", named.join("; "));
    PlannedCondition { kind, status: false, reason: RcReason::PodsRestarting, message }
}

/// Pods with an earlier manifest that are not repaired where they are, and are not removed either.
fn left_outdated<'o>(
    observed: &'o ReplicationObserved,
    steps: &[PodStep],
    later: &[PodRef],
) -> Vec<&'o PodRef> {
    let changed: BTreeSet<&PodRef> = steps.iter().map(PodStep::pod_ref).chain(later).collect();
    let wanted = observed.spec.manifest.id();
    let is_outdated = |(pod_ref, pod): &(&PodRef, &RcPod)| {
        !changed.contains(*pod_ref)
            && (pod_ref.pod != *wanted || matches!(pod.intent, Intent::Differs(_)))
    };
    observed.pods.iter().filter(is_outdated).map(|(pod_ref, _)| pod_ref).collect()
}

/// The condition while some pods keep an earlier manifest, and nothing changes that by itself.
fn outdated_condition(observed: &ReplicationObserved, outdated: &[&PodRef]) -> PlannedCondition {
    let is_down = |pod_ref: &&PodRef| observed.readiness(&pod_ref.node) == NodeReadiness::Down;
    let may_stay = |pod_ref: &&PodRef| observed.may_stay(pod_ref);
    let (reason, why) = if observed.allowed_actions == AllowedActions::Nothing {
        (RcReason::SuspiciousTree, "changes are paused")
    } else if outdated.iter().any(is_down) {
        (RcReason::NodeDown, "on nodes that are down or that they should leave")
    } else if outdated.iter().all(may_stay) {
        (RcReason::PlaceTaken, "and another record's pod has the new id on their nodes")
    } else {
        (RcReason::IneligibleNodes, "on nodes that they should leave")
    };
    let nodes: Vec<&str> = outdated.iter().take(5).map(|pod_ref| pod_ref.node.as_str()).collect();
    let message = format!(
        "{} of {} pods have an earlier manifest, {why}: {}",
        outdated.len(),
        observed.pods.len(),
        nodes.join(", ")
    );
    PlannedCondition { kind: RcConditionType::Updated, status: false, reason, message }
}

/// Whether every pod has the record's manifest. During an update in order also: and runs it.
pub(super) fn updated_condition(
    observed: &ReplicationObserved,
    steps: &[PodStep],
    later: &[PodRef],
) -> PlannedCondition {
    let kind = RcConditionType::Updated;
    let in_order = observed.spec.in_order;
    let restarted: BTreeSet<&PodRef> =
        steps.iter().filter(|step| in_order && restarts(step)).map(PodStep::pod_ref).collect();
    let is_done = restarted.is_empty() && !observed.pods.values().any(|pod| pod.unproved);
    if later.is_empty() && is_done {
        let outdated = left_outdated(observed, steps, later);
        if !outdated.is_empty() {
            return outdated_condition(observed, &outdated);
        }
        let (reason, message) = (RcReason::AsDesired, String::new());
        return PlannedCondition { kind, status: true, reason, message };
    }
    let (all, waiting) = (observed.pods.len(), later.len());
    let ails = |(pod_ref, pod): &(&PodRef, &RcPod)| {
        restarted.contains(*pod_ref) || !observed.is_up(pod_ref, pod)
    };
    let down: Vec<&str> =
        observed.pods.iter().filter(ails).map(|(pod_ref, _)| pod_ref.node.as_str()).collect();
    let rule = match observed.spec.min_health {
        Some(least) => format!("{least} pods must stay healthy"),
        None => "all pods must be healthy before the next is restarted".to_owned(),
    };
    let named = down.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    let is_added = |step: &&PodStep| matches!(step, PodStep::Add { .. } | PodStep::TakeOver { .. });
    let added = steps.iter().filter(is_added).count();
    let why = match (down.is_empty(), observed.spec.min_health) {
        _ if observed.allowed_actions != AllowedActions::Full => {
            "no pod is restarted while nodes or health cannot be read in full".to_owned()
        }
        (true, Some(least)) => format!(
            "{rule}, and there are {all}: raise the count, lower {MIN_HEALTH_LABEL}={least}, or update all at once"
        ),
        (true, None) if added > 0 => format!("{rule}; being added: {added}"),
        _ => format!("{rule}; not yet healthy: {named}"),
    };
    let message = match later.first() {
        Some(next) => {
            let next = &next.node;
            format!("{waiting} of {all} pods wait for the manifest, next {next}: {why}")
        }
        None => format!("all {all} pods have the manifest; not yet healthy: {named}"),
    };
    PlannedCondition { kind, status: false, reason: RcReason::UpdateUnderWay, message }
}

/// Names the manifest and the nodes, where several nodes could not start it: it is rather at fault than they are.
fn blamed_manifest(observed: &ReplicationObserved) -> String {
    let quarantined = observed.not_ready.iter().filter(|(_, r)| **r == NodeReadiness::Quarantined);
    let nodes: Vec<&str> = quarantined.map(|(node, _)| node.as_str()).collect();
    if nodes.len() < 2 {
        return String::new();
    }
    let (count, named) = (nodes.len(), nodes[..nodes.len().min(5)].join(", "));
    let pod = observed.spec.manifest.id();
    format!("; see to the manifest of {pod}: {count} nodes cannot start it ({named})")
}
