//! Deletion of records that make jobs, with their jobs or without.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::apply::described;
use super::context::CommandContext;
use super::documents::{DocumentKind, find, write};
use super::failure::{CliExit, failure};
use super::output::duration;
use crate::job::owner;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Query};

#[derive(clap::Args)]
pub struct DeleteOptions {
    /// A file with their documents, or a directory of such files; - reads standard input; may be repeated
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<String>,
    /// Namespace of those whose document has none (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE", default_value = "default")]
    within: Namespace,
    /// Keep their jobs
    #[arg(long)]
    keep_jobs: bool,
    /// Do not wait until they are gone
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting for all of them after this long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    timeout: Duration,
}

/// Deletes the records named, and those of the files. Their owner farms delete their jobs first, unless they are kept.
pub(super) async fn delete_documents(
    context: &CommandContext,
    kind: &DocumentKind,
    named: &[Namespaced],
    options: &DeleteOptions,
) -> anyhow::Result<CliExit> {
    let mut ids = named.to_vec();
    let in_files = described(&options.filename, &options.within)?.documents;
    let in_files = in_files.into_iter().filter(|one| one.kind.kind == kind.kind);
    ids.extend(in_files.map(|one| one.id));
    if ids.is_empty() {
        let why = format!("there is no {} in {}", kind.kind, options.filename.join(", "));
        return Err(failure(why, "name them, or other files"));
    }
    let mut marked = Vec::new();
    for id in &ids {
        let (entry, mut stored) = find(context, kind, id).await?;
        if options.keep_jobs {
            write(context, kind, id, (Some(&entry), None), "Deleted").await?;
            continue;
        }
        if !owner::is_deleting(&entry.value) {
            mark_deleted(&mut stored, context.now());
            write(context, kind, id, (Some(&entry), Some(&stored)), "Deleted").await?;
        }
        marked.push((id, entry.create_index));
    }
    if !options.no_wait {
        let limit = monotonic() + options.timeout;
        for (id, created) in marked {
            let gone = timeout_at(limit, until_gone(context, kind, id, created)).await;
            gone.map_err(|_| {
                let why = format!("{id} is not gone after {:?}", options.timeout);
                failure(why, format!("see who works on it: rcfarm {} explain {id}", kind.noun))
            })??;
        }
    }
    let is_marked = options.no_wait && !options.keep_jobs;
    let word = if is_marked { "is being deleted" } else { "deleted" };
    let shown: Vec<Value> =
        ids.iter().map(|id| json!({kind.noun: id, "deleted": word == "deleted"})).collect();
    context.show(&shown, || ids.iter().map(|id| format!("{id}: {word}\n")).collect())
}

/// Marks a record, which may be anything: its owner deletes its jobs, then the record.
fn mark_deleted(stored: &mut Value, now: Timestamp) {
    if !stored.is_object() {
        *stored = json!({});
    }
    if !stored["metadata"].is_object() {
        stored["metadata"] = json!({});
    }
    stored["metadata"]["deletionTimestamp"] = json!(now);
}

/// Waits until the owner farm has deleted a record.
async fn until_gone(
    context: &CommandContext,
    kind: &DocumentKind,
    id: &Namespaced,
    created: Index,
) -> anyhow::Result<()> {
    let mut query = Query::PLAIN;
    loop {
        let read = async || context.store.get(&(kind.key)(id), query).await;
        let answer = context.persist(read).await?;
        if answer.value.is_none_or(|entry| entry.create_index != created) {
            return Ok(());
        }
        query = Query::after(answer.index, Duration::from_secs(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_stored_can_be_marked() {
        for stored in ["null", "7", "[1]", "\"x\"", "{}", r#"{"metadata":[1],"spec":{}}"#] {
            let mut stored: Value = serde_json::from_str(stored).unwrap();
            mark_deleted(&mut stored, Timestamp::default());
            assert!(owner::is_deleting(stored.to_string().as_bytes()), "{stored}");
        }
    }
}
