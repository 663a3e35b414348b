//! Shared trees: what overtakes what.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SECOND;
use super::cluster::{Cluster, node};
use rcfarm::embedded::{Fate, Request};
use rcfarm::farm::tree::Tree;
use rcfarm::rc::world::NodeTree;
use rcfarm::store::key::{self, LabelKind};
use rcfarm::store::watch::Pace;
use serde_json::json;

fn names(tree: &Tree<NodeTree>) -> BTreeSet<String> {
    tree.seen().value.labels.nodes.keys().map(ToString::to_string).collect()
}

/// A read that was asked earlier may still be the one that shows more: it reached Consul later.
#[tokio::test(start_paused = true)]
async fn a_read_between_does_not_hide_what_a_slower_watch_brings() {
    let cluster = Cluster::new(1).await;
    // The watch's second request travels for two seconds.
    let asked = AtomicU64::new(0);
    let slow = move |_: &Request<'_>| match asked.fetch_add(1, Ordering::SeqCst) {
        1 => Fate { before: 2 * SECOND, ..Fate::DELIVER },
        _ => Fate::DELIVER,
    };
    let store = Arc::new(cluster.store.with_faults(Arc::new(slow)));
    let tree = Tree::<NodeTree>::new(store, key::labels(LabelKind::Node), Pace::PROMPT);
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
