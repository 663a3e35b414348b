//! Runs one world on this thread.

use crate::reached;
use crate::report::{Options, SimReport};
use crate::schedule::Schedule;
use crate::world::World;
use rcfarm_store::failpoints;

/// Runs the world of a seed.
///
/// # Panics
/// If the runtime cannot be built.
#[must_use]
pub fn run(seed: u64, options: &Options) -> SimReport {
    let schedule = Schedule::draw(seed, options.scenario);
    SimReport { seed, ..run_schedule(schedule, options) }
}

/// Runs the world of a schedule.
///
/// # Panics
/// If the runtime cannot be built.
#[must_use]
pub fn run_schedule(schedule: Schedule, options: &Options) -> SimReport {
    let _without = failpoints::enable(&options.without);
    drop(reached::take());
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(World::run(schedule, options))
}
