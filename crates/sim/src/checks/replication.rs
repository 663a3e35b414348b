//! Changes of pods by farms (6 to 14, 31).

use std::collections::BTreeSet;

use super::allocations::overcommitted;
use crate::facts::{CheckFacts, Report, VIEW};
use crate::model::{
    AppliedWrite, Item, ReportedStatus, ServiceModel, ServicePod, Unfit, was_allocated,
};
use crate::reached::{Occasion, met, met_if};
use rcfarm::farm::NODE_GRACE;
use rcfarm_api::Index;
use rcfarm_api::Stored;
use rcfarm_api::allocation::Allocations;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::rc::spec::{RcSpec, RcStrategy};
use rcfarm_api::resource_list::CPU;

/// Changes of one RC's pods by a transaction.
struct Moves {
    added: BTreeSet<PodRef>,
    removed: BTreeSet<PodRef>,
}

impl Moves {
    fn of(applied_write: &AppliedWrite<'_>, rc: RcId) -> Moves {
        let mut moves = Moves { added: BTreeSet::new(), removed: BTreeSet::new() };
        for (item, change) in &applied_write.changes {
            let Item::Pod(place) = item else { continue };
            let owner = |side: &Option<std::sync::Arc<rcfarm_store::Entry>>| {
                side.as_ref().and_then(|entry| ServicePod::of(entry).rc)
            };
            match (owner(&change.before) == Some(rc), owner(&change.after) == Some(rc)) {
                (true, false) => _ = moves.removed.insert(place.clone()),
                (false, true) => _ = moves.added.insert(place.clone()),
                _ => {}
            }
        }
        moves
    }

    fn nodes(places: &BTreeSet<PodRef>) -> BTreeSet<&NodeName> {
        places.iter().map(|place| &place.node).collect()
    }

    /// Places without a pod after the transaction, except those whose pod got another id on the same node.
    fn left(&self) -> impl Iterator<Item = &PodRef> {
        let stay = Self::nodes(&self.added);
        self.removed.iter().filter(move |place| !stay.contains(&place.node))
    }

    fn newly(&self) -> impl Iterator<Item = &PodRef> {
        let were = Self::nodes(&self.removed);
        self.added.iter().filter(move |place| !were.contains(&place.node))
    }
}

/// Checks one write.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    allocations(applied_write, model, report);
    if applied_write.process().is_none() {
        amiss(applied_write, model);
        return;
    }
    let touched = |(item, _): &&(Item, _)| matches!(item, Item::Pod(_) | Item::Intent(_));
    let Some(rc) = applied_write.record() else {
        if applied_write.changes.iter().any(|change| touched(&change)) {
            report(8, "pods were changed, and no record's status with them".to_owned());
        }
        return;
    };
    transfer_begins(applied_write, model, rc, report);
    waits_to_move(applied_write, model, rc);
    let bad = model.records.iter().any(|(of, record)| *of != rc && record.is_none());
    met_if(bad, Occasion::BadBesideGood);
    if !applied_write.changes.iter().any(|change| touched(&change)) {
        return;
    }
    whole_and_own(applied_write, model, rc, report);
    let Some(record) = model.records.get(&rc) else {
        report(8, format!("pods of {rc} were changed, which has no record"));
        return;
    };
    let Some(spec) = record.as_deref() else {
        report(12, format!("pods of {rc} were changed, whose record cannot be read"));
        return;
    };
    if spec.disabled {
        report(10, format!("pods of {rc} were changed, which is disabled"));
    }
    let moves = Moves::of(applied_write, rc);
    // Transactions are not guarded against pods that users change by hand. These count once a view can show them.
    if facts.by_hand.get(&rc).is_none_or(|at| *at < model.oldest_view(applied_write.at)) {
        counts(model, spec, &moves, report);
        order(applied_write, model, facts, spec, &moves, report);
        by_nodes_of_the_record(applied_write, model, facts, spec, &moves, report);
    }
    whole_allocations(model, spec, &moves, report);
    places(applied_write, model, facts, spec, &moves, report);
    removals(applied_write, model, spec, &moves, report);
    updates(applied_write, model, spec, &moves, report);
}

/// 8 and 9: a pod's keys change together, with its record's status, and only for its own record.
fn whole_and_own(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    rc: RcId,
    report: Report<'_>,
) {
    if !applied_write.changes.iter().any(|(item, _)| *item == Item::Status(rc)) {
        report(8, format!("pods of {rc} were changed without its status"));
    }
    let label_before = |place: &PodRef| {
        let changed =
            applied_write.changes.iter().find(|(item, _)| *item == Item::Pod(place.clone()));
        match changed {
            Some((_, change)) => change.before.as_deref().map(ServicePod::of),
            None => model.pods.get(place).cloned(),
        }
    };
    for (item, change) in &applied_write.changes {
        let (Item::Pod(place) | Item::Intent(place)) = item else { continue };
        let PodRef { node, pod } = place;
        if model.pods.contains_key(place) != model.intents.contains(place) {
            report(8, format!("{pod} on {node} is left with labels or an intent, and not both"));
        }
        let owner = label_before(place).map(|pod| pod.rc);
        if let Some(Some(old)) = owner
            && old != rc
            && may_take_over(model, old, pod)
        {
            met_if(matches!(item, Item::Pod(_)), Occasion::TakenOver);
            continue;
        }
        // A pod without labels but with the right intent may be adopted; its intent does not change then.
        if change.before.is_some() && owner != Some(Some(rc)) {
            report(9, format!("{rc} changed {}, which was not its own ({owner:?})", change.key));
        }
    }
}

/// The exception of 9: `old` is disabled, has the same pod id, and keeps as many pods as it wants.
fn may_take_over(model: &ServiceModel, old: RcId, pod: &PodId) -> bool {
    let Some(Some(spec)) = model.records.get(&old).map(Option::as_deref) else { return false };
    spec.disabled
        && spec.manifest.id() == pod
        && model.places(old).len() >= spec.replicas_desired as usize
}

/// 6 and 13: not more pods than desired, and not fewer.
fn counts(model: &ServiceModel, spec: &RcSpec, moves: &Moves, report: Report<'_>) {
    let (count, desired) = (model.places(spec.id).len(), spec.replicas_desired as usize);
    let (added, removed) = (moves.added.len(), moves.removed.len());
    met_if(added > 0 && count == desired, Occasion::CountReached);
    met_if(removed > 0, Occasion::PodRemoved);
    if added > removed && count > desired {
        report(6, format!("{} grew to {count} pods, asked for are {desired}", spec.id));
    }
    if removed > added && count < desired {
        report(13, format!("{} shrank to {count} pods, asked for are {desired}", spec.id));
    }
}

/// 7: one pod per node, on fit nodes.
fn places(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    moves: &Moves,
    report: Report<'_>,
) {
    let all = model.places(spec.id);
    for PodRef { node, .. } in &moves.added {
        if all.iter().filter(|place| place.node == *node).count() > 1 {
            report(7, format!("{} has two pods on {node}", spec.id));
        }
    }
    for PodRef { node, .. } in moves.newly() {
        if let Some(why) = unfit(applied_write, model, facts, spec, node) {
            let id = spec.id;
            report(
                7,
                format!("{id} got a pod on {node}, which has not been fit for long: {why:?}"),
            );
        }
    }
    if moves.newly().next().is_some() {
        passed_over(applied_write, model, facts, spec, &all);
    }
}

/// Why no view shows the node as fit. Only farms that were running know since when an agent has been gone.
fn unfit(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    node: &NodeName,
) -> Option<Unfit> {
    let since = applied_write.process().and_then(|process| facts.looks_since.get(&process));
    let was_there = since.is_some_and(|since| *since + VIEW + NODE_GRACE < applied_write.at);
    let why = model.surely_unfit(spec, node, applied_write.at);
    why.filter(|why| was_there || *why != Unfit::Down)
}

/// Nodes that were free when a pod was placed, but not fit.
fn passed_over(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    all: &BTreeSet<PodRef>,
) {
    for node in model.node_labels.keys() {
        let place = PodRef { node: node.clone(), pod: spec.manifest.id().clone() };
        let taken = all.iter().any(|place| place.node == *node)
            || model.pods.contains_key(&place)
            || model.intents.contains(&place);
        if taken || !model.has_room(spec, node) {
            continue;
        }
        match unfit(applied_write, model, facts, spec, node) {
            Some(Unfit::Down) => met(Occasion::DownPassedOver),
            Some(Unfit::Draining) => met(Occasion::DrainedPassedOver),
            Some(Unfit::Labels) => met(Occasion::OthersPassedOver),
            None => {}
        }
    }
}

/// 11 and 13: healthy pods stay above the minimum; a pod moves only off a node that it should leave.
fn removals(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    spec: &RcSpec,
    moves: &Moves,
    report: Report<'_>,
) {
    let moved = moves.newly().next().is_some();
    met_if(moved && moves.left().next().is_some(), Occasion::MovedOff);
    for PodRef { node, .. } in moves.left().filter(|_| moved) {
        if !model.maybe_unfit(spec, node, applied_write.at) {
            report(13, format!("{} moved a pod off {node}, which was fit all the time", spec.id));
        }
    }
    let least = spec_minimum(model, spec).min(spec.replicas_desired as usize);
    let healthy = moves.left().any(|place| model.surely_passing(place, applied_write.at));
    let stay = model.places(spec.id);
    let left = stay.iter().filter(|place| model.maybe_passing(place, applied_write.at)).count();
    met_if(!moved && healthy && least > 0 && left == least, Occasion::AtTheMinimum);
    if !moved && healthy && left < least {
        report(11, format!("{} has {left} healthy pods left, its minimum is {least}", spec.id));
    }
}

/// 38: a healthy pod gets a changed manifest in order only while enough others are healthy and run theirs.
fn updates(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    spec: &RcSpec,
    moves: &Moves,
    report: Report<'_>,
) {
    let Some(spec) = spec_with_labels(model, spec) else { return };
    // After a restored snapshot nodes run what the snapshot undid.
    if !spec.in_order || model.was_restored(applied_write.at) {
        return;
    }
    // Pods that are created now, or taken over, replace none of its own.
    let is_restarted = |place: &&PodRef| {
        let since = model.unproved.get(*place);
        since == Some(&applied_write.at)
            && !moves.added.contains(*place)
            && model.surely_passing(place, applied_write.at)
    };
    let all = model.places(spec.id);
    let restarted = all.iter().filter(is_restarted).count();
    if restarted == 0 {
        return;
    }
    met(Occasion::UpdatedInOrder);
    let is_up = |place: &&PodRef| {
        !model.unproved.contains_key(*place) && model.maybe_passing(place, applied_write.at)
    };
    let (up, id) = (all.iter().filter(is_up).count(), spec.id);
    met_if(
        spec.min_health.is_some_and(|least| up == least as usize),
        Occasion::UpdatedToTheMinimum,
    );
    let least = spec.min_health.map_or(all.len().saturating_sub(1), |least| least as usize);
    if up < least {
        report(
            38,
            format!("{id} restarts {restarted} healthy pods, {up} others of {least} are up"),
        );
    }
}

/// Removal rank of a pod as far as it is certain: the smaller is removed first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    OnUnfitNode,
    Ailing,
    Well(std::cmp::Reverse<Index>, PodRef),
}

fn worth(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    place: &PodRef,
) -> Option<Worth> {
    if unfit(applied_write, model, facts, spec, &place.node).is_some() {
        return Some(Worth::OnUnfitNode);
    }
    let removed = applied_write.changes.iter().find(|(item, _)| *item == Item::Pod(place.clone()));
    let before = removed.and_then(|(_, change)| change.before.as_deref().map(ServicePod::of));
    let pod = before.or_else(|| model.pods.get(place).cloned())?;
    // A pod without its allocation may have to leave too.
    let of_node = Item::Allocations(place.node.clone());
    let allocated = match applied_write.changes.iter().find(|(item, _)| *item == of_node) {
        Some((_, change)) => {
            let before = change.before.as_ref().map(|entry| Allocations::decode(&entry.value));
            was_allocated(spec, place, before.and_then(Result::ok).as_ref())
        }
        None => model.is_allocated(spec, place),
    };
    if !allocated || model.maybe_unfit(spec, &place.node, applied_write.at) {
        return None;
    }
    // Its owner waits for proof that the pod runs the changed manifest, a new owner anew.
    let is_in_order = spec_with_labels(model, spec).is_none_or(|spec| spec.in_order);
    if is_in_order && is_rewritten(applied_write, model, place, pod.created) {
        return None;
    }
    let well = || Worth::Well(std::cmp::Reverse(pod.created), place.clone());
    match (
        model.surely_ailing(place, applied_write.at),
        model.surely_passing(place, applied_write.at),
    ) {
        (true, _) => Some(Worth::Ailing),
        (false, true) => Some(well()),
        (false, false) => None,
    }
}

/// Whether the intent of a pod had been changed, before this write, since its label was created at `pod`.
fn is_rewritten(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    place: &PodRef,
    pod: Index,
) -> bool {
    let item = Item::Intent(place.clone());
    let before = match applied_write.changes.iter().find(|(of, _)| *of == item) {
        Some((_, change)) => change.before.as_ref(),
        None => model.intent(place),
    };
    before.is_none_or(|intent| {
        intent.create_index != intent.modify_index || intent.create_index > pod
    })
}

/// 11: pods on unfit nodes are removed first, then unhealthy ones, then the newest.
fn order(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    moves: &Moves,
    report: Report<'_>,
) {
    if !moves.added.is_empty() {
        return;
    }
    // A healthy pod may be kept because of the minimum.
    let may_pass_over = spec_minimum(model, spec) > 0;
    for gone in &moves.removed {
        let Some(of_gone) = worth(applied_write, model, facts, spec, gone) else { continue };
        for stays in &model.places(spec.id) {
            let Some(of_stays) = worth(applied_write, model, facts, spec, stays) else {
                continue;
            };
            met_if(of_gone < of_stays, Occasion::ChoiceOfRemoval);
            let well = |worth: &Worth| matches!(worth, Worth::Well(..));
            let passed_over = may_pass_over && well(&of_stays) && !well(&of_gone)
                || may_pass_over && of_stays == Worth::OnUnfitNode;
            if of_stays < of_gone && !passed_over {
                let (id, gone, stays) = (spec.id, &gone.node, &stays.node);
                report(11, format!("{id} left {gone} ({of_gone:?}) before {stays} ({of_stays:?})"));
            }
        }
    }
}

/// 31: no pod on a fit node is removed while another is on a node whose labels have not matched since before the
/// record was written.
fn by_nodes_of_the_record(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    facts: &CheckFacts,
    spec: &RcSpec,
    moves: &Moves,
    report: Report<'_>,
) {
    // Views may show what a restored snapshot undid. A healthy pod may be kept because of the minimum.
    let is_restored = model.was_restored(applied_write.at);
    if is_restored || !moves.added.is_empty() || spec_minimum(model, spec) > 0 {
        return;
    }
    let is_unfit = |place: &&PodRef| {
        let labels = model.labels_before_record(spec.id, &place.node);
        labels.is_some_and(|labels| !spec.node_selector.matches(labels))
    };
    let stay = model.places(spec.id);
    let Some(stays) = stay.iter().find(is_unfit) else { return };
    let is_fit = |place: &&PodRef| {
        let worth = worth(applied_write, model, facts, spec, place);
        matches!(worth, Some(Worth::Ailing | Worth::Well(..)))
    };
    if let Some(gone) = moves.removed.iter().find(is_fit) {
        let (id, gone, stays) = (spec.id, &gone.node, &stays.node);
        report(31, format!("{id} left {gone}, and not {stays}, which no longer matched"));
    }
}

/// 14: a node that gets a pod allocates what it asks for in the same transaction, and a node that a pod leaves releases
/// it.
fn whole_allocations(model: &ServiceModel, spec: &RcSpec, moves: &Moves, report: Report<'_>) {
    for place in moves.newly().filter(|place| !model.is_allocated(spec, place)) {
        report(
            14,
            format!("{} got a pod on {}, which allocated nothing to it", spec.id, place.node),
        );
    }
    for PodRef { node, pod } in moves.left() {
        let allocated = model.allocations.get(node).and_then(|all| all.pods.get(pod));
        if allocated.is_some_and(|allocated| allocated.owner == spec.owner()) {
            report(14, format!("{} left {node}, which still has an allocation for {pod}", spec.id));
        }
    }
}

/// Counts the occasion of a disabled record with a wrong number of pods, after a user wrote it.
fn amiss(applied_write: &AppliedWrite<'_>, model: &ServiceModel) {
    for (item, _) in &applied_write.changes {
        let Item::Record(rc) = item else { continue };
        let disabled = model.spec(*rc).filter(|spec| spec.disabled);
        let amiss = |spec: &RcSpec| model.places(*rc).len() != spec.replicas_desired as usize;
        met_if(disabled.is_some_and(amiss), Occasion::DisabledAmiss);
    }
}

/// Counts the occasion of a healthy pod that should move and must wait.
fn waits_to_move(applied_write: &AppliedWrite<'_>, model: &ServiceModel, rc: RcId) {
    let Some(spec) = model.spec(rc).filter(|spec| spec.strategy == RcStrategy::Dynamic) else {
        return;
    };
    let places = model.places(rc);
    let moves = |place: &PodRef| {
        model.surely_passing(place, applied_write.at)
            && !model.maybe_fit(spec, &place.node, applied_write.at)
    };
    let ails = |place: &PodRef| !model.maybe_passing(place, applied_write.at);
    met_if(places.iter().any(moves) && places.iter().any(ails), Occasion::MoveWhileOthersAil);
}

/// The RC as its labels make it. `None`: they are not valid.
fn spec_with_labels(model: &ServiceModel, spec: &RcSpec) -> Option<RcSpec> {
    let labels = model.rc_labels.get(&spec.id).and_then(|t| t.now()?.as_ref());
    spec.clone().with_labels(labels).ok()
}

fn spec_minimum(model: &ServiceModel, spec: &RcSpec) -> usize {
    let labels = model.rc_labels.get(&spec.id).and_then(|t| t.now()?.as_ref());
    let least = labels.and_then(|l| l.get(rcfarm_api::key::MIN_HEALTH_LABEL)?.parse().ok());
    least.unwrap_or(0)
}

/// 11: a transfer of a healthy pod begins only while all others, or enough of them, are healthy.
fn transfer_begins(
    applied_write: &AppliedWrite<'_>,
    model: &ServiceModel,
    rc: RcId,
    report: Report<'_>,
) {
    let before = applied_write.record.as_ref().and_then(|(_, status)| status.transfer.as_ref());
    let after = model.statuses.get(&rc).and_then(|status| status.transfer.as_ref());
    let (None, Some(transfer), Some(spec)) = (before, after, model.spec(rc)) else { return };
    let places = model.places(rc);
    let Some(old) = places.iter().find(|place| place.node == transfer.old_node) else { return };
    if !model.surely_passing(old, applied_write.at) {
        return;
    }
    let others = || places.iter().filter(|place| *place != old);
    let passing = others().filter(|place| model.maybe_passing(place, applied_write.at)).count();
    if passing < others().count() {
        report(11, format!("{rc} moves a healthy pod off {} while others are unhealthy", old.node));
    }
    if !model.maybe_unfit(spec, &old.node, applied_write.at) {
        report(13, format!("{rc} moves a pod off {}, which was fit all the time", old.node));
    }
}

/// 14: allocations of a node do not exceed its capacity, by some recent view.
fn allocations(applied_write: &AppliedWrite<'_>, model: &ServiceModel, report: Report<'_>) {
    for (item, _) in &applied_write.changes {
        let Item::Allocations(node) = item else { continue };
        let Some(allocated) = model.allocations.get(node) else { continue };
        let said = model.nodes.get(node).and_then(|t| t.now()?.as_ref());
        let Some(capacity) = said.map(|said| &said.capacity) else { continue };
        let cpu: u64 = allocated.pods.values().map(|a| a.cpu_milli).sum();
        let has_cpu = capacity.amount(CPU);
        met_if(has_cpu > 0 && cpu + 1_000 > has_cpu, Occasion::NodeFull);
        let from = model.oldest_view(applied_write.at);
        let fits = |said: &Option<ReportedStatus>| {
            said.as_ref().is_some_and(|said| overcommitted(allocated, &said.capacity).is_none())
        };
        let fitted = model.nodes.get(node).is_some_and(|t| t.ever(from, false, fits));
        if let Some(what) = overcommitted(allocated, capacity).filter(|_| !fitted) {
            report(14, format!("{node} allocated {what}"));
        }
    }
}
