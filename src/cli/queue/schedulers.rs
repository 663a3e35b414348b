//! `rcfarm queue scheduler …`: records of schedulers.
//!
//! Keys read: schedulers, their statuses, and queues. Key deleted: a scheduler's record, by CAS, in one transaction with its
//! audit record; never one that a queue names.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::kind::SCHEDULER;
use crate::cli::context::CommandContext;
use crate::cli::documents::{find, write};
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::or_dash;
use crate::cluster::queues::QueueIndex;
use rcfarm_api::ids::{DEFAULT_NAMESPACE, FarmName, Namespaced, ObjectName, QueueName};
use rcfarm_api::queue::spec::DEFAULT_SCHEDULER;
use rcfarm_api::scheduler::Packing;
use rcfarm_api::scheduler::spec::SchedulerRecord;
use rcfarm_api::scheduler::status::SchedulerStatus;
use rcfarm_api::{Stored, key};
use rcfarm_store::cache::read_once;

/// Schedulers: which nodes the groups of queues may use, and how they are packed; made by apply -f
#[derive(clap::Subcommand)]
pub enum SchedulerCommand {
    /// List all schedulers with the queues that name them
    #[command(visible_alias = "ls")]
    List,
    /// Show a scheduler's record and status
    Get(SchedulerArgs),
    /// Delete a scheduler that no queue names
    #[command(visible_alias = "rm")]
    Delete(SchedulerArgs),
}

#[derive(clap::Args)]
pub struct SchedulerArgs {
    /// The scheduler
    #[arg(value_name = "SCHEDULER")]
    scheduler: ObjectName,
}

pub(super) async fn run(
    context: &CommandContext,
    command: SchedulerCommand,
) -> anyhow::Result<CliExit> {
    match command {
        SchedulerCommand::List => list(context).await,
        SchedulerCommand::Get(args) => get(context, &args.scheduler).await,
        SchedulerCommand::Delete(args) => delete(context, &args.scheduler).await,
    }
}

#[derive(Serialize)]
struct Row {
    scheduler: ObjectName,
    farm: Option<FarmName>,
    packing: Option<Packing>,
    node_selector: Option<String>,
    queues: Vec<QueueName>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let prefix = key::schedulers();
    let queues = queues(context).await?;
    let mut rows = Vec::new();
    for entry in context.list(&prefix).await? {
        let Some(Ok(name)) = prefix.tail(&entry.key).map(str::parse::<ObjectName>) else {
            continue;
        };
        let record = SchedulerRecord::decode(&entry.value);
        let bad = match &record {
            Ok(record) => record.spec.check().into_iter().next(),
            Err(bad) => Some(bad.clone()),
        };
        let spec = record.ok().map(|record| record.spec);
        rows.push(Row {
            farm: status(context, &name).await?.and_then(|status| status.farm),
            packing: spec.as_ref().map(|spec| spec.packing),
            node_selector: spec.map(|spec| spec.node_selector).filter(|text| !text.is_empty()),
            queues: queues.get(&name).cloned().unwrap_or_default(),
            invalid: bad.map(|bad| bad.to_string()),
            scheduler: name,
        });
    }
    context.show_rows(
        &rows,
        "there are no schedulers; a farm makes the default one",
        &[
            ("SCHEDULER", &|row| row.scheduler.to_string()),
            ("OWNER", &|row| or_dash(row.farm.as_ref())),
            ("PACKING", &|row| or_dash(row.packing)),
            ("NODES", &|row| or_dash(row.node_selector.as_ref())),
            ("QUEUES", &|row| row.queues.len().to_string()),
            ("INVALID", &|row| or_dash(row.invalid.as_ref())),
        ],
    )
}

/// The queues of each scheduler. Those that cannot be decoded name none.
async fn queues(context: &CommandContext) -> anyhow::Result<BTreeMap<ObjectName, Vec<QueueName>>> {
    let queues: QueueIndex = read_once(context.store.as_ref(), &key::queues()).await?;
    let mut of: BTreeMap<ObjectName, Vec<QueueName>> = BTreeMap::new();
    for (name, queue) in &queues.0 {
        if let Ok(record) = &queue.value {
            of.entry(record.spec.scheduler.clone()).or_default().push(name.clone());
        }
    }
    Ok(of)
}

async fn status(
    context: &CommandContext,
    name: &ObjectName,
) -> anyhow::Result<Option<SchedulerStatus>> {
    let entry = context.get(&key::scheduler_status(name)).await?;
    Ok(entry.and_then(|entry| SchedulerStatus::decode(&entry.value).ok()))
}

fn id(name: &ObjectName) -> Namespaced {
    let namespace = DEFAULT_NAMESPACE.parse().expect("a legal name");
    Namespaced { namespace, name: name.clone() }
}

async fn get(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    let (_, stored) = find(context, &SCHEDULER, &id(name)).await?;
    let queues = queues(context).await?.remove(name).unwrap_or_default();
    let status = status(context, name).await?;
    let shown = json!({"scheduler": name, "record": stored, "status": status, "queues": queues});
    context.show(&shown, || format!("{shown:#}"))
}

async fn delete(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    if name.as_str() == DEFAULT_SCHEDULER {
        let why =
            format!("scheduler {name} is that of queues that name none; a farm makes it again");
        return Err(failure(why, "change it: rcfarm apply -f FILE"));
    }
    let (entry, _) = find(context, &SCHEDULER, &id(name)).await?;
    let queues = queues(context).await?.remove(name).unwrap_or_default();
    if let Some(first) = queues.first() {
        let why = format!("{} queues name scheduler {name}, as {first}", queues.len());
        let hint = format!("rcfarm queue update {first} --scheduler {DEFAULT_SCHEDULER}");
        return Err(failure(why, hint));
    }
    write(context, &SCHEDULER, &id(name), (Some(&entry), None), "Deleted").await?;
    let shown: Value = json!({"scheduler": name, "deleted": true});
    context.show(&shown, || format!("{name}: deleted"))
}
