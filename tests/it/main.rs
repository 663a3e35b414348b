//! Tests of the whole: through the port, over HTTP, and on a real Consul.
//!
//! One binary, so that it links once. A real Consul comes from `.ci/get-consul`; `.ci/test` runs everything.

mod admission;
mod cli;
mod cluster_faults;
mod differential;
mod documents;
mod end_to_end;
mod facts;
mod farm;
mod faults;
mod image;
mod job_commands;
mod node;
mod policies;
mod properties;
mod scheduler_example;
