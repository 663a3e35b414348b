//! What the passes of a scheduler remember of each other, so that a pass costs as much as has changed. It decides
//! nothing: a pass without it has the same result.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::min_resources::KnownTotals;
use crate::batch::placing::VersionedStatus;
use crate::cluster::queues::StoredGroup;
use crate::placement::capacity::{Decision, Fleet, FleetIndex, Gang, GangPlacement, IndexVersion};
use rcfarm_api::pod_group::spec::{GroupId, TaskSpec};
use rcfarm_api::pod_group::status::{PodGroupReason, PodGroupStatus};
use rcfarm_api::scheduler::Packing;

/// Number of passes after which a request that nobody has made again is forgotten.
const PASSES_KEPT: u64 = 100;

/// Nodes by free capacity, and requests that did not fit.
#[derive(Debug, Default)]
pub struct PassMemory {
    pub(in crate::batch) index: FleetIndex,
    pub(super) totals: KnownTotals,
    no_room: BTreeMap<Vec<TaskSpec>, DoesNotFit>,
    packing: Packing,
    pass: u64,
    /// In the order of their names.
    pub(super) settled: Vec<SettledGroup>,
}

/// A group that needs nothing as long as neither its status nor its record changes, whatever the time and the nodes.
#[derive(Debug)]
pub(super) struct SettledGroup {
    pub(super) id: GroupId,
    status: Arc<PodGroupStatus>,
    record: Arc<StoredGroup>,
}

impl SettledGroup {
    pub(super) fn of(id: &GroupId, known: &VersionedStatus, record: &Arc<StoredGroup>) -> Self {
        SettledGroup { id: id.clone(), status: known.value.clone(), record: record.clone() }
    }

    /// Whether status and record are the same objects.
    pub(super) fn is_of(
        &self,
        id: &GroupId,
        known: &VersionedStatus,
        record: Option<&Arc<StoredGroup>>,
    ) -> bool {
        self.id == *id
            && Arc::ptr_eq(&self.status, &known.value)
            && record.is_some_and(|record| Arc::ptr_eq(&self.record, record))
    }
}

/// A request that did not fit.
#[derive(Debug)]
struct DoesNotFit {
    reason: PodGroupReason,
    /// Made when it is first asked for in a pass.
    message: Option<String>,
    /// Name of the gang. Of several tasks the choice among equal nodes depends on it.
    gang: String,
    version: IndexVersion,
    /// Pass in which this was last found to be true. Within a pass capacity only shrinks.
    pass: u64,
}

impl PassMemory {
    /// Begins a pass over the nodes as they are.
    pub(super) fn begin(&mut self, fleet: &Fleet, packing: Packing) {
        self.pass += 1;
        self.index.follow(fleet);
        let (pass, is_same) = (self.pass, packing == self.packing);
        self.no_room.retain(|_, known| is_same && known.pass + PASSES_KEPT >= pass);
        self.packing = packing;
    }

    /// Reason why a gang has no room, if that is known.
    pub(super) fn known_no_room(&mut self, gang: &Gang) -> Option<PodGroupReason> {
        let known = self.no_room.get_mut(&gang.tasks)?;
        if known.pass < self.pass {
            let was_tried = gang.tasks.len() == 1 || known.gang == gang.name;
            if !was_tried || self.index.may_have_room(known.version, gang) {
                return None;
            }
            (known.pass, known.version, known.message) = (self.pass, self.index.version(), None);
        }
        Some(known.reason)
    }

    /// Nodes for a gang.
    ///
    /// # Errors
    /// The reason why it has no room.
    pub(in crate::batch) fn find(&mut self, gang: &Gang) -> Result<GangPlacement, PodGroupReason> {
        if let Some(reason) = self.known_no_room(gang) {
            return Err(reason);
        }
        if let Some(placement) = self.index.find(gang) {
            return Ok(placement);
        }
        let is_nowhere = gang.tasks.iter().any(|task| self.index.eligible(task) == 0);
        let reason = match is_nowhere {
            true => PodGroupReason::NoEligibleNodes,
            false => PodGroupReason::InsufficientCapacity,
        };
        let (gang_name, version, pass) = (gang.name.clone(), self.index.version(), self.pass);
        let known = DoesNotFit { reason, message: None, gang: gang_name, version, pass };
        self.no_room.insert(gang.tasks.clone(), known);
        Err(reason)
    }

    /// Text for people on why a gang has no room.
    pub(super) fn message(&mut self, gang: &Gang) -> String {
        if let Some(text) = self.no_room.get(&gang.tasks).and_then(|known| known.message.clone()) {
            return text;
        }
        let text = match self.index.place(gang) {
            Decision::Wait(waits) => {
                let text = |wait: &crate::placement::capacity::TaskWait| {
                    format!("task {}: {}", wait.task, wait.message)
                };
                waits.iter().map(text).collect::<Vec<_>>().join("; ")
            }
            Decision::Bind(_) | Decision::Preempt(_) => "there was no room".to_owned(),
        };
        if let Some(known) = self.no_room.get_mut(&gang.tasks) {
            known.message = Some(text.clone());
        }
        text
    }
}
