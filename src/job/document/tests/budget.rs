//! Disruption budgets of jobs.

use serde_json::{Value, json};

use crate::job::document::read;
use rcfarm_api::FieldError;
use rcfarm_api::budget::DisruptionBudget;

const MIN: &str = "volcano.sh/jdb-min-available";
const MAX: &str = "volcano.sh/jdb-max-unavailable";

fn volcano(of_job: Value, of_template: Value) -> Result<Option<DisruptionBudget>, Vec<FieldError>> {
    let template = json!({"metadata": {"annotations": of_template},
        "spec": {"containers": [{"name": "c", "command": ["true"]}]}});
    let document = json!({"metadata": {"annotations": of_job},
        "spec": {"tasks": [{"name": "a", "replicas": 4, "template": template}]}});
    let read = read(&"team/train".parse().unwrap(), &document)?;
    assert!(
        read.warnings.iter().all(|warning| !warning.path.contains("jdb")),
        "{:?}",
        read.warnings
    );
    Ok(read.spec.budget)
}

fn shown(budget: Option<DisruptionBudget>) -> Option<String> {
    budget.map(|budget| budget.shown())
}

#[test]
fn budget_of_the_job_goes_before_that_of_a_template() {
    let min = shown(volcano(json!({MIN: "50%"}), json!({MAX: "1"})).unwrap());
    assert_eq!(min.as_deref(), Some("minAvailable 50%"));
    let max = shown(volcano(json!({}), json!({MAX: "1"})).unwrap());
    assert_eq!(max.as_deref(), Some("maxUnavailable 1"));
    assert_eq!(volcano(json!({}), json!({})).unwrap(), None);
}

#[test]
fn budget_that_is_wrong_is_refused_with_its_path() {
    for (of_job, of_template, path) in [
        (json!({MIN: "many"}), json!({}), format!("metadata.annotations.{MIN}")),
        (json!({MIN: 3}), json!({}), format!("metadata.annotations.{MIN}")),
        (
            json!({}),
            json!({MAX: "101%"}),
            format!("spec.tasks[0].template.metadata.annotations.{MAX}"),
        ),
    ] {
        let bad = volcano(of_job, of_template).unwrap_err();
        assert_eq!(bad[0].path, path, "{bad:?}");
    }
}

/// All members as the least number would keep every node from being drained.
#[test]
fn kubeflows_minimum_is_a_budget_where_it_leaves_room() {
    let budget = |least: Option<u32>| {
        let template =
            json!({"spec": {"containers": [{"name": "tensorflow", "command": ["true"]}]}});
        let mut document = json!({"apiVersion": "kubeflow.org/v1", "kind": "TFJob",
            "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 4, "template": template}}}});
        if let Some(least) = least {
            document["spec"]["runPolicy"] = json!({"schedulingPolicy": {"minAvailable": least}});
        }
        shown(read(&"team/train".parse().unwrap(), &document).unwrap().spec.budget)
    };
    assert_eq!(budget(Some(3)).as_deref(), Some("minAvailable 3"));
    assert_eq!((budget(Some(4)), budget(None)), (None, None));
}
