//! `rcfarm audit …`: the audit log.
//!
//! Keys read: the audit log, records and statuses of controllers and jobs, queues, CronJobs, flows, templates, priority
//! classes, cells, pods' labels, allocations.
//! Keys written: `acknowledge` adds records; `prune` adds a checkpoint to the log and then deletes older records. Farms and commands append records.
//! A crash of `prune` between the two leaves more records than necessary; the next `prune` deletes them.

mod accept;
mod filter;
mod jobs;
mod records;
mod verify;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::context::CommandContext;
use super::failure::{CliExit, failure};
use super::output::{Column, duration, or_dash, table};
use super::rc::find;
use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{AuditCause, AuditRecord, Details, Logged, prune_plan};
use rcfarm_api::ids::{Namespaced, NodeName, QueueName, RcId};
use rcfarm_api::key::{self, Key};
use rcfarm_store::audit_op;
use rcfarm_store::{Answer, Entry, Index, Op, Query, StoreError, TxnOutcome};

use filter::Filter;

/// The audit log: who changed what, when and why
#[derive(clap::Subcommand)]
pub enum AuditCommand {
    /// Print records, oldest first
    #[command(visible_alias = "ls")]
    List(AuditListArgs),
    /// Fold the log and compare it with the state; exit code 2 when they differ
    Verify,
    /// Accept what was changed without a record: by p2's programs, or by hand
    Acknowledge(AcknowledgeArgs),
    /// Delete old records, keeping what the rest stands for
    Prune(PruneArgs),
}

#[derive(clap::Args)]
pub struct AuditListArgs {
    /// Only records of the last TIME, as in 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    since: Option<Duration>,
    /// Only records of this controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(long, value_name = "RC")]
    rc: Option<String>,
    /// Only records of this job, as in team-a/mnist
    #[arg(long, value_name = "NS/NAME")]
    job: Option<Namespaced>,
    /// Only records of this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// Only records that name this node
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// Then print new records as they come
    #[arg(short, long)]
    follow: bool,
}

#[derive(clap::Args)]
pub struct AcknowledgeArgs {
    /// Only this controller: its whole id, an unambiguous beginning of it, or its pod's id
    #[arg(long, value_name = "RC")]
    rc: Option<String>,
    /// Only print what would be accepted
    #[arg(long)]
    dry_run: bool,
}

#[derive(clap::Args)]
pub struct PruneArgs {
    /// Keep the records of the last TIME, as in 30d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    keep: Duration,
    /// Only print how many would be deleted
    #[arg(long)]
    dry_run: bool,
}

/// Tolerated clock error of writers, when records are selected by the time in their keys.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(300);

pub(super) async fn run(
    context: &CommandContext,
    command: AuditCommand,
) -> anyhow::Result<CliExit> {
    match command {
        AuditCommand::List(args) => list(context, &args).await,
        AuditCommand::Verify => verify::verify(context).await,
        AuditCommand::Acknowledge(args) => verify::acknowledge(context, &args).await,
        AuditCommand::Prune(args) => prune(context, &args).await,
    }
}

async fn list(context: &CommandContext, args: &AuditListArgs) -> anyhow::Result<CliExit> {
    let since = match args.since {
        Some(since) => Some(context.now().checked_sub(since)?),
        None => None,
    };
    let rc = controller(context, args.rc.as_deref(), false).await?;
    let (job, queue, node) = (args.job.clone(), args.queue.clone(), args.node.clone());
    let filter = Filter { since, rc, job, queue, node };
    let keys = all_keys(context, Query::PLAIN).await?;
    let recent = keys.value.iter().filter(|key| may_be_since(key, since));
    let mut log = read(context, recent.map(String::as_str)).await?;
    log.retain(|logged| filter.wants(&logged.record));
    if !args.follow {
        let values: Vec<_> = log.iter().map(value).collect();
        return context.show(&values, || {
            if log.is_empty() {
                return "there are no such records".to_owned();
            }
            table(&log, &COLUMNS)
        });
    }
    for logged in &log {
        print(context, logged)?;
    }
    follow(context, &filter, keys.value, keys.index).await
}

/// The controller of `--rc`. One that was deleted can only be named by its whole id. `changes`: the log of it is to be
/// changed.
async fn controller(
    context: &CommandContext,
    rc: Option<&str>,
    changes: bool,
) -> anyhow::Result<Option<RcId>> {
    Ok(match rc {
        None => None,
        Some(rc) => Some(match rc.parse() {
            Ok(id) => id,
            Err(_) if changes => find::find_to_change(context, rc).await?.id,
            Err(_) => find::find(context, rc).await?.id,
        }),
    })
}

/// Whether the record of a key may be newer than `since`. UUIDs of version 7 contain their time; p2's (version 4) do not.
fn may_be_since(key: &str, since: Option<Timestamp>) -> bool {
    let made = || {
        let id = key::audit_log_id(key)?;
        let (seconds, _) = id.get_timestamp().filter(|_| id.get_version_num() == 7)?.to_unix();
        Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
    };
    let Some(since) = since else { return true };
    let tolerated = since.checked_sub(CLOCK_TOLERANCE).unwrap_or(since);
    made().is_none_or(|made| made >= tolerated)
}

/// Reads records by their keys, in the order of their commits. Invalid ones are named on stderr and left out.
async fn read<'k>(
    context: &CommandContext,
    keys: impl Iterator<Item = &'k str>,
) -> anyhow::Result<Vec<Logged>> {
    let keys = keys.filter(|key| key::audit_log_id(key).is_some());
    let entries = context.get_many(keys.filter_map(|key| Key::parse(key).ok())).await?;
    Ok(logged(context, entries.values()))
}

fn logged<'e>(context: &CommandContext, entries: impl Iterator<Item = &'e Entry>) -> Vec<Logged> {
    let mut log: Vec<Logged> = entries
        .filter_map(|entry| {
            if key::namespaced_audit_logs().is_sentinel(&entry.key) {
                return None;
            }
            match (key::audit_log_id(&entry.key), AuditRecord::decode(&entry.value)) {
                (Some(id), Ok(record)) => Some(Logged { id, index: entry.create_index, record }),
                (_, Err(error)) => {
                    context.note(format!("{}: {error}", entry.key));
                    None
                }
                (None, Ok(_)) => {
                    context.note(format!("{}: the key's name is no UUID", entry.key));
                    None
                }
            }
        })
        .collect();
    log.sort_by_key(|logged| (logged.index, logged.id));
    log
}

/// Keys of all audit records, sorted. `query` is that of `audit_logs/`, whose index the answer has; what a token may not
/// read is left out.
async fn all_keys(
    context: &CommandContext,
    query: Query,
) -> Result<Answer<Vec<String>>, StoreError> {
    let mut all = context.store.keys(&key::audit_logs(), None, query).await?;
    let namespaced = context.store.keys(&key::namespaced_audit_logs(), None, Query::PLAIN).await?;
    all.value.extend(namespaced.value);
    all.value.sort();
    Ok(all)
}

/// Interval at which the records of namespaces are listed while the others are watched.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Prints new records without end.
async fn follow(
    context: &CommandContext,
    filter: &Filter,
    mut known: Vec<String>,
    mut index: Index,
) -> anyhow::Result<CliExit> {
    let mut failures = 0;
    loop {
        let query =
            if index == Index::ZERO { Query::PLAIN } else { Query::after(index, LOOK_EVERY) };
        let answer = match all_keys(context, query).await {
            Ok(answer) => answer,
            Err(error) if error.is_retryable() => {
                context.pause_after(&error, failures).await;
                (failures, index) = (failures + 1, Index::ZERO);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        failures = 0;
        index = if answer.index < index { Index::ZERO } else { answer.index };
        let new = answer.value.iter().filter(|key| known.binary_search(key).is_err());
        for logged in &read(context, new.map(String::as_str)).await? {
            if filter.wants(&logged.record) {
                print(context, logged)?;
            }
        }
        known = answer.value;
    }
}

fn print(context: &CommandContext, logged: &Logged) -> anyhow::Result<()> {
    context.out.show_next(&value(logged), || COLUMNS.map(|(_, cell)| cell(logged)).join("  "))
}

fn value(logged: &Logged) -> serde_json::Value {
    json!({"id": logged.id, "index": logged.index, "record": logged.record})
}

/// The columns of a record.
const COLUMNS: [Column<'_, Logged>; 6] = [
    ("TIME", &|logged| format!("{:.0}", logged.record.timestamp)),
    ("EVENT", &|logged| logged.record.event_type.to_string()),
    ("CONTROLLER", &|logged| {
        let id = field(logged, "replication_controller_id");
        or_dash(id.map(|id| id.get(..8).unwrap_or(id)))
    }),
    ("POD", &|logged| or_dash(field(logged, "pod_id"))),
    ("BY", &|logged| {
        or_dash(match (field(logged, "actor"), field(logged, "farm")) {
            (Some("farm") | None, Some(farm)) => Some(farm),
            (actor, _) => actor,
        })
    }),
    ("WHAT", &|logged| what(&logged.record)),
];

fn field<'l>(logged: &'l Logged, name: &str) -> Option<&'l str> {
    logged.record.event_details.get(name)?.as_str()
}

/// A record in one line.
fn what(record: &AuditRecord) -> String {
    let details = match record.details() {
        Ok(details) => details,
        Err(error) => return error.to_string(),
    };
    let count = |count: Option<i64>| or_dash(count);
    match details {
        Details::Retarget(d) => {
            let signed = |sign: &str, nodes: &[NodeName]| match nodes.len() {
                0 => String::new(),
                1..=4 => nodes.iter().map(|node| format!("{sign}{node} ")).collect(),
                more => format!("{sign}{more} nodes "),
            };
            let (added, removed) = (signed("+", &d.nodes_added), signed("-", &d.nodes_removed));
            let repaired = signed("~", &d.nodes_repaired);
            format!("{added}{removed}{repaired}{} of {} ({})", d.count, d.desired_after, d.reason)
        }
        Details::NodeTransferStart(d)
        | Details::NodeTransferCompletion(d)
        | Details::NodeTransferRollback(d) => {
            let to = or_dash(d.new_node.as_ref());
            let why = d.rollback_reason.map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{} -> {to}{why}", d.old_node)
        }
        Details::ControllerCreated(d)
        | Details::ControllerScaled(d)
        | Details::ControllerDeleted(d) => {
            let (before, after) = (count(d.desired_before), count(d.desired_after));
            let orphans = match d.orphans.len() {
                0 => String::new(),
                orphans => format!(", {orphans} orphans"),
            };
            format!("{before} -> {after}{orphans}")
        }
        Details::ControllerUpdated(d) => d.changed.join(" "),
        Details::ControllerEnabled(_) | Details::ControllerDisabled(_) => String::new(),
        Details::LabelsChanged(d) => {
            let set = d.set.iter().map(|(key, value)| format!(" {key}={value}"));
            let removed = d.removed.keys().map(|key| format!(" -{key}"));
            format!("{} {}{}", d.kind, d.id, set.chain(removed).collect::<String>())
        }
        Details::OrphansRemoved(d) => {
            d.nodes.iter().map(|node| format!("-{node} ")).collect::<String>()
        }
        Details::NodeDrained(d) => {
            let until = d.drain_deadline.map(|at| format!(" until {at:.0}")).unwrap_or_default();
            format!("node {} of {} pods{until}", d.node, d.pods.len())
        }
        Details::NodeUndrained(d) => format!("node {}", d.node),
        Details::NodeRemoved(d) => match d.pods.len() {
            0 => format!("node {}", d.node),
            left => format!("node {}, {left} pods left behind", d.node),
        },
        Details::DeletionConfirmed(d) => format!("farm {}", d.farm),
        Details::ChangeAcknowledged(d) => {
            format!("{} on {} nodes", or_dash(d.desired_after), d.nodes.len())
        }
        Details::QueueCreated(d) => format!("queue {}", d.queue),
        Details::QueueChanged(d) => {
            let fields = [&d.before, &d.after].map(|spec| spec.as_ref()?.as_object().cloned());
            let [before, after] = fields.map(Option::unwrap_or_default);
            let changed = after.iter().filter(|(field, to)| before.get(*field) != Some(to));
            let words: Vec<String> = changed.map(|(field, to)| format!("{field}={to}")).collect();
            format!("queue {} {}", d.queue, words.join(" "))
        }
        Details::QueueDeleted(d) => format!("queue {}", d.queue),
        Details::PriorityClassChanged(d) => {
            let value = |record: &Option<serde_json::Value>| {
                or_dash(record.as_ref().map(|r| r["value"].clone()))
            };
            format!(
                "priority class {} {} -> {}",
                d.priority_class,
                value(&d.before),
                value(&d.after)
            )
        }
        Details::JobTypeChanged(d) => {
            let what = match (&d.before, &d.after) {
                (_, None) => "deleted",
                (None, Some(_)) => "created",
                (Some(_), Some(_)) => "changed",
            };
            format!("job type {} {what}", d.job_type)
        }
        Details::CellsChanged(d) => {
            let what = if d.before.is_some() { "changed" } else { "created" };
            format!("cells {what}")
        }
        Details::GroupsOrdered(d) => {
            let words = d
                .groups
                .iter()
                .take(3)
                .map(|g| format!("{} {} ({})", g.group, or_dash(g.to.as_ref()), g.reason));
            let more = match d.groups.len().saturating_sub(3) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}{more}", words.collect::<Vec<_>>().join(", "))
        }
        Details::JobStep(d) => {
            let asked = d.asked.as_ref().map(|asked| format!(" {asked}")).unwrap_or_default();
            let pods = match (d.pods_added.len(), d.pods_removed.len()) {
                (0, 0) => String::new(),
                (added, removed) => format!(" +{added} -{removed}"),
            };
            format!("job {}{asked} {} -> {} ({}){pods}", d.job, d.phase_before, d.phase, d.reason)
        }
        Details::JobChanged(d) => format!("job {} {}", d.job, d.action),
        Details::RecordStep(d) => {
            let jobs = |sign: &str, jobs: &[String]| -> String {
                jobs.iter().map(|job| format!(" {sign}{job}")).collect()
            };
            let phase = d.phase.map(|phase| format!(" {phase}")).unwrap_or_default();
            let (made, gone) = (jobs("+", &d.jobs_created), jobs("-", &d.jobs_deleted));
            format!("{} {}{phase} ({}){made}{gone}", d.kind, d.record, d.reason)
        }
        Details::RecordChanged(d) => format!("{} {} {}", d.kind, d.record, d.action),
        Details::Checkpoint(d) => {
            format!("{} controllers, through {}", d.controllers.len(), d.through)
        }
        Details::Other(_, json) => match json.get("nodes").and_then(|nodes| nodes.as_array()) {
            Some(nodes) => format!("{} nodes", nodes.len()),
            None => String::new(),
        },
    }
}

async fn prune(context: &CommandContext, args: &PruneArgs) -> anyhow::Result<CliExit> {
    let mut entries = Vec::new();
    for prefix in [key::audit_logs(), key::namespaced_audit_logs()] {
        entries.extend(context.store.list(&prefix, Query::CONSISTENT).await?.value);
    }
    let keys: BTreeMap<Uuid, &str> = entries
        .iter()
        .filter_map(|entry| Some((key::audit_log_id(&entry.key)?, entry.key.as_str())))
        .collect();
    let log = logged(context, entries.iter());
    let now = context.now();
    let plan = prune_plan(&log, now.checked_sub(args.keep)?, context.ids.ordered_uuid(now));
    if !args.dry_run {
        // All parts must exist before any record is deleted.
        for part in plan.checkpoints {
            let record = AuditRecord::new(&Details::Checkpoint(part), now)
                .caused_by(AuditCause::external(None));
            let op = audit_op(context.ids.ordered_uuid(now), &record);
            let refused =
                |what: String| format!("cannot write the checkpoint: {what}; nothing was deleted");
            write(context, &[op], refused).await?;
        }
        for ids in plan.delete.chunks(context.limits.ops) {
            let keys = ids.iter().filter_map(|id| Key::parse(keys.get(id)?).ok());
            let ops: Vec<Op> = keys.map(|key| Op::Delete { key }).collect();
            write(context, &ops, |what| format!("cannot delete audit records: {what}")).await?;
        }
    }
    let (deleted, kept) = (plan.delete.len(), log.len() - plan.delete.len());
    let shown = json!({"deleted": deleted, "kept": kept, "dry_run": args.dry_run});
    context.show(&shown, || {
        let would = if args.dry_run { "would delete" } else { "deleted" };
        format!("{would} {deleted} records, kept {kept}")
    })
}

/// Writes to the log. `refused` is the error for the first operation that was refused.
async fn write(
    context: &CommandContext,
    ops: &[Op],
    refused: impl FnOnce(String) -> String,
) -> anyhow::Result<()> {
    let TxnOutcome::Refused(refusals) = context.store.txn(ops).await? else { return Ok(()) };
    let what = refusals.into_iter().map(|refusal| refusal.what).next().unwrap_or_default();
    Err(failure(refused(what), "the token needs write on audit_logs/: rcfarm doctor"))
}

#[cfg(test)]
mod tests {
    use super::verify::{guards, shortened};
    use super::*;
    use rcfarm_store::time::IdSource;

    #[test]
    fn acknowledge_is_refused_once_a_farm_has_changed_the_status() {
        let controller = RcId(Uuid::from_u128(7));
        let (record, status) = (key::rc(controller), key::rc_status(controller));
        let entry = |key: &Key, index| Entry {
            key: key.to_string(),
            value: bytes::Bytes::new(),
            flags: 0,
            create_index: Index(1),
            modify_index: Index(index),
            lock_index: 0,
            session: None,
        };
        let known = Op::CheckIndex { key: record.clone(), index: Index(5) };
        let absent = Op::CheckNotExists { key: status.clone() };
        assert_eq!(guards(controller, &[entry(&record, 5)]), [known.clone(), absent]);
        let seen = Op::CheckIndex { key: status.clone(), index: Index(6) };
        let entries = [entry(&record, 5), entry(&status, 6)];
        assert_eq!(guards(controller, &entries), [known, seen]);
    }

    #[test]
    fn acknowledged_differences_are_bounded() {
        let all: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let some = shortened(&all);
        assert_eq!((some.len(), some[32].as_str()), (33, "and 68 more"));
        assert_eq!(shortened(&all[..32]), all[..32]);
    }

    #[test]
    fn records_are_chosen_by_the_time_in_their_keys() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let key = |id: Uuid| key::audit_log(id).to_string();
        let made = |second| key(IdSource::from_seed(1).ordered_uuid(at(second)));
        let since = Some(at(10_000));
        assert!(may_be_since(&made(10_001), since));
        assert!(may_be_since(&made(9_800), since), "a clock may be behind");
        assert!(!may_be_since(&made(9_000), since));
        assert!(may_be_since(&key(IdSource::from_seed(1).uuid()), since), "p2's keys do not say");
        assert!(may_be_since(&made(0), None));
    }
}
