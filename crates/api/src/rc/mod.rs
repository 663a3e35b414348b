//! Replication controllers: the record as square/p2 stores it, and the status that its owner writes. Keys read and
//! written: none here; see `rcfarm::replication`.

pub mod spec;
pub mod status;
pub mod update;
