//! `rcfarm priority-class create`, `delete`

use serde_json::json;

use super::{StoredClasses, problems};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cluster::queues::{GroupIndex, GroupStatusIndex};
use rcfarm_api::audit::{Details, PriorityClassChange};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::priority_class::PriorityClassRecord;
use rcfarm_api::{FieldError, Index, Stored, key};
use rcfarm_store::cache::read_once;
use rcfarm_store::{Entry, Op};

#[derive(clap::Args)]
pub struct ClassCreateArgs {
    /// The name of the class
    #[arg(value_name = "CLASS")]
    class: ObjectName,
    /// Priority of the jobs that name it; higher goes first, jobs without a class have 0
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    value: i64,
    /// Make it the priority of jobs that name none
    #[arg(long)]
    global_default: bool,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
}

pub(super) async fn create(
    context: &CommandContext,
    args: ClassCreateArgs,
) -> anyhow::Result<CliExit> {
    let ClassCreateArgs { class: name, value, global_default, description } = args;
    let record = PriorityClassRecord { value, global_default, description, ..Default::default() };
    let stored = StoredClasses::read(context).await?;
    if stored.entries.contains_key(&name) {
        let hint = format!("look at it: rcfarm priority-class get {name}");
        return Err(failure(format!("there is a priority class {name} already"), hint));
    }
    let bad = problems(&name, &record, None, &stored.records());
    if !bad.is_empty() {
        return Err(failure(FieldError::list(&bad), "correct these; nothing was written"));
    }
    write(context, &name, &record, None).await?;
    context.show(&json!({"name": name, "value": value}), || format!("{name}: created"))
}

fn details(
    context: &CommandContext,
    name: &ObjectName,
    before: Option<&Entry>,
    after: Option<&PriorityClassRecord>,
) -> Details {
    Details::PriorityClassChanged(PriorityClassChange {
        priority_class: name.clone(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        before: before.and_then(|entry| serde_json::from_slice(&entry.value).ok()),
        after: after.and_then(|record| serde_json::to_value(record).ok()),
    })
}

/// Writes a record in one transaction with its audit record. `stored`: what it replaces.
pub(super) async fn write(
    context: &CommandContext,
    name: &ObjectName,
    record: &PriorityClassRecord,
    stored: Option<&Entry>,
) -> anyhow::Result<()> {
    let (index, flags) = stored.map_or((Index::ZERO, 0), |entry| (entry.modify_index, entry.flags));
    let op = Op::Cas { key: key::priority_class(name), value: record.encode(), flags, index };
    let details = details(context, name, stored, Some(record));
    context.commit([op], &details, None).await?.map_err(|_| {
        let why =
            format!("priority class {name}: somebody changed it meanwhile; it was left as it is");
        failure(why, "look at it, then try again")
    })?;
    Ok(())
}

pub(super) async fn delete(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    let stored = StoredClasses::read(context).await?;
    let entry = stored.entry(name)?;
    let waiting = waiting(context, name).await?;
    let ops = [Op::DeleteCas { key: key::priority_class(name), index: entry.modify_index }];
    if context.commit(ops, &details(context, name, Some(entry), None), None).await?.is_err() {
        let why =
            format!("priority class {name} was changed by somebody meanwhile; nothing was changed");
        return Err(failure(why, "look at it, then try again"));
    }
    if waiting > 0 {
        context.note(format!(
            "{waiting} waiting groups name it, and wait until there is a class {name} again"
        ));
    }
    context.show(&json!({"name": name, "deleted": true, "waiting": waiting}), || {
        format!("{name}: deleted")
    })
}

/// Number of groups that name a class and are not admitted.
async fn waiting(context: &CommandContext, name: &ObjectName) -> anyhow::Result<usize> {
    let store = context.store.as_ref();
    let groups: GroupIndex = read_once(store, &key::pod_groups()).await?;
    let statuses: GroupStatusIndex = read_once(store, &key::pod_group_statuses()).await?;
    let is_admitted = |id| {
        let status = statuses.0.get(id).and_then(|status| status.value.as_ref());
        status.is_some_and(|status| status.phase.is_admitted())
    };
    let names = |spec: &rcfarm_api::pod_group::spec::PodGroupSpec| {
        spec.priority == 0 && spec.priority_class_name == name.as_str()
    };
    let waiting = groups.0.iter().filter(|(id, group)| {
        group.value.as_ref().is_ok_and(|record| names(&record.spec)) && !is_admitted(id)
    });
    Ok(waiting.count())
}
