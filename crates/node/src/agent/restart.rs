//! Restart policy of processes: whether and after which pause. Pure.

use std::time::Duration;

use super::driver::ProcessExit;
use rcfarm_api::backoff;
use rcfarm_api::manifest::RestartWhen;

/// When a process is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Which exits lead to a restart.
    pub policy: RestartWhen,
    /// Pause before the first restart. It doubles with each failure in a row.
    pub backoff: Duration,
    /// Upper bound of the pause.
    pub max_backoff: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy {
            policy: RestartWhen::default(),
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(60),
        }
    }
}

/// The count of failures restarts at 0 after a run of this many times `max_backoff`, and at least a minute.
const RESET_AFTER_PAUSES: u32 = 2;
/// Lower bound of the run after which the count restarts.
const RESET_AFTER: Duration = Duration::from_secs(60);

impl RestartPolicy {
    /// The pause before the next start, after `exit` and `failures` earlier failures in a row. `None`: no restart.
    pub fn pause(&self, exit: &ProcessExit, failures: u32) -> Option<Duration> {
        match self.policy {
            RestartWhen::Never => None,
            RestartWhen::OnFailure if exit.is_success() => None,
            _ => Some(backoff(self.backoff, self.max_backoff, failures)),
        }
    }

    /// The pause after a start that failed because of the node, and `failures` such starts in a row before it. Every
    /// policy starts the process again: nothing of it has run.
    pub fn pause_after_failed_start(&self, failures: u32) -> Duration {
        backoff(self.backoff, self.max_backoff, failures)
    }

    /// Failures in a row after a run of length `ran` that ended.
    pub fn failures(&self, before: u32, ran: Duration) -> u32 {
        if ran >= self.reset_after() { 0 } else { before.saturating_add(1) }
    }

    /// Length of a run after which failures before it do not count.
    pub fn reset_after(&self) -> Duration {
        self.max_backoff.saturating_mul(RESET_AFTER_PAUSES).max(RESET_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Option<i32>, signal: Option<i32>) -> ProcessExit {
        ProcessExit { code, signal, ..ProcessExit::unknown("test") }
    }

    #[test]
    fn pause_doubles_up_to_max_backoff_where_the_policy_restarts() {
        let (good, bad, killed) = (exit(Some(0), None), exit(Some(1), None), exit(None, Some(9)));
        let with = |policy| RestartPolicy { policy, ..RestartPolicy::default() };
        let s = Duration::from_secs;
        for (policy, exit, failures, pause) in [
            (RestartWhen::Always, &good, 0, Some(s(1))),
            (RestartWhen::Always, &bad, 3, Some(s(8))),
            (RestartWhen::Always, &bad, 40, Some(s(60))),
            (RestartWhen::OnFailure, &good, 0, None),
            (RestartWhen::OnFailure, &bad, 1, Some(s(2))),
            (RestartWhen::OnFailure, &killed, 0, Some(s(1))),
            (RestartWhen::OnFailure, &ProcessExit::unknown("x"), 0, Some(s(1))),
            (RestartWhen::Never, &bad, 0, None),
        ] {
            assert_eq!(with(policy).pause(exit, failures), pause, "{policy:?} {exit:?} {failures}");
        }
    }

    #[test]
    fn failures_restart_at_zero_after_a_long_run() {
        let policy = RestartPolicy::default();
        assert_eq!(policy.failures(3, Duration::from_secs(119)), 4);
        assert_eq!(policy.failures(3, Duration::from_secs(120)), 0);
        let longest = RestartPolicy { max_backoff: Duration::MAX, ..policy };
        assert_eq!(longest.failures(3, Duration::from_secs(120)), 4);
    }
}
