//! Jobs that wait for others, by these: the status of a PodGroup that changes or goes wakes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{JobCaches, record_id};
use crate::job::dependencies::JobDependency;
use rcfarm_api::ids::{Namespaced, RecordId};

/// Jobs of this farm that wait, by the jobs that they wait for.
#[derive(Default)]
pub(super) struct WaitingJobs(Mutex<BTreeMap<Namespaced, BTreeSet<Namespaced>>>);

impl WaitingJobs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Namespaced, BTreeSet<Namespaced>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobCaches {
    /// Registers that a job waits for others. Must be called before these are read.
    pub fn note_waiting(&self, id: &Namespaced, dependencies: &[JobDependency]) {
        let mut waiting = self.waiting_jobs.lock();
        for dependency in dependencies {
            waiting.entry(dependency.job(id)).or_default().insert(id.clone());
        }
    }

    /// The job does not wait any more.
    pub fn forget_waiting(&self, id: &Namespaced) {
        self.waiting_jobs.lock().retain(|_, jobs| {
            jobs.remove(id);
            !jobs.is_empty()
        });
    }

    /// The jobs that wait for one of these.
    #[must_use]
    pub fn waiting_for(&self, touched: &BTreeSet<Namespaced>) -> BTreeSet<RecordId> {
        let waiting = self.waiting_jobs.lock();
        touched.iter().filter_map(|id| waiting.get(id)).flatten().map(record_id).collect()
    }
}
