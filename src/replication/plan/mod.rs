//! What to do about one replication controller: a pure function from what was observed to a plan with its reasons.
//!
//! Rules and their order are p2's (`p2.md` §2.3): first the count, then repair of pods that drifted, and when there
//! is neither, one node transfer. Where p2 chooses by map order, the choice here is deterministic: nodes are added by
//! name or packing; pods are removed ineligible first, then unhealthy, then newest, then by name.

mod conditions;
mod observed;
#[cfg(test)]
mod tests;
mod update;

use std::cell::LazyCell;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use serde::Serialize;

use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::PodResources;
use conditions::{
    capacity_shortage, placed_condition, running_condition, scheduled_condition, updated_condition,
    valid,
};
use observed::OpenNodes;
pub use observed::{
    RcPod, ReplicationObserved, SlotState, SurplusPods, TransferConditions, has_capacity,
};
use rcfarm_api::Index;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::labels::Labels;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcStrategy;
use rcfarm_api::rc::status::{RcConditionType, RcReason, Replicas, Transfer};
use update::Repairs;

/// Why a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PodRemoveReason {
    /// It may not stay on its node: labels, readiness or capacity.
    Ineligible,
    /// It is not healthy.
    Unhealthy,
    /// One too many; the newest goes first.
    Surplus,
}

/// What is wrong with a pod that is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Drift {
    /// No intent.
    IntentMissing,
    /// The intent is not the RC's manifest.
    IntentDiffers,
    /// A label of the RC is missing or has another value.
    LabelsDiffer,
    /// Its node has allocated it something else than the record asks for, or nothing.
    AllocationDiffers,
    /// The manifest has another id now: the pod is replaced by one of that id on the same node.
    PodIdChanged,
}

/// One change of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum PodStep {
    /// Label and intent are written.
    Add {
        pod_ref: PodRef,
        /// Guards the intent: 0 for a new one, else the one that is adopted.
        intent: Index,
    },
    /// Label and intent of a disabled RC's surplus pod become this RC's.
    TakeOver {
        pod_ref: PodRef,
        /// The pod as observed.
        pod: RcPod,
        /// The disabled RC.
        from: RcId,
        /// ModifyIndex of its record.
        record: Index,
    },
    /// Label and intent are deleted.
    Remove {
        pod_ref: PodRef,
        /// The pod as observed.
        pod: RcPod,
        /// Reason of the removal.
        why: PodRemoveReason,
    },
    /// Label and intent are written again.
    Repair {
        pod_ref: PodRef,
        /// The pod as observed.
        pod: RcPod,
        /// What differs from the record.
        why: Drift,
    },
}

impl PodStep {
    /// The pod that the step changes.
    pub fn pod_ref(&self) -> &PodRef {
        match self {
            PodStep::Add { pod_ref, .. }
            | PodStep::TakeOver { pod_ref, .. }
            | PodStep::Remove { pod_ref, .. }
            | PodStep::Repair { pod_ref, .. } => pod_ref,
        }
    }
}

/// What to do about pods on ineligible nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum TransferPlan {
    /// There is nothing to move.
    Nothing,
    /// A pod should be moved and cannot be now, for this reason.
    Wait(RcReason),
    /// Begin to move the pod on this node.
    Start(NodeName),
    /// Go on with the transfer in the status.
    Continue,
}

/// A condition for the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedCondition {
    pub kind: RcConditionType,
    /// Whether it holds.
    pub status: bool,
    /// Fixed token, for programs.
    pub reason: RcReason,
    /// The reason in words, with numbers and names.
    pub message: String,
}

/// What to do, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[must_use]
pub struct ReplicationPlan {
    /// Changes of pods, in order.
    pub steps: Vec<PodStep>,
    /// What to do about pods that should be moved.
    pub transfer: TransferPlan,
    /// Conditions of the status once the steps are done.
    pub conditions: Vec<PlannedCondition>,
    /// Counts once the steps are done; `healthy` does not count added pods.
    pub replicas: Replicas,
    /// Number of pods that get the record's manifest later, because enough pods must stay healthy.
    pub update_later: usize,
    /// Why the RC cannot reach its count, for the operator's log.
    pub alert: Option<String>,
}

impl ReplicationPlan {
    /// Whether nothing is to be done.
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
            && !matches!(self.transfer, TransferPlan::Start(_) | TransferPlan::Continue)
    }

    /// Whether a pod has no capacity, or none can be added for lack of capacity.
    pub(super) fn lacks_capacity(&self) -> bool {
        self.conditions.iter().any(|condition| {
            matches!(condition.kind, RcConditionType::Scheduled | RcConditionType::Placed)
                && condition.reason == RcReason::InsufficientCapacity
        })
    }

    /// Whether it restarts a pod for another manifest.
    pub(super) fn restarts(&self) -> bool {
        self.steps.iter().any(update::restarts)
    }

    /// Whether an update of the manifest is under way.
    pub(super) fn updates(&self) -> bool {
        self.conditions.iter().any(|condition| condition.reason == RcReason::UpdateUnderWay)
    }

    /// Whether it takes over pods of another RC.
    pub(super) fn takes_over(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, PodStep::TakeOver { .. }))
    }

    /// Whether no pod can be added because other records' pods occupy the slots.
    pub(super) fn lacks_slots(&self) -> bool {
        self.conditions.iter().any(|condition| condition.reason == RcReason::PlaceTaken)
    }
}

/// Decides what to do about an RC.
pub fn plan(observed: &ReplicationObserved) -> ReplicationPlan {
    if observed.spec.disabled {
        return disabled(observed);
    }
    let (mut steps, shortage) = count_steps(observed);
    let Repairs { now, later } = update::in_order(observed, &steps, repair_steps(observed, &steps));
    steps.extend(now);
    let transfer = match steps.is_empty() {
        true => transfer_plan(observed),
        false => transfer_beside_steps(observed),
    };
    let replicas = counts_after(observed, &steps);
    let scheduled = scheduled_condition(observed, replicas, shortage);
    let alert = (replicas.current < replicas.desired && !scheduled.status)
        .then(|| scheduled.message.clone());
    let placed = placed_condition(observed, &steps, &transfer);
    let updated = updated_condition(observed, &steps, &later);
    let conditions = vec![valid(), scheduled, placed, updated, running_condition(observed)];
    let update_later = later.len();
    ReplicationPlan { steps, transfer, conditions, replicas, update_later, alert }
}

fn disabled(observed: &ReplicationObserved) -> ReplicationPlan {
    let replicas = counts_after(observed, &[]);
    let message = "the record is disabled: its pods are left as they are".to_owned();
    let condition = |kind, status| PlannedCondition {
        kind,
        status,
        reason: RcReason::Disabled,
        message: message.clone(),
    };
    let conditions = vec![
        valid(),
        condition(RcConditionType::Scheduled, replicas.current == replicas.desired),
        condition(RcConditionType::Placed, true),
        condition(RcConditionType::Updated, true),
        running_condition(observed),
    ];
    ReplicationPlan {
        steps: Vec::new(),
        transfer: TransferPlan::Nothing,
        conditions,
        replicas,
        update_later: 0,
        alert: None,
    }
}

/// Why the count cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shortage {
    None,
    Nodes,
    /// Another record has a pod of the same id on this many nodes.
    Slots(usize),
    /// Message with the numbers.
    Capacity(String),
}

/// Pods to add or to remove so that the count is as desired.
fn count_steps(observed: &ReplicationObserved) -> (Vec<PodStep>, Shortage) {
    let desired = observed.spec.replicas_desired as usize;
    let current = observed.pods.len();
    match (desired.cmp(&current), observed.allowed_actions) {
        (_, AllowedActions::Nothing) | (Ordering::Equal, _) => (Vec::new(), Shortage::None),
        (Ordering::Greater, _) => additions(observed, desired - current),
        (Ordering::Less, AllowedActions::NoRemoval) => (Vec::new(), Shortage::None),
        (Ordering::Less, AllowedActions::Full) => {
            (removals(observed, current - desired), Shortage::None)
        }
    }
}

fn additions(observed: &ReplicationObserved, wanted: usize) -> (Vec<PodStep>, Shortage) {
    let mut steps = takeovers(observed, wanted);
    // While a tree is suspicious their places are kept for them.
    let wanted = match observed.allowed_actions {
        AllowedActions::Full => wanted,
        _ => wanted - std::mem::take(&mut steps).len(),
    };
    let taken: BTreeSet<NodeName> = steps.iter().map(|s| s.pod_ref().node.clone()).collect();
    let OpenNodes { nodes, insufficient } = observed.open_nodes();
    let mut occupied = 0;
    for node in nodes {
        if steps.len() == wanted {
            break;
        }
        let intent = match observed.slot(node) {
            SlotState::Nobody => Index::ZERO,
            SlotState::Ours(index) => index,
            SlotState::Other => {
                occupied += usize::from(!taken.contains(node));
                continue;
            }
        };
        let pod_ref = PodRef { node: node.clone(), pod: observed.spec.manifest.id().clone() };
        steps.push(PodStep::Add { pod_ref, intent });
    }
    let shortage = match (steps.len() < wanted, occupied) {
        (false, _) => Shortage::None,
        (true, _) if !insufficient.is_empty() => {
            Shortage::Capacity(capacity_shortage(observed, &insufficient))
        }
        (true, 0) => Shortage::Nodes,
        (true, n) => Shortage::Slots(n),
    };
    (steps, shortage)
}

/// Surplus pods of disabled RCs. They are preferred to free nodes: otherwise a rolling update would leave them running.
fn takeovers(observed: &ReplicationObserved, wanted: usize) -> Vec<PodStep> {
    let id = observed.spec.manifest.id();
    let step = |(node, pod, from): (&NodeName, &RcPod, RcId)| PodStep::TakeOver {
        pod_ref: PodRef { node: node.clone(), pod: id.clone() },
        pod: pod.clone(),
        from,
        record: observed.surplus[&from].record,
    };
    observed.takeable().into_iter().take(wanted).map(step).collect()
}

/// Ineligible first, then unhealthy, then newest, then by node: a total order, so the same input removes the same
/// pods. A passing pod is kept where its removal would break the declared minimum; another is removed instead.
fn removals(observed: &ReplicationObserved, wanted: usize) -> Vec<PodStep> {
    let mut order: Vec<_> = observed
        .pods
        .iter()
        .map(|(pod_ref, pod)| {
            let why = if !observed.may_stay(pod_ref) {
                PodRemoveReason::Ineligible
            } else if pod.health != Health::Passing && pod.health != Health::Absent {
                PodRemoveReason::Unhealthy
            } else {
                PodRemoveReason::Surplus
            };
            let passing = observed.is_up(pod_ref, pod);
            ((why, passing, Reverse(pod.created), pod_ref), passing, pod)
        })
        .collect();
    order.sort_by(|a, b| a.0.cmp(&b.0));
    let min_health = observed.spec.min_health.unwrap_or(0);
    let min_health = min_health.min(observed.spec.replicas_desired) as usize;
    let mut healthy = observed.healthy();
    let mut steps = Vec::new();
    for ((why, _, _, pod_ref), passing, pod) in order {
        if steps.len() == wanted {
            break;
        }
        if passing && healthy <= min_health {
            continue;
        }
        healthy -= usize::from(passing);
        steps.push(PodStep::Remove { pod_ref: pod_ref.clone(), pod: pod.clone(), why });
    }
    steps
}

/// Repairs of pods that may stay, are not changed by `steps`, and differ from the record.
fn repair_steps(observed: &ReplicationObserved, steps: &[PodStep]) -> Vec<PodStep> {
    if observed.allowed_actions == AllowedActions::Nothing {
        return Vec::new();
    }
    let changed: BTreeSet<&PodRef> = steps.iter().map(PodStep::pod_ref).collect();
    let labels = observed.spec.labels_of_pod();
    // A pod that its node cannot start is repaired all the same: a new manifest may start.
    let may_repair = |pod_ref: &PodRef| {
        let node = &pod_ref.node;
        observed.readiness(node) <= NodeReadiness::Quarantined
            && observed.eligible.contains(node)
            && observed.has_capacity(pod_ref)
    };
    observed
        .pods
        .iter()
        .filter(|(pod_ref, _)| may_repair(pod_ref) && !changed.contains(pod_ref))
        .filter_map(|(pod_ref, pod)| {
            let why = drift(observed, &labels, pod_ref, pod)?;
            Some(PodStep::Repair { pod_ref: pod_ref.clone(), pod: pod.clone(), why })
        })
        .collect()
}

/// How a pod differs from the record, whose pods have these labels.
fn drift(
    observed: &ReplicationObserved,
    labels: &Labels,
    pod_ref: &PodRef,
    pod: &RcPod,
) -> Option<Drift> {
    if pod_ref.pod != *observed.spec.manifest.id() {
        let is_free = observed.slot(&pod_ref.node) == SlotState::Nobody;
        let may_remove = observed.allowed_actions == AllowedActions::Full;
        return (is_free && may_remove).then_some(Drift::PodIdChanged);
    }
    match pod.intent {
        Intent::Missing => Some(Drift::IntentMissing),
        Intent::Differs(_) => Some(Drift::IntentDiffers),
        Intent::Same(_) if labels.iter().any(|(k, value)| pod.labels.get(k) != Some(value)) => {
            Some(Drift::LabelsDiffer)
        }
        Intent::Same(_) => {
            allocation_differs(observed, pod_ref).then_some(Drift::AllocationDiffers)
        }
    }
}

fn allocation_differs(observed: &ReplicationObserved, pod_ref: &PodRef) -> bool {
    let (node, spec) = (observed.capacities.of(&pod_ref.node), &observed.spec);
    let want = PodResources::of_manifest(&spec.manifest);
    !node.is_unreadable && !node.holds_devices(&pod_ref.pod, &spec.owner(), &want)
}

/// Whether the plan may change what nodes have allocated, where `free_nodes` were found for it
/// ([`ReplicationObserved::look_up_slots`]). It may say yes where nothing is changed, for example below the minimum
/// health.
pub fn may_change_allocations(observed: &ReplicationObserved, free_nodes: usize) -> bool {
    let spec = &observed.spec;
    let is_allocated = |pod_ref: &PodRef| {
        observed.capacities.of(&pod_ref.node).allocated.pods.contains_key(&pod_ref.pod)
    };
    // What the RC that gives a pod away has allocated for it is freed.
    let frees = || {
        let id = spec.manifest.id();
        let has_allocation = |(node, ..): (&NodeName, _, _)| {
            observed.capacities.of(node).allocated.pods.contains_key(id)
        };
        observed.takeable().into_iter().any(has_allocation)
    };
    let adds = free_nodes > 0 && observed.pods.len() < spec.replicas_desired as usize;
    let removes = observed.pods.len() > spec.replicas_desired as usize;
    !spec.disabled
        && (!PodResources::of_manifest(&spec.manifest).is_nothing()
            || observed.pods.keys().any(is_allocated)
            || (adds && frees()))
        && (adds || removes || !repair_steps(observed, &[]).is_empty())
}

/// A transfer continues only when the count is right and nothing is to be repaired.
fn transfer_beside_steps(observed: &ReplicationObserved) -> TransferPlan {
    match observed.transfer.under_way {
        Some(_) => TransferPlan::Wait(RcReason::TransferUnderWay),
        None => TransferPlan::Nothing,
    }
}

fn transfer_plan(observed: &ReplicationObserved) -> TransferPlan {
    match (&observed.transfer.under_way, observed.allowed_actions) {
        (None, _) => {}
        (Some(transfer), AllowedActions::Full) if would_cost_health(observed, transfer) => {
            return TransferPlan::Wait(RcReason::PodsUnhealthy);
        }
        (Some(_), AllowedActions::Full) => return TransferPlan::Continue,
        // The pod on its old or its new node may only seem to be gone.
        (Some(_), _) => return TransferPlan::Wait(RcReason::SuspiciousTree),
    }
    let shortage = LazyCell::new(|| no_free_node(observed));
    let Some((leaving, pod)) = next_to_move(observed, || shortage.is_some()) else {
        return match observed.has_misplaced_pod() {
            true if !observed.set_aside.is_empty() => TransferPlan::Wait(RcReason::NodesLost),
            true => TransferPlan::Wait(RcReason::CannotStart),
            false => TransferPlan::Nothing,
        };
    };
    let readiness = observed.readiness(&leaving.node);
    if observed.spec.strategy == RcStrategy::Static && readiness != NodeReadiness::Draining {
        return TransferPlan::Wait(match readiness {
            NodeReadiness::Down => RcReason::NodeDown,
            NodeReadiness::Quarantined => RcReason::CannotStart,
            _ if observed.may_keep_pods(&leaving.node) => RcReason::InsufficientCapacity,
            _ => RcReason::IneligibleNodes,
        });
    }
    if observed.allowed_actions != AllowedActions::Full {
        return TransferPlan::Wait(RcReason::SuspiciousTree);
    }
    if !observed.transfer.discovery_synced {
        return TransferPlan::Wait(RcReason::DiscoveryNotSynced);
    }
    if observed.is_passing(leaving, pod) && !may_spare_one(observed, readiness) {
        return TransferPlan::Wait(RcReason::PodsUnhealthy);
    }
    if observed.transfer.lock_held {
        return TransferPlan::Wait(RcReason::LockHeld);
    }
    // Beginning a transfer and undoing it would cost two transactions each time.
    if let Some(reason) = shortage.filter(|_| observed.transfer.only_eligible) {
        return TransferPlan::Wait(reason);
    }
    TransferPlan::Start(leaving.node.clone())
}

/// Whether a transfer under way would take a passing pod away although others do not pass any more.
fn would_cost_health(observed: &ReplicationObserved, transfer: &Transfer) -> bool {
    let mut on_old_node = observed.pods.iter().filter(|(p, _)| p.node == transfer.old_node);
    let leaves = |(pod_ref, pod): (&PodRef, &RcPod)| {
        !observed.may_stay(pod_ref)
            && observed.is_passing(pod_ref, pod)
            && !may_spare_one(observed, observed.readiness(&pod_ref.node))
    };
    transfer.undoing.is_none() && on_old_node.any(leaves)
}

/// The pod to move first: on a node that is down, then drained, then quarantined, then ineligible or short of
/// capacity. A quarantined one is passed over while no node is free for it, or it would block the others. One that is set
/// aside is passed over, too.
fn next_to_move(
    observed: &ReplicationObserved,
    no_free_node: impl Fn() -> bool,
) -> Option<(&PodRef, &RcPod)> {
    let readiness = |pod_ref: &PodRef| observed.readiness(&pod_ref.node);
    observed
        .pods
        .iter()
        .filter(|(pod_ref, _)| !observed.may_stay(pod_ref))
        .filter(|(pod_ref, _)| !observed.set_aside.contains_key(&pod_ref.node))
        .filter(|(pod_ref, _)| readiness(pod_ref) != NodeReadiness::Quarantined || !no_free_node())
        .min_by_key(|(pod_ref, _)| (Reverse(readiness(pod_ref)), *pod_ref))
}

/// Why there is no node to which a pod could be moved; `None` if there is one.
fn no_free_node(observed: &ReplicationObserved) -> Option<RcReason> {
    let OpenNodes { nodes, insufficient } = observed.open_nodes();
    let mut occupied = false;
    for node in nodes {
        if observed.slot(node) != SlotState::Other {
            return None;
        }
        occupied = true;
    }
    Some(match (insufficient.is_empty(), occupied) {
        (false, _) => RcReason::InsufficientCapacity,
        (true, true) => RcReason::PlaceTaken,
        (true, false) => RcReason::InsufficientNodes,
    })
}

/// Whether a passing pod may be taken away while it is moved. All pods must be passing, so that the move is the only
/// risk. On a drained node it is enough that the declared minimum is kept without the pod.
fn may_spare_one(observed: &ReplicationObserved, readiness: NodeReadiness) -> bool {
    match (readiness, observed.spec.min_health) {
        (NodeReadiness::Draining, Some(min_health)) => observed.healthy() > min_health as usize,
        _ => observed.healthy() == observed.pods.len(),
    }
}

fn counts_after(observed: &ReplicationObserved, steps: &[PodStep]) -> Replicas {
    let removed: BTreeSet<&PodRef> = steps
        .iter()
        .filter(|step| matches!(step, PodStep::Remove { .. }))
        .map(PodStep::pod_ref)
        .collect();
    let is_added = |step: &&PodStep| matches!(step, PodStep::Add { .. } | PodStep::TakeOver { .. });
    let added = steps.iter().filter(is_added).count();
    let stay = observed.pods.iter().filter(|(pod_ref, _)| !removed.contains(pod_ref));
    let healthy = stay.filter(|(pod_ref, pod)| observed.is_passing(pod_ref, pod)).count();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Replicas {
        desired: observed.spec.replicas_desired,
        current: count(observed.pods.len() + added - removed.len()),
        healthy: count(healthy),
        eligible: count(observed.eligible.len()),
    }
}
