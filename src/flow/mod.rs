//! JobFlows: jobs that are made of templates, each when the steps that it depends on have ended, with the documents of
//! Volcano (`volcano.md` §1.5).
//!
//! Keys read: `rcfarm/job_flows/`, `rcfarm/job_templates/`, of the jobs that it made `rcfarm/jobs/<ns>/<name>` and their
//! statuses, and for probes `rcfarm/pod_group_status/` and `rcfarm/nodes/`.
//! Keys written: `rcfarm/job_flow_status/`, `rcfarm/jobs/`, `rcfarm/commands/`, `lock/rcfarm/job_flows/`. Users write flows and templates; farms of jobs ring
//! `rcfarm/bell/flow/<ns>/<name>` when a job of the flow changes its phase or is deleted.
//!
//! A job is created in the transaction that lists it in the status, with a name that is made from its step. So a crash
//! between two transactions leaves a step that is either listed and made, or neither, and no job is made twice. A job
//! that was listed is not made again when it is gone.
//!
//! | module | is |
//! |---|---|
//! | [`document`], [`graph`] | a flow's document; the order of its steps |
//! | [`template`] | a template's document, and the job that a step makes of it |
//! | [`parameters`] | what a template declares, and whether what a dispatch gives fits it |
//! | [`dispatch`] | the job that a dispatch makes of a template |
//! | [`plan`] | decides the next transaction |
//! | [`controller`] | reads, commits, sleeps until something changes |
//! | [`probes`], `probing` | asks members of jobs whether they are ready, beside the reconciliations |
//! | `caches` | what controllers share |
//! | [`kind`] | the kind `flow`: prefixes, rights, hooks |

mod caches;
pub mod controller;
pub mod dispatch;
pub mod document;
mod failpoints;
pub mod graph;
pub mod kind;
pub mod parameters;
pub mod plan;
pub mod probes;
mod probing;
pub mod template;
