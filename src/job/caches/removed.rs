//! Pods that the owner removed, until their nodes have ended them.

use std::time::Duration;

use tokio::time::Instant;

use rcfarm_api::Stored;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Entry, Versioned};

/// A pod removed before its node reported it may still be starting there. It counts as leaving for this long, and then
/// until a read of its `status/pods/` and `reality/` shows that its node does not have it: the caches may lag. An agent
/// writes the first before it starts a process, and the second once that runs.
const UNSEEN: Duration = Duration::from_secs(2);

/// A pod that the owner removed.
#[derive(Debug, Clone)]
pub struct RemovedPod {
    /// Member of the job.
    pub slot: Slot,
    /// Time of the removal.
    at: Instant,
    /// Hash of its manifest, and ModifyIndex of its intent.
    intent: Option<Versioned<u64>>,
    /// Whether its node had it: it is gone as soon as `reality/` no longer shows it.
    was_real: bool,
}

impl RemovedPod {
    /// A pod that is removed now.
    #[must_use]
    pub fn new(slot: Slot, intent: Option<Versioned<u64>>) -> RemovedPod {
        RemovedPod { slot, at: monotonic(), intent, was_real: false }
    }

    /// Notes whether its node has it. `real`: hash of the manifest that the node reports.
    pub fn note_real(&mut self, real: Option<u64>) {
        self.was_real |= self.is_real(real);
    }

    /// Whether this is its manifest.
    #[must_use]
    pub fn is_real(&self, real: Option<u64>) -> bool {
        real.is_some() && real == self.intent.map(|intent| intent.value)
    }

    /// Whether this entry of `status/pods/` is about it, or may be.
    #[must_use]
    pub fn is_reported(&self, status: &Entry) -> bool {
        let index = self.intent.map(|intent| intent.index);
        PodStatus::decode(&status.value).map_or(true, |status| status.is_of(index))
    }

    /// Its node may be starting it: it is looked at again.
    pub fn may_start(&mut self) {
        self.at = monotonic();
    }

    /// How long it may still be starting on a node that has not reported it. `None`: no longer.
    #[must_use]
    pub fn unseen(&self, now: Instant) -> Option<Duration> {
        let left = (self.at + UNSEEN).saturating_duration_since(now);
        (!self.was_real && !left.is_zero()).then_some(left)
    }

    /// Whether its keys have to be read: its node had the time to report it, and the cache has not shown it.
    #[must_use]
    pub fn is_unconfirmed(&self, now: Instant) -> bool {
        !self.was_real && self.unseen(now).is_none()
    }

    /// Whether its node has it, or may have it. `real`: as for [`RemovedPod::note_real`].
    #[must_use]
    pub fn is_leaving(&self, real: Option<u64>) -> bool {
        !self.was_real || self.is_real(real)
    }
}
