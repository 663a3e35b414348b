//! Tells controllers of every kind which nodes changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::ClusterView;
use super::nodes::{NodeRecords, differing};
use crate::farm::subscriptions::{Subscriber, Waker};
use crate::placement::NodeLabels;
use rcfarm_api::ids::NodeName;

/// Interval at which nodes are checked for becoming down, which no watch reports.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A change of some nodes.
pub struct NodeChanges<'a> {
    /// Nodes that came or went, or whose labels, record or readiness changed.
    pub nodes: BTreeSet<NodeName>,
    /// Labels of all nodes before the change and after it.
    pub labels: (&'a NodeLabels, &'a NodeLabels),
}

/// Calls `changed` when nodes come, go, become down, or change their labels or records. Wakes all records of the kind when
/// a cache of nodes or pods becomes untrusted or trusted again.
pub fn on_node_changes(
    subscriber: &mut Subscriber<'_>,
    view: &Arc<ClusterView>,
    changed: impl Fn(&Waker, &NodeChanges<'_>) + Send + Sync + 'static,
) {
    let changed = Arc::new(changed);
    let relabelled = changed.clone();
    subscriber.on(&view.nodes, move |wake, old, new| {
        let labels = (&*old.value.labels, &*new.value.labels);
        let nodes = differing(&labels.0.nodes, &labels.1.nodes);
        if !nodes.is_empty() {
            relabelled(wake, &NodeChanges { nodes, labels });
        }
        wake.all_if_trust_changed(old, new);
    });
    let tell = {
        let view = view.clone();
        move |wake: &Waker, nodes: BTreeSet<NodeName>| {
            let labels = view.node_labels();
            if !nodes.is_empty() {
                changed(wake, &NodeChanges { nodes, labels: (&labels, &labels) });
            }
        }
    };
    let tell_record = tell.clone();
    subscriber.on(&view.records, move |wake, old, new| {
        tell_record(wake, NodeRecords::touched(&old.value, &new.value));
    });
    subscriber.on(&view.pods, |wake, old, new| wake.all_if_trust_changed(old, new));
    subscriber.on(&view.intents, |wake, old, new| wake.all_if_trust_changed(old, new));
    subscriber.on(&view.health, |wake, old, new| wake.all_if_trust_changed(old, new));
    let view = view.clone();
    subscriber.run(|wake, _| async move {
        let mut before = view.not_ready();
        loop {
            sleep(CHECK_EVERY).await;
            let now = view.not_ready();
            tell(&wake, differing(&before, &now));
            before = now;
        }
    });
}
