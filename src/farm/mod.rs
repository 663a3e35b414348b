//! The farm daemon: holds a session, claims records, runs one task per claimed record.
//!
//! Keys read: records, labels and locks of each kind; `rcfarm/farms/`, `rcfarm/bell/`, `rcfarm/layout`.
//! Keys written: ownership locks and its own `rcfarm/farms/<farm>`; at start, if missing, `rcfarm/layout`, sentinels and
//! seed records. It deletes handled doorbells. Controllers write everything else.
//! Who else writes them: other farms write their own locks and presence; users write records, labels and doorbells.
//! A crash between two writes leaves: locks and a presence, which Consul deletes with the session.

pub mod claim_read;
pub mod claims;
mod clock_watch;
mod context;
mod doorbells;
mod farm_loop;
pub mod kind;
mod kind_state;
pub mod metrics;
mod ownership;
pub mod plan;
pub mod preflight;
mod presence;
pub mod record_labels;
pub mod record_task;
pub mod records;
pub mod rights;
mod run;
mod seeds;
mod session_loop;
mod settings;
pub mod status_chain;
pub mod status_check;
pub mod subscriptions;
mod wake_queue;

pub use context::{FarmReport, PlacementReport, ReportPlacement};
pub use preflight::{LAYOUT, PreflightError};
pub use run::{Farm, FarmError};
pub use settings::{FarmSettings, NODE_GRACE};
