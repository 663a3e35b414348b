//! Replication controllers, in square/p2's layout.
//!
//! Keys read: `replication_controllers/<uuid>`, its labels, locks and status; `labels/node/`, `labels/pod/`, `intent/`,
//! `health/`, `rcfarm/nodes/`, `rcfarm/allocations/`; `reality/<node>/<pod>` while an RC's manifest is updated in order.
//! Keys written: `labels/pod/<node>/<pod>`, `intent/<node>/<pod>`, `status/replication_controllers/<uuid>/rcfarm`,
//! `audit_logs/<uuid v7>`; `rcfarm/allocations/<node>` by CAS, if the manifest asks for resources;
//! `lock/replication_controllers/<uuid>/update` during a node transfer.
//! Who else writes them: users and rolling updates write the record. The owner of an enabled RC takes over surplus pods
//! of a disabled one with the same pod id (`p2.md` §2.5). Nobody else writes the pods of a claimed RC,
//! except people by hand, which the watches show. The ownership lock excludes p2's farms.
//! A crash between two writes leaves: some of the pods added or removed, each with label, intent, allocation, status
//! and audit record in one transaction; or a node transfer in the status, which the next owner finishes or undoes.
//! Collected: p2's programs delete a record and its labels alone. The status and the doorbell are then deleted by the
//! owner, under its claim. Where there is none, a farm that finds a status without a record (at its start, and every 5
//! to 6 minutes) claims the RC's lock first, so that two farms do not both try; its selector must match a record
//! without labels. A consistent read shows that the record is gone, and not one of many that vanished together
//! ([`rcfarm_store::mass_deletion_guard`]). Pods stay; `rc orphans` names them.
//!
//! | module | contents |
//! |---|---|
//! | `controller` | start here: reads the record and its pods, plans, commits, writes the status |
//! | [`plan`](mod@plan) | what to do about one RC, with reasons. Pure |
//! | [`writes`] | packs the steps of a plan into transactions. Pure |
//! | `leftovers` | statuses of RCs that are gone |
//! | [`caches`], `interests`, `statuses` | shared by all RCs of a farm: pods, who waits for what, stored statuses |
//! | `events` | audit records |
//! | [`kind`] | the kind `rc`: prefixes, rights, subscriptions |
//! | `failpoints` | change input or output of the plan in tests |

pub mod caches;
mod controller;
mod events;
mod failpoints;
mod interests;
pub mod kind;
mod leftovers;
pub mod plan;
mod statuses;
pub mod writes;

use std::collections::BTreeMap;

pub use controller::PlacementSources;

/// The pods of one RC by place.
pub type RcPods = BTreeMap<rcfarm_api::ids::PodRef, plan::RcPod>;
