//! What to do about one RC: a pure function from what was seen to a plan with its reasons.
//!
//! Rules and their order are p2's (`p2.md` §2.3): first the count, then one node transfer, then repair of pods
//! that drifted. Where p2 chose by map order, we choose deterministically: add by node name; remove ineligible,
//! then unhealthy, then newest, then by name.

use std::collections::{BTreeMap, BTreeSet};

use super::findings::{placed_finding, room_words, scheduled_finding, valid};
use super::spec::{RcSpec, Strategy};
use super::status::{ConditionType, Reason, Replicas, Transfer};
use crate::ids::{NodeName, PodId};
use crate::labels::Labels;
use crate::node::Health;
use crate::probe::{Mutation, active};
use crate::schedule::capacity::{Lack, Rooms, ranked};
use crate::store::Index;

/// Where a pod stands; its labels and its intent are named by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The machine.
    pub node: NodeName,
    /// The pod's id; one pod of an id runs per node.
    pub pod: PodId,
}

/// What stands at `intent/<node>/<pod>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Nothing.
    Missing,
    /// The RC's manifest, byte for byte.
    Same(Index),
    /// Something else.
    Differs(Index),
}

impl Intent {
    /// The index to guard a change with; 0 when nothing is there.
    #[must_use]
    pub fn index(self) -> Index {
        match self {
            Intent::Missing => Index::ZERO,
            Intent::Same(index) | Intent::Differs(index) => index,
        }
    }
}

/// A pod that carries the RC's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
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

/// Who stands at a place where a pod might be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupant {
    /// Nobody.
    Nobody,
    /// An intent with the very manifest that we would write, and no labels: adopted by labelling it.
    Ours(Index),
    /// A pod of somebody else.
    Other,
}

/// What a node is fit for, besides its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Pods may be added; also of a node that says nothing of itself, as p2's do.
    Ready,
    /// Pods of several records could not be started there lately: none is added for a while, and those that are there
    /// stay.
    Suspect,
    /// It cannot start the RC's pod, or could not a while ago: none is added, and one that is there leaves for a
    /// node that may do better, if the strategy is dynamic.
    Quarantined,
    /// An operator wants it empty: pods of every strategy leave it as their RC's minimum health permits.
    Draining,
    /// Its agent's session has been gone for longer than the grace: its pods count as lost.
    Down,
}

/// How far the trees that were read can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Nothing suspicious.
    Full,
    /// A tree of nodes or health became suddenly much smaller: nothing is removed or moved.
    NoRemoval,
    /// The pods' own tree did: nothing is changed at all.
    Nothing,
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
pub struct Observed<'a> {
    /// The checked record.
    pub spec: &'a RcSpec,
    /// Its pods.
    pub pods: &'a BTreeMap<Place, Pod>,
    /// Nodes that the scheduler calls eligible.
    pub eligible: &'a BTreeSet<NodeName>,
    /// What each node is fit for.
    pub standing: &'a dyn Fn(&NodeName) -> Standing,
    /// Who stands where on the nodes that have no pod of ours.
    pub occupant: &'a dyn Fn(&NodeName) -> Occupant,
    /// What the nodes have, and what of it is promised.
    pub rooms: &'a Rooms,
    /// What the trees are worth.
    pub trust: Trust,
    /// What bears on a transfer.
    pub transfer: TransferConditions<'a>,
}

/// Whether a pod has, or can be given, what the record asks for where it stands. Where the node's promises cannot be
/// read, nobody can tell, and it stays.
#[must_use]
pub fn has_room(spec: &RcSpec, rooms: &Rooms, place: &Place) -> bool {
    let (room, want) = (rooms.of(&place.node), spec.resources());
    room.is_unreadable
        || room.holds(&place.pod, &spec.promisee(), want)
        || room.lack(&place.pod, want).is_none()
}

impl Observed<'_> {
    /// Whether a node may keep pods: it is eligible, and neither emptied nor lost.
    fn fit(&self, node: &NodeName) -> bool {
        self.eligible.contains(node) && (self.standing)(node) <= Standing::Suspect
    }

    /// Whether a pod may stay where it is: its node is fit and has room for it.
    pub(super) fn may_stay(&self, place: &Place) -> bool {
        self.fit(&place.node) && has_room(self.spec, self.rooms, place)
    }

    /// Whether a pod may be added on a node that has none.
    fn is_open(&self, node: &NodeName) -> bool {
        let promised = self.transfer.under_way.and_then(|transfer| transfer.new_node.as_ref());
        let stands = (self.standing)(node) == Standing::Ready || active(Mutation::UnfitTaken);
        let fit = self.eligible.contains(node) && stands;
        promised != Some(node) && fit
    }

    /// Why there is no node to which a pod could move; `None` if there is one.
    fn nowhere(&self) -> Option<Reason> {
        let ours: BTreeSet<&NodeName> = self.pods.keys().map(|place| &place.node).collect();
        let open = |node: &&NodeName| !ours.contains(*node) && self.is_open(node);
        let (nodes, lacking) = with_room(self, self.eligible.iter().filter(open));
        let mut taken = false;
        for node in nodes {
            if (self.occupant)(node) != Occupant::Other {
                return None;
            }
            taken = true;
        }
        Some(match (lacking.is_empty(), taken) {
            (false, _) => Reason::InsufficientCapacity,
            (true, true) => Reason::PlaceTaken,
            (true, false) => Reason::InsufficientNodes,
        })
    }

    /// Pods that pass their check; those on a lost node do not, whatever was last heard of them.
    fn passing(&self, place: &Place, pod: &Pod) -> bool {
        pod.health == Health::Passing && (self.standing)(&place.node) != Standing::Down
    }

    fn healthy(&self) -> usize {
        self.pods.iter().filter(|(place, pod)| self.passing(place, pod)).count()
    }
}

/// Why a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemoveReason {
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
    /// Its node has promised it something else than the record asks for, or nothing.
    PromiseDiffers,
    /// The manifest has another id now: the pod changes its place on the same node.
    PodIdChanged,
}

/// One change of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Label and intent are written.
    Add {
        /// Where.
        place: Place,
        /// Guards the intent: 0 for a new one, else the one that is adopted.
        intent: Index,
    },
    /// Label and intent are deleted.
    Remove {
        /// Where.
        place: Place,
        /// The pod as seen.
        pod: Pod,
        /// Why.
        why: RemoveReason,
    },
    /// Label and intent are written again.
    Repair {
        /// Where.
        place: Place,
        /// The pod as seen.
        pod: Pod,
        /// Why.
        why: Drift,
    },
}

impl Step {
    /// The place that the step is about.
    #[must_use]
    pub fn place(&self) -> &Place {
        match self {
            Step::Add { place, .. } | Step::Remove { place, .. } | Step::Repair { place, .. } => {
                place
            }
        }
    }
}

/// What to do about pods on ineligible nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferPlan {
    /// There is nothing to move.
    Nothing,
    /// Something should move, but must wait or stay.
    Wait(Reason),
    /// Begin to move the pod on this node.
    Start(NodeName),
    /// Go on with the one in the status.
    Continue,
}

/// A statement for the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// About what.
    pub kind: ConditionType,
    /// Whether it holds.
    pub status: bool,
    /// Why.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// What to do, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Plan {
    /// Changes of pods, in order.
    pub steps: Vec<Step>,
    /// Node transfer.
    pub transfer: TransferPlan,
    /// What holds once the steps are done.
    pub findings: Vec<Finding>,
    /// Counts once the steps are done; `healthy` does not count added pods.
    pub replicas: Replicas,
    /// Something a person should be told: the RC cannot reach its count.
    pub alert: Option<String>,
}

impl Plan {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
            && !matches!(self.transfer, TransferPlan::Start(_) | TransferPlan::Continue)
    }
}

/// Decides what to do about an RC.
pub fn plan(seen: &Observed<'_>) -> Plan {
    if seen.spec.disabled && !active(Mutation::DisabledIgnored) {
        return disabled(seen);
    }
    let (mut steps, shortage) = count_steps(seen);
    steps.extend(repair_steps(seen, &steps));
    let transfer = if steps.is_empty() { transfer_plan(seen) } else { pending_transfer(seen) };
    let replicas = counts_after(seen, &steps);
    let scheduled = scheduled_finding(seen, replicas, shortage);
    let alert = (replicas.current < replicas.desired && !scheduled.status)
        .then(|| scheduled.message.clone());
    let findings = vec![valid(), scheduled, placed_finding(seen, &steps, &transfer)];
    Plan { steps, transfer, findings, replicas, alert }
}

fn disabled(seen: &Observed<'_>) -> Plan {
    let replicas = counts_after(seen, &[]);
    let message = "the record is disabled: its pods are left as they are".to_owned();
    let finding =
        |kind, status| Finding { kind, status, reason: Reason::Disabled, message: message.clone() };
    let findings = vec![
        valid(),
        finding(ConditionType::Scheduled, replicas.current == replicas.desired),
        finding(ConditionType::Placed, true),
    ];
    Plan { steps: Vec::new(), transfer: TransferPlan::Nothing, findings, replicas, alert: None }
}

/// Why the count cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shortage {
    None,
    Nodes,
    Places(usize),
    /// In words, with the numbers.
    Room(String),
}

/// Pods to add or to remove so that the count is as desired.
fn count_steps(seen: &Observed<'_>) -> (Vec<Step>, Shortage) {
    let desired = seen.spec.replicas_desired as usize;
    let current = seen.pods.len();
    match (desired.cmp(&current), seen.trust) {
        (_, Trust::Nothing) | (std::cmp::Ordering::Equal, _) => (Vec::new(), Shortage::None),
        (std::cmp::Ordering::Greater, _) => additions(seen, desired - current),
        (std::cmp::Ordering::Less, Trust::NoRemoval) => (Vec::new(), Shortage::None),
        (std::cmp::Ordering::Less, Trust::Full) => {
            (removals(seen, current - desired), Shortage::None)
        }
    }
}

fn additions(seen: &Observed<'_>, wanted: usize) -> (Vec<Step>, Shortage) {
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
        let intent = match (seen.occupant)(node) {
            Occupant::Nobody => Index::ZERO,
            Occupant::Ours(index) => index,
            Occupant::Other => {
                taken += 1;
                continue;
            }
        };
        let place = Place { node: node.clone(), pod: seen.spec.manifest.id().clone() };
        steps.push(Step::Add { place, intent });
    }
    let shortage = match (steps.len() < wanted, taken) {
        (false, _) => Shortage::None,
        (true, _) if !lacking.is_empty() => Shortage::Room(room_words(seen, &lacking)),
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
    seen: &'a Observed<'_>,
    nodes: impl Iterator<Item = &'a NodeName> + 'a,
) -> (InOrder<'a>, Vec<(&'a NodeName, Lack)>) {
    let (pod, want) = (seen.spec.manifest.id(), seen.spec.resources());
    if want.is_zero() {
        return (Box::new(nodes), Vec::new());
    }
    let mut lacking = Vec::new();
    let mut roomy = Vec::new();
    for node in nodes {
        let room = seen.rooms.of(node);
        match room.lack(pod, want) {
            None => roomy.push((node, room)),
            Some(lack) => lacking.push((node, lack)),
        }
    }
    let salt = seen.spec.id.to_string();
    let roomy = ranked(want, seen.spec.packing, &salt, roomy.into_iter());
    (Box::new(roomy.into_iter()), lacking)
}

/// Ineligible first, then unhealthy, then newest, then by place: total, so the same input removes the same pods. A
/// healthy pod is passed over when the declared minimum would be undercut; an ailing one then goes in its stead.
fn removals(seen: &Observed<'_>, wanted: usize) -> Vec<Step> {
    let mut order: Vec<_> = seen
        .pods
        .iter()
        .map(|(place, pod)| {
            let why = if !seen.may_stay(place) {
                RemoveReason::Ineligible
            } else if pod.health != Health::Passing && pod.health != Health::Absent {
                RemoveReason::Unhealthy
            } else {
                RemoveReason::Surplus
            };
            let passing = seen.passing(place, pod);
            ((why, passing, std::cmp::Reverse(pod.created), place), passing, pod)
        })
        .collect();
    if !active(Mutation::RemovalUnordered) {
        order.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let declared = seen.spec.min_health.filter(|_| !active(Mutation::NoMinimumHealth));
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
        steps.push(Step::Remove { place: place.clone(), pod: pod.clone(), why });
    }
    steps
}

/// Pods that stay, stand on eligible nodes, and are not as the record says.
fn repair_steps(seen: &Observed<'_>, so_far: &[Step]) -> Vec<Step> {
    if seen.trust == Trust::Nothing {
        return Vec::new();
    }
    let going: BTreeSet<&Place> = so_far.iter().map(Step::place).collect();
    let wanted = seen.spec.labels_of_pod();
    let drift = |place: &Place, pod: &Pod| {
        if place.pod != *seen.spec.manifest.id() {
            let free = (seen.occupant)(&place.node) == Occupant::Nobody;
            let may = free && seen.trust == Trust::Full;
            return may.then_some(Drift::PodIdChanged);
        }
        match pod.intent {
            Intent::Missing => Some(Drift::IntentMissing),
            Intent::Differs(_) => Some(Drift::IntentDiffers),
            Intent::Same(_) => {
                let labels = wanted.iter().any(|(key, value)| pod.labels.get(key) != Some(value));
                let labels = labels.then_some(Drift::LabelsDiffer);
                labels.or_else(|| promise_differs(seen, place).then_some(Drift::PromiseDiffers))
            }
        }
    };
    // A pod that its node cannot start is repaired all the same: a new manifest may be the cure.
    let stays = |place: &Place| {
        let node = &place.node;
        let lives = (seen.standing)(node) <= Standing::Quarantined;
        lives && seen.eligible.contains(node) && has_room(seen.spec, seen.rooms, place)
    };
    seen.pods
        .iter()
        .filter(|(place, _)| stays(place) && !going.contains(place))
        .filter_map(|(place, pod)| {
            let why = drift(place, pod)?;
            Some(Step::Repair { place: place.clone(), pod: pod.clone(), why })
        })
        .collect()
}

fn promise_differs(seen: &Observed<'_>, place: &Place) -> bool {
    let room = seen.rooms.of(&place.node);
    !room.is_unreadable && !room.holds(&place.pod, &seen.spec.promisee(), seen.spec.resources())
}

/// A transfer goes on only when the count is right and nothing is to be repaired, one at a time.
fn pending_transfer(seen: &Observed<'_>) -> TransferPlan {
    match seen.transfer.under_way {
        Some(_) => TransferPlan::Wait(Reason::TransferUnderWay),
        None => TransferPlan::Nothing,
    }
}

fn transfer_plan(seen: &Observed<'_>) -> TransferPlan {
    match (seen.transfer.under_way, seen.trust) {
        (None, _) => {}
        (Some(_), Trust::Full) => return TransferPlan::Continue,
        // Its old or its new place may only seem to be gone.
        (Some(_), _) => return TransferPlan::Wait(Reason::SuspiciousTree),
    }
    // Lost pods first, then those that an operator wants away, those that do not start, and those whose node's labels
    // changed, or that ask for more than their node has. One that does not start has to have somewhere to go, or it
    // would hold the others up.
    let astray = || seen.pods.iter().filter(|(place, _)| !seen.may_stay(place));
    let standing = |place: &Place| (seen.standing)(&place.node);
    let stuck =
        |place: &Place| standing(place) == Standing::Quarantined && seen.nowhere().is_some();
    let rank = |place: &Place| std::cmp::Reverse(standing(place));
    let movable = astray().filter(|(place, _)| !stuck(place));
    let Some((leaving, pod)) = movable.min_by_key(|(place, _)| (rank(place), *place)) else {
        return match astray().next() {
            Some(_) => TransferPlan::Wait(Reason::CannotStart),
            None => TransferPlan::Nothing,
        };
    };
    let standing = standing(leaving);
    if seen.spec.strategy == Strategy::Static && standing != Standing::Draining {
        return TransferPlan::Wait(match standing {
            Standing::Down => Reason::NodeDown,
            Standing::Quarantined => Reason::CannotStart,
            _ if seen.fit(&leaving.node) => Reason::InsufficientCapacity,
            _ => Reason::IneligibleNodes,
        });
    }
    if seen.trust != Trust::Full {
        return TransferPlan::Wait(Reason::SuspiciousTree);
    }
    if !seen.transfer.discovery_synced {
        return TransferPlan::Wait(Reason::DiscoveryNotSynced);
    }
    if seen.passing(leaving, pod) && !may_spare_one(seen, standing) {
        return TransferPlan::Wait(Reason::PodsUnhealthy);
    }
    if seen.transfer.lock_held {
        return TransferPlan::Wait(Reason::LockHeld);
    }
    // To begin and to undo would be two transactions each time, for nothing.
    if let Some(reason) = seen.nowhere().filter(|_| seen.transfer.only_eligible) {
        return TransferPlan::Wait(reason);
    }
    TransferPlan::Start(leaving.node.clone())
}

/// Whether a healthy pod may be taken away for a while. A pod that is down loses nothing by moving; otherwise all
/// must be up, so that the move is the only risk, unless a minimum was declared and is kept without it.
fn may_spare_one(seen: &Observed<'_>, standing: Standing) -> bool {
    if active(Mutation::TransferBlind) {
        return true;
    }
    match (standing, seen.spec.min_health) {
        (Standing::Draining, Some(least)) => seen.healthy() > least as usize,
        _ => seen.healthy() == seen.pods.len(),
    }
}

fn counts_after(seen: &Observed<'_>, steps: &[Step]) -> Replicas {
    let removed: BTreeSet<&Place> =
        steps.iter().filter(|step| matches!(step, Step::Remove { .. })).map(Step::place).collect();
    let added = steps.iter().filter(|step| matches!(step, Step::Add { .. })).count();
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
