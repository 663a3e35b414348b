//! Services that a client has registered, each with the token of its registration.
//!
//! The Consul agent syncs a service's check with that token. Once it is deleted, a check that turns critical ends no
//! session.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use reqwest::header::HeaderValue;

use rcfarm_store::TtlService;

/// Services that this process registered, by id, each with the token that it was registered with.
#[derive(Default)]
pub(super) struct Registered(Mutex<BTreeMap<String, (TtlService, Option<HeaderValue>)>>);

impl Registered {
    pub(super) fn insert(&self, service: &TtlService, token: Option<HeaderValue>) {
        self.services().insert(service.id.clone(), (service.clone(), token));
    }

    pub(super) fn remove(&self, id: &str) {
        self.services().remove(id);
    }

    /// The service of a check, if it was registered with another token.
    pub(super) fn outdated(&self, check: &str, token: Option<HeaderValue>) -> Option<TtlService> {
        let services = self.services();
        let (service, with) = services.values().find(|(service, _)| service.check_id() == check)?;
        (*with != token).then(|| service.clone())
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<String, (TtlService, Option<HeaderValue>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
