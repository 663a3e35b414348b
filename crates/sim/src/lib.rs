//! A simulated world: real farms over the model of Consul, on a paused clock, with all chance from one seed.
//!
//! | file | is |
//! |---|---|
//! | `world.rs` | the world of one seed: set up, play the script, heal, check that all becomes well |
//! | `script.rs`, `faults.rs` | what happens and when, drawn from the seed; faults injected in every world |
//! | `lifecycle.rs` | how every world begins and ends |
//! | `farms.rs`, `process.rs` | the farms; one of them as a process: started, killed, held still |
//! | `network.rs` | the network between a process and Consul |
//! | `version_skew.rs` | a farm of a newer version beside the others |
//! | `scheduler.rs`, `fleet.rs`, `users.rs` | schedulers that misbehave, machines, people |
//! | `checker.rs` | sees every applied write, keeps the trace |
//! | `reached.rs` | how often each invariant was put to the test |
//! | `mutation.rs` | safety layers that are switched off, to see that their absence is noticed |
//! | `invariant/` | what must never happen, and what must always happen |
//! | `batch/` | another world: jobs, gangs, queues and commands |
//!
//! The same seed gives the same trace, in any build: everything random comes from forks of one ChaCha8 stream, time is
//! tokio's paused clock on one thread, and nothing iterates in hash order.
//!
//! To add a kind of record: its keys in `invariant/picture.rs`, what users do with it in `users.rs` and `script.rs`, its
//! invariants as a file of `invariant/`, and what "settled" means for it in `invariant/liveness.rs`. The farm
//! itself needs nothing: it is put together by its own table of kinds.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod checker;
mod farms;
mod faults;
mod fleet;
mod invariant;
mod lifecycle;
pub mod mutation;
mod network;
mod process;
pub mod reached;
mod rng;
mod scheduler;
mod script;
#[cfg(test)]
mod tests;
mod users;
mod version_skew;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use invariant::Violation;

use rcfarm_store::failpoints::{self, Failpoint};

/// Which world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scenario {
    /// Replication controllers.
    #[default]
    Services,
    /// Jobs, gangs, queues and commands.
    Batch,
}

/// How a run differs from the plain one.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which world.
    pub scenario: Scenario,
    /// Safety layers that are switched off.
    pub without: Vec<Failpoint>,
    /// Print the trace as it goes.
    pub print: bool,
}

/// What a seed came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimReport {
    /// The seed.
    pub seed: u64,
    /// What must not have happened.
    pub violation: Option<Violation>,
    /// Writes that were applied.
    pub applied: u64,
    /// The hash of the trace: the same for the same seed.
    pub hash: u64,
    /// How long it took, in the world's own time.
    pub lived: Duration,
    /// The last operations before a violation, oldest first.
    pub last: Vec<String>,
    /// How often each occasion came about that puts an invariant to the test.
    pub met: BTreeMap<reached::Occasion, u64>,
}

/// Lives through a seed, on this thread.
///
/// # Panics
/// If the runtime cannot be built.
#[must_use]
pub fn run(seed: u64, options: &Options) -> SimReport {
    let _without = failpoints::enable(&options.without);
    drop(reached::take());
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    match options.scenario {
        Scenario::Services => runtime.block_on(world::RcWorld::live(seed, options)),
        Scenario::Batch => runtime.block_on(batch::BatchWorld::live(seed, options)),
    }
}
