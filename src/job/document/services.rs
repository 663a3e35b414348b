//! The annotation that gives the members of a job services, or takes them away.

use serde_json::Value;

use super::fields::FieldIssues;
use super::payload::annotation;
use rcfarm_api::job::spec::{JobSpec, Plugin};

/// Annotation of a job, `"true"` or `"false"`: whether each member has a service.
pub const SERVICES_ANNOTATION: &str = "rcfarm/services";

/// Whether each member of the job has a service: what the annotation says; without it, those of Kubeflow's jobs and of
/// jobs with Volcano's plugin `svc`.
pub(super) fn read(job: &JobSpec, document: &Value, issues: &mut FieldIssues) -> bool {
    let default = job.framework.is_kubeflow() || job.plugins.contains_key(&Plugin::Svc);
    let Some(value) = annotation(document, SERVICES_ANNOTATION) else { return default };
    let path = format!("metadata.annotations.{SERVICES_ANNOTATION}");
    match value.as_str() {
        Some("true") => {}
        Some("false") => return false,
        _ => {
            issues.problem(path, "write \"true\" or \"false\", with quotes");
            return default;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::job::document;

    fn job(kind: &str, annotation: &Value) -> Value {
        let template = |name: &str| {
            json!({"spec": {"restartPolicy": "Never",
            "containers": [{"name": name, "command": ["x"]}]}})
        };
        let spec = match kind {
            "TFJob" => json!({"tfReplicaSpecs": {"Worker": {"template": template("tensorflow")}}}),
            "svc" => json!({"plugins": {"svc": []},
                "tasks": [{"name": "w", "replicas": 1, "template": template("c")}]}),
            _ => json!({"tasks": [{"name": "w", "replicas": 1, "template": template("c")}]}),
        };
        let kind = if kind == "TFJob" { kind } else { "Job" };
        json!({"kind": kind, "metadata": {"annotations": {SERVICES_ANNOTATION: annotation}}, "spec": spec})
    }

    #[test]
    fn services_are_the_default_of_kubeflow_and_of_svc() {
        let id = "default/a".parse().unwrap();
        for (kind, annotation, wanted) in [
            ("TFJob", Value::Null, true),
            ("TFJob", json!("false"), false),
            ("svc", Value::Null, true),
            ("svc", json!("false"), false),
            ("Job", Value::Null, false),
            ("Job", json!("true"), true),
        ] {
            let read = document::read(&id, &job(kind, &annotation)).unwrap();
            assert_eq!(read.spec.services, wanted, "{kind} {annotation}");
        }
    }

    #[test]
    fn services_annotation_of_another_form_is_refused() {
        let id = "default/a".parse().unwrap();
        for annotation in [json!(true), json!("yes"), json!("")] {
            let problems = document::read(&id, &job("Job", &annotation)).unwrap_err();
            assert_eq!(problems[0].path, "metadata.annotations.rcfarm/services");
        }
    }
}
