//! `rcfarm job logs`: logs of one member of a job, or of all.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::pin::Pin;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::attempt::attempt;
use super::find::{FoundJob, FoundPod, find, pods};
use super::follow::follow;
use super::reading::{ReadEnd, ReadOutcome};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::pod::{LogError, LogQuery, LogReadArgs, LogStart, OpenLog, open_log};
use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::spec::{JobTask, Slot};
use rcfarm_api::job::status::MemberFailure;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_node::agent::log_position::LogPosition;
use rcfarm_store::time::monotonic;

#[derive(clap::Args)]
pub struct JobLogsArgs {
    /// The job: its name, or <namespace>/<name>
    #[arg(value_name = "JOB")]
    pub(super) job: Namespaced,
    /// Only pods of this task
    #[arg(long)]
    pub(super) task: Option<String>,
    /// Only pods with this index in their task
    #[arg(long)]
    pub(super) index: Option<u32>,
    /// Only this container
    #[arg(long)]
    pub(super) container: Option<String>,
    /// Print the end of the output of the last failed runs, from the job's status; their pods may be gone
    #[arg(short, long, conflicts_with = "follow")]
    pub(super) previous: bool,
    /// Print the logs of this attempt of the members, from 1 as in job tree; nodes keep them for a while
    #[arg(long, value_name = "N", conflicts_with_all = ["follow", "previous"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) attempt: Option<u32>,
    #[command(flatten)]
    pub(super) read: LogReadArgs,
}

/// The log of a container of a member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberLog {
    pub(super) slot: Slot,
    /// `None`: its only one.
    pub(super) container: Option<String>,
    pub(super) place: PodRef,
    /// The job's uid.
    pub(super) uid: u64,
    pub(super) attempt: u32,
}

impl MemberLog {
    pub(super) fn name(&self) -> String {
        match &self.container {
            Some(container) => format!("{}/{container}", self.slot),
            None => self.slot.to_string(),
        }
    }

    pub(super) fn query<'q>(&'q self, args: &'q JobLogsArgs, start: LogStart) -> LogQuery<'q> {
        LogQuery {
            launchable: self.container.as_deref(),
            follow: false,
            start,
            is_split: false,
            attempt: Some((self.uid, self.attempt)),
            token_file: args.read.log_token_file.as_deref(),
        }
    }
}

pub(super) async fn logs(context: &CommandContext, args: &JobLogsArgs) -> anyhow::Result<CliExit> {
    let found = find(context, &args.job).await?;
    if wanted(&found, args).is_some_and(|wanted| wanted == 0) {
        let hint = format!("see its pods: rcfarm job tree {}", args.job);
        return Err(failure(format!("{} has no such pod", args.job), hint));
    }
    if args.previous {
        return previous(context, &found, args);
    }
    if let Some(number) = args.attempt {
        return attempt(context, &found, args, number).await;
    }
    if args.read.follow {
        let followed = follow(context, args).await?;
        return followed.nothing_read.map_or(Ok(CliExit::Ok), Err);
    }
    let all = member_logs(&found, &pods(context, &args.job).await?, args);
    if all.is_empty() {
        let why = format!("no pod of {} has started: {}", args.job, state(&found));
        return Err(failure(why, "wait for it with --follow"));
    }
    let is_alone = is_alone(&found, all.keys(), args);
    let (mut failures, number) = (Vec::new(), all.len());
    for log in all.keys() {
        if let Err(error) = print_log(context, log, args, is_alone).await? {
            failures.push((log, anyhow::Error::from(error)));
        }
    }
    if failures.len() == number {
        return failures.pop().map_or(Ok(CliExit::Ok), |(_, error)| Err(error));
    }
    for (log, error) in failures {
        context.note(format!("{}: {error}", log.name()));
    }
    Ok(CliExit::Ok)
}

/// Prints what a log has now. The inner error is the agent's; the outer one that of standard output.
pub(super) async fn print_log(
    context: &CommandContext,
    log: &MemberLog,
    args: &JobLogsArgs,
    is_alone: bool,
) -> anyhow::Result<Result<(), LogError>> {
    let query = log.query(args, LogStart::Lines(args.read.lines));
    let prefix = if is_alone { String::new() } else { format!("{} | ", log.name()) };
    let (never, at) = (std::future::pending(), Cell::new(monotonic()));
    let mut end = read(context, &log.place, &query, Vec::new(), &prefix, never, &at).await?;
    if !end.line.is_empty() {
        end.line.push(b'\n');
    }
    print(&prefix, &mut end.line)?;
    Ok(match end.outcome {
        ReadOutcome::Complete | ReadOutcome::Stopped => Ok(()),
        ReadOutcome::Failed(error) => Err(error),
    })
}

/// Prints the output of the failures that the job's status has.
fn previous(
    context: &CommandContext,
    found: &FoundJob,
    args: &JobLogsArgs,
) -> anyhow::Result<CliExit> {
    let failures = found.status.iter().flat_map(|status| &status.failures);
    let is_wanted = |failure: &&MemberFailure| {
        is_task(args, &failure.slot.task)
            && args.index.is_none_or(|index| failure.slot.index == index)
    };
    let failures: Vec<&MemberFailure> = failures.filter(is_wanted).collect();
    if failures.is_empty() {
        let hint = format!("what is known: rcfarm job explain {}", args.job);
        return Err(failure(format!("{} has no such failure", args.job), hint));
    }
    context.show(&failures, || match &failures[..] {
        [one] if !one.output.is_empty() => one.output.clone(),
        all => all.iter().map(|failure| format!("{failure}\n{}\n", failure.output)).collect(),
    })
}

/// Number of members that the arguments select; `None`: the record is not valid.
fn wanted(found: &FoundJob, args: &JobLogsArgs) -> Option<usize> {
    let spec = &found.read.as_ref().ok()?.spec;
    let tasks = spec.tasks.iter().filter(|task| is_task(args, &task.name));
    let count = |replicas: u32| match args.index {
        Some(index) => usize::from(index < replicas),
        None => replicas as usize,
    };
    Some(tasks.map(|task| count(task.replicas)).sum())
}

pub(super) fn is_task(args: &JobLogsArgs, name: &str) -> bool {
    args.task.as_ref().is_none_or(|task| name.eq_ignore_ascii_case(task))
}

/// Whether lines need no prefix: one log is all that the arguments select.
pub(super) fn is_alone<'l>(
    found: &FoundJob,
    all: impl Iterator<Item = &'l MemberLog>,
    args: &JobLogsArgs,
) -> bool {
    let all: Vec<_> = all.collect();
    wanted(found, args).unwrap_or(all.len()) == 1 && all.iter().all(|log| log.container.is_none())
}

/// Logs of the selected members that a node has reported, with the phases of their pods.
pub(super) fn member_logs(
    found: &FoundJob,
    pods: &[FoundPod],
    args: &JobLogsArgs,
) -> BTreeMap<MemberLog, NodePodPhase> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let slot = &pod.identity.slot;
        let Some(status) = &pod.status else { continue };
        if pod.identity.uid.0 != found.uid()
            || !is_task(args, &slot.task)
            || args.index.is_some_and(|index| index != slot.index)
        {
            continue;
        }
        let task = found.read.as_ref().ok().and_then(|read| read.spec.task(&slot.task));
        all.extend(containers(task, args).into_iter().map(|container| {
            let log = MemberLog {
                slot: slot.clone(),
                container,
                place: pod.place.clone(),
                uid: found.uid().0,
                attempt: pod.identity.attempt,
            };
            (log, status.phase)
        }));
    }
    all
}

/// The containers of a task's pods whose logs are wanted. `None`: the only one.
pub(super) fn containers(task: Option<&JobTask>, args: &JobLogsArgs) -> Vec<Option<String>> {
    let all = task.map(|task| task.template.containers.as_slice()).unwrap_or_default();
    match (&args.container, all) {
        (Some(name), _) => vec![Some(name.clone())],
        (None, [] | [_]) => vec![None],
        (None, several) => several.iter().map(|one| Some(one.name.clone())).collect(),
    }
}

pub(super) fn state(found: &FoundJob) -> String {
    let Some(status) = &found.status else { return "no farm has looked at it yet".to_owned() };
    let state = &status.state;
    let message = if state.message.is_empty() { "" } else { ": " };
    format!("{} ({}){message}{}", state.phase, state.reason, state.message)
}

/// Reads a log, and prints its lines after `prefix`; without a prefix also parts of lines. `line`: the beginning of a
/// line that an earlier read ended with. `last_output`: time of the last output. The error is that of standard output.
pub(super) async fn read(
    context: &CommandContext,
    place: &PodRef,
    query: &LogQuery<'_>,
    line: Vec<u8>,
    prefix: &str,
    stop: impl Future<Output = ()>,
    last_output: &Cell<Instant>,
) -> anyhow::Result<ReadEnd> {
    tokio::pin!(stop);
    let mut query = *query;
    let mut end = ReadEnd { next: None, line, is_ended: false, outcome: ReadOutcome::Complete };
    loop {
        let open = match open_log(context, place, &query).await {
            Ok(log) => log,
            Err(error) => return Ok(ReadEnd { outcome: ReadOutcome::Failed(error), ..end }),
        };
        // An agent of an older version names no position, and understands none: it sends the whole log.
        let (at, skip) = match (open.position, query.start) {
            (Some(position), _) => (position, 0),
            (None, LogStart::At(position)) => (position, position.offset),
            (None, LogStart::Lines(lines)) if lines > 0 && query.follow => {
                let next = Some(LogStart::At(LogPosition::START));
                return Ok(ReadEnd { next, outcome: ReadOutcome::Stopped, ..end });
            }
            (None, LogStart::Lines(_)) => (LogPosition::START, 0),
        };
        end.is_ended = open.is_ended || open.position.is_none();
        let next = open.next;
        let (length, outcome) =
            copy(open, skip, &mut end.line, prefix, stop.as_mut(), last_output).await?;
        let reached = LogStart::At(at.plus(length));
        end = ReadEnd { next: Some(reached), outcome, ..end };
        match (&end.outcome, next) {
            (ReadOutcome::Complete, Some(next)) => query.start = LogStart::At(next),
            _ => return Ok(end),
        }
    }
}

/// Prints the output of a log but for its first `skip` bytes. Returns the number of bytes printed or put into `line`.
async fn copy(
    mut open: OpenLog,
    mut skip: u64,
    line: &mut Vec<u8>,
    prefix: &str,
    mut stop: Pin<&mut impl Future<Output = ()>>,
    last_output: &Cell<Instant>,
) -> anyhow::Result<(usize, ReadOutcome)> {
    let mut length = 0;
    loop {
        let chunk = tokio::select! {
            biased;
            chunk = open.output.next() => chunk,
            () = &mut stop => return Ok((length, ReadOutcome::Stopped)),
        };
        let chunk = match chunk {
            None => return Ok((length, ReadOutcome::Complete)),
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => {
                let error = anyhow::Error::new(error).context("the log broke off");
                return Ok((length, ReadOutcome::Failed(LogError::Failed(error))));
            }
        };
        last_output.set(monotonic());
        let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
        skip -= skipped as u64;
        length += chunk.len() - skipped;
        for piece in chunk[skipped..].split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if prefix.is_empty() || line.ends_with(b"\n") {
                print(prefix, line)?;
            }
        }
    }
}

pub(super) fn print(prefix: &str, line: &mut Vec<u8>) -> anyhow::Result<()> {
    if !line.is_empty() {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(prefix.as_bytes())?;
        stdout.write_all(line)?;
        stdout.flush()?;
        line.clear();
    }
    Ok(())
}
