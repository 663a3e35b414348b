//! Options and result of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::facts::Violation;
use crate::mix::Scenario;
use crate::reached::Occasion;
use rcfarm_store::failpoints::Failpoint;

/// How a run differs from the plain one.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub scenario: Scenario,
    /// Safety layers that are switched off.
    pub without: Vec<Failpoint>,
    /// Print the trace as it goes.
    pub print: bool,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimReport {
    /// The seed; 0 for a schedule from a file.
    pub seed: u64,
    /// The invariant that was violated.
    pub violation: Option<Violation>,
    /// Writes that were applied.
    pub applied: u64,
    /// The hash of the trace: the same for the same schedule.
    pub hash: u64,
    /// Simulated time that it took.
    pub lived: Duration,
    /// The last operations before a violation, oldest first.
    pub last: Vec<String>,
    /// Occasions that it met, with their number.
    pub met: BTreeMap<Occasion, u64>,
}
