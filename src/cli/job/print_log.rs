//! Reads the log of a container of a member, and prints it.

use std::cell::Cell;
use std::io::Write as _;
use std::pin::Pin;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::member_log::{JobLogsArgs, MemberLog};
use super::reading::{ReadEnd, ReadOutcome};
use crate::cli::context::CommandContext;
use crate::cli::pod::{LogError, LogQuery, LogStart, OpenLog, open_log};
use rcfarm_api::ids::PodRef;
use rcfarm_node::agent::log_position::LogPosition;
use rcfarm_store::time::monotonic;

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
