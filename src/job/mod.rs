//! Jobs: batch work with members that start together, as Volcano's Job and Kubeflow's training jobs have it.
pub mod form;
pub mod machine;
#[cfg(test)]
mod machine_tests;
pub mod operator;
pub mod policies;
pub mod spec;
pub mod status;
#[cfg(test)]
mod status_tests;
pub mod validate;
