//! The built binary, as people and scripts run it, against the embedded server over HTTP (and, where rights
//! matter, against a real Consul).

mod audit;
mod capacity;
mod dev;
mod doctor;
mod job;
mod label;
mod meet;
mod node;
mod queue;
mod rc;
mod usage;
mod with_a_farm;
pub(crate) mod world;
