//! Allocations of an RC's pods: nodes without capacity, and orphaned allocations.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::{debug, warn};

use super::{RcController, RcView};
use crate::cluster::view::AllowedActions;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::Committed;
use crate::placement::capacity::{OrphanedAllocation, PodResources, freeing, orphaned_allocations};
use crate::replication::plan::ReplicationPlan;
use rcfarm_api::ids::{NodeName, PodId, PodRef, RcId};
use rcfarm_api::key;
use rcfarm_store::{Index, Query};

/// Orphaned allocations freed in one transaction. Each takes at most two operations, of the 64 that the oldest Consul
/// allows.
const FREED_AT_ONCE: usize = 20;

impl RcController {
    /// Eligible nodes without capacity for a pod: the scheduler must not allocate them.
    pub(super) fn nodes_without_capacity(&self, input: &RcView) -> BTreeSet<NodeName> {
        let want = PodResources::of_manifest(&input.spec.manifest);
        let capacities = self.view.node_capacities();
        let owner = input.spec.owner();
        let lacks = |node: &&NodeName| {
            capacities.of(node).insufficient_for(input.spec.manifest.id(), &owner, &want).is_some()
        };
        input.eligible.iter().filter(lacks).cloned().collect()
    }

    /// Frees orphaned allocations: this RC's own, and if it finds no capacity, also those of other RCs on eligible
    /// nodes. `None`: there is nothing to free. `has_plan_lock`: the caller holds the ledger's lock.
    ///
    /// First it notes whether the RC waits for capacity or a slot, so that it is woken when one becomes free.
    pub(super) async fn free_orphaned(
        &mut self,
        input: &RcView,
        plan: &ReplicationPlan,
        has_plan_lock: bool,
    ) -> Result<Option<Action>, ReconcileError> {
        let lacks_capacity = plan.lacks_capacity();
        let waits = lacks_capacity || plan.lacks_slots();
        if self.caches.set_waiting(self.id, waits) && waits {
            // Capacity that was freed since the caches were read woke only those that waited then.
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        if input.spec.disabled || self.view.allowed_actions() != AllowedActions::Full {
            return Ok(None);
        }
        let mut orphaned = self.orphaned_of(self.id, input.pods.keys());
        if lacks_capacity {
            orphaned.extend(self.orphaned_on(&input.eligible));
            orphaned.sort();
            orphaned.dedup();
        }
        orphaned.truncate(FREED_AT_ONCE);
        let orphaned = self.confirm_orphaned(orphaned).await?;
        if orphaned.is_empty() {
            return Ok(None);
        }
        let view = self.view.clone();
        let _guard = match has_plan_lock {
            true => None,
            false => Some(view.ledger.lock_plans().await),
        };
        let (mut ops, bookings) = freeing(&view.node_capacities(), &orphaned);
        if bookings.is_empty() {
            return Ok(Some(Action::RequeueAfter(Duration::ZERO)));
        }
        ops.extend(bookings.iter().map(|booking| booking.op()));
        let status = self.chain.status().clone();
        match self.commit(input.record_index, ops, status, Vec::new()).await? {
            Committed::Applied(index) => {
                view.ledger.wrote(&bookings, index);
                for OrphanedAllocation { node, pod, owner, .. } in &orphaned {
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

    /// Allocations of any RC on these nodes without a cached pod there.
    fn orphaned_on(&self, nodes: &BTreeSet<NodeName>) -> Vec<OrphanedAllocation> {
        let (labels, node_capacities) = (self.view.pods.snapshot(), self.view.node_capacities());
        let node_capacities = nodes.iter().map(|node| (node, node_capacities.of(node)));
        orphaned_allocations(node_capacities, |node, pod| {
            labels.value.at(&PodRef { node: node.clone(), pod: pod.clone() })
        })
    }

    /// Of allocations without a cached pod those that have none. Where the node's record is newer than the cached pods,
    /// the labels are read: the cache may lag, or no pod may change for long.
    async fn confirm_orphaned(
        &self,
        seen: Vec<OrphanedAllocation>,
    ) -> Result<Vec<OrphanedAllocation>, ReconcileError> {
        let (read_at, node_capacities) =
            (self.view.pods.snapshot().index, self.view.node_capacities());
        let mut confirmed = Vec::new();
        for orphaned in seen {
            if node_capacities.of(&orphaned.node).index > read_at {
                let key = key::pod_labels(&orphaned.node, &orphaned.pod);
                let labels = self.ctx.reader.get(&key, Query::CONSISTENT).await?.value;
                let label = labels.map_or(Index::ZERO, |labels| labels.modify_index);
                if label != orphaned.label {
                    continue;
                }
            }
            confirmed.push(orphaned);
        }
        Ok(confirmed)
    }
}
