//! Allocations of all nodes at one index, and those whose pod is gone. Keys read: allocations, labels of pods, nodes.

use crate::cli::context::CommandContext;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::capacity::{NodeCapacities, OrphanedAllocation, orphaned_allocations};
use rcfarm_api::ids::PodRef;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::{Entry, Op, Prefix, StoreError, TxnOutcome};

/// The allocations of all nodes.
pub(in crate::cli) struct AllocationReport {
    pub(in crate::cli) node_capacities: NodeCapacities,
    /// Allocations whose pod does not exist.
    pub(in crate::cli) orphaned_allocations: Vec<OrphanedAllocation>,
}

/// Prefixes that the report needs.
pub(in crate::cli) fn trees() -> [Prefix; 3] {
    [key::allocations(), key::labels(LabelKind::Pod), key::nodes()]
}

/// Reads the report in one transaction: prefixes read one after the other differ while a farm writes.
pub(in crate::cli) async fn allocations(
    context: &CommandContext,
) -> Result<AllocationReport, StoreError> {
    Ok(allocations_of(&snapshot(context, trees()).await?))
}

/// The report of entries that were read in one transaction. Entries of other prefixes are ignored.
pub(in crate::cli) fn allocations_of(entries: &[Entry]) -> AllocationReport {
    let cluster = ClusterSnapshot::of(entries);
    let node_capacities = cluster.node_capacities();
    let orphaned_allocations = orphaned_allocations(node_capacities.iter(), |node, pod| {
        cluster.pods.at(&PodRef { node: node.clone(), pod: pod.clone() })
    });
    AllocationReport { node_capacities, orphaned_allocations }
}

impl AllocationReport {
    /// Other faults as text: invalid records, more allocated than the capacity, devices allocated twice. Nodes without a
    /// capacity are not checked.
    pub(in crate::cli) fn faults(&self) -> Vec<String> {
        let faults = self.node_capacities.iter().flat_map(|(node, room)| {
            let faults = match (room.is_unreadable, room.capacity.is_zero()) {
                (true, _) => vec!["the record cannot be read".to_owned()],
                (false, true) => Vec::new(),
                (false, false) => room.faults(),
            };
            faults.into_iter().map(move |fault| format!("{}: {fault}", key::allocation(node)))
        });
        faults.collect()
    }

    /// Number of pods with an allocation, and of nodes with one.
    pub(in crate::cli) fn count(&self) -> (usize, usize) {
        let allocated = self.node_capacities.iter().map(|(_, room)| room.allocated.pods.len());
        allocated.filter(|pods| *pods > 0).fold((0, 0), |(pods, nodes), n| (pods + n, nodes + 1))
    }
}

/// Reads whole prefixes in one transaction.
pub(in crate::cli) async fn snapshot(
    context: &CommandContext,
    trees: impl IntoIterator<Item = Prefix>,
) -> Result<Vec<Entry>, StoreError> {
    let ops: Vec<Op> = trees.into_iter().map(|prefix| Op::GetTree { prefix }).collect();
    match context.store.txn(&ops).await? {
        TxnOutcome::Committed { entries, .. } => Ok(entries),
        TxnOutcome::Refused(refusals) => Err(StoreError::Forbidden {
            what: refusals.into_iter().map(|refusal| refusal.what).collect::<Vec<_>>().join("; "),
        }),
    }
}

/// An orphaned allocation as text.
pub(in crate::cli) fn describe(orphaned: &OrphanedAllocation) -> String {
    let OrphanedAllocation { node, pod, owner, .. } = orphaned;
    format!("{node} has an allocation for pod {pod} of {owner}, which does not exist")
}
