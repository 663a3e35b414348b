//! Failpoints that change the input or output of the plan, so that the plan itself stays free of them. No-ops without
//! the feature `failpoints`.

use std::borrow::Cow;
use std::sync::Arc;

use super::plan::{BatchPlan, GroupStatuses};
use super::pod_group_machine::MemberState;
use super::queues::Queues;
use crate::cluster::queues::StoredGroups;
use rcfarm_api::pod_group::spec::MemberCounts;
use rcfarm_api::pod_group::status::PlacementState;
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

pub(super) fn change_plan(plan: &mut BatchPlan) {
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
