//! When a process that has ended is started again. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::driver::ProcessExit;
use rcfarm_api::backoff;

/// After which ends a process is started again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartWhen {
    /// After every one.
    #[default]
    Always,
    /// After a failure.
    OnFailure,
    /// Never.
    Never,
}

/// A policy with its pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// After which ends.
    pub policy: RestartWhen,
    /// The pause before the first restart; it doubles with each that follows.
    pub backoff: Duration,
    /// The longest pause.
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

/// A process that ran this many times its longest pause, and at least a minute, counts as well again.
const WELL_AFTER: u32 = 2;

impl RestartPolicy {
    /// The pause before the next start of a process that ended with `exit` after `ran`, having failed `failures` times
    /// in a row before; `None`: it is not started again.
    #[must_use]
    pub fn pause(&self, exit: &ProcessExit, failures: u32) -> Option<Duration> {
        match self.policy {
            RestartWhen::Never => None,
            RestartWhen::OnFailure if exit.is_success() => None,
            _ => Some(backoff(self.backoff, self.max_backoff, failures)),
        }
    }

    /// Failures in a row, after one more that came when the process had run for `ran`.
    #[must_use]
    pub fn failures(&self, before: u32, ran: Duration) -> u32 {
        let well = (self.max_backoff * WELL_AFTER).max(Duration::from_secs(60));
        if ran >= well { 0 } else { before.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Option<i32>, signal: Option<i32>) -> ProcessExit {
        ProcessExit { code, signal, ..ProcessExit::unknown("test") }
    }

    #[test]
    fn the_policy_decides_and_pauses_double_up_to_the_longest() {
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
    fn a_long_run_wipes_the_slate() {
        let policy = RestartPolicy::default();
        assert_eq!(policy.failures(3, Duration::from_secs(119)), 4);
        assert_eq!(policy.failures(3, Duration::from_secs(120)), 0);
    }
}
