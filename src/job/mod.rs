//! Jobs: batch work with members that start together, as Volcano's Job and Kubeflow's training jobs have it.
//!
//! Keys read: `rcfarm/jobs/<ns>/<name>` (the user's own document, [`document`]), `rcfarm/job_status/`, `rcfarm/pod_groups/`
//! and `rcfarm/pod_group_status/`, `rcfarm/commands/`, `labels/pod/`, `intent/`, `reality/`, `status/pods/`,
//! `rcfarm/nodes/`.
//! Keys written, in one transaction: `labels/pod/<node>/<pod>` and `intent/<node>/<pod>` of the pods that come and go,
//! `rcfarm/job_status/<ns>/<name>`, `rcfarm/pod_groups/<ns>/<name>`, the consumed `rcfarm/commands/<uuid v7>` (deleted),
//! `audit_logs/<uuid v7>`; at a job's end its record.
//! Who else writes them: users the records and commands; the scheduler's owner the statuses of PodGroups; nodes' agents
//! `reality/` and `status/pods/`. Nobody else the pods of a claimed job.
//! A crash between two writes leaves: a part of the members made or removed, each whole, and a status that says so
//! (`started`, and `starting` for those whose pods may be there or not); a member is never made twice, a restart never
//! counted twice, a command never carried out twice.
//!
//! | part | is |
//! |---|---|
//! | `spec`, [`document`] | what is wanted, how it is written, and the rules |
//! | `status`, [`machine`] | what is said of it, and its ten phases |
//! | [`plan`](mod@plan), [`triggers`], [`policies`], [`members`], [`adoption`] | what is done next, and why |
//! | [`frameworks`] | what is particular to a framework |
//! | [`manifest`], [`writes`], [`pod_status`] | pods as nodes know them |
//! | `waiting` | why it is not yet where it should be |
//! | `batched_start` | members that are started by several transactions |
//! | `collect_orphans` | deletes the pods, status and group of a job whose record is gone |
//! | [`caches`], [`doorbells`] | the prefixes that it watches, and who is told of an end at once |

pub mod adoption;
mod batched_start;
pub mod caches;
mod collect_orphans;
mod controller;
pub mod document;
pub mod doorbells;
mod events;
mod failpoints;
pub mod frameworks;
pub mod kind;
pub mod machine;
#[cfg(test)]
mod machine_tests;
pub mod manifest;
pub mod members;
pub mod plan;
pub mod pod_status;
pub mod pods;
pub mod policies;
#[cfg(test)]
mod scenarios;
pub mod triggers;
mod waiting;
pub mod writes;
