//! Failpoints of the plan: they change its input or its output, so that the plan itself has none.
//! Without the feature `failpoints` these functions do nothing.

use std::borrow::Cow;

use super::plan::JobPlan;
use rcfarm_api::job::spec::JobSpec;
use rcfarm_api::job::status::JobStatus;
use rcfarm_store::failpoints::{Failpoint, enabled};

/// The job that a plan is made for.
pub(super) fn change_job(job: &JobSpec) -> Cow<'_, JobSpec> {
    let mut job = Cow::Borrowed(job);
    if enabled(Failpoint::DependenciesIgnored) {
        job.to_mut().tasks.iter_mut().for_each(|task| task.depends_on.clear());
    }
    job
}

/// The status that a plan is made from.
pub(super) fn change_status(status: &JobStatus) -> Cow<'_, JobStatus> {
    let mut status = Cow::Borrowed(status);
    if enabled(Failpoint::PausesIgnored) {
        let status = status.to_mut();
        status.not_before = None;
        status.tasks.values_mut().for_each(|memory| memory.not_before.clear());
    }
    status
}

/// Changes a plan that was made from `status`.
pub(super) fn change_plan(status: &JobStatus, plan: &mut JobPlan) {
    let is_counted = plan.status.retry_count > status.retry_count;
    if enabled(Failpoint::CountedTwice) && is_counted {
        plan.status.retry_count += 1;
    }
}
