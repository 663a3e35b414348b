//! Jobs that have deleted their PodGroups. The statuses of groups do not concern them: the scheduler deletes the status
//! after the group, which is the last that happens to a job.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::{JobCaches, record_id};
use rcfarm_api::ids::{Namespaced, RecordId};

/// Jobs of this farm whose controllers know of no PodGroup.
#[derive(Default)]
pub(super) struct WithoutGroup(Mutex<BTreeSet<RecordId>>);

impl JobCaches {
    /// Registers whether a job may have a PodGroup. Must be called before one is written.
    pub fn note_group(&self, id: &Namespaced, may_have: bool) {
        let id = record_id(id);
        let mut without = self.without_group.0.lock().unwrap_or_else(PoisonError::into_inner);
        if may_have {
            without.remove(&id);
        } else {
            without.insert(id);
        }
    }

    /// Those of these jobs that may depend on the status of a PodGroup.
    #[must_use]
    pub fn with_group(&self, jobs: &BTreeSet<Namespaced>) -> BTreeSet<RecordId> {
        let without = self.without_group.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.iter().map(record_id).filter(|id| !without.contains(id)).collect()
    }
}
