//! The users of a world, and what they write.

pub mod documents;
pub mod hostile;
mod jobs;
mod services;
mod users;

pub use users::Workload;
