//! The process of a job's pod on a simulated node, and its fate.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use crate::fleet::asks_for_cells;
use crate::rng::SimRng;
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Timestamp;
use rcfarm_api::content_hash;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{LastExit, NodePodPhase, PodStatus, ProcessStatus};

/// A pod's process.
pub struct NodeProcess {
    /// What it was started from.
    pub manifest: Bytes,
    pub state: Run,
    /// Number of restarts by the agent.
    pub restarts: u64,
    /// Whether its state is written to the store.
    pub told: bool,
}

/// State of a process.
#[derive(Clone, Copy, PartialEq)]
pub enum Run {
    /// It ends at `until` with the exit code `then`.
    Running {
        /// `None`: never by itself.
        until: Option<Instant>,
        /// The exit code.
        then: i32,
    },
    /// It ended with this exit code; `None`: unknown.
    Ended(Option<i32>),
    /// It will have stopped then.
    Stopping(Instant),
}

/// Fate of one attempt.
pub struct ProcessFate {
    /// Run time; `None`: until it is stopped.
    pub runs: Option<Duration>,
    /// Its exit code.
    pub code: i32,
}

impl ProcessFate {
    /// Fate of an attempt; the same for each call. With `calm`, only doomed jobs fail.
    #[must_use]
    pub fn of(seed: u64, identity: &PodIdentity, calm: bool) -> ProcessFate {
        let text =
            format!("{}/{}/{}/{}", identity.job, identity.slot, identity.version, identity.attempt);
        let hash = content_hash(text.as_bytes());
        let mut rng = SimRng::new(seed ^ hash);
        let runs = rng.between(Duration::from_millis(300), Duration::from_secs(6));
        let name = identity.job.name.as_str();
        let (doomed, endless) = (name.starts_with("doomed"), name.starts_with("endless"));
        let endless = endless || name.starts_with("hog");
        // They hold cells for long enough to be in the way of others.
        let runs = if asks_for_cells(&identity.job) { runs * 3 } else { runs };
        if endless || name.starts_with("mpi") && identity.slot.task == "Worker" {
            return ProcessFate { runs: None, code: 0 };
        }
        let fails =
            rng.permille(if identity.version + u64::from(identity.attempt) < 3 { 300 } else { 50 });
        let code = if rng.permille(500) { 1 + rng.below(3) } else { 137 };
        let code = i32::try_from(code).unwrap_or(1);
        match doomed || fails && !calm {
            true => ProcessFate { runs: Some(runs), code },
            false => ProcessFate { runs: Some(runs), code: 0 },
        }
    }
}

impl NodeProcess {
    /// Ends it with `code`, and restarts it if its manifest says so.
    pub fn end(&mut self, code: i32, now: Instant) {
        let manifest: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        let launchables = manifest["launchables"].as_object();
        let word = launchables.and_then(|all| all.values().next()?.get("restart")?.as_str());
        let again = match word {
            Some("on_failure") => code != 0 && self.restarts == 0,
            Some("always") => self.restarts == 0,
            _ => false,
        };
        if again {
            self.restarts += 1;
            let until = Some(now + Duration::from_secs(1));
            self.state = Run::Running { until, then: 0 };
        } else {
            self.state = Run::Ended(Some(code));
        }
        self.told = false;
    }

    /// Status that the agent writes.
    #[must_use]
    pub fn status(&self) -> PodStatus {
        let (phase, exit) = match self.state {
            Run::Running { .. } => (NodePodPhase::Running, None),
            Run::Stopping(_) => (NodePodPhase::Stopping, None),
            Run::Ended(code) => (NodePodPhase::Ended, Some(code.unwrap_or(-1))),
        };
        let last_exit = exit.map(|exit_code| LastExit {
            time: Timestamp::UNIX_EPOCH,
            exit_code,
            exit_status: 0,
            reason: None,
        });
        let processes =
            vec![ProcessStatus { phase, last_exit, restarts: self.restarts, ..Default::default() }];
        let health = if phase == NodePodPhase::Running { Health::Passing } else { Health::Absent };
        PodStatus { phase, health, processes, ..PodStatus::default() }
    }
}
