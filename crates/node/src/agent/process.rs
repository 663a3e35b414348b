//! Driver for processes of this machine, each under a shim ([`crate::shim`]).
//!
//! A process is identified by its pid and start time, so a pid that was reused is never signalled. A pidfd reports
//! its end, for the agent's own children and for adopted processes alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started, signal,
};
use super::health;
use super::health_check::HealthCheck;
use super::log_starts;
use super::state;
use crate::procfs::{boot_id, gone, handles, is_alive};
use crate::shim::ShimMessage;
use rcfarm_api::node::Health;
use rcfarm_store::time::{Clock, SystemClock};

/// Interval of warnings while a start waits for the shim's message.
const SHIM_WARNING: Duration = Duration::from_secs(30);
/// Interval of polls where the kernel has no pidfd, and while a shim writes its record.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of polls for the record of a shim: 2 s in all.
const RECORD_POLLS: u32 = 40;

/// Runs processes of this machine.
#[derive(Debug, Clone)]
pub struct ProcessDriver {
    program: PathBuf,
}

impl ProcessDriver {
    /// A driver that starts shims as `program node shim`, and checks as `program node exec`. The daemon passes its own
    /// binary.
    pub fn new(program: PathBuf) -> Self {
        ProcessDriver { program }
    }
}

/// Whether a shim holds the directory's lock.
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

/// The record of an end. A shim that still holds the lock is waited for: where `/proc` shows a user only some processes
/// (`hidepid`), a shim is not among them.
async fn recorded_exit(dir: &Path, attempt: u64) -> Option<ProcessExit> {
    for _ in 0..RECORD_POLLS {
        // In this order: the record is written before the lock is released.
        let is_last = !is_taken(dir);
        let exit = exit(dir, attempt);
        if exit.is_some() || is_last {
            return exit;
        }
        sleep(POLL_INTERVAL).await;
    }
    None
}

#[async_trait]
impl Driver for ProcessDriver {
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        let message =
            |error: std::io::Error| format!("{} cannot be written: {error}", dir.display());
        state::make_dir(dir).map_err(message)?;
        log_starts::note(dir, launch).await.map_err(message)?;
        state::write(&dir.join("launch.json"), launch).map_err(message)?;
        let mut shim = Command::new(&self.program)
            .args(["node", "shim"])
            .arg(dir)
            // A pod can read the environment of its parent. The agent's may hold a token.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", self.program.display()))?;
        let stdout = shim.stdout.take().expect("stdout is piped");
        let (mut line, mut reader) = (String::new(), BufReader::new(stdout));
        let read = {
            // Without limit: a process that is given up here may start all the same, and would run unwatched.
            let mut reading = std::pin::pin!(reader.read_line(&mut line));
            loop {
                match timeout(SHIM_WARNING, &mut reading).await {
                    Ok(read) => break read,
                    Err(_) => {
                        warn!(dir = %dir.display(), "a start takes long: the shim has not answered")
                    }
                }
            }
        };
        // Tokio reaps the child when it ends.
        drop(shim);
        if read.is_err() {
            return Err("the shim did not answer".into());
        }
        match serde_json::from_str(&line) {
            Ok(ShimMessage::Running(running)) => Ok(running),
            Ok(ShimMessage::StartError(why)) => Err(StartFailure::Program(why)),
            Ok(ShimMessage::Failed(why)) => Err(StartFailure::Node(why)),
            Ok(ShimMessage::Taken) => match self.adopt(dir).await {
                FoundProcess::Running(running) => Ok(running),
                _ => Err("the process before this one is still ending".into()),
            },
            // It may have been killed between the start and its message.
            Err(_) => running(dir)
                .filter(|running| running.attempt == launch.attempt)
                .ok_or_else(|| "the shim ended without a message".into()),
        }
    }

    async fn adopt(&self, dir: &Path) -> FoundProcess {
        // A shim that was started just before the previous agent died may not have written `running.json` yet.
        for _ in 0..RECORD_POLLS {
            if !is_taken(dir) || running(dir).is_some() {
                break;
            }
            sleep(POLL_INTERVAL).await;
        }
        let Some(running) = running(dir) else {
            let exit = state::read::<ProcessExit>(&dir.join("exit.json"));
            return exit.map_or(FoundProcess::Nothing, FoundProcess::Exited);
        };
        let is_of_this_boot = running.boot.is_none() || running.boot == boot_id();
        let is_alive = is_alive(running.shim, running.shim_ticks)
            || is_alive(running.pid, running.start_ticks);
        if is_of_this_boot && is_alive {
            return FoundProcess::Running(running);
        }
        let lost = || ProcessExit {
            attempt: running.attempt,
            ..ProcessExit::unknown(
                "it ended while no shim was running, as in a restart of the machine",
            )
        };
        FoundProcess::Exited(recorded_exit(dir, running.attempt).await.unwrap_or_else(lost))
    }

    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit {
        gone(running.shim, running.shim_ticks).await;
        if let Some(exit) = exit(dir, running.attempt) {
            return exit;
        }
        // The shim was killed; the process keeps running without it.
        gone(running.pid, running.start_ticks).await;
        if let Some(exit) = recorded_exit(dir, running.attempt).await {
            return exit;
        }
        let (attempt, at) = (running.attempt, SystemClock.wall());
        let why = "its exit status is unknown: the shim was killed, or the disk is full";
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

    async fn signal(&self, running: &Started, name: &str) -> Signalled {
        let (signal, Some(pid)) = (signal(name), Pid::from_raw(running.pid)) else {
            return Signalled::Gone;
        };
        // Opened before it is known to be the process: until then the pid may be reused.
        let process = pidfd_open(pid, PidfdFlags::empty());
        if !is_alive(running.pid, running.start_ticks) {
            return Signalled::Gone;
        }
        if !handles(running.pid, signal) {
            return Signalled::Unhandled;
        }
        let sent = match process {
            Ok(process) => pidfd_send_signal(process, signal),
            Err(_) => kill_process(pid, signal),
        };
        if sent.is_ok() { Signalled::Sent } else { Signalled::Gone }
    }

    async fn check_health(&self, health_check: &HealthCheck, launch: &Launch) -> (Health, String) {
        health::check(health_check, launch, &self.program).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::procfs::start_ticks;

    fn of_this_process() -> Started {
        let pid = i32::try_from(std::process::id()).unwrap();
        let ticks = start_ticks(pid).unwrap();
        Started {
            attempt: 1,
            pid,
            start_ticks: ticks,
            shim: pid,
            shim_ticks: ticks,
            started_at: SystemClock.wall(),
            boot: boot_id(),
        }
    }

    #[tokio::test]
    async fn a_process_of_an_earlier_boot_is_not_adopted() {
        let dir = tempfile::tempdir().unwrap();
        let driver = ProcessDriver::new("/nowhere".into());
        let running = of_this_process();
        for (boot, is_adopted) in
            [(running.boot.clone(), true), (None, true), (Some("another".to_owned()), false)]
        {
            let running = Started { boot, ..running.clone() };
            state::write(&dir.path().join("running.json"), &running).unwrap();
            let found = driver.adopt(dir.path()).await;
            assert_eq!(found == FoundProcess::Running(running.clone()), is_adopted, "{found:?}");
        }
    }

    /// Otherwise the process would be started a second time.
    #[tokio::test]
    async fn a_process_whose_shim_was_killed_before_its_message_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("shim");
        let record = serde_json::to_string(&of_this_process()).unwrap();
        std::fs::write(&program, format!("#!/bin/sh\necho '{record}' > $3/running.json\n"))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let driver = ProcessDriver::new(program);
        let launch = Launch { attempt: 1, ..Launch::default() };
        let started = driver.start(dir.path(), &launch).await.unwrap();
        assert_eq!(started.pid, of_this_process().pid);
        let second = Launch { attempt: 3, ..Launch::default() };
        assert!(driver.start(dir.path(), &second).await.is_err(), "the record is of another start");
    }

    /// As where `/proc` hides the shim: it seems to be gone.
    #[tokio::test]
    async fn exit_is_read_once_a_hidden_shim_has_written_it() {
        let dir = tempfile::tempdir().unwrap();
        let driver = ProcessDriver::new("/nowhere".into());
        let running = Started { start_ticks: 1, shim_ticks: 1, ..of_this_process() };
        state::write(&dir.path().join("running.json"), &running).unwrap();
        let lock = fs::File::create(dir.path().join("lock")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let write = async {
            tokio::task::yield_now().await;
            let exit = ProcessExit { attempt: 1, code: Some(7), ..ProcessExit::unknown("") };
            state::write(&dir.path().join("exit.json"), &exit).unwrap();
            drop(lock);
        };
        let (exit, found, ()) =
            tokio::join!(driver.exited(dir.path(), &running), driver.adopt(dir.path()), write);
        assert_eq!(exit.code, Some(7), "{exit:?}");
        assert_eq!(found, FoundProcess::Exited(exit));
    }

    /// The signal would end this process, which does not handle it, or another one that has its pid.
    #[tokio::test]
    async fn signal_goes_to_a_process_that_handles_it_alone() {
        let driver = ProcessDriver::new("/nowhere".into());
        let running = of_this_process();
        assert_eq!(driver.signal(&running, "USR2").await, Signalled::Unhandled);
        let earlier = Started { start_ticks: running.start_ticks - 1, ..running.clone() };
        assert_eq!(driver.signal(&earlier, "USR2").await, Signalled::Gone);
        let kind = tokio::signal::unix::SignalKind::user_defined2();
        let mut signals = tokio::signal::unix::signal(kind).unwrap();
        assert_eq!(driver.signal(&running, "USR2").await, Signalled::Sent);
        signals.recv().await.unwrap();
    }

    /// In virtual time, which passes at once while the shim does nothing.
    #[tokio::test(start_paused = true)]
    async fn a_slow_start_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("shim");
        let message = serde_json::to_string(&ShimMessage::Running(of_this_process())).unwrap();
        std::fs::write(&program, format!("#!/bin/sh\nsleep 0.2\necho '{message}'\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let started = ProcessDriver::new(program).start(dir.path(), &Launch::default()).await;
        assert_eq!(
            started,
            Ok(of_this_process()).map(|running| Started {
                started_at: started.as_ref().unwrap().started_at,
                ..running
            })
        );
    }
}
