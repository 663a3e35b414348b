//! Packs the changes of a pass into transactions. Pure.
//!
//! A transaction contains the fence, the scheduler's status and an audit record; per queue its status with counters and
//! charges; per group its status; per node its allocations. If it admits a group, or charges one more, it also checks the
//! ModifyIndex of the records of the queue and its ancestors.

use std::collections::{BTreeMap, BTreeSet};

use super::bounds::{FIXED_BYTES, FIXED_OPS};
use super::placing::{GroupMember, PlacementChange};
use super::queues::Queues;
use crate::placement::capacity::{Booking, Ledger, NodeCapacities};
use rcfarm_api::Stored;
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::audit::GroupChange;
use rcfarm_api::ids::{NodeName, QueueName};
use rcfarm_api::key;
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::queue::status::QueueStatus;
use rcfarm_store::{Index, Op, TxnLimits};

/// Statuses of all queues with their ModifyIndexes.
pub type QueueBook = BTreeMap<QueueName, (Index, QueueStatus)>;

/// Changes in one transaction.
#[derive(Debug, Default)]
pub struct PlacementBatch {
    /// Number of changes.
    pub count: usize,
    /// Whether it is small enough. One change that is too large is returned all the same.
    pub fits: bool,
    /// Operations without the fixed ones.
    pub ops: Vec<Op>,
    /// Changes of the nodes' allocations.
    pub bookings: Vec<Booking>,
    /// Statuses of queues afterwards.
    pub queues: BTreeMap<QueueName, QueueStatus>,
    /// Nodes whose allocations it checks or changes.
    pub nodes: BTreeSet<NodeName>,
}

/// Takes as many changes from the front as fit into one transaction.
#[must_use]
pub fn batch(
    changes: &[PlacementChange],
    node_capacities: &NodeCapacities,
    queues: &Queues,
    book: &QueueBook,
    limits: TxnLimits,
) -> PlacementBatch {
    let mut count = by_ops(changes, queues, limits);
    loop {
        let mut batch = build(&changes[..count], node_capacities, queues, book);
        let bytes: usize = batch.ops.iter().map(Op::body_bytes).sum();
        // Operations of a single change are bounded by the pass.
        let few = batch.ops.len() + FIXED_OPS <= limits.ops || count <= 1;
        batch.fits = bytes + FIXED_BYTES <= limits.bytes && few;
        if batch.fits || count <= 1 {
            return batch;
        }
        count /= 2;
    }
}

/// Upper bound of the changes that fit, by number of operations.
fn by_ops(changes: &[PlacementChange], queues: &Queues, limits: TxnLimits) -> usize {
    let most = limits.ops.saturating_sub(FIXED_OPS);
    let (mut groups, mut nodes) = (0, BTreeSet::new());
    let (mut touched, mut guarded) = (BTreeSet::new(), BTreeSet::new());
    for (n, change) in changes.iter().enumerate() {
        groups += 1 + usize::from(change.record_index.is_some());
        nodes.extend(change.nodes());
        touched.extend(queues_of(change));
        guarded.extend(guards(change, queues));
        if groups + nodes.len() + touched.len() + guarded.len() > most {
            return n.max(1);
        }
    }
    changes.len()
}

fn queues_of(change: &PlacementChange) -> impl Iterator<Item = &QueueName> {
    let before = change.before.as_ref().and_then(|known| known.value.queue.as_ref());
    let after = change.after.as_ref().and_then(|after| after.queue.as_ref());
    before.into_iter().chain(after).filter(|_| !change.keeps_status())
}

/// Queues whose records must be unchanged, because a group is admitted or is charged more.
fn guards<'q>(
    change: &PlacementChange,
    queues: &'q Queues,
) -> impl Iterator<Item = (&'q QueueName, Index)> {
    let before = change.before.as_ref().map(|known| &known.value);
    let before = before.filter(|before| before.phase.is_admitted());
    let has_room = |after: &PodGroupStatus| {
        before.is_some_and(|before| {
            before.queue == after.queue && before.charged.fits(&after.charged)
        })
    };
    let after = change.after.as_ref().filter(|after| after.phase.is_admitted());
    let charged = after.filter(|after| !has_room(after));
    let queue = charged.and_then(|after| queues.0.get(after.queue.as_ref()?));
    let chain = queue.into_iter().flat_map(|queue| &queue.chain);
    chain.filter_map(|link| queues.0.get_key_value(link)).map(|(name, queue)| (name, queue.index))
}

fn build(
    changes: &[PlacementChange],
    node_capacities: &NodeCapacities,
    queues: &Queues,
    book: &QueueBook,
) -> PlacementBatch {
    let mut batch = PlacementBatch { count: changes.len(), ..PlacementBatch::default() };
    let (mut ledger, mut guarded) = (Ledger::on(node_capacities), BTreeMap::new());
    for change in changes {
        let owner = AllocationOwner::of_group(&change.id);
        change.release.iter().for_each(|m| ledger.release(&m.node, &m.pod, &owner));
        for m in &change.allocate {
            // The plan used the same capacities. If an allocation fails after all, the transaction must be refused:
            // `Bound` would be wrong.
            if ledger.allocate_devices(&m.node, &m.pod, &owner, &m.resources()).is_err() {
                batch.ops.push(never(m));
            }
        }
        batch.nodes.extend(change.nodes().into_iter().cloned());
        guarded.extend(guards(change, queues));
        batch.ops.push(status_op(change));
        if let Some(index) = change.record_index {
            let key = key::pod_group(&change.id);
            batch.ops.push(match index {
                Index::ZERO => Op::CheckNotExists { key },
                index => Op::CheckIndex { key, index },
            });
        }
        count(&mut batch.queues, book, change);
    }
    for (name, index) in guarded {
        batch.ops.push(Op::CheckIndex { key: key::queue(name), index });
    }
    for (name, status) in &batch.queues {
        let index = book.get(name).map_or(Index::ZERO, |(index, _)| *index);
        let key = key::queue_status(name);
        batch.ops.push(Op::Cas { key, value: status.encode(), flags: 0, index });
    }
    batch.bookings = ledger.bookings();
    batch.ops.extend(batch.bookings.iter().map(Booking::op));
    let booked: BTreeSet<&NodeName> = batch.bookings.iter().map(|booking| &booking.node).collect();
    // Allocations to release that the cache does not show must not exist.
    for node in batch.nodes.iter().filter(|node| !booked.contains(node)) {
        let key = key::allocation(node);
        batch.ops.push(match node_capacities.of(node).index {
            Index::ZERO => Op::CheckNotExists { key },
            index => Op::CheckIndex { key, index },
        });
    }
    batch
}

/// An operation that is always refused: no allocation record has this index.
fn never(member: &GroupMember) -> Op {
    Op::CheckIndex { key: key::allocation(&member.node), index: Index(u64::MAX >> 1) }
}

fn status_op(change: &PlacementChange) -> Op {
    let key = key::pod_group_status(&change.id);
    let index = change.before.as_ref().map_or(Index::ZERO, |known| known.index);
    match &change.after {
        Some(_) if change.keeps_status() => Op::CheckIndex { key, index },
        Some(after) => Op::Cas { key, value: revised(change, after).encode(), flags: 0, index },
        // Release of orphaned allocations: the group must still have no status.
        None if change.before.is_none() => Op::CheckNotExists { key },
        None => Op::DeleteCas { key, index },
    }
}

/// Status with the next revision.
#[must_use]
pub fn revised(change: &PlacementChange, after: &PodGroupStatus) -> PodGroupStatus {
    let before = change.before.as_ref().map_or(0, |known| known.value.revision);
    PodGroupStatus { revision: before + 1, ..after.clone() }
}

/// Moves a group from its old counter to its new one.
fn count(
    counted: &mut BTreeMap<QueueName, QueueStatus>,
    book: &QueueBook,
    change: &PlacementChange,
) {
    if change.keeps_status() {
        return;
    }
    let mut of = |name: &QueueName, then: &dyn Fn(&mut QueueStatus)| {
        let stored = || book.get(name).map(|(_, status)| status.clone()).unwrap_or_default();
        let status = counted
            .entry(name.clone())
            .or_insert_with(|| QueueStatus { revision: stored().revision + 1, ..stored() });
        then(status);
    };
    if let Some(known) = &change.before
        && let Some(queue) = &known.value.queue
    {
        of(queue, &|status| {
            status.groups.leave(known.value.phase);
            if known.value.phase.is_admitted() {
                status.allocated.sub(&known.value.charged);
            }
        });
    }
    if let Some(after) = &change.after
        && let Some(queue) = &after.queue
    {
        of(queue, &|status| {
            status.groups.enter(after.phase);
            if after.phase.is_admitted() {
                status.allocated.add(&after.charged);
            }
        });
    }
}

/// Audit record of a change.
#[must_use]
pub fn audited(change: &PlacementChange) -> GroupChange {
    let before = change.before.as_ref().map(|known| &known.value);
    let after = change.after.as_ref();
    let placement =
        |status: Option<&PodGroupStatus>| Some(format!("{:?}", status?.placement.as_ref()?.state));
    let status = after.or(before.map(|status| &**status));
    GroupChange {
        group: change.id.clone(),
        queue: status.and_then(|status| status.queue.clone()),
        from: before.map(|status| status.phase.to_string()),
        to: after.map(|status| status.phase.to_string()),
        placement: placement(after),
        reason: status.map(|status| status.reason.to_string()).unwrap_or_default(),
        preemptor: after.and_then(|after| after.eviction.as_ref()?.by().cloned()),
        promised: change.allocate.len(),
        released: change.release.len(),
    }
}
