//! The users of a world, and how they write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::checker::Checker;
use crate::facts::SimActor;
use rcfarm_api::ids::SessionId;
use rcfarm_emulator::Emulator;
use rcfarm_store::time::IdSource;
use rcfarm_store::{DeleteMode, Entry, Key, PutMode, Query, Reader, Store};
use rcfarm_testing::clock::VirtualClock;

/// The users of a world. They write records, labels and pods directly, as the commands do.
pub struct Workload {
    pub(super) consul: Emulator,
    pub(super) checker: Arc<Checker>,
    pub(super) clock: Arc<VirtualClock>,
    pub(super) ids: IdSource,
    /// Mutation locks that users hold, by record.
    pub(super) locks: Mutex<BTreeMap<usize, SessionId>>,
}

impl Workload {
    /// Users with a clock of their own.
    #[must_use]
    pub fn new(
        consul: Emulator,
        checker: Arc<Checker>,
        clock: Arc<VirtualClock>,
        ids: IdSource,
    ) -> Workload {
        Workload { consul, checker, clock, ids, locks: Mutex::default() }
    }

    /// Sets the users' clock forward.
    pub fn set_forward(&self, seconds: i64) {
        self.clock.jump(seconds);
    }

    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        let got = self.checker.now(SimActor::User, self.consul.get(key, Query::PLAIN));
        got.ok().and_then(|answer| answer.value)
    }

    pub(super) fn put(&self, key: &Key, value: impl Into<Bytes>) {
        let put = self.consul.put(key, value.into(), 0, PutMode::Set);
        let _ = self.checker.now(SimActor::User, put);
    }

    pub(super) fn delete(&self, key: &Key) {
        let delete = self.consul.delete(key, DeleteMode::Always);
        let _ = self.checker.now(SimActor::User, delete);
    }
}
