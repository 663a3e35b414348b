//! Replication controllers: the record as square/p2 stores it, and the status that its owner writes.

pub mod spec;
pub mod status;
