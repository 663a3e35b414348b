//! Tests of the whole program: through the store, over HTTP, and on a real Consul.
//!
//! A single binary, to link only once. `.ci/get-consul` downloads Consul; `.ci/test` runs everything.

#![expect(clippy::disallowed_methods, reason = "tests measure how long calls take")]

mod admission;
mod cli;
mod cluster_faults;
mod differential;
mod documents;
mod farm;
mod faults;
mod fuzzed;
mod harness;
mod image;
mod node;
mod p2;
mod properties;
mod real_consul;
mod scheduler_example;
