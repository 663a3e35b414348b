//! `rcfarm job list`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::find::{FoundJob, all};
use super::watch::watch;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{age, or_dash};
use crate::job::dependencies::{self, TargetState};
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{Namespace, Namespaced};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::{JobReason, JobState, Slots};
use rcfarm_api::labels::Selector;

#[derive(clap::Args)]
pub struct JobListArgs {
    /// Only jobs of this namespace (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE")]
    within: Option<Namespace>,
    /// Only jobs of this queue
    #[arg(short, long)]
    queue: Option<String>,
    /// Only jobs whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// Print a line for each change of a status
    #[arg(short, long)]
    watch: bool,
}

impl JobListArgs {
    fn selects(&self, found: &FoundJob) -> bool {
        let queue = found.read.as_ref().ok().map(|read| &read.spec.queue);
        self.within.as_ref().is_none_or(|within| found.id.namespace == *within)
            && self.selector.as_ref().is_none_or(|selector| selector.matches(&found.labels))
            && self.queue.as_ref().is_none_or(|wanted| queue == Some(wanted))
    }
}

#[derive(Serialize)]
struct Row {
    job: Namespaced,
    kind: Option<String>,
    /// `None`: no farm has handled it yet. A job that waits for others has no status, and is pending.
    phase: Option<JobPhase>,
    reason: Option<String>,
    queue: Option<String>,
    members: u32,
    pending: u32,
    running: u32,
    /// Members, or tasks of an array.
    succeeded: u32,
    failed: u32,
    retry_count: u32,
    created: Option<Timestamp>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

/// Jobs by name.
type Jobs<'a> = BTreeMap<&'a Namespaced, &'a FoundJob>;

/// Whether a job without a status waits for others.
fn waits_for_others(found: &FoundJob, all: &Jobs<'_>) -> bool {
    let is_waiting =
        found.status.is_none() && found.read.as_ref().is_ok_and(|read| !read.spec.deleting);
    if !is_waiting {
        return false;
    }
    let waited_for = dependencies::in_document(&found.id, &found.document).unwrap_or_default();
    waited_for.iter().any(|one| {
        let state = match all.get(&one.job(&found.id)) {
            None => TargetState::Missing,
            Some(other) => match other.status.as_ref().map(|status| status.state.phase) {
                Some(phase) if phase.is_final() => TargetState::Ended(phase),
                _ => TargetState::Active,
            },
        };
        one.unmet(state).is_some()
    })
}

fn row(found: &FoundJob, all: &Jobs<'_>) -> Row {
    let spec = found.read.as_ref().ok().map(|read| &read.spec);
    let status = found.status.clone().unwrap_or_default();
    let invalid = found.read.as_ref().err().and_then(|problems| problems.first());
    let of_array = |indexes: &Slots| u32::try_from(indexes.len()).unwrap_or(u32::MAX);
    let array = status.array.as_ref();
    let array = array.map(|array| [&array.completed_indexes, &array.failed_indexes].map(of_array));
    let [succeeded, failed] = array.unwrap_or([status.members.succeeded, status.members.failed]);
    let mut state = found.status.as_ref().map(|status| &status.state).cloned();
    if waits_for_others(found, all) {
        let reason = JobReason::WaitingForDependency.to_string();
        state = Some(JobState { phase: JobPhase::Pending, reason, ..JobState::default() });
    }
    Row {
        job: found.id.clone(),
        kind: spec.map(|spec| spec.kind().to_owned()),
        phase: state.as_ref().map(|state| state.phase),
        reason: state.map(|state| state.reason),
        queue: spec.map(|spec| spec.queue.clone()),
        members: spec.map_or(0, rcfarm_api::job::spec::JobSpec::replicas),
        pending: status.members.pending,
        running: status.members.running,
        succeeded,
        failed,
        retry_count: status.retry_count,
        created: status.created,
        invalid: invalid.map(ToString::to_string),
    }
}

pub(super) async fn run(context: &CommandContext, args: &JobListArgs) -> anyhow::Result<CliExit> {
    if args.watch {
        return watch(context, |found| args.selects(found)).await;
    }
    let found = all(context).await?;
    let all: Jobs<'_> = found.iter().map(|found| (&found.id, found)).collect();
    let selected = found.iter().filter(|found| args.selects(found));
    let rows: Vec<Row> = selected.map(|found| row(found, &all)).collect();
    let now = context.now();
    context.show_rows(
        &rows,
        "there are no jobs; to make one: rcfarm apply -f FILE",
        &[
            ("JOB", &|row| row.job.to_string()),
            ("KIND", &|row| or_dash(row.kind.as_ref())),
            ("PHASE", &|row| or_dash(row.phase)),
            ("REASON", &|row| match &row.invalid {
                Some(_) => "InvalidRecord".to_owned(),
                None => or_dash(row.reason.as_ref()),
            }),
            ("QUEUE", &|row| or_dash(row.queue.as_ref())),
            ("RUNNING", &|row| format!("{}/{}", row.running, row.members)),
            ("SUCCEEDED", &|row| row.succeeded.to_string()),
            ("FAILED", &|row| row.failed.to_string()),
            ("RETRIES", &|row| row.retry_count.to_string()),
            ("AGE", &|row| or_dash(row.created.map(|created| age(created, now)))),
        ],
    )
}
