//! How much one pass of a scheduler may change, and one change of it.

use rcfarm_api::queue::spec::MAX_DEPTH;
use rcfarm_store::TxnLimits;

/// Operations of every transaction: fence, scheduler status, audit record.
pub const FIXED_OPS: usize = 3;
/// Bytes reserved for them.
pub const FIXED_BYTES: usize = 32 * 1024;
/// Bytes reserved for the statuses of the queues of one change.
const QUEUE_BYTES: usize = 32 * 1024;

/// How much one pass may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Groups placed per pass.
    pub placed: usize,
    /// Comparisons of nodes after which no further group is examined.
    pub steps: usize,
    /// Changes of messages per pass.
    pub message_changes: usize,
    /// Nodes per change; a larger gang is written ahead.
    pub nodes: usize,
    /// Bytes of a change: of the group's status and of the nodes' allocations. A gang whose status alone is larger is
    /// not placed; one that is larger with its allocations is written ahead.
    pub bytes: usize,
}

impl Bounds {
    /// Limits from those of a transaction. Of its operations, a change leaves some to group, queue and ancestors.
    #[must_use]
    pub fn of(placed: usize, steps: usize, limits: TxnLimits) -> Bounds {
        let nodes = limits.ops.saturating_sub(FIXED_OPS + 2 + MAX_DEPTH + 2).max(1);
        // Values are sent in base64.
        let bytes = limits.bytes.saturating_sub(FIXED_BYTES + QUEUE_BYTES) / 4 * 3;
        Bounds { placed, steps, message_changes: limits.ops, nodes, bytes }
    }
}
