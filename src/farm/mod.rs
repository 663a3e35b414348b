//! The farm daemon: holds a session, claims records, runs one task per claimed record.
//!
//! Keys read: per kind the records, their labels and their locks; `rcfarm/farms/`, `rcfarm/bell/`, `rcfarm/layout`.
//! Keys written: ownership locks, its own `rcfarm/farms/<farm>`, `rcfarm/layout` and the bell sentinel when they
//! are missing; it deletes the doorbells it has answered. Everything else is written by controllers.
//! Who else writes them: other farms their own locks and presence; users records, labels and doorbells.
//! A crash between two writes leaves: locks and a presence that Consul deletes with the session.

pub mod claims;
mod doorbells;
pub mod kind;
mod kind_state;
pub mod plan;
pub mod preflight;
mod presence;
pub mod record_task;
pub mod records;
mod run;
mod session_loop;
pub mod wake_queue;

use rcfarm_api::ids::FarmName;
use rcfarm_api::labels::Selector;
use rcfarm_store::TxnLimits;
use rcfarm_store::session::SessionSettings;

pub use preflight::PreflightError;
pub use run::{Farm, FarmError, FarmReport};

/// The major version of the key layout that this program writes.
pub const LAYOUT: u32 = 1;

/// How a farm is set up.
#[derive(Clone)]
pub struct FarmSettings {
    /// Its name; unique among the live farms of a tree.
    pub name: FarmName,
    /// Which records it claims, by their labels.
    pub selector: Selector,
    /// How it proves that it is alive.
    pub session: SessionSettings,
    /// What fits into one transaction.
    pub limits: TxnLimits,
    /// A node whose agent is gone counts as down after this long.
    pub node_grace: std::time::Duration,
}

/// The grace of a node, unless set otherwise.
pub const NODE_GRACE: std::time::Duration = std::time::Duration::from_secs(10);
