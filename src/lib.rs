//! `rcfarm`: replication controllers and batch jobs on machines that already run Consul.
//!
//! # Map
//!
//! | module | is |
//! |---|---|
//! | [`store`] | the port: Consul's primitives in our words, the key layout, fenced transactions |
//! | [`consul`] | adapter to a real Consul over HTTP |
//! | [`embedded`] | a model of Consul in memory, and Consul's HTTP API in front of it |
//! | [`farm`] | the daemon: session keeper, claims, supervision of the tasks |
//! | [`rc`] | replication controllers: record, plan, controller |
//! | [`queue`], [`pod_group`] | who may use how much, and pods that start together: records, machines |
//! | [`ordering`] | who is admitted next and where it goes: the scheduler's record, plan, controller |
//! | [`job`], [`command`] | batch work: the record, its machine and plan; what people ask of it |
//! | [`schedule`] | the `Scheduler` trait and its implementations |
//! | [`labels`], [`manifest`], [`audit`] | pure building blocks: selectors, pod manifests, audit records |
//! | [`node`] | what the farm reads of nodes and pods' health |
//! | [`failpoints`], `sim` | the simulated world, and the failpoints that it uses |
//! | [`http`] | health, readiness, metrics and status of a daemon |
//! | [`cli`] | the commands; the only code that prints |
//!
//! # Layering
//!
//! `cli, http -> farm -> <record>::controller -> <record>::{plan, spec, status} -> labels, manifest, audit, store`.
//! `consul` and `embedded` implement `store` and are named by `cli` alone. Files called `plan.rs`,
//! `machine.rs`, `spec.rs`, `status.rs` and the whole of `labels/` do no I/O, read no clock, draw no random
//! number and iterate nothing in hash order; `tests/it/layering.rs` checks it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod audit;
pub mod cli;
pub mod command;
pub mod consul;
pub mod embedded;
pub mod failpoints;
pub mod farm;
pub mod http;
pub mod ids;
pub mod job;
pub mod labels;
pub mod manifest;
pub mod node;
pub mod ordering;
pub mod pod_group;
pub mod queue;
pub mod rc;
pub mod schedule;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod store;
pub mod telemetry;
pub mod time;
