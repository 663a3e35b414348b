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
pub(super) struct Registered {
    own: Mutex<BTreeMap<String, (TtlService, Option<HeaderValue>)>>,
    /// Services of pods.
    pods: Mutex<BTreeMap<String, Option<HeaderValue>>>,
}

impl Registered {
    pub(super) fn insert(&self, service: &TtlService, token: Option<HeaderValue>) {
        self.services().insert(service.id.clone(), (service.clone(), token));
    }

    pub(super) fn remove(&self, id: &str) {
        self.services().remove(id);
        self.pods().remove(id);
    }

    pub(super) fn insert_pod(&self, id: &str, token: Option<HeaderValue>) {
        self.pods().insert(id.to_owned(), token);
    }

    /// Whether the service of a pod was registered with this token. Without a token it makes no difference who registered
    /// it.
    pub(super) fn is_current(&self, id: &str, token: Option<&HeaderValue>) -> bool {
        match self.pods().get(id) {
            Some(with) => with.as_ref() == token,
            None => token.is_none(),
        }
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Option<HeaderValue>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service of a check, if it was registered with another token.
    pub(super) fn outdated(&self, check: &str, token: Option<HeaderValue>) -> Option<TtlService> {
        let services = self.services();
        let (service, with) = services.values().find(|(service, _)| service.check_id() == check)?;
        (*with != token).then(|| service.clone())
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<String, (TtlService, Option<HeaderValue>)>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
