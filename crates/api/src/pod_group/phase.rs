//! Phases of a PodGroup, and the reasons that its owner gives for them.

use serde::{Deserialize, Serialize};

use crate::text::displays_as_variant;

/// Phase of a group (`volcano.md` §2.5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodGroupPhase {
    /// It waits in its queue.
    #[default]
    Pending,
    /// It was admitted: the queue is charged for it.
    Inqueue,
    /// At least `minMember` of its members have started, and not all have ended.
    Running,
    /// Some members run; others have lost their node and cannot be placed.
    Unknown,
    /// All its members have ended.
    Completed,
}

impl PodGroupPhase {
    /// All of them.
    pub const ALL: [PodGroupPhase; 5] = [
        PodGroupPhase::Pending,
        PodGroupPhase::Inqueue,
        PodGroupPhase::Running,
        PodGroupPhase::Unknown,
        PodGroupPhase::Completed,
    ];

    /// Whether its queue is charged for it.
    #[must_use]
    pub fn is_admitted(self) -> bool {
        matches!(self, PodGroupPhase::Inqueue | PodGroupPhase::Running | PodGroupPhase::Unknown)
    }
}

displays_as_variant!(PodGroupPhase);

/// Reason of a group's phase. Fixed tokens: scripts and alerts match them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PodGroupReason {
    /// Nothing holds it up.
    #[default]
    AsDesired,
    /// Its record breaks a rule; the message names the field.
    InvalidRecord,
    /// Its queue does not exist.
    QueueMissing,
    /// Its queue, or one above, is closed.
    QueueClosed,
    /// Its queue's record breaks a rule.
    QueueInvalid,
    /// Its queue has queues below it; only those without take work.
    QueueHasChildren,
    /// It requests more than its queue, or one above, may use at all. It can never be admitted as it is.
    ExceedsCapability,
    /// Its queue, or one above, is full.
    QueueFull,
    /// Others precede it in its strict queue.
    BehindInQueue,
    /// Its owner suspended it.
    Suspended,
    /// Its owner waits for something else first.
    WaitingForDependency,
    /// It was not placed in time, went back to its queue, and is tried again later.
    BackedOff,
    /// No node matches the selector of one of its tasks.
    NoEligibleNodes,
    /// The matching nodes have too little capacity.
    InsufficientCapacity,
    /// It has been promised cells that others use, and waits for their end.
    Preempting,
    /// It would have to evict groups of its virtual cluster whose disruption budgets forbid that.
    BudgetExhausted,
    /// Another group takes its cells: it is being stopped for that, or waits for a placement since.
    Evicted,
    /// Its placement is being reserved, in several transactions.
    Reserving,
    /// A chosen node had no capacity after all, and the placement is being released.
    ReservationFailed,
    /// Its placement is being released, in several transactions.
    Releasing,
    /// Members have lost their nodes while others run.
    MembersLost,
}

impl PodGroupReason {
    /// Whether the reason concerns the whole queue.
    #[must_use]
    pub fn is_of_queue(self) -> bool {
        use PodGroupReason::{QueueClosed, QueueHasChildren, QueueInvalid, QueueMissing};
        matches!(self, QueueMissing | QueueClosed | QueueInvalid | QueueHasChildren)
    }
}

displays_as_variant!(PodGroupReason);
