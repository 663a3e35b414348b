//! Allocations without a pod.
//!
//! A pod's allocation is released in the transaction that removes the pod. It is orphaned only if something else
//! removes the pod: a person, or a farm of square/p2, which knows no allocations. An allocation of `rc/<uuid>` belongs
//! to the pod whose label names that controller. Those of other kinds of records are ignored here.

use super::ledger::{Booking, Ledger, NodeCapacities};
use super::node_capacity::NodeCapacity;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_store::{Index, Op};

/// An allocation without its pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrphanedAllocation {
    /// Node whose record holds the allocation.
    pub node: NodeName,
    /// Id of the pod that it was made for.
    pub pod: PodId,
    /// RC that owned the pod.
    pub owner: RcId,
    /// ModifyIndex of labels at that place that name another owner; 0: there are none.
    pub label: Index,
}

/// Finds allocations without a pod. `label` returns the index of the labels at a place and the RC that they name. Where
/// the labels were read earlier than the allocations, there may be a pod.
pub fn orphaned_allocations<'a>(
    node_capacities: impl Iterator<Item = (&'a NodeName, &'a NodeCapacity)>,
    label: impl Fn(&NodeName, &PodId) -> Option<(Index, Option<RcId>)>,
) -> Vec<OrphanedAllocation> {
    let mut orphaned_allocations = Vec::new();
    for (node, room) in node_capacities {
        for (pod, allocation) in &room.allocated.pods {
            let AllocationOwner::Rc(owner) = allocation.owner else { continue };
            let found = label(node, pod);
            if found.and_then(|(_, rc)| rc) == Some(owner) {
                continue;
            }
            let label = found.map_or(Index::ZERO, |(index, _)| index);
            orphaned_allocations.push(OrphanedAllocation {
                node: node.clone(),
                pod: pod.clone(),
                owner,
                label,
            });
        }
    }
    orphaned_allocations
}

/// Operations that free them in one transaction: guards by which Consul checks that the pods are gone, and one booking
/// per node.
#[must_use]
pub fn freeing(
    node_capacities: &NodeCapacities,
    orphaned_allocations: &[OrphanedAllocation],
) -> (Vec<Op>, Vec<Booking>) {
    let mut ledger = Ledger::on(node_capacities);
    let guard = |orphaned: &OrphanedAllocation| {
        let key = key::pod_labels(&orphaned.node, &orphaned.pod);
        match orphaned.label {
            Index::ZERO => Op::CheckNotExists { key },
            index => Op::CheckIndex { key, index },
        }
    };
    for orphaned in orphaned_allocations {
        ledger.release(&orphaned.node, &orphaned.pod, &AllocationOwner::Rc(orphaned.owner));
    }
    (orphaned_allocations.iter().map(guard).collect(), ledger.bookings())
}
