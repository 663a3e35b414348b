//! Replication controllers, in square/p2's layout.
//!
//! Keys read: `replication_controllers/<uuid>`, `labels/node/`, `labels/pod/`, `intent/`, `health/`, `rcfarm/nodes/`,
//! `rcfarm/allocations/`, the record's locks and status.
//! Keys written: `labels/pod/<node>/<pod>`, `intent/<node>/<pod>`, `status/replication_controllers/<uuid>/rcfarm`,
//! `audit_logs/<uuid v7>`; when the manifest asks for resources `rcfarm/allocations/<node>`, by CAS; during a node
//! transfer `lock/replication_controllers/<uuid>/update`.
//! Who else writes them: users and rolling updates the record; nobody else the pods of a claimed RC, except a
//! person by hand, which the trees tell. A p2 farm is kept away by the ownership lock.
//! A crash between two writes leaves: a part of the pods added or removed, each whole (label, intent, promise, status
//! and audit in one transaction); a node transfer recorded in the status, which the next owner finishes or undoes.

mod allocations;
pub mod caches;
mod controller;
mod events;
mod failpoints;
mod health_write_limiter;
pub mod kind;
pub mod plan;
mod statuses;
mod transfer;
pub mod writes;

use std::collections::BTreeMap;

pub use controller::PlacementSources;

/// The pods of one RC by place.
pub type Pods = BTreeMap<rcfarm_api::ids::PodRef, plan::RcPod>;
