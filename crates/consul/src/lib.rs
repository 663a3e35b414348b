//! [`rcfarm_store::Store`] of a real Consul over HTTP. It reads and writes the keys that its callers pass.
//!
//! All requests use one `reqwest` client. The crate consulrs builds and decodes some calls. The others are "raw", because
//! consulrs 0.1.0 loses what the port requires:
//!
//! | call | via | why |
//! |---|---|---|
//! | `put`, `delete`, `delete_tree` | consulrs | |
//! | `create_session`, `renew_session`, `destroy_session` | consulrs | (the latter two without `dc`, which it would spell `Dc`) |
//! | `register_service`, `deregister_service` | consulrs | |
//! | `pass_check` | consulrs, its `check/update` | its `check/pass` sends the note in the body, where Consul does not look |
//! | `get`, `list`, `keys` | raw | consulrs loses the index of a 404, and with it every wait on something absent; a blocking read needs its own time-out |
//! | `session`, `sessions` | raw | one negative lock-delay of anybody's makes consulrs refuse the whole list; it drops `X-Consul-Results-Filtered-By-ACLs` |
//! | `txn`, `ask`, `service_health`, `leader` | raw | consulrs has none of them |
//! | `pod_services`, `register_pod_service`, `update_check`, `may_register` | raw | see `pod_services` |
//!
//! Namespace and partition are headers of the client, and time-outs and TLS are the client's, so consulrs cannot change
//! them. The token is a header of each request, because its file may change. No log shows it. A path in the address is passed to consulrs as
//! its "API version", because consulrs would put `v1` in front of the path. Consulrs logs each call, and each refused one
//! as an error: see [`NOISY_TARGETS`]. A body is never chunked, so that Consul's limits on its length hold.
//!
//! Measured on 1.8.7:
//!
//! - A session ends within milliseconds after its TTL check turned critical: 2.0 s after the last update of a 2 s check.
//! - With lock-delay `0s` its locks can then be acquired at once.
//! - A service's registration has reached the servers when the agent answers, even a client agent.
//! - The agent syncs a check with the token that registered it. Once that token is deleted, a check that turns critical
//!   ends no session. So a service is registered again when the token has changed.
//!
//! Rules of use (`consul-semantics.md` §6, §10): HTTP/1.1, no redirects (a redirected PUT would become a GET), no proxy
//! (the agent is local), own time-outs. Of the 200 connections that an agent permits per host, at most 20 are used:
//! [`ConsulConfig::max_requests`] limits ordinary requests, and a farm has few blocking ones. Heartbeats wait for
//! neither.

#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod pod_services;
mod reader;
mod registered;
#[cfg(test)]
mod tests;
mod token;
mod txn;
mod wire;
mod writer;

pub use client::Consul;
pub use config::{ConfigError, ConsulConfig};

/// Log targets of libraries to silence. They log every call at INFO and every refusal at ERROR. The caller gets the same
/// information in its [`StoreError`](rcfarm_store::StoreError).
pub const NOISY_TARGETS: [&str; 2] = ["consulrs", "rustify"];
