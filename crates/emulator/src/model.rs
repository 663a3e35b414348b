//! The state machine. The caller passes the time; nothing happens between calls. Each write gets an index.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::catalog::{Catalog, CatalogChange, NodeRegistration, ServiceRequest, Status};
use super::index::Tables;
use super::kv::KvChange;
use super::session::{self, Ending, Session, SessionChange, SessionRequest};
use super::timer::{Timer, Timers};
use super::txn::{KvOp, OpFailure, Verb, perform, perform_all};
use rcfarm_api::ids::SessionId;
use rcfarm_store::time::IdSource;
use rcfarm_store::{Index, Refusal, StoreError, TxnOutcome};

/// Largest value of a key, in bytes; also the largest body of a transaction.
pub const MAX_VALUE: usize = 524_288;
const TOMBSTONES_LIVE: Duration = Duration::from_secs(15 * 60);
const REAP_EVERY: Duration = Duration::from_secs(30);

/// One write that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Index of all its changes.
    pub index: Index,
    /// Time since the model was created.
    pub at: Duration,
    /// What led to it.
    pub cause: Cause,
    /// Changed keys, in order.
    pub changes: Vec<KvChange>,
    /// Created and ended sessions.
    pub sessions: Vec<SessionChange>,
    /// Services with other instances or another health.
    pub services: BTreeSet<String>,
}

/// What led to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Operations on keys: one, or a transaction.
    Kv(Vec<KvOp>),
    /// A session was created, destroyed, or expired.
    Session,
    /// A node, service or check changed, and sessions may have ended with it.
    Catalog,
    /// Old tombstones were removed.
    Reap,
    /// An older state was restored. `changes` has only its consequences, so compare whole states.
    Restore,
}

/// An answer, and the write that was applied for it.
#[derive(Debug)]
#[must_use]
pub struct ModelStep<T> {
    /// The answer to the client.
    pub reply: T,
    /// The write. `None`: a read, a refusal, or a write that changed nothing.
    pub applied: Option<Applied>,
}

impl<T> ModelStep<T> {
    /// An answer without a write.
    pub fn unchanged(reply: T) -> Self {
        ModelStep { reply, applied: None }
    }
}

/// Consul as a state machine. Times count from its creation and must not decrease. Before any other call, call
/// [`Model::expire_next`] until it returns `None`.
#[derive(Debug)]
pub struct Model {
    tables: Tables,
    timers: Timers,
    closed_until: BTreeMap<String, Duration>,
    reaps: BTreeMap<Duration, Index>,
    ids: IdSource,
    max_ops: usize,
}

impl Model {
    /// An empty Consul with one agent on `node`. Session ids are drawn from `ids`.
    pub fn new(node: &str, max_ops: usize, ids: IdSource) -> Self {
        let mut model = Model {
            tables: Tables { index: Index(10), ..Tables::default() },
            timers: Timers::default(),
            closed_until: BTreeMap::new(),
            reaps: BTreeMap::new(),
            ids,
            max_ops,
        };
        let _first = model.add_agent(Duration::ZERO, node);
        model
    }

    /// The current state.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// When the next timer is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Adds another agent's node, if it does not exist.
    pub fn add_agent(&mut self, now: Duration, node: &str) -> ModelStep<()> {
        if self.tables.catalog.node(node).is_some() {
            return ModelStep::unchanged(());
        }
        let index = self.take_index();
        self.tables.catalog.add_agent(node, index);
        ModelStep {
            reply: (),
            applied: Some(self.catalog_applied(now, index, BTreeSet::new(), &[])),
        }
    }

    /// Fires the earliest timer that is due by `now`, at its own time. `None`: none is due.
    pub fn expire_next(&mut self, now: Duration) -> Option<Applied> {
        loop {
            let (at, timer) = self.timers.pop_due(now)?;
            let applied = match timer {
                Timer::Session(id) => self.end_session(at, &id, Ending::Expired),
                Timer::Check { node, check } => self.miss_beat(at, &node, &check),
                Timer::Forget { node, check } => self.forget(at, &node, &check),
                Timer::Reap => Some(self.reap(at)),
            };
            if applied.is_some() {
                return applied;
            }
        }
    }

    // ---- keys ---------------------------------------------------------------------------------------

    /// Executes one operation on a key. `false`: refused, because the state is not as the operation requires.
    pub fn kv(&mut self, now: Duration, op: KvOp) -> ModelStep<Result<bool, StoreError>> {
        if let Err(error) = self.admit(&op) {
            return ModelStep::unchanged(Err(error));
        }
        if self.is_closed(now, &op) {
            return ModelStep::unchanged(Ok(false));
        }
        let index = self.take_index();
        let Tables { kv, sessions, .. } = &mut self.tables;
        let mut draft = kv.draft(index);
        let reply = match perform(&mut draft, sessions, &op) {
            Ok(_) => Ok(true),
            Err(OpFailure::Unmet(_)) => Ok(false),
            Err(OpFailure::Wrong(error)) => Err(error),
        };
        let changes = draft.commit();
        ModelStep { reply, applied: self.kv_applied(now, index, vec![op], changes) }
    }

    /// Executes all operations in order, or none.
    pub fn txn(
        &mut self,
        now: Duration,
        ops: Vec<KvOp>,
    ) -> ModelStep<Result<TxnOutcome, StoreError>> {
        if ops.len() > self.max_ops {
            let (n, max) = (ops.len(), self.max_ops);
            let detail = format!("Transaction contains too many operations ({n} > {max})");
            return ModelStep::unchanged(Err(StoreError::TooLarge { detail }));
        }
        let barred = self.barred(now, &ops);
        if !barred.is_empty() {
            return ModelStep::unchanged(Ok(TxnOutcome::Refused(barred)));
        }
        let writes = ops.iter().any(|op| op.verb.writes());
        let index = if writes { self.take_index() } else { self.tables.index.next() };
        let Tables { kv, sessions, .. } = &mut self.tables;
        let mut performed = perform_all(kv.draft(index), sessions, &ops);
        let changes = std::mem::take(&mut performed.changes);
        let reply = Ok(performed.outcome());
        ModelStep { reply, applied: self.kv_applied(now, index, ops, changes) }
    }

    /// Refusals of single operations before the transaction is executed, such as those by lock-delay.
    fn barred(&self, now: Duration, ops: &[KvOp]) -> Vec<Refusal> {
        let bar = |(op, step): (usize, &KvOp)| {
            let what = match self.admit(step) {
                Err(StoreError::Rejected { body, .. }) => body,
                Err(other) => other.to_string(),
                Ok(()) if self.is_closed(now, step) => {
                    format!("failed to lock key {:?} due to lock delay", step.key)
                }
                Ok(()) => return None,
            };
            Some(Refusal { op, what })
        };
        ops.iter().enumerate().filter_map(bar).collect()
    }

    fn admit(&self, op: &KvOp) -> Result<(), StoreError> {
        if op.key.is_empty() && op.verb != Verb::DeleteTree {
            return Err(session::refused("Must provide key"));
        }
        if op.value.len() > MAX_VALUE {
            let n = op.value.len();
            let detail =
                format!("Value for key {:?} is too large ({n} > {MAX_VALUE} bytes)", op.key);
            return Err(StoreError::TooLarge { detail });
        }
        Ok(())
    }

    /// Whether a lock-delay forbids this operation. Such a refusal takes no index.
    fn is_closed(&self, now: Duration, op: &KvOp) -> bool {
        op.verb == Verb::Lock && self.closed_until.get(&op.key).is_some_and(|until| *until > now)
    }

    fn kv_applied(
        &mut self,
        now: Duration,
        index: Index,
        ops: Vec<KvOp>,
        changes: Vec<KvChange>,
    ) -> Option<Applied> {
        if changes.is_empty() {
            return None;
        }
        self.schedule_reap(now, index, &changes);
        let cause = Cause::Kv(ops);
        Some(Applied {
            index,
            at: now,
            cause,
            changes,
            sessions: Vec::new(),
            services: BTreeSet::new(),
        })
    }

    // ---- sessions -----------------------------------------------------------------------------------

    /// Creates a session.
    pub fn create_session(
        &mut self,
        now: Duration,
        request: SessionRequest,
    ) -> ModelStep<Result<SessionId, StoreError>> {
        let terms = match session::terms(&request) {
            Ok(terms) => terms,
            Err(error) => return ModelStep::unchanged(Err(error)),
        };
        let index = self.take_index();
        let id = SessionId::from(self.ids.uuid().to_string().as_str());
        let session = match session::build(request, terms, id, index, &self.tables.catalog) {
            Ok(session) => session,
            Err(error) => return ModelStep::unchanged(Err(error)),
        };
        self.tables.sessions.insert(session.clone(), index);
        self.start_ttl(now, &session);
        let id = session.id.clone();
        let applied = Applied {
            index,
            at: now,
            cause: Cause::Session,
            changes: Vec::new(),
            sessions: vec![SessionChange::Created(session)],
            services: BTreeSet::new(),
        };
        ModelStep { reply: Ok(id), applied: Some(applied) }
    }

    /// Renews a session: it expires twice its TTL from now. `None`: it is gone. Takes no index.
    pub fn renew_session(&mut self, now: Duration, id: &SessionId) -> Option<Session> {
        let session = self.tables.sessions.get(id)?.clone();
        self.start_ttl(now, &session);
        Some(session)
    }

    /// Ends a session. Succeeds if it is already gone.
    pub fn destroy_session(&mut self, now: Duration, id: &SessionId) -> ModelStep<()> {
        ModelStep { reply: (), applied: self.end_session(now, id, Ending::Destroyed) }
    }

    fn end_session(&mut self, at: Duration, id: &SessionId, why: Ending) -> Option<Applied> {
        let index = self.take_index();
        self.tables.sessions.get(id)?;
        let (changes, sessions) = self.end_sessions(at, index, std::slice::from_ref(id), why);
        Some(Applied {
            index,
            at,
            cause: Cause::Session,
            changes,
            sessions,
            services: BTreeSet::new(),
        })
    }

    /// Ends sessions within one write, and releases or deletes their keys.
    fn end_sessions(
        &mut self,
        at: Duration,
        index: Index,
        ids: &[SessionId],
        why: Ending,
    ) -> (Vec<KvChange>, Vec<SessionChange>) {
        self.closed_until.retain(|_, until| *until > at);
        let mut ended = Vec::new();
        let mut draft = self.tables.kv.draft(index);
        for id in ids {
            let Some(session) = self.tables.sessions.remove(id, index) else { continue };
            self.timers.clear(&Timer::Session(id.clone()));
            let freed = draft.free(id, session.behavior);
            let closed_for = session.closed_for();
            if !closed_for.is_zero() {
                self.closed_until.extend(freed.into_iter().map(|key| (key, at + closed_for)));
            }
            ended.push(SessionChange::Ended(session, why));
        }
        let changes = draft.commit();
        self.schedule_reap(at, index, &changes);
        (changes, ended)
    }

    fn start_ttl(&mut self, now: Duration, session: &Session) {
        if let Some(ttl) = session.ttl {
            self.timers.set(Timer::Session(session.id.clone()), now + ttl * 2);
        }
    }

    /// Elects a new leader: every session expires twice its TTL from now, as in Consul.
    pub fn elect(&mut self, now: Duration) {
        let sessions: Vec<Session> = self.tables.sessions.all().cloned().collect();
        sessions.iter().for_each(|session| self.start_ttl(now, session));
    }

    // ---- services and checks ------------------------------------------------------------------------

    /// Registers a service and its TTL checks on a node's agent. A check that exists keeps its state.
    pub fn register(
        &mut self,
        now: Duration,
        node: &str,
        request: &ServiceRequest,
    ) -> ModelStep<()> {
        let index = self.tables.index.next();
        let changed = self.tables.catalog.register(node, request, index);
        for check in &request.checks {
            self.watch_check(now, node, &check.id);
        }
        if !changed {
            return ModelStep::unchanged(());
        }
        self.tables.index = index;
        ModelStep {
            reply: (),
            applied: Some(self.catalog_applied(now, index, [request.name.clone()].into(), &[])),
        }
    }

    /// Updates a TTL check. `false`: the agent has no such check.
    pub fn update_check(
        &mut self,
        now: Duration,
        node: &str,
        check: &str,
        status: Status,
        note: &str,
    ) -> ModelStep<bool> {
        if self.tables.catalog.check(node, check).is_none_or(|c| c.ttl.is_none()) {
            return ModelStep::unchanged(false);
        }
        let index = self.tables.index.next();
        let changed = self.tables.catalog.update_check(node, check, status, note, index);
        self.watch_check(now, node, check);
        let Some(service) = changed else { return ModelStep::unchanged(true) };
        self.tables.index = index;
        let doomed = match status {
            Status::Critical => self.attached(node, &[check.to_owned()]),
            Status::Passing | Status::Warning => Vec::new(),
        };
        ModelStep {
            reply: true,
            applied: Some(self.catalog_applied(now, index, [service].into(), &doomed)),
        }
    }

    fn miss_beat(&mut self, at: Duration, node: &str, check: &str) -> Option<Applied> {
        let note = match self.tables.catalog.check(node, check)?.output.as_str() {
            "" => "TTL expired".to_owned(),
            last => format!("TTL expired (last output before timeout follows): {last}"),
        };
        self.update_check(at, node, check, Status::Critical, &note).applied
    }

    fn forget(&mut self, at: Duration, node: &str, check: &str) -> Option<Applied> {
        let (service, _) = self.tables.catalog.check(node, check)?.service.clone()?;
        self.deregister(at, node, &service).applied
    }

    /// Removes a service and its checks from a node's agent. `false`: it has no such service.
    pub fn deregister(&mut self, now: Duration, node: &str, id: &str) -> ModelStep<bool> {
        match id {
            "" => ModelStep::unchanged(false),
            id => self.deregister_node(now, node, id, ""),
        }
    }

    /// Registers a node, and a service and checks on it, in the catalog itself.
    pub fn register_node(
        &mut self,
        now: Duration,
        request: &NodeRegistration,
    ) -> ModelStep<Result<(), StoreError>> {
        let index = self.tables.index.next();
        match self.tables.catalog.register_node(request, index) {
            Err(why) => ModelStep::unchanged(Err(session::refused(why))),
            Ok(change) => {
                let step = self.catalog_changed(now, &request.node, index, &change);
                ModelStep { reply: Ok(()), applied: step.applied }
            }
        }
    }

    /// Removes a service of a node with its checks from the catalog; without one, a check; without either, the node with
    /// everything on it and its sessions. `false`: it is not there. An agent's node does not come back, other than in
    /// Consul, whose servers add it again.
    pub fn deregister_node(
        &mut self,
        now: Duration,
        node: &str,
        service: &str,
        check: &str,
    ) -> ModelStep<bool> {
        let index = self.tables.index.next();
        let change = self.tables.catalog.deregister_node(node, service, check, index);
        self.catalog_changed(now, node, index, &change)
    }

    fn catalog_changed(
        &mut self,
        now: Duration,
        node: &str,
        index: Index,
        change: &CatalogChange,
    ) -> ModelStep<bool> {
        if !change.changed {
            return ModelStep::unchanged(false);
        }
        self.tables.index = index;
        for check in &change.gone {
            self.timers.clear(&Timer::Check { node: node.to_owned(), check: check.clone() });
            self.timers.clear(&Timer::Forget { node: node.to_owned(), check: check.clone() });
        }
        let doomed = self.attached(node, &change.failed_checks);
        let applied = self.catalog_applied(now, index, change.services.clone(), &doomed);
        ModelStep { reply: true, applied: Some(applied) }
    }

    /// Sessions of a node that need one of the checks; all of them if the node is gone.
    fn attached(&self, node: &str, checks: &[String]) -> Vec<SessionId> {
        let is_gone = self.tables.catalog.node(node).is_none();
        let needs_one =
            |s: &&Session| s.node == node && (is_gone || checks.iter().any(|c| s.needs(c)));
        self.tables.sessions.all().filter(needs_one).map(|s| s.id.clone()).collect()
    }

    fn catalog_applied(
        &mut self,
        at: Duration,
        index: Index,
        mut services: BTreeSet<String>,
        doomed: &[SessionId],
    ) -> Applied {
        let mut doomed = doomed.to_vec();
        for (node, id) in self.tables.catalog.follow_aliases(index) {
            self.watch_check(at, &node, &id);
            let check = self.tables.catalog.check(&node, &id);
            services.extend(check.and_then(|c| Some(c.service.as_ref()?.1.clone())));
            if check.is_some_and(|c| c.status == Status::Critical) {
                doomed.extend(self.attached(&node, &[id]));
            }
        }
        let (changes, sessions) = self.end_sessions(at, index, &doomed, Ending::CheckFailed);
        Applied { index, at, cause: Cause::Catalog, changes, sessions, services }
    }

    /// Restarts the timers of a check: its TTL, and the deregistration of its service while critical.
    fn watch_check(&mut self, now: Duration, node: &str, id: &str) {
        let Some(check) = self.tables.catalog.check(node, id) else { return };
        let expiry = Timer::Check { node: node.to_owned(), check: id.to_owned() };
        let forget =
            check.service.as_ref().and(check.deregister_after).map(|after| {
                (Timer::Forget { node: node.to_owned(), check: id.to_owned() }, after)
            });
        match (check.status, check.ttl, forget) {
            (Status::Critical, _, forget) => {
                self.timers.clear(&expiry);
                if let Some((timer, after)) = forget.filter(|(timer, _)| !self.timers.runs(timer)) {
                    self.timers.set(timer, now + after);
                }
            }
            (_, ttl, forget) => {
                if let Some(ttl) = ttl {
                    self.timers.set(expiry, now + ttl);
                }
                if let Some((timer, _)) = forget {
                    self.timers.clear(&timer);
                }
            }
        }
    }

    // ---- tombstones, snapshots ----------------------------------------------------------------------

    fn schedule_reap(&mut self, now: Duration, index: Index, changes: &[KvChange]) {
        if changes.iter().all(|change| change.after.is_some()) {
            return;
        }
        let rounds = (now + TOMBSTONES_LIVE).as_nanos().div_ceil(REAP_EVERY.as_nanos());
        let at = REAP_EVERY * u32::try_from(rounds).unwrap_or(u32::MAX);
        self.reaps.insert(at, index);
        if !self.timers.runs(&Timer::Reap) {
            self.timers.set(Timer::Reap, at);
        }
    }

    fn reap(&mut self, at: Duration) -> Applied {
        let index = self.take_index();
        if let Some((_, newest)) = self.reaps.pop_first() {
            self.tables.kv.reap(newest);
        }
        if let Some((next, _)) = self.reaps.first_key_value() {
            self.timers.set(Timer::Reap, *next);
        }
        let (changes, sessions) = (Vec::new(), Vec::new());
        Applied { index, at, cause: Cause::Reap, changes, sessions, services: BTreeSet::new() }
    }

    /// Restores the keys and sessions of an older state with their old indexes. The Raft index does not decrease. TTLs
    /// restart and lock-delays end. Services and checks stay as the agents have them, which may end a restored session.
    /// Returns the replaced state.
    pub fn restore(&mut self, now: Duration, snapshot: Tables) -> (Tables, Applied) {
        let index = self.take_index();
        let catalog: Catalog = self.tables.catalog.clone();
        let replaced = std::mem::replace(&mut self.tables, Tables { index, catalog, ..snapshot });
        self.closed_until.clear();
        self.reaps.clear();
        self.timers.clear(&Timer::Reap);
        for session in replaced.sessions.all() {
            self.timers.clear(&Timer::Session(session.id.clone()));
        }
        self.elect(now);
        if self.tables.kv.has_tombstones() {
            self.reaps.insert(now + TOMBSTONES_LIVE, index);
            self.timers.set(Timer::Reap, now + TOMBSTONES_LIVE);
        }
        let doomed: Vec<SessionId> = self
            .tables
            .sessions
            .all()
            .filter(|s| self.is_failing(s))
            .map(|s| s.id.clone())
            .collect();
        let (changes, sessions) = self.end_sessions(now, index, &doomed, Ending::CheckFailed);
        let cause = Cause::Restore;
        (replaced, Applied { index, at: now, cause, changes, sessions, services: BTreeSet::new() })
    }

    fn is_failing(&self, session: &Session) -> bool {
        let fails = |check: &String| {
            let check = self.tables.catalog.check(&session.node, check);
            check.is_none_or(|c| c.status == Status::Critical)
        };
        session.node_checks.iter().chain(&session.service_checks).any(fails)
    }

    fn take_index(&mut self) -> Index {
        self.tables.index = self.tables.index.next();
        self.tables.index
    }
}
