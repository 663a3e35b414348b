//! Jobs: batch work whose members start together, as Volcano's Job and Kubeflow's training jobs.
//!
//! Keys read: `rcfarm/jobs/<ns>/<name>` (the user's document, [`document`]), `rcfarm/job_status/`,
//! `rcfarm/pod_groups/`, `rcfarm/pod_group_status/`, `rcfarm/commands/`, `labels/pod/`, `intent/`, `reality/`,
//! `status/pods/`, `rcfarm/nodes/`.
//! Keys written, beside or before that: `rcfarm/peers/<node>/<ns>/<name>`, `rcfarm/job_keys/<ns>/<name>` (read, too). In
//! one transaction: `labels/pod/<node>/<pod>` and `intent/<node>/<pod>` of members, `rcfarm/job_status/<ns>/<name>`, `rcfarm/pod_groups/<ns>/<name>`, the executed `rcfarm/commands/<uuid v7>`
//! (deleted), `audit_logs/<uuid v7>`; when a job is deleted, its record.
//! Other writers: users write records and commands; the batch controller writes PodGroup statuses; node agents write
//! `reality/` and `status/pods/`. Only the claim's owner writes pods of a job.
//! A crash between two transactions leaves some members created or removed, each of them completely. The status lists
//! them: `started`, and `starting` for those whose pods may or may not exist. No member is created twice, no restart is
//! counted twice, no command is executed twice.
//!
//! | module | contents |
//! |---|---|
//! | `controller` | start here: reads record and pods, plans, commits one transaction |
//! | [`document`] | decodes and validates the user's document |
//! | [`machine`] | state machine of the ten phases |
//! | [`plan`](mod@plan), [`policies`], [`members`], [`adoption`] | next step of a job and its reason |
//! | [`frameworks`] | rules of each framework |
//! | [`manifest`], [`writes`], [`pod_status`] | pods as node agents read and report them |
//! | [`services`] | services of members: Kubeflow's service half |
//! | [`peers`] | where members are, for each other |
//! | [`ssh_keys`] | key pairs with which members reach each other by ssh |
//! | [`dependencies`] | jobs that wait for others |
//! | `collect_orphans` | deletes pods, status and group of a job whose record is gone |
//! | [`caches`], [`doorbells`] | watched prefixes, and direct reads after a pod has ended |
//! | `events` | audit records |
//! | [`owner`], [`owner_record`] | jobs that another record makes, such as a CronJob; what its controller does alike |
//! | [`kind`] | the kind `job`: prefixes, rights, subscriptions |

pub mod adoption;
mod budget;
pub mod caches;
mod collect_orphans;
mod controller;
pub mod dependencies;
pub mod document;
pub mod doorbells;
mod events;
mod failpoints;
pub mod frameworks;
pub mod hook;
pub mod kind;
pub mod machine;
pub mod manifest;
pub mod members;
pub mod owner;
pub mod owner_caches;
pub mod owner_record;
pub mod peers;
pub mod plan;
pub mod pod_status;
pub mod pods;
pub mod policies;
#[cfg(test)]
mod scenarios;
pub mod services;
pub mod ssh_keys;
pub mod writes;
