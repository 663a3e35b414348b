//! Health, readiness, metrics and status of a daemon.
