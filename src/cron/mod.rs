//! CronJobs: jobs that are made by a schedule, with the semantics of Kubernetes and the documents of Volcano.
//!
//! Keys read: `rcfarm/cron_jobs/`, and of the jobs that it made `rcfarm/jobs/<ns>/<name>` and their statuses.
//! Keys written: `rcfarm/cron_job_status/`, `rcfarm/jobs/`, `lock/rcfarm/cron_jobs/`. Users write the records; farms of
//! jobs ring `rcfarm/bell/cron/<ns>/<name>` when a job of the CronJob changes its phase or is deleted.
//!
//! A job is created in the transaction that lists it in the status, with a name that is made from its scheduled time. So
//! a crash between two transactions leaves a run that is either listed and made, or neither, and no run is made twice.
//!
//! | module | is |
//! |---|---|
//! | [`schedule`] | a schedule and the instants at which it is due |
//! | [`document`] | a CronJob's document, and the jobs that it makes |
//! | [`plan`] | decides the next transaction |
//! | [`controller`] | reads, commits, sleeps until the next run |
//! | [`kind`] | the kind `cron`: prefixes, rights, hooks |

pub mod controller;
pub mod document;
mod failpoints;
pub mod kind;
pub mod plan;
pub mod schedule;
