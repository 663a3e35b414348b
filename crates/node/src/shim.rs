//! `rcfarm node shim`: parent of one process of a pod. The agent may end or be upgraded while the process runs, and
//! the exit status is not lost.
//!
//! The shim locks `lock` in its directory, so that the directory never has a second process. It reads `launch.json`,
//! starts the process in a process group of its own, and writes `running.json`. It prints the same record as one line
//! on standard output, waits, and writes `exit.json`. Meanwhile it rotates the log. If the launch names a lease, the
//! shim stops the process before the lease ends, even if the agent is dead, stopped or cut off from Consul.
//!
//! A shim lives as long as its process, so it is small: no async runtime, two extra threads.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::{Deserialize, Serialize};

use super::agent::driver::{Launch, ProcessExit, StartFailure, Started, signal};
use super::agent::logs::{open_with, rotate};
use super::agent::state;
use super::exec;
use super::procfs::{boot_id, since_boot, start_ticks};
use rcfarm_api::node::status::ExitReason;
use rcfarm_store::time::{Clock, SystemClock};

/// The line that a shim prints on standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimMessage {
    /// The process runs.
    Running(Started),
    /// The program cannot be started as specified, and why.
    StartError(String),
    /// The node cannot start the process now, and why.
    Failed(String),
    /// Another shim holds the directory's lock.
    Taken,
}

/// Interval of reads of the lease.
const LEASE_INTERVAL: Duration = Duration::from_millis(200);
/// Bounds of the time between two looks at the log's size. The upper one is how long a process may write unseen that was
/// quiet before.
const LOG_INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// Time before the end of the lease at which the process gets its stop signal.
pub const SIGNAL_BEFORE: Duration = Duration::from_secs(3);
/// Milliseconds before the end of the lease at which the process is killed.
const KILL_BEFORE: u64 = 1_000;

/// What a shim shares with its threads.
#[derive(Debug, Default)]
struct Shared {
    /// The group of the process, once it is started.
    group: OnceLock<Pid>,
    /// The record of the process that is still to be written.
    unwritten: Mutex<Option<Started>>,
    /// Whether the process was told to end because of the lease.
    expired: AtomicBool,
}

/// Supervises the process of `dir` until it has ended.
///
/// # Errors
/// Fails if the lock cannot be opened or `exit.json` cannot be written.
pub fn run(dir: &Path) -> io::Result<()> {
    exec::leave_session();
    exec::hide();
    exec::close_on_exec();
    exec::give_up_oom_protection();
    let lock = File::options().create(true).append(true).open(dir.join("lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        print(&ShimMessage::Taken);
        return Ok(());
    }
    let Some(launch) = state::read::<Launch>(&dir.join("launch.json")) else {
        print(&ShimMessage::Failed("launch.json cannot be read".to_owned()));
        return Ok(());
    };
    let _ = fs::remove_file(dir.join("running.json"));
    let shared = Arc::new(Shared::default());
    // The threads first: without them, a process would run without its lease.
    let started = spawn_threads(dir, &launch, &shared, rotate).and_then(|()| start(&launch));
    let child = match started {
        Ok(child) => child,
        Err(failure) => {
            let exit = ProcessExit::not_started(launch.attempt, SystemClock.wall(), &failure);
            let written = state::write(&dir.join("exit.json"), &exit);
            print(&match failure {
                StartFailure::Program(why) => ShimMessage::StartError(why),
                StartFailure::Node(why) => ShimMessage::Failed(why),
            });
            return written;
        }
    };
    announce(dir, &launch, &child, &shared);
    let status = wait(child, &shared)?;
    let lease = "stopped because the node's lease ended: only one instance may run";
    let has_expired = shared.expired.load(Ordering::SeqCst);
    let exit = ProcessExit {
        attempt: launch.attempt,
        at: SystemClock.wall(),
        code: status.code(),
        signal: status.signal(),
        why: has_expired.then(|| lease.to_owned()),
        reason: has_expired.then_some(ExitReason::LeaseEnded),
        output: String::new(),
    };
    state::write(&dir.join("exit.json"), &exit)
}

/// Rotates the log at a path if it is larger than so many bytes.
type RotateLog = fn(&Path, u64) -> io::Result<bool>;

/// Starts the threads, which run until the shim exits.
fn spawn_threads(
    dir: &Path,
    launch: &Launch,
    shared: &Arc<Shared>,
    rotate: RotateLog,
) -> Result<(), StartFailure> {
    let failed = |error: io::Error| format!("no thread can be started: {error}");
    // A thread of its own: while a large log is copied, the lease may end.
    let (log, most) = (launch.log.clone(), launch.log_bytes);
    thread::Builder::new().spawn(move || rotate_log(&log, most, rotate)).map_err(failed)?;
    let (dir, launch, shared) = (dir.to_owned(), launch.clone(), shared.clone());
    thread::Builder::new().spawn(move || supervise(&dir, &launch, &shared)).map_err(failed)?;
    Ok(())
}

/// Records the process, tells the threads of it, and prints it.
fn announce(dir: &Path, launch: &Launch, child: &Child, shared: &Shared) {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let pid = i32::try_from(child.id()).unwrap_or_default();
    if let Some(group) = Pid::from_raw(pid) {
        let _ = shared.group.set(group);
    }
    let running = Started {
        attempt: launch.attempt,
        pid,
        start_ticks: start_ticks(pid).unwrap_or_default(),
        shim: own,
        shim_ticks: start_ticks(own).unwrap_or_default(),
        started_at: SystemClock.wall(),
        boot: boot_id(),
    };
    // Only the next agent reads `running.json`, and the lock keeps it from a second start. If the disk is full, the
    // record is written later.
    if state::write(&dir.join("running.json"), &running).is_err() {
        *shared.unwritten.lock().unwrap_or_else(PoisonError::into_inner) = Some(running.clone());
    }
    print(&ShimMessage::Running(running));
}

/// Waits for the end of the process, and kills what is left of its group.
fn wait(mut child: Child, shared: &Shared) -> io::Result<ExitStatus> {
    if let Some(group) = shared.group.get() {
        // While the process is a zombie, its pid and group cannot be reused.
        let _ = waitid(WaitId::Pid(*group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = kill_process_group(*group, Signal::KILL);
    }
    child.wait()
}

/// Prints a message for the agent. Errors are ignored: the agent may have ended.
fn print(message: &ShimMessage) {
    let line = serde_json::to_string(message).expect("plain fields encode");
    let _ = writeln!(io::stdout(), "{line}");
}

fn start(launch: &Launch) -> Result<Child, StartFailure> {
    let log = open_log(launch).map_err(|error| {
        format!("the log file {} cannot be used: {error}", launch.log.display())
    })?;
    exec::spawn(launch, log)
}

/// Opens the log for appending.
fn open_log(launch: &Launch) -> io::Result<File> {
    let mut options = File::options();
    let log = open_with(options.create(true).append(true).mode(0o640), &launch.log)?;
    if let Some((uid, gid)) = launch.run_as {
        // Programs may open `/dev/stdout`, which is this file.
        fchown(&log, Some(uid), Some(gid))?;
    }
    Ok(log)
}

/// Rotates the log. Runs until the shim exits.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, without a runtime")]
fn rotate_log(log: &Path, most: u64, rotate: RotateLog) {
    let (mut pause, mut before, mut since) = (LOG_INTERVALS[0], 0, since_boot());
    loop {
        let size = fs::symlink_metadata(log).map_or(0, |found| found.len());
        let now = since_boot();
        // What was rotated in between began from nothing. No time has passed before the first look.
        let grown = if size < before { size } else { size - before };
        if now > since {
            pause = next_look(grown, Duration::from_millis(now - since), most);
        }
        since = now;
        before = if rotate(log, most).unwrap_or(false) { 0 } else { size };
        thread::sleep(pause);
    }
}

/// When to look at a log again that has `grown` by so many bytes since the last look, `elapsed` ago: before it grows by
/// `max` bytes if it goes on like that, so that it is rotated before it has twice as many. Within [`LOG_INTERVALS`]. Pure.
fn next_look(grown: u64, elapsed: Duration, max: u64) -> Duration {
    let [shortest, longest] = LOG_INTERVALS;
    let nanoseconds = elapsed.as_nanos().saturating_mul(max.into()) / u128::from(grown.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).clamp(shortest, longest)
}

/// Retries `running.json`, and stops the process before the lease ends. Runs until the shim exits.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, without a runtime")]
fn supervise(dir: &Path, launch: &Launch, shared: &Shared) {
    let mut watch = LeaseWatch::default();
    loop {
        thread::sleep(LEASE_INTERVAL);
        let mut unwritten = shared.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = unwritten.as_ref()
            && state::write(&dir.join("running.json"), running).is_ok()
        {
            *unwritten = None;
        }
        drop(unwritten);
        let (Some(lease), Some(group)) = (&launch.lease, shared.group.get()) else { continue };
        let until = fs::read_to_string(lease).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let signalled = watch.signal(until.unwrap_or(0), since_boot());
        // Before the signal: the end that it causes must not look like one of the process's own.
        shared.expired.store(watch.has_expired(), Ordering::SeqCst);
        let _ = match signalled {
            None => Ok(()),
            Some(LeaseSignal::Stop) => kill_process_group(*group, signal(&launch.stop_signal)),
            Some(LeaseSignal::Kill) => kill_process_group(*group, Signal::KILL),
        };
    }
}

/// A signal because of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseSignal {
    /// The process's stop signal.
    Stop,
    Kill,
}

/// Which signals the end of a lease asks for. Times in milliseconds since boot. Pure.
#[derive(Debug, Default)]
struct LeaseWatch {
    is_signalled: bool,
    /// Until when an end of the process counts as caused by the lease.
    expired_until: Option<u64>,
}

/// Milliseconds after a lease was renewed during which a process may still end of the signal that it got before.
const END_AFTER_SIGNAL: u64 = 60_000;

impl LeaseWatch {
    /// The signal to send now, for a lease that ends at `until`.
    fn signal(&mut self, until: u64, now: u64) -> Option<LeaseSignal> {
        let rest = until.saturating_sub(now);
        if u128::from(rest) > SIGNAL_BEFORE.as_millis() {
            self.is_signalled = false;
            self.expired_until = self.expired_until.filter(|end| *end > now);
            return None;
        }
        self.expired_until = Some(now.saturating_add(END_AFTER_SIGNAL));
        if rest <= KILL_BEFORE {
            return Some(LeaseSignal::Kill);
        }
        let is_new = !std::mem::replace(&mut self.is_signalled, true);
        is_new.then_some(LeaseSignal::Stop)
    }

    fn has_expired(&self) -> bool {
        self.expired_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// The lease has ended, and the copy of a large log takes longer than the process.
    #[test]
    fn rotation_does_not_delay_the_end_of_a_lease() {
        let directory = tempfile::tempdir().unwrap();
        let lease = directory.path().join("lease");
        fs::write(&lease, "0").unwrap();
        let launch = Launch { lease: Some(lease), ..Launch::default() };
        let shared = Arc::new(Shared::default());
        #[expect(clippy::disallowed_methods, reason = "a thread of its own, without a runtime")]
        let copy = |_: &Path, _: u64| {
            thread::sleep(Duration::from_secs(3600));
            Ok(true)
        };
        spawn_threads(directory.path(), &launch, &shared, copy).unwrap();
        let child = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        shared.group.set(Pid::from_child(&child)).unwrap();
        let ended = wait(child, &shared).unwrap();
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "it slept to its end: {ended}");
        assert!(shared.expired.load(Ordering::SeqCst), "the end is one of the lease");
    }

    #[test]
    fn log_is_looked_at_before_it_doubles_its_limit() {
        let megabytes = |n: u64| n << 20;
        let second = Duration::from_secs(1);
        for (grown, elapsed, max, next) in [
            (0, second, megabytes(10), 1_000),
            (megabytes(1), second, megabytes(10), 1_000),
            (megabytes(20), second, megabytes(10), 500),
            (megabytes(2), second / 10, megabytes(10), 500),
            (megabytes(250), second, megabytes(10), 100),
            (megabytes(250), second, megabytes(50), 200),
            (megabytes(1), Duration::ZERO, megabytes(10), 100),
            (u64::MAX, second, 1, 100),
            (1, Duration::MAX, u64::MAX, 1_000),
        ] {
            let pause = next_look(grown, elapsed, max);
            assert_eq!(pause, Duration::from_millis(next), "{grown} in {elapsed:?}, at most {max}");
        }
    }

    #[test]
    fn lease_signals_once_and_kills_before_it_ends() {
        let mut watch = LeaseWatch::default();
        for (now, signal) in [
            (0, None),
            (6_999, None),
            (7_000, Some(LeaseSignal::Stop)),
            (7_200, None),
            (9_000, Some(LeaseSignal::Kill)),
            (9_200, Some(LeaseSignal::Kill)),
            (20_000, Some(LeaseSignal::Kill)),
        ] {
            assert_eq!(watch.signal(10_000, now), signal, "at {now}");
            assert_eq!(watch.has_expired(), now >= 7_000, "at {now}");
        }
    }

    #[test]
    fn renewed_lease_is_forgotten_unless_the_process_ends_soon() {
        let mut watch = LeaseWatch::default();
        assert_eq!(watch.signal(10_000, 8_000), Some(LeaseSignal::Stop));
        for (now, has_expired) in [(8_200, true), (67_999, true), (68_000, false), (90_000, false)]
        {
            assert_eq!(watch.signal(100_000, now), None);
            assert_eq!(watch.has_expired(), has_expired, "at {now}");
        }
        assert_eq!(watch.signal(100_000, 98_000), Some(LeaseSignal::Stop), "as the first time");
    }
}
