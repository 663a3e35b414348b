//! What to do about one RC: a pure function from what was seen to a plan with its reasons.
//!
//! Rules and their order are p2's (`p2.md` §2.3): first the count, then one node transfer, then repair of pods
//! that drifted. Where p2 chose by map order, we choose deterministically: add by node name; remove ineligible,
//! then unhealthy, then newest, then by name.

use std::collections::{BTreeMap, BTreeSet};

use super::conditions::{placed_condition, room_words, scheduled_condition, valid};
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::view::AllowedActions;
use crate::placement::capacity::{Insufficient, NodeCapacities, ranked};
use rcfarm_api::Index;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::labels::Labels;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::{RcSpec, RcStrategy};
use rcfarm_api::rc::status::{RcConditionType, RcReason, Replicas, Transfer};
use rcfarm_store::failpoints::{Failpoint, enabled};

/// A pod that carries the RC's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RcPod {
    /// ModifyIndex of its labels.
    pub label_index: Index,
    /// CreateIndex of its labels: its age.
    pub created: Index,
    /// Its labels.
    pub labels: Labels,
    /// Its intent.
    pub intent: Intent,
    /// Its health.
    pub health: Health,
}

/// State of the slot where a pod might be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody.
    Nobody,
    /// An intent with the very manifest that we would write, and no labels: adopted by labelling it.
    Ours(Index),
    /// A pod of somebody else.
    Other,
}

/// What bears on a node transfer, besides the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferConditions<'a> {
    /// The one under way, from the status.
    pub under_way: Option<&'a Transfer>,
    /// Somebody else holds the record's mutation or transfer lock.
    pub lock_held: bool,
    /// Service discovery shows the pods as they are.
    pub discovery_synced: bool,
    /// The scheduler gives no node but those that it calls eligible: where none of them is free, it need not be asked.
    pub only_eligible: bool,
}

/// Everything that a plan depends on.
pub struct ReplicationObserved<'a> {
    /// The checked record.
    pub spec: &'a RcSpec,
    /// Its pods.
    pub pods: &'a BTreeMap<PodRef, RcPod>,
    /// Nodes that the scheduler calls eligible.
    pub eligible: &'a BTreeSet<NodeName>,
    /// What each node is fit for.
    pub readiness: &'a dyn Fn(&NodeName) -> NodeReadiness,
    /// Who stands where on the nodes that have no pod of ours.
    pub slot: &'a dyn Fn(&NodeName) -> SlotState,
    /// What the nodes have, and what of it is allocated.
    pub rooms: &'a NodeCapacities,
    /// What the trees are worth.
    pub allowed_actions: AllowedActions,
    /// What bears on a transfer.
    pub transfer: TransferConditions<'a>,
}

/// Whether a pod has, or can be given, what the record asks for where it stands. Where the node's promises cannot be
/// read, nobody can tell, and it stays.
#[must_use]
pub fn has_room(spec: &RcSpec, rooms: &NodeCapacities, place: &PodRef) -> bool {
    let (room, want) = (rooms.of(&place.node), spec.resources());
    room.is_unreadable
        || room.holds(&place.pod, &spec.owner(), want)
        || room.insufficient(&place.pod, want).is_none()
}

impl ReplicationObserved<'_> {
    /// Whether a node may keep pods: it is eligible, and neither emptied nor lost.
    fn fit(&self, node: &NodeName) -> bool {
        self.eligible.contains(node) && (self.readiness)(node) <= NodeReadiness::Suspect
    }

    /// Whether a pod may stay where it is: its node is fit and has room for it.
    pub(super) fn may_stay(&self, place: &PodRef) -> bool {
        self.fit(&place.node) && has_room(self.spec, self.rooms, place)
    }

    /// Whether a pod may be added on a node that has none.
    fn is_open(&self, node: &NodeName) -> bool {
        let allocated = self.transfer.under_way.and_then(|transfer| transfer.new_node.as_ref());
        let stands =
            (self.readiness)(node) == NodeReadiness::Ready || enabled(Failpoint::UnfitTaken);
        let fit = self.eligible.contains(node) && stands;
        allocated != Some(node) && fit
    }

    /// Why there is no node to which a pod could move; `None` if there is one.
    fn nowhere(&self) -> Option<RcReason> {
        let ours: BTreeSet<&NodeName> = self.pods.keys().map(|place| &place.node).collect();
        let open = |node: &&NodeName| !ours.contains(*node) && self.is_open(node);
        let (nodes, lacking) = with_room(self, self.eligible.iter().filter(open));
        let mut taken = false;
        for node in nodes {
            if (self.slot)(node) != SlotState::Other {
                return None;
            }
            taken = true;
        }
        Some(match (lacking.is_empty(), taken) {
            (false, _) => RcReason::InsufficientCapacity,
            (true, true) => RcReason::PlaceTaken,
            (true, false) => RcReason::InsufficientNodes,
        })
    }

    /// Pods that pass their check; those on a lost node do not, whatever was last heard of them.
    fn passing(&self, place: &PodRef, pod: &RcPod) -> bool {
        pod.health == Health::Passing && (self.readiness)(&place.node) != NodeReadiness::Down
    }

    fn healthy(&self) -> usize {
        self.pods.iter().filter(|(place, pod)| self.passing(place, pod)).count()
    }
}

/// Why a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodRemoveReason {
    /// Its node is not eligible.
    Ineligible,
    /// It is not healthy.
    Unhealthy,
    /// One too many; the newest goes first.
    Surplus,
}

/// What is wrong with a pod that is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    /// No intent.
    IntentMissing,
    /// The intent is not the RC's manifest.
    IntentDiffers,
    /// A label of the RC is missing or has another value.
    LabelsDiffer,
    /// Its node has allocated it something else than the record asks for, or nothing.
    AllocationDiffers,
    /// The manifest has another id now: the pod changes its place on the same node.
    PodIdChanged,
}

/// One change of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodStep {
    /// Label and intent are written.
    Add {
        /// Where.
        place: PodRef,
        /// Guards the intent: 0 for a new one, else the one that is adopted.
        intent: Index,
    },
    /// Label and intent are deleted.
    Remove {
        /// Where.
        place: PodRef,
        /// The pod as seen.
        pod: RcPod,
        /// Why.
        why: PodRemoveReason,
    },
    /// Label and intent are written again.
    Repair {
        /// Where.
        place: PodRef,
        /// The pod as seen.
        pod: RcPod,
        /// Why.
        why: Drift,
    },
}

impl PodStep {
    /// The place that the step is about.
    #[must_use]
    pub fn place(&self) -> &PodRef {
        match self {
            PodStep::Add { place, .. }
            | PodStep::Remove { place, .. }
            | PodStep::Repair { place, .. } => place,
        }
    }
}

/// What to do about pods on ineligible nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferPlan {
    /// There is nothing to move.
    Nothing,
    /// Something should move, but must wait or stay.
    Wait(RcReason),
    /// Begin to move the pod on this node.
    Start(NodeName),
    /// Go on with the one in the status.
    Continue,
}

/// A condition for the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCondition {
    /// About what.
    pub kind: RcConditionType,
    /// Whether it holds.
    pub status: bool,
    /// Why.
    pub reason: RcReason,
    /// For people.
    pub message: String,
}

/// What to do, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ReplicationPlan {
    /// Changes of pods, in order.
    pub steps: Vec<PodStep>,
    /// Node transfer.
    pub transfer: TransferPlan,
    /// What holds once the steps are done.
    pub conditions: Vec<PlannedCondition>,
    /// Counts once the steps are done; `healthy` does not count added pods.
    pub replicas: Replicas,
    /// Something a person should be told: the RC cannot reach its count.
    pub alert: Option<String>,
}

impl ReplicationPlan {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
            && !matches!(self.transfer, TransferPlan::Start(_) | TransferPlan::Continue)
    }
}

/// Decides what to do about an RC.
pub fn plan(seen: &ReplicationObserved<'_>) -> ReplicationPlan {
    if seen.spec.disabled && !enabled(Failpoint::DisabledIgnored) {
        return disabled(seen);
    }
    let (mut steps, shortage) = count_steps(seen);
    steps.extend(repair_steps(seen, &steps));
    let transfer = if steps.is_empty() { transfer_plan(seen) } else { pending_transfer(seen) };
    let replicas = counts_after(seen, &steps);
    let scheduled = scheduled_condition(seen, replicas, shortage);
    let alert = (replicas.current < replicas.desired && !scheduled.status)
        .then(|| scheduled.message.clone());
    let conditions = vec![valid(), scheduled, placed_condition(seen, &steps, &transfer)];
    ReplicationPlan { steps, transfer, conditions, replicas, alert }
}

fn disabled(seen: &ReplicationObserved<'_>) -> ReplicationPlan {
    let replicas = counts_after(seen, &[]);
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
    ];
    ReplicationPlan {
        steps: Vec::new(),
        transfer: TransferPlan::Nothing,
        conditions,
        replicas,
        alert: None,
    }
}

/// Why the count cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shortage {
    None,
    Nodes,
    Places(usize),
    /// In words, with the numbers.
    Capacity(String),
}

/// Pods to add or to remove so that the count is as desired.
fn count_steps(seen: &ReplicationObserved<'_>) -> (Vec<PodStep>, Shortage) {
    let desired = seen.spec.replicas_desired as usize;
    let current = seen.pods.len();
    match (desired.cmp(&current), seen.allowed_actions) {
        (_, AllowedActions::Nothing) | (std::cmp::Ordering::Equal, _) => {
            (Vec::new(), Shortage::None)
        }
        (std::cmp::Ordering::Greater, _) => additions(seen, desired - current),
        (std::cmp::Ordering::Less, AllowedActions::NoRemoval) => (Vec::new(), Shortage::None),
        (std::cmp::Ordering::Less, AllowedActions::Full) => {
            (removals(seen, current - desired), Shortage::None)
        }
    }
}

fn additions(seen: &ReplicationObserved<'_>, wanted: usize) -> (Vec<PodStep>, Shortage) {
    let ours: BTreeSet<&NodeName> = seen.pods.keys().map(|place| &place.node).collect();
    let free = |node: &NodeName| !ours.contains(node) && seen.is_open(node);
    let free = seen.eligible.iter().filter(|node| free(node));
    let (nodes, lacking) = with_room(seen, free);
    let mut steps = Vec::new();
    let mut taken = 0;
    for node in nodes {
        if steps.len() == wanted {
            break;
        }
        let intent = match (seen.slot)(node) {
            SlotState::Nobody => Index::ZERO,
            SlotState::Ours(index) => index,
            SlotState::Other => {
                taken += 1;
                continue;
            }
        };
        let place = PodRef { node: node.clone(), pod: seen.spec.manifest.id().clone() };
        steps.push(PodStep::Add { place, intent });
    }
    let shortage = match (steps.len() < wanted, taken) {
        (false, _) => Shortage::None,
        (true, _) if !lacking.is_empty() => Shortage::Capacity(room_words(seen, &lacking)),
        (true, 0) => Shortage::Nodes,
        (true, n) => Shortage::Places(n),
    };
    (steps, shortage)
}

/// Nodes in the order in which they are taken.
type InOrder<'a> = Box<dyn Iterator<Item = &'a NodeName> + 'a>;

/// Of `nodes`, those with room for a pod, in the order in which they are taken: by name when the pods ask for nothing,
/// else by the RC's packing. And those without, each with what it lacks. Lazy where it can be: thousands of nodes are
/// eligible for a few pods.
fn with_room<'a>(
    seen: &'a ReplicationObserved<'_>,
    nodes: impl Iterator<Item = &'a NodeName> + 'a,
) -> (InOrder<'a>, Vec<(&'a NodeName, Insufficient)>) {
    let (pod, want) = (seen.spec.manifest.id(), seen.spec.resources());
    if want.is_zero() {
        return (Box::new(nodes), Vec::new());
    }
    let mut lacking = Vec::new();
    let mut roomy = Vec::new();
    for node in nodes {
        let room = seen.rooms.of(node);
        match room.insufficient(pod, want) {
            None => roomy.push((node, room)),
            Some(insufficient) => lacking.push((node, insufficient)),
        }
    }
    let salt = seen.spec.id.to_string();
    let roomy = ranked(want, seen.spec.packing, &salt, roomy.into_iter());
    (Box::new(roomy.into_iter()), lacking)
}

/// Ineligible first, then unhealthy, then newest, then by place: total, so the same input removes the same pods. A
/// healthy pod is passed over when the declared minimum would be undercut; an ailing one then goes in its stead.
fn removals(seen: &ReplicationObserved<'_>, wanted: usize) -> Vec<PodStep> {
    let mut order: Vec<_> = seen
        .pods
        .iter()
        .map(|(place, pod)| {
            let why = if !seen.may_stay(place) {
                PodRemoveReason::Ineligible
            } else if pod.health != Health::Passing && pod.health != Health::Absent {
                PodRemoveReason::Unhealthy
            } else {
                PodRemoveReason::Surplus
            };
            let passing = seen.passing(place, pod);
            ((why, passing, std::cmp::Reverse(pod.created), place), passing, pod)
        })
        .collect();
    if !enabled(Failpoint::RemovalUnordered) {
        order.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let declared = seen.spec.min_health.filter(|_| !enabled(Failpoint::NoMinimumHealth));
    let least = declared.unwrap_or(0).min(seen.spec.replicas_desired) as usize;
    let mut healthy = seen.healthy();
    let mut steps = Vec::new();
    for ((why, _, _, place), passing, pod) in order {
        if steps.len() == wanted {
            break;
        }
        if passing && healthy <= least {
            continue;
        }
        healthy -= usize::from(passing);
        steps.push(PodStep::Remove { place: place.clone(), pod: pod.clone(), why });
    }
    steps
}

/// Pods that stay, stand on eligible nodes, and are not as the record says.
fn repair_steps(seen: &ReplicationObserved<'_>, so_far: &[PodStep]) -> Vec<PodStep> {
    if seen.allowed_actions == AllowedActions::Nothing {
        return Vec::new();
    }
    let going: BTreeSet<&PodRef> = so_far.iter().map(PodStep::place).collect();
    let wanted = seen.spec.labels_of_pod();
    let drift = |place: &PodRef, pod: &RcPod| {
        if place.pod != *seen.spec.manifest.id() {
            let free = (seen.slot)(&place.node) == SlotState::Nobody;
            let may = free && seen.allowed_actions == AllowedActions::Full;
            return may.then_some(Drift::PodIdChanged);
        }
        match pod.intent {
            Intent::Missing => Some(Drift::IntentMissing),
            Intent::Differs(_) => Some(Drift::IntentDiffers),
            Intent::Same(_) => {
                let labels = wanted.iter().any(|(key, value)| pod.labels.get(key) != Some(value));
                let labels = labels.then_some(Drift::LabelsDiffer);
                labels
                    .or_else(|| allocation_differs(seen, place).then_some(Drift::AllocationDiffers))
            }
        }
    };
    // A pod that its node cannot start is repaired all the same: a new manifest may be the cure.
    let stays = |place: &PodRef| {
        let node = &place.node;
        let lives = (seen.readiness)(node) <= NodeReadiness::Quarantined;
        lives && seen.eligible.contains(node) && has_room(seen.spec, seen.rooms, place)
    };
    seen.pods
        .iter()
        .filter(|(place, _)| stays(place) && !going.contains(place))
        .filter_map(|(place, pod)| {
            let why = drift(place, pod)?;
            Some(PodStep::Repair { place: place.clone(), pod: pod.clone(), why })
        })
        .collect()
}

fn allocation_differs(seen: &ReplicationObserved<'_>, place: &PodRef) -> bool {
    let room = seen.rooms.of(&place.node);
    !room.is_unreadable && !room.holds(&place.pod, &seen.spec.owner(), seen.spec.resources())
}

/// A transfer goes on only when the count is right and nothing is to be repaired, one at a time.
fn pending_transfer(seen: &ReplicationObserved<'_>) -> TransferPlan {
    match seen.transfer.under_way {
        Some(_) => TransferPlan::Wait(RcReason::TransferUnderWay),
        None => TransferPlan::Nothing,
    }
}

fn transfer_plan(seen: &ReplicationObserved<'_>) -> TransferPlan {
    match (seen.transfer.under_way, seen.allowed_actions) {
        (None, _) => {}
        (Some(_), AllowedActions::Full) => return TransferPlan::Continue,
        // Its old or its new place may only seem to be gone.
        (Some(_), _) => return TransferPlan::Wait(RcReason::SuspiciousTree),
    }
    // Lost pods first, then those that an operator wants away, those that do not start, and those whose node's labels
    // changed, or that ask for more than their node has. One that does not start has to have somewhere to go, or it
    // would hold the others up.
    let misplaced = || seen.pods.iter().filter(|(place, _)| !seen.may_stay(place));
    let readiness = |place: &PodRef| (seen.readiness)(&place.node);
    let stuck =
        |place: &PodRef| readiness(place) == NodeReadiness::Quarantined && seen.nowhere().is_some();
    let rank = |place: &PodRef| std::cmp::Reverse(readiness(place));
    let movable = misplaced().filter(|(place, _)| !stuck(place));
    let Some((leaving, pod)) = movable.min_by_key(|(place, _)| (rank(place), *place)) else {
        return match misplaced().next() {
            Some(_) => TransferPlan::Wait(RcReason::CannotStart),
            None => TransferPlan::Nothing,
        };
    };
    let readiness = readiness(leaving);
    if seen.spec.strategy == RcStrategy::Static && readiness != NodeReadiness::Draining {
        return TransferPlan::Wait(match readiness {
            NodeReadiness::Down => RcReason::NodeDown,
            NodeReadiness::Quarantined => RcReason::CannotStart,
            _ if seen.fit(&leaving.node) => RcReason::InsufficientCapacity,
            _ => RcReason::IneligibleNodes,
        });
    }
    if seen.allowed_actions != AllowedActions::Full {
        return TransferPlan::Wait(RcReason::SuspiciousTree);
    }
    if !seen.transfer.discovery_synced {
        return TransferPlan::Wait(RcReason::DiscoveryNotSynced);
    }
    if seen.passing(leaving, pod) && !may_spare_one(seen, readiness) {
        return TransferPlan::Wait(RcReason::PodsUnhealthy);
    }
    if seen.transfer.lock_held {
        return TransferPlan::Wait(RcReason::LockHeld);
    }
    // To begin and to undo would be two transactions each time, for nothing.
    if let Some(reason) = seen.nowhere().filter(|_| seen.transfer.only_eligible) {
        return TransferPlan::Wait(reason);
    }
    TransferPlan::Start(leaving.node.clone())
}

/// Whether a healthy pod may be taken away for a while. A pod that is down loses nothing by moving; otherwise all
/// must be up, so that the move is the only risk, unless a minimum was declared and is kept without it.
fn may_spare_one(seen: &ReplicationObserved<'_>, readiness: NodeReadiness) -> bool {
    if enabled(Failpoint::TransferBlind) {
        return true;
    }
    match (readiness, seen.spec.min_health) {
        (NodeReadiness::Draining, Some(least)) => seen.healthy() > least as usize,
        _ => seen.healthy() == seen.pods.len(),
    }
}

fn counts_after(seen: &ReplicationObserved<'_>, steps: &[PodStep]) -> Replicas {
    let removed: BTreeSet<&PodRef> = steps
        .iter()
        .filter(|step| matches!(step, PodStep::Remove { .. }))
        .map(PodStep::place)
        .collect();
    let added = steps.iter().filter(|step| matches!(step, PodStep::Add { .. })).count();
    let stay = seen.pods.iter().filter(|(place, _)| !removed.contains(place));
    let healthy = stay.filter(|(place, pod)| seen.passing(place, pod)).count();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Replicas {
        desired: seen.spec.replicas_desired,
        current: count(seen.pods.len() + added - removed.len()),
        healthy: count(healthy),
        eligible: count(seen.eligible.len()),
    }
}
