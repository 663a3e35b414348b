//! Runs processes of the machine, each under a shim ([`crate::shim`]).
//!
//! A process is recognised by its pid together with its start time, so that a pid that was given to somebody else is
//! never signalled. Whether one has ended is told by a pidfd, for our own children and for adopted ones alike.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::driver::{Driver, FoundProcess, Launch, ProcessExit, Started, signal};
use super::state;
use crate::shim::{ShimMessage, start_ticks};
use rcfarm_store::time::{Clock, SystemClock};

/// A shim that says nothing for this long is given up.
const SHIM_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an end is looked for where the kernel does not tell it.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug, Clone)]
pub struct ProcessDriver {
    program: PathBuf,
}

impl ProcessDriver {
    /// A driver whose shims are `program node shim`; for the daemon, its own binary.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        ProcessDriver { program }
    }
}

/// Whether the process is still the one that was started then.
fn is_alive(pid: i32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks)
}

/// A descriptor that becomes readable when the process ends; `None` where the kernel has none.
#[expect(
    deprecated,
    reason = "its successor is unsafe; an owned descriptor cannot be closed behind its back"
)]
fn end_of(pid: i32) -> Option<AsyncFd<OwnedFd>> {
    let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    AsyncFd::new(fd).ok()
}

/// Resolves when the process is gone.
async fn gone(pid: i32, ticks: u64) {
    // Only with the descriptor in hand is it sure whose it is.
    if let Some(end) = end_of(pid).filter(|_| is_alive(pid, ticks)) {
        let _ = end.readable().await;
        return;
    }
    while is_alive(pid, ticks) {
        sleep(LOOK_EVERY).await;
    }
}

/// Whether a shim has the directory.
fn is_taken(dir: &Path) -> bool {
    let Ok(lock) = fs::File::options().append(true).open(dir.join("lock")) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
}

fn running(dir: &Path) -> Option<Started> {
    state::read(&dir.join("running.json"))
}

fn exit(dir: &Path, attempt: u64) -> Option<ProcessExit> {
    state::read::<ProcessExit>(&dir.join("exit.json")).filter(|exit| exit.attempt == attempt)
}

#[async_trait]
impl Driver for ProcessDriver {
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, String> {
        let say = |error: std::io::Error| format!("{} cannot be written: {error}", dir.display());
        state::make_dir(dir).map_err(say)?;
        state::write(&dir.join("launch.json"), launch).map_err(say)?;
        let mut shim = Command::new(&self.program)
            .args(["node", "shim"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", self.program.display()))?;
        let stdout = shim.stdout.take().expect("it was asked for");
        let mut line = String::new();
        let read = timeout(SHIM_TIMEOUT, BufReader::new(stdout).read_line(&mut line)).await;
        // Tokio collects the child's status whenever it ends.
        drop(shim);
        if !matches!(read, Ok(Ok(_))) {
            return Err("the shim did not answer".to_owned());
        }
        match serde_json::from_str(&line) {
            Ok(ShimMessage::Running(running)) => Ok(running),
            Ok(ShimMessage::Failed(why)) => Err(why),
            Ok(ShimMessage::Taken) => match self.adopt(dir).await {
                FoundProcess::Running(running) => Ok(running),
                _ => Err("the process before this one is still ending".to_owned()),
            },
            Err(_) => Err("the shim ended without a word".to_owned()),
        }
    }

    async fn adopt(&self, dir: &Path) -> FoundProcess {
        // A shim that was started just before the last agent died may not have written its record yet.
        for _ in 0..40 {
            if !is_taken(dir) || running(dir).is_some() {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        let Some(running) = running(dir) else {
            let exit = state::read::<ProcessExit>(&dir.join("exit.json"));
            return exit.map_or(FoundProcess::Nothing, FoundProcess::Exited);
        };
        if is_alive(running.shim, running.shim_ticks) || is_alive(running.pid, running.start_ticks)
        {
            return FoundProcess::Running(running);
        }
        let lost = || ProcessExit {
            attempt: running.attempt,
            ..ProcessExit::unknown(
                "it ended while nobody was there to see how, as in a restart of the machine",
            )
        };
        FoundProcess::Exited(exit(dir, running.attempt).unwrap_or_else(lost))
    }

    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit {
        gone(running.shim, running.shim_ticks).await;
        if let Some(exit) = exit(dir, running.attempt) {
            return exit;
        }
        // The shim was killed; the process goes on without it.
        gone(running.pid, running.start_ticks).await;
        let (attempt, at) = (running.attempt, SystemClock.wall());
        let why = "nobody saw how it ended: its shim was killed, or the disk is full";
        ProcessExit { attempt, at, ..ProcessExit::unknown(why) }
    }

    async fn stop(&self, running: &Started, name: &str, grace: Duration) {
        let Some(group) = Pid::from_raw(running.pid) else { return };
        if !is_alive(running.pid, running.start_ticks) {
            return;
        }
        let _ = kill_process_group(group, signal(name));
        let ended = timeout(grace, gone(running.pid, running.start_ticks)).await;
        if ended.is_err() && is_alive(running.pid, running.start_ticks) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
