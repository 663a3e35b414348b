//! Failpoints that change the input or output of the plan, so that the plan itself stays free of them. No-ops without
//! the feature `failpoints`.

use std::borrow::Cow;
use std::sync::Arc;

use super::placing::PlacementChange;
use super::plan::{BatchPlan, GroupStatuses};
use super::pod_group_machine::MemberState;
use super::queues::Queues;
use crate::cluster::queues::StoredGroups;
use rcfarm_api::pod_group::spec::MemberCounts;
use rcfarm_api::pod_group::status::{PlacementState, PodGroupStatus};
use rcfarm_api::queue::spec::{QueueSpec, QueueStrategy};
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Changes the queues before planning.
pub(super) fn change_queues(queues: &mut Queues) {
    for queue in queues.0.values_mut() {
        if enabled(Failpoint::LimitsIgnored) {
            queue.spec.capability = QueueSpec::default().capability;
        }
        if enabled(Failpoint::OrderIgnored) {
            queue.spec.dequeue_strategy = QueueStrategy::Traverse;
        }
    }
}

/// With [`Failpoint::InvalidGroupFailsPass`], fails because of a record that is not valid.
pub(super) fn check_groups(groups: &StoredGroups) -> Result<(), String> {
    let mut all = groups.values();
    match enabled(Failpoint::InvalidGroupFailsPass) && all.any(|group| group.value.is_err()) {
        true => Err("a group is not valid".to_owned()),
        false => Ok(()),
    }
}

/// Changes the groups before planning: with [`Failpoint::PlacePulled`] a group with too few members has none.
pub(super) fn change_groups<'a>(
    groups: &'a StoredGroups,
    statuses: &GroupStatuses,
) -> Cow<'a, StoredGroups> {
    let mut groups = Cow::Borrowed(groups);
    if !enabled(Failpoint::PlacePulled) {
        return groups;
    }
    let admitted = statuses.iter().filter(|(_, known)| known.value.phase.is_admitted());
    for (id, _) in admitted {
        let Some(group) = groups.to_mut().get_mut(id) else { continue };
        let Ok(record) = &mut Arc::make_mut(group).value else { continue };
        let least = record.spec.least().values().sum();
        if MemberState::of(&record.members, least, false) == MemberState::TooFew {
            record.members = MemberCounts { bound: 0, running: 0, releasing: 0, ..record.members };
        }
    }
    groups
}

/// Changes what a pass sees of cells that groups hold or reserve.
pub(super) fn change_statuses(statuses: &GroupStatuses) -> Cow<'_, GroupStatuses> {
    let mut statuses = Cow::Borrowed(statuses);
    let hidden = [Failpoint::ReservationHidden, Failpoint::HoldersHidden, Failpoint::RanksIgnored];
    if !hidden.into_iter().any(enabled) {
        return statuses;
    }
    for known in statuses.to_mut().values_mut() {
        let status = Arc::make_mut(&mut known.value);
        if enabled(Failpoint::ReservationHidden) {
            status.reservation = None;
        }
        let Some(place) = &mut status.placement else { continue };
        if enabled(Failpoint::HoldersHidden) {
            place.cells = None;
        }
        if enabled(Failpoint::RanksIgnored)
            && let Some(cells) = &mut place.cells
        {
            cells.request.priority = -1;
        }
    }
    statuses
}

fn change_cells(change: &mut PlacementChange) {
    let before = change.before.as_ref().map(|before| &before.value);
    let Some(after) = &mut change.after else { return };
    if enabled(Failpoint::ReservationUnwritten) {
        after.reservation = None;
    }
    let leaves = |status: &PodGroupStatus| {
        status.eviction.as_ref().is_some_and(|eviction| eviction.drain.is_some())
    };
    if enabled(Failpoint::DrainedPulled)
        && leaves(after)
        && !before.is_some_and(|before| leaves(before))
    {
        after.placement = None;
    }
    let Some(place) = &mut after.placement else { return };
    let was = before.and_then(|before| before.placement.as_ref());
    let Some(cells) = &mut place.cells else { return };
    if enabled(Failpoint::PlaceMoved) && was.is_some_and(|was| was.state == PlacementState::Bound) {
        cells.pods.iter_mut().for_each(|pod| pod.devices = "0".to_owned());
    }
    if enabled(Failpoint::VirtualsRepeated) && was.is_none() {
        cells.pods.iter_mut().for_each(|pod| pod.leaves = "0".to_owned());
    }
}

pub(super) fn change_plan(plan: &mut BatchPlan) {
    if enabled(Failpoint::VictimsUntold) {
        let is_told = |change: &PlacementChange| {
            let had = change.before.as_ref().is_some_and(|before| before.value.eviction.is_some());
            !had && change.after.as_ref().is_some_and(|after| after.eviction.is_some())
        };
        plan.changes.retain(|change| !is_told(change));
    }
    plan.changes.iter_mut().for_each(change_cells);
    for change in &mut plan.changes {
        if enabled(Failpoint::PlacePulled) {
            change.record_index = None;
        }
        if enabled(Failpoint::PromiseSkipped) && change.keeps_status() {
            let reserving = change.after.as_mut().and_then(|after| after.placement.as_mut());
            if let Some(place) = reserving.filter(|place| place.state == PlacementState::Reserving)
            {
                place.state = PlacementState::Bound;
                change.allocate.clear();
            }
        }
    }
}
