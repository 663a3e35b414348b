//! Kubernetes' `Pod` as a job of one member, with a queue and a PodGroup as Volcano's controller creates one
//! (`volcano.md` §3.4): one member, the pod's requests, the queue of an annotation, the pod's priority class.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fields::{FieldIssues, FieldReader};
use super::template::{cell_annotation, one_request, template};
use super::{Defaults, base, priority_class};
use rcfarm_api::job::spec::{Framework, JobSpec, JobTask, Restart};

/// Name of the only task.
const TASK: &str = "pod";

/// Annotations that name the queue.
pub(super) const QUEUE: [&str; 2] = ["scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"];

/// Annotations that assign the pod to an existing group.
const GROUP: [&str; 2] = ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"];

/// Annotation with the group's size.
const GROUP_SIZE: &str = "scheduling.volcano.sh/group-min-member";

/// Queue in the annotations.
pub(super) fn queue(document: &Value) -> Option<&str> {
    QUEUE.iter().find_map(|name| annotation(document, name)?.as_str())
}

fn annotation<'v>(document: &'v Value, name: &str) -> Option<&'v Value> {
    document.get("metadata")?.get("annotations")?.get(name)
}

pub(super) fn job(
    document: &Value,
    labels: &BTreeMap<String, String>,
    spec: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> JobSpec {
    check_annotations(document, issues);
    let priority_class = priority_class(spec, "priorityClassName", issues);
    let active_deadline = spec.deadline(issues);
    let suspend = !spec.list("schedulingGates", issues).is_empty();
    let mut rest = document.get("spec").cloned().unwrap_or_default();
    if let Some(fields) = rest.as_object_mut() {
        for own in ["priorityClassName", "activeDeadlineSeconds", "schedulingGates"] {
            fields.remove(own);
        }
    }
    let (mut template, restart) = template(String::new(), Some(&json!({"spec": rest})), issues);
    template.labels.clone_from(labels);
    let cells = annotation(document, super::cells::ANNOTATION);
    let field = format!("metadata.annotations.{}", super::cells::ANNOTATION);
    let cells = cells.and_then(|value| cell_annotation(field, value, issues));
    template.cells = one_request(cells, template.cells.take(), issues);
    let task = JobTask {
        name: TASK.to_owned(),
        replicas: 1,
        min_available: None,
        restart: restart.unwrap_or(Restart::Always),
        max_retry: None,
        depends_on: Vec::new(),
        any_dependency: false,
        policies: Vec::new(),
        template,
    };
    let mut job = base(Framework::Pod, vec![task], Defaults::Volcano);
    job.min_available = 1;
    if let Some(queue) = queue(document) {
        job.queue = queue.to_owned();
    }
    job.priority_class = priority_class;
    job.active_deadline = active_deadline;
    job.suspend = suspend;
    job
}

fn check_annotations(document: &Value, issues: &mut FieldIssues) {
    let field = |name: &str| format!("metadata.annotations.{name}");
    for name in QUEUE {
        if annotation(document, name).is_some_and(|queue| !queue.is_string()) {
            issues.problem(field(name), "it must be a text; put quotes around it");
        }
    }
    let together = "pods that start together are members of one job: make them tasks of a Job";
    for name in GROUP {
        if annotation(document, name).is_some() {
            issues.problem(field(name), together);
        }
    }
    let alone = |size: &Value| size.as_str().is_some_and(|size| size == "1");
    if annotation(document, GROUP_SIZE).is_some_and(|size| !alone(size)) {
        issues.problem(field(GROUP_SIZE), together);
    }
}
