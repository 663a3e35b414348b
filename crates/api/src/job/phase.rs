//! The phases of a job.

use serde::{Deserialize, Serialize};

use crate::text::displays_as_variant;

/// Phase of a job; Volcano's ten.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum JobPhase {
    /// Not enough members run.
    #[default]
    Pending,
    /// Enough members run.
    Running,
    /// Members are being removed and will be started again.
    Restarting,
    /// Members are being stopped; the job can be resumed.
    Aborting,
    /// Stopped; the job can be resumed.
    Aborted,
    /// Remaining members are being stopped; the job then counts as completed.
    Completing,
    Completed,
    /// Members are being stopped for good.
    Terminating,
    /// Stopped for good.
    Terminated,
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

    /// Whether no other phase follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, JobPhase::Completed | JobPhase::Terminated | JobPhase::Failed)
    }

    /// Whether members may be started in this phase.
    #[must_use]
    pub fn starts_members(self) -> bool {
        matches!(self, JobPhase::Pending | JobPhase::Running)
    }

    /// Whether the job runs, or will without a further request.
    #[must_use]
    pub fn is_active(self) -> bool {
        self.starts_members() || self == JobPhase::Restarting
    }
}

displays_as_variant!(JobPhase);
