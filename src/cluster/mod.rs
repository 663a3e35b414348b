//! View of the cluster that all controllers share: one cache per Consul prefix.
//!
//! Keys read: `labels/node/`, `rcfarm/nodes/`, `labels/pod/`, `intent/`, `health/`, `rcfarm/allocations/`. It also decodes
//! `rcfarm/commands/`, `rcfarm/queues/`, `rcfarm/priority_classes/` and `rcfarm/pod_groups/` for the caches of jobs and
//! queues.
//! Keys written: none. Who writes them: users, farms and node agents. A crash leaves nothing.

pub mod allocations;
pub mod cells;
pub mod commands;
mod failure_tracker;
pub mod health;
pub mod intents;
pub mod job_pods;
pub mod nodes;

pub mod pods;
pub mod priority_classes;
pub mod queues;
pub mod shared_read;
pub mod snapshot;
pub mod view;
pub mod wake;

pub use allocations::AllocationCache;
pub use view::ClusterView;
