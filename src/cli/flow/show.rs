//! `rcfarm flow list`, `status`, `tree`, `explain`

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::kind::JOB_FLOW;
use crate::cli::context::CommandContext;
use crate::cli::documents::find;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{age, fields, or_dash, table};
use crate::flow::document::{self, FlowSpec, FlowStep};
use rcfarm_api::flow::{FlowJob, FlowPhase, FlowReason, FlowStatus};
use rcfarm_api::ids::{Namespace, Namespaced, ObjectName};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::{FieldError, Stored, Timestamp, key};
use rcfarm_store::Entry;

#[derive(clap::Args)]
pub struct FlowListArgs {
    /// Only those of this namespace (`--namespace` is that of Consul Enterprise)
    #[arg(long = "in", value_name = "NAMESPACE")]
    within: Option<Namespace>,
}

impl FlowListArgs {
    pub(super) fn shows(&self, id: &Namespaced) -> bool {
        self.within.as_ref().is_none_or(|within| id.namespace == *within)
    }
}

/// A flow's record with its status.
struct Found {
    id: Namespaced,
    entry: Entry,
    spec: Result<FlowSpec, Vec<FieldError>>,
    /// The default if no farm has looked at it yet.
    status: FlowStatus,
}

impl Found {
    fn new(id: Namespaced, entry: Entry, status: Option<&Entry>) -> Found {
        let spec = document::decode(&id, &entry.value);
        let status = status.and_then(|entry| FlowStatus::decode(&entry.value).ok());
        let status = status.filter(|status| status.uid == entry.create_index).unwrap_or_default();
        Found { id, entry, spec, status }
    }

    /// Whether a farm has looked at it.
    fn is_known(&self) -> bool {
        self.status.revision > 0
    }

    fn jobs(&self) -> BTreeMap<&ObjectName, &FlowJob> {
        self.status.job_status_list.iter().map(|job| (&job.step, job)).collect()
    }

    fn steps(&self) -> &[FlowStep] {
        self.spec.as_ref().map_or(&[], |spec| &spec.steps)
    }
}

async fn look_up(context: &CommandContext, id: &Namespaced) -> anyhow::Result<Found> {
    let (entry, _) = find(context, &JOB_FLOW, id).await?;
    let status = context.get(&key::job_flow_status(id)).await?;
    Ok(Found::new(id.clone(), entry, status.as_ref()))
}

#[derive(Serialize)]
struct Row {
    flow: Namespaced,
    /// `None`: no farm has handled it yet.
    phase: Option<FlowPhase>,
    reason: Option<FlowReason>,
    steps: usize,
    completed: usize,
    running: usize,
    failed: usize,
    skipped: usize,
    completion_time: Option<Timestamp>,
    /// Why the record is invalid.
    invalid: Option<String>,
}

fn row(found: &Found) -> Row {
    let status = &found.status;
    let problem = found.spec.as_ref().err().and_then(|problems| problems.first());
    Row {
        flow: found.id.clone(),
        phase: found.is_known().then_some(status.state.phase),
        reason: found.is_known().then_some(status.reason),
        steps: found.steps().len(),
        completed: status.completed_jobs.len(),
        running: status.running_jobs.len(),
        failed: status.failed_jobs.len() + status.terminated_jobs.len(),
        skipped: status.skipped_steps.len(),
        completion_time: status.completion_time,
        invalid: problem.map(ToString::to_string),
    }
}

fn reason(row: &Row) -> String {
    match &row.invalid {
        Some(_) => FlowReason::InvalidRecord.to_string(),
        None => or_dash(row.reason),
    }
}

pub(super) async fn list(context: &CommandContext, args: &FlowListArgs) -> anyhow::Result<CliExit> {
    let statuses = context.list(&key::job_flow_statuses()).await?;
    let prefix = key::job_flows();
    let now = context.now();
    let mut rows = Vec::new();
    for entry in context.list(&prefix).await? {
        let Some(id) = key::namespaced(&prefix, &entry.key).filter(|id| args.shows(id)) else {
            continue;
        };
        let status = key::job_flow_status(&id);
        let status = statuses.iter().find(|entry| entry.key == status.as_str());
        rows.push(row(&Found::new(id, entry, status)));
    }
    context.show_rows(
        &rows,
        "there are no JobFlows; to make one: rcfarm apply -f FILE",
        &[
            ("FLOW", &|row| row.flow.to_string()),
            ("PHASE", &|row| or_dash(row.phase)),
            ("REASON", &reason),
            ("STEPS", &|row| row.steps.to_string()),
            ("COMPLETED", &|row| row.completed.to_string()),
            ("RUNNING", &|row| row.running.to_string()),
            ("FAILED", &|row| row.failed.to_string()),
            ("SKIPPED", &|row| row.skipped.to_string()),
            ("ENDED", &|row| or_dash(row.completion_time.map(|at| age(at, now)))),
        ],
    )
}

/// State of a step, in a word.
fn word(found: &Found, step: &ObjectName, job: Option<&FlowJob>) -> String {
    match job {
        Some(job) => job.state.to_string(),
        None if found.status.skipped_steps.contains(step) => "Skipped".to_owned(),
        None => "Waiting".to_owned(),
    }
}

pub(super) async fn status(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = look_up(context, id).await?;
    let document: Value = serde_json::from_slice(&found.entry.value).unwrap_or_default();
    let (row, jobs) = (row(&found), found.jobs());
    let status = found.is_known().then_some(&found.status);
    let shown = json!({"record": document, "status": status, "invalid": row.invalid});
    context.show(&shown, || {
        let head = fields([
            ("flow", row.flow.to_string()),
            ("phase", or_dash(row.phase)),
            ("reason", reason(&row)),
            ("message", or_dash(Some(&found.status.message).filter(|text| !text.is_empty()))),
            ("invalid", or_dash(row.invalid.as_ref())),
            ("ended", or_dash(row.completion_time.map(|at| format!("{at:.0}")))),
        ]);
        let time = |at: Option<Timestamp>| or_dash(at.map(|at| format!("{at:.0}")));
        let job = |step: &&FlowStep| jobs.get(&step.name).copied();
        let steps: Vec<&FlowStep> = found.steps().iter().collect();
        let steps = table(
            &steps,
            &[
                ("STEP", &|step| step.name.to_string()),
                ("STATE", &|step| word(&found, &step.name, job(step))),
                ("JOB", &|step| or_dash(job(step).map(|job| &job.name))),
                ("RETRIES", &|step| or_dash(job(step).map(|job| job.retries))),
                ("STARTED", &|step| time(job(step).map(|job| job.start_timestamp))),
                ("ENDED", &|step| time(job(step).and_then(|job| job.end_timestamp))),
            ],
        );
        format!("{head}\n{steps}")
    })
}

pub(super) async fn tree(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = look_up(context, id).await?;
    let spec = found.spec.as_ref().map_err(|problems| {
        failure(FieldError::list(problems), "correct the JobFlow: rcfarm apply -f FILE")
    })?;
    let jobs = found.jobs();
    let lines = branches(spec);
    let shown: Vec<Value> = lines
        .iter()
        .map(|(depth, at)| {
            let step = &spec.steps[*at];
            let targets: Vec<&ObjectName> =
                step.targets.iter().map(|t| &spec.steps[*t].name).collect();
            let job = jobs.get(&step.name);
            json!({"step": step.name, "depth": depth, "dependsOn": targets,
                "state": word(&found, &step.name, job.copied()), "job": job.map(|job| &job.name)})
        })
        .collect();
    context.show(&shown, || {
        let line = |(depth, at): &(usize, usize)| {
            let step = &spec.steps[*at];
            let job = jobs.get(&step.name).copied();
            let more = step.targets.len().saturating_sub(1);
            let also = if more > 0 { format!(", and after {more} more") } else { String::new() };
            let made = job.map(|job| format!(" job {}", job.name)).unwrap_or_default();
            let state = word(&found, &step.name, job);
            format!(
                "{:indent$}{} {state}{made}{also}\n",
                "",
                step.name,
                indent = 2 * depth.min(&MOST_INDENTED)
            )
        };
        lines.iter().map(line).collect()
    })
}

/// Deeper steps of a tree are not indented further.
const MOST_INDENTED: usize = 40;

/// Each step once, below the last of the steps that it depends on: its depth and its position.
fn branches(spec: &FlowSpec) -> Vec<(usize, usize)> {
    let mut rank = vec![0; spec.steps.len()];
    for (n, at) in spec.order.iter().enumerate() {
        rank[*at] = n;
    }
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); spec.steps.len()];
    let mut open = Vec::new();
    for at in spec.order.iter().rev() {
        match spec.steps[*at].targets.iter().max_by_key(|target| rank[**target]) {
            Some(parent) => below[*parent].push(*at),
            None => open.push((0, *at)),
        }
    }
    let mut lines = Vec::new();
    while let Some((depth, at)) = open.pop() {
        lines.push((depth, at));
        open.extend(below[at].iter().map(|child| (depth + 1, *child)));
    }
    lines
}

pub(super) async fn explain(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = look_up(context, id).await?;
    let lock = match key::job_flow_locks().key_of(&id.to_string()) {
        Some(lock) => context.get(&lock).await?,
        None => None,
    };
    let farm = lock.filter(|lock| lock.session.is_some());
    let farm = farm.map(|lock| String::from_utf8_lossy(&lock.value).into_owned());
    let lines = explanation(&found, farm.as_deref());
    let status = found.is_known().then_some(&found.status);
    let shown = json!({"flow": id, "farm": farm, "status": status, "explanation": lines});
    context.show(&shown, || lines.iter().map(|line| format!("{line}\n")).collect())
}

/// What a flow and its steps wait for, in sentences.
fn explanation(found: &Found, farm: Option<&str>) -> Vec<String> {
    let (id, status) = (&found.id, &found.status);
    let mut lines = Vec::new();
    match &found.spec {
        Err(problems) => {
            lines.push(format!("{id} makes no jobs: its record is not valid"));
            lines.extend(problems.iter().map(|problem| format!("  {problem}")));
        }
        Ok(spec) if spec.deleting => lines.push(format!("{id} is being deleted")),
        Ok(_) if !found.is_known() => lines.push(format!("no farm has looked at {id} yet")),
        Ok(_) => {
            let message = match status.message.as_str() {
                "" => String::new(),
                message => format!(": {message}"),
            };
            lines.push(format!("{id} is {} ({}){message}", status.state.phase, status.reason));
        }
    }
    let jobs = found.jobs();
    for step in found.steps() {
        lines.push(match jobs.get(&step.name) {
            Some(job) => of_job(step, job),
            None if status.skipped_steps.contains(&step.name) => {
                format!("step {} is skipped: what it depends on cannot hold any more", step.name)
            }
            None => {
                let has_ended = |target: &FlowStep| {
                    let job = jobs.get(&target.name);
                    job.is_some_and(|job| job.state.is_final())
                        || status.skipped_steps.contains(&target.name)
                };
                let targets = step.targets.iter().map(|target| &found.steps()[*target]);
                let open: Vec<String> = targets
                    .filter(|target| !has_ended(target))
                    .map(|target| target.name.to_string())
                    .collect();
                match open.is_empty() {
                    true => format!("step {} has no job yet", step.name),
                    false => format!("step {} waits for {}", step.name, open.join(", ")),
                }
            }
        });
    }
    lines.push(match farm {
        Some(farm) => format!("farm {farm} works on it"),
        None => "no farm works on it: rcfarm farm list".to_owned(),
    });
    lines
}

fn of_job(step: &FlowStep, job: &FlowJob) -> String {
    let hint = match job.state {
        JobPhase::Completed => String::new(),
        _ if job.is_deleted() => String::new(),
        _ => format!("; rcfarm job explain {}", job.name),
    };
    let retries = match job.retries {
        0 => String::new(),
        times => format!(" after {times} of {} retries", step.retry),
    };
    format!("step {}: job {} is {}{retries}{hint}", step.name, job.name, job.state)
}
