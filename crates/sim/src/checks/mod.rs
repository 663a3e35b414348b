//! Safety checks after every applied write: the table of checks, and the table of invariants.
//!
//! A check is a function of an [`AppliedWrite`], the [`SimModel`] after it, and the [`CheckFacts`]. It may report only
//! the invariants of its row. Invariants 27 to 29 are checked after the faults have ended: `liveness/`, `world.rs`.

mod agent;
mod allocations;
mod arrays;
mod audit;
mod cells;
mod flows;
mod gang;
pub mod invariants;
mod job_ownership;
mod job_pods;
mod job_status;
mod ownership;
mod queue;
mod replication;
mod steps;
mod view;

use crate::facts::{CheckFacts, Report};
use crate::mix::Mix;
use crate::model::{AppliedWrite, SimModel};

pub use agent::check_stop;
pub use audit::check_fold;
pub use flows::{minute_in, misjudged};
pub use gang::stray;

/// One row of the table of checks.
pub struct Check {
    /// The file below `crates/sim/src`.
    pub file: &'static str,
    /// The invariants that it may report.
    pub invariants: &'static [u32],
    /// Worlds in which it runs.
    runs_in: fn(Mix) -> bool,
    run: fn(&AppliedWrite<'_>, &SimModel, &CheckFacts, Report<'_>),
}

const SERVICES: fn(Mix) -> bool = |mix| mix.services;
const JOBS: fn(Mix) -> bool = |mix| mix.jobs;

/// All checks in the order in which they run. The first violation counts.
pub const CHECKS: &[Check] = &[
    Check {
        file: "checks/ownership.rs",
        invariants: &[1, 3, 4],
        runs_in: SERVICES,
        run: |write, model, facts, report| ownership::check(write, &model.services, facts, report),
    },
    Check {
        file: "checks/replication.rs",
        invariants: &[6, 7, 8, 9, 10, 11, 12, 13, 14, 31, 38],
        runs_in: SERVICES,
        run: |write, model, facts, report| {
            replication::check(write, &model.services, facts, report)
        },
    },
    Check {
        file: "checks/audit.rs",
        invariants: &[15],
        runs_in: SERVICES,
        run: |write, model, facts, report| audit::check(write, &model.services, facts, report),
    },
    Check {
        file: "checks/gang.rs",
        invariants: &[14, 16],
        runs_in: JOBS,
        run: |write, model, _, report| gang::check(write, &model.jobs, report),
    },
    Check {
        file: "checks/queue.rs",
        invariants: &[17, 18, 19, 21],
        runs_in: JOBS,
        run: |write, model, facts, report| queue::check(write, &model.jobs, facts, report),
    },
    Check {
        file: "checks/job_ownership.rs",
        invariants: &[1],
        runs_in: JOBS,
        run: |write, model, facts, report| job_ownership::check(write, &model.jobs, facts, report),
    },
    Check {
        file: "checks/job_status.rs",
        invariants: &[15, 20, 21, 22, 24, 25],
        runs_in: JOBS,
        run: |write, model, facts, report| job_status::check(write, &model.jobs, facts, report),
    },
    Check {
        file: "checks/job_pods.rs",
        invariants: &[8, 20, 21, 22, 23, 24, 25],
        runs_in: JOBS,
        run: |write, model, facts, report| job_pods::check(write, &model.jobs, facts, report),
    },
    Check {
        file: "checks/arrays.rs",
        invariants: &[23, 47],
        runs_in: |mix| mix.flows,
        run: |write, model, _, report| arrays::check(write, &model.jobs, report),
    },
    Check {
        file: "checks/flows.rs",
        invariants: &[1, 15, 23, 39, 40],
        runs_in: |mix| mix.flows,
        run: flows::check,
    },
    Check {
        file: "checks/cells.rs",
        invariants: &[41, 42, 43, 44],
        runs_in: |mix| mix.cells,
        run: |write, model, _, report| cells::check(write, &model.jobs, report),
    },
    Check {
        file: "checks/agent.rs",
        invariants: &[32, 37],
        runs_in: |_| true,
        run: |write, _, facts, report| agent::check(write, facts, report),
    },
];

/// Checks one write; `model` is the state after it.
///
/// # Panics
/// If a check reports an invariant that its row does not name.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &SimModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    for check in CHECKS.iter().filter(|check| (check.runs_in)(model.mix())) {
        let named = &mut |invariant: u32, what: String| {
            assert!(check.invariants.contains(&invariant), "{}: {invariant}: {what}", check.file);
            report(invariant, what);
        };
        (check.run)(applied_write, model, facts, named);
    }
}
