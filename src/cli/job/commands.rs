//! Commands to jobs, and `suspend` in a job's record.
//!
//! Keys written: a command key, which the job's owner deletes when it executes the command; or the job's record, by CAS.
//! Each is one transaction with its audit record.

use serde_json::{Value, json};

use super::find::{FoundJob, find};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::job::document;
use rcfarm_api::audit::{Details, JobChange, record_hash};
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::Framework;
use rcfarm_api::job::status::JobReason;
use rcfarm_api::{Stored, key};
use rcfarm_store::{Index, Op};

#[derive(clap::Args)]
pub struct CommandArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    job: Namespaced,
    /// Reason for the status and the audit log
    #[arg(long, default_value = "")]
    reason: String,
}

#[derive(clap::Args)]
pub struct TaskArgs {
    #[command(flatten)]
    command: CommandArgs,
    /// The task
    task: String,
}

#[derive(clap::Args)]
pub struct PodArgs {
    #[command(flatten)]
    command: CommandArgs,
    /// The task
    task: String,
    /// The pod's index in its task, from 0
    index: u32,
}

pub(super) async fn run(
    context: &CommandContext,
    args: &CommandArgs,
    action: CommandAction,
) -> anyhow::Result<CliExit> {
    let found = find(context, &args.job).await?;
    issue(context, &found, &args.reason, action, None, None).await
}

pub(super) async fn restart_task(
    context: &CommandContext,
    args: &TaskArgs,
) -> anyhow::Result<CliExit> {
    let found = find(context, &args.command.job).await?;
    let task = task_of(&found, &args.task)?;
    issue(context, &found, &args.command.reason, CommandAction::RestartTask, Some(task.0), None)
        .await
}

pub(super) async fn restart_pod(
    context: &CommandContext,
    args: &PodArgs,
) -> anyhow::Result<CliExit> {
    let found = find(context, &args.command.job).await?;
    let (task, replicas) = task_of(&found, &args.task)?;
    if args.index >= replicas {
        let why = format!("task {task} of {} has {replicas} pods", found.id);
        return Err(failure(why, "their numbers begin at 0"));
    }
    let action = CommandAction::RestartPod;
    issue(context, &found, &args.command.reason, action, Some(task), Some(args.index)).await
}

fn task_of(found: &FoundJob, name: &str) -> anyhow::Result<(String, u32)> {
    let spec = found.read.as_ref().ok().map(|read| &read.spec);
    match spec.and_then(|spec| spec.role(name)) {
        Some(task) => Ok((task.name.clone(), task.replicas)),
        None => {
            let hint = format!("see its tasks: rcfarm job tree {}", found.id);
            Err(failure(format!("{} has no task {name:?}", found.id), hint))
        }
    }
}

/// Writes a command, which the job's owner executes once.
async fn issue(
    context: &CommandContext,
    found: &FoundJob,
    reason: &str,
    action: CommandAction,
    task: Option<String>,
    index: Option<u32>,
) -> anyhow::Result<CliExit> {
    check_command(found, Some(action))?;
    let id = context.ids.ordered_uuid(context.now());
    let target = Target::Job { job: found.id.clone(), uid: Some(found.uid()), task, index };
    let issued_by = context.actor().to_string();
    let command = Command { action, target, reason: reason.to_owned(), issued_by };
    let change = JobChange {
        reason: reason.to_owned(),
        command: Some(id),
        ..job_change(context, &found.id, action)
    };
    let key = key::job_command(&found.id.namespace, id);
    let op = Op::Cas { key, value: command.encode(), flags: 0, index: Index::ZERO };
    let guard = Op::CheckIndex { key: key::job(&found.id), index: found.entry.modify_index };
    let committed = context.commit([guard, op], &Details::JobChanged(change), None).await?;
    committed.map_err(|_| changed_meanwhile(&found.id))?;
    let shown = json!({"job": found.id, "command": id, "action": action});
    context.show(&shown, || format!("{}: {action} is asked for", found.id))
}

/// Fails if the job's owner would not execute the command. `None`: a suspension.
fn check_command(found: &FoundJob, action: Option<CommandAction>) -> anyhow::Result<()> {
    if let Err(problems) = &found.read {
        let why = format!("no farm can work on {}: {}", found.id, problems[0]);
        return Err(failure(why, "correct the record first"));
    }
    let Some(status) = &found.status else { return Ok(()) };
    let phase = status.state.phase;
    let is = |why: &str| format!("{} is {phase}: {why}", found.id);
    if phase.is_final() {
        return Err(failure(is("nothing leads on from there"), "delete it and apply it again"));
    }
    let has_seen = status.observed_index == found.entry.modify_index;
    if has_seen && status.state.reason == JobReason::ShapeChanged.to_string() {
        let why = format!("nobody works on {}: {}", found.id, status.state.message);
        return Err(failure(why, format!("see it: rcfarm job get {}", found.id)));
    }
    let goes_on = [CommandAction::AbortJob, CommandAction::ResumeJob, CommandAction::TerminateJob];
    match phase {
        JobPhase::Aborting | JobPhase::Aborted
            if action.is_some_and(|action| !goes_on.contains(&action)) =>
        {
            let hint = format!("have it go on first: rcfarm job resume {}", found.id);
            Err(failure(is("nothing is restarted or completed"), hint))
        }
        JobPhase::Completing | JobPhase::Terminating => {
            Err(failure(is("nothing changes that any more"), "wait until it has ended"))
        }
        _ => Ok(()),
    }
}

fn changed_meanwhile(id: &Namespaced) -> anyhow::Error {
    let why = format!("{id}: somebody changed the record meanwhile; nothing was done");
    failure(why, "look at it, then try again")
}

/// Scheduling gate of a suspended pod.
const SUSPENDED_GATE: &str = "suspended";

pub(super) async fn suspend(context: &CommandContext, id: &Namespaced) -> anyhow::Result<CliExit> {
    let found = find(context, id).await?;
    set_suspend(context, &found, true).await
}

/// Resumes a job: a suspended one by its record, an aborted one by a command.
pub(super) async fn resume(
    context: &CommandContext,
    args: &CommandArgs,
) -> anyhow::Result<CliExit> {
    let found = find(context, &args.job).await?;
    if found.read.as_ref().is_ok_and(|read| read.spec.suspend) {
        return set_suspend(context, &found, false).await;
    }
    let phase = found.status.as_ref().map(|status| status.state.phase);
    if !matches!(phase, Some(JobPhase::Aborted | JobPhase::Aborting)) {
        let why = format!("{} is neither suspended nor aborted", found.id);
        return Err(failure(why, format!("see how it is: rcfarm job get {}", found.id)));
    }
    issue(context, &found, &args.reason, CommandAction::ResumeJob, None, None).await
}

async fn set_suspend(
    context: &CommandContext,
    found: &FoundJob,
    suspend: bool,
) -> anyhow::Result<CliExit> {
    check_command(found, None)?;
    let framework = found.read.as_ref().map_or(Framework::Volcano, |read| read.spec.framework);
    let mut document = found.document.clone();
    let in_policy = document.pointer("/spec/runPolicy/suspend").is_some();
    let spec = &mut document["spec"];
    match framework {
        Framework::Pod if suspend => spec["schedulingGates"] = json!([{"name": SUSPENDED_GATE}]),
        Framework::Pod => spec["schedulingGates"] = json!([]),
        Framework::Volcano if !in_policy => spec["suspend"] = Value::Bool(suspend),
        _ => spec["runPolicy"]["suspend"] = Value::Bool(suspend),
    }
    let word = if suspend { "Suspended" } else { "Resumed" };
    write(context, found, &document, word).await?;
    let shown = json!({"job": found.id, "suspend": suspend});
    context.show(&shown, || format!("{}: {}", found.id, word.to_lowercase()))
}

/// Replaces a job's record by CAS.
pub(super) async fn write(
    context: &CommandContext,
    found: &FoundJob,
    document: &Value,
    action: &str,
) -> anyhow::Result<()> {
    let value: bytes::Bytes = document.to_string().into();
    let record = Some(record_hash(&value));
    let change = JobChange { record, ..job_change(context, &found.id, action) };
    let op = Op::Cas {
        key: key::job(&found.id),
        value,
        flags: found.entry.flags,
        index: found.entry.modify_index,
    };
    let committed = context.commit([op], &Details::JobChanged(change), None).await?;
    committed.map_err(|_| changed_meanwhile(&found.id))?;
    Ok(())
}

/// Why a changed document cannot replace a stored one: its labels name another queue. The queue is no part of the spec
/// there.
pub(super) fn queue_conflict(id: &Namespaced, stored: &Value, wanted: &Value) -> Option<String> {
    let queue = |document| document::read(id, document).ok().map(|read| read.spec.queue);
    let (before, after) = (queue(stored)?, queue(wanted)?);
    (before != after).then(|| format!("{id}: its queue cannot change, from {before} to {after}"))
}

/// The audit details of a change of a job.
pub(super) fn job_change(
    context: &CommandContext,
    job: &Namespaced,
    action: impl ToString,
) -> JobChange {
    JobChange {
        job: job.clone(),
        actor: context.actor(),
        action: action.to_string(),
        reason: String::new(),
        command: None,
        record: None,
        step: None,
    }
}
