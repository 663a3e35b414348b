//! `rcfarm`: replication controllers and batch jobs on machines that already run Consul.
//!
//! | module | contents |
//! |---|---|
//! | [`daemon`] | composition root: the only file that names every kind |
//! | [`farm`] | the daemon: session loop, claims, one task per claimed record |
//! | [`cluster`] | view of nodes, pods, allocations: one cache per Consul prefix |
//! | [`placement`] | the `Scheduler` trait and its implementations |
//! | [`replication`] | replication controllers |
//! | [`job`] | jobs: documents, plans, controller |
//! | [`cron`] | CronJobs: jobs by a schedule |
//! | [`flow`] | JobFlows: jobs in an order; JobTemplates, dispatch |
//! | [`batch`] | queues, PodGroups, admission, gang placement |
//! | [`http`] | health, readiness, metrics and status of a daemon |
//! | [`telemetry`] | log lines of a daemon |
//! | [`cli`] | the commands; the only code that prints |
//!
//! It depends on the crates `rcfarm-node`, `rcfarm-consul`, `rcfarm-emulator`, `rcfarm-store`, `rcfarm-cells` (placement
//! in cells, pure) and `rcfarm-api`.
//! Overview: `docs/architecture.md`.
#![forbid(unsafe_code)]

pub mod batch;
pub mod cli;
pub mod cluster;
pub mod cron;
pub mod daemon;
pub mod farm;
pub mod flow;
pub mod http;
pub mod job;
pub mod placement;
pub mod replication;
pub mod telemetry;
