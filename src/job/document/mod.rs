//! Decodes a job's document: Volcano's `Job`, Kubeflow's `TFJob`, `PyTorchJob`, `MPIJob`, `XGBoostJob`, or a `Pod`.
//!
//! Each field takes effect, is ignored with a warning, or is refused; warnings and errors name its path. The commands
//! and the daemon use the same function, since anything can be written to Consul directly.

mod array;
mod budget;
mod cells;
pub mod described;
mod fields;
mod kubeflow;
mod payload;
mod peers;
mod pod;
mod services;
mod template;
mod validate;
mod volcano;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use array::ARRAY_ANNOTATION;
pub use fields::{FieldIssues, FieldReader, JobClass, JobQueue, class_field, queue_field};
pub use payload::{LARGEST_PAYLOAD, PAYLOAD_ANNOTATION};
pub use peers::{PEER_CHANGE_ANNOTATION, peer_change_in_words};
pub use services::SERVICES_ANNOTATION;

use super::dependencies;
use super::owner::ControllerRef;
use rcfarm_api::ids::{DEFAULT_NAMESPACE, Namespaced};
use rcfarm_api::job::spec::{
    CleanPods, Framework, JobSpec, JobTask, OnPeerChange, RestartDelay, VOLCANO_JOB,
};
use rcfarm_api::labels::{Labels, check_label_key, check_label_value};
use rcfarm_api::manifest::plain;
use rcfarm_api::pod_group::spec::MOST_MEMBERS;
use rcfarm_api::{FieldError, ResourceList};
pub(crate) use validate::is_label;
use validate::validate;

/// Warning for a known field without effect.
const NOBODY_READS: &str = "nobody here acts upon it; it is passed over";

/// Fields of the metadata that the controllers of another cluster set.
pub const CLUSTER_METADATA: [&str; 6] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"];

/// A valid document.
#[derive(Debug, Clone, PartialEq)]
pub struct Read {
    /// The job that it specifies.
    pub spec: JobSpec,
    /// Labels from the job's metadata.
    pub labels: BTreeMap<String, String>,
    /// Fields without effect.
    pub warnings: Vec<FieldError>,
}

/// Framework of a document.
///
/// # Errors Issues of `kind` or `apiVersion`.
pub fn framework(document: &Value) -> Result<Framework, FieldError> {
    let of = |field: &str| document.get(field).and_then(Value::as_str);
    let wrong = |field: &str, why: String| FieldError::new(field, why, "");
    let version = of("apiVersion");
    let framework = match of("kind") {
        None | Some("Job") => Framework::Volcano,
        Some("TFJob") => Framework::TensorFlow,
        Some("PyTorchJob") => Framework::PyTorch,
        Some("MPIJob") => Framework::Mpi,
        Some("XGBoostJob") => Framework::XgBoost,
        Some("Pod") => Framework::Pod,
        Some(other) => return described::framework(other, document),
    };
    let wanted = match framework {
        Framework::Volcano => VOLCANO_JOB.0,
        Framework::Pod => "v1",
        _ => "kubeflow.org/v1",
    };
    match version {
        Some(version) if version != wanted => {
            let why = format!("a {} is of {wanted}, not of {version:?}", framework.kind());
            Err(wrong("apiVersion", why))
        }
        _ => Ok(framework),
    }
}

/// Namespace and name in the document's metadata.
///
/// # Errors Issues of the metadata.
pub fn name(document: &Value) -> Result<Namespaced, FieldError> {
    let of = |field: &str| document.get("metadata")?.get(field)?.as_str();
    let wrong = |field: &str, why: String| FieldError::new(format!("metadata.{field}"), why, "");
    let metadata = |field: &str| document.get("metadata").and_then(|all| all.get(field));
    let Some(name) = of("name") else {
        let why = match (metadata("name"), metadata("generateName")) {
            (Some(_), _) => "a name is a text; put quotes around it",
            (None, Some(_)) => "the job has no name, and generateName makes none; write name",
            (None, None) => "the job has no name",
        };
        return Err(wrong("name", why.to_owned()));
    };
    let namespace = of("namespace").unwrap_or(DEFAULT_NAMESPACE);
    Ok(Namespaced {
        namespace: namespace.parse().map_err(|e| wrong("namespace", format!("{e}")))?,
        name: name.parse().map_err(|e| wrong("name", format!("{e}")))?,
    })
}

/// Decodes a document that is stored as `id`.
///
/// # Errors All issues, with their paths.
pub fn read(id: &Namespaced, document: &Value) -> Result<Read, Vec<FieldError>> {
    let framework = framework(document).map_err(|issue| vec![issue])?;
    let (spec, labels, issues) = read_as(framework, id, document);
    if issues.problems.is_empty() {
        Ok(Read { spec, labels, warnings: issues.warnings })
    } else {
        Err(issues.problems)
    }
}

/// Reads a document of a framework; its job is of use only if there are no problems.
fn read_as(
    framework: Framework,
    id: &Namespaced,
    document: &Value,
) -> (JobSpec, BTreeMap<String, String>, FieldIssues) {
    let mut issues = FieldIssues::default();
    let mut top = FieldReader::of("", document, &mut issues);
    top.take("apiVersion");
    top.take("kind");
    // Status from another cluster.
    top.take("status");
    let is_owned = ControllerRef::in_document(document).is_some();
    let (labels, deleting) = metadata(id, framework, is_owned, &mut top, &mut issues);
    let mut spec = top.object("spec", &mut issues);
    if spec.is_empty() {
        issues.problem("spec", "there is no spec");
    }
    top.finish(&mut issues);
    let mut job = match framework {
        Framework::Volcano => volcano::job(&mut spec, &mut issues),
        Framework::Pod => pod::job(document, &labels, &mut spec, &mut issues),
        Framework::Described => described::job(id, document, &mut spec, &mut issues),
        other => kubeflow::job(other, &mut spec, &mut issues),
    };
    if framework != Framework::Pod {
        spec.finish(&mut issues);
    }
    job.deleting = deleting;
    let templates = job.tasks.iter_mut().map(|task| &mut task.template);
    for (_, value) in
        templates.flat_map(|template| &mut template.containers).flat_map(|c| &mut c.env)
    {
        if value == template::NAMESPACE {
            *value = id.namespace.to_string();
        }
    }
    cells::read(id, &mut job, &mut issues);
    budget::read(document, &mut job, &mut issues);
    issues.problems.extend(dependencies::in_document(id, document).err());
    job.payload = payload::read(document, &mut issues);
    array::read(&mut job, document, &mut issues);
    job.services = services::read(&job, document, &mut issues);
    job.on_peer_change = peers::on_change(document, &mut issues);
    labelled_queue(&mut job, document, &labels, &mut issues);
    validate(id, &job, &mut issues);
    (job, labels, issues)
}

/// Decodes a stored record.
///
/// # Errors As [`read`].
pub fn decode(id: &Namespaced, value: &[u8]) -> Result<(Value, Read), Vec<FieldError>> {
    let document: Value = serde_json::from_slice(value).map_err(|error| {
        vec![FieldError::new(FieldError::WHOLE, format!("it is no JSON: {error}"), "")]
    })?;
    let read = read(id, &document)?;
    Ok((document, read))
}

/// Minimal spec of an invalid record that is being deleted. `None`: it is not being deleted.
#[must_use]
pub fn finalize(value: &[u8]) -> Option<(Value, Read)> {
    let document: Value = serde_json::from_slice(value).ok()?;
    document.pointer("/metadata/deletionTimestamp")?.as_str()?;
    let spec =
        base(framework(&document).unwrap_or(Framework::Volcano), Vec::new(), Defaults::Volcano);
    let spec = JobSpec { deleting: true, ..spec };
    Some((document, Read { spec, labels: BTreeMap::new(), warnings: Vec::new() }))
}

/// Parses YAML or JSON.
///
/// # Errors The parser's message, with line and column.
pub fn from_yaml(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str::<Value>(text).map_err(|error| yaml_problem(&error))
}

/// The parser's message, with line and column, without the names of its own functions and options.
#[must_use]
pub fn yaml_problem(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let (what, at) = match text.rfind(" at line ") {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let what = match what {
        _ if what.starts_with("budget breached") || what.starts_with("recursion limit") => {
            "it is too large, too deep, or its aliases expand to too much"
        }
        _ if what.contains("from_str_multiple") => {
            "there are several documents, and one is expected; rcfarm apply -f takes several"
        }
        other => other.trim_end_matches(", set DuplicateKeyPolicy in Options if acceptable"),
    };
    format!("{what}{at}")
}

/// Parses the documents of a YAML stream, or a JSON document. Empty ones are left out. The parser's limits are those of
/// one document; a stream may have any number.
///
/// # Errors
/// The parser's message, with line and column.
pub fn all_from_yaml(text: &str) -> Result<Vec<Value>, String> {
    let mut bytes = text.as_bytes();
    let all = serde_saphyr::read::<_, Value>(&mut bytes);
    all.map(|document| document.map_err(|error| yaml_problem(&error))).collect()
}

/// Labels in the metadata of a stored record. What is no text, or no document, has none. It is called for each changed
/// record where farms select by labels, so nothing else is read.
#[must_use]
pub fn labels_in(value: &[u8]) -> Labels {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Labelled {
        metadata: Option<Metadata>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata {
        labels: Option<Map<String, Value>>,
    }
    let document: Labelled = serde_json::from_slice(value).unwrap_or_default();
    let labels = document.metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
    let text = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
    labels.into_iter().filter_map(text).collect()
}

/// Checks the metadata of a record that makes jobs. Returns whether it is being deleted.
pub fn object_metadata(
    id: &Namespaced,
    top: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> bool {
    metadata(id, Framework::Volcano, false, top, issues).1
}

fn metadata(
    id: &Namespaced,
    framework: Framework,
    is_owned: bool,
    top: &mut FieldReader<'_>,
    issues: &mut FieldIssues,
) -> (BTreeMap<String, String>, bool) {
    let mut metadata = top.object("metadata", issues);
    for (field, own) in [("name", id.name.as_str()), ("namespace", id.namespace.as_str())] {
        let said = metadata.text(field, issues);
        if said.is_some_and(|said| said != own) {
            let why = format!("the record stands under {id}, so it must be {own:?}");
            issues.problem(metadata.at(field), why);
        }
    }
    let labels = labels(&mut metadata, &[QUEUE_LABEL], issues);
    let deleting = metadata.text("deletionTimestamp", issues).is_some();
    let honoured = if framework == Framework::Pod { &pod::QUEUE[..] } else { &[] };
    annotations(&mut metadata, honoured, issues);
    for passed in CLUSTER_METADATA {
        metadata.take(passed);
    }
    metadata.take("deletionGracePeriodSeconds");
    metadata.pass_over(&["generateName", "finalizers"], NOBODY_READS, issues);
    match is_owned {
        true => _ = metadata.take("ownerReferences"),
        false => metadata.pass_over(&["ownerReferences"], NOBODY_READS, issues),
    }
    metadata.finish(issues);
    (labels, deleting)
}

/// Labels. They are kept; those that ask a scheduler for something that is not done here are warned about.
fn labels(
    metadata: &mut FieldReader<'_>,
    honoured: &[&str],
    issues: &mut FieldIssues,
) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (path, name, value) in metadata.entries("labels", issues) {
        match value.as_str() {
            Some(value) => {
                if let Some(error) =
                    check_label_key(name).and_then(|()| check_label_value(value)).err()
                {
                    issues.warning(path.clone(), format!("Kubernetes refuses it: {error}"));
                }
                labels.insert(name.to_owned(), value.to_owned());
            }
            None => issues.problem(path.clone(), "it must be a text; put quotes around it"),
        }
        let is_own = OWN_LABELS.contains(&name) || MADE_BY_FLOW.contains(&name);
        if asks_a_scheduler(name) && !honoured.contains(&name) && !is_own {
            issues.warning(path, NOBODY_READS);
        }
    }
    labels
}

/// Annotations of other programs stay in the record. Warns of those that ask a scheduler for something that is not done
/// here (`volcano.md` §1.7).
fn annotations(metadata: &mut FieldReader<'_>, honoured: &[&str], issues: &mut FieldIssues) {
    for (path, name, _) in metadata.entries("annotations", issues) {
        let is_own = name == SCHEDULED_ANNOTATION
            || MADE_BY_FLOW.contains(&name)
            || budget::ANNOTATIONS.contains(&name)
            || honoured.contains(&name);
        if asks_a_scheduler(name) && !is_own {
            issues.warning(path, NOBODY_READS);
        }
    }
}

/// Annotation of a CronJob's job with its scheduled time.
pub const SCHEDULED_ANNOTATION: &str = "volcano.sh/cronjob-scheduled-timestamp";

/// Labels and annotations of a flow's job that name its flow and its template.
pub const MADE_BY_FLOW: [&str; 2] =
    ["volcano.sh/createdByJobFlow", "volcano.sh/createdByJobTemplate"];

/// Whether a label or annotation is for Volcano, Kueue or the scheduler of Kubernetes.
fn asks_a_scheduler(name: &str) -> bool {
    let prefixes =
        ["volcano.sh/", "scheduling.volcano.sh/", "scheduling.k8s.io/", "kueue.x-k8s.io/"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Kueue's label that names a job's queue.
const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// Labels that describe a job, and are kept without another effect. Some of them are set on pods.
const OWN_LABELS: [&str; 7] = [
    "volcano.sh/job-type",
    "volcano.sh/job-name",
    "volcano.sh/job-namespace",
    "volcano.sh/task-spec",
    "volcano.sh/task-index",
    "volcano.sh/job-version",
    "volcano.sh/queue-name",
];

/// The queue of Kueue's label, unless the spec names one.
fn labelled_queue(
    job: &mut JobSpec,
    document: &Value,
    labels: &BTreeMap<String, String>,
    issues: &mut FieldIssues,
) {
    let Some(queue) = labels.get(QUEUE_LABEL) else { return };
    let label = format!("metadata.labels.{QUEUE_LABEL}");
    let field = queue_field(job.framework);
    let named = match job.framework {
        Framework::Pod => pod::queue(document),
        _ => document.pointer(&format!("/{}", field.replace('.', "/"))).and_then(Value::as_str),
    };
    match named {
        // Stored jobs keep their queue.
        Some(other) if other != queue => {
            issues.warning(label, format!("{field} names another queue, {other}, which counts"));
        }
        _ => job.queue.clone_from(queue),
    }
    if job.suspend {
        let path = match job.framework {
            Framework::Pod => "spec.schedulingGates",
            _ => "spec.runPolicy.suspend",
        };
        let why = "Kueue would take this back when it admits the job; here it stays suspended until rcfarm job resume";
        issues.warning(path, why);
    }
}

/// Number of replicas, up to the limit of a group.
fn replicas(fields: &mut FieldReader<'_>, issues: &mut FieldIssues) -> Option<u32> {
    let count = fields.count("replicas", issues)?;
    if u64::from(count) > MOST_MEMBERS {
        let why = format!("{count} members are absurd: at most {MOST_MEMBERS}");
        issues.problem(fields.at("replicas"), why);
        return None;
    }
    Some(count)
}

/// Name of a priority class, or a number. Whether the class exists is known later.
fn priority_class(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    issues: &mut FieldIssues,
) -> Option<String> {
    let class = fields.text(name, issues)?;
    (!class.is_empty()).then(|| class.to_owned())
}

/// Defaults of Volcano or Kubeflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defaults {
    Volcano,
    Kubeflow,
}

fn base(framework: Framework, tasks: Vec<JobTask>, defaults: Defaults) -> JobSpec {
    JobSpec {
        framework,
        job_type: None,
        tasks,
        min_available: 0,
        min_success: None,
        max_retry: volcano::MAX_RETRY,
        policies: Vec::new(),
        plugins: BTreeMap::new(),
        queue: "default".to_owned(),
        priority_class: None,
        min_resources: None,
        schedule_timeout: None,
        clean_pods: match defaults {
            Defaults::Volcano => CleanPods::Running,
            Defaults::Kubeflow => CleanPods::None,
        },
        ttl: None,
        active_deadline: None,
        backoff_limit: None,
        restarts_gang: false,
        suspend: false,
        restart_delay: RestartDelay::default(),
        deleting: false,
        all_workers_must_succeed: false,
        dynamic_workers: false,
        processes_per_node: None,
        elastic: None,
        slots_per_worker: 1,
        cells: None,
        budget: None,
        array: None,
        payload: None,
        services: false,
        on_peer_change: OnPeerChange::default(),
    }
}

/// Kubeflow's `runPolicy`. Older documents have its fields directly in the spec.
fn run_policy(job: &mut JobSpec, spec: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    let mut policy = spec.object("runPolicy", issues);
    let own = policy.take("managedBy").and_then(Value::as_str).map(str::to_owned);
    if own.is_some_and(|own| own != "kubeflow.org/training-operator") {
        let why = "another program shall work on it; leave it out";
        issues.problem(policy.at("managedBy"), why);
    }
    for fields in [&mut policy, spec] {
        let words =
            [("None", CleanPods::None), ("Running", CleanPods::Running), ("All", CleanPods::All)];
        if let Some(clean) = fields.word("cleanPodPolicy", &words, issues) {
            job.clean_pods = clean;
        }
        if let Some(ttl) = fields.count("ttlSecondsAfterFinished", issues) {
            job.ttl = Some(Duration::from_secs(ttl.into()));
        }
        if let Some(limit) = fields.deadline(issues) {
            job.active_deadline = Some(limit);
        }
        if let Some(limit) = fields.count("backoffLimit", issues) {
            job.backoff_limit = Some(limit);
        }
        if let Some(suspend) = fields.flag("suspend", issues) {
            job.suspend = suspend;
        }
        restart_delay(job, fields, issues);
    }
    let scopes = [("Pod", false), ("Gang", true)];
    job.restarts_gang = policy.word("restartScope", &scopes, issues).unwrap_or(false);
    let mut scheduling = policy.object("schedulingPolicy", issues);
    if let Some(min) = scheduling.count("minAvailable", issues) {
        job.min_available = min;
    }
    if let Some(queue) = scheduling.text("queue", issues) {
        job.queue = queue.to_owned();
    }
    if let Some(class) = priority_class(&mut scheduling, "priorityClass", issues) {
        job.priority_class = Some(class);
    }
    if let Some(seconds) = scheduling.count("scheduleTimeoutSeconds", issues) {
        job.schedule_timeout = Some(Duration::from_secs(seconds.into()));
    }
    min_resources(job, &mut scheduling, issues);
    scheduling.finish(issues);
    policy.finish(issues);
}

fn restart_delay(job: &mut JobSpec, fields: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    let mut delay = fields.object("restartDelay", issues);
    if let Some(first) = delay.duration("first", issues) {
        job.restart_delay.first = first;
    }
    if let Some(longest) = delay.duration("longest", issues) {
        job.restart_delay.longest = longest;
    }
    delay.finish(issues);
}

fn min_resources(job: &mut JobSpec, scheduling: &mut FieldReader<'_>, issues: &mut FieldIssues) {
    let mut wanted = ResourceList::default();
    let entries = scheduling.entries("minResources", issues);
    for (path, name, value) in &entries {
        let what = name.rsplit('/').next().unwrap_or(name);
        if let Err(error) = wanted.set(what, &plain(value)) {
            issues.problems.push(FieldError { path: path.clone(), ..error });
        }
    }
    if !entries.is_empty() {
        job.min_resources = Some(wanted);
    }
}

/// The document without what may change while the job exists: counts, priority and timing (`volcano.md` §6).
#[must_use]
pub fn immutable(document: &Value) -> Value {
    let mut all = serde_json::json!({"spec": immutable_spec(document)});
    for (name, value) in payload::text(document).into_iter().chain(array::indexes(document)) {
        all["metadata"]["annotations"][name] = value;
    }
    all
}

fn immutable_spec(document: &Value) -> Value {
    let mut spec = document.get("spec").cloned().unwrap_or_default();
    let may_change = [
        "minAvailable",
        "priorityClassName",
        "suspend",
        "ttlSecondsAfterFinished",
        "activeDeadlineSeconds",
        "cleanPodPolicy",
        "restartDelay",
        "schedulingGates",
    ];
    let drop_from = |map: &mut Map<String, Value>| {
        may_change.iter().for_each(|name| {
            map.remove(*name);
        })
    };
    if let Some(map) = spec.as_object_mut() {
        drop_from(map);
        if let Some(policy) = map.get_mut("runPolicy").and_then(Value::as_object_mut) {
            drop_from(policy);
            let scheduling = policy.get_mut("schedulingPolicy").and_then(Value::as_object_mut);
            if let Some(scheduling) = scheduling {
                for name in ["minAvailable", "priorityClass"] {
                    scheduling.remove(name);
                }
                if scheduling.is_empty() {
                    policy.remove("schedulingPolicy");
                }
            }
        }
        map.retain(|name, value| {
            name != "runPolicy" || value.as_object().is_some_and(|m| !m.is_empty())
        });
        for (_, value) in map.iter_mut() {
            for member in members_of(value) {
                for name in ["replicas", "minAvailable"] {
                    member.remove(name);
                }
            }
        }
    }
    spec
}

/// Hash of the fields that may not change while the job exists. It is computed from the document, so that it does not
/// change with the version of this program.
#[must_use]
pub fn immutable_hash(document: &Value) -> u64 {
    hash_of(document, &immutable_spec(document))
}

/// [`immutable_hash`] without what members request: that may change while nothing of the job is admitted.
#[must_use]
pub fn requestless_hash(document: &Value) -> u64 {
    let mut spec = immutable_spec(document);
    if let Some(map) = spec.as_object_mut() {
        drop_requests(map);
        for (_, value) in map.iter_mut() {
            for member in members_of(value) {
                let template = member.get_mut("template").and_then(|one| one.get_mut("spec"));
                template.and_then(Value::as_object_mut).map(drop_requests);
            }
        }
    }
    hash_of(document, &spec)
}

/// Removes the resources of a pod's containers.
fn drop_requests(pod: &mut Map<String, Value>) {
    let containers = pod.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        container.remove("resources");
    }
}

fn hash_of(document: &Value, spec: &Value) -> u64 {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or("Job");
    let mut immutable_hash = format!("{kind} {spec}");
    if let Some(queue) = pod::queue(document).filter(|_| kind == Framework::Pod.kind()) {
        immutable_hash.push_str(queue);
    }
    for (_, value) in payload::text(document).into_iter().chain(array::indexes(document)) {
        immutable_hash.push_str(&value.to_string());
    }
    rcfarm_api::manifest::content_hash(immutable_hash.as_bytes())
}

/// Tasks of a list, or replica specs by type.
fn members_of(value: &mut Value) -> Vec<&mut Map<String, Value>> {
    let all: Vec<&mut Value> = match value {
        Value::Array(list) => list.iter_mut().collect(),
        Value::Object(map) => map.iter_mut().map(|(_, value)| value).collect(),
        _ => Vec::new(),
    };
    let members = all.into_iter().filter_map(Value::as_object_mut);
    members.filter(|member| member.contains_key("template")).collect()
}

#[cfg(test)]
mod tests;
