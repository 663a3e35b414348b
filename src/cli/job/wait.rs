//! `rcfarm job wait`.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout_at;

use super::find::{find, look_up, none};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{Progress, duration};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::{Stored, key};
use rcfarm_store::Query;
use rcfarm_store::time::monotonic;

/// Longest wait of one blocking query.
const ONE_WAIT: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub struct WaitArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: Namespaced,
    /// State to wait for
    #[arg(long = "for", value_name = "STATE", default_value = "end")]
    until: Until,
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    timeout: Duration,
}

/// State that a wait ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// Completed, failed or terminated
    End,
    /// Running
    Running,
    /// Suspended or aborted, with no running pod
    Stopped,
}

impl Until {
    fn is_over(self, phase: JobPhase) -> bool {
        phase.is_final()
            || match self {
                Until::End => false,
                Until::Running => phase == JobPhase::Running,
                Until::Stopped => phase == JobPhase::Aborted,
            }
    }

    fn is_reached(self, phase: JobPhase) -> bool {
        match self {
            Until::End => phase == JobPhase::Completed,
            Until::Running => matches!(phase, JobPhase::Running | JobPhase::Completed),
            Until::Stopped => phase == JobPhase::Aborted || phase.is_final(),
        }
    }
}

pub(super) async fn run(context: &CommandContext, args: &WaitArgs) -> anyhow::Result<CliExit> {
    let found = find(context, &args.job).await?;
    let uid = JobUid(found.uid());
    let give_up = monotonic() + args.timeout;
    let status_key = key::job_status(&args.job);
    let mut progress = Progress::default();
    let mut said = "no farm has looked at it yet".to_owned();
    let mut query = Query::PLAIN;
    loop {
        let gave_up = |said: &str| {
            let waited = humantime::format_duration(args.timeout);
            failure(
                format!("gave up waiting after {waited}: {said}"),
                format!("what holds it up: rcfarm job explain {}", args.job),
            )
        };
        let read = context.persist(async || context.store.get(&status_key, query).await);
        let Ok(answer) = timeout_at(give_up, read).await else { return Err(gave_up(&said)) };
        let answer = answer?;
        query = Query::after(answer.index, ONE_WAIT);
        let status = answer.value.and_then(|entry| JobStatus::decode(&entry.value).ok());
        match status.filter(|status| status.uid == uid) {
            Some(status) => {
                said = summary(&status);
                progress.say(&said);
                if args.until.is_over(status.state.phase) {
                    drop(progress);
                    return end(context, args, &status);
                }
            }
            None => {
                // The record was deleted, or another job has its name now.
                let again = context.persist(async || look_up(context, &args.job).await);
                let Ok(again) = timeout_at(give_up, again).await else {
                    return Err(gave_up(&said));
                };
                let again = again?.ok_or_else(|| none(&args.job))?;
                if again.uid() != uid.0 {
                    let why = format!("{} was deleted, and another job has its name", args.job);
                    return Err(failure(why, "see it: rcfarm job get"));
                }
                progress.say(&said);
            }
        }
    }
}

fn end(context: &CommandContext, args: &WaitArgs, status: &JobStatus) -> anyhow::Result<CliExit> {
    let phase = status.state.phase;
    let shown = json!({"job": args.job, "phase": phase, "reason": status.state.reason,
        "message": status.state.message, "failures": status.failures});
    let why = match &*status.state.message {
        "" => String::new(),
        message => format!("; {message}"),
    };
    context.show(&shown, || format!("{}: {}{why}", args.job, summary(status)))?;
    Ok(if args.until.is_reached(phase) { CliExit::Ok } else { CliExit::Found })
}

pub(super) fn summary(status: &JobStatus) -> String {
    let (state, m) = (&status.state, status.members);
    let counts = format!(
        "{} pending, {} running, {} succeeded, {} failed",
        m.pending, m.running, m.succeeded, m.failed
    );
    let array = status.array.as_ref().map(|array| format!("; array: {array}")).unwrap_or_default();
    // Once it has completed, earlier failures do not matter.
    let failure = status.failures.last().filter(|_| state.phase != JobPhase::Completed);
    let failure = failure.map(|failure| format!("; {failure}")).unwrap_or_default();
    format!("{} ({}); {counts}{array}{failure}", state.phase, state.reason)
}
