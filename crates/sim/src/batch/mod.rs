//! A world of jobs: farms that order queues and run jobs, machines that pretend, people who submit and change their minds,
//! under the same troubles as the world of services.
//!
//! | file | is |
//! |---|---|
//! | `world.rs` | the world of one seed |
//! | `script.rs` | what happens and when, drawn from the seed |
//! | `machines.rs`, `workload.rs` | processes that end as the seed says; jobs, commands, queues |
//! | `model.rs`, `history.rs` | the store as the checks see it, and what no key tells any more |
//! | `checks/` | invariants 1, 14 to 25, after every applied write |
//! | `liveness.rs` | what must have come about once the faults have ended (16, 22, 27 to 29) |

mod checks;
mod history;
mod liveness;
mod machines;
mod model;
mod script;
mod workload;
mod world;

pub use model::{BatchModel, Write};
pub use world::BatchWorld;
