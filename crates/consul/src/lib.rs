//! Adapter of the port to a real Consul over HTTP. It reads and writes the keys that its callers pass.
//!
//! All requests use one `reqwest` client. The crate consulrs builds and decodes some calls. The others are "raw", because
//! consulrs 0.1.0 loses what the port requires:
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
//! Token, namespace and partition are headers of the client, and time-outs and TLS are the client's, so consulrs cannot
//! change them. The headers are marked sensitive: no log shows the token. A path in the address is passed to consulrs as
//! its "API version", because consulrs would put `v1` in front of the path. Consulrs logs each call, and each refused one
//! as an error: see [`NOISY_TARGETS`]. A body is never chunked, so that Consul's limits on its length hold.
//!
//! Measured on 1.8.7:
//!
//! - A session ends within milliseconds after its TTL check turned critical: 2.0 s after the last update of a 2 s check.
//! - With lock-delay `0s` its locks can then be acquired at once.
//! - A service's registration has reached the servers when the agent answers, even a client agent.
//!
//! Rules of use (`consul-semantics.md` §6, §10): HTTP/1.1, no redirects (a redirected PUT would become a GET), no proxy
//! (the agent is local), own time-outs. Of the 200 connections that an agent permits per host, at most 20 are used:
//! [`ConsulConfig::max_requests`] limits ordinary requests, and a farm has few blocking ones. Heartbeats wait for
//! neither.

#![forbid(unsafe_code)]

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

/// Log targets of libraries to silence. They log every call at INFO and every refusal at ERROR. The caller gets the same
/// information in its [`StoreError`].
pub const NOISY_TARGETS: [&str; 2] = ["consulrs", "rustify"];

/// Client of a Consul agent; implements [`Store`].
pub struct Consul {
    client: client::Client,
}

impl std::fmt::Debug for Consul {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consul").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Consul {
    /// Creates a client. Reads the token and certificate files, and sends no request.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used.
    pub fn new(config: &ConsulConfig) -> Result<Consul, ConfigError> {
        Ok(Consul { client: client::Client::new(config)? })
    }

    /// Base URL of all requests, such as `http://127.0.0.1:8500/`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.client.address()
    }

    /// Number of requests since the start, by kind: `read`, `blocking_read`, `write`, `transaction`, `session`,
    /// `heartbeat`, `agent`.
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

    async fn txn_if(
        &self,
        ops: &[Op],
        may_send: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Option<TxnOutcome>, StoreError> {
        self.client.txn_if(ops, may_send).await
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
