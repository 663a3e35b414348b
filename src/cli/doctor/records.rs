//! Checks of the records in the store, as declared by the kinds.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::{Check, Verdict, failed};
use crate::cli::context::CommandContext;
use crate::cli::rc::allocations;
use crate::daemon::kind_specs;
use rcfarm_api::command::{Command, Target};
use rcfarm_api::cron::CronStatus;
use rcfarm_api::flow::FlowStatus;
use rcfarm_api::ids::{Namespaced, QueueName};
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::manifest::{Manifest, check_for_p2};
use rcfarm_api::rc::spec::RcRecord;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_api::scheduler::status::SchedulerStatus;
use rcfarm_api::{Stored, Timestamp, key};
use rcfarm_store::{Entry, Prefix, StoreError};

pub(super) async fn check(context: &CommandContext, checks: &mut Vec<Check>) {
    for check in kind_specs().into_iter().flat_map(|spec| spec.checks) {
        let fault = |entry: &Entry| {
            let tail = check.prefix.tail(&entry.key).unwrap_or_default();
            (check.check)(tail, &entry.value)
        };
        checks.push(match entries(context, check.prefix.clone()).await {
            Ok(entries) => summary(check.title, &entries, fault, check.remedy),
            Err(error) => failed(check.title, &error),
        });
    }
    checks.push(match quarantined(context).await {
        Ok(check) => check,
        Err(error) => failed("quarantine", &error),
    });
    checks.push(match readable_by_p2(context).await {
        Ok(check) => check,
        Err(error) => failed("manifests", &error),
    });
    checks.push(match commands(context).await {
        Ok(check) => check,
        Err(error) => failed("commands", &error),
    });
    checks.push(allocations(context).await);
}

/// Checks all entries below a prefix; names the first invalid one.
fn summary<E: Display>(
    title: &str,
    entries: &[Entry],
    fault: impl Fn(&Entry) -> Result<(), E>,
    remedy: &str,
) -> Check {
    let describe = |entry: &Entry| Some(format!("{}: {}", entry.key, fault(entry).err()?));
    let faults: Vec<String> = entries.iter().filter_map(describe).collect();
    match faults.first() {
        None => Check::ok(title, format!("{}, all readable", entries.len())),
        Some(first) => Check::bad(
            Verdict::Warn,
            title,
            format!("{} cannot be worked on, such as {first}", faults.len()),
            remedy,
        ),
    }
}

async fn entries(context: &CommandContext, prefix: Prefix) -> Result<Vec<Entry>, StoreError> {
    let mut entries = context.list(&prefix).await?;
    entries.retain(|entry| !prefix.is_sentinel(&entry.key));
    Ok(entries)
}

/// Names the records that their owners leave alone for a while, because they kept failing.
async fn quarantined(context: &CommandContext) -> Result<Check, StoreError> {
    let now = context.now();
    let mut found = Vec::new();
    let mut take = |key: &str, until: Option<Timestamp>, why: Option<String>| {
        if let Some(until) = until.filter(|until| *until > now) {
            found.push(format!("{key} until {until:.0}: {}", why.unwrap_or_default()));
        }
    };
    for entry in entries(context, key::rc_statuses()).await? {
        let Ok(status) = RcStatus::decode(&entry.value) else { continue };
        take(&entry.key, status.quarantined_until, status.last_error);
    }
    for entry in entries(context, key::job_statuses()).await? {
        let Ok(status) = JobStatus::decode(&entry.value) else { continue };
        take(&entry.key, status.quarantined_until, status.last_error);
    }
    for entry in entries(context, key::cron_job_statuses()).await? {
        let Ok(status) = CronStatus::decode(&entry.value) else { continue };
        take(&entry.key, status.quarantined_until, status.last_error);
    }
    for entry in entries(context, key::job_flow_statuses()).await? {
        let Ok(status) = FlowStatus::decode(&entry.value) else { continue };
        take(&entry.key, status.quarantined_until, status.last_error);
    }
    for entry in entries(context, key::scheduler_statuses()).await? {
        let Ok(status) = SchedulerStatus::decode(&entry.value) else { continue };
        take(&entry.key, status.quarantined_until, status.last_error);
    }
    Ok(match found.is_empty() {
        true => Check::ok("quarantine", "no record is left alone"),
        false => Check::bad(
            Verdict::Warn,
            "quarantine",
            format!("{} kept failing and are left alone: {}", found.len(), found.join("; ")),
            "see to the cause; its owner tries again at that time",
        ),
    })
}

/// Whether p2's programs can read the manifests of all controllers: a p2 farm does not start beside one that it cannot.
async fn readable_by_p2(context: &CommandContext) -> Result<Check, StoreError> {
    let entries = entries(context, key::rcs()).await?;
    let fault = |entry: &Entry| {
        let record = RcRecord::decode(&entry.value).ok()?;
        let fields = Manifest::parse(&record.manifest).ok()?.fields().ok()?;
        Some(format!("{}: {}", entry.key, check_for_p2(&fields).err()?))
    };
    let faults: Vec<String> = entries.iter().filter_map(fault).collect();
    Ok(match faults.first() {
        None => Check::ok("manifests", "p2's programs can read all of them"),
        Some(first) => Check::bad(
            Verdict::Warn,
            "manifests",
            format!("p2's programs cannot read {}, such as {first}", faults.len()),
            "if you may go back to p2, change them: rcfarm rc set manifest",
        ),
    })
}

/// Checks pending commands: whether they can be decoded, and whether their targets exist.
async fn commands(context: &CommandContext) -> Result<Check, StoreError> {
    let commands = entries(context, key::commands()).await?;
    let jobs = entries(context, key::jobs()).await?;
    let queues = entries(context, key::queues()).await?;
    let targets = Targets {
        jobs: jobs.iter().filter_map(|e| key::namespaced(&key::jobs(), &e.key)).collect(),
        queues: queues.iter().filter_map(|e| key::queues().tail(&e.key)?.parse().ok()).collect(),
    };
    let remedy = "nobody will carry them out: consul kv delete KEY, then ask again by rcfarm job or rcfarm queue";
    Ok(summary("commands", &commands, |entry| targets.check(entry), remedy))
}

/// Possible targets of commands.
struct Targets {
    jobs: BTreeSet<Namespaced>,
    queues: BTreeSet<QueueName>,
}

impl Targets {
    fn check(&self, entry: &Entry) -> Result<(), String> {
        let named = key::namespace_and_command(&entry.key);
        let (namespace, _) = named.ok_or("its name is neither UUID nor NAMESPACE/UUID")?;
        let command = Command::decode(&entry.value).map_err(|error| error.to_string())?;
        if !command.is_allowed_in(namespace.as_ref()) {
            return Err("its target is outside its namespace".to_owned());
        }
        match command.target {
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

/// Checks whether each allocation belongs to an existing pod and fits the node's capacity.
async fn allocations(context: &CommandContext) -> Check {
    let allocations = match allocations::allocations(context).await {
        Ok(allocations) => allocations,
        Err(error) => return failed("allocations", &error),
    };
    let (pods, nodes) = allocations.count();
    if let Some(fault) = allocations.faults().first() {
        return Check::bad(
            Verdict::Warn,
            "allocations",
            fault,
            "a capacity was lowered, or a record edited by hand: move pods away (rcfarm node drain), or correct it",
        );
    }
    match allocations.orphaned_allocations.first() {
        None => Check::ok("allocations", format!("resources for {pods} pods on {nodes} nodes")),
        Some(orphaned) => Check::bad(
            Verdict::Warn,
            "allocations",
            format!(
                "{}, such as: {}",
                orphaned_summary(allocations.orphaned_allocations.len()),
                allocations::describe(orphaned)
            ),
            "free them: rcfarm rc orphans --remove (a farm does so when it needs the room)",
        ),
    }
}

fn orphaned_summary(count: usize) -> String {
    if count == 1 { "1 has no pod".to_owned() } else { format!("{count} have no pods") }
}
