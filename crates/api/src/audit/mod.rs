//! The audit log: what was changed, by whom and why, written in the transaction that made the change. Pure.
//!
//! Records stand under `audit_logs/<uuid>` in square/p2's envelope (`p2.md` §1.6), so that its readers show
//! them. Two things are ours: keys are UUIDs of version 7, which sort by time, and details say enough for the
//! log to be folded into the state that it claims ([`fold`](fold())), so that it can be verified and pruned.
//!
//! Only a `REPLICATION_CONTROLLER_RETARGET` changes where pods are; the `NODE_TRANSFER_*` records beside it
//! tell the story.

mod details;
mod fold;
mod jobs;
mod prune;
mod queues;
mod record;

pub use details::{
    Actor, Checkpoint, ControllerChange, Details, FoldedController, LabelsChange, NODES_LISTED,
    NodeChange, NodeTransfer, OrphansRemoved, PROMISE_LEAKED, Retarget,
};
pub use fold::{Actual, Difference, Folded, Gap, Logged, compare, fold};
pub use jobs::{JobChange, JobStep};
pub use prune::{PrunePlan, prune_plan};
pub use queues::{GroupChange, GroupsOrdered, QueueChange};
pub use record::{AuditRecord, EventType, SCHEMA_VERSION};

#[cfg(test)]
mod tests;
