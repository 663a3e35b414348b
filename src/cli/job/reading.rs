//! Which logs of a job are read next, and which were read to their end. Pure.
//!
//! An agent writes a pod's first status before it starts the process, so a log may not be there yet. An agent may be
//! restarted, and it sends a limited number of logs at once. Each log is therefore read until its pod has ended and the
//! rest was read once more. A read begins at the position that the one before has reached.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::member_log::MemberLog;
use crate::cli::pod::{LogError, LogStart};
use rcfarm_api::backoff;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::status::NodePodPhase;

/// Pause before a log is read again.
const READ_PAUSE: Duration = Duration::from_secs(1);
/// Longest such pause, after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Logs of one node that are followed at once. Further ones are read every [`READ_PAUSE`].
const FOLLOWED_PER_NODE: usize = 24;
/// Logs of one node that are read at once, followed ones included. An agent sends 48.
const READ_PER_NODE: usize = 32;
/// Failed reads of a log after the end of the job, before it is given up.
const LAST_FAILURES: u32 = 3;
/// The same for an agent that sends too many logs to others.
const LAST_REFUSALS: u32 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// Until its pod is removed.
    Follow,
    /// To its present end, while its pod may write more.
    Part,
    /// To its end, once its pod writes no more.
    Rest,
}

/// How a read of a log ended.
#[derive(Debug)]
pub(super) struct ReadEnd {
    /// Where the next read begins. `None`: the log was not opened.
    pub(super) next: Option<LogStart>,
    /// The beginning of a line whose end was not read.
    pub(super) line: Vec<u8>,
    /// Whether the agent says that nothing more will be written.
    pub(super) is_ended: bool,
    pub(super) outcome: ReadOutcome,
}

#[derive(Debug)]
pub(super) enum ReadOutcome {
    /// The agent sent all that it should.
    Complete,
    /// The reader broke it off.
    Stopped,
    /// It was not opened, or the connection was lost.
    Failed(LogError),
}

/// State of the pod that writes a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PodState {
    #[default]
    Alive,
    /// Its processes have ended; the log stays.
    Ended,
    /// The pod is not listed any more. Its processes may be ending. Then its agent keeps the log or deletes it.
    Gone,
}

/// What was read of a log.
#[derive(Default)]
struct Reading {
    pod: PodState,
    /// Where the next read begins. `None`: nothing was read.
    next: Option<LogStart>,
    line: Vec<u8>,
    /// The read that is under way, and what breaks it off.
    open: Option<(ReadMode, CancellationToken)>,
    /// When it may be read again. `None`: at once.
    again_at: Option<Instant>,
    failures: u32,
    /// Why it was not read to its end.
    problem: Option<String>,
    is_done: bool,
}

impl Reading {
    fn take(&mut self, pod: PodState, is_over: bool) {
        // What has ended is read to its end by a read that ends too.
        if pod == PodState::Ended && self.pod != pod {
            self.stop();
        }
        // The end that was seen before was that of an earlier attempt.
        self.is_done &= pod != PodState::Alive || is_over;
        self.pod = pod;
    }

    fn stop(&mut self) {
        self.again_at = None;
        self.open.iter().for_each(|(_, stop)| stop.cancel());
    }

    /// Takes in the end of its read. Returns a failure.
    fn ended(&mut self, end: ReadEnd, is_over: bool, now: Instant) -> Option<anyhow::Error> {
        let mode = self.open.take().map_or(ReadMode::Part, |(mode, _)| mode);
        self.next = end.next.or(self.next);
        self.line = end.line;
        self.again_at = Some(now + READ_PAUSE);
        match end.outcome {
            ReadOutcome::Stopped => self.again_at = None,
            ReadOutcome::Complete => {
                (self.failures, self.problem) = (0, None);
                // The pods may have been listed before the log was ended.
                self.is_done =
                    mode == ReadMode::Rest || end.is_ended && self.pod != PodState::Alive;
            }
            // Its process is not started yet, or its pod was removed.
            ReadOutcome::Failed(LogError::Absent(why)) => {
                self.is_done = self.pod != PodState::Alive || is_over;
                let is_unread = self.is_done && self.next.is_none();
                self.problem = is_unread.then(|| why.to_string());
            }
            ReadOutcome::Failed(LogError::Busy(why)) => {
                self.failures += 1;
                self.is_done = is_over && self.failures >= LAST_REFUSALS;
                self.problem = Some(why.to_string());
            }
            ReadOutcome::Failed(LogError::Failed(why)) => {
                let pause = backoff(READ_PAUSE, LONGEST_PAUSE, self.failures);
                self.again_at = Some(now + if is_over { READ_PAUSE } else { pause });
                self.failures += 1;
                self.is_done = is_over && self.failures >= LAST_FAILURES;
                self.problem = Some(why.to_string());
                return Some(why);
            }
        }
        None
    }
}

/// A read that is to be made.
pub(super) struct NextRead {
    pub(super) log: MemberLog,
    pub(super) mode: ReadMode,
    pub(super) start: LogStart,
    /// The beginning of a line that an earlier read ended with.
    pub(super) line: Vec<u8>,
    pub(super) stop: CancellationToken,
}

/// The logs of a job's members.
pub(super) struct Readings {
    /// Where new logs begin.
    start: LogStart,
    all: BTreeMap<MemberLog, Reading>,
    /// Failures that were returned.
    said: BTreeSet<String>,
    /// The job has ended, and no pod prints any more.
    is_over: bool,
}

impl Readings {
    /// No log yet. `lines`: number of last lines to begin with; 0: the whole log.
    pub(super) fn new(lines: usize) -> Readings {
        let start = LogStart::Lines(lines);
        Readings { start, all: BTreeMap::new(), said: BTreeSet::new(), is_over: false }
    }

    pub(super) fn logs(&self) -> impl Iterator<Item = &MemberLog> {
        self.all.keys()
    }

    /// Takes in the logs that there are now.
    pub(super) fn update(&mut self, listed: &BTreeMap<MemberLog, NodePodPhase>) {
        for (log, phase) in listed {
            let is_ended = *phase == NodePodPhase::Ended;
            let pod = if is_ended { PodState::Ended } else { PodState::Alive };
            self.all.entry(log.clone()).or_default().take(pod, self.is_over);
        }
        let gone = self.all.iter_mut().filter(|(log, _)| !listed.contains_key(log));
        gone.for_each(|(_, reading)| reading.take(PodState::Gone, self.is_over));
    }

    /// Whether a pod may print more although the job has ended.
    pub(super) fn awaits_output(&self) -> bool {
        self.all.values().any(|reading| !reading.is_done && reading.pod != PodState::Ended)
    }

    /// Nothing more will be printed: each log is read to its end, by reads that end.
    pub(super) fn finish(&mut self) {
        if !self.is_over {
            self.is_over = true;
            for reading in self.all.values_mut() {
                reading.failures = 0;
                reading.stop();
            }
        }
    }

    /// Whether each log was read to its end or given up.
    pub(super) fn is_finished(&self) -> bool {
        let mut all = self.all.values();
        self.is_over && all.all(|reading| reading.is_done && reading.open.is_none())
    }

    /// The reads to begin now; they are then under way.
    pub(super) fn next_reads(&mut self, now: Instant) -> Vec<NextRead> {
        let mut open: BTreeMap<NodeName, (usize, usize)> = BTreeMap::new();
        for (log, reading) in &self.all {
            let Some((mode, _)) = &reading.open else { continue };
            let (followed, all) = open.entry(log.place.node.clone()).or_default();
            *followed += usize::from(*mode == ReadMode::Follow);
            *all += 1;
        }
        let is_due = |reading: &Reading| {
            !reading.is_done
                && reading.open.is_none()
                && reading.again_at.is_none_or(|again_at| again_at <= now)
        };
        let mut due: Vec<_> = self.all.iter_mut().filter(|(_, reading)| is_due(reading)).collect();
        // Those that have waited longest are first.
        due.sort_by_key(|(_, reading)| reading.again_at);
        let mut reads = Vec::new();
        for (log, reading) in due {
            let (followed, all) = open.entry(log.place.node.clone()).or_default();
            if *all >= READ_PER_NODE {
                continue;
            }
            let mode = match reading.pod {
                _ if self.is_over => ReadMode::Rest,
                PodState::Ended => ReadMode::Rest,
                PodState::Alive | PodState::Gone if *followed < FOLLOWED_PER_NODE => {
                    ReadMode::Follow
                }
                PodState::Alive | PodState::Gone => ReadMode::Part,
            };
            *followed += usize::from(mode == ReadMode::Follow);
            *all += 1;
            let stop = CancellationToken::new();
            reading.open = Some((mode, stop.clone()));
            let (start, line) =
                (reading.next.unwrap_or(self.start), std::mem::take(&mut reading.line));
            reads.push(NextRead { log: log.clone(), mode, start, line, stop });
        }
        reads
    }

    /// Takes in the end of a read. Returns a failure that was not returned before.
    pub(super) fn ended(
        &mut self,
        log: &MemberLog,
        end: ReadEnd,
        now: Instant,
    ) -> Option<anyhow::Error> {
        let failure = self.all.get_mut(log)?.ended(end, self.is_over, now)?;
        self.said.insert(failure.to_string()).then_some(failure)
    }

    /// The last line of a log that was read to its end, if it has no line end.
    pub(super) fn last_line(&mut self, log: &MemberLog) -> Option<Vec<u8>> {
        let reading = self.all.get_mut(log).filter(|reading| reading.is_done)?;
        Some(std::mem::take(&mut reading.line)).filter(|line| !line.is_empty())
    }

    /// Whether any log was read.
    pub(super) fn has_read(&self) -> bool {
        self.all.values().any(|reading| reading.next.is_some())
    }

    /// The logs that were not read, or not to their end, and why.
    pub(super) fn unread(&self) -> Vec<(&MemberLog, &str)> {
        let all = self.all.iter();
        all.filter_map(|(log, reading)| Some((log, reading.problem.as_deref()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::ids::PodRef;
    use rcfarm_api::job::spec::Slot;
    use rcfarm_node::agent::log_position::LogPosition;

    fn log(index: u32) -> MemberLog {
        let (node, pod) = ("n1".parse().unwrap(), format!("m-a-{index}").parse().unwrap());
        let (slot, place) = (Slot::new("a", index), PodRef { node, pod });
        MemberLog { slot, container: None, place, uid: 1, attempt: 0 }
    }

    fn listed(count: u32, phase: NodePodPhase) -> BTreeMap<MemberLog, NodePodPhase> {
        (0..count).map(|index| (log(index), phase)).collect()
    }

    fn end(next: Option<u64>, outcome: ReadOutcome) -> ReadEnd {
        ReadEnd { next: next.map(at), line: Vec::new(), is_ended: false, outcome }
    }

    fn at(offset: u64) -> LogStart {
        LogStart::At(LogPosition { offset, ..LogPosition::START })
    }

    fn absent() -> ReadOutcome {
        ReadOutcome::Failed(LogError::Absent(anyhow::anyhow!("no log")))
    }

    fn broken() -> ReadOutcome {
        ReadOutcome::Failed(LogError::Failed(anyhow::anyhow!("broken")))
    }

    #[test]
    fn logs_that_exceed_the_followed_ones_are_read_in_turn() {
        let now = rcfarm_store::time::monotonic();
        let mut readings = Readings::new(0);
        readings.update(&listed(60, NodePodPhase::Running));
        let first = readings.next_reads(now);
        let followed =
            |reads: &[NextRead]| reads.iter().filter(|read| read.mode == ReadMode::Follow).count();
        assert_eq!((first.len(), followed(&first)), (READ_PER_NODE, FOLLOWED_PER_NODE));
        assert!(readings.next_reads(now).is_empty());
        let mut seen: BTreeSet<MemberLog> = first.iter().map(|read| read.log.clone()).collect();
        let mut parts: Vec<_> =
            first.into_iter().filter(|read| read.mode == ReadMode::Part).collect();
        // Each look reads as many others, and none twice before all were read.
        for _ in 0..5 {
            for read in parts {
                assert!(
                    readings.ended(&read.log, end(Some(1), ReadOutcome::Complete), now).is_none()
                );
            }
            parts = readings.next_reads(now);
            assert_eq!(followed(&parts), 0);
            seen.extend(parts.iter().map(|read| read.log.clone()));
        }
        assert_eq!(seen.len(), 60);
    }

    #[test]
    fn log_is_done_when_its_rest_was_read_after_the_end_of_its_pod() {
        let now = rcfarm_store::time::monotonic();
        let mut readings = Readings::new(7);
        readings.update(&listed(1, NodePodPhase::Starting));
        let read = readings.next_reads(now).pop().unwrap();
        assert_eq!((read.mode, read.start), (ReadMode::Follow, LogStart::Lines(7)));
        // Not there yet.
        assert!(readings.ended(&log(0), end(None, absent()), now).is_none());
        assert!(readings.next_reads(now).is_empty());
        let now = now + READ_PAUSE;
        let read = readings.next_reads(now).pop().unwrap();
        assert_eq!((read.mode, read.start), (ReadMode::Follow, LogStart::Lines(7)));
        // Its agent is restarted.
        assert!(readings.ended(&log(0), end(Some(10), broken()), now).is_some());
        let now = now + READ_PAUSE;
        let read = readings.next_reads(now).pop().unwrap();
        assert_eq!((read.mode, read.start), (ReadMode::Follow, at(10)));
        readings.update(&listed(1, NodePodPhase::Ended));
        assert!(read.stop.is_cancelled());
        assert!(readings.ended(&log(0), end(Some(12), ReadOutcome::Stopped), now).is_none());
        let read = readings.next_reads(now).pop().unwrap();
        assert_eq!((read.mode, read.start), (ReadMode::Rest, at(12)));
        assert!(!readings.awaits_output());
        readings.finish();
        assert!(!readings.is_finished());
        readings.ended(&log(0), end(Some(20), ReadOutcome::Complete), now);
        assert!(readings.is_finished() && readings.has_read() && readings.unread().is_empty());
    }

    #[test]
    fn log_that_cannot_be_read_is_given_up_after_the_end_and_named() {
        let mut now = rcfarm_store::time::monotonic();
        let mut readings = Readings::new(0);
        readings.update(&listed(2, NodePodPhase::Running));
        for _ in 0..10 {
            for read in readings.next_reads(now) {
                readings.ended(&read.log, end(None, broken()), now);
            }
            now += LONGEST_PAUSE;
        }
        assert!(!readings.is_finished() && readings.unread().len() == 2);
        readings.finish();
        for _ in 0..LAST_FAILURES {
            assert!(!readings.is_finished());
            for read in readings.next_reads(now) {
                let outcome = if read.log == log(0) { broken() } else { ReadOutcome::Complete };
                readings.ended(&read.log, end(None, outcome), now);
            }
            now += READ_PAUSE;
        }
        assert!(readings.is_finished());
        assert_eq!(readings.unread(), [(&log(0), "broken")]);
    }

    /// The agent keeps such a log: its end is read there, and the log of a later attempt is another one.
    #[test]
    fn log_of_a_removed_pod_is_done_when_its_agent_calls_it_ended() {
        let now = rcfarm_store::time::monotonic();
        let mut readings = Readings::new(0);
        readings.update(&listed(2, NodePodPhase::Running));
        assert_eq!(readings.next_reads(now).len(), 2);
        readings.update(&listed(1, NodePodPhase::Running));
        readings.ended(&log(1), end(Some(5), ReadOutcome::Complete), now);
        let ended = ReadEnd { is_ended: true, ..end(Some(5), ReadOutcome::Complete) };
        readings.ended(&log(0), ended, now);
        let now = now + READ_PAUSE;
        let again = readings.next_reads(now);
        let starts: Vec<_> = again.iter().map(|read| (&read.log, read.start)).collect();
        assert_eq!(starts, [(&log(0), at(5)), (&log(1), at(5))], "log 0 is listed as running");
        let ended = ReadEnd { is_ended: true, ..end(Some(9), ReadOutcome::Complete) };
        readings.ended(&log(1), ended, now);
        readings.ended(&log(0), end(Some(5), ReadOutcome::Complete), now);
        let now = now + READ_PAUSE;
        let again: Vec<_> = readings.next_reads(now).into_iter().map(|read| read.log).collect();
        assert_eq!(again, [log(0)]);
    }
}
