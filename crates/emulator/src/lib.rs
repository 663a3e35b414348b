//! A model of Consul in memory: the port's other adapter.
//!
//! It behaves as Consul 1.8 was measured to behave (`consul-semantics.md`): Raft indexes, the index of every
//! kind of read, locks and lock-delay, sessions that live twice their TTL, TTL checks, transactions, blocking
//! reads, limits. Tests, the simulator and `rcfarm dev` run on it, and [`serve`] puts Consul's HTTP API in front
//! of it for `curl`, the `consul` command, and our own HTTP adapter.
//!
//! **Nothing is durable.** The state is gone when the last handle is dropped. Do not keep anything in it that
//! matters.
//!
//! | part | is |
//! |---|---|
//! | [`Model`] | the state machine: no I/O, no clock, no chance but a seed |
//! | [`Embedded`] | a handle on a model: tokio's time, blocking reads, the port |
//! | [`Faults`], [`Observer`] | what a simulator needs: bad luck, and a look at every write |
//! | [`serve`] | Consul's HTTP API |
//!
//! Where it knowingly differs from Consul: a blocked read is never woken without cause; a dropped long poll
//! frees its connection at once; a service that stays critical is forgotten on time, not up to half a minute
//! late; every agent's node is healthy for ever; there are no ACLs, namespaces or other datacenters.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
mod tests;
mod timer;
mod txn;
mod watchers;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use catalog::{
    Catalog, CatalogCheck, CatalogNode, CheckRequest, Service, ServiceRequest, Status,
};
pub use fault::{Fate, FaultOutcome, Faults, Request};
pub use index::{Subject, Tables};
pub use kv::{Kv, KvChange};
pub use model::{Applied, Cause, MAX_VALUE, Model, ModelStep};
pub use session::{Ending, Session, SessionChange, SessionRequest, Sessions};
pub use txn::{KvOp, Verb};

use rcfarm_api::ids::SessionId;
use rcfarm_store::time::IdSource;
use watchers::{Dismissal, Watchers};

/// How many writes back a stale read can look.
const REMEMBERED: usize = 1_000;

/// The address that `status/leader` names.
const LEADER: &str = "127.0.0.1:8300";

fn body_too_large(bytes: usize) -> String {
    format!("Request body({bytes} bytes) too large, max size: {MAX_VALUE} bytes")
}

/// What can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The agent's node name.
    pub node: String,
    /// Operations per transaction: 64 before Consul 1.14, 128 after.
    pub max_ops: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { node: "embedded".to_owned(), max_ops: 64 }
    }
}

/// Sees every write right after it was applied, before anything else happens; may look at the whole state.
/// Called while the model is locked: it must not call [`Embedded`].
pub trait Observer: Send + 'static {
    /// One write.
    fn applied(&mut self, applied: &Applied, tables: &Tables);
}

impl<F: FnMut(&Applied, &Tables) + Send + 'static> Observer for F {
    fn applied(&mut self, applied: &Applied, tables: &Tables) {
        self(applied, tables);
    }
}

/// A handle on a Consul in memory, as one client of one agent sees it. Clones share the state.
#[derive(Clone)]
pub struct Embedded {
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
    /// The last writes to keys and sessions, newest last; kept once a client has faults.
    remembered: Option<VecDeque<Applied>>,
    /// Until when the timekeeper sleeps, while there is one.
    timekeeper: Option<Duration>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Default for Embedded {
    /// With default settings and random session ids.
    fn default() -> Self {
        Embedded::new(&Settings::default(), &IdSource::from_entropy())
    }
}

impl Embedded {
    /// An empty Consul. Session ids and jitter are drawn from forks of `ids`; time is tokio's, from now on, so
    /// where that clock is to be paused, make it after.
    #[must_use]
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
            start: Instant::now(),
            jitter: ids.fork(),
            rearm: Arc::new(Notify::new()),
        };
        Embedded { shared: Arc::new(shared), node: settings.node.as_str().into(), faults: None }
    }

    /// A handle at another node's agent, which becomes known if it is not.
    #[must_use]
    pub fn at_node(&self, node: &str) -> Self {
        self.with(|state, now| {
            let step = state.model.add_agent(now, node);
            state.publish_step(step);
        });
        Embedded { node: node.into(), ..self.clone() }
    }

    /// A handle of a client that suffers these faults. Other handles do not.
    #[must_use]
    pub fn with_faults(&self, faults: Arc<dyn Faults>) -> Self {
        self.with(|state, _| {
            state.remembered.get_or_insert_default();
        });
        Embedded { faults: Some(faults), ..self.clone() }
    }

    /// The node of this handle's agent.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    // ---- for tests and simulators -------------------------------------------------------------------

    /// Calls `observer` after every applied write from now on, instead of the one before.
    pub fn observe(&self, observer: impl Observer) {
        self.with(|state, _| state.observer = Some(Box::new(observer)));
    }

    /// A copy of the whole state.
    #[must_use]
    pub fn snapshot(&self) -> Tables {
        self.with(|state, _| state.model.tables().clone())
    }

    /// A look at the whole state, without a copy.
    pub fn inspect<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        self.with(|state, _| look(state.model.tables()))
    }

    /// Restores a state: indexes of keys go back, sessions come back alive, and reads that are blocked now answer
    /// from the state before (`consul-semantics.md` §0 #12).
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

    /// A new leader is elected: the time of every session begins anew at twice its TTL.
    pub fn elect(&self) {
        self.with(|state, now| state.model.elect(now));
    }

    /// Makes every blocked read answer with what is there now, as Consul does now and then.
    pub fn wake_all(&self) {
        self.with(|state, _| state.watchers.dismiss_all(&Dismissal::Spurious));
    }

    /// How many reads are blocked now.
    #[must_use]
    pub fn blocked(&self) -> usize {
        self.with(|state, _| state.watchers.len())
    }

    /// The model, brought up to now, with whatever it does by itself published.
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

    /// Sees to it that what is due next happens on time although nobody asks. `true`: a timekeeper is needed, a
    /// task that lives as long as something is due.
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
        self.start.elapsed()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.rearm.notify_one();
    }
}

impl State {
    /// Lets everything happen that is due, one write after the other.
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

    /// What a read looks at as it was this many writes ago; of keys only those that it is about.
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

/// The right to be the one task that waits for what is due; given back when the task ends, however it ends.
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
            keeper.0 = Weak::new(); // given back above already: another may have taken it
            return;
        };
        tokio::select! {
            biased;
            () = rearm.notified() => {}
            () = tokio::time::sleep_until(wake_at) => {}
        }
    }
}
