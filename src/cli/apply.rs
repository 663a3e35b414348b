//! `rcfarm apply -f`, `rcfarm plan -f`: jobs, CronJobs, flows, queues, priority classes, cells and replication
//! controllers from files.
//! `rcfarm dev --apply` takes the same files.
//!
//! Everything is read and checked before the first write. Then come cells, priority classes, job types, queues, parents
//! first, then controllers, JobTemplates, JobFlows, CronJobs, jobs: each object is a transaction of its own. A crash between two
//! leaves the first applied; `apply` again applies the rest.

use serde_json::Value;

use super::cell::apply::{self as cells, DescribedCells, WantedCells};
use super::context::CommandContext;
use super::cron::kind::CRON_JOB;
use super::documents::{DescribedDocument, DocumentKind, WantedDocument};
use super::failure::{CliExit, failure};
use super::files::contents;
use super::flow::kind::{JOB_FLOW, JOB_TEMPLATE};
use super::job::apply::{DescribedJob, WantedJob};
use super::job_type::apply::{DescribedType, WantedTypes};
use super::priority_class::apply::{DescribedClass, WantedClasses};
use super::queue::apply::{DescribedQueue, WantedQueues};
use super::queue::kind::{POD_GROUP, SCHEDULER};
use super::rc::apply::{DescribedRc, WantedRc};
use super::wanted::{AppliedObject, ApplyAction, PlannedObject, WantedObject, wrong};
use crate::job::document;
use rcfarm_api::ids::Namespace;
use rcfarm_api::job::job_type;
use rcfarm_store::StoreError;

/// Kinds of records that are the user's own documents, in the order in which they are applied.
const DOCUMENT_KINDS: [&DocumentKind; 5] =
    [&SCHEDULER, &JOB_TEMPLATE, &JOB_FLOW, &CRON_JOB, &POD_GROUP];
/// Space for the audit record and the framing of a transaction.
const AUDIT_BYTES: usize = 16 * 1024;

#[derive(clap::Args)]
pub struct FileArgs {
    /// A YAML or JSON file with jobs, CronJobs, JobFlows, JobTemplates, queues, priority classes, job types, cells and
    /// replication controllers, or a directory of such files; - reads standard input; may be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
    /// Namespace of jobs whose document has none (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
}

async fn apply_all(
    context: &CommandContext,
    wanted: &[impl WantedObject],
    applied: &mut Vec<AppliedObject>,
) -> anyhow::Result<()> {
    for one in wanted {
        for warning in one.warnings() {
            context.note(warning);
        }
        let shown = one.applied();
        if one.action() != ApplyAction::Unchanged {
            one.write(context).await.map_err(|error| match error.is::<StoreError>() {
                true => error.context(shown.name.clone()),
                // It names its object.
                false => error,
            })?;
        }
        applied.push(shown);
    }
    Ok(())
}

/// Adds to `problems` objects whose records are too large for a transaction.
fn check_sizes(context: &CommandContext, wanted: &[impl WantedObject], problems: &mut Vec<String>) {
    // Values are sent in base64, beside an audit record.
    let most = (context.limits.bytes - AUDIT_BYTES) / 4 * 3;
    let written = wanted.iter().filter(|one| one.action() != ApplyAction::Unchanged);
    let large = written.filter(|one| one.bytes() > most);
    problems.extend(large.map(|one| {
        let name = one.applied().name;
        format!("{name}: it has {} bytes; a transaction of Consul takes {most}", one.bytes())
    }));
}

pub(super) async fn apply(context: &CommandContext, args: &FileArgs) -> anyhow::Result<CliExit> {
    apply_files(context, &args.filename, described(&args.filename, &args.within)?).await
}

/// Applies the objects of files, and shows what was done.
pub(super) async fn apply_files(
    context: &CommandContext,
    files: &[String],
    described: DescribedObjects,
) -> anyhow::Result<CliExit> {
    let wanted = Wanted::of(context, files, described).await?;
    let mut applied = Vec::new();
    let done = wanted.apply(context, &mut applied).await;
    // After a failure, too: what was done before it.
    if done.is_ok() || !applied.is_empty() {
        let shown: Vec<&Value> = applied.iter().map(|one| &one.shown).collect();
        context.show(&shown, || applied.iter().map(AppliedObject::line).collect())?;
    }
    done.map(|()| CliExit::Ok)
}

pub(super) async fn plan(context: &CommandContext, args: &FileArgs) -> anyhow::Result<CliExit> {
    plan_files(context, &args.filename, described(&args.filename, &args.within)?).await
}

/// Shows what applying the objects of files would change.
pub(super) async fn plan_files(
    context: &CommandContext,
    files: &[String],
    described: DescribedObjects,
) -> anyhow::Result<CliExit> {
    let planned = Wanted::of(context, files, described).await?.plan();
    let shown: Vec<&Value> = planned.iter().map(|one| &one.shown).collect();
    context.show(&shown, || planned.iter().map(|one| one.text.as_str()).collect())?;
    let nothing = planned.iter().all(|one| one.action == ApplyAction::Unchanged);
    Ok(if nothing { CliExit::Ok } else { CliExit::Changes })
}

/// Applies the objects of files for `rcfarm dev`.
pub(super) async fn apply_described(
    context: &CommandContext,
    files: &[String],
    described: DescribedObjects,
) -> anyhow::Result<()> {
    Wanted::of(context, files, described).await?.apply(context, &mut Vec::new()).await
}

/// The objects of files, checked.
struct Wanted {
    /// At most one.
    cells: Vec<WantedCells>,
    classes: WantedClasses,
    types: WantedTypes,
    queues: WantedQueues,
    controllers: Vec<WantedRc>,
    documents: Vec<WantedDocument>,
    jobs: Vec<WantedJob>,
}

impl Wanted {
    /// Checks all objects of files. Nothing is changed yet.
    async fn of(
        context: &CommandContext,
        files: &[String],
        described: DescribedObjects,
    ) -> anyhow::Result<Wanted> {
        described.check_not_empty(files)?;
        let files = files.join(", ");
        let mut problems = Vec::new();
        let cells = WantedCells::read(context, described.cells, &mut problems).await?;
        let classes = WantedClasses::read(context, described.classes, &mut problems).await?;
        let types = WantedTypes::read(context, described.types, &mut problems).await?;
        let queues = WantedQueues::read(context, described.queues, &mut problems).await?;
        let controllers = WantedRc::read_all(context, described.controllers).await?;
        let after = queues.after(classes.after());
        let mut documents = described.documents;
        documents
            .sort_by_key(|one| DOCUMENT_KINDS.iter().position(|kind| kind.kind == one.kind.kind));
        let documents = WantedDocument::read_all(context, documents, &after, &mut problems).await?;
        let model = cells.first().map(WantedCells::model);
        let jobs =
            WantedJob::read_all(context, described.jobs, (&after, model, &types), &mut problems);
        let jobs = jobs.await?;
        check_sizes(context, &cells, &mut problems);
        check_sizes(context, &classes.all, &mut problems);
        check_sizes(context, &types.all, &mut problems);
        check_sizes(context, &queues.all, &mut problems);
        check_sizes(context, &controllers, &mut problems);
        check_sizes(context, &documents, &mut problems);
        check_sizes(context, &jobs, &mut problems);
        if !problems.is_empty() {
            let why = format!("{files} cannot be applied:\n  {}", problems.join("\n  "));
            return Err(failure(why, "correct the fields named; nothing was changed"));
        }
        Ok(Wanted { cells, classes, types, queues, controllers, documents, jobs })
    }

    /// Applies the objects until one fails. `applied`: those that were applied.
    async fn apply(
        &self,
        context: &CommandContext,
        applied: &mut Vec<AppliedObject>,
    ) -> anyhow::Result<()> {
        apply_all(context, &self.cells, applied).await?;
        apply_all(context, &self.classes.all, applied).await?;
        apply_all(context, &self.types.all, applied).await?;
        apply_all(context, &self.queues.all, applied).await?;
        apply_all(context, &self.controllers, applied).await?;
        apply_all(context, &self.documents, applied).await?;
        apply_all(context, &self.jobs, applied).await
    }

    fn plan(&self) -> Vec<PlannedObject> {
        let cells = self.cells.iter().map(WantedObject::planned);
        let classes = self.classes.all.iter().map(WantedObject::planned);
        let types = self.types.all.iter().map(WantedObject::planned);
        let queues = self.queues.all.iter().map(WantedObject::planned);
        let controllers = self.controllers.iter().map(WantedObject::planned);
        let documents = self.documents.iter().map(WantedObject::planned);
        let jobs = self.jobs.iter().map(WantedObject::planned);
        let first = cells.chain(classes).chain(types).chain(queues);
        first.chain(controllers).chain(documents).chain(jobs).collect()
    }
}

/// The objects of files, by kind.
#[derive(Default)]
pub(super) struct DescribedObjects {
    cells: Vec<DescribedCells>,
    classes: Vec<DescribedClass>,
    types: Vec<DescribedType>,
    queues: Vec<DescribedQueue>,
    controllers: Vec<DescribedRc>,
    pub(super) documents: Vec<DescribedDocument>,
    pub(super) jobs: Vec<DescribedJob>,
}

impl DescribedObjects {
    /// Configurations of cells, and nothing else.
    pub(super) fn of_cells(cells: Vec<DescribedCells>) -> DescribedObjects {
        DescribedObjects { cells, ..DescribedObjects::default() }
    }

    /// `files`: where they are from. No files are no error.
    pub(super) fn check_not_empty(&self, files: &[String]) -> anyhow::Result<()> {
        let is_empty =
            self.queues.is_empty() && self.controllers.is_empty() && self.documents.is_empty();
        let is_empty = is_empty && self.classes.is_empty() && self.cells.is_empty();
        let is_empty = is_empty && self.types.is_empty();
        if files.is_empty() || !(is_empty && self.jobs.is_empty()) {
            return Ok(());
        }
        let hint = "write a job, a queue or a replication controller into it";
        Err(failure(format!("{} has no documents", files.join(", ")), hint))
    }

    /// Adds the objects of a document at `at`.
    fn add(&mut self, at: &str, document: Value, within: &Namespace) -> anyhow::Result<()> {
        if document.get("kind").is_none() && cells::is_described(&document) {
            self.cells.push(DescribedCells::new(at, &document, None)?);
            return Ok(());
        }
        if document.get("replication_controllers").is_some() {
            self.controllers.extend(DescribedRc::list(at, document)?);
            return Ok(());
        }
        if document.is_array() {
            let why = "it is a list of objects; write them one after the other, divided by ---";
            return Err(wrong(at, why.to_owned()));
        }
        match document.get("kind").and_then(Value::as_str) {
            Some("PriorityClass") => self.classes.push(DescribedClass::new(at, &document)?),
            Some(job_type::KIND) => self.types.push(DescribedType::new(at, &document)?),
            Some("List") => {
                let items = document.get("items").and_then(Value::as_array);
                for (n, item) in items.into_iter().flatten().enumerate() {
                    self.add(&format!("{at}, items[{n}]"), item.clone(), within)?;
                }
            }
            Some("Queue") => self.queues.push(DescribedQueue::new(at, document)?),
            None if document.get("id").is_some() && document.get("launchables").is_some() => {
                let hint = "rcfarm rc create -f FILE --node-selector SELECTOR; or put it below manifest: of an entry \
                    of replication_controllers:, as in examples/web.yaml";
                return Err(failure(format!("{at} is the manifest of a pod"), hint));
            }
            kind => match DOCUMENT_KINDS.into_iter().find(|one| kind == Some(one.kind)) {
                Some(kind) => {
                    self.documents.push(DescribedDocument::new(at, kind, document, within)?);
                }
                None => self.jobs.push(DescribedJob::new(at, document, within)?),
            },
        }
        Ok(())
    }
}

/// The objects of files and directories. `within`: namespace of jobs that name none.
pub(super) fn described(files: &[String], within: &Namespace) -> anyhow::Result<DescribedObjects> {
    let mut described = DescribedObjects::default();
    for (file, text) in contents(files)? {
        let documents = document::all_from_yaml(&text).map_err(|why| wrong(&file, why))?;
        if let [one] = &documents[..]
            && one.get("kind").is_none()
            && cells::is_described(one)
        {
            described.cells.push(DescribedCells::new(&file, one, Some(&text))?);
            continue;
        }
        for (n, document) in documents.into_iter().enumerate() {
            described.add(&format!("{file} (document {})", n + 1), document, within)?;
        }
    }
    Ok(described)
}

#[cfg(test)]
mod tests {
    use rcfarm_api::audit::{
        Actor, AuditCause, AuditRecord, Details, LONGEST_REPEATED, PriorityClassChange, QueueChange,
    };
    use rcfarm_api::{Index, Timestamp};
    use rcfarm_store::audit_op;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    /// The record repeats what was there and what is there now.
    #[test]
    fn largest_audit_record_of_a_queue_or_class_fits_beside_it() {
        let name = "q".repeat(200);
        let actor = Actor::user(&"\u{1}".repeat(10_000));
        // Quotes count twice in JSON.
        let longest = Some(json!({"a": "\"".repeat((LONGEST_REPEATED - 8) / 2)}));
        assert_eq!(longest.as_ref().unwrap().to_string().len(), LONGEST_REPEATED);
        let reason = "Requested".to_owned();
        for value in [longest, Some(json!({"a": "x".repeat(400_000)}))] {
            let queue = QueueChange {
                queue: name.parse().unwrap(),
                actor: actor.clone(),
                reason: reason.clone(),
                farm: Some(name.parse().unwrap()),
                before: value.clone(),
                after: value.clone(),
            };
            let class = PriorityClassChange {
                priority_class: name.parse().unwrap(),
                actor: actor.clone(),
                reason: reason.clone(),
                before: value.clone(),
                after: value,
            };
            let all = [Details::QueueChanged(queue), Details::PriorityClassChanged(class)];
            for details in all {
                let record = AuditRecord::new(&details, Timestamp::MAX)
                    .caused_by(AuditCause::external(Some(Index(u64::MAX))));
                let bytes = audit_op(Uuid::max(), &record).body_bytes();
                assert!(bytes <= AUDIT_BYTES, "{:?}: {bytes}", record.event_type);
            }
        }
    }
}
