//! What a world is like and what happens in it, and when: drawn from a seed before anything runs, or read from a file.

pub mod action;
mod builder;
mod draw;
mod jobs;
mod recorded;
mod services;

pub use recorded::{FarmDesign, Schedule, Setup, Timed};
