//! Scheduler records: which nodes, which order, how gangs are packed; and the status that the owner writes.

mod packing;
pub mod spec;
pub mod status;

pub use packing::Packing;
