//! `rcfarm cron list`, `get`, `next`, `explain`

use serde::Serialize;
use serde_json::{Value, json};

use super::kind::CRON_JOB;
use crate::cli::context::CommandContext;
use crate::cli::documents::find;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{age, fields, or_dash, table};
use crate::cron::document::{self, CronSpec};
use crate::cron::schedule::CronSchedule;
use rcfarm_api::cron::{CronReason, CronStatus};
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_api::{FieldError, Stored, Timestamp, key};
use rcfarm_store::Entry;

#[derive(clap::Args)]
pub struct CronListArgs {
    /// Only CronJobs of this namespace (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE")]
    within: Option<Namespace>,
}

#[derive(clap::Args)]
pub struct CronNextArgs {
    /// The CronJob: its name, or <namespace>/<name>
    #[arg(value_name = "CRON", required_unless_present = "schedule")]
    cron: Option<Namespaced>,
    /// A schedule instead of a CronJob, as in '0 3 * * MON-FRI'
    #[arg(long, conflicts_with = "cron")]
    schedule: Option<String>,
    /// Time zone of --schedule, as in Europe/Berlin [default: UTC]
    #[arg(long, requires = "schedule")]
    time_zone: Option<String>,
    /// How many
    #[arg(short = 'n', long, default_value_t = 5)]
    count: usize,
    /// After this time, as in 2026-03-28T12:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    after: Option<Timestamp>,
}

/// A CronJob's record with its status.
struct Found {
    id: Namespaced,
    entry: Entry,
    spec: Result<CronSpec, Vec<FieldError>>,
    status: Option<CronStatus>,
}

impl Found {
    fn new(id: Namespaced, entry: Entry, status: Option<&Entry>) -> Found {
        let spec = document::decode(&id, &entry.value);
        let status = status.and_then(|entry| CronStatus::decode(&entry.value).ok());
        let status = status.filter(|status| status.uid == entry.create_index);
        Found { id, entry, spec, status }
    }

    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let spec = self.spec.as_ref().ok().filter(|spec| !spec.suspend && !spec.deleting)?;
        spec.schedule.next(now)
    }
}

async fn look_up(context: &CommandContext, id: &Namespaced) -> anyhow::Result<Found> {
    let (entry, _) = find(context, &CRON_JOB, id).await?;
    let status = context.get(&key::cron_job_status(id)).await?;
    Ok(Found::new(id.clone(), entry, status.as_ref()))
}

#[derive(Serialize)]
struct Row {
    cron: Namespaced,
    schedule: Option<String>,
    suspend: bool,
    /// `None`: no farm has handled it yet.
    reason: Option<CronReason>,
    active: usize,
    last_schedule_time: Option<Timestamp>,
    last_successful_time: Option<Timestamp>,
    next: Option<Timestamp>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

fn row(found: &Found, now: Timestamp) -> Row {
    let spec = found.spec.as_ref().ok();
    let status = found.status.as_ref();
    let invalid = found.spec.as_ref().err().and_then(|problems| problems.first());
    Row {
        cron: found.id.clone(),
        schedule: spec.map(|spec| spec.schedule.describe()),
        suspend: spec.is_some_and(|spec| spec.suspend),
        reason: status.map(|status| status.reason),
        active: status.map_or(0, |status| status.active().count()),
        last_schedule_time: status.and_then(|status| status.last_schedule_time),
        last_successful_time: status.and_then(|status| status.last_successful_time),
        next: found.next(now),
        invalid: invalid.map(ToString::to_string),
    }
}

pub(super) async fn list(context: &CommandContext, args: &CronListArgs) -> anyhow::Result<CliExit> {
    let statuses = context.list(&key::cron_job_statuses()).await?;
    let prefix = key::cron_jobs();
    let now = context.now();
    let mut rows = Vec::new();
    for entry in context.list(&prefix).await? {
        let Some(id) = key::namespaced(&prefix, &entry.key) else { continue };
        if args.within.as_ref().is_some_and(|within| id.namespace != *within) {
            continue;
        }
        let status = key::cron_job_status(&id);
        let status = statuses.iter().find(|entry| entry.key == status.as_str());
        rows.push(row(&Found::new(id, entry, status), now));
    }
    let ago = |at: Option<Timestamp>| or_dash(at.map(|at| age(at, now)));
    context.show_rows(
        &rows,
        "there are no CronJobs; to make one: rcfarm apply -f FILE",
        &[
            ("CRON", &|row| row.cron.to_string()),
            ("SCHEDULE", &|row| or_dash(row.schedule.as_ref())),
            ("REASON", &|row| match &row.invalid {
                Some(_) => CronReason::InvalidRecord.to_string(),
                None => or_dash(row.reason),
            }),
            ("ACTIVE", &|row| row.active.to_string()),
            ("LAST", &|row| ago(row.last_schedule_time)),
            ("SUCCEEDED", &|row| ago(row.last_successful_time)),
            ("NEXT", &|row| or_dash(row.next.map(|next| format!("in {}", age(now, next))))),
        ],
    )
}

pub(super) async fn get(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = look_up(context, id).await?;
    let document: Value = serde_json::from_slice(&found.entry.value).unwrap_or_default();
    let row = row(&found, context.now());
    let shown = json!({"record": document, "status": found.status, "next": row.next,
        "invalid": row.invalid});
    context.show(&shown, || {
        let time = |at: Option<Timestamp>| or_dash(at.map(|at| format!("{at:.0}")));
        fields([
            ("cron", row.cron.to_string()),
            ("schedule", or_dash(row.schedule.as_ref())),
            ("suspend", row.suspend.to_string()),
            ("reason", or_dash(row.reason)),
            ("invalid", or_dash(row.invalid.as_ref())),
            ("active", row.active.to_string()),
            ("last run", time(row.last_schedule_time)),
            ("last success", time(row.last_successful_time)),
            ("next run", time(row.next)),
        ])
    })
}

pub(super) async fn next(context: &CommandContext, args: &CronNextArgs) -> anyhow::Result<CliExit> {
    let schedule = match (&args.cron, &args.schedule) {
        (Some(id), _) => {
            let spec = look_up(context, id).await?.spec.map_err(|found| {
                failure(FieldError::list(&found), "correct the CronJob: rcfarm apply -f FILE")
            })?;
            if spec.suspend {
                context.note(format!("{id} is suspended: rcfarm cron resume {id}"));
            }
            spec.schedule
        }
        (None, text) => {
            let zone = CronSchedule::zone(args.time_zone.as_deref());
            let text = text.as_deref().unwrap_or_default();
            let parsed = zone.and_then(|zone| CronSchedule::parse(text, zone));
            parsed.map_err(|why| failure(why, "fields: minute hour day month weekday"))?
        }
    };
    let after = args.after.unwrap_or_else(|| context.now());
    let due: Vec<Timestamp> = schedule.between(after, Timestamp::MAX, args.count).collect();
    let shown: Vec<Value> =
        due.iter().map(|at| json!({"time": at, "local": schedule.local(*at)})).collect();
    context.show(&shown, || {
        table(&due, &[("LOCAL", &|at| schedule.local(*at)), ("UTC", &|at| format!("{at:.0}"))])
    })
}

pub(super) async fn explain(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = look_up(context, id).await?;
    let lock = key::cron_job_locks().key_of(&id.to_string());
    let lock = match lock {
        Some(lock) => context.get(&lock).await?,
        None => None,
    };
    let farm = lock.filter(|lock| lock.session.is_some());
    let farm = farm.map(|lock| String::from_utf8_lossy(&lock.value).into_owned());
    let now = context.now();
    let lines = explanation(&found, farm.as_deref(), now);
    let shown = json!({"cron": id, "farm": farm, "status": found.status, "next": found.next(now),
        "explanation": lines});
    context.show(&shown, || lines.iter().map(|line| format!("{line}\n")).collect())
}

/// What a CronJob waits for, in sentences.
fn explanation(found: &Found, farm: Option<&str>, now: Timestamp) -> Vec<String> {
    let id = &found.id;
    let mut lines = Vec::new();
    match (&found.spec, &found.status) {
        (Err(problems), _) => {
            lines.push(format!("{id} makes no jobs: its record is not valid"));
            lines.extend(problems.iter().map(|problem| format!("  {problem}")));
        }
        (Ok(spec), _) if spec.deleting => lines.push(format!("{id} is being deleted")),
        (Ok(spec), _) if spec.suspend => {
            lines.push(format!("{id} is suspended; to resume it: rcfarm cron resume {id}"));
        }
        (Ok(_), None) => lines.push(format!("no farm has looked at {id} yet")),
        (Ok(_), Some(status)) => {
            let message = match status.message.is_empty() {
                true => String::new(),
                false => format!(": {}", status.message),
            };
            lines.push(format!("{id} is {}{message}", status.reason));
        }
    }
    if let Ok(spec) = &found.spec {
        lines.push(format!("schedule: {}", spec.schedule.describe()));
        if let Some(next) = found.next(now) {
            let local = spec.schedule.local(next);
            lines.push(format!("next run: {local}, in {}", age(now, next)));
        }
    }
    for run in found.status.iter().flat_map(|status| &status.jobs).rev() {
        lines.push(format!("run of {:.0}: job {} {}", run.scheduled, run.name, run.state));
    }
    lines.push(match farm {
        Some(farm) => format!("farm {farm} works on it"),
        None => "no farm works on it: rcfarm farm list".to_owned(),
    });
    lines
}
