//! What an RC's pods were promised, beside the pods themselves: whose turn it is to promise, and promises that no pod
//! has any more.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::MutexGuard;
use tracing::{debug, warn};

use super::cluster_view::ClusterView;
use super::controller::{RcController, RcObservation, Written};
use super::plan::{AllowedActions, PodRef, PodStep, ReplicationPlan};
use super::status::{RcConditionType, RcReason};
use super::writes;
use crate::farm::kind::{Action, ReconcileError};
use crate::ids::{NodeName, PodId, RcId};
use crate::schedule::capacity::{OrphanedAllocation, freeing, orphaned_allocations};

/// Each leak takes two operations at most; a full transaction has room for so many on the oldest Consul.
const LEAKS_PER_TRANSACTION: usize = 20;

impl RcController {
    /// The farm's right to promise, if the steps promise or release something. Whoever has waited for it plans anew.
    pub(super) async fn turn<'w>(
        world: &'w ClusterView,
        look: &RcObservation,
        steps: &[PodStep],
    ) -> Option<MutexGuard<'w, ()>> {
        let bookings = writes::bookings(&look.spec, steps, &world.rooms());
        match bookings.is_ok_and(|bookings| bookings.is_empty()) {
            true => None,
            false => Some(world.ledger.turn().await),
        }
    }

    /// Eligible nodes without room for a pod: no scheduler is to give them.
    pub(super) fn without_room(&self, look: &RcObservation) -> BTreeSet<NodeName> {
        let (want, rooms) = (look.spec.resources(), self.world.rooms());
        let lacks = |node: &&NodeName| rooms.of(node).lack(look.spec.manifest.id(), want).is_some();
        look.eligible.iter().filter(lacks).cloned().collect()
    }

    /// Frees what was promised to pods that are gone: this RC's own, and where it finds no room, other controllers'
    /// that stand in its way. `None`: there is nothing to free.
    pub(super) async fn free_leaks(
        &mut self,
        look: &RcObservation,
        plan: &ReplicationPlan,
    ) -> Result<Option<Action>, ReconcileError> {
        let is_short = plan.is_short_of_room();
        let waits = is_short || plan.is_short_of_places();
        if self.world.waits_for_room(self.id, waits) && waits {
            // What came free since the look began was told to those alone who waited then.
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        if look.spec.disabled || self.world.trust() != AllowedActions::Full {
            return Ok(None);
        }
        let mut leaks = self.world.leaks_of(self.id, look.pods.keys());
        if is_short {
            leaks.extend(self.world.leaks_on(&look.eligible));
            leaks.sort();
            leaks.dedup();
        }
        leaks.truncate(LEAKS_PER_TRANSACTION);
        if leaks.is_empty() {
            return Ok(None);
        }
        let world = self.world.clone();
        let _turn = world.ledger.turn().await;
        let (mut ops, bookings) = freeing(&world.rooms(), &leaks);
        if bookings.is_empty() {
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        ops.extend(bookings.iter().map(|booking| booking.op()));
        let status = self.status.clone();
        match self.commit(look.record_index, ops, status, Vec::new()).await? {
            Written::At(index) => {
                world.ledger.wrote(&bookings, index);
                for OrphanedAllocation { node, pod, owner, .. } in &leaks {
                    warn!(alert = true, %node, %pod, %owner, "freed what a pod was promised that is gone");
                }
                Ok(Some(Action::RequeueAfter(Duration::ZERO)))
            }
            Written::Refused => {
                debug!(record = %self.id, "a promise that seemed to be left behind is not, or was freed");
                Ok(Some(self.after_refusal()))
            }
        }
    }
}

impl Drop for RcController {
    fn drop(&mut self) {
        self.world.waits_for_room(self.id, false);
    }
}

impl ReplicationPlan {
    /// Whether it has a pod without room, or cannot add one for want of it.
    pub(super) fn is_short_of_room(&self) -> bool {
        self.findings.iter().any(|finding| {
            matches!(finding.kind, RcConditionType::Scheduled | RcConditionType::Placed)
                && finding.reason == RcReason::InsufficientCapacity
        })
    }

    /// Whether it cannot add a pod because pods of others, or of nobody, stand where it would.
    fn is_short_of_places(&self) -> bool {
        self.findings.iter().any(|finding| finding.reason == RcReason::PlaceTaken)
    }
}

impl ClusterView {
    /// Notes whether a controller waits for room or for a place: then it is told of every change of what is promised,
    /// and when a pod or an intent is gone. `true`: that is news.
    pub(super) fn waits_for_room(&self, id: RcId, waits: bool) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waits { waiting.insert(id) } else { waiting.remove(&id) }
    }

    /// Controllers that wait for room or for a place.
    pub(super) fn waiting(&self) -> BTreeSet<RcId> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What an RC was promised at places where it has no pod.
    fn leaks_of<'p>(
        &self,
        id: RcId,
        pods: impl Iterator<Item = &'p PodRef>,
    ) -> Vec<OrphanedAllocation> {
        let seen = self.ledger.tree.seen();
        let pods: BTreeSet<(&NodeName, &PodId)> = pods.map(|p| (&p.node, &p.pod)).collect();
        let elsewhere = seen.value.of_rc(id).filter(|(node, pod)| !pods.contains(&(node, pod)));
        let nodes: BTreeSet<NodeName> = elsewhere.map(|(node, _)| node.clone()).collect();
        let own = |leak: &OrphanedAllocation| leak.owner == id;
        self.leaks_on(&nodes).into_iter().filter(own).collect()
    }

    /// What any RC was promised on some nodes where it has no pod, as far as the pods were read since.
    fn leaks_on(&self, nodes: &BTreeSet<NodeName>) -> Vec<OrphanedAllocation> {
        let (labels, rooms) = (self.pods.seen(), self.rooms());
        let rooms = nodes.iter().map(|node| (node, rooms.of(node)));
        let read_since = rooms.filter(|(_, room)| room.index <= labels.index);
        orphaned_allocations(read_since, |node, pod| {
            labels.value.at(&PodRef { node: node.clone(), pod: pod.clone() })
        })
    }
}
