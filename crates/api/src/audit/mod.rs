//! The audit log: what was changed, by whom and why. Each record is written in the transaction of its change. Pure.
//!
//! Key of a record: `audit_logs/<uuid>`. Farms and commands write it once; only `audit prune` deletes it.
//!
//! The envelope is that of square/p2 (`p2.md` §1.6), so that p2's tools can show records. Unlike in p2, keys are UUIDs
//! of version 7, which sort by time. Details are complete enough to fold the log into a state ([`fold`](fold())), so
//! that it can be verified and pruned.
//!
//! Only `REPLICATION_CONTROLLER_RETARGET` changes the nodes of pods. The `NODE_TRANSFER_*` records beside it are for
//! readers.

mod details;
mod fold;
mod job_fold;
mod jobs;
mod prune;
mod queues;
mod record;
mod record_fold;

pub use details::{
    Actor, ChangeAcknowledged, Checkpoint, ControllerChange, DeletionConfirmed, Details,
    FoldedController, LabelsChange, NODES_LISTED, NodeChange, NodeTransfer, OrphansRemoved,
    PROMISE_LEAKED, Retarget, record_hash,
};
pub use fold::{
    Actual, Difference, Folded, Gap, Logged, compare, compare_queues, compare_records, fold,
};
pub use job_fold::{
    ACKNOWLEDGED, DELETED, FoldedJob, FoldedStep, JobDifference, ORPHANS_REMOVED, StoredJob,
    compare_jobs,
};
pub use jobs::{JobChange, JobStep, RECORD_GONE, RecordChange, RecordStep};
pub use prune::{PrunePlan, prune_plan};
pub use queues::{
    CellsChange, GroupChange, GroupsOrdered, JobTypeChange, LONGEST_REPEATED, PriorityClassChange,
    QueueChange, abridged,
};
pub use record::{AuditCause, AuditRecord, CauseKind, EventType, SCHEMA_VERSION};
pub use record_fold::{FoldedRecords, LoggedRecord, RecordDifference, compare_logged_records};

#[cfg(test)]
mod tests;
