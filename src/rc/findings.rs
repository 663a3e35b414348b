//! What a plan says of itself: its reasons, as conditions of the status. Pure.

use std::collections::BTreeSet;

use super::plan::{Finding, Observed, Place, Shortage, Standing, Step, TransferPlan, Trust};
use super::status::{ConditionType, Reason, Replicas};
use crate::ids::NodeName;
use crate::schedule::capacity::Lack;

/// The record can be worked on.
pub(super) fn valid() -> Finding {
    Finding {
        kind: ConditionType::Valid,
        status: true,
        reason: Reason::AsDesired,
        message: String::new(),
    }
}

/// Nodes that a message names.
const NODES_NAMED: usize = 3;

/// Why there is no room, with the nodes that come nearest to mind.
pub(super) fn room_words(seen: &Observed<'_>, lacking: &[(&NodeName, Lack)]) -> String {
    let (count, want) = (lacking.len(), seen.spec.resources());
    let named = lacking.iter().take(NODES_NAMED).map(|(node, lack)| format!("{node}: {lack}"));
    let named = named.collect::<Vec<_>>().join("; ");
    let more = if count > NODES_NAMED { "; …" } else { "" };
    format!("no room for {want} on {count} nodes that match ({named}{more})")
}

/// Whether as many pods are scheduled as are wanted.
pub(super) fn scheduled_finding(
    seen: &Observed<'_>,
    after: Replicas,
    shortage: Shortage,
) -> Finding {
    let Replicas { desired, current, eligible, .. } = after;
    let selector = &seen.spec.node_selector;
    let (reason, message) = if current == desired {
        (Reason::AsDesired, String::new())
    } else if seen.trust != Trust::Full {
        (Reason::SuspiciousTree, format!("{current} of {desired}; changes are paused"))
    } else if eligible == 0 {
        (Reason::NoEligibleNodes, format!("{current} of {desired}: no node matches {selector}"))
    } else if let Shortage::Room(why) = shortage {
        (Reason::InsufficientCapacity, format!("{current} of {desired}: {why}"))
    } else if let Shortage::Places(n) = shortage {
        let pod = seen.spec.manifest.id();
        let message = format!("{current} of {desired}: on {n} nodes {pod} is another record's pod");
        (Reason::PlaceTaken, message)
    } else {
        let of = |standing| seen.eligible.iter().filter(|n| (seen.standing)(n) == standing).count();
        let unready = of(Standing::Draining) + of(Standing::Down);
        let mut but = match unready {
            0 => String::new(),
            unready => format!(", {unready} of them draining or down"),
        };
        let quarantined = of(Standing::Quarantined);
        if quarantined > 0 {
            but.push_str(&format!(", {quarantined} of them quarantined: they cannot start it"));
        }
        let suspect = of(Standing::Suspect);
        if suspect > 0 {
            but.push_str(&format!(
                ", {suspect} of them avoided: they could not start several pods"
            ));
        }
        let message = format!("{current} of {desired}: {eligible} nodes match {selector}{but}");
        (Reason::InsufficientNodes, message)
    };
    Finding { kind: ConditionType::Scheduled, status: current == desired, reason, message }
}

/// Whether each pod is where it may stay.
pub(super) fn placed_finding(
    seen: &Observed<'_>,
    steps: &[Step],
    transfer: &TransferPlan,
) -> Finding {
    let kind = ConditionType::Placed;
    let going: BTreeSet<&Place> = steps.iter().map(Step::place).collect();
    let astray: Vec<&str> = seen
        .pods
        .keys()
        .filter(|place| !seen.may_stay(place) && !going.contains(place))
        .map(|place| place.node.as_str())
        .collect();
    let reason = match transfer {
        TransferPlan::Start(_) | TransferPlan::Continue => Reason::TransferUnderWay,
        TransferPlan::Wait(reason) => *reason,
        TransferPlan::Nothing if astray.is_empty() => {
            return Finding {
                kind,
                status: true,
                reason: Reason::AsDesired,
                message: String::new(),
            };
        }
        TransferPlan::Nothing => Reason::IneligibleNodes,
    };
    let some = astray.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    let which = match reason {
        Reason::CannotStart => "that cannot start them",
        Reason::InsufficientNodes => "that they should leave for others, which there are not",
        Reason::PlaceTaken => "that they should leave for others, which have another record's pod",
        _ => "that they should leave",
    };
    let message = format!("{} pods on nodes {which}: {some}", astray.len());
    Finding { kind, status: false, reason, message }
}
