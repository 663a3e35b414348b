//! Disruption budgets of jobs: Volcano's annotations on the job or its templates, and Kubeflow's `minAvailable`.
//!
//! Kubeflow's operator makes a PodDisruptionBudget of `schedulingPolicy.minAvailable`. Here that is a budget if it is less
//! than the number of members: else no drain could ever end.

use serde_json::Value;

use super::fields::FieldIssues;
use rcfarm_api::budget::{BudgetAmount, DisruptionBudget};
use rcfarm_api::job::spec::{Framework, JobSpec};

const MIN_AVAILABLE: &str = "volcano.sh/jdb-min-available";
const MAX_UNAVAILABLE: &str = "volcano.sh/jdb-max-unavailable";
/// The annotations.
pub(super) const ANNOTATIONS: [&str; 2] = [MIN_AVAILABLE, MAX_UNAVAILABLE];

/// Takes over an annotation, if it is one of a budget.
pub(super) fn note(
    budget: &mut Option<DisruptionBudget>,
    (path, name, value): (&str, &str, &Value),
    issues: &mut FieldIssues,
) -> bool {
    if !ANNOTATIONS.contains(&name) {
        return false;
    }
    let amount = match value {
        Value::String(text) => text.parse::<BudgetAmount>(),
        _ => Err("it must be a text; put quotes around it".to_owned()),
    };
    match amount {
        Ok(amount) => {
            let budget = budget.get_or_insert_default();
            let limit = match name {
                MIN_AVAILABLE => &mut budget.min_available,
                _ => &mut budget.max_unavailable,
            };
            *limit = Some(amount);
        }
        Err(why) => issues.problem(path, why),
    }
    true
}

/// Sets the job's budget.
pub(super) fn read(document: &Value, job: &mut JobSpec, issues: &mut FieldIssues) {
    let annotations = document.pointer("/metadata/annotations").and_then(Value::as_object);
    let mut own = None;
    for (name, value) in annotations.into_iter().flatten() {
        let path = format!("metadata.annotations.{name}");
        note(&mut own, (&path, name, value), issues);
    }
    let of_templates = || job.tasks.iter().find_map(|task| task.template.budget);
    let is_kubeflow = !matches!(job.framework, Framework::Volcano | Framework::Pod);
    let least = (is_kubeflow && job.min_available < job.replicas()).then_some(job.min_available);
    let of_kubeflow = || {
        let min_available = Some(BudgetAmount::Count(least?));
        Some(DisruptionBudget { min_available, max_unavailable: None })
    };
    job.budget = own.or_else(of_templates).or_else(of_kubeflow);
}
