//! Cells.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod group;
pub mod model;
pub mod inspect;
mod invariants;
mod place;
pub mod record;
pub mod request;
pub mod scheduler;
mod state;
mod yaml;

pub use config::CellConfig;
pub use group::{AffinityGroup, AffinityGroupState, GroupKey, LazyPreemptionStatus, PodPlacementInfo};
pub use model::{CellHealthiness, CellModel};
pub use place::plan::ChainReason;
pub use record::{AffinityGroupRecord, PodPlacementRecord, RebuildNote};
pub use request::{BadRequest, GroupRequest, PodRequest};
pub use scheduler::{CellDecision, CellEvent, CellPlan, CellScheduler, CellWait, StalePlan};
