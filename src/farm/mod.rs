//! The farm daemon: holds a session, claims records, runs one task per claimed record.
//!
//! Keys read: per kind the records, their labels and their locks; `rcfarm/farms/`, `rcfarm/bell/`, `rcfarm/layout`.
//! Keys written: ownership locks, its own `rcfarm/farms/<farm>`, `rcfarm/layout` and the bell sentinel when they
//! are missing; it deletes the doorbells it has answered. Everything else is written by controllers.
//! Who else writes them: other farms their own locks and presence; users records, labels and doorbells.
//! A crash between two writes leaves: locks and a presence that Consul deletes with the session.

pub mod claims;
mod context;
mod doorbells;
mod farm_loop;
pub mod kind;
mod kind_state;
mod ownership;
pub mod plan;
pub mod preflight;
mod presence;
pub mod record_task;
pub mod records;
pub mod rights;
mod run;
mod session_loop;
mod settings;
pub mod status_chain;
pub mod subscriptions;
mod wake_queue;

pub use context::{FarmReport, PlacementReport, ReportPlacement};
pub use preflight::{LAYOUT, PreflightError};
pub use run::{Farm, FarmError};
pub use settings::{FarmSettings, NODE_GRACE};
