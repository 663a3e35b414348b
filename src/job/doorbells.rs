//! Doorbells of jobs: the node agent rings when a pod ends, and the job's few unfinished pods are read individually.
//! The caches alone would be late: they read less often under load.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::pod_status::{PodState, stands};
use rcfarm_api::Stored;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::{Index, Query, Reader, StoreError};

/// Limit of doorbells answered per second, for all jobs together. Larger jobs than [`MOST_READ`] wait for the caches.
const ANSWERED_PER_SECOND: u32 = 16;
/// Limit of pods of a job that are read individually.
pub const MOST_READ: usize = 8;

/// Doorbells that rang and were not answered, and the count of answers in the current second.
#[derive(Debug, Default)]
pub struct JobDoorbells {
    rung: BTreeSet<Namespaced>,
    since: Option<Instant>,
    answered: u32,
}

impl JobDoorbells {
    /// Records that a job's doorbell rang.
    pub fn ring(&mut self, job: Namespaced) {
        self.rung.insert(job);
    }

    /// Whether to read the job's `pods` unfinished pods now. Removes the doorbell.
    pub fn answer(&mut self, job: &Namespaced, pods: usize, now: Instant) -> bool {
        if !self.rung.remove(job) || !(1..=MOST_READ).contains(&pods) {
            return false;
        }
        if self.since.is_none_or(|since| now >= since + Duration::from_secs(1)) {
            (self.since, self.answered) = (Some(now), 0);
        }
        self.answered += 1;
        self.answered <= ANSWERED_PER_SECOND
    }
}

/// Status of one pod, read individually.
#[derive(Debug, Clone)]
pub struct FreshStatus {
    /// ModifyIndex of the status.
    pub index: Index,
    /// Hash of the manifest in `reality/`, read before the status.
    pub real: Option<u64>,
    /// State derived from the status.
    pub pod_state: PodState,
}

/// Reads `reality/` and `status/pods/` of each pod.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read(
    reader: &dyn Reader,
    places: Vec<PodRef>,
) -> Result<Vec<(PodRef, FreshStatus)>, StoreError> {
    let mut all = Vec::new();
    for place in places {
        // Reality first: a status read afterwards is of that attempt or of a later one.
        let real = reader.get(&key::reality(&place.node, &place.pod), Query::PLAIN).await?.value;
        let said = reader.get(&key::pod_status(&place.pod, &place.node), Query::PLAIN).await?.value;
        let Some(said) = said else { continue };
        let Ok(status) = PodStatus::decode(&said.value) else { continue };
        let real = real.map(|entry| content_hash(&entry.value));
        let (index, pod_state) = (said.modify_index, stands(&status));
        all.push((place, FreshStatus { index, real, pod_state }));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use rcfarm_store::time::monotonic;

    use super::*;

    #[test]
    fn bells_are_answered_once_and_not_too_many_in_a_second() {
        let job = |n: u32| -> Namespaced { format!("default/j{n}").parse().unwrap() };
        let (mut doorbells, now) = (JobDoorbells::default(), monotonic());
        doorbells.ring(job(0));
        assert!(doorbells.answer(&job(0), 1, now));
        assert!(!doorbells.answer(&job(0), 1, now), "it was answered");
        for pods in [0, MOST_READ + 1] {
            doorbells.ring(job(0));
            assert!(!doorbells.answer(&job(0), pods, now), "{pods} pods");
        }
        (0..100).for_each(|n| doorbells.ring(job(n)));
        let answered = (0..50).filter(|n| doorbells.answer(&job(*n), 1, now)).count();
        assert_eq!(answered, ANSWERED_PER_SECOND as usize - 1);
        let later = now + Duration::from_secs(1);
        let answered = (0..100).filter(|n| doorbells.answer(&job(*n), 1, later)).count();
        assert_eq!(answered, ANSWERED_PER_SECOND as usize);
    }
}
