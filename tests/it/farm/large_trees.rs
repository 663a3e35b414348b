//! Trees that are too large for one answer: parts after a time-out, and pauses by the cost of what failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Cluster, SECOND};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::cache::{Cache, CacheIndex};
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Entry, Prefix, StoreError};

/// Time-out of the client.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The keys of a tree.
#[derive(Default)]
struct Keys(Vec<String>);

impl CacheIndex for Keys {
    fn build(_: &Self, _: &Prefix, entries: Vec<Entry>) -> Self {
        Keys(entries.into_iter().map(|entry| entry.key).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

fn no_answer() -> Fate {
    let error = StoreError::Timeout { after: ANSWER_WITHIN };
    Fate { before: ANSWER_WITHIN, ..Fate::of(FaultOutcome::Fail(error)) }
}

fn cache(
    cluster: &Cluster,
    faults: impl Fn(&Request<'_>) -> Fate + Send + Sync + 'static,
) -> Arc<Cache<Keys>> {
    let store = Arc::new(cluster.store.with_faults(Arc::new(faults)));
    Cache::new(store, key::labels(LabelKind::Pod), PollPolicy::PROMPT)
}

/// Writes `count` pod labels of `bytes` each.
async fn write(cluster: &Cluster, count: usize, bytes: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|n| format!("labels/pod/n{n:04}/web")).collect();
    let value = "x".repeat(bytes);
    for key in &keys {
        cluster.put(key, &value).await;
    }
    keys
}

/// Counts lists of the whole tree, which have no answer, as lists of its parts named `slow` have none.
fn whole_lists(slow: &'static str) -> (Arc<AtomicUsize>, impl Fn(&Request<'_>) -> Fate) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let faults = move |request: &Request<'_>| match request {
        Request::List("labels/pod/") => {
            counted.fetch_add(1, Ordering::SeqCst);
            no_answer()
        }
        Request::List(part) if *part == slow => no_answer(),
        _ => Fate::DELIVER,
    };
    (count, faults)
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_answer_is_repeated_in_parts() {
    let cluster = Cluster::new(0).await;
    let keys = write(&cluster, 200, 1).await;
    // A part that is still too large is divided again.
    let (lists, faults) = whole_lists("labels/pod/n001");
    let tree = cache(&cluster, faults);
    assert_eq!(tree.read_now().await.unwrap().value.0, keys);
    assert_eq!(lists.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_large_tree_is_listed_in_parts_from_then_on() {
    let cluster = Cluster::new(0).await;
    let mut keys = write(&cluster, 100, 400_000).await;
    let (lists, faults) = whole_lists("");
    let tree = cache(&cluster, faults);
    let watch = tokio::spawn(tree.clone().watch(cluster.ids.fork(), |_, _| {}));
    tree.first_read().await;
    assert_eq!(tree.snapshot().value.0, keys);
    cluster.put("labels/pod/n0017/db", "{}").await;
    keys.push("labels/pod/n0017/db".to_owned());
    keys.sort();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(tree.snapshot().value.0, keys, "the watch goes on");
    tree.read_now().await.unwrap();
    assert_eq!(lists.load(Ordering::SeqCst), 1);
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_pause_for_as_long_as_they_took() {
    let cluster = Cluster::new(0).await;
    let keys = write(&cluster, 3, 1).await;
    let (sent, is_down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (counted, down) = (sent.clone(), is_down.clone());
    let tree = cache(&cluster, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        if down.load(Ordering::SeqCst) { no_answer() } else { Fate::DELIVER }
    });
    assert!(tree.read_now().await.is_err());
    let after_first = sent.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert!(tree.read_now().await.is_err());
    }
    assert_eq!(
        sent.load(Ordering::SeqCst),
        after_first,
        "each task repeats what costs the whole tree"
    );
    is_down.store(false, Ordering::SeqCst);
    tokio::time::sleep(PollPolicy::PROMPT.max_pause).await;
    assert_eq!(tree.read_now().await.unwrap().value.0, keys);
}
