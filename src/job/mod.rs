//! Jobs: batch work with members that start together, as Volcano's Job and Kubeflow's training jobs have it. The record
//! and what is decided about it; all of it is pure.
//!
//! Keys read and written: none here. A job's record stands at `rcfarm/jobs/<ns>/<name>` and is its user's document
//! ([`form`]); what its owner says of it, at `rcfarm/job_status/<ns>/<name>` ([`status`]).
//! A crash between two writes leaves: see the one who carries the plans out.

pub mod causes;
pub mod form;
#[cfg(test)]
mod lives;
pub mod machine;
#[cfg(test)]
mod machine_tests;
pub mod members;
pub mod operator;
pub mod plan;
pub mod policies;
pub mod spec;
pub mod status;
#[cfg(test)]
mod status_tests;
pub mod validate;
