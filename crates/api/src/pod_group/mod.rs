//! PodGroups: members that start all together or not at all. Records, statuses and the machine; the scheduler's
//! controller (`rcfarm::batch`) is the one that admits and places them.
//!
//! Keys read: `rcfarm/pod_group_status/` (by the groups' owners, `statuses`).
//! Keys written: none here. `rcfarm/pod_groups/<ns>/<name>` is written by jobs' controllers and by people,
//! `rcfarm/pod_group_status/<ns>/<name>` by the owner of the scheduler.
//! A crash between two writes leaves: see [`status::GroupPlacement`] and `rcfarm::batch`.

mod phase;
pub mod spec;
pub mod status;
