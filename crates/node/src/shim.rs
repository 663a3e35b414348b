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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::agent::driver::{Launch, ProcessExit, StartFailure, Started, signal};
use super::agent::logs::{open_with, rotate};
use super::agent::state;
use super::exec;
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
/// Interval of checks of the log's size.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Milliseconds before the end of the lease at which the process gets its stop signal.
const SIGNAL_BEFORE: u64 = 3_000;
/// Milliseconds before the end of the lease at which the process is killed.
const KILL_BEFORE: u64 = 1_000;

/// Milliseconds since boot, including suspension. Leases use this clock.
pub fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

/// Id of this boot of the machine.
pub fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Start time of a process, in clock ticks since boot. `None` if the process is gone or a zombie.
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses. The state is the first field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Supervises the process of `dir` until it has ended.
///
/// # Errors
/// Fails if the lock cannot be opened or `exit.json` cannot be written.
pub fn run(dir: &Path) -> io::Result<()> {
    exec::hide();
    exec::close_on_exec();
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
    let mut child = match start(&launch) {
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
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let pid = i32::try_from(child.id()).unwrap_or_default();
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
    let unwritten = state::write(&dir.join("running.json"), &running).is_err();
    print(&ShimMessage::Running(running.clone()));

    let expired = Arc::new(AtomicBool::new(false));
    let group = Pid::from_raw(pid);
    // A thread of its own: while a large log is copied, the lease may end.
    thread::spawn({
        let (log, most) = (launch.log.clone(), launch.log_bytes);
        move || rotate_log(&log, most)
    });
    thread::spawn({
        let (launch, expired) = (launch.clone(), expired.clone());
        let unwritten = unwritten.then(|| (dir.join("running.json"), running));
        move || supervise(&launch, group, &expired, unwritten)
    });
    if let Some(group) = group {
        // While the process is a zombie, its pid and group cannot be reused: what is left of the group is killed.
        let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    let lease = "stopped because the node's lease ended: only one instance may run";
    let has_expired = expired.load(Ordering::SeqCst);
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

/// Prints a message for the agent. Errors are ignored: the agent may have ended.
fn print(message: &ShimMessage) {
    let line = serde_json::to_string(message).expect("plain fields encode");
    let _ = writeln!(io::stdout(), "{line}");
}

fn start(launch: &Launch) -> Result<std::process::Child, StartFailure> {
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
fn rotate_log(log: &Path, most: u64) {
    loop {
        let _ = rotate(log, most);
        thread::sleep(LOG_INTERVAL);
    }
}

/// Retries `running.json`, and stops the process before the lease ends. Runs until the shim exits.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, without a runtime")]
fn supervise(
    launch: &Launch,
    group: Option<Pid>,
    expired: &AtomicBool,
    mut unwritten: Option<(PathBuf, Started)>,
) {
    let mut is_signalled = false;
    loop {
        thread::sleep(LEASE_INTERVAL);
        if let Some((path, running)) = &unwritten
            && state::write(path, running).is_ok()
        {
            unwritten = None;
        }
        let (Some(lease), Some(group)) = (&launch.lease, group) else { continue };
        let until = fs::read_to_string(lease).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let rest = until.unwrap_or(0).saturating_sub(since_boot());
        if rest > SIGNAL_BEFORE {
            continue;
        }
        expired.store(true, Ordering::SeqCst);
        if rest <= KILL_BEFORE {
            let _ = kill_process_group(group, Signal::KILL);
        } else if !is_signalled {
            is_signalled = true;
            let _ = kill_process_group(group, signal(&launch.stop_signal));
        }
    }
}
