//! The annotation that makes a job an array.

use serde_json::{Value, json};

use super::fields::FieldIssues;
use super::payload::annotation;
use rcfarm_api::command::CommandAction;
use rcfarm_api::job::array::ArraySpec;
use rcfarm_api::job::spec::{Framework, JobSpec, Plugin, PolicyEvent, Restart};

/// Annotation with the indexes of an array, as in `0-999%50`.
pub const ARRAY_ANNOTATION: &str = "rcfarm/array";

/// The indexes as they are written, with the annotation's name. How many tasks run at a time may change.
pub(super) fn indexes(document: &Value) -> Option<(&'static str, Value)> {
    let value = annotation(document, ARRAY_ANNOTATION)?;
    let indexes = value.as_str().map(|text| json!(text.split('%').next()));
    Some((ARRAY_ANNOTATION, indexes.unwrap_or_else(|| value.clone())))
}

/// Reads the annotation: the job's only task has as many members as tasks of the array run at a time.
pub(super) fn read(job: &mut JobSpec, document: &Value, issues: &mut FieldIssues) {
    let Some(value) = annotation(document, ARRAY_ANNOTATION) else { return };
    let path = format!("metadata.annotations.{ARRAY_ANNOTATION}");
    let array = match value.as_str().map(str::parse::<ArraySpec>) {
        Some(Ok(array)) => array,
        Some(Err(error)) => return issues.problem(path, error.to_string()),
        None => return issues.problem(path, "write it like \"0-999%50\""),
    };
    if job.framework != Framework::Volcano || job.tasks.len() != 1 {
        return issues.problem(path, "an array is a Job of Volcano with one task");
    }
    let backoff_field = match document.pointer("/spec/backoffLimit") {
        Some(_) => "spec.backoffLimit",
        None => "spec.runPolicy.backoffLimit",
    };
    refuse_what_gangs_do(job, &array, backoff_field, issues);
    if job.cells.is_some() {
        issues.problem(path, "tasks of an array start one by one: they cannot ask for cells");
    }
    job.min_available = 1;
    if let [task] = &mut job.tasks[..] {
        task.replicas = array.members();
    }
    job.array = Some(array);
}

/// Refuses what concerns members that start or end together.
fn refuse_what_gangs_do(
    job: &JobSpec,
    array: &ArraySpec,
    backoff_field: &'static str,
    issues: &mut FieldIssues,
) {
    let [task] = &job.tasks[..] else { return };
    if task.replicas != 1 || task.min_available.is_some_and(|min| min != 1) {
        let why = "write 1, or leave minAvailable out: the array says how many tasks there are";
        issues.problem("spec.tasks[0].replicas", why);
    }
    if job.min_available != 1 {
        issues.problem("spec.minAvailable", "leave it out: tasks of an array start one by one");
    }
    if job.min_success.is_some_and(|min| min > array.len()) {
        let why = format!("it can never be reached: there are {} tasks", array.len());
        issues.problem("spec.minSuccess", why);
    }
    if job.backoff_limit.is_some() {
        let why =
            "leave it out: restarts of one task would fail all; maxRetry limits those of each task";
        issues.problem(backoff_field, why);
    }
    if task.restart == Restart::Always {
        let why =
            "write OnFailure or Never: a task that is started again when it succeeds does not end";
        issues.problem("spec.tasks[0].template.spec.restartPolicy", why);
    }
    if job.plugins.keys().any(|plugin| *plugin != Plugin::Env) {
        issues.problem("spec.plugins", "tasks of an array do not meet: only env is known here");
    }
    let lists = [("spec.policies", &job.policies), ("spec.tasks[0].policies", &task.policies)];
    for (list, policies) in lists {
        for (n, policy) in policies.iter().enumerate() {
            let is_retry = policy.action == CommandAction::RestartPod && policy.timeout.is_none();
            if !is_retry || policy.events.iter().any(|event| *event != PolicyEvent::PodFailed) {
                let why = "an array takes RestartPod after PodFailed or an exitCode";
                issues.problem(format!("{list}[{n}]"), why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::document;

    fn job(array: &str, spec: &str, task: &str) -> Value {
        let text = format!(
            "metadata: {{annotations: {{rcfarm/array: {array}}}}}\nspec: {{{spec} tasks: [{{name: t, {task} \
             template: {{spec: {{restartPolicy: Never, containers: [{{name: c, command: [a]}}]}}}}}}]}}\n"
        );
        document::from_yaml(&text).unwrap()
    }

    #[test]
    fn array_has_as_many_members_as_run_at_a_time() {
        let id = "default/a".parse().unwrap();
        let read = document::read(&id, &job("'0-99:2%7'", "minSuccess: 40,", "replicas: 1,"));
        let spec = read.unwrap().spec;
        assert_eq!((spec.replicas(), spec.min_available), (7, 1));
        assert_eq!(spec.array.unwrap().len(), 50);
        let hash = |array: &str| document::immutable_hash(&job(array, "", "replicas: 1,"));
        assert_eq!(hash("'0-99%7'"), hash("'0-99%8'"), "how many run at a time may change");
        assert_ne!(hash("'0-99%7'"), hash("'0-98%7'"));
    }

    #[test]
    fn what_members_do_together_is_refused_by_path() {
        let id = "default/a".parse().unwrap();
        let paths = |array: &str, spec: &str, task: &str| -> Vec<String> {
            let found = document::read(&id, &job(array, spec, task)).err().unwrap_or_default();
            found.into_iter().map(|error| error.path).collect()
        };
        let with = |spec: &str| paths("'0-9%2'", spec, "replicas: 1,");
        assert_eq!(with(""), [""; 0]);
        assert_eq!(with("policies: [{event: PodFailed, action: RestartPod}],"), [""; 0]);
        assert_eq!(with("policies: [{exitCode: 7, action: RestartPod}],"), [""; 0]);
        let annotation = "metadata.annotations.rcfarm/array";
        assert_eq!(paths("'0-9%0'", "", "replicas: 1,"), [annotation]);
        assert_eq!(paths("7", "", "replicas: 1,"), [annotation]);
        assert_eq!(paths("'0-9'", "", "replicas: 2,")[0], "spec.tasks[0].replicas");
        assert_eq!(with("minAvailable: 0,")[0], "spec.minAvailable");
        assert_eq!(with("minSuccess: 11,")[0], "spec.minSuccess");
        assert_eq!(with("plugins: {svc: []},"), ["spec.plugins"]);
        assert_eq!(with("runPolicy: {backoffLimit: 2},"), ["spec.runPolicy.backoffLimit"]);
        assert_eq!(with("backoffLimit: 2,"), ["spec.backoffLimit"]);
        for policy in ["event: PodFailed, action: RestartJob", "event: '*', action: RestartPod"] {
            assert_eq!(with(&format!("policies: [{{{policy}}}],")), ["spec.policies[0]"]);
        }
        let mut always = job("'0-9'", "", "replicas: 1,");
        always["spec"]["tasks"][0]["template"]["spec"]["restartPolicy"] = json!("Always");
        assert_eq!(
            document::read(&id, &always).unwrap_err()[0].path,
            "spec.tasks[0].template.spec.restartPolicy"
        );
    }
}
