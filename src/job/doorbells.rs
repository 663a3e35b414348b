//! Jobs' doorbells: at a pod's end its node rings, and the few pods of that job that have yet to end are read one by one,
//! because the trees that show them are read the less often the more is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::pod_status::{PodState, stands};
use rcfarm_api::Stored;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::status::PodStatus;
use rcfarm_store::cache::Snapshot;
use rcfarm_store::{Index, Query, Reader, StoreError};

/// Pods are read so often in a second, and of jobs of which so few have yet to end; for the rest the trees do.
const ANSWERED_PER_SECOND: u32 = 16;
const PODS: usize = 8;

/// Jobs whose doorbells were rung and not answered, and how many were in this second.
#[derive(Debug, Default)]
pub struct JobDoorbells {
    rung: BTreeSet<Namespaced>,
    since: Option<Instant>,
    answered: u32,
}

impl JobDoorbells {
    /// A job's doorbell was rung.
    pub fn ring(&mut self, job: Namespaced) {
        self.rung.insert(job);
    }

    /// Whether a job's doorbell is to be answered by reading its pods, of which so many have yet to end.
    pub fn answer(&mut self, job: &Namespaced, pods: usize, now: Instant) -> bool {
        if !self.rung.remove(job) || !(1..=PODS).contains(&pods) {
            return false;
        }
        if self.since.is_none_or(|since| now >= since + Duration::from_secs(1)) {
            (self.since, self.answered) = (Some(now), 0);
        }
        self.answered += 1;
        self.answered <= ANSWERED_PER_SECOND
    }
}

/// What was read of one pod.
#[derive(Debug, Clone)]
pub struct FreshStatus {
    /// ModifyIndex of what its node says of it.
    index: Index,
    at: Instant,
    /// The hash of the manifest that was real then.
    pub real: Option<u64>,
    /// How it stands.
    pub pod_state: Arc<PodState>,
}

impl FreshStatus {
    /// Whether it is newer than the tree.
    #[must_use]
    pub fn counts<T>(&self, tree: &Snapshot<T>) -> bool {
        !tree.shows(self.index, Some(self.at))
    }
}

/// Reads what nodes say of some pods.
///
/// # Errors
/// Any [`StoreError`].
pub async fn read(
    reader: &dyn Reader,
    places: Vec<PodRef>,
) -> Result<BTreeMap<PodRef, FreshStatus>, StoreError> {
    let mut all = BTreeMap::new();
    for place in places {
        // In this order: what is said after a try was seen to be real is said of that or of a later one.
        let real = reader.get(&key::reality(&place.node, &place.pod), Query::PLAIN).await?.value;
        let at = Instant::now();
        let said = reader.get(&key::pod_status(&place.pod, &place.node), Query::PLAIN).await?.value;
        let Some(said) = said else { continue };
        let Ok(status) = PodStatus::decode(&said.value) else { continue };
        let (index, pod_state) = (said.modify_index, Arc::new(stands(&status)));
        let real = real.map(|entry| content_hash(&entry.value));
        all.insert(place, FreshStatus { index, at, real, pod_state });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bells_are_answered_once_and_not_too_many_in_a_second() {
        let job = |n: u32| -> Namespaced { format!("default/j{n}").parse().unwrap() };
        let (mut doorbells, now) = (JobDoorbells::default(), Instant::now());
        doorbells.ring(job(0));
        assert!(doorbells.answer(&job(0), 1, now));
        assert!(!doorbells.answer(&job(0), 1, now), "it was answered");
        for pods in [0, PODS + 1] {
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
