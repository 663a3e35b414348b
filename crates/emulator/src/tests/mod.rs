//! Rules of the model alone. The rules that it shares with Consul are in the contract suite of `tests/it`.

mod aliases;
mod blocking;
mod faults;
mod indexes;
mod properties;
mod serve;
mod sessions;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use rcfarm_store::{
    Behavior, Entry, Index, Key, NewSession, Op, Prefix, PutMode, Query, Reader, Store, StoreError,
    TtlService, TxnOutcome,
};

const SEC: Duration = Duration::from_secs(1);

fn consul() -> Emulator {
    Emulator::new(&Settings::default(), &IdSource::from_seed(1))
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn prefix(text: &str) -> Prefix {
    Prefix::parse(text).unwrap()
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn set(c: &Emulator, k: &str, v: &str) -> Entry {
    assert!(c.put(&key(k), value(v), 0, PutMode::Set).await.unwrap());
    get(c, k).await.unwrap()
}

async fn get(c: &Emulator, k: &str) -> Option<Entry> {
    c.get(&key(k), Query::PLAIN).await.unwrap().value
}

async fn acquire(c: &Emulator, k: &str, s: &SessionId) -> bool {
    c.put(&key(k), value("held"), 0, PutMode::Acquire(s.clone())).await.unwrap()
}

async fn release(c: &Emulator, k: &str, v: &str, s: &SessionId) -> bool {
    c.put(&key(k), value(v), 0, PutMode::Release(s.clone())).await.unwrap()
}

/// A session without TTL, lock-delay and checks, with behavior `release`.
fn plain() -> NewSession {
    NewSession { behavior: Behavior::Release, ..NewSession::default() }
}

async fn session(c: &Emulator, new: &NewSession) -> SessionId {
    c.create_session(new).await.unwrap()
}

fn raft_index(c: &Emulator) -> Index {
    c.inspect(|tables| tables.index)
}
