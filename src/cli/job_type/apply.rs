//! Job types of `rcfarm apply -f` and `rcfarm plan -f`, and the copies of jobs in the same files.
//!
//! Key written: the record, by CAS, in one transaction with its audit record.

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{StoredTypes, details};
use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cli::wanted::{
    AppliedObject, ApplyAction, FieldDifference, PlannedObject, WantedObject, differences, wrong,
};
use crate::job::document::described;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::job_type::{FIELD, JobTypeRecord, JobTypes};
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::{Entry, Index, Op};

/// A job type of a file.
pub(in crate::cli) struct DescribedType {
    at: String,
    name: ObjectName,
    record: JobTypeRecord,
}

impl DescribedType {
    /// `at`: file and number of the document, for messages.
    pub(in crate::cli) fn new(at: &str, document: &Value) -> anyhow::Result<DescribedType> {
        let name = document.pointer("/metadata/name").and_then(Value::as_str);
        let name =
            name.ok_or_else(|| wrong(at, "metadata.name: the job type has no name".to_owned()))?;
        let name = name.parse().map_err(|why| wrong(at, format!("metadata.name: {why}")))?;
        let record = JobTypeRecord::decode(document.to_string().as_bytes()).map_err(|bad| {
            failure(format!("{at}: field {}: {}", bad.path, bad.problem), bad.fix)
        })?;
        Ok(DescribedType { at: at.to_owned(), name, record })
    }
}

/// Job types of files, checked.
#[derive(Default)]
pub(in crate::cli) struct WantedTypes {
    /// The stored ones, once a job has needed them.
    known: OnceCell<JobTypes>,
    pub(in crate::cli) all: Vec<WantedType>,
}

/// A job type of a file, and the stored one of its name.
pub(in crate::cli) struct WantedType {
    name: ObjectName,
    record: JobTypeRecord,
    stored: Option<Entry>,
}

impl WantedTypes {
    /// Reads and checks job types; adds to `found` what is wrong with them.
    pub(in crate::cli) async fn read(
        context: &CommandContext,
        described: Vec<DescribedType>,
        found: &mut Vec<String>,
    ) -> anyhow::Result<WantedTypes> {
        let mut all: Vec<WantedType> = Vec::new();
        for DescribedType { at, name, record } in described {
            if all.iter().any(|other| other.name == name) {
                return Err(wrong(&at, format!("job type {name} is there twice")));
            }
            let mut bad = record.check(&name);
            for field in record.unknown() {
                bad.push(FieldError::new(field, "there is no such field", "leave it out"));
            }
            found.extend(bad.iter().map(|issue| format!("job type {name}: {issue}")));
            let stored = context.get(&key::job_type(&name)).await?;
            all.push(WantedType { name, record, stored });
        }
        Ok(WantedTypes { all, ..WantedTypes::default() })
    }

    /// Puts the type of its kind into a job's document, if it needs it: that of the stored job of its name, so that a job
    /// keeps its type; otherwise that of the files, or the stored record.
    pub(in crate::cli) async fn put_copy(
        &self,
        context: &CommandContext,
        document: &mut Value,
        stored: Option<&Entry>,
    ) -> anyhow::Result<Result<(), FieldError>> {
        let Some(kind) = described::kind_without_copy(document) else { return Ok(Ok(())) };
        let before: Value =
            stored.and_then(|entry| serde_json::from_slice(&entry.value).ok()).unwrap_or_default();
        let kept = described::copy(&before).filter(|_| before["kind"] == kind);
        if let Some(kept) = kept {
            document["spec"][FIELD] = kept.clone();
            return Ok(Ok(()));
        }
        let read = async || {
            let mut types = StoredTypes::read(context).await?.types();
            types.0.extend(self.all.iter().map(|one| (one.name.clone(), one.record.clone())));
            anyhow::Ok(types)
        };
        Ok(described::put_copy(document, self.known.get_or_try_init(read).await?))
    }
}

impl WantedType {
    fn differences(&self) -> Vec<FieldDifference> {
        let Some(entry) = &self.stored else { return Vec::new() };
        let before = serde_json::from_slice(&entry.value).unwrap_or_default();
        differences(&before, &serde_json::to_value(&self.record).unwrap_or_default())
    }

    fn is_same(&self, entry: &Entry) -> bool {
        JobTypeRecord::decode(&entry.value).is_ok_and(|stored| stored == self.record)
    }
}

impl WantedObject for WantedType {
    fn action(&self) -> ApplyAction {
        match &self.stored {
            None => ApplyAction::Created,
            Some(stored) if self.is_same(stored) => ApplyAction::Unchanged,
            Some(_) => ApplyAction::Changed,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let why = "jobs that are there keep the type that they have; new ones get this one";
        let is_changed = self.action() == ApplyAction::Changed;
        is_changed.then(|| format!("job type {}: {why}", self.name)).into_iter().collect()
    }

    fn bytes(&self) -> usize {
        self.record.encode().len()
    }

    async fn write(&self, context: &CommandContext) -> anyhow::Result<()> {
        let (name, stored) = (&self.name, self.stored.as_ref());
        let (index, flags) =
            stored.map_or((Index::ZERO, 0), |entry| (entry.modify_index, entry.flags));
        let (key, value) = (key::job_type(name), self.record.encode());
        let details = details(context, name, stored, Some(&self.record));
        let op = Op::Cas { key, value, flags, index };
        context.commit([op], &details, None).await?.map_err(|_| {
            let why =
                format!("job type {name}: somebody changed it meanwhile; it was left as it is");
            failure(why, "look at it, then try again")
        })?;
        Ok(())
    }

    fn applied(&self) -> AppliedObject {
        let action = self.action();
        let shown = json!({"job_type": self.name, "kind": "JobType", "change": action,
            "warnings": self.warnings()});
        AppliedObject::new(format!("job type {}", self.name), action, shown)
    }

    fn planned(&self) -> PlannedObject {
        let (action, fields) = (self.action(), self.differences());
        let shown = json!({"job_type": self.name, "kind": "JobType", "change": action,
            "fields": fields});
        PlannedObject::new(&format!("job type {}", self.name), action, &fields, shown)
    }
}
