//! Health checks of processes, and what follows from their results. Pure.

use std::time::Duration;

use rcfarm_api::manifest::command_line::Expansion;
use rcfarm_api::node::Health;

/// A health check of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Kind and target of the check.
    pub probe: Probe,
    /// Pause between two checks.
    pub interval: Duration,
    /// A check that takes longer is critical.
    pub timeout: Duration,
    /// How the target refers to variables of the process.
    pub expansion: Expansion,
    /// Results in a row that change the health.
    pub thresholds: Thresholds,
}

/// Kind and target of a check. References to variables of the process's environment are expanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// `GET` of a URL: 2xx and 3xx are passing, 429 is a warning, anything else is critical, as in Consul.
    Http(String),
    /// A TCP connection to `host:port`: passing if it opens.
    Tcp(String),
    /// A command: exit code 0 is passing, 1 is a warning, anything else is critical, as in Consul.
    Exec(Vec<String>),
}

/// How many results in a row change the health, or restart the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Passing or warning results until the process is passing or warning.
    pub passing_after: u32,
    /// Critical results until the process is critical.
    pub critical_after: u32,
    /// Critical results until the process is restarted; `None`: never.
    pub restart_after: Option<u32>,
}

/// Health of a process from the results of its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthVerdict {
    thresholds: Thresholds,
    health: Health,
    /// Whether the last results were good (passing or warning), and how many in a row were the same.
    in_a_row: (bool, u32),
}

impl HealthVerdict {
    /// Before the first result: health `unknown`.
    pub fn new(thresholds: Thresholds) -> HealthVerdict {
        HealthVerdict { thresholds, health: Health::Unknown, in_a_row: (true, 0) }
    }

    /// The verdict after one more result.
    #[must_use]
    pub fn after(self, result: Health) -> HealthVerdict {
        let good = result != Health::Critical;
        let in_a_row = if good == self.in_a_row.0 { self.in_a_row.1.saturating_add(1) } else { 1 };
        let enough = match good {
            true => in_a_row >= self.thresholds.passing_after,
            false => in_a_row >= self.thresholds.critical_after,
        };
        let health = if enough { result } else { self.health };
        HealthVerdict { health, in_a_row: (good, in_a_row), ..self }
    }

    /// The health of the process.
    pub fn health(&self) -> Health {
        self.health
    }

    /// The number of critical results in a row, once there are enough to restart the process.
    pub fn restarts_after(&self) -> Option<u32> {
        let (is_good, in_a_row) = self.in_a_row;
        let is_due = self.thresholds.restart_after.is_some_and(|after| in_a_row >= after);
        (!is_good && is_due).then_some(in_a_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_changes_after_threshold_results_in_a_row() {
        use Health::{Critical, Passing, Unknown, Warning};
        let thresholds = Thresholds { passing_after: 2, critical_after: 3, restart_after: None };
        let start = HealthVerdict::new(thresholds);
        for (answers, health) in [
            (vec![], Unknown),
            (vec![Passing], Unknown),
            (vec![Passing, Passing], Passing),
            (vec![Passing, Critical, Passing], Unknown),
            (vec![Passing, Passing, Critical, Critical], Passing),
            (vec![Passing, Passing, Critical, Critical, Critical], Critical),
            (vec![Critical, Critical, Critical, Passing], Critical),
            (vec![Passing, Warning], Warning),
        ] {
            let end = answers.iter().fold(start, |verdict, answer| verdict.after(*answer));
            assert_eq!(end.health(), health, "{answers:?}");
            assert_eq!(end.restarts_after(), None, "{answers:?}");
        }
    }

    #[test]
    fn a_restart_is_due_after_critical_results_in_a_row() {
        use Health::{Critical, Passing, Warning};
        let thresholds = Thresholds { passing_after: 1, critical_after: 1, restart_after: Some(2) };
        let start = HealthVerdict::new(thresholds);
        for (answers, due) in [
            (vec![], None),
            (vec![Critical], None),
            (vec![Critical, Critical], Some(2)),
            (vec![Critical, Warning, Critical], None),
            (vec![Passing, Passing, Passing], None),
        ] {
            let end = answers.iter().fold(start, |verdict, answer| verdict.after(*answer));
            assert_eq!(end.restarts_after(), due, "{answers:?}");
        }
    }
}
