//! `rcfarm apply -f`, `rcfarm plan -f`: jobs from files in the formats of Volcano and Kubeflow.
//!
//! Keys read: the records of jobs, queues. Keys written: `rcfarm/jobs/<ns>/<name>`, by CAS, one transaction per job. A
//! crash between two jobs leaves the first applied; `apply` again applies the rest.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use super::commands::job_change;
use crate::batch::queues::Queues;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::files::check_not_described;
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

#[derive(clap::Args)]
pub struct FileArgs {
    /// A YAML or JSON file with one job or several, or a directory of such files; - reads standard input; may be
    /// repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
    /// Namespace of jobs whose document has none (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
}

/// A document, and the stored job of its name.
struct Wanted {
    id: Namespaced,
    document: Value,
    read: Read,
    stored: Option<Entry>,
}

/// What `apply` does with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Change {
    Created,
    Changed,
    Unchanged,
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

#[derive(Serialize)]
struct Difference {
    field: String,
    before: Value,
    after: Value,
}

pub(in crate::cli) async fn apply(
    context: &CommandContext,
    args: &FileArgs,
) -> anyhow::Result<CliExit> {
    let all = wanted(context, args).await?;
    let mut shown = Vec::new();
    for one in &all {
        for warning in &one.read.warnings {
            context.note(format!("{}: {warning}", one.id));
        }
        let change = change(one);
        if change != Change::Unchanged {
            write(context, one, change).await?;
        }
        shown.push(json!({"job": one.id, "kind": one.read.spec.framework.kind(), "change": change,
            "warnings": one.read.warnings}));
    }
    context.show(&shown, || {
        all.iter().map(|one| format!("{}: {}\n", one.id, word(change(one)))).collect()
    })
}

pub(in crate::cli) async fn plan(
    context: &CommandContext,
    args: &FileArgs,
) -> anyhow::Result<CliExit> {
    let rows: Vec<Row> = wanted(context, args).await?.iter().map(row).collect();
    context.show(&rows, || rows.iter().map(text).collect())?;
    let nothing = rows.iter().all(|row| row.change == Change::Unchanged);
    Ok(if nothing { CliExit::Ok } else { CliExit::Changes })
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Created => "created",
        Change::Changed => "changed",
        Change::Unchanged => "unchanged",
    }
}

/// Reads and validates all documents. Nothing is changed yet.
async fn wanted(context: &CommandContext, args: &FileArgs) -> anyhow::Result<Vec<Wanted>> {
    let mut all: Vec<Wanted> = Vec::new();
    let mut problems = Vec::new();
    for Described { at, id, document } in described(&args.filename, &args.within)? {
        if all.iter().any(|other| other.id == id) {
            return Err(wrong(&at, format!("{id} is there twice")));
        }
        match document::read(&id, &document) {
            Ok(read) => {
                let stored = context.get(&key::job(&id)).await?;
                all.push(Wanted { id, document: as_stored(document), read, stored });
            }
            Err(found) => problems.extend(found.iter().map(|issue| format!("{id}: {issue}"))),
        }
    }
    problems.extend(all.iter().filter_map(conflict));
    problems.extend(closed_to(context, &all).await?);
    let files = args.filename.join(", ");
    if !problems.is_empty() {
        let why = format!("{files} cannot be applied:\n  {}", problems.join("\n  "));
        return Err(failure(why, "correct the fields named; nothing was changed"));
    }
    if all.is_empty() {
        return Err(failure(format!("{files} has no documents"), "write a job into it"));
    }
    Ok(all)
}

fn wrong(at: &str, why: String) -> anyhow::Error {
    failure(format!("{at}: {why}"), "correct it; nothing was changed")
}

/// A document of a file.
struct Described {
    /// The file, and the document's number in it.
    at: String,
    id: Namespaced,
    document: Value,
}

/// Names of the jobs in files.
pub(super) fn names(files: &[String], within: &Namespace) -> anyhow::Result<Vec<Namespaced>> {
    Ok(described(files, within)?.into_iter().map(|one| one.id).collect())
}

/// The documents of files and directories, with their names. `within`: namespace of those that name none.
fn described(files: &[String], within: &Namespace) -> anyhow::Result<Vec<Described>> {
    let mut all = Vec::new();
    for (file, text) in contents(files)? {
        for (n, text) in documents(&text).iter().enumerate() {
            check_not_described(&file, text)?;
            let at = format!("{file} (document {})", n + 1);
            let mut document = document::from_yaml(text).map_err(|why| wrong(&at, why))?;
            if document.is_null() {
                continue;
            }
            if document.pointer("/metadata/namespace").is_none() && document["metadata"].is_object()
            {
                document["metadata"]["namespace"] = json!(within);
            }
            let id = document::name(&document);
            let id = id.map_err(|issue| wrong(&at, issue.to_string()))?;
            all.push(Described { at, id, document });
        }
    }
    Ok(all)
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
    let one = Wanted { id: id.clone(), document, read, stored: None };
    if let Some(why) = closed_to(context, std::slice::from_ref(&one)).await?.pop() {
        return Err(failure(why, "choose another --queue: rcfarm queue list"));
    }
    for warning in &one.read.warnings {
        context.note(format!("{id}: {warning}"));
    }
    write(context, &one, Change::Created).await
}

/// Why the queues of new jobs do not accept them (`volcano.md` §6). A missing default queue is no reason: the first farm
/// creates it.
async fn closed_to(context: &CommandContext, all: &[Wanted]) -> anyhow::Result<Vec<String>> {
    let new: Vec<&Wanted> = all.iter().filter(|one| one.stored.is_none()).collect();
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let queues = queues(context).await?;
    let refusal = |one: &&Wanted| {
        let spec = &one.read.spec;
        let name = spec.queue.parse().ok()?;
        let (reason, why) = queues.refusal(&name)?;
        let is_to_be_made =
            reason == PodGroupReason::QueueMissing && name.as_str() == DEFAULT_QUEUE;
        let field = document::queue_field(spec.framework);
        (!is_to_be_made).then(|| format!("{}: {field}: {why}", one.id))
    };
    Ok(new.iter().filter_map(refusal).collect())
}

async fn queues(context: &CommandContext) -> anyhow::Result<Queues> {
    let queues: QueueIndex = read_once(context.store.as_ref(), &key::queues()).await?;
    Ok(Queues::of(&queues.0))
}

/// Extensions of the files of a directory that are read.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Names and texts of files. Those of a directory are in the order of their names; directories in it are not read.
fn contents(files: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for file in files {
        if file == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            all.push((file.clone(), text));
            continue;
        }
        let path = Path::new(file);
        let paths = if path.is_dir() { files_in(path)? } else { vec![path.to_owned()] };
        for path in paths {
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            all.push((path.display().to_string(), text));
        }
    }
    Ok(all)
}

fn files_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = || directory.display().to_string();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_file() && extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let why = format!("{} has no files of {}", shown(), EXTENSIONS.join(", "));
        return Err(failure(why, "name a file, or another directory"));
    }
    Ok(paths)
}

/// Splits a YAML stream into its documents.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line == "---" || line.starts_with("--- ") || line == "..." {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    let is_empty = |document: &String| {
        document.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    };
    documents.retain(|document| !is_empty(document));
    documents
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
fn conflict(one: &Wanted) -> Option<String> {
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

fn stored(one: &Wanted) -> Option<Value> {
    serde_json::from_slice(&one.stored.as_ref()?.value).ok()
}

fn change(one: &Wanted) -> Change {
    match (&one.stored, stored(one)) {
        (None, _) => Change::Created,
        (Some(_), Some(stored)) if stored == one.document => Change::Unchanged,
        (Some(_), _) => Change::Changed,
    }
}

async fn write(context: &CommandContext, one: &Wanted, change: Change) -> anyhow::Result<()> {
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

fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<Difference>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(name).cloned().unwrap_or(Value::Null)
                };
                compare(&path, &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (n, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{n}]"), a, b, found);
            }
        }
        _ if before == after => {}
        _ => found.push(Difference {
            field: path.to_owned(),
            before: before.clone(),
            after: after.clone(),
        }),
    }
}

fn row(one: &Wanted) -> Row {
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
    let mut text = format!(
        "{} ({}): {}\n",
        row.job,
        row.kind,
        match row.change {
            Change::Created => "would be created",
            Change::Changed => "would be changed",
            Change::Unchanged => "nothing to do",
        }
    );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_documents_is_taken_apart() {
        let text = "# a\n---\na: 1\n---\n\n# nothing\n--- # b\nb: |\n  ---x\n";
        assert_eq!(documents(text), ["a: 1\n", "b: |\n  ---x\n"]);
    }

    #[test]
    fn differences_are_named_by_path() {
        let (a, b) = (json!({"a": [{"b": 1}], "c": 1}), json!({"a": [{"b": 2}], "d": 1}));
        let found: Vec<String> = differences(&a, &b).into_iter().map(|d| d.field).collect();
        assert_eq!(found, ["a[0].b", "c", "d"]);
    }
}
