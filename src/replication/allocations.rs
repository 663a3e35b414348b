//! Allocations of an RC's pods: nodes without capacity, and orphaned allocations.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{debug, warn};

use super::controller::{RcController, RcView};
use super::plan::ReplicationPlan;
use crate::cluster::view::AllowedActions;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::Committed;
use crate::placement::capacity::{OrphanedAllocation, freeing, orphaned_allocations};
use rcfarm_api::ids::{NodeName, PodId, PodRef, RcId};
use rcfarm_api::rc::status::{RcConditionType, RcReason};

/// Each orphaned allocation takes at most two operations. The oldest Consul allows 64 per transaction.
const LEAKS_PER_TRANSACTION: usize = 20;

impl RcController {
    /// Eligible nodes without capacity for a pod: the scheduler must not allocate them.
    pub(super) fn without_room(&self, input: &RcView) -> BTreeSet<NodeName> {
        let (want, capacities) = (input.spec.resources(), self.view.node_capacities());
        let lacks = |node: &&NodeName| {
            capacities.of(node).insufficient(input.spec.manifest.id(), want).is_some()
        };
        input.eligible.iter().filter(lacks).cloned().collect()
    }

    /// Frees orphaned allocations: this RC's own, and if it finds no capacity, also those of other RCs on eligible
    /// nodes. `None`: there is nothing to free.
    pub(super) async fn free_orphaned(
        &mut self,
        input: &RcView,
        plan: &ReplicationPlan,
        has_turn: bool,
    ) -> Result<Option<Action>, ReconcileError> {
        let is_short = plan.is_short_of_room();
        let waits = is_short || plan.is_short_of_places();
        if self.caches.waits_for_room(self.id, waits) && waits {
            // Capacity that was freed since the caches were read woke only those that waited then.
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        if input.spec.disabled || self.view.allowed_actions() != AllowedActions::Full {
            return Ok(None);
        }
        let mut orphaned_allocations = self.orphaned_of(self.id, input.pods.keys());
        if is_short {
            orphaned_allocations.extend(self.orphaned_on(&input.eligible));
            orphaned_allocations.sort();
            orphaned_allocations.dedup();
        }
        orphaned_allocations.truncate(LEAKS_PER_TRANSACTION);
        if orphaned_allocations.is_empty() {
            return Ok(None);
        }
        let view = self.view.clone();
        let _guard = match has_turn {
            true => None,
            false => Some(view.ledger.lock_plans().await),
        };
        let (mut ops, bookings) = freeing(&view.node_capacities(), &orphaned_allocations);
        if bookings.is_empty() {
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        ops.extend(bookings.iter().map(|booking| booking.op()));
        let status = self.chain.status().clone();
        match self.commit(input.record_index, ops, status, Vec::new()).await? {
            Committed::Applied(index) => {
                view.ledger.wrote(&bookings, index);
                for OrphanedAllocation { node, pod, owner, .. } in &orphaned_allocations {
                    warn!(alert = true, %node, %pod, %owner, "released an orphaned allocation");
                }
                Ok(Some(Action::RequeueAfter(Duration::ZERO)))
            }
            Committed::Refused(_) => {
                debug!(record = %self.id, "an allocation that looked orphaned is in use or was released");
                Ok(Some(self.chain.after_refusal()))
            }
        }
    }
}

impl Drop for RcController {
    fn drop(&mut self) {
        self.caches.waits_for_room(self.id, false);
        self.caches.interests().forget(self.id);
    }
}

impl ReplicationPlan {
    /// Whether a pod has no capacity, or none can be added for lack of capacity.
    pub(super) fn is_short_of_room(&self) -> bool {
        self.conditions.iter().any(|condition| {
            matches!(condition.kind, RcConditionType::Scheduled | RcConditionType::Placed)
                && condition.reason == RcReason::InsufficientCapacity
        })
    }

    /// Whether no pod can be added because other pods occupy the slots.
    fn is_short_of_places(&self) -> bool {
        self.conditions.iter().any(|condition| condition.reason == RcReason::PlaceTaken)
    }
}

impl RcController {
    /// Allocations of an RC at places where it has no pod.
    fn orphaned_of<'p>(
        &self,
        id: RcId,
        pods: impl Iterator<Item = &'p PodRef>,
    ) -> Vec<OrphanedAllocation> {
        let seen = self.view.ledger.tree.snapshot();
        let pods: BTreeSet<(&NodeName, &PodId)> = pods.map(|p| (&p.node, &p.pod)).collect();
        let elsewhere = seen.value.of_rc(id).filter(|(node, pod)| !pods.contains(&(node, pod)));
        let nodes: BTreeSet<NodeName> = elsewhere.map(|(node, _)| node.clone()).collect();
        let own = |orphaned: &OrphanedAllocation| orphaned.owner == id;
        self.orphaned_on(&nodes).into_iter().filter(own).collect()
    }

    /// Allocations of any RC on these nodes without a pod there. Nodes whose record is newer than the cached pods are
    /// left out.
    fn orphaned_on(&self, nodes: &BTreeSet<NodeName>) -> Vec<OrphanedAllocation> {
        let (labels, node_capacities) = (self.view.pods.snapshot(), self.view.node_capacities());
        let node_capacities = nodes.iter().map(|node| (node, node_capacities.of(node)));
        let read_since = node_capacities.filter(|(_, room)| room.index <= labels.index);
        orphaned_allocations(read_since, |node, pod| {
            labels.value.at(&PodRef { node: node.clone(), pod: pod.clone() })
        })
    }
}
