//! Converts a pod status reported by a node agent to the state of a job's member. Pure.

use rcfarm_api::Timestamp;
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{ExitReason, LastExit, NodePodPhase, PodStatus, ProcessStatus};

/// State of a pod, from its agent's report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodState {
    /// Kubernetes-style phase.
    pub phase: PodPhase,
    /// Whether it runs and its health checks pass.
    pub ready: bool,
    /// Exit codes by container name; empty until all processes have ended.
    pub exits: Vec<(String, Option<i32>)>,
    /// Number of restarts made by the node agent.
    pub restarts: u32,
    /// Whether the node cannot run it as specified.
    pub is_unfit: bool,
    /// Message of the node agent.
    pub message: String,
    /// How its last run failed, of the process that failed first in the list. It may be restarted meanwhile.
    pub failure: Option<PodFailure>,
    /// Whether a process of it has ended, and waits until its agent starts it again.
    pub is_due: bool,
    /// Whether it ended because its node's lease ended. It did not fail.
    pub is_evicted: bool,
}

/// How a process of a pod failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFailure {
    pub time: Timestamp,
    /// `None`: unknown.
    pub exit_code: Option<i32>,
    pub reason: Option<ExitReason>,
    /// Message of the node agent.
    pub message: String,
    /// The end of its output.
    pub output: String,
}

impl PodState {
    /// State of a pod on a node that reports no pod statuses.
    #[must_use]
    pub fn running() -> PodState {
        PodState { phase: PodPhase::Running, ready: true, ..PodState::default() }
    }

    /// Exit code of `container`. If unknown or absent: of the first container that failed, else of the first one.
    #[must_use]
    pub fn exit_code(&self, container: Option<&str>) -> Option<i32> {
        let named = self.exits.iter().find(|(name, _)| Some(name.as_str()) == container);
        let bad = || self.exits.iter().find(|(_, code)| *code != Some(0));
        named.or_else(bad).or(self.exits.first()).and_then(|(_, code)| *code)
    }
}

/// Exit code of a process killed by a signal: 128 plus the signal's number, as shells report it.
const SIGNALLED: i32 = 128;

/// Exit code of an ended process, if known. Outer `None`: it has not ended.
fn ended(process: &ProcessStatus) -> Option<Option<i32>> {
    (process.phase == NodePodPhase::Ended).then(|| process.last_exit.as_ref().and_then(code))
}

fn code(exit: &LastExit) -> Option<i32> {
    match (exit.exit_code, exit.exit_status) {
        (code, _) if code >= 0 => Some(code),
        (_, 0) => None,
        (_, signal) => Some(SIGNALLED + signal),
    }
}

/// How the process failed; `None`: it runs, has not run, or its last end was no failure.
fn failure(process: &ProcessStatus) -> Option<PodFailure> {
    let exit = process.last_exit.as_ref()?;
    let is_down = matches!(process.phase, NodePodPhase::Ended | NodePodPhase::Backoff);
    let exit_code = code(exit);
    let is_failure = exit_code != Some(0) && exit.reason != Some(ExitReason::LeaseEnded);
    let name = &process.launchable_id;
    (is_down && is_failure).then(|| PodFailure {
        time: exit.time,
        exit_code,
        reason: exit.reason,
        message: format!("{name}: {}", process.message),
        output: process.output.clone(),
    })
}

/// Whether the process has ended, and is to be started again: with `Always` also one that has succeeded.
fn is_due(process: &ProcessStatus) -> bool {
    process.phase == NodePodPhase::Backoff && process.last_exit.is_some() && !is_evicted(process)
}

fn is_evicted(process: &ProcessStatus) -> bool {
    process.last_exit.as_ref().is_some_and(|exit| exit.reason == Some(ExitReason::LeaseEnded))
}

/// Derives the phase. A pod that the node cannot run is `Pending`, as with an image that cannot be pulled in
/// Kubernetes. It ends when all processes have ended, and succeeds if all of them exited with 0.
#[must_use]
pub fn stands(status: &PodStatus) -> PodState {
    let ends: Option<Vec<Option<i32>>> = match status.processes.is_empty() {
        true => None,
        false => status.processes.iter().map(ended).collect(),
    };
    let restarts = status.processes.iter().map(|process| process.restarts).sum::<u64>();
    let has_run = restarts > 0 || status.processes.iter().any(|p| p.last_exit.is_some());
    let phase = match (&ends, status.phase) {
        (Some(ends), _) if ends.iter().all(|end| *end == Some(0)) => PodPhase::Succeeded,
        (Some(_), _) => PodPhase::Failed,
        (None, NodePodPhase::Running | NodePodPhase::Stopping | NodePodPhase::Ended) => {
            PodPhase::Running
        }
        (None, NodePodPhase::Backoff | NodePodPhase::Starting) if has_run => PodPhase::Running,
        (None, NodePodPhase::Unfit | NodePodPhase::Backoff | NodePodPhase::Starting) => {
            PodPhase::Pending
        }
    };
    let names = status.processes.iter().map(|process| process.launchable_id.clone());
    PodState {
        phase,
        ready: phase == PodPhase::Running
            && status.phase == NodePodPhase::Running
            && matches!(status.health, Health::Passing | Health::Absent),
        exits: names.zip(ends.into_iter().flatten()).collect(),
        restarts: u32::try_from(restarts).unwrap_or(u32::MAX),
        is_unfit: status.phase == NodePodPhase::Unfit,
        message: status.message.clone(),
        failure: status.processes.iter().find_map(failure),
        is_due: status.processes.iter().any(is_due),
        is_evicted: phase == PodPhase::Failed && status.processes.iter().any(is_evicted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcfarm_api::node::status::START_ERROR;

    fn process(phase: NodePodPhase, exit: Option<(i32, i32)>, restarts: u64) -> ProcessStatus {
        let exit = exit.map(|(exit_code, exit_status)| LastExit {
            time: Timestamp::UNIX_EPOCH,
            exit_code,
            exit_status,
            reason: None,
        });
        ProcessStatus { phase, last_exit: exit, restarts, ..ProcessStatus::default() }
    }

    fn pod(phase: NodePodPhase, processes: Vec<ProcessStatus>) -> PodState {
        stands(&PodStatus { phase, processes, health: Health::Passing, ..PodStatus::default() })
    }

    #[test]
    fn pod_ends_with_its_processes_and_succeeds_if_all_did() {
        let done = || process(NodePodPhase::Ended, Some((0, 0)), 0);
        let ended = |exit| {
            pod(NodePodPhase::Ended, vec![done(), process(NodePodPhase::Ended, Some(exit), 0)])
        };
        assert_eq!(pod(NodePodPhase::Ended, vec![done()]).phase, PodPhase::Succeeded);
        for (exit, code) in [((3, 0), Some(3)), ((-1, 9), Some(137)), ((-1, 0), None)] {
            let pod_state = ended(exit);
            assert_eq!((pod_state.phase, pod_state.exit_code(None)), (PodPhase::Failed, code));
        }
        let half =
            pod(NodePodPhase::Running, vec![done(), process(NodePodPhase::Running, None, 0)]);
        assert_eq!(half.phase, PodPhase::Running);
    }

    /// `volcano.md` §2.2: the exit code of container[0], or of the framework's own container, decides.
    #[test]
    fn the_exit_code_is_that_of_the_container_that_counts() {
        let named = |name: &str, code: i32| ProcessStatus {
            launchable_id: name.to_owned(),
            ..process(NodePodPhase::Ended, Some((code, 0)), 0)
        };
        let both = pod(NodePodPhase::Ended, vec![named("agent", 1), named("main", 137)]);
        assert_eq!(both.phase, PodPhase::Failed);
        assert_eq!(both.exit_code(Some("main")), Some(137));
        assert_eq!(both.exit_code(Some("gone")), Some(1));
        let beside = pod(NodePodPhase::Ended, vec![named("agent", 1), named("main", 0)]);
        assert_eq!((beside.phase, beside.exit_code(Some("main"))), (PodPhase::Failed, Some(0)));
    }

    #[test]
    fn start_error_is_a_failure_and_the_end_of_a_lease_is_none() {
        let with = |phase, code, reason| {
            let mut process = process(phase, Some((code, 0)), 0);
            process.message = "python33 cannot be started".to_owned();
            process.last_exit.as_mut().unwrap().reason = Some(reason);
            pod(phase, vec![process])
        };
        let error = with(NodePodPhase::Ended, START_ERROR, ExitReason::StartError);
        assert_eq!((error.phase, error.exit_code(None)), (PodPhase::Failed, Some(128)));
        assert!(!error.is_evicted && error.failure.unwrap().message.contains("python33"));
        let again = with(NodePodPhase::Backoff, START_ERROR, ExitReason::StartError);
        assert_eq!((again.phase, again.failure.is_some()), (PodPhase::Running, true));
        let ended = with(NodePodPhase::Ended, -1, ExitReason::LeaseEnded);
        assert!(ended.is_evicted && ended.failure.is_none());
        let again = with(NodePodPhase::Backoff, -1, ExitReason::LeaseEnded);
        assert!(!again.is_evicted && again.failure.is_none() && again.phase == PodPhase::Running);
    }

    #[test]
    fn what_has_not_ended_waits_or_runs() {
        for (phase, restarts, wanted, ready) in [
            (NodePodPhase::Unfit, 0, PodPhase::Pending, false),
            (NodePodPhase::Starting, 0, PodPhase::Pending, false),
            (NodePodPhase::Backoff, 0, PodPhase::Pending, false),
            (NodePodPhase::Backoff, 2, PodPhase::Running, false),
            (NodePodPhase::Running, 2, PodPhase::Running, true),
            (NodePodPhase::Stopping, 0, PodPhase::Running, false),
        ] {
            let pod_state = pod(phase, vec![process(phase, None, restarts)]);
            assert_eq!((pod_state.phase, pod_state.ready), (wanted, ready), "{phase}");
            assert_eq!(u64::from(pod_state.restarts), restarts);
        }
        assert!(pod(NodePodPhase::Unfit, vec![]).is_unfit);
    }
}
