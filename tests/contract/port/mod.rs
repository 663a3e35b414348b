//! Behaviour of every `Store`: the emulator, and the adapter on the emulator's server and on a real Consul.

mod entries;
mod locks;
mod services;
mod sessions;
mod transactions;
mod watches;
mod writers;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use rcfarm_api::ids::SessionId;
use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_emulator::Emulator;
use rcfarm_store::{
    Answer, Entry, Index, Key, NewSession, Op, Prefix, Prefixed, PutMode, Query, Store, StoreError,
    TtlService,
};
use tokio::task::JoinHandle;

use libtest_mimic::Trial;

use super::servers::{consul, emulator};
use super::{Case, trial};

const TABLES: &[&[Case<Port>]] = &[
    entries::CASES,
    locks::CASES,
    transactions::CASES,
    sessions::CASES,
    watches::CASES,
    services::CASES,
    writers::CASES,
];

/// Time for a watch to start, or for a wrong wake-up to arrive. A test never fails because it is too short.
const MOMENT: Duration = Duration::from_millis(100);

/// A store, and the key prefix of one case.
#[derive(Clone)]
pub struct Port {
    pub store: Arc<dyn Store>,
    own: String,
}

impl Port {
    pub fn new(store: Arc<dyn Store>, case: &str) -> Self {
        static CASES: AtomicU64 = AtomicU64::new(0);
        // Other processes may use the same server.
        let own =
            format!("{case}-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        let store = Prefixed::new(store, Prefix::parse(&own).unwrap());
        Port { store, own }
    }

    /// A service used only by this case.
    pub fn service(&self, ttl: Duration) -> TtlService {
        let name = self.own.to_lowercase();
        let deregister_after = Duration::from_secs(60);
        TtlService { id: format!("{name}-1"), name, meta: [].into(), ttl, deregister_after }
    }

    pub async fn put(&self, name: &str, text: &str, mode: PutMode) -> bool {
        let value = Bytes::copy_from_slice(text.as_bytes());
        self.store.put(&key(name), value, 0, mode).await.unwrap()
    }

    pub async fn set(&self, name: &str, text: &str) {
        assert!(self.put(name, text, PutMode::Set).await);
    }

    pub async fn read(&self, name: &str) -> Answer<Option<Entry>> {
        self.store.get(&key(name), Query::PLAIN).await.unwrap()
    }

    /// Entry of an existing key.
    pub async fn entry(&self, name: &str) -> Entry {
        self.read(name).await.value.unwrap_or_else(|| panic!("{name} is absent"))
    }

    pub async fn exists(&self, name: &str) -> bool {
        self.read(name).await.value.is_some()
    }

    pub async fn list(&self, below: &str) -> Answer<Vec<Entry>> {
        self.store.list(&prefix(below), Query::PLAIN).await.unwrap()
    }

    pub async fn keys(&self, below: &str, separator: Option<&str>) -> Vec<String> {
        self.store.keys(&prefix(below), separator, Query::PLAIN).await.unwrap().value
    }

    /// Session without TTL, lock-delay and checks that deletes its keys.
    pub async fn session(&self) -> SessionId {
        self.session_with(NewSession::default()).await
    }

    pub async fn session_with(&self, new: NewSession) -> SessionId {
        self.store.create_session(&new).await.unwrap()
    }

    pub async fn end(&self, session: &SessionId) {
        self.store.destroy_session(session).await.unwrap();
    }

    /// Starts a blocking read of a key; it is waiting when this returns.
    pub async fn watch(&self, name: &str, after: Index) -> JoinHandle<Answer<Option<Entry>>> {
        let (store, key) = (self.store.clone(), key(name));
        let read = async move { store.get(&key, wait(after)).await.unwrap() };
        let reading = tokio::spawn(read);
        tokio::time::sleep(MOMENT).await;
        reading
    }

    /// As [`Port::watch`], for a prefix.
    pub async fn watch_list(&self, below: &str, after: Index) -> JoinHandle<Answer<Vec<Entry>>> {
        let (store, prefix) = (self.store.clone(), prefix(below));
        let read = async move { store.list(&prefix, wait(after)).await.unwrap() };
        let reading = tokio::spawn(read);
        tokio::time::sleep(MOMENT).await;
        reading
    }
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn prefix(name: &str) -> Prefix {
    Prefix::parse(name).unwrap()
}

fn wait(after: Index) -> Query {
    Query::after(after, Duration::from_secs(60))
}

pub fn text(entry: &Entry) -> &str {
    std::str::from_utf8(&entry.value).unwrap()
}

fn set(name: &str, text: &str) -> Op {
    Op::Set { key: key(name), value: Bytes::copy_from_slice(text.as_bytes()), flags: 0 }
}

fn cas(name: &str, text: &str, index: Index) -> Op {
    Op::Cas { key: key(name), value: Bytes::copy_from_slice(text.as_bytes()), flags: 0, index }
}

/// Asserts a permanent error of a request that was not applied.
#[track_caller]
fn rejected<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, StoreError::Rejected { .. }), "{error:?}");
    assert!(!error.is_retryable() && !error.outcome_unknown());
}

pub fn adapter(at: SocketAddr) -> Arc<dyn Store> {
    // Shared by all cases.
    let max_requests = Some(100);
    let config =
        ConsulConfig { address: Some(at.to_string()), max_requests, ..ConsulConfig::default() };
    Arc::new(Consul::new(&config).unwrap())
}

/// Shared by the cases of this process.
static EMULATOR: LazyLock<Emulator> = LazyLock::new(Emulator::default);

/// All cases on all backends.
pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for case in TABLES.iter().copied().flatten() {
        trials.push(trial("port", "emulator", case, async |_, id| {
            Port::new(Arc::new(EMULATOR.clone()), id)
        }));
        trials.push(trial("port", "emulator_http", case, async |on, id| {
            Port::new(adapter(emulator(on).await), id)
        }));
        trials.push(trial("port", "consul", case, async |on, id| {
            Port::new(adapter(consul(on).await), id)
        }));
    }
    trials
}
