//! Liveness of jobs that ask for cells (45, 46).

use crate::fleet::{asks_for_cells, is_of};
use crate::model::JobModel;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;

/// Whether a job need not end: one that never does, and runs or waits; an opportunistic one that waits while cells are
/// lent to such a job.
#[must_use]
pub fn may_wait(model: &JobModel, id: &Namespaced) -> bool {
    let has_place = model.group_statuses.get(id).is_some_and(|group| group.placement.is_some());
    let phase = model.statuses.get(id).map(|status| status.state.phase);
    if is_of(id, "hog") {
        return matches!(
            (phase, has_place),
            (Some(JobPhase::Running), true) | (Some(JobPhase::Pending), false)
        );
    }
    let is_lent = is_of(id, "lent") && phase == Some(JobPhase::Pending) && !has_place;
    is_lent && model.jobs.keys().any(|other| is_of(other, "hog"))
}

/// Describes what is not settled, with the invariant that it violates.
#[must_use]
pub fn unsettled(model: &JobModel) -> Option<(u32, String)> {
    guaranteed(model).or_else(|| preemptions(model))
}

/// 46: every guaranteed job has been placed, and ended.
fn guaranteed(model: &JobModel) -> Option<(u32, String)> {
    let mut all = model
        .jobs
        .keys()
        .filter(|id| asks_for_cells(id) && !is_of(id, "hog") && !is_of(id, "lent"));
    all.find_map(|id| {
        let (uid, _) = model.spec(id)?;
        let status = model.statuses.get(id).filter(|status| status.uid == uid);
        let is_over = status.is_some_and(|status| status.state.phase.is_final());
        let group = model.group_statuses.get(id).map(|group| (group.reason, group.message.clone()));
        (!is_over).then(|| (46, format!("{id} has not run: {group:?}")))
    })
}

/// 45: nobody reserves cells, and nobody is evicted.
fn preemptions(model: &JobModel) -> Option<(u32, String)> {
    model.group_statuses.iter().find_map(|(id, status)| {
        if status.reservation.is_some() {
            return Some((45, format!("{id} reserves cells: {}", status.message)));
        }
        let eviction = status.evicted()?;
        Some((45, format!("{id} is {eviction}")))
    })
}
