//! Environment of a daemon.

use std::sync::Arc;

use super::Store;
use super::time::{Clock, IdSource};

/// Environment of a daemon: store, clock and identifiers.
#[derive(Clone)]
pub struct Env {
    /// Consul or its emulator.
    pub store: Arc<dyn Store>,
    /// Source of wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Source of identifiers and jitter.
    pub ids: Arc<IdSource>,
}
