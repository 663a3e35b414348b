//! The document of a JobTemplate, and the job that a step of a flow makes of it. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{API_VERSION, FlowStep, check_type};
use super::parameters::{self, Parameters};
use crate::job::dependencies;
use crate::job::document::{self, FieldIssues, FieldReader, JobClass, JobQueue, Read};
use crate::job::owner::ControllerRef;
use rcfarm_api::flow::{KIND, TEMPLATE_KIND};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::{FieldError, Index};

/// Annotation of `kubectl apply`, which is about the template.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// A job of a flow stays for at least so many seconds after its end, so that the flow sees how it ended.
pub const LEAST_TTL: u64 = 60;

/// What a valid template says.
#[derive(Debug)]
pub struct TemplateSpec {
    /// Queue of its jobs.
    pub queue: JobQueue,
    /// Priority class of its jobs.
    pub class: Option<JobClass>,
    /// What a dispatch may, and must, give.
    pub parameters: Parameters,
    /// Fields that have no effect.
    pub warnings: Vec<FieldError>,
}

/// Checks a template's document that is stored as `id`, with the labels and annotations that its jobs have, too.
///
/// # Errors
/// All issues, with their paths.
pub fn check(id: &Namespaced, document: &Value) -> Result<TemplateSpec, Vec<FieldError>> {
    let mut issues = FieldIssues::default();
    let mut top = FieldReader::of("", document, &mut issues);
    check_type(&mut top, TEMPLATE_KIND, &mut issues);
    top.take("status");
    document::object_metadata(id, &mut top, &mut issues);
    let mut spec = top.take("spec").cloned().unwrap_or_default();
    top.finish(&mut issues);
    let parameters = parameters::take(&mut spec, &mut issues);
    let mut metadata = metadata(document);
    (metadata["name"], metadata["namespace"]) = (json!(id.name), json!(id.namespace));
    // Its jobs have other names: one that waits for a job of the template's name does not wait for itself.
    issues.problems.extend(dependencies::annotated(&json!({"metadata": metadata})).err());
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.remove(dependencies::ANNOTATION);
    }
    let job = json!({"metadata": metadata, "spec": spec});
    let FieldIssues { mut warnings, mut problems } = issues;
    // What is wrong with labels and annotations is found twice.
    let add = |all: &mut Vec<FieldError>, more: Vec<FieldError>| {
        let new: Vec<_> = more.into_iter().filter(|issue| !all.contains(issue)).collect();
        all.extend(new);
    };
    match document::read(id, &job) {
        Ok(Read { spec, warnings: more, .. }) if problems.is_empty() => {
            add(&mut warnings, more);
            let field = document::queue_field(spec.framework).to_owned();
            let queue = JobQueue { field, name: spec.queue };
            let field = document::class_field(spec.framework).to_owned();
            let class = spec.priority_class.map(|name| JobClass { field, name });
            Ok(TemplateSpec { queue, class, parameters, warnings })
        }
        read => {
            add(&mut problems, read.err().unwrap_or_default());
            Err(problems)
        }
    }
}

/// Checks a stored record.
///
/// # Errors
/// As [`check`].
pub fn decode(id: &Namespaced, value: &[u8]) -> Result<Value, Vec<FieldError>> {
    let document: Value = serde_json::from_slice(value).map_err(|error| {
        vec![FieldError::new(FieldError::WHOLE, format!("it is no JSON: {error}"), "")]
    })?;
    check(id, &document).map(|_| document)
}

/// The flow that makes a job.
#[derive(Debug, Clone, Copy)]
pub struct MakingFlow<'a> {
    pub id: &'a Namespaced,
    /// CreateIndex of its record.
    pub uid: Index,
}

/// The document of the job `id` of a step. `template`: the stored record of its template.
///
/// # Errors
/// What is wrong with the job, by its fields.
pub fn job(
    flow: MakingFlow<'_>,
    step: &FlowStep,
    id: &Namespaced,
    template: &[u8],
) -> Result<Value, FieldError> {
    let document: Value = serde_json::from_slice(template)
        .map_err(|error| FieldError::new(FieldError::WHOLE, format!("no JSON: {error}"), ""))?;
    let mut spec = document.get("spec").cloned().unwrap_or_default();
    parameters::take(&mut spec, &mut FieldIssues::default()).check_undispatched()?;
    let mut parts =
        Map::from_iter([("metadata".to_owned(), metadata(&document)), ("spec".to_owned(), spec)]);
    if let (Some(spec), Some(patch)) = (parts.get_mut("spec"), &step.patch) {
        merge(spec, patch);
    }
    let ttl = parts.get_mut("spec").and_then(|spec| spec.get_mut("ttlSecondsAfterFinished"));
    if let Some(ttl) = ttl.filter(|ttl| ttl.as_u64().is_some_and(|ttl| ttl < LEAST_TTL)) {
        *ttl = json!(LEAST_TTL);
    }
    let made_of = [&flow.id.name, &step.template].map(|name| format!("{}.{name}", id.namespace));
    let created_by: Vec<(&str, String)> = document::MADE_BY_FLOW.into_iter().zip(made_of).collect();
    if let Some(metadata) = parts.get_mut("metadata") {
        for (label, value) in &created_by {
            metadata["labels"][*label] = json!(value);
        }
    }
    let owner = ControllerRef { kind: KIND.to_owned(), name: flow.id.name.clone(), uid: flow.uid };
    let job = owner.job(id, API_VERSION, &parts, created_by);
    match document::read(id, &job) {
        Ok(_) => Ok(job),
        Err(problems) => Err(problems
            .into_iter()
            .next()
            .unwrap_or_else(|| FieldError::new(FieldError::WHOLE, "it makes no valid job", ""))),
    }
}

/// Labels and annotations of a template that its jobs have, too.
pub(super) fn metadata(template: &Value) -> Value {
    let of = |field: &str| {
        let found = template.get("metadata").and_then(|metadata| metadata.get(field));
        found.filter(|value| value.is_object()).cloned().unwrap_or_else(|| json!({}))
    };
    let mut annotations = of("annotations");
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    json!({"labels": of("labels"), "annotations": annotations})
}

/// Puts the fields of `patch` over those of `target`. `null` removes a field. Elements of lists that all have a name are
/// matched by name, as tasks and containers are; other lists are replaced.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                match target.get_mut(name) {
                    _ if value.is_null() => drop(target.remove(name)),
                    Some(field) => merge(field, value),
                    None => drop(target.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) => match (names(target), names(patch)) {
            (Some(positions), Some(_)) => merge_by_name(target, patch, &positions),
            _ => target.clone_from(patch),
        },
        (target, patch) => *target = patch.clone(),
    }
}

/// Positions of the elements by their names, if all have one.
fn names(list: &[Value]) -> Option<BTreeMap<String, usize>> {
    let name = |(n, value): (usize, &Value)| Some((value.get("name")?.as_str()?.to_owned(), n));
    list.iter().enumerate().map(name).collect()
}

fn merge_by_name(target: &mut Vec<Value>, patch: &[Value], positions: &BTreeMap<String, usize>) {
    for element in patch {
        let name = element.get("name").and_then(Value::as_str);
        let position = name.and_then(|name| positions.get(name));
        match position.and_then(|position| target.get_mut(*position)) {
            Some(known) => merge(known, element),
            None => target.push(element.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::document as flow_document;

    fn id(text: &str) -> Namespaced {
        text.parse().unwrap()
    }

    fn yaml(text: &str) -> Value {
        document::from_yaml(text).unwrap()
    }

    const TEMPLATE: &str = "
apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: a, labels: {team: x}, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}}
spec:
  minAvailable: 1
  schedulerName: volcano
  ttlSecondsAfterFinished: 5
  queue: default
  tasks:
    - name: default-nginx
      replicas: 1
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: nginx, image: 'nginx:1.14.2', command: [sh, -c, 'sleep 10s'], resources: {requests: {cpu: '1'}}}]
";

    fn patched(patch: &str) -> Result<Value, FieldError> {
        let flow = json!({"spec": {"flows": [{"name": "a", "patch": {"jobSpec": yaml(patch)}}]}});
        let spec = flow_document::read(&id("team/f"), &flow).unwrap();
        let flow = MakingFlow { id: &id("team/f"), uid: Index(7) };
        let template = yaml(TEMPLATE).to_string();
        job(flow, &spec.steps[0], &id("team/f-a"), template.as_bytes())
    }

    #[test]
    fn volcanos_template_makes_a_job_with_its_labels_and_owner() {
        assert!(check(&id("default/a"), &yaml(TEMPLATE)).is_ok());
        let made = patched("{}").unwrap();
        let owner = ControllerRef::in_document(&made).unwrap();
        assert_eq!((owner.kind.as_str(), owner.uid), (KIND, Index(7)));
        let metadata = &made["metadata"];
        assert_eq!(metadata["name"], "f-a");
        assert_eq!(metadata["labels"]["team"], "x");
        assert_eq!(metadata["labels"]["volcano.sh/createdByJobTemplate"], "team.a");
        assert_eq!(metadata["annotations"]["volcano.sh/createdByJobFlow"], "team.f");
        assert!(metadata["annotations"].get(LAST_APPLIED).is_none());
        assert_eq!(made["spec"]["ttlSecondsAfterFinished"], 60, "the flow sees its end first");
        let read = document::read(&id("team/f-a"), &made).unwrap();
        let about_metadata = |warning: &FieldError| warning.path.starts_with("metadata");
        assert!(!read.warnings.iter().any(about_metadata), "{:?}", read.warnings);
    }

    #[test]
    fn patch_changes_named_elements_removes_null_and_adds() {
        let made = patched(
            "{queue: null, minAvailable: 2, tasks: [{name: default-nginx, replicas: 3, template: {spec: {containers: [
              {name: nginx, command: [echo, hi]}]}}}, {name: more, replicas: 1, template: {spec: {containers: [
              {name: c, command: ['true']}]}}}]}",
        )
        .unwrap();
        let spec = &made["spec"];
        assert_eq!((spec.get("queue"), &spec["minAvailable"]), (None, &json!(2)));
        assert_eq!(
            (&spec["tasks"][0]["replicas"], &spec["tasks"][1]["name"]),
            (&json!(3), &json!("more"))
        );
        let container = &spec["tasks"][0]["template"]["spec"]["containers"][0];
        assert_eq!(
            (&container["command"], &container["image"]),
            (&json!(["echo", "hi"]), &json!("nginx:1.14.2"))
        );
    }

    #[test]
    fn problems_are_named_by_path() {
        let error = patched("{tasks: [{name: default-nginx, replicas: -1}]}").unwrap_err();
        assert_eq!(error.path, "spec.tasks[0].replicas");
        let paths = |document: Value| -> Vec<String> {
            let found = check(&id("default/a"), &document).err().unwrap_or_default();
            found.into_iter().map(|error| error.path).collect()
        };
        let mut document = yaml(TEMPLATE);
        document["spec"]["tasks"][0]["replicaz"] = json!(1);
        document["kind"] = json!("Job");
        assert_eq!(paths(document), ["kind", "spec.tasks[0].replicaz"]);
        assert_eq!(paths(json!({"kind": "JobTemplate"}))[0], "spec");
        assert_eq!(paths(json!([])), [FieldError::WHOLE, "spec", "spec.tasks"]);
    }
    #[test]
    fn annotations_that_its_jobs_have_are_checked() {
        let paths = |name: &str, value: &str| -> Vec<String> {
            let mut document = yaml(TEMPLATE);
            document["metadata"]["annotations"][name] = json!(value);
            let found = check(&id("default/a"), &document).err().unwrap_or_default();
            found.into_iter().map(|error| error.path).collect()
        };
        for (name, fine, bad) in [
            ("rcfarm/array", "0-9%2", "9-0"),
            ("rcfarm/payload", "aGk=", "no!"),
            // Its job is f-a.
            ("rcfarm/depends-on", "afterok:a", "after:b"),
        ] {
            // Volcano's template has no restart policy, and tasks of an array must end.
            let own = |paths: Vec<String>| -> Vec<String> {
                paths.into_iter().filter(|path| path.starts_with("metadata")).collect()
            };
            assert_eq!(own(paths(name, fine)), [""; 0]);
            assert_eq!(own(paths(name, bad)), [format!("metadata.annotations.{name}")]);
        }
        let mut twice = yaml(TEMPLATE);
        twice["metadata"]["labels"]["team"] = json!(1);
        twice["metadata"]["annotations"]["volcano.sh/a"] = json!("b");
        assert_eq!(check(&id("default/a"), &twice).unwrap_err().len(), 1);
        twice["metadata"]["labels"]["team"] = json!("x");
        let warnings = check(&id("default/a"), &twice).unwrap().warnings;
        let said = warnings.iter().filter(|one| one.path.ends_with("volcano.sh/a"));
        assert_eq!(said.count(), 1, "{warnings:?}");
    }
}
