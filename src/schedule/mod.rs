//! The Scheduler trait and its implementations.
