//! Cells: devices, quotas, places, and evictions (41 to 44), from the written records alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::Report;
use crate::model::{AppliedWrite, JobModel, Leaf, ModelEvent, leaves};
use crate::reached::{Occasion, met, met_if};
use rcfarm_api::cells::{AffinityGroupRecord, PodPlacementRecord, numbers};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::{GroupPlacement, PlacementState, PodGroupStatus};

/// Checks one write.
pub fn check(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    let orders = |seen: &ModelEvent| {
        matches!(seen, ModelEvent::GroupStatus(..) | ModelEvent::Allocations { .. })
    };
    if applied_write.process().is_none() || !applied_write.events.iter().any(orders) {
        return;
    }
    devices(model, report);
    quotas(model, report);
    let reserves = |seen: &'_ ModelEvent| match seen {
        ModelEvent::GroupStatus(id, (before, Some(after))) => {
            let reserved = |status: &PodGroupStatus| status.reservation.clone();
            let had = before.as_ref().and_then(|before| reserved(before));
            (had != reserved(after)).then(|| id.clone())
        }
        _ => None,
    };
    let new: Vec<GroupId> = applied_write.events.iter().filter_map(reserves).collect();
    let new: BTreeSet<&GroupId> = new.iter().collect();
    for seen in &applied_write.events {
        let ModelEvent::GroupStatus(id, (before, Some(after))) = seen else { continue };
        let before = before.as_deref().filter(|before| before.of == after.of);
        placed(id, (before, after), &new, model, report);
        if let Some(before) = before {
            stays(id, before, after, model, report);
        }
        evicted(id, before, after, model, report);
    }
}

/// The cells that a group has.
fn used(status: &PodGroupStatus) -> Option<&AffinityGroupRecord> {
    status.placement.as_ref()?.cells.as_deref()
}

/// 41: devices are given once and reserved once, and allocated as the record says.
fn devices(model: &JobModel, report: Report<'_>) {
    let (mut given, mut reserved): (BTreeMap<Leaf, &GroupId>, BTreeMap<Leaf, &GroupId>) =
        Default::default();
    for (id, status) in &model.group_statuses {
        let of = [
            (used(status), &mut given, "given"),
            (status.reservation.as_deref(), &mut reserved, "reserved"),
        ];
        for (record, all, word) in of {
            for leaf in record.into_iter().flat_map(leaves) {
                if let Some(other) = all.insert(leaf.clone(), id) {
                    report(41, format!("{leaf:?} is {word} to {other} and to {id}"));
                }
            }
        }
        if let Some(what) = misallocated(id, status, model) {
            report(41, what);
        }
    }
}

/// A member of a bound group that has other devices than its record says.
fn misallocated(id: &GroupId, status: &PodGroupStatus, model: &JobModel) -> Option<String> {
    let place = status.placement.as_ref().filter(|place| place.state == PlacementState::Bound)?;
    let record = place.cells.as_deref()?;
    place.placed().find_map(|(task, n, node)| {
        let of_record = record.place_of(task, n).filter(|of| of.node == node.as_str());
        let wanted: BTreeSet<i32> =
            numbers(&of_record.map(|of| of.devices.clone())?).into_iter().collect();
        let pod = place.pod_ids.pod_id(id, task, n).ok()?;
        let given = model.allocations.get(node)?.pods.get(&pod)?;
        let given: BTreeSet<i32> =
            given.devices.values().flatten().map(|n| n.cast_signed()).collect();
        (wanted != given).then(|| {
            format!("{pod} of {id} is allocated {given:?} on {node}, its place is {wanted:?}")
        })
    })
}

/// 42: what guaranteed groups hold that were placed under the present configuration.
fn quotas(model: &JobModel, report: Report<'_>) {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let mut held: BTreeMap<(&str, &str, i32), &GroupId> = BTreeMap::new();
    let mut cells: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (id, status) in &model.group_statuses {
        let Some(record) = used(status).filter(|_| model.cells.is_of_present(id)) else { continue };
        if record.request.priority < 0 || record.lazy_preemption.is_some() {
            continue;
        }
        let vc = record.request.key.virtual_cluster.as_str();
        *sums.entry(vc).or_default() += leaves(record).count() as u64;
        for pod in &record.pods {
            let Some(cell) = pod.cell.as_deref() else {
                report(42, format!("{id} is guaranteed, and has a place in no virtual cell"));
                continue;
            };
            for leaf in numbers(&pod.leaves) {
                if let Some(other) = held.insert((vc, cell, leaf), id) {
                    report(42, format!("leaf {leaf} of {cell} is held by {other} and by {id}"));
                }
            }
            within(id, record, pod, (vc, cell), &mut cells, model, report);
        }
    }
    for (vc, sum) in sums {
        match model.cells.promised(vc) {
            Some(promised) if sum > promised => {
                report(42, format!("{vc} was promised {promised} devices and holds {sum}"));
            }
            promised => met_if(promised == Some(sum), Occasion::PromiseKept),
        }
    }
}

/// All places in a virtual cell are in one physical cell of its type.
fn within<'a>(
    id: &GroupId,
    record: &'a AffinityGroupRecord,
    pod: &'a PodPlacementRecord,
    (vc, cell): (&'a str, &'a str),
    cells: &mut BTreeMap<(&'a str, &'a str), usize>,
    model: &JobModel,
    report: Report<'_>,
) {
    let Some(of) = record.preassigned.get(cell) else {
        report(42, format!("{id} does not say of what type {cell} is"));
        return;
    };
    let Some(is) = model.cells.above(&pod.node, of) else { return };
    let was = *cells.entry((vc, cell)).or_insert(is);
    if was != is {
        report(42, format!("{cell} is {of} {was} and, for {id}, {of} {is}"));
    }
}

/// 41: a group is not placed on what another one has reserved before. One that is placed may have to go for one that is
/// looked at after it.
fn placed(
    id: &GroupId,
    (before, after): (Option<&PodGroupStatus>, &PodGroupStatus),
    new: &BTreeSet<&GroupId>,
    model: &JobModel,
    report: Report<'_>,
) {
    let Some(record) = used(after).filter(|_| before.is_none_or(|b| used(b).is_none())) else {
        return;
    };
    let had = before.and_then(|before| before.reservation.as_deref());
    let is_same = |had: &AffinityGroupRecord| leaves(had).eq(leaves(record));
    met_if(had.is_some_and(is_same), Occasion::ReservationUsed);
    let own: BTreeSet<Leaf> = leaves(record).collect();
    let others = model.group_statuses.iter();
    for (other, status) in others.filter(|(other, _)| *other != id && !new.contains(other)) {
        let reserved = status.reservation.as_deref().filter(|_| model.cells.is_of_present(other));
        if let Some(leaf) = reserved.into_iter().flat_map(leaves).find(|leaf| own.contains(leaf)) {
            report(41, format!("{id} was placed on {leaf:?}, which {other} reserves"));
        }
    }
}

/// 43: a bound place stays.
fn stays(
    id: &GroupId,
    before: &PodGroupStatus,
    after: &PodGroupStatus,
    model: &JobModel,
    report: Report<'_>,
) {
    let bound = |status: &PodGroupStatus| {
        let place = status.placement.as_ref();
        place.is_some_and(|place| place.state == PlacementState::Bound)
    };
    if !bound(before) || !bound(after) {
        return;
    }
    let places = |status: &PodGroupStatus| -> Vec<(Option<String>, String, String)> {
        let pods = used(status).into_iter().flat_map(|record| &record.pods);
        pods.map(|pod| (pod.pod.clone(), pod.node.clone(), pod.devices.clone())).collect()
    };
    let (was, is) = (places(before), places(after));
    met_if(!was.is_empty() && model.cells.has_changed(), Occasion::KeptThroughChange);
    if was != is {
        report(43, format!("{id} is bound, and its place was {was:?} and is {is:?}"));
    }
}

/// 44: whom a group may evict, and for whom.
fn evicted(
    id: &GroupId,
    before: Option<&PodGroupStatus>,
    after: &PodGroupStatus,
    model: &JobModel,
    report: Report<'_>,
) {
    let had = before.and_then(|before| before.eviction.as_ref());
    if had.is_some() && after.eviction.is_none() && after.placement.is_some() {
        let kept = before.is_some_and(|before| used(before) == used(after));
        met_if(kept, Occasion::EvictionCalledOff);
    }
    let is_same = |eviction: &rcfarm_api::pod_group::status::Eviction| {
        had.is_some_and(|had| had.has_same_cause(eviction))
    };
    let Some(eviction) = after.eviction.as_ref().filter(|eviction| !is_same(eviction)) else {
        return;
    };
    if let Some(node) = &eviction.drain {
        left(id, after, node, report);
        return;
    }
    met(Occasion::GroupEvicted);
    let by = &eviction.preemptor;
    let reservation = model.group_statuses.get(by).and_then(|by| by.reservation.as_deref());
    let (Some(preemptor), Some(victim)) = (reservation, used(after)) else {
        report(44, format!("{id} was evicted for {by}, and one of them has no cells"));
        return;
    };
    let own: BTreeSet<Leaf> = leaves(victim).collect();
    if !leaves(preemptor).any(|leaf| own.contains(&leaf)) {
        report(44, format!("{id} was evicted for {by}, which reserves none of its devices"));
    }
    // What users asked for: what was written of it may be wrong.
    let asked = |id: &GroupId| {
        let record = model.groups.get(id)?.record.as_ref()?;
        Some(record.spec.cells.as_ref()?.group.clone())
    };
    let of = asked(id).unwrap_or_else(|| victim.request.clone());
    let to = asked(by).unwrap_or_else(|| preemptor.request.clone());
    let is_lent = of.priority < 0 || victim.lazy_preemption.is_some();
    let is_lower = of.key.virtual_cluster == to.key.virtual_cluster && of.priority < to.priority;
    // One that its virtual cluster no longer has cells for runs on as opportunistic.
    if !is_lent && !is_lower && model.cells.is_of_present(id) {
        report(
            44,
            format!(
                "{id} of priority {} was evicted for {by} of priority {}",
                of.priority, to.priority
            ),
        );
    }
}

/// 44: a group that has to leave a node holds cells there.
fn left(id: &GroupId, status: &PodGroupStatus, node: &NodeName, report: Report<'_>) {
    let mut places = status.placement.iter().flat_map(GroupPlacement::placed);
    if used(status).is_none() || !places.any(|(_, _, of)| of == node) {
        report(44, format!("{id} was evicted from {node}, and holds no cells there"));
    }
}
