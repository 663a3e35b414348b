//! `rcfarm priority-class …`: named priorities of groups, as Kubernetes' PriorityClass.
//!
//! Keys read: priority classes, and for `delete` the groups that wait. Key written: the class's record, by CAS, in one
//! transaction with its audit record. Only commands and operators write it.

pub(in crate::cli) mod apply;
mod change;
mod show;

use std::collections::BTreeMap;

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::{PriorityClassRecord, PriorityClasses};
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::Entry;

/// Priority classes: named priorities of jobs
#[derive(clap::Subcommand)]
pub enum PriorityClassCommand {
    /// Create a priority class
    Create(change::ClassCreateArgs),
    /// List all priority classes, built-in ones included
    #[command(visible_alias = "ls")]
    List,
    /// Show a priority class
    Get(ClassArgs),
    /// Delete a priority class; jobs that wait and name it wait until there is one again
    #[command(visible_alias = "rm")]
    Delete(ClassArgs),
}

#[derive(clap::Args)]
pub struct ClassArgs {
    /// The priority class
    #[arg(value_name = "CLASS")]
    class: ObjectName,
}

pub(super) async fn run(
    context: &CommandContext,
    command: PriorityClassCommand,
) -> anyhow::Result<CliExit> {
    match command {
        PriorityClassCommand::Create(args) => change::create(context, args).await,
        PriorityClassCommand::List => show::list(context).await,
        PriorityClassCommand::Get(args) => show::get(context, &args.class).await,
        PriorityClassCommand::Delete(args) => change::delete(context, &args.class).await,
    }
}

/// Stored classes.
pub(super) struct StoredClasses {
    entries: BTreeMap<ObjectName, Entry>,
}

impl StoredClasses {
    pub(super) async fn read(context: &CommandContext) -> anyhow::Result<StoredClasses> {
        let mut entries = BTreeMap::new();
        let prefix = key::priority_classes();
        for entry in context.list(&prefix).await? {
            match prefix.tail(&entry.key).map(str::parse::<ObjectName>) {
                _ if prefix.is_sentinel(&entry.key) => {}
                Some(Ok(name)) => drop(entries.insert(name, entry)),
                _ => context.note(format!("{} names no priority class", entry.key)),
            }
        }
        Ok(StoredClasses { entries })
    }

    fn record(&self, name: &ObjectName) -> Option<Result<PriorityClassRecord, FieldError>> {
        Some(PriorityClassRecord::decode(&self.entries.get(name)?.value))
    }

    /// Those that can be decoded.
    fn records(&self) -> BTreeMap<ObjectName, PriorityClassRecord> {
        let decoded = |(name, entry): (&ObjectName, &Entry)| {
            Some((name.clone(), PriorityClassRecord::decode(&entry.value).ok()?))
        };
        self.entries.iter().filter_map(decoded).collect()
    }

    /// A stored class.
    ///
    /// # Errors
    /// There is none.
    fn entry(&self, name: &ObjectName) -> anyhow::Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let hint = "see which there are: rcfarm priority-class list";
            failure(format!("there is no priority class {name}"), hint)
        })
    }
}

/// The valid classes, as a scheduler sees them.
pub(super) async fn classes(context: &CommandContext) -> anyhow::Result<PriorityClasses> {
    Ok(PriorityClasses::of(&StoredClasses::read(context).await?.records()))
}

/// What is wrong with a class among others. `others`: all that will be stored, by name; its own name is passed over.
fn problems(
    name: &ObjectName,
    record: &PriorityClassRecord,
    stored: Option<&PriorityClassRecord>,
    others: &BTreeMap<ObjectName, PriorityClassRecord>,
) -> Vec<FieldError> {
    let mut bad = record.check(name);
    for field in record.unknown() {
        bad.push(FieldError::new(field, "there is no such field", "leave it out"));
    }
    let fixed = |field: &str| {
        let fix = format!("delete it first: rcfarm priority-class delete {name}");
        FieldError::new(field, "it may not change, as in Kubernetes", fix)
    };
    if let Some(stored) = stored {
        if stored.value != record.value {
            bad.push(fixed("value"));
        }
        if stored.preemption_policy != record.preemption_policy {
            bad.push(fixed("preemptionPolicy"));
        }
    }
    let other = others.iter().find(|(other, record)| *other != name && record.global_default);
    if let Some((other, _)) = other.filter(|_| record.global_default) {
        let why = format!("{other} is the global default, and there is one at most");
        bad.push(FieldError::new("globalDefault", why, "leave it out, or change the other"));
    }
    bad
}
