//! Events that wake the farm loop.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rcfarm_api::ids::RecordId;
use tokio::sync::Notify;

/// Events that wake the farm loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FarmEvent {
    /// Records, their labels or their locks changed: claims are planned again.
    Claims,
    /// Something changed that these records depend on.
    Changed {
        /// Name of their kind.
        kind: &'static str,
        ids: BTreeSet<RecordId>,
    },
    /// Something changed that every record of a kind depends on.
    AllChanged {
        /// Name of the kind.
        kind: &'static str,
    },
    /// A doorbell rang.
    Doorbells,
    /// The wall clock was set, so records sleep until the wrong moment.
    ClockSet,
}

/// Queue of events that wake the farm loop. Equal events are merged.
#[derive(Default)]
pub struct WakeQueue {
    events: Mutex<Vec<FarmEvent>>,
    arrived: Notify,
}

impl WakeQueue {
    /// Adds an event.
    pub fn push(&self, event: FarmEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if !events.contains(&event) {
            events.push(event);
        }
        drop(events);
        self.arrived.notify_one();
    }

    /// Waits until there is an event, and takes all there are.
    pub async fn take(&self) -> Vec<FarmEvent> {
        loop {
            let events =
                std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
            if !events.is_empty() {
                return events;
            }
            self.arrived.notified().await;
        }
    }
}
