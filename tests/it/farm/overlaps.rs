//! Overlapping reads of one prefix, and doubts that another read has raised.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Request, Settings};
use rcfarm_store::cache::{Cache, CacheIndex, Snapshot};
use rcfarm_store::time::IdSource;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Entry, Key, Prefix, PutMode, Store as _, StoreError};
use tokio::time::sleep;

use crate::harness::SECOND;

const TREE: &str = "some/";

/// Names of the keys.
#[derive(Debug, Default)]
struct Names(BTreeSet<String>);

impl CacheIndex for Names {
    fn build(_: &Self, _: &Prefix, entries: Vec<Entry>) -> Self {
        Names(entries.into_iter().map(|entry| entry.key).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A cache with lists that the test delays or hides; and its events: number of names, and whether all were trusted.
struct Watched {
    consul: Emulator,
    tree: Arc<Cache<Names>>,
    slow: Arc<AtomicBool>,
    hidden: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<(usize, bool)>>>,
}

impl Watched {
    async fn with(names: &[&str]) -> Watched {
        let ids = IdSource::from_seed(1);
        let consul = Emulator::new(&Settings::default(), &ids);
        let (slow, hidden) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (slow_, hidden_) = (slow.clone(), hidden.clone());
        let faulty = consul.with_faults(Arc::new(move |request: &Request<'_>| {
            let after = Duration::from_secs(if slow_.load(Ordering::SeqCst) { 2 } else { 0 });
            let outcome = match (hidden_.load(Ordering::SeqCst), request) {
                (true, Request::List(_)) => FaultOutcome::Short(0),
                (true, _) => FaultOutcome::Fail(StoreError::Forbidden { what: TREE.to_owned() }),
                (false, _) => FaultOutcome::Deliver,
            };
            Fate { after, ..Fate::of(outcome) }
        }));
        let tree = Cache::new(Arc::new(faulty), Prefix::parse(TREE).unwrap(), PollPolicy::PROMPT);
        let watched = Watched { consul, tree, slow, hidden, told: Arc::default() };
        for name in names {
            watched.put(name).await;
        }
        let told = watched.told.clone();
        let tell = move |old: &Snapshot<Names>, new: &Snapshot<Names>| {
            told.lock().unwrap().push((new.value.0.len(), new.is_trusted_as(old)));
        };
        tokio::spawn(watched.tree.clone().watch(ids, tell));
        watched.tree.first_read().await;
        watched
    }

    async fn put(&self, name: &str) {
        let key = Key::parse(&format!("{TREE}{name}")).unwrap();
        self.consul.put(&key, "".into(), 0, PutMode::Set).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stale_read_in_flight_does_not_overwrite_newer_state() {
    let world = Watched::with(&["a"]).await;
    world.slow.store(true, Ordering::SeqCst);
    let tree = world.tree.clone();
    let late = tokio::spawn(async move { tree.read_now().await.unwrap() });
    sleep(SECOND).await;
    world.slow.store(false, Ordering::SeqCst);
    world.put("b").await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.tree.snapshot().value.0.len(), 2, "the watch has seen it");
    assert_eq!(late.await.unwrap().value.0.len(), 2, "it is read once more");
    assert_eq!(*world.told.lock().unwrap(), [(1, true), (2, true)]);
}

#[tokio::test(start_paused = true)]
async fn what_was_read_after_a_snapshot_was_restored_is_trusted() {
    let world = Watched::with(&["a"]).await;
    let snapshot = world.consul.snapshot();
    world.put("b").await;
    sleep(Duration::from_millis(100)).await;
    world.consul.restore(snapshot);
    assert_eq!(world.tree.read_now().await.unwrap().value.0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn short_mass_deletion_between_two_reads_is_reported() {
    let world = Watched::with(&["a", "b"]).await;
    world.hidden.store(true, Ordering::SeqCst);
    assert!(world.tree.read_now().await.unwrap().untrusted.is_some());
    world.hidden.store(false, Ordering::SeqCst);
    assert!(world.tree.read_now().await.unwrap().untrusted.is_none());
    sleep(5 * SECOND).await;
    let told = world.told.lock().unwrap().clone();
    assert_eq!(told.last(), Some(&(2, false)), "somebody may have paused meanwhile: {told:?}");
}
