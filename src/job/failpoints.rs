//! Failpoints that change the input or output of the plan, so that the plan itself stays free of them. No-ops without
//! the feature `failpoints`.

use std::borrow::Cow;

use super::dependencies::JobDependency;
use super::plan::JobPlan;
use rcfarm_api::Timestamp;
use rcfarm_api::job::spec::JobSpec;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::pod_group::status::Eviction;
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Changes the job before planning.
pub(super) fn change_job(job: &JobSpec) -> Cow<'_, JobSpec> {
    let mut job = Cow::Borrowed(job);
    if enabled(Failpoint::DependenciesIgnored) {
        job.to_mut().tasks.iter_mut().for_each(|task| task.depends_on.clear());
    }
    job
}

/// Time passed to the plan: with [`Failpoint::PausesIgnored`] every pause before a start is over.
pub(super) fn change_now(status: &JobStatus, now: Timestamp) -> Timestamp {
    if !enabled(Failpoint::PausesIgnored) {
        return now;
    }
    let members = status.tasks.values().flat_map(|memory| memory.not_before.values());
    members.chain(&status.not_before).copied().fold(now, Timestamp::max)
}

/// Changes a plan made from `status`.
pub(super) fn change_plan(status: &JobStatus, plan: &mut JobPlan) {
    let is_counted = plan.status.retry_count > status.retry_count;
    if enabled(Failpoint::CountedTwice) && is_counted {
        plan.status.retry_count += 1;
    }
    let Some(array) = &mut plan.status.array else { return };
    if enabled(Failpoint::TaskEndsAssumed) {
        let begun = array.members.values().copied();
        array.completed_indexes = array.completed_indexes.iter().chain(begun).collect();
    }
    if enabled(Failpoint::TaskEndsForgotten) && array.completed_indexes.len() > 1 {
        array.completed_indexes = Default::default();
    }
}

/// The jobs that a job waits for.
pub(super) fn change_dependencies(all: &[JobDependency]) -> &[JobDependency] {
    if enabled(Failpoint::JobsUnordered) { &[] } else { all }
}

/// The eviction that a job sees.
pub(super) fn change_eviction(eviction: Option<&Eviction>) -> Option<&Eviction> {
    eviction.filter(|_| !enabled(Failpoint::EvictionIgnored))
}
