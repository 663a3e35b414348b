//! Emulator: Consul in memory, the second adapter of the port. It reads and writes any key that its clients name.
//!
//! It behaves as Consul 1.8 was measured to behave (`consul-semantics.md`): Raft indexes, the index of every kind of
//! read, locks and lock-delay, sessions that end after twice their TTL, TTL checks, transactions, blocking reads, limits.
//! Tests, the simulator and `rcfarm dev` use it. [`serve`] adds Consul's HTTP API for `curl`, the `consul` command and
//! the HTTP adapter.
//!
//! **Nothing is durable.** The state is lost when the last handle is dropped.
//!
//! | item | contents |
//! |---|---|
//! | [`Model`] | the state machine: no I/O, no clock, no randomness but a seed |
//! | [`Emulator`] | a client's handle on a model: tokio's time, blocking reads, the port |
//! | [`Faults`], [`Observer`] | injected faults, and a callback for every write |
//! | [`serve`] | Consul's HTTP API |
//!
//! Known differences from Consul:
//!
//! - A blocked read is never woken without cause.
//! - A dropped long poll frees its connection at once.
//! - A service that stays critical is deregistered on time, not up to half a minute late.
//! - The node of every agent is always healthy.
//! - There are no ACLs, namespaces or other datacenters.

#![forbid(unsafe_code)]

mod catalog;
mod duration;
mod fault;
mod index;
mod kv;
mod model;
mod port;
mod request;
pub mod serve;
mod session;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "measures how long calls take")]
mod tests;
mod timer;
mod txn;
mod watchers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use catalog::{
    Catalog, CatalogCheck, CatalogNode, CheckRegistration, CheckRequest, NodeRegistration, Service,
    ServiceRequest, Status,
};
pub use fault::{Fate, FaultOutcome, Faults, Request};
pub use index::{Subject, Tables};
pub use kv::{Kv, KvChange};
pub use model::{Applied, Cause, MAX_VALUE, Model, ModelStep};
pub use session::{Ending, Session, SessionChange, SessionRequest, Sessions};
pub use txn::{KvOp, Verb};

use rcfarm_api::ids::SessionId;
use rcfarm_store::time::{IdSource, monotonic};
use watchers::{Dismissal, Watchers};

/// Number of past writes that a stale read can go back.
const REMEMBERED: usize = 1_000;

/// The address that `status/leader` returns.
const LEADER: &str = "127.0.0.1:8300";

fn body_too_large(bytes: usize) -> String {
    format!("Request body({bytes} bytes) too large, max size: {MAX_VALUE} bytes")
}

/// Settings of an emulated Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The agent's node name.
    pub node: String,
    /// Operations per transaction: 64 before Consul 1.14, 128 since.
    pub max_ops: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { node: "embedded".to_owned(), max_ops: 64 }
    }
}

/// Callback for every write, right after it was applied. It may read the whole state. The model is locked meanwhile, so
/// it must not call [`Emulator`].
pub trait Observer: Send + 'static {
    /// Called after each write, with the state that it left.
    fn applied(&mut self, applied: &Applied, tables: &Tables);
}

impl<F: FnMut(&Applied, &Tables) + Send + 'static> Observer for F {
    fn applied(&mut self, applied: &Applied, tables: &Tables) {
        self(applied, tables);
    }
}

/// A client of one agent of an emulated Consul. Clones share the state.
#[derive(Clone)]
pub struct Emulator {
    shared: Arc<Shared>,
    node: Arc<str>,
    faults: Option<Arc<dyn Faults>>,
}

struct Shared {
    state: Mutex<State>,
    start: Instant,
    jitter: IdSource,
    rearm: Arc<Notify>,
}

struct State {
    model: Model,
    watchers: Watchers,
    observer: Option<Box<dyn Observer>>,
    /// The last writes to keys and sessions, newest last. `None` until a client has faults.
    remembered: Option<VecDeque<Applied>>,
    /// Until when the timekeeper sleeps. `None`: there is no timekeeper.
    timekeeper: Option<Duration>,
}

impl std::fmt::Debug for Emulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Emulator").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Default for Emulator {
    /// An emulator with default settings and random session ids.
    fn default() -> Self {
        Emulator::new(&Settings::default(), &IdSource::from_entropy())
    }
}

impl Emulator {
    /// An empty Consul. Session ids and jitter are drawn from forks of `ids`. Time is tokio's: pause its clock before
    /// this call, not after.
    pub fn new(settings: &Settings, ids: &IdSource) -> Self {
        let state = State {
            model: Model::new(&settings.node, settings.max_ops, ids.fork()),
            watchers: Watchers::default(),
            observer: None,
            remembered: None,
            timekeeper: None,
        };
        let shared = Shared {
            state: Mutex::new(state),
            start: monotonic(),
            jitter: ids.fork(),
            rearm: Arc::new(Notify::new()),
        };
        Emulator { shared: Arc::new(shared), node: settings.node.as_str().into(), faults: None }
    }

    /// A client of another node's agent. The node is added if it does not exist.
    pub fn at_node(&self, node: &str) -> Self {
        self.with(|state, now| {
            let step = state.model.add_agent(now, node);
            state.publish_step(step);
        });
        Emulator { node: node.into(), ..self.clone() }
    }

    /// A client with these faults. Other clients are not affected.
    pub fn with_faults(&self, faults: Arc<dyn Faults>) -> Self {
        self.with(|state, _| {
            state.remembered.get_or_insert_default();
        });
        Emulator { faults: Some(faults), ..self.clone() }
    }

    /// The node of this client's agent.
    pub fn node(&self) -> &str {
        &self.node
    }

    // ---- for tests and simulators -------------------------------------------------------------------

    /// Replaces the observer.
    pub fn observe(&self, observer: impl Observer) {
        self.with(|state, _| state.observer = Some(Box::new(observer)));
    }

    /// A copy of the whole state.
    pub fn snapshot(&self) -> Tables {
        self.with(|state, _| state.model.tables().clone())
    }

    /// Reads the whole state without a copy. The model is locked meanwhile.
    pub fn inspect<T>(&self, select: impl FnOnce(&Tables) -> T) -> T {
        self.with(|state, _| select(state.model.tables()))
    }

    /// Restores a state. Indexes of keys decrease, sessions exist again, and reads that are blocked now answer from the
    /// state before (`consul-semantics.md` §0 #12).
    pub fn restore(&self, snapshot: Tables) {
        self.with(|state, now| {
            let (before, applied) = state.model.restore(now, snapshot);
            state.watchers.dismiss_all(&Dismissal::Replaced(Arc::new(before)));
            if let Some(remembered) = &mut state.remembered {
                remembered.clear();
            }
            state.publish(applied);
        });
    }

    /// Ends a session, as an operator would.
    pub fn kill_session(&self, id: &SessionId) {
        self.with(|state, now| {
            let step = state.model.destroy_session(now, id);
            state.publish_step(step);
        });
    }

    /// Elects a new leader: every session expires twice its TTL from now, unless renewed.
    pub fn elect(&self) {
        self.with(|state, now| state.model.elect(now));
    }

    /// Makes every blocked read answer with the current state, as Consul sometimes does without cause.
    pub fn wake_all(&self) {
        self.with(|state, _| state.watchers.dismiss_all(&Dismissal::Spurious));
    }

    /// Number of blocked reads, by prefix.
    pub fn blocked_by_prefix(&self) -> BTreeMap<String, usize> {
        self.with(|state, _| state.watchers.by_prefix())
    }

    /// Number of blocked reads.
    pub fn blocked(&self) -> usize {
        self.with(|state, _| state.watchers.len())
    }

    /// Applies everything that is due by now, then calls `act` on the model.
    fn with<T>(&self, act: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        state.catch_up(now);
        let result = act(&mut state, now);
        let alone = self.rearm(&mut state);
        drop(state); // a task that is spawned while the runtime ends is dropped at once, and then locks it
        if alone {
            let keeper = Timekeeper(Arc::downgrade(&self.shared)); // outside a runtime: dropped, tried again
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(keep_time(keeper, self.shared.rearm.clone()));
            }
        }
        result
    }

    /// Tells the timekeeper when the next timer is due. `true`: there is none and one must be started. It is a task that
    /// ends when nothing is due.
    fn rearm(&self, state: &mut State) -> bool {
        let Some(next) = state.model.next_deadline() else { return false };
        let before = state.timekeeper;
        if before.is_some_and(|until| until <= next) {
            return false;
        }
        state.timekeeper = Some(next);
        self.shared.rearm.notify_one();
        before.is_none()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        monotonic() - self.start
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.rearm.notify_one();
    }
}

impl State {
    /// Applies everything that is due, one write after the other.
    fn catch_up(&mut self, now: Duration) {
        while let Some(applied) = self.model.expire_next(now) {
            self.publish(applied);
        }
    }

    fn publish_step<T>(&mut self, step: ModelStep<T>) -> T {
        if let Some(applied) = step.applied {
            self.publish(applied);
        }
        step.reply
    }

    fn publish(&mut self, applied: Applied) {
        if let Some(observer) = &mut self.observer {
            observer.applied(&applied, self.model.tables());
        }
        self.watchers.wake(&applied);
        if let Some(remembered) = &mut self.remembered
            && !(applied.changes.is_empty() && applied.sessions.is_empty())
        {
            remembered.push_back(applied);
            if remembered.len() > REMEMBERED {
                remembered.pop_front();
            }
        }
    }

    /// The state as it was this many writes ago. Of keys it has only those of the read's subject.
    fn past(&self, subject: &Subject, writes: usize) -> Tables {
        let now = self.model.tables();
        let (kv, prefix) = match subject {
            Subject::Key(prefix) | Subject::Prefix(prefix) => {
                (now.kv.part(prefix), prefix.as_str())
            }
            _ => (Kv::default(), ""),
        };
        let (sessions, catalog) = (now.sessions.clone(), now.catalog.clone());
        let mut tables = Tables { kv, sessions, catalog, index: now.index };
        for applied in self.remembered.iter().flatten().rev().take(writes) {
            tables.kv.unwind(applied.index, &applied.changes, prefix);
            for change in &applied.sessions {
                tables.sessions.unwind(applied.index, change);
            }
        }
        tables
    }
}

/// Marks the one task that waits for the next timer. Dropping it permits another, even after a panic.
struct Timekeeper(Weak<Shared>);

impl Drop for Timekeeper {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.lock().timekeeper = None;
        }
    }
}

async fn keep_time(mut keeper: Timekeeper, rearm: Arc<Notify>) {
    loop {
        let wake_at = {
            let Some(shared) = keeper.0.upgrade() else { return };
            let mut state = shared.lock();
            state.catch_up(shared.now());
            state.timekeeper = state.model.next_deadline();
            state.timekeeper.map(|next| shared.start + next)
        };
        let Some(wake_at) = wake_at else {
            keeper.0 = Weak::new(); // already returned above: another task may hold it
            return;
        };
        tokio::select! {
            biased;
            () = rearm.notified() => {}
            () = tokio::time::sleep_until(wake_at) => {}
        }
    }
}
