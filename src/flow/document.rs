//! Decodes the document of a JobFlow: Volcano's, with a few fields more. Pure.
//!
//! The commands and the daemon use the same function, since anything can be written to Consul directly.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::graph;
use crate::job::dependencies::DependencyType;
use crate::job::document::{self, FieldIssues, FieldReader, JobClass, JobQueue};
use rcfarm_api::flow::KIND;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::{FieldError, InvalidText, content_hash};

/// `apiVersion` of flows and templates.
pub const API_VERSION: &str = "flow.volcano.sh/v1alpha1";
/// Steps of a flow.
pub const MOST_STEPS: usize = 1000;
/// Jobs that a step makes after the first one has failed.
const MOST_RETRIES: u32 = 10;
/// Probes of a step.
const MOST_PROBES: usize = 16;
/// Length of a path or a header of a probe.
const LONGEST_TEXT: usize = 1024;
/// Upper bound of a status in bytes: a transaction has room for it and for a job.
const STATUS_BYTES: usize = 260 * 1024;
/// What a status says of a step, besides its name and twice that of its job, in bytes.
const STEP_BYTES: usize = 165;

/// What becomes of the jobs of a flow that has succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RetainPolicy {
    /// They stay until their TTL, or until the flow is deleted.
    #[default]
    Retain,
    /// They are deleted.
    Delete,
}

/// What a step that has failed means for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The flow fails. Jobs that are there go on; no more are made.
    #[default]
    Keep,
    /// The flow fails. Jobs that are there are terminated; no more are made.
    Stop,
    /// Steps that do not depend on it go on. The flow fails at the end.
    Continue,
}

/// A condition on the jobs that a step depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowProbe {
    pub task: String,
    pub check: ProbeCheck,
}

/// What a probe asks of each member of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeCheck {
    /// An answer of 2xx or 3xx to `GET`.
    Http {
        path: String,
        port: u16,
        header: Option<(String, String)>,
    },
    /// A connection.
    Tcp {
        port: u16,
    },
    Phase(PodPhase),
}

#[derive(Debug, Clone)]
pub struct FlowStep {
    pub name: ObjectName,
    /// Name of its template.
    pub template: ObjectName,
    /// Positions of the steps that it depends on.
    pub targets: Vec<usize>,
    pub dependency: DependencyType,
    pub probes: Vec<FlowProbe>,
    /// How many more jobs are made after one has failed.
    pub retry: u32,
    /// Fields of the job's spec that differ from the template's.
    pub patch: Option<Value>,
    /// Hash of what must not change once its job was made.
    pub hash: String,
}

impl FlowStep {
    /// The queue that the patch of this step, the `position`th, names.
    #[must_use]
    pub fn patched_queue(&self, position: usize) -> Option<JobQueue> {
        let (field, name) = self.patched(position, "queue")?;
        Some(JobQueue { field, name })
    }

    /// The priority class that the patch of this step, the `position`th, names.
    #[must_use]
    pub fn patched_class(&self, position: usize) -> Option<JobClass> {
        let (field, name) = self.patched(position, "priorityClassName")?;
        Some(JobClass { field, name })
    }

    fn patched(&self, position: usize, field: &str) -> Option<(String, String)> {
        let name = self.patch.as_ref()?.get(field)?.as_str()?.to_owned();
        Some((format!("spec.flows[{position}].patch.jobSpec.{field}"), name))
    }
}

/// A decoded flow.
#[derive(Debug, Clone)]
pub struct FlowSpec {
    pub steps: Vec<FlowStep>,
    /// Positions of the steps, each after those that it depends on.
    pub order: Vec<usize>,
    pub retain: RetainPolicy,
    pub on_failure: FailurePolicy,
    /// It is being deleted, and its jobs with it.
    pub deleting: bool,
    /// Fields that have no effect.
    pub warnings: Vec<FieldError>,
}

/// Name of the job of a step.
///
/// # Errors
/// It is no name of a job.
pub fn job_name(
    flow: &ObjectName,
    step: &ObjectName,
    retries: u32,
) -> Result<ObjectName, InvalidText> {
    match retries {
        0 => format!("{flow}-{step}").parse(),
        n => format!("{flow}-{step}-retry{n}").parse(),
    }
}

/// Decodes a document that is stored as `id`.
///
/// # Errors
/// All issues, with their paths.
pub fn read(id: &Namespaced, document: &Value) -> Result<FlowSpec, Vec<FieldError>> {
    let mut issues = FieldIssues::default();
    let mut top = FieldReader::of("", document, &mut issues);
    check_type(&mut top, KIND, &mut issues);
    top.take("status");
    let deleting = document::object_metadata(id, &mut top, &mut issues);
    let mut spec = top.object("spec", &mut issues);
    top.finish(&mut issues);
    let retain = [("retain", RetainPolicy::Retain), ("delete", RetainPolicy::Delete)];
    let retain = spec.word("jobRetainPolicy", &retain, &mut issues).unwrap_or_default();
    let policies = [
        ("keep", FailurePolicy::Keep),
        ("stop", FailurePolicy::Stop),
        ("continue", FailurePolicy::Continue),
    ];
    let on_failure = spec.word("failurePolicy", &policies, &mut issues).unwrap_or_default();
    let steps = steps(id, &mut spec, &mut issues);
    spec.finish(&mut issues);
    if !issues.problems.is_empty() {
        return Err(issues.problems);
    }
    let targets: Vec<Vec<usize>> = steps.iter().map(|step| step.targets.clone()).collect();
    let order = graph::order(&targets).map_err(|cycle| vec![in_circles(&steps, &cycle)])?;
    let warnings = issues.warnings;
    Ok(FlowSpec { steps, order, retain, on_failure, deleting, warnings })
}

/// Decodes a stored record.
///
/// # Errors
/// As [`read`].
pub fn decode(id: &Namespaced, value: &[u8]) -> Result<FlowSpec, Vec<FieldError>> {
    let document: Value = serde_json::from_slice(value).map_err(|error| {
        vec![FieldError::new(FieldError::WHOLE, format!("it is no JSON: {error}"), "")]
    })?;
    read(id, &document)
}

/// Checks kind and version of a flow or a template.
pub(super) fn check_type(top: &mut FieldReader<'_>, kind: &str, issues: &mut FieldIssues) {
    if let Some(other) = top.text("kind", issues).filter(|said| *said != kind) {
        issues.problem("kind", format!("{other:?} is no {kind}"));
    }
    if let Some(other) = top.text("apiVersion", issues).filter(|said| *said != API_VERSION) {
        issues.problem("apiVersion", format!("a {kind} is of {API_VERSION}, not of {other:?}"));
    }
}

fn in_circles(steps: &[FlowStep], cycle: &[usize]) -> FieldError {
    const SHOWN: usize = 8;
    let name = |step: &usize| steps[*step].name.to_string();
    let mut names: Vec<String> = cycle.iter().take(SHOWN).map(name).collect();
    if cycle.len() > SHOWN {
        names.push("…".to_owned());
    }
    names.extend(cycle.first().map(name));
    let why = format!("the steps depend on each other in a circle: {}", names.join(" -> "));
    let at = cycle.first().copied().unwrap_or_default();
    FieldError::new(format!("spec.flows[{at}].dependsOn.targets"), why, "take one of them out")
}

fn steps(id: &Namespaced, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Vec<FlowStep> {
    let listed = spec.list("flows", issues);
    if listed.is_empty() && issues.problems.is_empty() {
        issues.problem("spec.flows", "there are no steps");
    }
    if listed.len() > MOST_STEPS {
        let why = format!("{} steps are too many: at most {MOST_STEPS}", listed.len());
        issues.problem("spec.flows", why);
        return Vec::new();
    }
    let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, (path, step)) in listed.iter().enumerate() {
        let Some(name) = step.get("name").and_then(Value::as_str) else { continue };
        if let Some(other) = positions.insert(name, n) {
            let why = format!("spec.flows[{other}] has the same name, {name:?}");
            issues.problem(format!("{path}.name"), why);
        }
    }
    let read = |(path, value): &(String, &Value)| step(path, value, &positions, issues);
    let steps: Vec<FlowStep> = listed.iter().filter_map(read).collect();
    if steps.len() == listed.len() {
        check_job_names(id, &steps, issues);
    }
    steps
}

/// Reads a step. Its name must be unique.
fn step(
    path: &str,
    value: &Value,
    positions: &BTreeMap<&str, usize>,
    issues: &mut FieldIssues,
) -> Option<FlowStep> {
    let mut fields = FieldReader::of(path, value, issues);
    if fields.take("name").is_none_or(|name| name.as_str() == Some("")) {
        issues.problem(fields.at("name"), "a step has the name of its template");
    }
    let name = object_name(&mut fields, "name", issues);
    let template = object_name(&mut fields, "template", issues);
    if fields.take("maxRetry").is_some() {
        // Volcano's example has it, but not its API, which drops it.
        let why = "Volcano drops this field; write retry, or patch.jobSpec.maxRetry";
        issues.warning(fields.at("maxRetry"), why);
    }
    let retry = fields.count("retry", issues).unwrap_or(0);
    if retry > MOST_RETRIES {
        issues.problem(fields.at("retry"), format!("at most {MOST_RETRIES}"));
    }
    let (targets, dependency, probes) = depends_on(&mut fields, positions, issues);
    let mut patch = fields.object("patch", issues);
    let patched = patch.take("jobSpec").filter(|spec| match spec.is_object() {
        true => true,
        false => {
            issues.problem(patch.at("jobSpec"), "it must be a mapping of fields");
            false
        }
    });
    patch.finish(issues);
    fields.finish(issues);
    let name = name?;
    let template = template.unwrap_or_else(|| name.clone());
    let fixed = json!([template, value.get("dependsOn"), patched]);
    Some(FlowStep {
        template,
        targets,
        dependency,
        probes,
        retry: retry.min(MOST_RETRIES),
        patch: patched.cloned(),
        hash: format!("{:016x}", content_hash(fixed.to_string().as_bytes())),
        name,
    })
}

fn object_name(
    fields: &mut FieldReader<'_>,
    field: &'static str,
    issues: &mut FieldIssues,
) -> Option<ObjectName> {
    let text = fields.text(field, issues)?;
    let wrong = |error: InvalidText| issues.problem(fields.at(field), error.to_string());
    text.parse().map_err(wrong).ok()
}

fn depends_on(
    step: &mut FieldReader<'_>,
    positions: &BTreeMap<&str, usize>,
    issues: &mut FieldIssues,
) -> (Vec<usize>, DependencyType, Vec<FlowProbe>) {
    let mut fields = step.object("dependsOn", issues);
    let mut targets = Vec::new();
    for (path, target) in fields.list("targets", issues) {
        match target.as_str().map(|name| (name, positions.get(name))) {
            Some((_, Some(position))) => targets.push(*position),
            Some((name, None)) => issues.problem(path, format!("there is no step {name:?}")),
            None => issues.problem(path, "it must be a text; put quotes around it"),
        }
    }
    targets.sort_unstable();
    targets.dedup();
    let dependency = fields.word("type", &DependencyType::WORDS, issues);
    let mut probe = fields.object("probe", issues);
    let probes = probes(&mut probe, issues);
    for (is_there, what) in [(dependency.is_some(), "type"), (!probes.is_empty(), "probe")] {
        if is_there && targets.is_empty() {
            issues.problem(fields.at(what), "it is about targets, and there are none");
        }
    }
    let dependency = dependency.unwrap_or_default();
    if !probes.is_empty() && dependency == DependencyType::AfterNotOk {
        let why = "a job that has failed cannot be probed; leave out the probe or the type";
        issues.problem(fields.at("probe"), why);
    }
    probe.finish(issues);
    fields.finish(issues);
    (targets, dependency, probes)
}

fn probes(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Vec<FlowProbe> {
    let mut probes = Vec::new();
    for (path, value) in fields.list("httpGetList", issues) {
        let mut probe = FieldReader::of(path, value, issues);
        let task = task(&mut probe, issues);
        let path = probe.text("path", issues).unwrap_or("/");
        if !path.starts_with('/') || path.len() > LONGEST_TEXT || !is_visible(path) {
            let why = format!(
                "a path begins with /, and has at most {LONGEST_TEXT} characters without spaces"
            );
            issues.problem(probe.at("path"), why);
        }
        let port = port(&mut probe, issues);
        let mut said = probe.object("httpHeader", issues);
        let header = said.text("name", issues).map(|name| {
            (name.to_owned(), said.text("value", issues).unwrap_or_default().to_owned())
        });
        if let Some((name, value)) = &header
            && !is_header(name, value)
        {
            issues.problem(said.at("name"), "it is no header that HTTP allows, or it is too long");
        }
        said.finish(issues);
        probe.finish(issues);
        let check = ProbeCheck::Http { path: path.to_owned(), port, header };
        probes.push(FlowProbe { task, check });
    }
    for (path, value) in fields.list("tcpSocketList", issues) {
        let mut probe = FieldReader::of(path, value, issues);
        let (task, port) = (task(&mut probe, issues), port(&mut probe, issues));
        probe.finish(issues);
        probes.push(FlowProbe { task, check: ProbeCheck::Tcp { port } });
    }
    let phases = [
        ("Pending", PodPhase::Pending),
        ("Running", PodPhase::Running),
        ("Succeeded", PodPhase::Succeeded),
        ("Completed", PodPhase::Succeeded),
        ("Failed", PodPhase::Failed),
        ("Unknown", PodPhase::Unknown),
    ];
    for (path, value) in fields.list("taskStatusList", issues) {
        let mut probe = FieldReader::of(path, value, issues);
        let task = task(&mut probe, issues);
        let phase = probe.word("phase", &phases, issues);
        if phase.is_none() && probe.take("phase").is_none() {
            issues.problem(probe.at("phase"), "there is no phase; write one such as Running");
        }
        probe.finish(issues);
        probes.push(FlowProbe { task, check: ProbeCheck::Phase(phase.unwrap_or_default()) });
    }
    if probes.len() > MOST_PROBES {
        let path = fields.at("httpGetList").replace(".httpGetList", "");
        issues
            .problem(path, format!("{} probes are too many: at most {MOST_PROBES}", probes.len()));
        probes.truncate(MOST_PROBES);
    }
    probes
}

fn task(probe: &mut FieldReader<'_>, issues: &mut FieldIssues) -> String {
    let task = probe.text("taskName", issues);
    if task.is_none_or(|task| task.len() > LONGEST_TEXT)
        && probe.take("taskName").is_none_or(Value::is_string)
    {
        issues.problem(probe.at("taskName"), "write the name of a task of a target");
    }
    task.unwrap_or_default().to_owned()
}

fn port(probe: &mut FieldReader<'_>, issues: &mut FieldIssues) -> u16 {
    let number = probe.take("port").map(|port| port.as_u64().unwrap_or(0));
    let port = number.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    if port.is_none() {
        issues.problem(probe.at("port"), "write a port from 1 to 65535");
    }
    port.unwrap_or(1)
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether a header can be sent. `Host` would name another server than the one that is asked.
fn is_header(name: &str, value: &str) -> bool {
    name.len() + value.len() <= LONGEST_TEXT
        && !name.eq_ignore_ascii_case("host")
        && reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_ok()
        && reqwest::header::HeaderValue::from_str(value).is_ok()
}

/// Checks that jobs can have the names that the steps give them, and that the status has room for all of them.
fn check_job_names(id: &Namespaced, steps: &[FlowStep], issues: &mut FieldIssues) {
    let mut names: BTreeMap<ObjectName, usize> = BTreeMap::new();
    let mut bytes = 0;
    for (n, step) in steps.iter().enumerate() {
        let path = format!("spec.flows[{n}].name");
        for retries in 0..=step.retry {
            let named = job_name(&id.name, &step.name, retries);
            match named.map_err(|error| error.to_string()) {
                Ok(name) if document::is_label(name.as_str()) => {
                    bytes += if retries == step.retry { 2 * name.as_str().len() } else { 0 };
                    let other = names
                        .insert(name.clone(), n)
                        .filter(|other| steps[*other].name != step.name);
                    if let Some(other) = other {
                        let why = format!(
                            "its job {name} would have the name of one of spec.flows[{other}]"
                        );
                        issues.problem(path.clone(), why);
                        break;
                    }
                }
                other => {
                    let why = match other {
                        Err(error) => error,
                        Ok(_) => "at most 63 of a-z, 0-9 and '-' are allowed".to_owned(),
                    };
                    let named = format!("its job would be called {}-{}", id.name, step.name);
                    issues
                        .problem(path.clone(), format!("{named}, and longer after a retry: {why}"));
                    break;
                }
            }
        }
        bytes += step.name.as_str().len() + STEP_BYTES;
    }
    if bytes > STATUS_BYTES {
        let why = format!(
            "the names of {} steps are too long for a status: shorten them, or make several flows",
            steps.len()
        );
        issues.problem("spec.flows", why);
    }
}

#[cfg(test)]
mod tests;
