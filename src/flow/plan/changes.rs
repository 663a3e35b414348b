//! Which changes of a flow that has begun are refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::flow::document::FlowSpec;
use rcfarm_api::FieldError;
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::ids::ObjectName;

/// Why the record cannot be followed, given the jobs that were made. Steps without a job may be added, changed and
/// removed until the flow is over; `retry` and the policies at any time. Farms and `apply` use the same function.
#[must_use]
pub fn refused_change(spec: &FlowSpec, status: &FlowStatus) -> Option<FieldError> {
    let refused = |path: String, why: String| Some(FieldError::new(path, why, ""));
    let positions: BTreeMap<&ObjectName, usize> =
        spec.steps.iter().enumerate().map(|(n, step)| (&step.name, n)).collect();
    for job in &status.job_status_list {
        let (step, name) = (&job.step, &job.name);
        match positions.get(step).map(|n| (n, &spec.steps[*n])) {
            None => {
                let why = format!("step {step} was removed after its job {name} was made");
                return refused("spec.flows".to_owned(), why);
            }
            Some((n, now)) if now.hash != job.step_hash => {
                let why = format!(
                    "template, dependsOn or patch of step {step} was changed after its job {name} was made"
                );
                return refused(format!("spec.flows[{n}]"), why);
            }
            Some(_) => {}
        }
    }
    status.completion_time?;
    let made = status.job_status_list.iter().map(|job| &job.step);
    let known: BTreeSet<&ObjectName> = made.chain(&status.skipped_steps).collect();
    let added = spec.steps.iter().position(|step| !known.contains(&step.name))?;
    let step = &spec.steps[added].name;
    let why = format!("step {step} was added after the flow had ended");
    refused(format!("spec.flows[{added}]"), why)
}
