//! `rcfarm queue group …`: PodGroups, those of jobs included.
//!
//! Keys read: PodGroups and their statuses. Key deleted: a PodGroup's record, by CAS, in one transaction with its audit
//! record; never one that has an owner.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::kind::POD_GROUP;
use crate::cli::context::CommandContext;
use crate::cli::documents::{find, write};
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::or_dash;
use crate::cluster::queues::{GroupIndex, GroupStatusIndex, StoredGroup, read_group};
use rcfarm_api::ids::{Namespace, Namespaced, QueueName};
use rcfarm_api::pod_group::spec::{MemberCounts, PodGroupRecord};
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason, PodGroupStatus};
use rcfarm_api::{Stored, key};
use rcfarm_store::cache::read_once;

/// PodGroups: what is admitted and placed together; those of jobs, and those of apply -f
#[derive(clap::Subcommand)]
pub enum GroupCommand {
    /// List all groups with their phases
    #[command(visible_alias = "ls")]
    List(GroupListArgs),
    /// Show a group's record and status
    Get(GroupArgs),
    /// Delete groups that belong to no job; what was placed for them is freed
    #[command(visible_alias = "rm")]
    Delete(GroupDeleteArgs),
}

#[derive(clap::Args)]
pub struct GroupListArgs {
    /// Only those of this namespace (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE")]
    within: Option<Namespace>,
}

#[derive(clap::Args)]
pub struct GroupArgs {
    /// The group: its name, or <namespace>/<name>
    #[arg(value_name = "GROUP")]
    group: Namespaced,
}

#[derive(clap::Args)]
pub struct GroupDeleteArgs {
    /// The groups: their names, or <namespace>/<name>
    #[arg(value_name = "GROUP", required = true)]
    groups: Vec<Namespaced>,
    /// Delete them although members run, which then have nothing allocated
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(
    context: &CommandContext,
    command: GroupCommand,
) -> anyhow::Result<CliExit> {
    match command {
        GroupCommand::List(args) => list(context, &args).await,
        GroupCommand::Get(args) => get(context, &args.group).await,
        GroupCommand::Delete(args) => delete(context, &args).await,
    }
}

#[derive(Serialize)]
struct Row {
    group: Namespaced,
    queue: Option<QueueName>,
    phase: Option<PodGroupPhase>,
    reason: Option<PodGroupReason>,
    members: MemberCounts,
    /// `<kind> <name>`
    owner: Option<String>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

async fn list(context: &CommandContext, args: &GroupListArgs) -> anyhow::Result<CliExit> {
    let store = context.store.as_ref();
    let groups: GroupIndex = read_once(store, &key::pod_groups()).await?;
    let statuses: GroupStatusIndex = read_once(store, &key::pod_group_statuses()).await?;
    let shown = |id: &Namespaced| args.within.as_ref().is_none_or(|only| id.namespace == *only);
    let groups = groups.0.iter().filter(|(id, _)| shown(id));
    let row = |(id, stored): (&Namespaced, &Arc<StoredGroup>)| {
        let status = statuses.0.get(id).and_then(|status| status.value.as_ref());
        Row::of(id, stored, status)
    };
    context.show_rows(
        &groups.map(row).collect::<Vec<Row>>(),
        "there are no PodGroups; to make one: rcfarm apply -f FILE",
        &[
            ("GROUP", &|row| row.group.to_string()),
            ("QUEUE", &|row| or_dash(row.queue.as_ref())),
            ("PHASE", &|row| or_dash(row.phase)),
            ("REASON", &|row| or_dash(row.reason)),
            ("RUNNING", &|row| row.members.running.to_string()),
            ("OWNER", &|row| or_dash(row.owner.as_ref())),
            ("INVALID", &|row| or_dash(row.invalid.as_ref())),
        ],
    )
}

impl Row {
    fn of(id: &Namespaced, stored: &StoredGroup, status: Option<&PodGroupStatus>) -> Row {
        let record = stored.value.as_ref();
        let owner = record.ok().and_then(|record| record.spec.owner.as_ref());
        Row {
            group: id.clone(),
            queue: record.ok().map(|record| record.spec.queue.clone()),
            phase: status.map(|status| status.phase),
            reason: status.map(|status| status.reason),
            members: record.map(|record| record.members).unwrap_or_default(),
            owner: owner.map(|owner| format!("{} {}", owner.kind, owner.name)),
            invalid: record.err().and_then(|bad| Some(bad.first()?.to_string())),
        }
    }
}

async fn get(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let (entry, stored) = find(context, &POD_GROUP, id).await?;
    let status = context.get(&key::pod_group_status(id)).await?;
    let status = status.and_then(|status| PodGroupStatus::decode(&status.value).ok());
    let status = status.filter(|status| status.of == entry.create_index);
    let invalid = read_group(id, &entry.value).err().unwrap_or_default();
    let invalid: Vec<String> = invalid.iter().map(ToString::to_string).collect();
    let shown = json!({"group": id, "record": stored, "status": status, "invalid": invalid});
    context.show(&shown, || format!("{shown:#}"))
}

async fn delete(context: &CommandContext, args: &GroupDeleteArgs) -> anyhow::Result<CliExit> {
    let mut found = Vec::new();
    for id in &args.groups {
        let (entry, _) = find(context, &POD_GROUP, id).await?;
        // What cannot be decoded belongs to nobody.
        if let Ok(record) = PodGroupRecord::decode(&entry.value) {
            check_deletable(id, &record, args.force)?;
        }
        found.push((id, entry));
    }
    for (id, entry) in &found {
        write(context, &POD_GROUP, id, (Some(entry), None), "Deleted").await?;
    }
    let shown: Vec<Value> =
        args.groups.iter().map(|id| json!({"group": id, "deleted": true})).collect();
    context.show(&shown, || args.groups.iter().map(|id| format!("{id}: deleted\n")).collect())
}

fn check_deletable(id: &Namespaced, record: &PodGroupRecord, force: bool) -> anyhow::Result<()> {
    if let Some(owner) = &record.spec.owner {
        let why = format!("PodGroup {id} belongs to {} {}", owner.kind, owner.name);
        let hint = match owner.kind.as_str() {
            "Job" => format!("rcfarm job delete {}/{}", id.namespace, owner.name),
            _ => "delete that".to_owned(),
        };
        return Err(failure(why, hint));
    }
    let MemberCounts { bound, running, releasing, .. } = record.members;
    let on_nodes = u64::from(bound) + u64::from(running) + u64::from(releasing);
    if on_nodes > 0 && !force {
        let why = format!("{on_nodes} members of PodGroup {id} are on nodes");
        return Err(failure(why, "stop them first, or add --force"));
    }
    Ok(())
}
