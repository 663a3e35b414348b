//! Gangs start completely or not at all, and nodes are not overcommitted (14, 16).

use std::collections::{BTreeMap, BTreeSet};

use super::allocations::overcommitted;
use crate::facts::Report;
use crate::model::{AppliedWrite, JobModel, ModelEvent, is_members};
use crate::reached::{Occasion, met_if};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::pod_group::status::{GroupPlacement, PlacementState, PodGroupStatus};
use rcfarm_api::resource_list::CPU;

pub fn check(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    let orders = |seen: &ModelEvent| {
        matches!(seen, ModelEvent::GroupStatus(..) | ModelEvent::Allocations { .. })
    };
    if applied_write.events.iter().any(orders) {
        allocations(model, report);
        whole(applied_write, model, report);
    }
    if applied_write.process().is_some() {
        starts(applied_write, model, report);
    }
}

/// Allocations belong to members that are placed there, no node is overcommitted, and all members of a bound gang have
/// their allocation.
fn allocations(model: &JobModel, report: Report<'_>) {
    let mut allocated = BTreeSet::new();
    for (node, allocations) in &model.allocations {
        let cpu: u64 = allocations.pods.values().map(|a| a.cpu_milli).sum();
        if let Some(capacity) = model.nodes.get(node).and_then(|node| node.capacity.as_ref()) {
            met_if(cpu + 1_000 > capacity.amount(CPU), Occasion::NodeFilled);
            if let Some(what) = overcommitted(allocations, capacity) {
                report(14, format!("{node} allocated {what}"));
            }
        }
        let members = allocations.pods.iter().filter(|(_, a)| is_members(&a.owner));
        allocated.extend(members.map(|(pod, a)| (node.clone(), pod.clone(), a.owner.clone())));
    }
    for (id, status) in &model.group_statuses {
        let Some(place) = &status.placement else { continue };
        for (task, n, node) in place.placed() {
            let Ok(pod) = place.pod_ids.pod_id(id, task, n) else { continue };
            let member = (node.clone(), pod, AllocationOwner::of_group(id));
            let asks = place.asks.get(task).is_some_and(|asks| !asks.is_empty());
            if place.state == PlacementState::Bound && asks && !allocated.contains(&member) {
                let (node, pod, _) = &member;
                report(16, format!("{id} may start, and {node} allocated nothing to {pod}"));
            }
        }
    }
    // What a restored snapshot brought back is released later (`liveness/jobs.rs`).
    if let Some(what) = stray(model).filter(|_| model.restored_at.is_none()) {
        report(16, what);
    }
}

/// An allocation of no member.
#[must_use]
pub fn stray(model: &JobModel) -> Option<String> {
    let placed = model.group_statuses.iter().flat_map(|(id, status)| {
        let member = |place: &GroupPlacement, (task, n, node): (&str, u32, &NodeName)| {
            let pod = place.pod_ids.pod_id(id, task, n).ok()?;
            Some((node.clone(), pod, AllocationOwner::of_group(id)))
        };
        let of =
            move |place| GroupPlacement::placed(place).filter_map(move |one| member(place, one));
        status.placement.iter().flat_map(of)
    });
    let placed: BTreeSet<_> = placed.collect();
    model.allocations.iter().find_map(|(node, allocations)| {
        let mut members = allocations.pods.iter().filter(|(_, a)| is_members(&a.owner));
        let is_stray = |pod: &PodId, owner: &AllocationOwner| {
            !placed.contains(&(node.clone(), pod.clone(), owner.clone()))
        };
        let (pod, a) = members.find(|(pod, a)| is_stray(pod, &a.owner))?;
        Some(format!("{node} has an allocation for {pod}, which is no member of {}", a.owner))
    })
}

/// A gang that may start has a placement for all members that it needs.
fn whole(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    if applied_write.process().is_none() {
        return;
    }
    for seen in &applied_write.events {
        let ModelEvent::GroupStatus(id, (before, Some(after))) = seen else { continue };
        let state = |status: &PodGroupStatus| status.placement.as_ref().map(|place| place.state);
        let was = before.as_ref().and_then(|before| state(before));
        let is = state(after).filter(|is| was != Some(*is));
        met_if(is == Some(PlacementState::Reserving), Occasion::WrittenAhead);
        let bound = |state: PlacementState| state == PlacementState::Bound;
        let was =
            before.as_ref().and_then(|s| s.placement.as_ref()).is_some_and(|p| bound(p.state));
        let Some(place) = after.placement.as_ref().filter(|place| bound(place.state)) else {
            continue;
        };
        let record = model.groups.get(id).filter(|group| group.created == after.of);
        let Some(record) = record.and_then(|group| group.record.as_ref()).filter(|_| !was) else {
            continue;
        };
        // The record may ask for more than the one that was placed.
        if record.spec.round != after.round {
            continue;
        }
        let counts: BTreeMap<&str, u32> = place.counts();
        met_if(counts.values().sum::<u32>() > 1, Occasion::GangBound);
        let short = record.spec.least_to_place().into_iter().find(|(task, least)| {
            place.members.contains_key(*task) && counts.get(task).copied().unwrap_or(0) < *least
        });
        if let Some((task, least)) = short {
            let got = counts.get(task).copied().unwrap_or(0);
            report(16, format!("{id} may start with {got} of task {task}, {least} are needed"));
        }
    }
}

/// A member starts on its node of the placement, and only once the whole gang is placed.
fn starts(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    for seen in &applied_write.events {
        let ModelEvent::Intent(place, (_, Some(identity))) = seen else { continue };
        let id = &identity.job;
        let record = model.groups.get(id).and_then(|group| group.record.as_ref());
        let status = model.group_statuses.get(id);
        let (Some(record), Some(status)) = (record, status) else {
            report(16, format!("{} started, and its gang was not placed", place.pod));
            continue;
        };
        let task = identity.slot.task.to_ascii_lowercase();
        let node = status.node_of(&task, identity.slot.index);
        if !status.may_start(&record.spec) {
            let place_is = status.placement.as_ref().map(|place| place.state);
            let phase = status.phase;
            let what =
                format!("its gang is {phase}, its place {place_is:?}, round {}", status.round);
            report(16, format!("{} started on {}: {what}", place.pod, place.node));
        } else if node != Some(&place.node) {
            report(16, format!("{} started on {}, its place is {node:?}", place.pod, place.node));
        }
    }
}
