//! Jobs: the specification that a document is decoded to, and the status that its owner writes. Keys read and written:
//! none here; see `rcfarm::job`.

pub mod array;
mod by_index;
pub mod identity;
pub mod job_type;
pub mod peers;
pub mod phase;
pub mod spec;
pub mod ssh_keys;
pub mod status;
