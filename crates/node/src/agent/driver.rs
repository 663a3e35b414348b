//! What runs a pod's processes. One driver per `launchable_type`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use rcfarm_api::Timestamp;

/// Signals that can be asked for.
pub const SIGNALS: [(&str, Signal); 9] = [
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("HUP", Signal::HUP),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
    ("ABORT", Signal::ABORT),
];

/// The signal of a name; TERM for a name that is none.
#[must_use]
pub fn signal(name: &str) -> Signal {
    SIGNALS.iter().find(|(known, _)| *known == name).map_or(Signal::TERM, |(_, signal)| *signal)
}

/// Everything that is needed to start one process, put together by the agent. It is also what the supervising shim
/// reads, so it must be whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Tells this start from the ones before.
    pub attempt: u64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub cwd: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// As whom; `None`: as the agent.
    pub run_as: Option<(u32, u32)>,
    /// The cgroup that it is put into.
    pub cgroup: Option<PathBuf>,
    /// The file that says until when the node may count as alive; the process ends with that.
    pub lease: Option<PathBuf>,
    /// What asks it to stop.
    pub stop_signal: String,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Which start it comes from.
    pub attempt: u64,
    /// Its process id, which is that of its group.
    pub pid: i32,
    /// When the kernel says it started, in ticks since boot: with the pid, this names a process.
    pub start_ticks: u64,
    /// The shim above it.
    pub shim: i32,
    /// The shim's start, likewise.
    pub shim_ticks: u64,
    /// When it was started.
    pub started_at: Timestamp,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExit {
    /// Which start it comes from.
    pub attempt: u64,
    /// When, as far as is known.
    pub at: Timestamp,
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it could not be started, why nothing is known, or why it was ended.
    pub why: Option<String>,
}

impl ProcessExit {
    /// An end of which nothing is known but `why`.
    #[must_use]
    pub fn unknown(why: &str) -> ProcessExit {
        let at = Timestamp::UNIX_EPOCH;
        ProcessExit { attempt: 0, at, code: None, signal: None, why: Some(why.to_owned()) }
    }

    /// Whether it ended well.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// In words, as in `exited with 1`.
    #[must_use]
    pub fn in_words(&self) -> String {
        let end = match (self.code, self.signal) {
            (Some(code), _) => Some(format!("exited with {code}")),
            (None, Some(signal)) => Some(format!("killed by signal {signal}")),
            (None, None) => None,
        };
        match (end, &self.why) {
            (Some(end), Some(why)) => format!("{end}: {why}"),
            (Some(end), None) => end,
            (None, Some(why)) => why.clone(),
            (None, None) => "ended".to_owned(),
        }
    }
}

/// What is known of a process that an agent before this one started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundProcess {
    /// It runs.
    Running(Started),
    /// It ended.
    Exited(ProcessExit),
    /// It was never started.
    Nothing,
}

/// Runs processes. Directories are the process's own, below the agent's data directory.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Starts what `launch` says, unless a process of that directory runs already, which is given instead.
    ///
    /// # Errors
    /// Why it does not run, in words for the pod's status.
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, String>;

    /// Finds what an agent before this one left.
    async fn adopt(&self, dir: &Path) -> FoundProcess;

    /// Resolves when the process has ended.
    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit;

    /// Asks the process to stop, and kills it and what it left behind when it has not within `grace`.
    async fn stop(&self, running: &Started, signal: &str, grace: Duration);
}
