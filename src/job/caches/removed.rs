//! Pods that the owner removed, until their nodes have ended them.

use std::time::Duration;

use tokio::time::Instant;

use super::Realities;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::spec::Slot;
use rcfarm_store::time::monotonic;

/// A pod removed before its node reported it may still be starting there. It counts as leaving for this long.
const UNSEEN: Duration = Duration::from_secs(2);

/// A pod that the owner removed.
#[derive(Debug, Clone)]
pub struct RemovedPod {
    /// Member of the job.
    pub slot: Slot,
    /// Time of the removal.
    at: Instant,
    /// Hash of its manifest.
    intent: Option<u64>,
    /// Whether its node had it: it is gone as soon as `reality/` no longer shows it.
    was_real: bool,
}

impl RemovedPod {
    /// A pod that is removed now. `intent`: hash of its manifest.
    #[must_use]
    pub fn new(slot: Slot, intent: Option<u64>) -> RemovedPod {
        RemovedPod { slot, at: monotonic(), intent, was_real: false }
    }

    /// Notes whether its node has it.
    pub fn note_real(&mut self, place: &PodRef, realities: &Realities) {
        self.was_real |= self.is_real(place, realities);
    }

    fn is_real(&self, place: &PodRef, realities: &Realities) -> bool {
        let real = realities.places.value(place);
        real.is_some_and(|real| Some(real.hash) == self.intent)
    }

    /// How long it may still be starting on a node that has not reported it. `None`: no longer.
    #[must_use]
    pub fn unseen(&self, now: Instant) -> Option<Duration> {
        let left = (self.at + UNSEEN).saturating_duration_since(now);
        (!self.was_real && !left.is_zero()).then_some(left)
    }

    /// Whether its node has it, or may have it.
    #[must_use]
    pub fn is_leaving(&self, place: &PodRef, realities: &Realities, now: Instant) -> bool {
        self.is_real(place, realities) || self.unseen(now).is_some()
    }
}
