//! The port to Consul: traits [`Reader`] and [`Store`], and what builds on them (claims, transactions, watches,
//! caches, sessions). Adapters: `rcfarm-consul` (the real Consul) and `rcfarm-emulator` (in memory). One contract
//! suite tests both.
//!
//! A *refusal* (lost CAS, busy lock, refused transaction) is a value, because it is an expected answer. An *error* is a
//! failure and tells whether the request may have been applied ([`StoreError::outcome_unknown`]).
//!
//! A controller does not hold a [`Store`] but a [`Writer`]. A `Writer` commits only transactions that begin with the
//! fence of a claim ([`Txn::under`]).
//!
//! Keys: those that the caller passes. `rights` reads `<prefix>rcfarm-probe`, a key that does not exist. [`session`]
//! writes no keys, only sessions and checks.

#![forbid(unsafe_code)]

mod batching;
pub mod cache;
mod claim;
mod env;
mod error;
pub mod failpoints;
mod incremental;
pub mod mass_deletion_guard;
mod offload;
mod panic_text;
mod prefix_lister;
mod prefixed;
mod rights;
pub mod sealing;
pub mod session;
pub mod time;
mod token_bucket;
mod txn;
pub mod versioned;
pub mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use claim::{Claim, Commit, Epoch, Writer};
pub use env::Env;
pub use error::{RetryVerdict, StoreError};
pub use incremental::Sizes;
pub use offload::offload;
pub use panic_text::panic_text;
pub use prefix_lister::PrefixLister;
pub use prefixed::Prefixed;
pub use rcfarm_api::Index;
pub use rcfarm_api::key::{self, Key, Prefix};
pub use rights::{list_surely, may_read};
pub use token_bucket::TokenBucket;
pub use txn::{ByUser, Fenced, Op, Question, Refusal, Txn, TxnLimits, TxnOutcome, audit_op};
pub use versioned::{Decoder, Versioned, VersionedIndex, differing};

use rcfarm_api::ids::SessionId;
use rcfarm_api::node::Health;

/// One key as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The whole key, as stored. Users may write any text, so it is not a [`Key`].
    pub key: String,
    /// The value; empty where Consul returns `null`.
    pub value: Bytes,
    /// Consul's `Flags`, which belong to the user.
    pub flags: u64,
    /// The session that holds the key as a lock.
    pub session: Option<SessionId>,
    /// How often the key was acquired. A plain write sets it to 0, so it is no fencing token.
    pub lock_index: u64,
    /// Index of creation.
    pub create_index: Index,
    /// Index of the last change.
    pub modify_index: Index,
}

/// Consistency mode of a read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader answers. The answer may be stale for a short time after the leader was deposed.
    #[default]
    Leader,
    /// The leader answers after a quorum confirmed that it still leads.
    Consistent,
    /// Any server answers.
    Stale,
}

/// The wait of a blocking query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockingWait {
    /// Wait until the index is greater than this; 0 never waits.
    pub after: Index,
    /// Longest wait. Consul adds up to a sixteenth.
    pub at_most: Duration,
}

/// Options of a read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Query {
    /// Which server answers.
    pub consistency: Consistency,
    /// `Some`: a blocking query.
    pub wait: Option<BlockingWait>,
}

impl Query {
    /// A consistent read that does not wait. Required to find out whether an ambiguous write was applied.
    pub const CONSISTENT: Query = Query { consistency: Consistency::Consistent, wait: None };
    /// A read from the leader that does not wait.
    pub const PLAIN: Query = Query { consistency: Consistency::Leader, wait: None };

    /// A blocking query: until the index is greater than `after`, at most `at_most`.
    #[must_use]
    pub fn after(after: Index, at_most: Duration) -> Query {
        Query { consistency: Consistency::Leader, wait: Some(BlockingWait { after, at_most }) }
    }
}

/// The answer to a read, with the index to wait on next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// The content.
    pub value: T,
    /// `X-Consul-Index`. An empty answer (404) has one too.
    pub index: Index,
    /// ACLs removed entries from the answer, according to the server (Consul 1.11 and newer).
    pub filtered: bool,
}

/// Condition of a write to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutMode {
    /// None.
    Set,
    /// The key has this ModifyIndex; 0: the key does not exist.
    Cas(Index),
    /// No other session holds the key; this session then does.
    Acquire(SessionId),
    /// This session holds the key; it then no longer does.
    Release(SessionId),
}

/// Condition of a delete of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteMode {
    /// None.
    Always,
    /// The key has this ModifyIndex.
    Cas(Index),
}

/// What happens to the locked keys of a session that ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// Consul releases them; the keys stay.
    Release,
    /// Consul deletes them.
    #[default]
    Delete,
}

/// A session to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSession {
    /// A description; not unique.
    pub name: String,
    /// 10 s to 24 h; `None`: no TTL. Consul ends a session at most twice its TTL after the last renewal.
    pub ttl: Option<Duration>,
    /// How long nobody can acquire a lock after its session ended without releasing it.
    pub lock_delay: Duration,
    /// What happens to its locked keys at its end.
    pub behavior: Behavior,
    /// Ids of service checks on the agent's node. One that turns critical ends the session. The node's own gossip check
    /// is never attached: a restart of the Consul agent would drop every claim.
    pub checks: Vec<String>,
}

/// A session in Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Id, a UUID.
    pub id: SessionId,
    /// Description; not unique.
    pub name: String,
    /// Consul node on which it was created.
    pub node: String,
    /// `None`: no TTL.
    pub ttl: Option<Duration>,
    /// How long nobody can acquire a lock after the session ended without releasing it.
    pub lock_delay: Duration,
    /// What happens to its locked keys at its end.
    pub behavior: Behavior,
    /// Index of creation.
    pub create_index: Index,
}

/// A service on the local Consul agent with one TTL check, whose id is `service:<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TtlService {
    /// Service name, shared by all instances.
    pub name: String,
    /// Instance id, unique on the agent.
    pub id: String,
    /// Metadata in the catalog.
    pub meta: BTreeMap<String, String>,
    /// The check turns critical this long after it last passed.
    pub ttl: Duration,
    /// The agent deregisters the service after it was critical for this long (at least 1 min).
    pub deregister_after: Duration,
}

impl TtlService {
    /// The id of the service's check.
    #[must_use]
    pub fn check_id(&self) -> String {
        format!("service:{}", self.id)
    }
}

/// A service of a pod on the local Consul agent, with two checks: a TTL check that is updated when the pod's health
/// changes, and an alias check that follows the service of the pod's node agent. So only the latter needs a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodService {
    /// Instance id, unique on the agent.
    pub id: String,
    /// Service name, shared by all instances.
    pub name: String,
    /// Host or IP address; empty: that of the Consul agent's node.
    pub address: String,
    /// Port; 0: none.
    pub port: u16,
    /// Tags, for clients.
    pub tags: Vec<String>,
    /// Metadata in the catalog.
    pub meta: BTreeMap<String, String>,
}

impl PodService {
    /// TTL of the check with the pod's health. It never ends: [`PodService::node_check`] notices a dead node agent.
    pub const TTL: Duration = Duration::from_secs(10 * 365 * 86_400);
    /// The agent deregisters the service after its node agent was critical for this long, the least that Consul permits.
    /// A node agent's own service must stay for longer ([`TtlService::deregister_after`]): in Consul 1.8 an alias of a
    /// service that was deregistered may pass.
    pub const DEREGISTER_AFTER: Duration = Duration::from_secs(60);

    /// Id of the check with the pod's health.
    #[must_use]
    pub fn health_check(id: &str) -> String {
        format!("{id}:health")
    }

    /// Id of the check that follows the node agent.
    #[must_use]
    pub fn node_check(id: &str) -> String {
        format!("{id}:node")
    }
}

/// A [`PodService`] as the local Consul agent has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredService {
    /// What is registered.
    pub service: PodService,
    /// Status of the check with the pod's health; [`Health::Absent`]: there is none.
    pub health: Health,
    /// Whether it has the check that follows the node agent.
    pub has_node_check: bool,
    /// Whether this client registered it with the token that it has now. The Consul agent syncs a service with the token
    /// of its registration.
    pub is_current: bool,
}

/// Health of one instance of a service in Consul's catalog. The worst of its checks counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceHealth {
    /// Consul node of the instance.
    pub node: String,
    /// Whether all checks pass.
    pub passing: bool,
}

/// Reads from Consul. A controller gets a `Reader` and a [`Writer`].
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    /// Reads one key. `None`: it does not exist.
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError>;

    /// Reads all entries under a prefix, in key order. Empty too if the token may not read there.
    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError>;

    /// Reads the keys under a prefix, in key order. With a separator, each is cut after its first occurrence past the
    /// prefix.
    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError>;

    /// Runs a transaction that only reads: all answers are of one index, and consistent. At most [`TxnLimits::ops`]
    /// questions.
    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError>;

    /// Reads a session. `None`: it is gone, or the token may not read it.
    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError>;

    /// Reads all sessions that the token may read.
    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError>;

    /// Reads the health of a service's instances from Consul's catalog.
    async fn service_health(&self, service: &str)
    -> Result<Answer<Vec<ServiceHealth>>, StoreError>;

    /// The leader's address; empty while there is no leader.
    async fn leader(&self) -> Result<String, StoreError>;
}

/// Consul's primitives, as each adapter offers them.
#[async_trait]
pub trait Store: Reader {
    /// Writes one key. `false`: refused (stale CAS, lock of another session, not the holder).
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError>;

    /// Deletes one key. `false`: refused (stale CAS). Deleting an absent key succeeds.
    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError>;

    /// Deletes everything under a prefix.
    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError>;

    /// Applies all operations in order, or none. At most [`TxnLimits::ops`] operations.
    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError>;

    /// Like [`Store::txn`], but calls `may_send` right before it sends. `None`: that returned `false`, and nothing was sent.
    /// An adapter whose requests wait for a slot must call it after that wait.
    async fn txn_if(
        &self,
        ops: &[Op],
        may_send: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Option<TxnOutcome>, StoreError> {
        match may_send() {
            true => self.txn(ops).await.map(Some),
            false => Ok(None),
        }
    }

    /// Creates a session on the local agent's node.
    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError>;

    /// Renews a session. `false`: it is gone. `true` is no proof of ownership (only a fence is).
    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError>;

    /// Ends a session; its locked keys are handled by its [`Behavior`]. Succeeds if the session is already gone.
    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError>;

    /// Registers a service with a TTL check on the local agent; the check starts passing.
    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError>;

    /// Passes a TTL check. `false`: the agent does not know the check, for example after a restart without state.
    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError>;

    /// Services of the local agent whose ids begin so, by id. Empty too if the token may not read them.
    async fn pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError>;

    /// Registers a service of a pod, or replaces it. `health`: status of a new check with the pod's health; one that exists
    /// keeps its status. `node_service`: id of the service that the other check follows.
    async fn register_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError>;

    /// Sets the status of a TTL check. What is neither passing nor a warning is critical. `false`: the agent does not know
    /// the check.
    async fn update_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError>;

    /// Whether the token may register services of this name. Nothing is registered.
    async fn may_register(&self, service: &str) -> Result<bool, StoreError>;

    /// Removes a service from the local agent. Succeeds if it is already gone.
    async fn deregister_service(&self, id: &str) -> Result<(), StoreError>;
}
