//! PodGroups: members that start all together or not at all. Records and statuses; the scheduler's controller
//! (`rcfarm::batch`) admits and places them.
//!
//! Keys read and written: none here. Jobs' controllers and users write `rcfarm/pod_groups/<ns>/<name>`, the owner of
//! the scheduler writes `rcfarm/pod_group_status/<ns>/<name>`. A crash between two writes leaves: see
//! [`status::GroupPlacement`] and `rcfarm::batch`.

mod phase;
pub mod pod_ids;
mod runs;
pub mod spec;
pub mod status;
