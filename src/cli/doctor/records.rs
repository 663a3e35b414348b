//! Whether what stands in the store can be worked on.

use std::collections::BTreeSet;

use super::{Check, Verdict, failed};
use crate::cli::context::CommandContext;
use crate::cli::rc::{allocations, find};
use crate::job::document;
use rcfarm_api::Stored;
use rcfarm_api::command::{Command, Target};
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::queue::spec::QueueRecord;
use rcfarm_store::{Entry, Prefix, Query, StoreError};

pub(super) async fn check(context: &CommandContext, checks: &mut Vec<Check>) {
    checks.push(controllers(context).await);
    match batch(context).await {
        Ok(more) => checks.extend(more),
        Err(error) => checks.push(failed("jobs", &error)),
    }
    checks.push(allocations(context).await);
}

/// What is wrong with the entries of a tree, a line each.
struct Looked {
    count: usize,
    faults: Vec<String>,
}

impl Looked {
    fn at(entries: &[Entry], fault: impl Fn(&Entry) -> Result<(), String>) -> Looked {
        let told = |entry: &Entry| Some(format!("{}: {}", entry.key, fault(entry).err()?));
        Looked { count: entries.len(), faults: entries.iter().filter_map(told).collect() }
    }

    fn check(self, what: &str, remedy: &str) -> Check {
        match self.faults.first() {
            None => Check::ok(what, format!("{}, all readable", self.count)),
            Some(first) => Check::bad(
                Verdict::Warn,
                what,
                format!("{} cannot be worked on, such as {first}", self.faults.len()),
                remedy,
            ),
        }
    }
}

async fn controllers(context: &CommandContext) -> Check {
    let (records, strange) = match find::all(context).await {
        Ok(all) => all,
        Err(error) => {
            let remedy = "try again; if it stays, ask Consul's log";
            return Check::bad(Verdict::Fail, "controllers", error.to_string(), remedy);
        }
    };
    let bad =
        records.iter().filter_map(|found| Some(format!("{}: {}", found.id, found.spec().err()?)));
    let count = records.len();
    let faults = bad.chain(strange.into_iter().map(|key| format!("{key}: its name is no UUID")));
    Looked { count, faults: faults.collect() }.check(
        "controllers",
        "mend or delete them; a p2 farm on the same tree stops at them altogether",
    )
}

/// Jobs, the groups and queues that they wait in, and what was asked of them.
async fn batch(context: &CommandContext) -> Result<[Check; 4], StoreError> {
    let jobs = entries(context, key::jobs()).await?;
    let groups = entries(context, key::pod_groups()).await?;
    let queues = entries(context, key::queues()).await?;
    let commands = entries(context, key::commands()).await?;
    let known = KnownRecords {
        jobs: jobs.iter().filter_map(|e| key::namespaced(&key::jobs(), &e.key)).collect(),
        queues: queues.iter().filter_map(|e| key::queues().tail(&e.key)?.parse().ok()).collect(),
    };
    Ok([
        Looked::at(&jobs, job).check("jobs", "mend them: rcfarm apply -f; or: rcfarm job delete"),
        Looked::at(&groups, group).check("pod groups", "mend or delete them: consul kv"),
        Looked::at(&queues, queue).check("queues", "mend them: rcfarm queue --help"),
        Looked::at(&commands, |entry| known.command(entry)).check(
            "commands",
            "nobody will carry them out: consul kv delete KEY, then ask again by rcfarm job or rcfarm queue",
        ),
    ])
}

async fn entries(context: &CommandContext, tree: Prefix) -> Result<Vec<Entry>, StoreError> {
    let mut entries = context.store.list(&tree, Query::PLAIN).await?.value;
    entries.retain(|entry| !tree.is_sentinel(&entry.key));
    Ok(entries)
}

fn job(entry: &Entry) -> Result<(), String> {
    let id = key::namespaced(&key::jobs(), &entry.key)
        .ok_or("its name is not NAMESPACE/NAME in lower case")?;
    let problems = document::decode(&id, &entry.value).err().unwrap_or_default();
    problems.first().map_or(Ok(()), |problem| Err(problem.to_string()))
}

fn group(entry: &Entry) -> Result<(), String> {
    key::namespaced(&key::pod_groups(), &entry.key)
        .ok_or("its name is not NAMESPACE/NAME in lower case")?;
    PodGroupRecord::decode(&entry.value).map(drop).map_err(|bad| bad.to_string())
}

fn queue(entry: &Entry) -> Result<(), String> {
    let name = key::queues().tail(&entry.key).unwrap_or_default();
    name.parse::<QueueName>().map_err(|error| error.to_string())?;
    QueueRecord::decode(&entry.value).map(drop).map_err(|bad| bad.to_string())
}

/// What commands may be for.
struct KnownRecords {
    jobs: BTreeSet<Namespaced>,
    queues: BTreeSet<QueueName>,
}

impl KnownRecords {
    fn command(&self, entry: &Entry) -> Result<(), String> {
        let name = key::commands().tail(&entry.key).unwrap_or_default();
        uuid::Uuid::parse_str(name).map_err(|_| "its name is no UUID")?;
        match Command::decode(&entry.value).map_err(|error| error.to_string())?.target {
            Target::Job { job, .. } if !self.jobs.contains(&job) => {
                Err(format!("there is no job {job}"))
            }
            Target::Queue { queue } if !self.queues.contains(&queue) => {
                Err(format!("there is no queue {queue}"))
            }
            _ => Ok(()),
        }
    }
}

/// What nodes have allocated: each to a pod that is there, and no more than they have.
async fn allocations(context: &CommandContext) -> Check {
    let allocations = match allocations::allocations(context).await {
        Ok(allocations) => allocations,
        Err(error) => return failed("promises", &error),
    };
    let (pods, nodes) = allocations.count();
    if let Some(fault) = allocations.faults().first() {
        return Check::bad(
            Verdict::Warn,
            "promises",
            fault,
            "a capacity was lowered, or a record edited by hand: move pods away (rcfarm node drain), or mend it",
        );
    }
    match allocations.orphaned_allocations.first() {
        None => Check::ok("promises", format!("resources for {pods} pods on {nodes} nodes")),
        Some(orphaned) => Check::bad(
            Verdict::Warn,
            "promises",
            format!(
                "{}, such as: {}",
                orphaned_summary(allocations.orphaned_allocations.len()),
                allocations::words(orphaned)
            ),
            "free them: rcfarm rc orphans --remove (a farm does so when it needs the room)",
        ),
    }
}

fn orphaned_summary(count: usize) -> String {
    if count == 1 { "1 has no pod".to_owned() } else { format!("{count} have no pods") }
}
