//! Drivers run the processes of pods. One driver per `launchable_type`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::health_check::HealthCheck;
use rcfarm_api::Timestamp;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{ExitReason, START_ERROR};

/// Supported stop signals.
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

/// The signal of a name; TERM if the name is unknown.
pub fn signal(name: &str) -> Signal {
    SIGNALS.iter().find(|(known, _)| *known == name).map_or(Signal::TERM, |(_, signal)| *signal)
}

/// Everything that is needed to start one process. The shim reads it, so it must be complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Number of the start.
    pub attempt: u64,
    /// How many of the starts were restarts. `None`: an older agent wrote it.
    #[serde(default)]
    pub restarts: Option<u64>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub cwd: PathBuf,
    /// File for its output.
    pub log: PathBuf,
    /// Size in bytes above which the log is rotated.
    #[serde(default = "default_log_bytes")]
    pub log_bytes: u64,
    /// User and group ids; `None`: those of the agent.
    pub run_as: Option<(u32, u32)>,
    /// Whether the process keeps the agent's capabilities and may gain others.
    #[serde(default)]
    pub privileged: bool,
    pub cgroup: Option<PathBuf>,
    /// File with the lease: the process is stopped before the lease ends.
    pub lease: Option<PathBuf>,
    /// Name of the stop signal.
    pub stop_signal: String,
}

fn default_log_bytes() -> u64 {
    super::logs::MAX_BYTES
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub attempt: u64,
    /// Process id, which is also its process group.
    pub pid: i32,
    /// Start time by the kernel, in ticks since boot. With the pid it identifies the process.
    pub start_ticks: u64,
    /// Process id of its shim.
    pub shim: i32,
    /// Start time of the shim, in ticks since boot.
    pub shim_ticks: u64,
    /// When it was started.
    pub started_at: Timestamp,
    /// The machine's boot in which it was started: pids and ticks of another one mean nothing. `None` in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExit {
    /// Number of the start.
    pub attempt: u64,
    /// When it ended, as far as known.
    pub at: Timestamp,
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it could not be started, was stopped, or why nothing is known.
    pub why: Option<String>,
    /// What else is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExitReason>,
    /// The end of its output, after a failure.
    #[serde(skip)]
    pub output: String,
}

impl ProcessExit {
    /// An end of which only the reason is known.
    pub fn unknown(why: &str) -> ProcessExit {
        let at = Timestamp::UNIX_EPOCH;
        let why = Some(why.to_owned());
        ProcessExit {
            attempt: 0,
            at,
            code: None,
            signal: None,
            why,
            reason: None,
            output: String::new(),
        }
    }

    /// A start that failed.
    pub fn not_started(attempt: u64, at: Timestamp, failure: &StartFailure) -> ProcessExit {
        match failure {
            StartFailure::Program(why) => ProcessExit {
                attempt,
                code: Some(START_ERROR),
                reason: Some(ExitReason::StartError),
                at,
                ..ProcessExit::unknown(why)
            },
            // Without an attempt: see `is_of_node`.
            StartFailure::Node(why) => ProcessExit { at, ..ProcessExit::unknown(why) },
        }
    }

    /// Whether the node could not start it: nothing of the program was tried.
    pub fn is_of_node(&self) -> bool {
        self.attempt == 0
    }

    /// Whether it exited with code 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Text such as `exited with 1`.
    pub fn in_words(&self) -> String {
        let end = match (self.code, self.signal) {
            (Some(_), _) if self.reason == Some(ExitReason::StartError) => None,
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

/// Why a process was not started, for the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartFailure {
    /// The program cannot be started as specified, as Kubernetes' StartError.
    Program(String),
    /// The node cannot start it now. It says nothing of the program.
    Node(String),
}

impl StartFailure {
    /// Text for people.
    pub fn why(&self) -> &str {
        let (StartFailure::Program(why) | StartFailure::Node(why)) = self;
        why
    }
}

impl From<String> for StartFailure {
    fn from(why: String) -> StartFailure {
        StartFailure::Node(why)
    }
}

impl From<&str> for StartFailure {
    fn from(why: &str) -> StartFailure {
        StartFailure::Node(why.to_owned())
    }
}

/// State of a process that an earlier agent started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundProcess {
    /// Its process, which an earlier agent started, still runs.
    Running(Started),
    /// Its last process has ended, or its last start failed.
    Exited(ProcessExit),
    /// It was never started.
    Nothing,
}

/// What came of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    Sent,
    /// The process neither handles nor blocks it: it would be ended by it, or not notice it. Nothing was sent.
    Unhandled,
    /// The process has ended.
    Gone,
}

/// Runs processes. Each process has its own directory below the agent's data directory.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Starts `launch`. If a process of that directory already runs, returns that one.
    ///
    /// # Errors
    /// [`StartFailure`]: it does not run.
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, StartFailure>;

    /// Finds the process that an earlier agent left.
    async fn adopt(&self, dir: &Path) -> FoundProcess;

    /// Resolves when the process has ended.
    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit;

    /// Sends the stop signal. Kills the process and its group if it still runs after `grace`.
    async fn stop(&self, running: &Started, signal: &str, grace: Duration);

    /// Sends a signal to the process alone, not to its group, if it handles the signal. Waits for nothing.
    async fn signal(&self, running: &Started, signal: &str) -> Signalled;

    /// Runs a health check once, for a process that was started with `launch`. A command of a check runs as that
    /// process does, in the launch's directory. Returns the result and a message for the pod's status.
    async fn check_health(&self, health_check: &HealthCheck, launch: &Launch) -> (Health, String);
}
