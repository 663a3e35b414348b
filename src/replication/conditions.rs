//! What a plan says of itself: its reasons, as conditions of the status. Pure.

use std::collections::BTreeSet;

use super::plan::{PlannedCondition, PodStep, ReplicationObserved, Shortage, TransferPlan};
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::Insufficient;
use rcfarm_api::ids::NodeName;
use rcfarm_api::ids::PodRef;
use rcfarm_api::rc::status::{RcConditionType, RcReason, Replicas};

/// The record can be worked on.
pub(super) fn valid() -> PlannedCondition {
    PlannedCondition {
        kind: RcConditionType::Valid,
        status: true,
        reason: RcReason::AsDesired,
        message: String::new(),
    }
}

/// Nodes that a message names.
const NODES_NAMED: usize = 3;

/// Why there is no room, with the nodes that come nearest to mind.
pub(super) fn room_words(
    seen: &ReplicationObserved<'_>,
    lacking: &[(&NodeName, Insufficient)],
) -> String {
    let (count, want) = (lacking.len(), seen.spec.resources());
    let named = lacking
        .iter()
        .take(NODES_NAMED)
        .map(|(node, insufficient)| format!("{node}: {insufficient}"));
    let named = named.collect::<Vec<_>>().join("; ");
    let more = if count > NODES_NAMED { "; …" } else { "" };
    format!("no room for {want} on {count} nodes that match ({named}{more})")
}

/// Whether as many pods are scheduled as are wanted.
pub(super) fn scheduled_condition(
    seen: &ReplicationObserved<'_>,
    after: Replicas,
    shortage: Shortage,
) -> PlannedCondition {
    let Replicas { desired, current, eligible, .. } = after;
    let selector = &seen.spec.node_selector;
    let (reason, message) = if current == desired {
        (RcReason::AsDesired, String::new())
    } else if seen.allowed_actions != AllowedActions::Full {
        (RcReason::SuspiciousTree, format!("{current} of {desired}; changes are paused"))
    } else if eligible == 0 {
        (RcReason::NoEligibleNodes, format!("{current} of {desired}: no node matches {selector}"))
    } else if let Shortage::Capacity(why) = shortage {
        (RcReason::InsufficientCapacity, format!("{current} of {desired}: {why}"))
    } else if let Shortage::Places(n) = shortage {
        let pod = seen.spec.manifest.id();
        let message = format!("{current} of {desired}: on {n} nodes {pod} is another record's pod");
        (RcReason::PlaceTaken, message)
    } else {
        let of =
            |readiness| seen.eligible.iter().filter(|n| (seen.readiness)(n) == readiness).count();
        let unready = of(NodeReadiness::Draining) + of(NodeReadiness::Down);
        let mut but = match unready {
            0 => String::new(),
            unready => format!(", {unready} of them draining or down"),
        };
        let quarantined = of(NodeReadiness::Quarantined);
        if quarantined > 0 {
            but.push_str(&format!(", {quarantined} of them quarantined: they cannot start it"));
        }
        let suspect = of(NodeReadiness::Suspect);
        if suspect > 0 {
            but.push_str(&format!(
                ", {suspect} of them avoided: they could not start several pods"
            ));
        }
        let message = format!("{current} of {desired}: {eligible} nodes match {selector}{but}");
        (RcReason::InsufficientNodes, message)
    };
    PlannedCondition {
        kind: RcConditionType::Scheduled,
        status: current == desired,
        reason,
        message,
    }
}

/// Whether each pod is where it may stay.
pub(super) fn placed_condition(
    seen: &ReplicationObserved<'_>,
    steps: &[PodStep],
    transfer: &TransferPlan,
) -> PlannedCondition {
    let kind = RcConditionType::Placed;
    let going: BTreeSet<&PodRef> = steps.iter().map(PodStep::place).collect();
    let misplaced: Vec<&str> = seen
        .pods
        .keys()
        .filter(|place| !seen.may_stay(place) && !going.contains(place))
        .map(|place| place.node.as_str())
        .collect();
    let reason = match transfer {
        TransferPlan::Start(_) | TransferPlan::Continue => RcReason::TransferUnderWay,
        TransferPlan::Wait(reason) => *reason,
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
    let which = match reason {
        RcReason::CannotStart => "that cannot start them",
        RcReason::InsufficientNodes => "that they should leave for others, which there are not",
        RcReason::PlaceTaken => {
            "that they should leave for others, which have another record's pod"
        }
        _ => "that they should leave",
    };
    let message = format!("{} pods on nodes {which}: {some}", misplaced.len());
    PlannedCondition { kind, status: false, reason, message }
}
