//! A simulated world: real farms on the emulator, on a paused clock, with all random numbers from one seed.
//!
//! Replication controllers, jobs, queues and commands compete for the same nodes, under the same faults.
//!
//! | file | is |
//! |---|---|
//! | `world.rs` | one world: set up, play the schedule, heal, check that everything settles |
//! | `mix.rs`, `schedule/` | which kinds of work there are; what happens and when, drawn from a seed or read from a file |
//! | `farms.rs`, `process.rs` | the farms; one of them as a process: started, killed, frozen |
//! | `network.rs`, `faults.rs` | the network between a process and Consul, and its faults |
//! | `version_skew.rs` | a farm of a newer version beside the others |
//! | `scheduler.rs`, `workload/` | schedulers that misbehave; users |
//! | `fleet.rs` | names of the nodes, their devices, kinds of jobs that ask for cells |
//! | `nodes/` | nodes: a stand-in for the agent, or the real agent over a machine in virtual time |
//! | `checker.rs`, `facts.rs`, `model/` | sees every applied write and keeps the trace; the store, decoded |
//! | `checks/`, `liveness/` | the table of invariants: what must never happen, and what must have come about in the end |
//! | `reached.rs` | how often each invariant was put to the test |
//! | `mutation.rs` | safety layers that are switched off, to see that their absence is noticed |
//! | `page.rs` | writes `docs/invariants.md` |
//! | `shrink.rs` | fewer actions that still violate the same invariant |
//!
//! The same seed gives the same trace, in any build: everything random comes from forks of one ChaCha8 stream, time is
//! tokio's paused clock on one thread, and nothing iterates in hash order.

#![forbid(unsafe_code)]

mod checker;
mod checks;
mod facts;
mod farms;
mod faults;
mod fleet;
mod liveness;
mod mix;
mod model;
pub mod mutation;
mod network;
mod nodes;
pub mod page;
mod process;
pub mod reached;
mod report;
mod rng;
mod run;
mod schedule;
mod scheduler;
pub mod shrink;
pub mod tally;
#[cfg(test)]
mod tests;
mod version_skew;
mod workload;
mod world;

pub use checks::invariants::statement;
pub use facts::Violation;
pub use mix::{Mix, Scenario};
pub use report::{Options, SimReport};
pub use run::{run, run_schedule};
pub use schedule::Schedule;
