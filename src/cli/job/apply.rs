//! Jobs of `rcfarm apply -f` and `rcfarm plan -f`, in the formats of Volcano and Kubeflow.
//!
//! Keys read: the records of jobs, queues. Keys written: `rcfarm/jobs/<ns>/<name>`, by CAS, one transaction per job. A
//! crash between two jobs leaves the first applied; `apply` again applies the rest.

use serde::Serialize;
use serde_json::{Value, json};

use super::commands::job_change;
use crate::batch::queues::Queues;
use crate::cli::apply::{Applied, Change, Difference, Planned, differences, would};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cluster::queues::QueueIndex;
use crate::job::document::{self, Read};
use rcfarm_api::audit::Details;
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::queue::spec::DEFAULT_QUEUE;
use rcfarm_api::resource_list::units;
use rcfarm_api::{FieldError, key};
use rcfarm_store::cache::read_once;
use rcfarm_store::{Entry, Index, Op};

/// A document, and the stored job of its name.
struct WantedJob {
    id: Namespaced,
    document: Value,
    read: Read,
    stored: Option<Entry>,
}

/// One document in the output of `plan`.
#[derive(Serialize)]
struct Row {
    job: Namespaced,
    kind: &'static str,
    change: Change,
    /// Fields that differ, with both values.
    fields: Vec<Difference>,
    members: Vec<Value>,
    needed: u32,
    queue: String,
    warnings: Vec<FieldError>,
}

/// Jobs of files, checked.
pub(in crate::cli) struct Jobs {
    all: Vec<WantedJob>,
}

impl Jobs {
    /// Reads and checks jobs; adds to `problems` what is wrong with them. `queues`: as they are once the files are
    /// applied.
    pub(in crate::cli) async fn read(
        context: &CommandContext,
        described: Vec<Described>,
        queues: &Queues,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Jobs> {
        let mut all: Vec<WantedJob> = Vec::new();
        for Described { at, id, document } in described {
            if all.iter().any(|other| other.id == id) {
                return Err(wrong(&at, format!("{id} is there twice")));
            }
            match document::read(&id, &document) {
                Ok(read) => {
                    let stored = context.get(&key::job(&id)).await?;
                    all.push(WantedJob { id, document: as_stored(document), read, stored });
                }
                Err(found) => problems.extend(found.iter().map(|issue| format!("{id}: {issue}"))),
            }
        }
        problems.extend(all.iter().filter_map(conflict));
        problems.extend(closed_to(queues, &all));
        Ok(Jobs { all })
    }

    /// Creates and changes the jobs.
    pub(in crate::cli) async fn apply(
        &self,
        context: &CommandContext,
    ) -> anyhow::Result<Vec<Applied>> {
        let mut applied = Vec::new();
        for one in &self.all {
            for warning in &one.read.warnings {
                context.note(format!("{}: {warning}", one.id));
            }
            let change = change(one);
            if change != Change::Unchanged {
                write(context, one, change).await?;
            }
            let shown = json!({"job": one.id, "kind": one.read.spec.framework.kind(), "change": change,
                "warnings": one.read.warnings});
            applied.push(Applied::new(&one.id, change, shown));
        }
        Ok(applied)
    }

    /// What `apply` would do.
    pub(in crate::cli) fn plan(&self) -> Vec<Planned> {
        let planned = |one| {
            let row = row(one);
            let shown = serde_json::to_value(&row).expect("rows encode");
            Planned { change: row.change, text: text(&row), shown }
        };
        self.all.iter().map(planned).collect()
    }
}

pub(in crate::cli) fn wrong(at: &str, why: String) -> anyhow::Error {
    failure(format!("{at}: {why}"), "correct it; nothing was changed")
}

/// A job of a file.
pub(in crate::cli) struct Described {
    /// The file, and the document's number in it.
    at: String,
    id: Namespaced,
    document: Value,
}

impl Described {
    /// A job from its document. `within`: its namespace, if the document names none.
    pub(in crate::cli) fn new(
        at: &str,
        mut document: Value,
        within: &Namespace,
    ) -> anyhow::Result<Described> {
        if document.pointer("/metadata/namespace").is_none() && document["metadata"].is_object() {
            document["metadata"]["namespace"] = json!(within);
        }
        let id = document::name(&document);
        let id = id.map_err(|issue| wrong(at, issue.to_string()))?;
        Ok(Described { at: at.to_owned(), id, document })
    }
}

/// Names of the jobs in files. Objects of other kinds are left out.
pub(super) fn names(files: &[String], within: &Namespace) -> anyhow::Result<Vec<Namespaced>> {
    let described = crate::cli::apply::described(files, within)?;
    Ok(described.jobs.into_iter().map(|one| one.id).collect())
}

/// Creates a job that does not exist from a document.
pub(super) async fn create(
    context: &CommandContext,
    id: &Namespaced,
    document: Value,
) -> anyhow::Result<()> {
    if context.get(&key::job(id)).await?.is_some() {
        let hint = format!("choose another --name, or delete it: rcfarm job delete {id}");
        return Err(failure(format!("there is a job {id} already"), hint));
    }
    let read = document::read(id, &document).map_err(|found| {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        failure(format!("{id}: {}", found.join("; ")), "nothing was created")
    })?;
    let one = WantedJob { id: id.clone(), document, read, stored: None };
    let queues: QueueIndex = read_once(context.store.as_ref(), &key::queues()).await?;
    let refusals = closed_to(&Queues::of(&queues.0), std::slice::from_ref(&one));
    if let Some(why) = refusals.into_iter().next() {
        return Err(failure(why, "choose another --queue: rcfarm queue list"));
    }
    for warning in &one.read.warnings {
        context.note(format!("{id}: {warning}"));
    }
    write(context, &one, Change::Created).await
}

/// Why the queues of new jobs do not accept them (`volcano.md` §6). A missing default queue is no reason: the first farm
/// creates it.
fn closed_to(queues: &Queues, all: &[WantedJob]) -> Vec<String> {
    let new = all.iter().filter(|one| one.stored.is_none());
    let refusal = |one: &&WantedJob| {
        let spec = &one.read.spec;
        let name = spec.queue.parse().ok()?;
        let (reason, why) = queues.refusal(&name)?;
        let is_to_be_made =
            reason == PodGroupReason::QueueMissing && name.as_str() == DEFAULT_QUEUE;
        let field = document::queue_field(spec.framework);
        (!is_to_be_made).then(|| format!("{}: {field}: {why}", one.id))
    };
    new.filter_map(|one| refusal(&one)).collect()
}

/// Removes the fields that another cluster's controllers set.
fn as_stored(mut document: Value) -> Value {
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

/// Why a document cannot replace the stored job.
fn conflict(one: &WantedJob) -> Option<String> {
    let stored = stored(one)?;
    if stored.pointer("/metadata/deletionTimestamp").is_some() {
        return Some(format!("{}: it is being deleted; wait until it is gone", one.id));
    }
    (document::immutable_hash(&stored) != document::immutable_hash(&one.document)).then(|| {
        format!(
            "{}: only counts, the priority and times of a job may change: delete it first, or name this one otherwise \
             (changed: {})",
            one.id,
            differences(&stored, &one.document)
                .iter()
                .map(|difference| difference.field.clone())
                .collect::<Vec<_>>()
                .join(", ")
        )
    })
}

fn stored(one: &WantedJob) -> Option<Value> {
    serde_json::from_slice(&one.stored.as_ref()?.value).ok()
}

fn change(one: &WantedJob) -> Change {
    match (&one.stored, stored(one)) {
        (None, _) => Change::Created,
        (Some(_), Some(stored)) if stored == one.document => Change::Unchanged,
        (Some(_), _) => Change::Changed,
    }
}

async fn write(context: &CommandContext, one: &WantedJob, change: Change) -> anyhow::Result<()> {
    let index = one.stored.as_ref().map_or(Index::ZERO, |entry| entry.modify_index);
    let value = one.document.to_string().into();
    let op = Op::Cas { key: key::job(&one.id), value, flags: 0, index };
    let details = job_change(context, &one.id, format!("{change:?}"));
    context.commit([op], &Details::JobChanged(details), None).await?.map_err(|_| {
        let why = format!("{}: somebody changed it meanwhile; it was left as it is", one.id);
        failure(why, "look at it, then try again")
    })?;
    Ok(())
}

fn row(one: &WantedJob) -> Row {
    let spec = &one.read.spec;
    let fields = stored(one).map(|stored| differences(&stored, &one.document)).unwrap_or_default();
    let members = spec.tasks.iter().map(|task| {
        json!({"task": task.name, "replicas": task.replicas, "resources": units::json(&task.template.resources()),
            "node_selector": task.template.node_selector.to_string()})
    });
    Row {
        job: one.id.clone(),
        kind: spec.framework.kind(),
        change: change(one),
        fields,
        members: members.collect(),
        needed: spec.min_available,
        queue: spec.queue.clone(),
        warnings: one.read.warnings.clone(),
    }
}

fn text(row: &Row) -> String {
    let mut text = format!("{} ({}): {}\n", row.job, row.kind, would(row.change));
    for Difference { field, before, after } in &row.fields {
        text.push_str(&format!("  ~ {field}: {before} -> {after}\n"));
    }
    if row.change == Change::Created {
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
