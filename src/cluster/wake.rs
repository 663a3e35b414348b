//! Wakes controllers of every kind when nodes change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ClusterView;
use crate::farm::subscriptions::Subscriber;
use rcfarm_store::time::monotonic;

/// Interval at which nodes are checked for becoming down, which no watch reports.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Wakes all records of a kind when nodes come, go, become down or change their labels, and when a cache of pods
/// becomes untrusted or trusted again.
pub fn on_node_changes(subscriber: &mut Subscriber<'_>, view: &Arc<ClusterView>) {
    subscriber.on(&view.nodes, |wake, old, new| {
        if old.value.labels != new.value.labels {
            wake.all();
        }
        wake.all_if_trust_changed(old, new);
    });
    subscriber.on(&view.records, |wake, old, new| {
        if old.value != new.value {
            wake.all();
        }
    });
    subscriber.on(&view.pods, |wake, old, new| wake.all_if_trust_changed(old, new));
    subscriber.on(&view.intents, |wake, old, new| wake.all_if_trust_changed(old, new));
    subscriber.on(&view.health, |wake, old, new| wake.all_if_trust_changed(old, new));
    let view = view.clone();
    subscriber.run(|wake, _| async move {
        let mut pending: Option<Instant> = None;
        loop {
            sleep(CHECK_EVERY).await;
            if pending.is_some_and(|at| at <= monotonic()) {
                wake.all();
            }
            pending = view.next_change();
        }
    });
}
