//! Failpoints that change the input of the plan, so that the plan itself stays free of them. No-ops without the feature
//! `failpoints`.

use std::borrow::Cow;

use super::document::FlowSpec;
use super::plan::{ObservedJob, ObservedJobs};
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Changes the flow before planning.
pub(super) fn change_spec(spec: &FlowSpec) -> Cow<'_, FlowSpec> {
    let mut spec = Cow::Borrowed(spec);
    if enabled(Failpoint::StepsUnordered) {
        spec.to_mut().steps.iter_mut().for_each(|step| step.targets.clear());
    }
    spec
}

/// Changes the status before planning.
pub(super) fn change_status(status: &FlowStatus) -> Cow<'_, FlowStatus> {
    let mut status = Cow::Borrowed(status);
    if enabled(Failpoint::StepsForgotten) && status.completion_time.is_none() {
        status.to_mut().job_status_list.retain(|job| !job.state.is_final());
    }
    status
}

/// Changes what was read of jobs.
pub(super) fn change_jobs(jobs: &mut ObservedJobs) {
    if enabled(Failpoint::FailureIgnored) {
        for job in jobs.values_mut() {
            if let ObservedJob::Own(own) = job
                && own.phase == JobPhase::Failed
            {
                own.phase = JobPhase::Completed;
            }
        }
    }
}
