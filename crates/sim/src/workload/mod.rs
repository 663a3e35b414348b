//! The users of a world, and what they write.

pub mod cells;
pub mod documents;
pub mod flows;
pub mod hostile;
mod hostile_owners;
mod jobs;
pub mod schedules;
mod services;
pub mod sweeps;
mod users;

pub use users::Workload;
