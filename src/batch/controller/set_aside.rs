//! Groups that are set aside, because a change of theirs did not fit into a transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::SchedulerController;
use crate::batch::placing::PlacementChange;
use crate::batch::plan::SetAside;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::{Index, backoff, key};
use rcfarm_store::time::monotonic;

/// Pause before a group that was set aside is planned again, unless its record changes; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Upper bound of the pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Groups that are set aside, and when each is planned again.
#[derive(Default)]
pub(super) struct GroupsSetAside {
    pub(super) groups: BTreeMap<Namespaced, SetAside>,
    /// Failures in a row, and the next attempt.
    attempts: BTreeMap<Namespaced, (u32, Instant)>,
}

impl GroupsSetAside {
    /// A change of the group was committed.
    pub(super) fn succeeded(&mut self, id: &Namespaced) {
        if !self.groups.contains_key(id) {
            self.attempts.remove(id);
        }
    }

    /// Time to the next attempt.
    pub(super) fn next(&self) -> Option<Duration> {
        let next = self.groups.keys().filter_map(|id| self.attempts.get(id)).map(|(_, at)| *at);
        next.min().map(|at| at.saturating_duration_since(monotonic()))
    }
}

impl SchedulerController {
    /// Sets a group aside, so that passes go on for the others.
    pub(super) fn set_aside(&mut self, change: &PlacementChange, why: String) {
        let id = &change.id;
        self.idle = None;
        warn!(alert = true, key = %key::pod_group(id), why,
            "a change of the group does not fit into a transaction: the group is set aside");
        let record = self.record_index(id);
        let aside = &mut self.set_aside;
        let failures = aside.attempts.get(id).map_or(0, |(failures, _)| *failures);
        let next = monotonic() + backoff(FIRST_PAUSE, LONGEST_PAUSE, failures);
        aside.attempts.insert(id.clone(), (failures + 1, next));
        // What failed now is the report.
        let is_silent = aside.groups.contains_key(id);
        aside.groups.insert(id.clone(), SetAside { record, why, is_silent });
    }

    /// Takes back groups whose pause is over or whose record has changed.
    pub(super) fn take_back(&mut self) {
        let mut groups = std::mem::take(&mut self.set_aside.groups);
        let before = groups.len();
        groups.retain(|id, aside| {
            let pauses = self.set_aside.attempts.get(id).is_some_and(|(_, at)| monotonic() < *at);
            pauses && self.record_index(id) == aside.record
        });
        if groups.len() < before {
            self.idle = None;
        }
        self.set_aside.groups = groups;
    }

    fn record_index(&self, id: &Namespaced) -> Index {
        self.caches.groups.snapshot().value.0.get(id).map_or(Index::ZERO, |group| group.index)
    }
}
