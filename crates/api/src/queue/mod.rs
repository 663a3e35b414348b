//! Queues: their records and statuses. The scheduler's controller (`rcfarm::batch`) acts on them.
//!
//! Keys read and written: none here. Users write `rcfarm/queues/<name>`, the owner of the scheduler writes
//! `rcfarm/queue_status/<name>`.

pub mod spec;
pub mod status;
