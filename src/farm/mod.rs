//! The farm daemon.
