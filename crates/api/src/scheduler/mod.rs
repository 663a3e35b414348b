//! Schedulers: records, which choose nodes, order and packing of gangs; and the status that the owner writes. Keys read
//! and written: none here; see `rcfarm::batch`.

mod packing;
pub mod spec;
pub mod status;

pub use packing::Packing;
