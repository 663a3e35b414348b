//! The node agent: makes `intent/<node>/` real, and says so; and nodes that only pretend to.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agent;
pub mod shim;
pub mod simulated;
pub mod spec;
