//! Sessions: requests, the table, and refusals (`consul-semantics.md` §3).

use std::collections::BTreeMap;
use std::time::Duration;

use super::catalog::{Catalog, Status};
use super::duration;
use rcfarm_api::ids::SessionId;
use rcfarm_store::{Behavior, Index, NewSession, SessionInfo, StoreError};

/// Upper bound of lock-delays.
pub(super) const MAX_LOCK_DELAY: Duration = Duration::from_secs(60);
const MIN_TTL: i64 = 10_000_000_000;
const MAX_TTL: i64 = 86_400_000_000_000;

/// A client's request to create a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRequest {
    /// Description; not unique.
    pub name: String,
    /// Node of the session; empty: that of the agent.
    pub node: String,
    /// TTL in Go's notation; empty or zero: no TTL.
    pub ttl: String,
    /// Lock-delay in nanoseconds. Negative: none. More than a minute: a minute.
    pub lock_delay: i64,
    /// `release`, `delete`, or empty for `release`.
    pub behavior: String,
    /// Ids of node checks that end the session when critical.
    pub node_checks: Vec<String>,
    /// Ids of service checks that end the session when critical.
    pub service_checks: Vec<String>,
}

impl Default for SessionRequest {
    /// Consul's defaults: lock-delay 15 s, bound to the node's gossip check.
    fn default() -> Self {
        SessionRequest {
            name: String::new(),
            node: String::new(),
            ttl: String::new(),
            lock_delay: 15_000_000_000,
            behavior: String::new(),
            node_checks: vec![super::catalog::SERF_HEALTH.to_owned()],
            service_checks: Vec::new(),
        }
    }
}

impl From<&NewSession> for SessionRequest {
    fn from(new: &NewSession) -> Self {
        SessionRequest {
            name: new.name.clone(),
            node: String::new(),
            ttl: new.ttl.map(duration::text).unwrap_or_default(),
            lock_delay: i64::try_from(new.lock_delay.as_nanos()).unwrap_or(i64::MAX),
            behavior: match new.behavior {
                Behavior::Release => "release".to_owned(),
                Behavior::Delete => "delete".to_owned(),
            },
            node_checks: Vec::new(),
            service_checks: new.checks.clone(),
        }
    }
}

/// A session as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Id, a UUID.
    pub id: SessionId,
    /// Description; not unique.
    pub name: String,
    /// Node of the session.
    pub node: String,
    /// The TTL as the client wrote it.
    pub ttl_text: String,
    /// The session expires twice this long after its last renewal. `None`: never.
    pub ttl: Option<Duration>,
    /// Lock-delay in nanoseconds, as the client wrote it.
    pub lock_delay: i64,
    /// What happens to its locked keys at its end.
    pub behavior: Behavior,
    /// Ids of node checks that end it.
    pub node_checks: Vec<String>,
    /// Ids of service checks that end it.
    pub service_checks: Vec<String>,
    /// Index of creation. A session never changes.
    pub create_index: Index,
}

impl Session {
    /// Whether this check ends the session when critical.
    pub fn needs(&self, check: &str) -> bool {
        self.node_checks.iter().chain(&self.service_checks).any(|c| c == check)
    }

    /// How long nobody can acquire its locks after it ended, 0 to 60 s.
    pub fn closed_for(&self) -> Duration {
        duration::from_nanos(self.lock_delay).min(MAX_LOCK_DELAY)
    }

    /// The session as the port returns it.
    pub fn info(&self) -> SessionInfo {
        SessionInfo {
            id: self.id.clone(),
            name: self.name.clone(),
            node: self.node.clone(),
            ttl: self.ttl,
            lock_delay: duration::from_nanos(self.lock_delay),
            behavior: self.behavior,
            create_index: self.create_index,
        }
    }
}

/// Creation or end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionChange {
    /// The session was created.
    Created(Session),
    /// The session ended. Its keys were released or deleted in the same write.
    Ended(Session, Ending),
}

impl SessionChange {
    /// The session that was created or ended.
    pub fn session(&self) -> &Session {
        match self {
            SessionChange::Created(session) | SessionChange::Ended(session, _) => session,
        }
    }
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A client destroyed it.
    Destroyed,
    /// It was not renewed for twice its TTL.
    Expired,
    /// One of its checks turned critical or was deregistered.
    CheckFailed,
}

/// The session table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    newest: Index,
}

impl Sessions {
    /// A session by id.
    pub fn get(&self, id: &SessionId) -> Option<&Session> {
        self.by_id.get(id)
    }

    /// All sessions, by id.
    pub fn all(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values()
    }

    /// The index of the table, which every read of sessions returns.
    pub fn index(&self) -> Index {
        self.newest
    }

    /// The session that a lock operation names.
    pub(super) fn for_lock(&self, id: &str) -> Result<SessionId, StoreError> {
        if id.is_empty() {
            return Err(refused("missing session"));
        }
        let id = parse_id(id)?;
        if self.by_id.contains_key(&id) {
            Ok(id)
        } else {
            Err(StoreError::SessionGone { session: id })
        }
    }

    pub(super) fn insert(&mut self, session: Session, index: Index) {
        self.by_id.insert(session.id.clone(), session);
        self.newest = index;
    }

    /// Undoes one write, for a stale read.
    pub(super) fn unwind(&mut self, index: Index, change: &SessionChange) {
        match change {
            SessionChange::Created(session) => drop(self.by_id.remove(&session.id)),
            SessionChange::Ended(session, _) => {
                self.by_id.insert(session.id.clone(), session.clone());
            }
        }
        self.newest = self.newest.min(Index(index.0 - 1));
    }

    pub(super) fn remove(&mut self, id: &SessionId, index: Index) -> Option<Session> {
        let session = self.by_id.remove(id)?;
        self.newest = index;
        Some(session)
    }
}

/// A 500 with Consul's message. Consul answers bad parameters this way too.
pub(super) fn refused(text: impl Into<String>) -> StoreError {
    StoreError::Rejected { status: 500, body: text.into() }
}

/// Parses a session id. Other text than a UUID gets Consul's error.
pub(super) fn parse_id(text: &str) -> Result<SessionId, StoreError> {
    if text.len() != 36 {
        return Err(refused("failed session lookup: index error: UUID must be 36 characters"));
    }
    if !text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()) {
        return Err(refused("failed session lookup: index error: Invalid UUID"));
    }
    Ok(text.to_ascii_lowercase().as_str().into())
}

/// The parsed part of a request that does not depend on the catalog. Errors of it take no index.
pub(super) struct Terms {
    ttl: Option<Duration>,
    behavior: Behavior,
}

/// Checks TTL and behavior.
pub(super) fn terms(request: &SessionRequest) -> Result<Terms, StoreError> {
    let behavior = match request.behavior.as_str() {
        "" | "release" => Behavior::Release,
        "delete" => Behavior::Delete,
        other => return Err(refused(format!("Invalid Behavior setting '{other}'"))),
    };
    Ok(Terms { ttl: ttl(&request.ttl)?, behavior })
}

fn ttl(text: &str) -> Result<Option<Duration>, StoreError> {
    if text.is_empty() {
        return Ok(None);
    }
    let nanos = duration::parse(text)
        .map_err(|why| refused(format!("Session TTL '{text}' invalid: {why}")))?;
    if nanos == 0 {
        return Ok(None);
    }
    if !(MIN_TTL..=MAX_TTL).contains(&nanos) {
        let range = "must be between [10s=24h0m0s]";
        return Err(refused(format!("Invalid Session TTL '{nanos}', {range}")));
    }
    Ok(Some(duration::from_nanos(nanos)))
}

/// Checks that node and checks exist, and creates the session.
pub(super) fn build(
    request: SessionRequest,
    terms: Terms,
    id: SessionId,
    index: Index,
    catalog: &Catalog,
) -> Result<Session, StoreError> {
    if catalog.node(&request.node).is_none() {
        return Err(refused("Missing node registration"));
    }
    for name in request.node_checks.iter().chain(&request.service_checks) {
        match catalog.check(&request.node, name) {
            None => return Err(refused(format!("Missing check '{name}' registration"))),
            Some(check) if check.status == Status::Critical => {
                return Err(refused(format!("Check '{name}' is in critical state")));
            }
            Some(_) => {}
        }
    }
    let Terms { ttl, behavior } = terms;
    Ok(Session {
        id,
        name: request.name,
        node: request.node,
        ttl_text: request.ttl,
        ttl,
        lock_delay: request.lock_delay,
        behavior,
        node_checks: request.node_checks,
        service_checks: request.service_checks,
        create_index: index,
    })
}
