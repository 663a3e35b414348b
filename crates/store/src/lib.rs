//! The port: what we need of Consul, in our words. Adapters: `rcfarm-consul` (the real one) and
//! `rcfarm-emulator` (a model in memory). One contract suite holds for both.
//!
//! Two habits run through it. A *refusal* (lost CAS, busy lock, refused transaction) is a value, because it is
//! an expected answer; an *error* is a failure, and says whether the request may have been applied
//! ([`StoreError::outcome_unknown`]). And controllers do not hold a [`Store`]: they hold a [`Writer`], which
//! commits only transactions that begin with the fence of a claim ([`Txn::under`]).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batching;
pub mod cache;
mod claim;
mod env;
mod error;
pub mod failpoints;
mod incremental;
pub mod mass_deletion_guard;
mod prefixed;
mod rights;
pub mod session;
pub mod time;
mod txn;
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
pub use prefixed::Prefixed;
pub use rcfarm_api::Index;
pub use rcfarm_api::key::{self, Key, Prefix};
pub use rights::{list_surely, may_read};
pub use txn::{ByUser, Fenced, Op, Question, Refusal, Txn, TxnLimits, TxnOutcome, audit_op};

use rcfarm_api::ids::SessionId;

/// One key as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The whole key, as stored. May be anything a user wrote, so it is not a [`Key`].
    pub key: String,
    /// The value; empty where Consul says `null`.
    pub value: Bytes,
    /// The user's flags.
    pub flags: u64,
    /// The session that holds the key as a lock.
    pub session: Option<SessionId>,
    /// How often the key was acquired; 0 after a plain write, so no fencing token.
    pub lock_index: u64,
    /// Index of creation.
    pub create_index: Index,
    /// Index of the last change.
    pub modify_index: Index,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader's answer; may be stale for the moment after it was deposed.
    #[default]
    Leader,
    /// The leader's answer after it made sure that it still leads.
    Consistent,
    /// Any server's answer.
    Stale,
}

/// Waits for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockingWait {
    /// Answer at once if anything is newer than this; 0 never waits.
    pub after: Index,
    /// Answer unchanged after this long (Consul adds up to a sixteenth).
    pub at_most: Duration,
}

/// How to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Query {
    /// Freshness.
    pub consistency: Consistency,
    /// Block for a change.
    pub wait: Option<BlockingWait>,
}

impl Query {
    /// A read that the leader confirms: for deciding what an ambiguous write did.
    pub const CONSISTENT: Query = Query { consistency: Consistency::Consistent, wait: None };
    /// A plain read.
    pub const PLAIN: Query = Query { consistency: Consistency::Leader, wait: None };

    /// A read that blocks until something is newer than `after`, or `at_most` has passed.
    #[must_use]
    pub fn after(after: Index, at_most: Duration) -> Query {
        Query { consistency: Consistency::Leader, wait: Some(BlockingWait { after, at_most }) }
    }
}

/// A read's answer with the index to wait on next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was read.
    pub value: T,
    /// `X-Consul-Index`: also of an empty answer (a 404 carries one).
    pub index: Index,
    /// The server says that ACLs removed something from the answer (Consul 1.11 and newer).
    pub filtered: bool,
}

/// How a single key is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutMode {
    /// Unconditionally.
    Set,
    /// Only if the key's ModifyIndex is this one (0: only if it does not exist).
    Cas(Index),
    /// Take the lock.
    Acquire(SessionId),
    /// Give the lock back.
    Release(SessionId),
}

/// How a single key is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeleteMode {
    /// Unconditionally.
    Always,
    /// Only if the key's ModifyIndex is this one.
    Cas(Index),
}

/// What happens to the locks of a session that ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// They are released, the keys stay.
    Release,
    /// The keys are deleted.
    #[default]
    Delete,
}

/// A session to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewSession {
    /// For people.
    pub name: String,
    /// 10 s to 24 h; `None`: no TTL. Consul lets a session live up to twice its TTL.
    pub ttl: Option<Duration>,
    /// How long a lock stays closed after its session ended without releasing it.
    pub lock_delay: Duration,
    /// What becomes of its keys.
    pub behavior: Behavior,
    /// Ids of checks (of services on the agent's node) that end the session when critical. The node's own
    /// gossip check is never attached: an agent's restart would drop every claim.
    pub checks: Vec<String>,
}

/// A session as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its id.
    pub id: SessionId,
    /// Its name.
    pub name: String,
    /// The node it was made on.
    pub node: String,
    /// Its TTL.
    pub ttl: Option<Duration>,
    /// Its lock-delay.
    pub lock_delay: Duration,
    /// What becomes of its keys.
    pub behavior: Behavior,
    /// Index of creation.
    pub create_index: Index,
}

/// A service of ours on the local agent with one TTL check, whose id is `service:<id>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TtlService {
    /// Service name, shared by all instances.
    pub name: String,
    /// Instance id, unique on the agent.
    pub id: String,
    /// Metadata shown in the catalog.
    pub meta: BTreeMap<String, String>,
    /// The check turns critical when not beaten for this long.
    pub ttl: Duration,
    /// The agent forgets the service when critical for this long (at least 1 min).
    pub deregister_after: Duration,
}

impl TtlService {
    /// The id of the service's check.
    #[must_use]
    pub fn check_id(&self) -> String {
        format!("service:{}", self.id)
    }
}

/// Health of one instance of a service in Consul's catalog, its checks folded (worst counts).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceHealth {
    /// The node.
    pub node: String,
    /// All checks pass.
    pub passing: bool,
}

/// What can be read. Controllers get this much of the store, and a [`Writer`].
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    /// One key.
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError>;

    /// All keys under a prefix, in key order.
    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError>;

    /// The keys under a prefix, in key order; with a separator, cut after its first occurrence past the prefix.
    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError>;

    /// Asks all of this at one moment, confirmed by the leader: a transaction that changes nothing. At most
    /// [`TxnLimits::ops`] questions.
    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError>;

    /// A session; `None` when it is gone, or when the token may not see it.
    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError>;

    /// All sessions.
    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError>;

    /// Health of a service's instances, from Consul's catalog.
    async fn service_health(&self, service: &str)
    -> Result<Answer<Vec<ServiceHealth>>, StoreError>;

    /// The leader's address; empty while there is none.
    async fn leader(&self) -> Result<String, StoreError>;
}

/// Everything that an adapter offers: Consul's primitives.
#[async_trait]
pub trait Store: Reader {
    /// Writes one key. `false`: refused (stale CAS, lock held by another, not the holder).
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError>;

    /// Deletes one key. `false`: refused (stale CAS). Absent is fine.
    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError>;

    /// Deletes everything under a prefix.
    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError>;

    /// All operations or none, in order. At most [`TxnLimits::ops`] of them.
    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError>;

    /// Makes a session on the local agent's node.
    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError>;

    /// Renews a session. `false`: it is gone. `true` is no proof of ownership (only a fence is).
    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError>;

    /// Ends a session; its locks are freed according to its behaviour. Fine when already gone.
    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError>;

    /// Registers a service with a TTL check on the local agent; the check starts passing.
    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError>;

    /// Beats a TTL check. `false`: the agent does not know it (it restarted, or forgot it).
    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError>;

    /// Removes a service from the local agent. Fine when already gone.
    async fn deregister_service(&self, id: &str) -> Result<(), StoreError>;
}
