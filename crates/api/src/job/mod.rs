//! Jobs: what a job asks for once its document has been read, and the status that its owner writes.

pub mod identity;
pub mod phase;
pub mod spec;
pub mod status;
#[cfg(test)]
mod status_tests;
