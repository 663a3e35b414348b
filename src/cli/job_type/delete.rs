//! `rcfarm job type delete`

use serde_json::{Value, json};

use super::{StoredTypes, details};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::job::document::described;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::key;
use rcfarm_store::Op;

/// Deletes a record, unless a job still waits for it.
pub(super) async fn delete(context: &CommandContext, name: &ObjectName) -> anyhow::Result<CliExit> {
    let stored = StoredTypes::read(context).await?;
    let entry = stored.entry(name)?;
    let (with_copy, without_copy) = jobs_of(context, name).await?;
    if let Some(first) = without_copy.first() {
        let why = format!(
            "{} jobs of the kind have no copy of the type yet, such as {first}",
            without_copy.len()
        );
        let hint = "wait until a farm has given it to them, or delete them: rcfarm job delete";
        return Err(failure(why, hint));
    }
    let ops = [Op::DeleteCas { key: key::job_type(name), index: entry.modify_index }];
    if context.commit(ops, &details(context, name, Some(entry), None), None).await?.is_err() {
        let why = format!("job type {name} was changed by somebody meanwhile; nothing was changed");
        return Err(failure(why, "look at it, then try again"));
    }
    if with_copy > 0 {
        context.note(format!("{with_copy} jobs of the kind go on with their copies"));
    }
    context.show(&json!({"kind": name, "deleted": true, "jobs": with_copy}), || {
        format!("{name}: deleted")
    })
}

/// Jobs of a kind: how many have a copy of their type, and the keys of those that have none.
async fn jobs_of(
    context: &CommandContext,
    kind: &ObjectName,
) -> anyhow::Result<(usize, Vec<String>)> {
    let (mut with_copy, mut without_copy) = (0, Vec::new());
    for entry in context.list(&key::jobs()).await? {
        let document: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        if document["kind"] != kind.as_str() {
            continue;
        }
        match described::kind_without_copy(&document) {
            Some(_) => without_copy.push(entry.key.to_string()),
            None => with_copy += 1,
        }
    }
    Ok((with_copy, without_copy))
}
