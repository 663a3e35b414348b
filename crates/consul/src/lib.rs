//! Adapter to a real Consul over HTTP.
//!
//! One `reqwest` client carries everything; consulrs builds and reads the calls that it gets right, the others
//! are built here. Half is "raw" because consulrs 0.1.0 drops what the port promises:
//!
//! | call | via | why |
//! |---|---|---|
//! | [`Store::put`], [`Store::delete`], [`Store::delete_tree`] | consulrs | |
//! | [`Store::create_session`], [`Store::renew_session`], [`Store::destroy_session`] | consulrs | (the latter two without `dc`, which it would spell `Dc`) |
//! | [`Store::register_service`], [`Store::deregister_service`] | consulrs | |
//! | [`Store::pass_check`] | consulrs, its `check/update` | its `check/pass` sends the note in the body, where Consul does not look |
//! | [`Reader::get`], [`Reader::list`], [`Reader::keys`] | raw | consulrs loses the index of a 404, and with it every wait on something absent; a blocking read needs its own time-out |
//! | [`Reader::session`], [`Reader::sessions`] | raw | one negative lock-delay of anybody's makes consulrs refuse the whole list; it drops `X-Consul-Results-Filtered-By-ACLs` |
//! | [`Store::txn`], [`Reader::ask`], [`Reader::service_health`], [`Reader::leader`] | raw | consulrs has none of them |
//!
//! What consulrs must not get wrong is set where it cannot interfere: token, namespace and partition are headers
//! of the client (marked sensitive, so no log shows the token), time-outs and TLS are the client's, and a path in
//! the address is fed to consulrs as its "API version" (it would put `v1` in front of the path). It logs each
//! call, and each refused one as an error: see [`NOISY_TARGETS`]. A body is never chunked, so that Consul's limits
//! on its length hold.
//!
//! Seen on 1.8.7: a session whose check is a service's TTL check ends within milliseconds of the check's turning
//! critical (2.0 s after the last beat of a 2 s check), its locks can be taken at once when its lock-delay is `0s`,
//! and a service's registration has reached the servers when the agent answers, through a client agent too.
//!
//! Rules of use (`consul-semantics.md` §6, §10): HTTP/1.1, no redirects (a redirected PUT would become a GET), no
//! proxy (the agent is local), own time-outs, and at most 20 connections of the 200 that an agent grants a host:
//! ordinary requests are bounded by [`ConsulConfig::max_requests`], blocking ones by the few trees that a farm
//! watches, and heartbeats wait for neither.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod agent;
mod client;
mod config;
mod error;
mod kv;
mod session;
#[cfg(test)]
mod tests;
mod txn;
mod wire;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

pub use config::{ConfigError, ConsulConfig};

use rcfarm_api::ids::SessionId;
use rcfarm_store::{
    Answer, DeleteMode, Entry, Key, NewSession, Op, Prefix, PutMode, Query, Question, Reader,
    ServiceHealth, SessionInfo, Store, StoreError, TtlService, TxnOutcome,
};

/// Log targets of the libraries below that are to be silenced: they log every call at INFO and every refusal, such
/// as the end of a session, at ERROR. What matters of it is in the [`StoreError`] that the caller gets.
pub const NOISY_TARGETS: [&str; 2] = ["consulrs", "rustify"];

/// A Consul agent, as a store.
pub struct Consul {
    client: client::Client,
}

impl std::fmt::Debug for Consul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consul").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Consul {
    /// Prepares a client. Reads the token and certificate files; sends nothing.
    ///
    /// # Errors
    /// [`ConfigError`] naming the setting that cannot be used.
    pub fn new(config: &ConsulConfig) -> Result<Consul, ConfigError> {
        Ok(Consul { client: client::Client::new(config)? })
    }

    /// Where requests go: `http://127.0.0.1:8500/`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.client.address()
    }

    /// How many requests were sent since the start, by kind: `read`, `blocking_read`, `write`, `transaction`,
    /// `session`, `heartbeat`, `agent`.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<&'static str, u64> {
        self.client.requests()
    }
}

#[async_trait]
impl Reader for Consul {
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError> {
        self.client.get(key, query).await
    }

    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        self.client.list(prefix, query).await
    }

    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        self.client.keys(prefix, separator, query).await
    }

    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError> {
        self.client.ask(questions).await
    }

    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        self.client.session(id).await
    }

    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        self.client.sessions().await
    }

    async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        self.client.service_health(service).await
    }

    async fn leader(&self) -> Result<String, StoreError> {
        self.client.leader().await
    }
}

#[async_trait]
impl Store for Consul {
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        self.client.put(key, value, flags, mode).await
    }

    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        self.client.delete(key, mode).await
    }

    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        self.client.delete_tree(prefix).await
    }

    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError> {
        self.client.txn(ops).await
    }

    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        self.client.create_session(new).await
    }

    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        self.client.renew_session(id).await
    }

    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        self.client.destroy_session(id).await
    }

    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        self.client.register_service(service).await
    }

    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        self.client.pass_check(check, note).await
    }

    async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        self.client.deregister_service(id).await
    }
}
