//! Records that are the user's own document, as of a CronJob: `rcfarm apply -f`, `plan -f`, and reads and writes of
//! single ones.
//!
//! Keys read and written: the records, by CAS, each in one transaction with its audit record.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};

use super::context::CommandContext;
use super::failure::failure;
use super::job::apply::{as_stored, refusal};
use super::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use crate::batch::queues::Queues;
use crate::job::document::{FieldIssues, JobClass, JobQueue, name};
use rcfarm_api::FieldError;
use rcfarm_api::audit::{Details, LoggedRecord, RecordChange, record_hash};
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_store::{Entry, Index, Key, Op};

/// A kind of record that is the user's document.
pub(super) struct DocumentKind {
    /// `kind` of the document.
    pub(super) kind: &'static str,
    /// Whether its records have namespaces. The namespace of the others' names is `default`.
    pub(super) is_namespaced: bool,
    /// Its command: `rcfarm <noun> …`.
    pub(super) noun: &'static str,
    pub(super) key: fn(&Namespaced) -> Key,
    pub(super) check: fn(&Namespaced, &Value) -> Checked,
    /// Other documents that it names; `None`: there are none.
    pub(super) references: Option<References>,
    /// Which changes are refused; `None`: none.
    pub(super) changes: Option<ChangeRule>,
    /// Fields that others write into the record. They stay as they are stored, whatever the document has.
    pub(super) kept: &'static [&'static str],
}

impl DocumentKind {
    /// The name of a record of this kind, for people.
    pub(super) fn title(&self, id: &Namespaced) -> String {
        match self.is_namespaced {
            true => format!("{} {id}", self.kind),
            false => format!("{} {}", self.kind, id.name),
        }
    }

    /// Takes the fields that others write from the stored record.
    fn keep(&self, document: &mut Value, stored: Option<&Value>) {
        let Some(fields) = document.as_object_mut() else { return };
        for field in self.kept {
            fields.remove(*field);
            if let Some(value) = stored.and_then(|stored| stored.get(*field)) {
                fields.insert((*field).to_owned(), value.clone());
            }
        }
    }
}

/// Changes of a stored document that are refused, as by its owner farm.
pub(super) struct ChangeRule {
    /// The key that decides, as that of the status that the farm writes.
    pub(super) key: fn(&Namespaced) -> Key,
    /// What is wrong with a changed document, given the CreateIndex of the stored one and the value of that key.
    pub(super) check: fn(&Namespaced, &Value, Index, &[u8]) -> Option<FieldError>,
}

/// Other documents that a document names.
pub(super) struct References {
    pub(super) keys: fn(&Namespaced, &Value) -> Vec<Key>,
    /// What is said of a document, given those that are stored or in the files.
    pub(super) check: fn(&Namespaced, &Value, &ReferencedDocuments) -> FieldIssues,
}

/// Values by key. A document that is not there has none.
pub(super) type ReferencedDocuments = BTreeMap<Key, Bytes>;

/// What a valid document says.
pub(super) struct Accepted {
    /// Fields without an effect.
    pub(super) warnings: Vec<FieldError>,
    /// Queues of the jobs that will be made of it.
    pub(super) queues: Vec<JobQueue>,
    /// Priority classes of these jobs.
    pub(super) classes: Vec<JobClass>,
}

/// What a document says, or what is wrong.
pub(super) type Checked = Result<Accepted, Vec<FieldError>>;

/// A document of a file.
pub(super) struct DescribedDocument {
    at: String,
    pub(super) kind: &'static DocumentKind,
    pub(super) id: Namespaced,
    document: Value,
}

impl DescribedDocument {
    /// `at`: file and number of the document, for messages. `within`: its namespace, if it names none.
    pub(super) fn new(
        at: &str,
        kind: &'static DocumentKind,
        mut document: Value,
        within: &Namespace,
    ) -> anyhow::Result<DescribedDocument> {
        let namespace = document.pointer("/metadata/namespace");
        match kind.is_namespaced {
            true if namespace.is_none() && document["metadata"].is_object() => {
                document["metadata"]["namespace"] = json!(within);
            }
            false if namespace.is_some() => {
                let why = format!("a {} has no namespace; leave it out", kind.kind);
                return Err(wrong(at, format!("metadata.namespace: {why}")));
            }
            _ => {}
        }
        let id = name(&document).map_err(|issue| wrong(at, issue.to_string()))?;
        Ok(DescribedDocument { at: at.to_owned(), kind, id, document: as_stored(document) })
    }
}

/// A document, and the stored record of its name.
pub(super) struct WantedDocument {
    kind: &'static DocumentKind,
    id: Namespaced,
    document: Value,
    warnings: Vec<FieldError>,
    stored: Option<Entry>,
}

impl WantedDocument {
    /// Reads and checks documents; adds to `problems` what is wrong with them. `queues`: as they are once the files are
    /// applied.
    pub(super) async fn read_all(
        context: &CommandContext,
        described: Vec<DescribedDocument>,
        queues: &Queues,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Vec<WantedDocument>> {
        let mut all: Vec<WantedDocument> = Vec::new();
        for DescribedDocument { at, kind, id, mut document } in described {
            if all.iter().any(|other| other.kind.kind == kind.kind && other.id == id) {
                return Err(wrong(&at, format!("{} is there twice", kind.title(&id))));
            }
            match (kind.check)(&id, &document) {
                Ok(Accepted { warnings, queues: named, classes }) => {
                    let stored = context.get(&(kind.key)(&id)).await?;
                    let old: Option<Value> =
                        stored.as_ref().and_then(|e| serde_json::from_slice(&e.value).ok());
                    kind.keep(&mut document, old.as_ref());
                    let one = WantedDocument { kind, id, document, warnings, stored };
                    let old = old.unwrap_or_default();
                    if old.pointer("/metadata/deletionTimestamp").is_some() {
                        let why = "it is being deleted; wait until it is gone";
                        problems.push(format!("{}: {why}", one.title()));
                    }
                    if one.action() != ApplyAction::Unchanged {
                        problems.extend(
                            named.iter().filter_map(|queue| one.without_queue(queue, queues)),
                        );
                        problems.extend(
                            classes.iter().filter_map(|class| one.without_class(class, queues)),
                        );
                    }
                    all.push(one);
                }
                Err(found) => {
                    let found = found.iter().map(|issue| format!("{}: {issue}", kind.title(&id)));
                    problems.extend(found);
                }
            }
        }
        for at in 0..all.len() {
            let found = all[at].check_references(context, &all).await?;
            let title = all[at].title();
            problems.extend(found.problems.iter().map(|issue| format!("{title}: {issue}")));
            all[at].warnings.extend(found.warnings);
            let refused = all[at].check_change(context).await?;
            problems.extend(refused.map(|issue| format!("{title}: {issue}")));
        }
        Ok(all)
    }

    /// Checks it together with the documents that it names: those of the files count before stored ones.
    async fn check_references(
        &self,
        context: &CommandContext,
        all: &[WantedDocument],
    ) -> anyhow::Result<FieldIssues> {
        let Some(references) = &self.kind.references else { return Ok(FieldIssues::default()) };
        let wanted: BTreeMap<Key, &WantedDocument> =
            all.iter().map(|one| ((one.kind.key)(&one.id), one)).collect();
        let mut found = ReferencedDocuments::new();
        for key in (references.keys)(&self.id, &self.document) {
            if found.contains_key(&key) {
                continue;
            }
            let value = match wanted.get(&key) {
                Some(one) => Some(one.document.to_string().into()),
                None => context.get(&key).await?.map(|entry| entry.value),
            };
            found.extend(value.map(|value| (key, value)));
        }
        Ok((references.check)(&self.id, &self.document, &found))
    }

    /// Why its farm would not follow the change. A farm that acts meanwhile refuses it in the status.
    async fn check_change(&self, context: &CommandContext) -> anyhow::Result<Option<FieldError>> {
        let (Some(rule), Some(stored)) = (&self.kind.changes, &self.stored) else {
            return Ok(None);
        };
        if self.action() == ApplyAction::Unchanged {
            return Ok(None);
        }
        let Some(status) = context.get(&(rule.key)(&self.id)).await? else { return Ok(None) };
        Ok((rule.check)(&self.id, &self.document, stored.create_index, &status.value))
    }

    fn title(&self) -> String {
        self.kind.title(&self.id)
    }

    /// Why its jobs could never run. A queue that is closed now may be open when they are made.
    fn without_queue(&self, queue: &JobQueue, queues: &Queues) -> Option<String> {
        let (reason, why) = refusal(queues, &queue.name)?;
        let is_missing = reason == PodGroupReason::QueueMissing;
        is_missing.then(|| format!("{}: {}: {why}", self.title(), queue.field))
    }

    fn without_class(&self, class: &JobClass, queues: &Queues) -> Option<String> {
        let why = queues.1.missing(&class.name)?;
        Some(format!("{}: {}: {why}", self.title(), class.field))
    }

    fn stored_document(&self) -> Option<Value> {
        serde_json::from_slice(&self.stored.as_ref()?.value).ok()
    }

    fn differences(&self) -> Vec<FieldDifference> {
        let stored = self.stored_document();
        stored.map(|stored| differences(&stored, &self.document)).unwrap_or_default()
    }

    fn shown(&self) -> Value {
        let name = match self.kind.is_namespaced {
            true => json!(self.id),
            false => json!(self.id.name),
        };
        json!({"name": name, "kind": self.kind.kind, "change": self.action()})
    }
}

impl WantedObject for WantedDocument {
    fn action(&self) -> ApplyAction {
        match &self.stored {
            None => ApplyAction::Created,
            Some(_) if self.stored_document().as_ref() == Some(&self.document) => {
                ApplyAction::Unchanged
            }
            Some(_) => ApplyAction::Changed,
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.iter().map(|warning| format!("{}: {warning}", self.title())).collect()
    }

    fn bytes(&self) -> usize {
        self.document.to_string().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let action = format!("{:?}", self.action());
        let stored = self.stored.as_ref();
        write(context, self.kind, &self.id, (stored, Some(&self.document)), &action).await
    }

    fn applied(&self) -> AppliedObject {
        let mut shown = self.shown();
        shown["warnings"] = json!(self.warnings);
        AppliedObject::new(self.title(), self.action(), shown)
    }

    fn planned(&self) -> PlannedObject {
        let fields = self.differences();
        let mut shown = self.shown();
        shown["fields"] = json!(fields);
        PlannedObject::new(&self.title(), self.action(), &fields, shown)
    }
}

/// Replaces a record by CAS, or deletes it, with its audit record.
pub(super) async fn write(
    context: &CommandContext,
    kind: &DocumentKind,
    id: &Namespaced,
    (stored, document): (Option<&Entry>, Option<&Value>),
    action: &str,
) -> anyhow::Result<()> {
    let index = stored.map_or(Index::ZERO, |entry| entry.modify_index);
    let key = (kind.key)(id);
    let value: Option<bytes::Bytes> = document.map(|document| document.to_string().into());
    let hash = |value: &Bytes| match LoggedRecord::of_document(kind.kind, id.clone()) {
        Some(record) => record.hash(value),
        None => Some(record_hash(value)),
    };
    let change = RecordChange {
        kind: kind.kind.to_owned(),
        record: id.clone(),
        actor: context.actor(),
        action: action.to_owned(),
        hash: value.as_ref().and_then(hash),
    };
    let op = match value {
        Some(value) => Op::Cas { key, value, flags: stored.map_or(0, |entry| entry.flags), index },
        None => Op::DeleteCas { key, index },
    };
    context.commit([op], &Details::RecordChanged(change), None).await?.map_err(|_| {
        let why =
            format!("{}: somebody changed it meanwhile; it was left as it is", kind.title(id));
        failure(why, "look at it, then try again")
    })?;
    Ok(())
}

/// A stored record. It must exist.
pub(super) async fn find(
    context: &CommandContext,
    kind: &DocumentKind,
    id: &Namespaced,
) -> anyhow::Result<(Entry, Value)> {
    let Some(entry) = context.get(&(kind.key)(id)).await? else {
        let hint = format!("see which there are: rcfarm {} list", kind.noun);
        return Err(failure(format!("there is no {}", kind.title(id)), hint));
    };
    let document = serde_json::from_slice(&entry.value).unwrap_or_default();
    Ok((entry, document))
}
