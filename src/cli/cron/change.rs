//! `rcfarm cron run`, `suspend`, `resume`, `delete`

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::CRON_JOB;
use crate::cli::apply::described;
use crate::cli::context::CommandContext;
use crate::cli::documents::{find, write};
use crate::cli::failure::{CliExit, failure};
use crate::cli::job::apply::create;
use crate::cli::output::duration;
use crate::cron::document;
use rcfarm_api::ids::{Namespace, Namespaced, ObjectName};
use rcfarm_api::key;
use rcfarm_api::{FieldError, Timestamp};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Query};

#[derive(clap::Args)]
pub struct CronRunArgs {
    #[command(flatten)]
    cron: super::CronArgs,
    /// Name of the job [default: <name>-manual-<time>]
    #[arg(long)]
    name: Option<ObjectName>,
}

#[derive(clap::Args)]
pub struct CronDeleteArgs {
    /// The CronJobs: their names, or <namespace>/<name>
    #[arg(value_name = "CRON", required_unless_present = "filename")]
    crons: Vec<Namespaced>,
    /// A file with the documents of CronJobs, or a directory of such files; - reads standard input; may be repeated
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<String>,
    /// Namespace of CronJobs whose document has none (`--namespace` is that of Consul Enterprise)
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

/// Makes a job of the template. It has no owner: neither the policy nor the history of the CronJob counts it.
pub(super) async fn run(context: &CommandContext, args: &CronRunArgs) -> anyhow::Result<CliExit> {
    let id = &args.cron.cron;
    let (_, stored) = find(context, &CRON_JOB, id).await?;
    let spec = document::read(id, &stored).map_err(|found| {
        failure(FieldError::list(&found), "correct the CronJob: rcfarm apply -f FILE")
    })?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => manual_name(&id.name, context.now())?,
    };
    let job = Namespaced { namespace: id.namespace.clone(), name };
    create(context, &job, spec.detached_job(&job)).await?;
    context.show(&json!({"cron": id, "job": job}), || format!("{job}: created"))
}

pub(super) async fn set_suspend(
    context: &CommandContext,
    id: &Namespaced,
    suspend: bool,
) -> anyhow::Result<CliExit> {
    let (entry, mut stored) = find(context, &CRON_JOB, id).await?;
    if !stored["spec"].is_object() {
        let why = format!("CronJob {id} has no spec");
        return Err(failure(why, "correct it: rcfarm apply -f FILE"));
    }
    let word = if suspend { "Suspended" } else { "Resumed" };
    if stored["spec"]["suspend"].as_bool().unwrap_or(false) != suspend {
        stored["spec"]["suspend"] = Value::Bool(suspend);
        write(context, &CRON_JOB, id, (Some(&entry), Some(&stored)), word).await?;
    }
    let shown = json!({"cron": id, "suspend": suspend});
    context.show(&shown, || format!("{id}: {}", word.to_lowercase()))
}

pub(super) async fn delete(
    context: &CommandContext,
    args: &CronDeleteArgs,
) -> anyhow::Result<CliExit> {
    let mut ids = args.crons.clone();
    let in_files = described(&args.filename, &args.within)?.documents;
    let in_files = in_files.into_iter().filter(|one| one.kind.kind == CRON_JOB.kind);
    ids.extend(in_files.map(|one| one.id));
    if ids.is_empty() {
        let why = format!("there is no CronJob in {}", args.filename.join(", "));
        return Err(failure(why, "name the CronJobs, or other files"));
    }
    let mut marked = Vec::new();
    for id in &ids {
        let (entry, mut stored) = find(context, &CRON_JOB, id).await?;
        if args.keep_jobs {
            write(context, &CRON_JOB, id, (Some(&entry), None), "Deleted").await?;
            continue;
        }
        if !document::is_deleting(&entry.value) {
            mark_deleted(&mut stored, context.now());
            write(context, &CRON_JOB, id, (Some(&entry), Some(&stored)), "Deleted").await?;
        }
        marked.push((id, entry.create_index));
    }
    if !args.no_wait {
        let limit = monotonic() + args.timeout;
        for (id, created) in marked {
            let gone = timeout_at(limit, until_gone(context, id, created)).await;
            gone.map_err(|_| {
                let why = format!("{id} is not gone after {:?}", args.timeout);
                failure(why, format!("see who works on it: rcfarm cron explain {id}"))
            })??;
        }
    }
    let word = if args.no_wait && !args.keep_jobs { "is being deleted" } else { "deleted" };
    let shown: Vec<Value> =
        ids.iter().map(|id| json!({"cron": id, "deleted": word == "deleted"})).collect();
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

/// Name of a job that is made by hand. A long name of the CronJob is cut.
fn manual_name(cron: &ObjectName, now: Timestamp) -> anyhow::Result<ObjectName> {
    let suffix = format!("-manual-{}", now.as_second());
    let room = document::LONGEST_NAME - suffix.len();
    let stem: String = cron.as_str().chars().take(room).collect();
    Ok(format!("{}{suffix}", stem.trim_end_matches(['-', '.'])).parse()?)
}

/// Waits until the owner farm has deleted a record.
async fn until_gone(
    context: &CommandContext,
    id: &Namespaced,
    created: Index,
) -> anyhow::Result<()> {
    let mut query = Query::PLAIN;
    loop {
        let read = async || context.store.get(&key::cron_job(id), query).await;
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
    fn name_of_a_job_made_by_hand_is_no_longer_than_names_are() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let name = |cron: &str| manual_name(&cron.parse().unwrap(), now).unwrap().to_string();
        assert_eq!(name("nightly"), "nightly-manual-1800000000");
        let long = name(&format!("{}-{}", "a".repeat(44), "b".repeat(8)));
        assert_eq!(long, format!("{}-manual-1800000000", "a".repeat(44)));
    }

    #[test]
    fn whatever_is_stored_can_be_marked() {
        for stored in ["null", "7", "[1]", "\"x\"", "{}", r#"{"metadata":[1],"spec":{}}"#] {
            let mut stored: Value = serde_json::from_str(stored).unwrap();
            mark_deleted(&mut stored, Timestamp::default());
            assert!(document::is_deleting(stored.to_string().as_bytes()), "{stored}");
        }
    }
}
