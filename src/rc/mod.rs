//! Replication controllers.
