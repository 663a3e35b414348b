//! `rcfarm job logs`: logs of one member of a job, or of all.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::find::{FoundJob, FoundPod, find, pods};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::Progress;
use crate::cli::pod::{LogQuery, open_log};
use rcfarm_api::ids::{Namespaced, PodRef};
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::{JobStatus, MemberFailure};
use rcfarm_store::time::monotonic;

/// Pause between looks for new pods.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A log without new output for this long after the end of the job is complete. Nodes send new output twice a second.
const QUIET: Duration = Duration::from_millis(1_500);

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
    /// Also print new output as it is written, until the job has ended; waits for pods that have not started
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Number of last lines to begin with; 0: the whole log
    #[arg(long, default_value_t = 100)]
    pub(super) lines: usize,
    /// File with the token of agents that serve logs on the network
    #[arg(long, env = "RCFARM_LOG_TOKEN_FILE", value_name = "FILE")]
    pub(super) log_token_file: Option<PathBuf>,
}

/// The log of a container of a member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MemberLog {
    slot: Slot,
    /// `None`: its only one.
    container: Option<String>,
    place: PodRef,
    version: u64,
    attempt: u32,
}

impl MemberLog {
    fn name(&self) -> String {
        match &self.container {
            Some(container) => format!("{}/{container}", self.slot),
            None => self.slot.to_string(),
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
    if args.follow {
        follow(context, args).await?;
        return Ok(CliExit::Ok);
    }
    let all = member_logs(&found, &pods(context, &args.job).await?, args);
    if all.is_empty() {
        let why = format!("no pod of {} has started: {}", args.job, state(&found));
        return Err(failure(why, "wait for it with --follow"));
    }
    let is_alone = is_alone(&found, &all, args);
    for log in &all {
        let printed = print(context, log, args, is_alone, &Rc::new(Cell::new(monotonic()))).await;
        match printed {
            Err(error) if !is_alone => context.note(format!("{}: {error}", log.name())),
            printed => printed?,
        }
    }
    Ok(CliExit::Ok)
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

fn is_task(args: &JobLogsArgs, name: &str) -> bool {
    args.task.as_ref().is_none_or(|task| name.eq_ignore_ascii_case(task))
}

/// Whether lines need no prefix: one log is all that the arguments select.
fn is_alone(found: &FoundJob, all: &[MemberLog], args: &JobLogsArgs) -> bool {
    wanted(found, args).unwrap_or(all.len()) == 1 && all.iter().all(|log| log.container.is_none())
}

/// Logs of the selected members that a node has reported.
fn member_logs(found: &FoundJob, pods: &[FoundPod], args: &JobLogsArgs) -> Vec<MemberLog> {
    let mut all = Vec::new();
    for pod in pods {
        let slot = &pod.identity.slot;
        if pod.identity.uid.0 != found.uid()
            || pod.status.is_none()
            || !is_task(args, &slot.task)
            || args.index.is_some_and(|index| index != slot.index)
        {
            continue;
        }
        let task = found.read.as_ref().ok().and_then(|read| read.spec.task(&slot.task));
        let containers = task.map(|task| task.template.containers.as_slice()).unwrap_or_default();
        let names = match (&args.container, containers) {
            (Some(name), _) => vec![Some(name.clone())],
            (None, [] | [_]) => vec![None],
            (None, several) => several.iter().map(|one| Some(one.name.clone())).collect(),
        };
        all.extend(names.into_iter().map(|container| MemberLog {
            slot: slot.clone(),
            container,
            place: pod.place.clone(),
            version: pod.identity.version,
            attempt: pod.identity.attempt,
        }));
    }
    all
}

fn state(found: &FoundJob) -> String {
    let Some(status) = &found.status else { return "no farm has looked at it yet".to_owned() };
    let state = &status.state;
    let message = if state.message.is_empty() { "" } else { ": " };
    format!("{} ({}){message}{}", state.phase, state.reason, state.message)
}

/// Prints one log. `at`: time of the last output.
async fn print(
    context: &CommandContext,
    log: &MemberLog,
    args: &JobLogsArgs,
    is_alone: bool,
    at: &Rc<Cell<Instant>>,
) -> anyhow::Result<()> {
    let query = LogQuery {
        launchable: log.container.as_deref(),
        follow: args.follow,
        lines: args.lines,
        token_file: args.log_token_file.as_deref(),
    };
    let mut news = open_log(context, &log.place, &query).await?;
    let prefix = if is_alone { String::new() } else { format!("{} | ", log.name()) };
    let mut line = Vec::new();
    while let Some(chunk) = news.next().await {
        // It breaks off when the node's agent stops.
        let Ok(chunk) = chunk else { break };
        at.set(monotonic());
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if is_alone || line.ends_with(b"\n") {
                write(&prefix, &mut line)?;
            }
        }
    }
    if !line.is_empty() {
        line.push(b'\n');
    }
    write(&prefix, &mut line)
}

fn write(prefix: &str, line: &mut Vec<u8>) -> anyhow::Result<()> {
    if !line.is_empty() {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(prefix.as_bytes())?;
        stdout.write_all(line)?;
        stdout.flush()?;
        line.clear();
    }
    Ok(())
}

/// Prints the logs of all attempts as they are written, until the job has ended or is gone. Returns its last status.
pub(super) async fn follow(
    context: &CommandContext,
    args: &JobLogsArgs,
) -> anyhow::Result<Option<JobStatus>> {
    let mut found = find(context, &args.job).await?;
    let uid = found.uid();
    let at = Rc::new(Cell::new(monotonic()));
    let (mut opened, mut open) = (BTreeSet::new(), FuturesUnordered::new());
    let mut progress = Some(Progress::default());
    loop {
        let all = member_logs(&found, &pods(context, &args.job).await?, args);
        let is_alone = is_alone(&found, &all, args);
        for log in all {
            if !opened.insert(log.clone()) {
                continue;
            }
            progress = None;
            at.set(monotonic());
            let at = at.clone();
            open.push(async move {
                if let Err(error) = print(context, &log, args, is_alone, &at).await {
                    context.note(format!("{}: {error}", log.name()));
                }
            });
        }
        if let Some(progress) = &mut progress {
            progress.say(&state(&found));
        }
        let has_ended = found.status.as_ref().is_some_and(|status| status.state.phase.is_final());
        if has_ended && (open.is_empty() || monotonic() >= at.get() + QUIET) {
            return Ok(found.status);
        }
        let pause = tokio::time::sleep(LOOK_EVERY);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = &mut pause => break,
                Some(()) = open.next(), if !open.is_empty() => {}
            }
        }
        match find(context, &args.job).await {
            Ok(again) if again.uid() == uid => found = again,
            // It was deleted.
            _ => return Ok(None),
        }
    }
}
