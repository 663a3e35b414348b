//! Environment of a daemon.

use std::sync::Arc;

use super::Store;
use super::session::KeeperRuntime;
use super::time::{Clock, IdSource};

/// Environment of a daemon: store, clock, identifiers, session keeper.
#[derive(Clone)]
pub struct Env {
    /// Consul or its emulator.
    pub store: Arc<dyn Store>,
    /// Source of wall-clock time.
    pub clock: Arc<dyn Clock>,
    /// Source of identifiers and jitter.
    pub ids: Arc<IdSource>,
    /// Where the session keeper runs, and its client.
    pub keeper: KeeperRuntime,
}

impl Env {
    /// An environment whose session keeper shares the runtime and the client of everything else.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Env {
        Env { keeper: KeeperRuntime::shared(store.clone()), store, clock, ids }
    }

    /// The same environment with another runtime for the session keeper.
    #[must_use]
    pub fn with_keeper(self, keeper: KeeperRuntime) -> Env {
        Env { keeper, ..self }
    }
}
