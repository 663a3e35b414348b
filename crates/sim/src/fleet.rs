//! The simulated nodes by name, what they have, and the jobs that ask for their cells: what `nodes`, `workload` and
//! `schedule` share.

use rcfarm_api::ids::{Namespaced, NodeName};

/// Devices of a node.
pub const DEVICES: u32 = 4;
/// Kinds of jobs that ask for cells, opportunistic ones first. `hog` runs until it is stopped.
pub const CELL_JOBS: [&str; 6] = ["hog", "lent", "own", "high", "lazy", "pin"];

/// The name of a node.
#[must_use]
pub fn node(n: usize) -> NodeName {
    format!("n{n}").parse().expect("a node's name")
}

/// Whether a job asks for cells.
#[must_use]
pub fn asks_for_cells(id: &Namespaced) -> bool {
    CELL_JOBS.iter().any(|kind| is_of(id, kind))
}

/// Whether a job is of a kind.
#[must_use]
pub fn is_of(id: &Namespaced, kind: &str) -> bool {
    id.name.as_str().split_once('-').is_some_and(|(word, _)| word == kind)
}
