//! Decodes the document of a CronJob: Volcano's, whose fields are those of Kubernetes. Pure.
//!
//! The commands and the daemon use the same function, since anything can be written to Consul directly.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::schedule::CronSchedule;
use crate::job::document::{self, FieldIssues, FieldReader, JobClass, JobQueue, Read};
use crate::job::owner::ControllerRef;
use rcfarm_api::cron::KIND;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::{FieldError, Index, Timestamp};

/// `apiVersion` of a CronJob.
pub const API_VERSION: &str = "batch.volcano.sh/v1alpha1";

/// Limit of a DNS label, which a job's name must be.
pub const LONGEST_NAME: usize = 63;
/// Jobs of each kind that are kept if the document does not say how many.
const HISTORY: [u32; 2] = [3, 1];
/// Limit of the history of jobs: the status lists them.
const LONGEST_HISTORY: u32 = 100;
/// Minutes since 1970 in a job's name have so many digits until the year 3871.
const LONGEST_SUFFIX: &str = "-999999999";

/// What to do when a run is due while a job is active.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Make it beside the others.
    #[default]
    Allow,
    /// Wait until no job is active.
    Forbid,
    /// Delete the active jobs first.
    Replace,
}

/// A decoded CronJob.
#[derive(Debug, Clone)]
pub struct CronSpec {
    /// When runs are due.
    pub schedule: CronSchedule,
    /// How late a run may be made; `None`: however late.
    pub starting_deadline: Option<Duration>,
    /// `concurrencyPolicy`
    pub concurrency: Concurrency,
    /// Whether no runs are made.
    pub suspend: bool,
    /// Completed jobs that are kept.
    pub successful_limit: usize,
    /// Failed jobs that are kept.
    pub failed_limit: usize,
    /// It is being deleted, and its jobs with it.
    pub deleting: bool,
    /// `jobTemplate`
    template: Map<String, Value>,
    /// Queue of its jobs.
    pub queue: JobQueue,
    /// Priority class of its jobs.
    pub class: Option<JobClass>,
    /// Fields of its jobs that have no effect.
    pub warnings: Vec<FieldError>,
}

/// Decodes a document that is stored as `id`.
///
/// # Errors
/// All issues, with their paths.
pub fn read(id: &Namespaced, document: &Value) -> Result<CronSpec, Vec<FieldError>> {
    let mut issues = FieldIssues::default();
    let mut top = FieldReader::of("", document, &mut issues);
    check_type(&mut top, &mut issues);
    top.take("status");
    let deleting = document::object_metadata(id, &mut top, &mut issues);
    let mut spec = top.object("spec", &mut issues);
    top.finish(&mut issues);
    if spec.is_empty() {
        issues.problem("spec", "there is no spec");
        return Err(issues.problems);
    }
    let schedule = schedule(&mut spec, &mut issues);
    let deadline = spec.seconds("startingDeadlineSeconds", 0, &mut issues);
    let policies = [
        ("Allow", Concurrency::Allow),
        ("Forbid", Concurrency::Forbid),
        ("Replace", Concurrency::Replace),
    ];
    let concurrency = spec.word("concurrencyPolicy", &policies, &mut issues).unwrap_or_default();
    let suspend = spec.flag("suspend", &mut issues).unwrap_or(false);
    let limits = ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"];
    let [successful_limit, failed_limit] = [0, 1].map(|n| {
        let limit = spec.count(limits[n], &mut issues).unwrap_or(HISTORY[n]);
        if limit > LONGEST_HISTORY {
            issues.problem(spec.at(limits[n]), format!("at most {LONGEST_HISTORY} jobs are kept"));
        }
        limit.min(LONGEST_HISTORY) as usize
    });
    let template = template(&mut spec, &mut issues);
    spec.finish(&mut issues);
    let Some(schedule) = schedule.filter(|_| issues.problems.is_empty()) else {
        return Err(issues.problems);
    };
    let mut spec = CronSpec {
        schedule,
        starting_deadline: deadline,
        concurrency,
        suspend,
        successful_limit,
        failed_limit,
        deleting,
        template,
        queue: JobQueue::default(),
        class: None,
        warnings: issues.warnings,
    };
    spec.check_job(id)?;
    Ok(spec)
}

/// Decodes a stored record.
///
/// # Errors
/// As [`read`].
pub fn decode(id: &Namespaced, value: &[u8]) -> Result<CronSpec, Vec<FieldError>> {
    let document: Value = serde_json::from_slice(value).map_err(|error| {
        vec![FieldError::new(FieldError::WHOLE, format!("it is no JSON: {error}"), "")]
    })?;
    read(id, &document)
}

fn check_type(top: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    match top.text("kind", issues) {
        None | Some(KIND) => {}
        Some(other) => issues.problem("kind", format!("{other:?} is no {KIND}")),
    }
    match top.text("apiVersion", issues) {
        None | Some(API_VERSION) => {}
        Some(other) => {
            let why =
                format!("a {KIND} is of {API_VERSION}, not of {other:?}: its jobs have tasks");
            issues.problem("apiVersion", why);
        }
    }
}

fn schedule(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Option<CronSchedule> {
    let zone = CronSchedule::zone(spec.text("timeZone", issues));
    let text = spec.text("schedule", issues);
    let zone = zone.map_err(|why| issues.problem("spec.timeZone", why)).ok()?;
    let Some(text) = text else {
        issues.problem("spec.schedule", "there is no schedule; write one such as 0 3 * * *");
        return None;
    };
    CronSchedule::parse(text, zone).map_err(|why| issues.problem("spec.schedule", why)).ok()
}

/// The template as it is written. What is in it is checked as a job.
fn template(spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Map<String, Value> {
    match spec.take("jobTemplate") {
        None => issues.problem("spec.jobTemplate", "there is no template of its jobs"),
        Some(Value::Object(template)) => {
            for name in template.keys() {
                if !["apiVersion", "kind", "metadata", "spec"].contains(&name.as_str()) {
                    let why = "there is no such field here; there are metadata, spec, and for other \
                        kinds of jobs apiVersion, kind";
                    issues.problem(format!("spec.jobTemplate.{name}"), why);
                }
            }
            return template.clone();
        }
        Some(_) => issues.problem("spec.jobTemplate", "it must be a mapping of fields"),
    }
    Map::new()
}

impl CronSpec {
    /// Checks the longest-named job; takes over its queue and its warnings.
    fn check_job(&mut self, id: &Namespaced) -> Result<(), Vec<FieldError>> {
        let name = format!("{}{LONGEST_SUFFIX}", id.name);
        let too_long = |error: String| {
            let why = format!("its jobs would be called {name}: {error}");
            vec![FieldError::new("metadata.name", why, "choose a shorter name")]
        };
        if name.len() > LONGEST_NAME {
            return Err(too_long(format!("at most {LONGEST_NAME} characters")));
        }
        let job: ObjectName =
            name.parse().map_err(|error: rcfarm_api::InvalidText| too_long(error.to_string()))?;
        let job = Namespaced { namespace: id.namespace.clone(), name: job };
        let at = Timestamp::default();
        match document::read(&job, &self.job(&job, Index::ZERO, id, at)) {
            Ok(Read { spec, warnings, .. }) => {
                let field = in_template(document::queue_field(spec.framework));
                self.queue = JobQueue { field, name: spec.queue };
                let field = in_template(document::class_field(spec.framework));
                self.class = spec.priority_class.map(|name| JobClass { field, name });
                self.warnings.extend(warnings.into_iter().map(error_in_template));
                Ok(())
            }
            Err(problems) => Err(problems.into_iter().map(error_in_template).collect()),
        }
    }

    /// The document of a job of the CronJob `cron` with this CreateIndex.
    #[must_use]
    pub fn job(&self, id: &Namespaced, uid: Index, cron: &Namespaced, at: Timestamp) -> Value {
        let owner = ControllerRef { kind: KIND.to_owned(), name: cron.name.clone(), uid };
        let annotation = (document::SCHEDULED_ANNOTATION, self.schedule.local(at));
        owner.job(id, API_VERSION, &self.template, [annotation])
    }

    /// A job of the template without an owner: nobody counts it.
    #[must_use]
    pub fn detached_job(&self, id: &Namespaced) -> Value {
        let mut job = self.job(id, Index::ZERO, id, Timestamp::default());
        if let Some(metadata) = job["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        if let Some(annotations) = job["metadata"]["annotations"].as_object_mut() {
            annotations.remove(document::SCHEDULED_ANNOTATION);
            annotations.insert("cronjob.kubernetes.io/instantiate".to_owned(), json!("manual"));
        }
        job
    }
}

fn in_template(path: &str) -> String {
    format!("spec.jobTemplate.{path}")
}

fn error_in_template(error: FieldError) -> FieldError {
    FieldError { path: in_template(&error.path), ..error }
}

/// Name of the job of a scheduled time.
#[must_use]
pub fn job_name(cron: &ObjectName, at: Timestamp) -> ObjectName {
    let name = format!("{cron}-{}", at.as_second().div_euclid(60));
    name.parse().expect("the document's check has seen a longer name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> Namespaced {
        "team/nightly".parse().unwrap()
    }

    fn document(spec: &str) -> Value {
        let text = format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nmetadata: {{name: nightly, namespace: team}}\n\
             spec:\n{spec}"
        );
        document::from_yaml(&text).unwrap()
    }

    /// As Volcano's users write it.
    const VOLCANO: &str = "
  schedule: '*/5 * * * *'
  timeZone: Asia/Shanghai
  startingDeadlineSeconds: 200
  concurrencyPolicy: Forbid
  suspend: false
  successfulJobsHistoryLimit: 5
  failedJobsHistoryLimit: 0
  jobTemplate:
    metadata: {labels: {team: a}, annotations: {note: x}}
    spec:
      schedulerName: volcano
      minAvailable: 1
      queue: default
      policies: [{event: PodEvicted, action: RestartJob}]
      tasks:
        - {name: task, replicas: 2, template: {spec: {restartPolicy: OnFailure, containers: [
            {name: c, image: 'busybox:1.28', command: [sh, -c, date]}]}}}
";

    #[test]
    fn volcanos_document_is_read_and_makes_a_valid_job() {
        let spec = read(&id(), &document(VOLCANO)).unwrap();
        assert_eq!(spec.schedule.describe(), "*/5 * * * * Asia/Shanghai");
        assert_eq!(spec.starting_deadline, Some(Duration::from_secs(200)));
        assert_eq!((spec.concurrency, spec.suspend), (Concurrency::Forbid, false));
        assert_eq!((spec.successful_limit, spec.failed_limit), (5, 0));
        let at: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let name = job_name(&id().name, at);
        assert_eq!(name.as_str(), "nightly-29453765");
        let job = Namespaced { namespace: id().namespace, name };
        let made = spec.job(&job, Index(7), &id(), at);
        let owner = ControllerRef::in_document(&made).unwrap();
        assert_eq!(
            (owner.kind.as_str(), owner.name.as_str(), owner.uid),
            (KIND, "nightly", Index(7))
        );
        let annotations = &made["metadata"]["annotations"];
        assert_eq!(annotations[document::SCHEDULED_ANNOTATION], "2026-01-01T08:05:00+08:00");
        assert_eq!(
            (&annotations["note"], &made["metadata"]["labels"]["team"]),
            (&json!("x"), &json!("a"))
        );
        let read = document::read(&job, &made).unwrap();
        assert_eq!(read.spec.replicas(), 2);
        let about_owner = |warning: &FieldError| warning.path.starts_with("metadata");
        assert!(!read.warnings.iter().any(about_owner), "{:?}", read.warnings);
        let detached = spec.detached_job(&job);
        assert!(ControllerRef::in_document(&detached).is_none());
        assert_eq!(
            detached["metadata"]["annotations"],
            json!({"note": "x", "cronjob.kubernetes.io/instantiate": "manual"})
        );
        assert!(document::read(&job, &detached).is_ok());
    }

    #[test]
    fn problems_are_named_by_path() {
        let task = "tasks: [{name: t, replicas: 1, template: {spec: {containers: [{name: c, command: [a]}]}}}]";
        let template = format!("  jobTemplate: {{spec: {{{task}}}}}\n");
        let paths = |spec: &str| -> Vec<String> {
            let found = read(&id(), &document(spec)).err().unwrap_or_default();
            found.into_iter().map(|error| error.path).collect()
        };
        let with = |fields: &str| paths(&format!("{fields}{template}"));
        assert_eq!(with("  schedule: '@daily'\n"), [""; 0]);
        assert_eq!(with("  schedule: '61 * * * *'\n"), ["spec.schedule"]);
        assert_eq!(with("  suspend: true\n"), ["spec.schedule"]);
        assert_eq!(with("  schedule: '@daily'\n  timeZone: Mars/Base\n"), ["spec.timeZone"]);
        assert_eq!(
            with("  schedule: '@daily'\n  concurrencyPolicy: Queue\n"),
            ["spec.concurrencyPolicy"]
        );
        assert_eq!(
            with("  schedule: '@daily'\n  failedJobsHistoryLimit: 101\n"),
            ["spec.failedJobsHistoryLimit"]
        );
        assert_eq!(with("  schedule: '@daily'\n  timezone: UTC\n"), ["spec.timezone"]);
        assert_eq!(paths("  schedule: '@daily'\n"), ["spec.jobTemplate"]);
        // As in Volcano's older example.
        let mut older = paths("  schedule: '@daily'\n  template: {minAvailable: 2}\n");
        older.sort();
        assert_eq!(older, ["spec.jobTemplate", "spec.template"]);
        assert_eq!(
            paths("  schedule: '@daily'\n  jobTemplate: {spec: {tasks: []}}\n"),
            ["spec.jobTemplate.spec.tasks"]
        );
        let mut other = document(&format!("  schedule: '@daily'\n{template}"));
        other["apiVersion"] = json!("batch/v1");
        assert_eq!(read(&id(), &other).unwrap_err()[0].path, "apiVersion");
        let long: Namespaced = format!("team/{}", "n".repeat(54)).parse().unwrap();
        let mut other = document(&format!("  schedule: '@daily'\n{template}"));
        other["metadata"] = json!({});
        assert_eq!(read(&long, &other).unwrap_err()[0].path, "metadata.name");
    }
}
