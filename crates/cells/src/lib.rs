//! Topology-aware gang scheduling for virtual clusters, as HiveD (microsoft/hivedscheduler) does it.
//!
//! A virtual cluster has been promised *cells*: subtrees of the machines, such as a rack of four nodes of eight devices. A
//! guaranteed group gets its cells whatever others run. Idle cells are lent to opportunistic groups and taken back.
//!
//! All of it is pure: no I/O, no clock, no chance, no order of hashes. Keys read and written: none; the caller stores the
//! [`AffinityGroupRecord`] of each group. A crash between a decision and its record loses the decision only.
//!
//! | step | type |
//! |---|---|
//! | read HiveD's configuration, unchanged | [`CellConfig::parse`], [`CellConfig::validate`] → [`CellModel`] |
//! | read a pod's request, version 1 or 2 | [`PodRequest::parse`] |
//! | decide; nothing changes | [`CellScheduler::plan`] → [`CellDecision`] |
//! | apply a decision; only if nothing else has changed | [`CellScheduler::commit`] → [`CellEvent`] |
//! | tell what happened | [`CellScheduler::set_nodes`], [`CellScheduler::pod_gone`], [`CellScheduler::cancel`] |
//! | store and restore | [`CellScheduler::record`], [`CellScheduler::rebuild`] |
//!
//! # State
//!
//! The state is a function of the configuration, the bad nodes and the groups' places. In which order groups came and went
//! leaves no trace. A scheduler that is rebuilt from its records, in any order, equals the one that wrote them.
//!
//! # Order
//!
//! Where the reference chooses at random or by the history of its lists, the rule here is stated:
//!
//! - Chains are tried in descending order of name, which is the order that the reference's tests pin.
//! - Among equal cells the first in order of the configuration is taken.
//! - Groups are restored, and their records replayed, by descending priority and then by name.
//! - Cells become doomed from the top level down, by name of the virtual cluster, then in order of the configuration.
//!
//! # Differences from the reference
//!
//! Numbers are those of its defects, `hived.md` §7.4. All differences: `docs/reference/differences-hived.md`.
//!
//! | | here |
//! |---|---|
//! | B1 | `BeingPreempted` follows from the reservations; a further pod of such a group waits, and is placed once they end |
//! | B2 | a placement on reserved cells ends the reservation in the same commit |
//! | B3 | doomed cells are derived after each change |
//! | B4 | a group keeps whether it ignores suggested nodes |
//! | B5 | virtual cells are part of the record |
//! | B6 | names of groups are scoped by virtual cluster; all pods of a group make the same request |
//! | B7 | lazy preemption is part of the commit, and undone once the preemptor has gone and the cells are free |
//! | B9 | chains without quota are fine; unknown types are refused with path and fix |
//! | B10 | the search for devices is linear |
//! | B11 | nothing is random |
//! | B13 | the packing of version 1 requests is complete up to 200,000 steps; that of nested groups backtracks up to 20,000 |
//!
//! The safety check is exact: what all virtual clusters have not bound yet must fit together, not level by level.
#![forbid(unsafe_code)]

pub mod config;
pub mod extender;
#[cfg(test)]
mod fixture;
pub mod group;
pub mod inspect;
mod invariants;
pub mod machine;
pub mod model;
mod place;
pub mod record;
pub mod request;
pub mod scheduler;
mod state;
mod transitions;
mod yaml;

pub use config::CellConfig;
pub use group::{
    AffinityGroup, AffinityGroupState, GroupKey, LazyPreemptionStatus, PodPlacementInfo,
};
pub use model::{CellHealthiness, CellModel};
pub use rcfarm_api::cells::ChainReason;
pub use record::{AffinityGroupRecord, PodPlacementRecord, RebuildNote};
pub use request::{BadRequest, CheckedRequest, GroupRequest, PodRequest};
pub use scheduler::{CellDecision, CellEvent, CellPlan, CellScheduler, CellWait, StalePlan};
