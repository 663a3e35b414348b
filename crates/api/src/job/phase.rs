//! The phases of a job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far a job has come. Volcano's ten.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum JobPhase {
    /// Not enough members run.
    #[default]
    Pending,
    /// Enough members run.
    Running,
    /// Members are removed, to be started again.
    Restarting,
    /// Members are being stopped; it can go on later.
    Aborting,
    /// Stopped; it can go on later.
    Aborted,
    /// Members that are left over are being stopped.
    Completing,
    /// Done.
    Completed,
    /// Members are being stopped, for good.
    Terminating,
    /// Stopped for good.
    Terminated,
    /// Failed.
    Failed,
}

impl JobPhase {
    /// All ten.
    pub const ALL: [JobPhase; 10] = [
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Aborting,
        JobPhase::Aborted,
        JobPhase::Completing,
        JobPhase::Completed,
        JobPhase::Terminating,
        JobPhase::Terminated,
        JobPhase::Failed,
    ];

    /// Whether nothing leads out of it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, JobPhase::Completed | JobPhase::Terminated | JobPhase::Failed)
    }

    /// Whether members may be started in it.
    #[must_use]
    pub fn starts_members(self) -> bool {
        matches!(self, JobPhase::Pending | JobPhase::Running)
    }
}

impl fmt::Display for JobPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}
