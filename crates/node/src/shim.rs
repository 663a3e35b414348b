//! `rcfarm node shim`: stands above one process of a pod, so that the agent may die, be killed or be upgraded while
//! the process runs, and its exit status is not lost.
//!
//! It reads `launch.json` in its directory, takes `lock` there (so there is never a second process of that
//! directory), starts the process in a process group of its own, writes `running.json`, says the same in one line on
//! its standard output, waits, and writes `exit.json`. Meanwhile it keeps the log small and, where the launch names a
//! lease, ends the process when the lease does: that holds when the agent is dead, stopped or cut off, too.
//!
//! No runtime, no threads but one: it is there for as long as the process is.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::agent::driver::{Launch, ProcessExit, Started, signal};
use super::agent::logs::{MAX_BYTES, rotate};
use super::agent::state;
use rcfarm_store::time::{Clock, SystemClock};

/// What a shim says in its line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimMessage {
    /// The process runs.
    Running(Started),
    /// It could not be started.
    Failed(String),
    /// Another shim has the directory.
    Taken,
}

/// How often the lease is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The log is looked at each time the lease was looked at so often.
const LOG_EVERY: u32 = 25;
/// A process whose lease ends is asked to stop this long before, …
const ASK_BEFORE: u64 = 3_000;
/// … and killed this long before.
const KILL_BEFORE: u64 = 1_000;

/// Milliseconds since boot, suspension included: the clock of leases.
#[must_use]
pub fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000
}

/// When the kernel says a process started, in ticks since boot; `None` when it is gone or a zombie.
#[must_use]
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end: the state is the first field after it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Supervises the process of `dir` until it has ended.
///
/// # Errors
/// What the file system says, when not even a failure could be noted.
pub fn run(dir: &Path) -> io::Result<()> {
    let lock = File::options().create(true).append(true).open(dir.join("lock"))?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        say(&ShimMessage::Taken);
        return Ok(());
    }
    let Some(launch) = state::read::<Launch>(&dir.join("launch.json")) else {
        say(&ShimMessage::Failed("launch.json cannot be read".to_owned()));
        return Ok(());
    };
    let _ = fs::remove_file(dir.join("running.json"));
    let mut child = match start(&launch) {
        Ok(child) => child,
        Err(why) => {
            let at = SystemClock.wall();
            let exit = ProcessExit { at, attempt: launch.attempt, ..ProcessExit::unknown(&why) };
            let written = state::write(&dir.join("exit.json"), &exit);
            say(&ShimMessage::Failed(why));
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
    };
    // Nobody but the next agent needs it, and the lock keeps that one from a second start: when the disk is full, it
    // is written as soon as it is not.
    let unwritten = state::write(&dir.join("running.json"), &running).is_err();
    say(&ShimMessage::Running(running.clone()));

    let expired = Arc::new(AtomicBool::new(false));
    let group = Pid::from_raw(pid);
    thread::spawn({
        let (launch, expired) = (launch.clone(), expired.clone());
        let unwritten = unwritten.then(|| (dir.join("running.json"), running));
        move || ward(&launch, group, &expired, unwritten)
    });
    if let Some(group) = group {
        // The zombie keeps its id, so what is left of the group can be told apart from strangers.
        let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    let lease = "its node could no longer prove that it lives, and it may run only once";
    let exit = ProcessExit {
        attempt: launch.attempt,
        at: SystemClock.wall(),
        code: status.code(),
        signal: status.signal(),
        why: expired.load(Ordering::SeqCst).then(|| lease.to_owned()),
    };
    state::write(&dir.join("exit.json"), &exit)
}

/// One line for the agent, if it still listens.
fn say(said: &ShimMessage) {
    let line = serde_json::to_string(said).expect("plain fields encode");
    let _ = writeln!(io::stdout(), "{line}");
}

fn start(launch: &Launch) -> Result<std::process::Child, String> {
    let words = |what: &str, path: &Path, error: io::Error| {
        format!("{what} {} cannot be used: {error}", path.display())
    };
    let log = File::options()
        .create(true)
        .append(true)
        .open(&launch.log)
        .map_err(|error| words("the log file", &launch.log, error))?;
    let errors = log.try_clone().map_err(|error| words("the log file", &launch.log, error))?;
    if !launch.cwd.is_dir() {
        return Err(format!("the working directory {} does not exist", launch.cwd.display()));
    }
    let mut command = Command::new(&launch.command[0]);
    command
        .args(&launch.command[1..])
        .env_clear()
        .envs(&launch.env)
        .current_dir(&launch.cwd)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0);
    if let Some((uid, gid)) = launch.run_as {
        command.gid(gid).uid(uid);
    }
    let home = launch.cgroup.as_deref().map(enter).transpose()?;
    let started = command.spawn();
    if let Some(home) = home {
        // The process was born in the cgroup; the shim must not be stopped with it.
        let _ = fs::write(home.join("cgroup.procs"), "0");
    }
    started.map_err(|error| format!("{} cannot be started: {error}", launch.command[0]))
}

/// Goes into a cgroup, so that what is started is born there. Gives the one that it came from.
fn enter(cgroup: &Path) -> Result<PathBuf, String> {
    let say = |error| format!("the cgroup {} cannot be entered: {error}", cgroup.display());
    let home = super::agent::cgroup::own().ok_or_else(|| "no cgroup v2 is mounted".to_owned())?;
    fs::write(cgroup.join("cgroup.procs"), "0").map_err(say)?;
    Ok(home)
}

/// Keeps the log small, writes what could not be written, and ends the process before the lease does.
fn ward(
    launch: &Launch,
    group: Option<Pid>,
    expired: &AtomicBool,
    mut unwritten: Option<(PathBuf, Started)>,
) {
    let mut asked = false;
    for round in 0u32.. {
        thread::sleep(LOOK_EVERY);
        if let Some((path, running)) = &unwritten
            && state::write(path, running).is_ok()
        {
            unwritten = None;
        }
        if round % LOG_EVERY == 0 {
            let _ = rotate(&launch.log, MAX_BYTES);
        }
        let (Some(lease), Some(group)) = (&launch.lease, group) else { continue };
        let until = fs::read_to_string(lease).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let rest = until.unwrap_or(0).saturating_sub(since_boot());
        if rest > ASK_BEFORE {
            continue;
        }
        expired.store(true, Ordering::SeqCst);
        if rest <= KILL_BEFORE {
            let _ = kill_process_group(group, Signal::KILL);
        } else if !asked {
            asked = true;
            let _ = kill_process_group(group, signal(&launch.stop_signal));
        }
    }
}
