//! `rcfarm job logs --follow`, `rcfarm job run --follow`: the logs of all members and attempts, until the job has ended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::find::{FoundJob, FoundPod, find, look_up, pods};
use super::member_log::{JobLogsArgs, MemberLog, is_alone, member_logs, state};
use super::print_log::{print, read};
use super::reading::{NextRead, ReadMode, Readings};
use crate::cli::context::CommandContext;
use crate::cli::output::Progress;
use crate::cli::pod::LogQuery;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Query, StoreError};

/// Longest wait for a change of the job's status. The pods are then listed again in any case.
const ONE_WAIT: Duration = Duration::from_secs(60);
/// Pause before the status is waited for again: several changes cost one list of the pods.
const LIST_PAUSE: Duration = Duration::from_millis(200);
/// Once the job has ended, pods that are left are followed until they print nothing for this long.
const QUIET: Duration = Duration::from_millis(1_500);
/// Number of logs named in the note about those that were not read.
const NAMED: usize = 20;

/// Outcome of following a job.
pub(super) struct Followed {
    /// The job's last status. `None`: the job was deleted.
    pub(super) status: Option<JobStatus>,
    /// Why no log at all was read, if there were some.
    pub(super) nothing_read: Option<anyhow::Error>,
}

/// Prints the logs of all attempts as they are written, until the job has ended or is gone.
pub(super) async fn follow(
    context: &CommandContext,
    args: &JobLogsArgs,
) -> anyhow::Result<Followed> {
    let mut found = find(context, &args.job).await?;
    let uid = found.uid();
    let mut readings = Readings::new(args.read.lines);
    let (mut is_seen, mut has_ended) = (false, false);
    let mut progress = Some(Progress::default());
    let mut nothing_read = None;
    let last_output = Cell::new(monotonic());
    let mut open = FuturesUnordered::new();
    let mut listing = Box::pin(list(context, args, Index::ZERO));
    loop {
        match &mut progress {
            Some(progress) if readings.logs().next().is_none() => progress.say(&state(&found)),
            _ => progress = None,
        }
        let is_quiet = monotonic() >= last_output.get() + QUIET;
        if is_seen && has_ended && (is_quiet || !readings.awaits_output()) {
            readings.finish();
        }
        for next in readings.next_reads(monotonic()) {
            let prefix = prefix(&found, &readings, &next.log, args);
            open.push(read_next(context, next, args, prefix, &last_output));
        }
        if readings.is_finished() {
            break;
        }
        tokio::select! {
            biased;
            Some((log, end)) = open.next(), if !open.is_empty() => {
                if let Some(failure) = readings.ended(&log, end?, monotonic()) {
                    context.note(format!("{}: {failure}", log.name()));
                    nothing_read.get_or_insert(failure);
                }
                if let Some(mut line) = readings.last_line(&log) {
                    line.push(b'\n');
                    print(&prefix(&found, &readings, &log, args), &mut line)?;
                }
            }
            listed = &mut listing => {
                let listed = listed?;
                listing.set(list(context, args, listed.index));
                let Some(again) = listed.found.filter(|again| again.uid() == uid) else {
                    return Ok(Followed { status: None, nothing_read: None });
                };
                found = again;
                readings.update(&member_logs(&found, &listed.pods, args));
                if !has_ended {
                    last_output.set(monotonic());
                }
                let phase = found.status.as_ref().map(|status| status.state.phase);
                (is_seen, has_ended) = (true, phase.is_some_and(|phase| phase.is_final()));
            }
            () = tokio::time::sleep(LIST_PAUSE) => {}
        }
    }
    note_unread(context, &readings);
    let nothing_read = nothing_read.filter(|_| !readings.has_read());
    Ok(Followed { status: found.status, nothing_read })
}

/// What stands before each line of a log.
fn prefix(found: &FoundJob, readings: &Readings, log: &MemberLog, args: &JobLogsArgs) -> String {
    let is_alone = is_alone(found, readings.logs(), args);
    if is_alone { String::new() } else { format!("{} | ", log.name()) }
}

async fn read_next(
    context: &CommandContext,
    next: NextRead,
    args: &JobLogsArgs,
    prefix: String,
    last_output: &Cell<tokio::time::Instant>,
) -> (MemberLog, anyhow::Result<super::reading::ReadEnd>) {
    let NextRead { log, mode, start, line, stop } = next;
    let follow = mode == ReadMode::Follow;
    let query = LogQuery { follow, is_split: true, ..log.query(args, start) };
    let stopped = stop.cancelled();
    let end = read(context, &log.place, &query, line, &prefix, stopped, last_output).await;
    (log, end)
}

fn note_unread(context: &CommandContext, readings: &Readings) {
    let unread = readings.unread();
    if unread.is_empty() {
        return;
    }
    let mut by_problem: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (log, why) in &unread {
        by_problem.entry(why).or_default().push(log.name());
    }
    for (why, mut names) in by_problem {
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        context.note(format!("not read to the end: {}{more}: {why}", names.join(", ")));
    }
}

struct JobListing {
    /// `None`: there is none of this name.
    found: Option<FoundJob>,
    pods: Vec<FoundPod>,
    /// Index of the job's status.
    index: Index,
}

/// Reads a job and its pods once its status is newer than `after`, or after [`ONE_WAIT`].
async fn list(
    context: &CommandContext,
    args: &JobLogsArgs,
    after: Index,
) -> Result<JobListing, StoreError> {
    let is_first = after == Index::ZERO;
    let query = if is_first { Query::PLAIN } else { Query::after(after, ONE_WAIT) };
    if !is_first {
        tokio::time::sleep(LIST_PAUSE).await;
    }
    let status_key = key::job_status(&args.job);
    let read = async || {
        let answer = context.store.get(&status_key, query).await?;
        let found = look_up(context, &args.job).await?;
        let pods = if found.is_some() { pods(context, &args.job).await? } else { Vec::new() };
        // An index that decreases is that of a restored snapshot.
        let index = if answer.index < after { Index::ZERO } else { answer.index };
        Ok(JobListing { found, pods, index })
    };
    context.persist(read).await
}
