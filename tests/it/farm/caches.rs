//! Shared caches with concurrent reads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Cluster, SECOND, node};
use rcfarm::cluster::ClusterView;
use rcfarm::cluster::nodes::NodeIndex;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::cache::{Cache, CacheIndex};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Entry, Prefix, StoreError};
use serde_json::json;

fn names(tree: &Cache<NodeIndex>) -> BTreeSet<String> {
    tree.snapshot().value.labels.nodes.keys().map(ToString::to_string).collect()
}

/// A read that was sent earlier may reach Consul later and return newer data.
#[tokio::test(start_paused = true)]
async fn a_read_between_does_not_hide_what_a_slower_watch_brings() {
    let cluster = Cluster::new(1).await;
    // The watch's second request takes two seconds.
    let asked = AtomicU64::new(0);
    let slow = move |_: &Request<'_>| match asked.fetch_add(1, Ordering::SeqCst) {
        1 => Fate { before: 2 * SECOND, ..Fate::DELIVER },
        _ => Fate::DELIVER,
    };
    let store = Arc::new(cluster.store.with_faults(Arc::new(slow)));
    let tree = Cache::<NodeIndex>::new(store, key::labels(LabelKind::Node), PollPolicy::PROMPT);
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), |_, _| {}));
    tree.first_read().await;
    tokio::time::sleep(SECOND / 2).await;
    cluster.label_node(&node(1), json!({"pool": "web"})).await;
    tree.read_now().await.unwrap();
    assert_eq!(names(&tree).len(), 2);
    cluster.label_node(&node(2), json!({"pool": "web"})).await;
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(names(&tree).len(), 3);
    watch.abort();
}

/// A task that waits for another's read is served only by a read that began later and succeeded.
#[tokio::test(start_paused = true)]
async fn a_reading_that_failed_serves_nobody() {
    let cluster = Cluster::new(0).await;
    let asked = AtomicU64::new(0);
    let faults = move |request: &Request<'_>| match request {
        Request::List("labels/pod/") => match asked.fetch_add(1, Ordering::SeqCst) {
            0 => Fate { after: SECOND, ..Fate::DELIVER },
            1 => Fate::of(FaultOutcome::Lose),
            _ => Fate::DELIVER,
        },
        _ => Fate::DELIVER,
    };
    cluster.put("labels/pod/n0001/web", "{}").await;
    let world = ClusterView::new(Arc::new(cluster.store.with_faults(Arc::new(faults))), SECOND);
    let first = tokio::spawn({
        let world = world.clone();
        async move { world.catch_up().await }
    });
    tokio::time::sleep(SECOND / 2).await;
    cluster.put("labels/pod/n0000/web", "{}").await;
    let (second, third) = tokio::join!(world.catch_up(), world.catch_up());
    assert!(first.await.unwrap().is_ok() && second.is_err() && third.is_ok());
    assert_eq!(world.pods.snapshot().value.len(), 2, "the third was told that it sees everything");
}

/// While `hidden`, lists are empty and reads are refused.
fn without_rights(hidden: Arc<AtomicBool>) -> impl Fn(&Request<'_>) -> Fate {
    move |request| match (hidden.load(Ordering::SeqCst), request) {
        (true, Request::List(_)) => Fate::of(FaultOutcome::Short(0)),
        (true, Request::Get(_)) => {
            Fate::of(FaultOutcome::Fail(StoreError::Forbidden { what: "simulated".to_owned() }))
        }
        _ => Fate::DELIVER,
    }
}

/// ACLs may be revoked after the farm's check and before its first read.
#[tokio::test(start_paused = true)]
async fn a_tree_that_may_not_be_read_is_never_taken_for_an_empty_one() {
    let cluster = Cluster::new(2).await;
    let hidden = Arc::new(AtomicBool::new(true));
    let store = Arc::new(cluster.store.with_faults(Arc::new(without_rights(hidden.clone()))));
    let tree = Cache::<NodeIndex>::guarded(store, key::labels(LabelKind::Node), PollPolicy::PROMPT);
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), |_, _| {}));
    tree.first_read().await;
    for _ in 0..20 {
        assert!(tree.snapshot().untrusted.is_some(), "and not when it is read again, either");
        tokio::time::sleep(SECOND / 2).await;
    }
    hidden.store(false, Ordering::SeqCst);
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!((names(&tree).len(), tree.snapshot().untrusted), (2, None));
    watch.abort();
}

/// Only a second read shows that the single entry still exists.
#[tokio::test(start_paused = true)]
async fn a_single_entry_that_is_hidden_is_not_taken_for_gone() {
    let cluster = Cluster::new(1).await;
    let hidden = Arc::new(AtomicBool::new(false));
    let store = Arc::new(cluster.store.with_faults(Arc::new(without_rights(hidden.clone()))));
    let tree = Cache::<NodeIndex>::new(store, key::labels(LabelKind::Node), PollPolicy::PROMPT);
    tree.read_now().await.unwrap();
    hidden.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert!(tree.read_now().await.unwrap().untrusted.is_some(), "however often it is read");
    }
    hidden.store(false, Ordering::SeqCst);
    cluster.delete("labels/node/n0000").await;
    assert_eq!(tree.read_now().await.unwrap().untrusted, None, "now it is gone");
}

/// Reads at most every five seconds.
const SLOW: PollPolicy = PollPolicy { min_pause: Duration::from_secs(5), ..PollPolicy::RESYNC };

/// A deposed leader answers stale reads with old data (`consul-semantics.md` §0 #3).
#[tokio::test(start_paused = true)]
async fn the_past_is_not_taken_for_news() {
    let cluster = Cluster::new(1).await;
    let deposed = Arc::new(AtomicBool::new(false));
    let now = deposed.clone();
    let faults = move |_: &Request<'_>| match now.load(Ordering::SeqCst) {
        true => Fate::of(FaultOutcome::Stale(1)),
        false => Fate::DELIVER,
    };
    let store = Arc::new(cluster.store.with_faults(Arc::new(faults)));
    let tree = Cache::<NodeIndex>::new(store, key::labels(LabelKind::Node), SLOW);
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), |_, _| {}));
    tree.first_read().await;
    for n in 1..3 {
        cluster.label_node(&node(n), json!({"pool": "web"})).await;
    }
    tree.read_now().await.unwrap();
    deposed.store(true, Ordering::SeqCst);
    for _ in 0..100 {
        tokio::time::sleep(SECOND / 5).await;
        assert_eq!(names(&tree).len(), 3, "what the watch was told");
    }
    assert!(tree.read_now().await.is_err());
    assert_eq!(names(&tree).len(), 3, "what a read was told");
    deposed.store(false, Ordering::SeqCst);
    cluster.label_node(&node(3), json!({"pool": "web"})).await;
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(names(&tree).len(), 4);
    watch.abort();
}

/// A read by one task must still wake other tasks.
#[tokio::test(start_paused = true)]
async fn what_a_read_between_has_shown_is_still_told() {
    let cluster = Cluster::new(1).await;
    let store = Arc::new(cluster.store.clone());
    let tree = Cache::<NodeIndex>::new(store, key::labels(LabelKind::Node), SLOW);
    let told = Arc::new(AtomicU64::new(0));
    let tell = told.clone();
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), move |old, new| {
        assert!(old.value.len() < new.value.len());
        tell.store(new.value.len() as u64, Ordering::SeqCst);
    }));
    tree.first_read().await;
    tokio::time::sleep(SECOND).await;
    cluster.label_node(&node(1), json!({"pool": "web"})).await;
    tree.read_now().await.unwrap();
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(told.load(Ordering::SeqCst), 2);
    watch.abort();
}

static DIGESTING: AtomicBool = AtomicBool::new(false);
static LATER_IS_IN: AtomicBool = AtomicBool::new(false);

/// Blocks on a single entry until the later answer has arrived or waits.
#[derive(Default)]
struct Slow(usize);

impl CacheIndex for Slow {
    fn build(_: &Self, _: &Prefix, entries: Vec<Entry>) -> Self {
        DIGESTING.store(entries.len() == 1, Ordering::SeqCst);
        for _ in 0..100 {
            if entries.len() != 1 || LATER_IS_IN.load(Ordering::SeqCst) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Slow(entries.len())
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Several tasks read one prefix on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_digestion_does_not_overwrite_a_later_answer() {
    let cluster = Cluster::new(1).await;
    let store = Arc::new(cluster.store.clone());
    let tree = Cache::<Slow>::new(store, key::labels(LabelKind::Node), PollPolicy::PROMPT);
    let read = |tree: Arc<Cache<Slow>>| async move { tree.read_now().await.map(drop).unwrap() };
    let earlier = tokio::spawn(read(tree.clone()));
    while !DIGESTING.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.label_node(&node(1), json!({"pool": "web"})).await;
    tokio::spawn(read(tree.clone())).await.unwrap();
    LATER_IS_IN.store(true, Ordering::SeqCst);
    earlier.await.unwrap();
    assert_eq!(tree.snapshot().value.0, 2);
}
