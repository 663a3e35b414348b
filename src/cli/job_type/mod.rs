//! `rcfarm job type …`: kinds of jobs that records describe. `rcfarm apply -f` creates and changes them.
//!
//! Keys read: the records, and for `delete` the jobs. Key written: a record, by CAS, in one transaction with its audit
//! record. Only commands and operators write it.

pub(in crate::cli) mod apply;
mod delete;
mod show;

use std::collections::BTreeMap;

use serde_json::Value;

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use crate::job::document::described;
use rcfarm_api::audit::{Details, JobTypeChange};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::job_type::{JobTypeRecord, JobTypes};
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::Entry;

/// Kinds of jobs that records describe; rcfarm apply -f creates and changes them
#[derive(clap::Subcommand)]
pub enum JobTypeCommand {
    /// List all job types
    #[command(visible_alias = "ls")]
    List,
    /// Show a job type
    Get(JobTypeArgs),
    /// Delete a job type; its jobs go on, since each has a copy
    #[command(visible_alias = "rm")]
    Delete(JobTypeArgs),
}

#[derive(clap::Args)]
pub struct JobTypeArgs {
    /// The kind of its jobs, as in PaddleJob
    #[arg(value_name = "KIND")]
    kind: ObjectName,
}

pub(super) async fn run(
    context: &CommandContext,
    command: JobTypeCommand,
) -> anyhow::Result<CliExit> {
    match command {
        JobTypeCommand::List => show::list(context).await,
        JobTypeCommand::Get(args) => show::get(context, &args.kind).await,
        JobTypeCommand::Delete(args) => delete::delete(context, &args.kind).await,
    }
}

/// The stored job types, by kind.
#[derive(Default)]
pub(super) struct StoredTypes {
    entries: BTreeMap<ObjectName, Entry>,
}

impl StoredTypes {
    pub(super) async fn read(context: &CommandContext) -> anyhow::Result<StoredTypes> {
        let mut entries = BTreeMap::new();
        let prefix = key::job_types();
        for entry in context.list(&prefix).await? {
            match prefix.tail(&entry.key).map(str::parse::<ObjectName>) {
                _ if prefix.is_sentinel(&entry.key) => {}
                Some(Ok(name)) => drop(entries.insert(name, entry)),
                _ => context.note(format!("{} names no job type", entry.key)),
            }
        }
        Ok(StoredTypes { entries })
    }

    fn record(&self, name: &ObjectName) -> Option<Result<JobTypeRecord, FieldError>> {
        Some(JobTypeRecord::decode(&self.entries.get(name)?.value))
    }

    /// Those that can be decoded.
    fn types(&self) -> JobTypes {
        let decoded = |(name, entry): (&ObjectName, &Entry)| {
            Some((name.clone(), JobTypeRecord::decode(&entry.value).ok()?))
        };
        JobTypes(self.entries.iter().filter_map(decoded).collect())
    }

    /// A stored record.
    ///
    /// # Errors
    /// There is none.
    fn entry(&self, name: &ObjectName) -> anyhow::Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let hint = "see which there are: rcfarm job type list";
            failure(format!("there is no job type {name}"), hint)
        })
    }
}

/// Puts the type of its kind into the document of a new job, if it needs it. Reads the records only then.
pub(super) async fn put_copy(
    context: &CommandContext,
    document: &mut Value,
) -> anyhow::Result<Result<(), FieldError>> {
    if described::kind_without_copy(document).is_none() {
        return Ok(Ok(()));
    }
    let types = StoredTypes::read(context).await?.types();
    Ok(described::put_copy(document, &types))
}

fn details(
    context: &CommandContext,
    name: &ObjectName,
    before: Option<&Entry>,
    after: Option<&JobTypeRecord>,
) -> Details {
    Details::JobTypeChanged(JobTypeChange {
        job_type: name.clone(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        before: before.and_then(|entry| serde_json::from_slice(&entry.value).ok()),
        after: after.and_then(|record| serde_json::to_value(record).ok()),
    })
}
