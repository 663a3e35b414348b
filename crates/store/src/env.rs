//! What a daemon runs on.

use std::sync::Arc;

use super::Store;
use super::time::{Clock, IdSource};

/// Environment of a daemon: store, clock and identifiers.
#[derive(Clone)]
pub struct Env {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers and jitter.
    pub ids: Arc<IdSource>,
}
