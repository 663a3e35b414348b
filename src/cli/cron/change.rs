//! `rcfarm cron run`, `suspend`, `resume`, `delete`

use serde_json::{Value, json};

use super::kind::CRON_JOB;
use crate::cli::context::CommandContext;
use crate::cli::delete_documents::{DeleteOptions, delete_documents};
use crate::cli::documents::{find, write};
use crate::cli::failure::{CliExit, failure};
use crate::cli::job::apply::create;
use crate::cron::document;
use rcfarm_api::ids::{Namespaced, ObjectName};
use rcfarm_api::{FieldError, Timestamp};

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
    #[command(flatten)]
    options: DeleteOptions,
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
    delete_documents(context, &CRON_JOB, &args.crons, &args.options).await
}

/// Name of a job that is made by hand. A long name of the CronJob is cut.
fn manual_name(cron: &ObjectName, now: Timestamp) -> anyhow::Result<ObjectName> {
    let suffix = format!("-manual-{}", now.as_second());
    let room = document::LONGEST_NAME - suffix.len();
    let stem: String = cron.as_str().chars().take(room).collect();
    Ok(format!("{}{suffix}", stem.trim_end_matches(['-', '.'])).parse()?)
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
}
