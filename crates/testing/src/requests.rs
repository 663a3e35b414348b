//! Counts the requests that reach an emulator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcfarm_emulator::{Emulator, Fate, Faults, Request};

/// Counts requests by kind and prefix: `list intent/`, `keys labels/pod/`, `txn`, `other`.
#[derive(Debug, Default)]
pub struct RequestCounter(Mutex<BTreeMap<String, u64>>);

impl RequestCounter {
    /// A store on `emulator` whose requests are counted, and the counter.
    #[must_use]
    pub fn on(emulator: &Emulator) -> (Emulator, Arc<RequestCounter>) {
        let counter = Arc::new(RequestCounter::default());
        (emulator.with_faults(counter.clone()), counter)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to count from zero.
    pub fn reset(&self) {
        self.lock().clear();
    }

    /// All requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.lock().values().sum()
    }

    /// Requests of one kind.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.lock().get(what).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.count("txn")
    }

    /// Prefixes that were read.
    #[must_use]
    pub fn prefixes(&self) -> BTreeSet<String> {
        let prefix = |what: &String| what.split_once(' ').map(|(_, prefix)| prefix.to_owned());
        self.lock().keys().filter_map(prefix).collect()
    }
}

impl Faults for RequestCounter {
    fn fate(&self, request: &Request<'_>) -> Fate {
        let what = match request {
            Request::List(prefix) => format!("list {prefix}"),
            Request::Keys(prefix) => format!("keys {prefix}"),
            Request::Txn(_) => "txn".to_owned(),
            _ => "other".to_owned(),
        };
        *self.lock().entry(what).or_default() += 1;
        Fate::DELIVER
    }
}
