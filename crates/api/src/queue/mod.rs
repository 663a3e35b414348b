//! Queues: who may use how much, and who goes first. Records, statuses and the machine; the scheduler's controller
//! (`rcfarm::batch`) is the one that works on them.
//!
//! Keys read and written: none here. `rcfarm/queues/<name>` is written by people and the command line,
//! `rcfarm/queue_status/<name>` by the owner of the scheduler.

pub mod spec;
pub mod status;
