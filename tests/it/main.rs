//! Tests of the whole: through the port, over HTTP, and on a real Consul.
//!
//! One binary, so that it links once. A real Consul comes from `.ci/get-consul`; `.ci/test` runs everything.

#![expect(clippy::disallowed_methods, reason = "tests measure how long calls take")]

mod admission;
mod cli;
mod cluster_faults;
mod differential;
mod documents;
mod farm;
mod faults;
mod image;
mod node;
mod properties;
mod real_consul;
mod scheduler_example;
