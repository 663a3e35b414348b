//! Allocations that no pod has any more.
//!
//! What a controller's pod was allocated is taken back in the transaction that removes the pod, so nothing is orphaned by
//! itself. A promise is left behind when pods are removed past us: by hand, or by a farm of square/p2, which knows of no
//! allocations. The proof is the pod's label: a promise of `rc/<uuid>` stands for the pod whose label names that controller,
//! and only for it. A promise of another kind of record is that kind's business.

use super::ledger::{Booking, Ledger, NodeCapacities};
use super::node_capacity::NodeCapacity;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_store::{Index, Op};

/// A promise without its pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrphanedAllocation {
    /// Node whose record holds the allocation.
    pub node: NodeName,
    /// Under which pod's id.
    pub pod: PodId,
    /// Whose pod that was.
    pub owner: RcId,
    /// ModifyIndex of the labels that stand there and name somebody else; 0: there are none.
    pub label: Index,
}

/// Finds promises without their pods. `label` gives the index of the labels at a place and the controller that they
/// name; it must have been read no earlier than the allocations.
pub fn orphaned_allocations<'a>(
    rooms: impl Iterator<Item = (&'a NodeName, &'a NodeCapacity)>,
    label: impl Fn(&NodeName, &PodId) -> Option<(Index, Option<RcId>)>,
) -> Vec<OrphanedAllocation> {
    let mut orphaned_allocations = Vec::new();
    for (node, room) in rooms {
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

/// What frees them, in one transaction in which the store itself checks that their pods are gone: the guards, and one
/// booking per node.
#[must_use]
pub fn freeing(
    rooms: &NodeCapacities,
    orphaned_allocations: &[OrphanedAllocation],
) -> (Vec<Op>, Vec<Booking>) {
    let mut ledger = Ledger::on(rooms);
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
