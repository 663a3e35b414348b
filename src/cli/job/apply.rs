//! Jobs of `rcfarm apply -f` and `rcfarm plan -f`, in the formats of Volcano and Kubeflow.
//!
//! Keys read: the records of jobs, queues, priority classes, job types, cells. Keys written: `rcfarm/jobs/<ns>/<name>`, by CAS, one
//! transaction per job. A crash between two jobs leaves the first applied; `apply` again applies the rest.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::commands::{job_change, queue_conflict};
use crate::batch::queues::Queues;
use crate::cli::context::{ChangeOutcome, CommandContext};
use crate::cli::failure::failure;
use crate::cli::job_type::apply::WantedTypes;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, would,
    wrong,
};
use crate::cli::{job_type, priority_class};
use crate::cluster::queues::QueueIndex;
use crate::job::dependencies;
use crate::job::document::{self, Read};
use crate::placement::cells::decode;
use rcfarm_api::audit::{Details, JobChange, record_hash};
use rcfarm_api::ids::{Namespace, Namespaced, QueueName};
use rcfarm_api::job::spec::{JobSpec, JobUid};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::pod_group::status::{PodGroupReason, PodGroupStatus};
use rcfarm_api::queue::spec::DEFAULT_QUEUE;
use rcfarm_api::resource_list::units;
use rcfarm_api::{FieldError, Stored as _, key};
use rcfarm_cells::{CellModel, CheckedRequest as _};
use rcfarm_store::cache::read_once;
use rcfarm_store::{Entry, Index, Op};

/// Jobs that are followed to find a circle.
const MOST_FOLLOWED: usize = 256;

/// A document, and the stored job of its name.
pub(in crate::cli) struct WantedJob {
    id: Namespaced,
    document: Value,
    read: Read,
    stored: Option<Entry>,
    /// Whether nothing of the stored job is admitted: what its members request may change.
    is_waiting: bool,
}

/// One document in the output of `plan`.
#[derive(Serialize)]
struct Row {
    job: Namespaced,
    kind: String,
    change: ApplyAction,
    /// Fields that differ, with both values.
    fields: Vec<FieldDifference>,
    members: Vec<Value>,
    needed: u32,
    queue: String,
    warnings: Vec<FieldError>,
}

impl WantedJob {
    /// Reads and checks jobs; adds to `problems` what is wrong with them. `queues`: as they are once the files are
    /// applied.
    pub(in crate::cli) async fn read_all(
        context: &CommandContext,
        described: Vec<DescribedJob>,
        (queues, cells, types): (&Queues, Option<&CellModel>, &WantedTypes),
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Vec<WantedJob>> {
        let mut all: Vec<WantedJob> = Vec::new();
        for DescribedJob { at, id, mut document } in described {
            let stored = context.get(&key::job(&id)).await?;
            if let Err(issue) = types.put_copy(context, &mut document, stored.as_ref()).await? {
                problems.push(format!("{id}: {issue}"));
                continue;
            }
            if let Err(issue) = document::framework(&document) {
                problems.push(format!("{id}: {issue}"));
                continue;
            }
            if all.iter().any(|other| other.id == id) {
                return Err(wrong(&at, format!("{id} is there twice")));
            }
            match document::read(&id, &document) {
                Ok(mut read) => {
                    read.warnings.extend(restarted_for_ever(&document));
                    let is_waiting = match &stored {
                        Some(stored) => is_waiting(context, &id, stored).await?,
                        None => false,
                    };
                    let document = as_stored(document);
                    all.push(WantedJob { id, document, read, stored, is_waiting });
                }
                Err(found) => problems.extend(found.iter().map(|issue| format!("{id}: {issue}"))),
            }
        }
        problems.extend(all.iter().filter_map(conflict));
        problems.extend(closed_to(queues, &all));
        problems.extend(all.iter().filter_map(|one| unknown_class(queues, one)));
        problems.extend(wrong_cells(context, cells, &all).await?);
        for one in &all {
            problems.extend(cycle(context, &all, one).await?);
        }
        Ok(all)
    }

    /// Its name, and what its document asks for.
    pub(in crate::cli) fn described(&self) -> (&Namespaced, &JobSpec) {
        (&self.id, &self.read.spec)
    }

    fn stored_document(&self) -> Option<Value> {
        serde_json::from_slice(&self.stored.as_ref()?.value).ok()
    }

    /// Writes the record by CAS. `guard`: what must hold besides. `reason`: for the audit log.
    pub(super) async fn commit(
        &self,
        context: &CommandContext,
        guard: Option<Op>,
        reason: String,
    ) -> anyhow::Result<ChangeOutcome> {
        let index = self.stored.as_ref().map_or(Index::ZERO, |entry| entry.modify_index);
        let value: bytes::Bytes = self.document.to_string().into();
        let record = Some(record_hash(&value));
        let op = Op::Cas { key: key::job(&self.id), value, flags: 0, index };
        let action = format!("{:?}", self.action());
        let details = JobChange { record, reason, ..job_change(context, &self.id, action) };
        context.commit(guard.into_iter().chain([op]), &Details::JobChanged(details), None).await
    }
}

impl WantedObject for WantedJob {
    fn action(&self) -> ApplyAction {
        match (&self.stored, self.stored_document()) {
            (None, _) => ApplyAction::Created,
            (Some(_), Some(stored)) if stored == self.document => ApplyAction::Unchanged,
            (Some(_), _) => ApplyAction::Changed,
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.read.warnings.iter().map(|warning| format!("{}: {warning}", self.id)).collect()
    }

    fn bytes(&self) -> usize {
        self.document.to_string().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        self.commit(context, None, String::new()).await?.map_err(|_| {
            let why = format!("{}: somebody changed it meanwhile; it was left as it is", self.id);
            failure(why, "look at it, then try again")
        })?;
        Ok(())
    }

    fn applied(&self) -> AppliedObject {
        let action = self.action();
        let shown = json!({"job": self.id, "kind": self.read.spec.kind(),
            "change": action, "warnings": self.read.warnings});
        AppliedObject::new(&self.id, action, shown)
    }

    fn planned(&self) -> PlannedObject {
        let row = row(self);
        let shown = serde_json::to_value(&row).expect("rows encode");
        PlannedObject { action: row.change, text: text(&row), shown }
    }
}

pub(in crate::cli) struct DescribedJob {
    /// The file, and the document's number in it.
    at: String,
    pub(super) id: Namespaced,
    document: Value,
}

impl DescribedJob {
    /// A job from its document. `within`: its namespace, if the document names none.
    pub(in crate::cli) fn new(
        at: &str,
        mut document: Value,
        within: &Namespace,
    ) -> anyhow::Result<DescribedJob> {
        if document.pointer("/metadata/namespace").is_none() && document["metadata"].is_object() {
            document["metadata"]["namespace"] = json!(within);
        }
        let id = document::name(&document);
        let id = id.map_err(|issue| wrong(at, issue.to_string()))?;
        Ok(DescribedJob { at: at.to_owned(), id, document })
    }
}

/// Creates a job that does not exist from a document.
pub(in crate::cli) async fn create(
    context: &CommandContext,
    id: &Namespaced,
    document: Value,
) -> anyhow::Result<()> {
    if context.get(&key::job(id)).await?.is_some() {
        let hint = format!("choose another --name, or delete it: rcfarm job delete {id}");
        return Err(failure(format!("there is a job {id} already"), hint));
    }
    let one = check_new(context, id, document).await?;
    for warning in one.warnings() {
        context.note(warning);
    }
    one.write(context).await
}

/// Checks a job that does not exist yet, and that its queue and its priority class do.
pub(in crate::cli) async fn check_new(
    context: &CommandContext,
    id: &Namespaced,
    mut document: Value,
) -> anyhow::Result<WantedJob> {
    if let Err(issue) = job_type::put_copy(context, &mut document).await? {
        return Err(failure(format!("{id}: {issue}"), "nothing was created"));
    }
    let read = document::read(id, &document).map_err(|found| {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        failure(format!("{id}: {}", found.join("; ")), "nothing was created")
    })?;
    let one = WantedJob { id: id.clone(), document, read, stored: None, is_waiting: false };
    let queues: QueueIndex = read_once(context.store.as_ref(), &key::queues()).await?;
    let queues = Queues::of(&queues.0, priority_class::classes(context).await?);
    let refusals = closed_to(&queues, std::slice::from_ref(&one));
    if let Some(why) = refusals.into_iter().next() {
        return Err(failure(why, "choose another --queue: rcfarm queue list"));
    }
    match unknown_class(&queues, &one) {
        Some(why) => Err(failure(why, "nothing was created")),
        None => Ok(one),
    }
}

/// Warnings of tasks of a Volcano job that name no restart policy. It is Kubernetes' `Always` then: no member succeeds.
fn restarted_for_ever(document: &Value) -> Vec<FieldError> {
    let is_volcano = document["kind"] == "Job";
    let tasks = document.pointer("/spec/tasks").and_then(Value::as_array);
    let all = tasks.into_iter().flatten().enumerate().filter(|_| is_volcano);
    let is_silent = |(_, task): &(usize, &Value)| {
        let named = [task.get("restartPolicy"), task.pointer("/template/spec/restartPolicy")];
        named.into_iter().flatten().all(Value::is_null)
    };
    let warning = |(n, _): (usize, &Value)| {
        let problem = "it is Always if left out, as in Kubernetes: what ends is started again, and the job does not end";
        let path = format!("spec.tasks[{n}].template.spec.restartPolicy");
        FieldError::new(path, problem, "write OnFailure or Never")
    };
    all.filter(is_silent).map(warning).collect()
}

/// Why a queue accepts no jobs. A missing default queue is no reason: the first farm creates it.
pub(in crate::cli) fn refusal(queues: &Queues, name: &str) -> Option<(PodGroupReason, String)> {
    let name: QueueName = name.parse().ok()?;
    let is_to_be_made =
        |reason| reason == PodGroupReason::QueueMissing && name.as_str() == DEFAULT_QUEUE;
    queues.refusal(&name).filter(|(reason, _)| !is_to_be_made(*reason))
}

/// Why the queues of new jobs do not accept them (`volcano.md` §6).
fn closed_to(queues: &Queues, all: &[WantedJob]) -> Vec<String> {
    let new = all.iter().filter(|one| one.stored.is_none());
    let refused = |one: &WantedJob| {
        let spec = &one.read.spec;
        let (_, why) = refusal(queues, &spec.queue)?;
        Some(format!("{}: {}: {why}", one.id, document::queue_field(spec.framework)))
    };
    new.filter_map(refused).collect()
}

/// Why the priority class of a new job, or a changed one, does not exist.
fn unknown_class(queues: &Queues, one: &WantedJob) -> Option<String> {
    let class = one.read.spec.priority_class.as_deref()?;
    let before = one.stored_document().and_then(|stored| document::read(&one.id, &stored).ok());
    let is_as_before =
        before.is_some_and(|before| before.spec.priority_class.as_deref() == Some(class));
    let why = queues.1.missing(class).filter(|_| !is_as_before)?;
    Some(format!("{}: {}: {why}", one.id, document::class_field(one.read.spec.framework)))
}

/// Why a job would never start: it waits for others that wait for it. Jobs of the files count before stored ones.
async fn cycle(
    context: &CommandContext,
    all: &[WantedJob],
    one: &WantedJob,
) -> anyhow::Result<Option<String>> {
    let mut paths = vec![vec![one.id.clone()]];
    let mut seen = BTreeSet::from([one.id.clone()]);
    while let Some(path) = paths.pop().filter(|_| seen.len() <= MOST_FOLLOWED) {
        let Some(last) = path.last() else { continue };
        let wanted = all.iter().find(|other| other.id == *last);
        let stored = match wanted {
            Some(_) => None,
            None => context.get(&key::job(last)).await?,
        };
        let stored = stored.and_then(|entry| serde_json::from_slice::<Value>(&entry.value).ok());
        let Some(document) = wanted.map(|other| &other.document).or(stored.as_ref()) else {
            continue;
        };
        for dependency in dependencies::in_document(last, document).unwrap_or_default() {
            let next = dependency.job(last);
            if next == one.id {
                let names = path.iter().chain([&next]).map(|id| id.name.to_string());
                let circle = names.collect::<Vec<_>>().join(" -> ");
                let field = dependencies::FIELD;
                let why =
                    format!("{}: {field}: jobs wait for each other in a circle: {circle}", one.id);
                return Ok(Some(why));
            }
            if seen.insert(next.clone()) {
                paths.push(path.iter().cloned().chain([next]).collect());
            }
        }
    }
    Ok(None)
}

/// What is wrong with requests for cells that are not stored yet. `cells`: those that will be applied before.
async fn wrong_cells(
    context: &CommandContext,
    cells: Option<&CellModel>,
    all: &[WantedJob],
) -> anyhow::Result<Vec<String>> {
    let of = |spec: &JobSpec| spec.cells.as_ref().map(|cells| cells.group.clone());
    let is_new = |one: &&WantedJob| {
        let before = one.stored_document().and_then(|stored| document::read(&one.id, &stored).ok());
        of(&one.read.spec).is_some() && before.and_then(|read| of(&read.spec)) != of(&one.read.spec)
    };
    let asking: Vec<&WantedJob> = all.iter().filter(is_new).collect();
    if asking.is_empty() {
        return Ok(Vec::new());
    }
    let stored = match cells {
        Some(_) => None,
        None => context.get(&key::cell_config()).await?,
    };
    let stored = stored.and_then(|entry| decode(&entry.value).ok()).map(|(_, model)| model);
    let problem = |one: &WantedJob| {
        let annotation = one.read.spec.tasks.iter().find_map(|task| task.template.cells.as_ref());
        let field = annotation.map_or("spec.cells", |annotation| annotation.path.as_str());
        let why = match cells.or(stored.as_ref()) {
            None => "there are no valid cells: rcfarm cell config apply FILE".to_owned(),
            Some(model) => of(&one.read.spec)?.check(model, one.id.name.as_str()).err()?.message,
        };
        Some(format!("{}: field {field}: {why}", one.id))
    };
    Ok(asking.into_iter().filter_map(problem).collect())
}

/// Removes the fields that another cluster's controllers set.
pub(in crate::cli) fn as_stored(mut document: Value) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in document::CLUSTER_METADATA {
            metadata.remove(field);
        }
    }
    document
}

/// Whether no member of a stored job has begun, and none has a place.
async fn is_waiting(
    context: &CommandContext,
    id: &Namespaced,
    stored: &Entry,
) -> anyhow::Result<bool> {
    let uid = JobUid(stored.create_index);
    let status = context.get(&key::job_status(id)).await?;
    let status = status.and_then(|entry| JobStatus::decode(&entry.value).ok());
    let group = context.get(&key::pod_group_status(id)).await?;
    let group = group.and_then(|entry| PodGroupStatus::decode(&entry.value).ok());
    let is_admitted = group
        .is_some_and(|group| group.owner_uid == Some(uid.to_string()) && group.phase.is_admitted());
    let has_begun = status.is_some_and(|status| status.uid == uid && status.has_begun());
    Ok(!is_admitted && !has_begun)
}

/// Why a document cannot replace the stored job.
fn conflict(one: &WantedJob) -> Option<String> {
    let stored = one.stored_document()?;
    if stored.pointer("/metadata/deletionTimestamp").is_some() {
        return Some(format!("{}: it is being deleted; wait until it is gone", one.id));
    }
    if document::immutable_hash(&stored) == document::immutable_hash(&one.document) {
        // A label may name the queue, too.
        return queue_conflict(&one.id, &stored, &one.document);
    }
    let is_requests_alone =
        document::requestless_hash(&stored) == document::requestless_hash(&one.document);
    if is_requests_alone && one.is_waiting {
        return queue_conflict(&one.id, &stored, &one.document);
    }
    let changed = differences(&document::immutable(&stored), &document::immutable(&one.document));
    let changed: Vec<String> = changed.into_iter().map(|difference| difference.field).collect();
    Some(format!(
        "{}: only counts, the priority and times of a job may change{}: delete it first, or name this one otherwise \
         (changed: {})",
        one.id,
        if is_requests_alone { "; what its members request, as long as it waits" } else { "" },
        changed.join(", ")
    ))
}

fn row(one: &WantedJob) -> Row {
    let spec = &one.read.spec;
    let fields =
        one.stored_document().map(|stored| differences(&stored, &one.document)).unwrap_or_default();
    let members = spec.tasks.iter().map(|task| {
        json!({"task": task.name, "replicas": task.replicas, "resources": units::json(&task.template.resources()),
            "node_selector": task.template.node_selector.to_string()})
    });
    Row {
        job: one.id.clone(),
        kind: spec.kind().to_owned(),
        change: one.action(),
        fields,
        members: members.collect(),
        needed: spec.min_available,
        queue: spec.queue.clone(),
        warnings: one.read.warnings.clone(),
    }
}

fn text(row: &Row) -> String {
    let mut text = format!("{} ({}): {}\n", row.job, row.kind, would(row.change));
    for FieldDifference { field, before, after } in &row.fields {
        text.push_str(&format!("  ~ {field}: {before} -> {after}\n"));
    }
    if row.change == ApplyAction::Created {
        for member in &row.members {
            let task = member["task"].as_str().unwrap_or_default();
            text.push_str(&format!("  + {} x {task}\n", member["replicas"]));
        }
        text.push_str(&format!("  starts with {} members, in queue {}\n", row.needed, row.queue));
    }
    for warning in &row.warnings {
        text.push_str(&format!("  note: {warning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_without_a_restart_policy_are_warned_about() {
        let document = |kind: &str| {
            json!({"kind": kind, "spec": {"tasks": [
                {"name": "a", "template": {"spec": {"containers": []}}},
                {"name": "b", "template": {"spec": {"restartPolicy": "Never"}}},
                {"name": "c", "restartPolicy": "Always", "template": {"spec": {}}},
            ]}})
        };
        let warned = restarted_for_ever(&document("Job"));
        let paths: Vec<&str> = warned.iter().map(|warning| warning.path.as_str()).collect();
        assert_eq!(paths, ["spec.tasks[0].template.spec.restartPolicy"]);
        assert!(restarted_for_ever(&document("TFJob")).is_empty());
    }
}
