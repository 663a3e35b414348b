//! Setup and actions of a world: drawn from a seed before it runs, or read from a file.

pub mod action;
mod agents;
mod builder;
mod cells;
mod draw;
mod flows;
mod jobs;
mod recorded;
mod services;
mod tenant;

pub use recorded::{FarmDesign, Schedule, Setup, Timed};
