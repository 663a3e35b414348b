//! Reads of pods that the caches may not show yet: after a doorbell, and before pods are stopped.

use std::sync::PoisonError;

use super::JobCaches;
use crate::job::doorbells::{self, FreshStatus, JobDoorbells, MOST_READ};
use rcfarm_api::ids::{Namespaced, PodRef, RecordId};
use rcfarm_store::StoreError;
use rcfarm_store::time::monotonic;

/// What was read of pods that are about to be stopped.
pub enum StoppedPods {
    /// Few pods, each read individually.
    Each(Vec<(PodRef, FreshStatus)>),
    /// The caches were read again.
    Caches,
}

impl JobCaches {
    /// Records that a job's doorbell rang.
    pub fn note_rung(&self, id: &RecordId) {
        if let Ok(id) = id.as_str().parse() {
            self.doorbells().ring(id);
        }
    }

    /// Reads the job's pods that have not ended in the caches, if its doorbell rang. None if it did not ring, or a limit
    /// of [`JobDoorbells`] applies.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn answer_bell(
        &self,
        id: &Namespaced,
    ) -> Result<Vec<(PodRef, FreshStatus)>, StoreError> {
        let (pod_states, intents) = (self.pod_states.snapshot(), self.nodes.intents.snapshot());
        let realities = self.realities.snapshot();
        // An end counts only with the intended manifest in `reality/`, which may be shown later.
        let has_ended = |place: &PodRef| {
            let intent = intents.value.0.get(place).map(|intent| intent.value);
            let real = realities.value.places.value(place).map(|real| real.hash);
            intent.is_some()
                && intent == real
                && pod_states.value.value(place).is_some_and(|reported| reported.phase.has_ended())
        };
        let pods = self.nodes.pods.snapshot();
        let alive =
            pods.value.jobs().of(id).map(|(place, _)| place).filter(|place| !has_ended(place));
        let alive: Vec<PodRef> = alive.cloned().collect();
        if !self.doorbells().answer(id, alive.len(), monotonic()) {
            return Ok(Vec::new());
        }
        doorbells::read(self.reader.as_ref(), alive).await
    }

    /// Reads pods that a job is about to stop: individually, or all pods' states if they are many.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read_stopped(&self, places: Vec<PodRef>) -> Result<StoppedPods, StoreError> {
        if places.len() <= MOST_READ {
            return doorbells::read(self.reader.as_ref(), places).await.map(StoppedPods::Each);
        }
        let read = async {
            // A status counts only with its reality: whatever status is read, its reality is read, too.
            self.pod_states.read_now().await?;
            self.realities.read_now().await.map(drop)
        };
        self.state_reads.run(read).await?;
        Ok(StoppedPods::Caches)
    }

    fn doorbells(&self) -> std::sync::MutexGuard<'_, JobDoorbells> {
        self.doorbells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
