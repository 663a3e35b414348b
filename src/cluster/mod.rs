//! View of the cluster that all controllers share: one cache per tree.

pub mod commands;
