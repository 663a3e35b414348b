//! `rcfarm queue create`, `update`, `open`, `close`, `delete`
//!
//! Keys read: queues, groups and their statuses. Key written: the queue's record, by CAS, in one transaction with its
//! audit record. Only commands and operators write it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::snapshot::{QueueSnapshot, snapshot};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::files::read_yaml;
use rcfarm_api::audit::{Details, QueueChange};
use rcfarm_api::ids::{ObjectName, QueueName};
use rcfarm_api::queue::spec::{
    DEFAULT_QUEUE, Desired, QueueRecord, QueueSpec, QueueStrategy, check_family,
};
use rcfarm_api::{FieldError, ResourceList, Stored, key};
use rcfarm_store::{Entry, Index, Op};

#[derive(clap::Args)]
pub struct QueueCreateArgs {
    /// The queue's name; with --file it may be left out, and the manifest's metadata.name counts
    #[arg(value_name = "QUEUE", required_unless_present = "file")]
    queue: Option<QueueName>,
    /// A queue as YAML or JSON, as Volcano writes it: metadata.name and spec; the flags below then change it
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    fields: QueueFields,
    /// Create it closed
    #[arg(long)]
    closed: bool,
}

#[derive(clap::Args)]
pub struct QueueUpdateArgs {
    /// Name of the queue
    #[arg(value_name = "QUEUE")]
    queue: QueueName,
    #[command(flatten)]
    fields: QueueFields,
}

/// Fields of a queue's spec. Those that are not given stay.
#[derive(Clone, clap::Args)]
struct QueueFields {
    /// Weight of its fair share, 1 to 65535
    #[arg(long, value_name = "N")]
    weight: Option<i64>,
    /// Queues of higher priority are served first
    #[arg(long, value_name = "N")]
    priority: Option<i64>,
    /// Limit of what it uses, as in cpu=64,memory=256Gi,gpu=8,pods=100; resources without a limit are left out
    #[arg(long, value_name = "AMOUNTS")]
    capability: Option<ResourceList>,
    /// Resources that its siblings leave free for it in their parent
    #[arg(long, value_name = "AMOUNTS")]
    guarantee: Option<ResourceList>,
    /// The parent queue
    #[arg(long, value_name = "QUEUE")]
    parent: Option<QueueName>,
    /// If the first group does not fit: fifo admits none before it, traverse admits those that fit
    #[arg(long, value_enum, value_name = "ORDER")]
    order: Option<QueueStrategy>,
    /// With the order traverse: how many groups may go before one that waits for capacity; then it is kept for that one
    #[arg(long, value_name = "N")]
    max_passes: Option<u32>,
    /// The scheduler record that orders it
    #[arg(long, value_name = "NAME")]
    scheduler: Option<ObjectName>,
}

pub(super) async fn create(
    context: &CommandContext,
    args: QueueCreateArgs,
) -> anyhow::Result<CliExit> {
    let (named, mut record) = match &args.file {
        Some(file) => read(file)?,
        None => (None, QueueRecord::default()),
    };
    let Some(name) = args.queue.clone().or(named) else {
        return Err(failure("the manifest has no metadata.name", "name the queue as an argument"));
    };
    fill(&mut record.spec, args.fields);
    if args.closed {
        record.spec.state = Desired::Closed;
    }
    let snapshot = snapshot(context).await?;
    if snapshot.entries.contains_key(&name) {
        return Err(failure(
            format!("there is a queue {name} already"),
            format!("change it: rcfarm queue update {name}, or rcfarm apply -f FILE"),
        ));
    }
    check(&name, &record.spec, &snapshot)?;
    write(context, &name, &record, None).await?;
    context.show(&json!({"name": name, "spec": record.spec}), || format!("{name}: created"))
}

/// Changes fields of a queue by CAS. Reads the record again if it changed meanwhile.
pub(super) async fn update(
    context: &CommandContext,
    args: QueueUpdateArgs,
) -> anyhow::Result<CliExit> {
    let QueueUpdateArgs { queue: name, fields } = args;
    let attempt = async || {
        let snapshot = snapshot(context).await?;
        snapshot.queue(&name)?;
        let entry = &snapshot.entries[&name];
        let mut record = decode(&name, entry)?;
        let before = record.spec.clone();
        fill(&mut record.spec, fields.clone());
        if record.spec == before {
            return Ok(Some(false));
        }
        check(&name, &record.spec, &snapshot)?;
        Ok(try_write(context, &name, &record, Some((entry, &before))).await?.then_some(true))
    };
    let is_changed = context.edit(format!("the record of queue {name}"), attempt).await?;
    context.show(&json!({"name": name, "changed": is_changed}), || match is_changed {
        true => format!("{name}: changed"),
        false => format!("{name}: as before"),
    })
}

fn decode(name: &QueueName, entry: &Entry) -> anyhow::Result<QueueRecord> {
    QueueRecord::decode(&entry.value).map_err(|bad| {
        let fix = format!("correct the record at {}: {}", entry.key, bad.fix);
        failure(format!("queue {name}: field {}: {}", bad.path, bad.problem), fix)
    })
}

/// Writes a record in one transaction with its audit record. `stored`: what it replaces, and its spec.
pub(super) async fn write(
    context: &CommandContext,
    name: &QueueName,
    record: &QueueRecord,
    stored: Option<(&Entry, &QueueSpec)>,
) -> anyhow::Result<()> {
    if try_write(context, name, record, stored).await? {
        return Ok(());
    }
    let why = match stored {
        None => format!("somebody else just made queue {name}"),
        Some(_) => format!("queue {name}: somebody changed it meanwhile; it was left as it is"),
    };
    Err(failure(why, "look at it first"))
}

/// As [`write`]; `false`: the stored record has changed meanwhile.
async fn try_write(
    context: &CommandContext,
    name: &QueueName,
    record: &QueueRecord,
    stored: Option<(&Entry, &QueueSpec)>,
) -> anyhow::Result<bool> {
    for field in record.ignored() {
        context.note(format!("{field} is kept, and nothing acts upon it"));
    }
    let about = about(context, name, stored.map(|(_, spec)| spec), Some(&record.spec));
    let details = match stored {
        None => Details::QueueCreated(about),
        Some(_) => Details::QueueChanged(about),
    };
    let (index, flags) = stored.map_or((Index::ZERO, 0), |(e, _)| (e.modify_index, e.flags));
    let op = Op::Cas { key: key::queue(name), value: record.encode(), flags, index };
    Ok(context.commit([op], &details, None).await?.is_ok())
}

/// Reads a manifest: its name, and the record without the fields of the manifest alone.
fn read(path: &Path) -> anyhow::Result<(Option<QueueName>, QueueRecord)> {
    let value: Value = read_yaml(path, "")?;
    if let Some(kind) = value.get("kind").and_then(Value::as_str).filter(|kind| *kind != "Queue") {
        return Err(failure(
            format!("{}: field kind: {kind} is no Queue", path.display()),
            "give a Queue",
        ));
    }
    read_document(&path.display().to_string(), &value)
}

/// The name and the record of a queue's document.
pub(super) fn read_document(
    at: &str,
    value: &Value,
) -> anyhow::Result<(Option<QueueName>, QueueRecord)> {
    let name = match value.pointer("/metadata/name").and_then(Value::as_str) {
        Some(name) => Some(name.parse::<QueueName>().context("field metadata.name")?),
        None => None,
    };
    let record = QueueRecord::decode(value.to_string().as_bytes())
        .map_err(|bad| failure(format!("{at}: field {}: {}", bad.path, bad.problem), bad.fix))?;
    Ok((name, record))
}

fn fill(spec: &mut QueueSpec, args: QueueFields) {
    spec.weight = args.weight.unwrap_or(spec.weight);
    spec.priority = args.priority.unwrap_or(spec.priority);
    spec.dequeue_strategy = args.order.unwrap_or(spec.dequeue_strategy);
    spec.max_passes = args.max_passes.unwrap_or(spec.max_passes);
    if let Some(capability) = args.capability {
        spec.capability = capability;
    }
    if let Some(guarantee) = args.guarantee {
        spec.guarantee.resource = guarantee;
    }
    if args.parent.is_some() {
        spec.parent = args.parent;
    }
    if let Some(scheduler) = args.scheduler {
        spec.scheduler = scheduler;
    }
}

/// Validates a queue with the farm's rules, before anything is written.
fn check(name: &QueueName, spec: &QueueSpec, snapshot: &QueueSnapshot) -> anyhow::Result<()> {
    let mut specs = snapshot.specs();
    specs.insert(name.clone(), spec.clone());
    match &problems(name, &specs, snapshot)[..] {
        [] => Ok(()),
        [one] => Err(failure(format!("field {}: {}", one.path, one.problem), one.fix.clone())),
        many => Err(failure(FieldError::list(many), "correct these fields; nothing was written")),
    }
}

/// What is wrong with one of the queues in `specs`.
pub(super) fn problems(
    name: &QueueName,
    specs: &BTreeMap<QueueName, QueueSpec>,
    snapshot: &QueueSnapshot,
) -> Vec<FieldError> {
    let spec = &specs[name];
    let mut bad = spec.check(name);
    bad.extend(check_family(name, specs));
    if let Some(parent) = spec.parent().filter(|parent| !snapshot.admitted(parent).is_empty()) {
        let why = format!(
            "groups are admitted in {parent} itself, and only queues without others below take work"
        );
        bad.push(FieldError::new("spec.parent", why, "let them end first, or name another"));
    }
    bad
}

fn about(
    context: &CommandContext,
    name: &QueueName,
    before: Option<&QueueSpec>,
    after: Option<&QueueSpec>,
) -> QueueChange {
    let value = |spec: Option<&QueueSpec>| serde_json::to_value(spec?).ok();
    QueueChange {
        queue: name.clone(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        farm: None,
        before: value(before),
        after: value(after),
    }
}

/// Sets one field of the record by CAS. Reads the record again if it changed meanwhile.
pub(super) async fn set_state(
    context: &CommandContext,
    name: &QueueName,
    to: Desired,
) -> anyhow::Result<CliExit> {
    let attempt = async || {
        let snapshot = snapshot(context).await?;
        let queue = snapshot.queue(name)?;
        let entry = &snapshot.entries[name];
        let mut record = decode(name, entry)?;
        let closed = |above: &&QueueName| {
            snapshot.queues.0.get(*above).is_some_and(|q| q.spec.state == Desired::Closed)
        };
        if let Some(above) = queue.chain.iter().skip(1).find(closed)
            && to == Desired::Open
        {
            return Err(failure(
                format!(
                    "queue {name} stays closed as long as {above} above it is; nothing was changed"
                ),
                format!("open that first: rcfarm queue open {above}"),
            ));
        }
        let before = record.spec.clone();
        record.spec.state = to;
        let left = snapshot.admitted(name).len();
        if before.state == to {
            return Ok(Some((before, false, left)));
        }
        let is_written = try_write(context, name, &record, Some((entry, &before))).await?;
        Ok(is_written.then_some((before, true, left)))
    };
    let what = format!("the record of queue {name}");
    let (before, is_changed, left) = context.edit(what, attempt).await?;
    let word = format!("{to:?}").to_lowercase();
    let shown = json!({"name": name, "state": to, "before": before.state});
    context.show(&shown, || match (is_changed, to, left) {
        (false, ..) => format!("{name}: {word}, as before"),
        (true, Desired::Closed, 1..) => {
            format!("{name}: closing; {left} admitted groups go on to their end")
        }
        (true, ..) => format!("{name}: {word}"),
    })
}

/// Deletes a queue without waiting or running groups. The scheduler later deletes its status.
pub(super) async fn delete(context: &CommandContext, name: &QueueName) -> anyhow::Result<CliExit> {
    let snapshot = snapshot(context).await?;
    let queue = snapshot.queue(name)?;
    let refuse = |why: String, hint: String| {
        Err(failure(format!("queue {name} {why}; nothing was changed"), hint))
    };
    if name.as_str() == DEFAULT_QUEUE {
        let hint = format!("to let nothing in: rcfarm queue close {name}");
        return refuse(
            "is that of whatever names none: a farm would make it again".to_owned(),
            hint,
        );
    }
    if let Some(child) = queue.children.first() {
        let count = queue.children.len();
        return refuse(
            format!("has {count} queues below it"),
            format!("delete them first, such as {child}"),
        );
    }
    let (waiting, admitted) =
        (snapshot.positions.get(name).map_or(0, Vec::len), snapshot.admitted(name).len());
    if waiting + admitted > 0 {
        let why = format!("has {admitted} admitted and {waiting} waiting groups");
        return refuse(
            why,
            format!("close it, and let them end or delete them: rcfarm queue close {name}"),
        );
    }
    let before = QueueRecord::decode(&snapshot.entries[name].value).ok().map(|record| record.spec);
    let details = Details::QueueDeleted(about(context, name, before.as_ref(), None));
    let index = snapshot.entries[name].modify_index;
    let ops = vec![Op::DeleteCas { key: key::queue(name), index }];
    if context.commit(ops, &details, None).await?.is_err() {
        let hint = "look at it, then try again".to_owned();
        return refuse("was changed by somebody meanwhile".to_owned(), hint);
    }
    context.show(&json!({"name": name, "deleted": true}), || format!("{name}: deleted"))
}
