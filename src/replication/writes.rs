//! Turns the steps of a plan into transactions, each as full as its limits allow. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::RcPods;
use super::plan::{Drift, PodStep, RcPod};
use crate::cluster::intents::Intent;
use crate::placement::capacity::{Booking, Insufficient, Ledger, NodeCapacities, PodResources};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::key;
use rcfarm_api::labels::{Labels, encode_labels};
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_store::{Index, Op, TxnLimits};

/// Operations of every transaction besides those of the pods: fence, record guard, status, audit record.
pub const FIXED_OPS: usize = 4;
/// Bytes set aside for these four. The audit record alone may list 128 nodes and name 60 more, 200 bytes each, in
/// base64.
const FIXED_BYTES: usize = 64 * 1024;

/// Upper bound of an audit record without its nodes, in base64.
const AUDIT_BYTES: usize = 2048;

/// Labels of a repaired pod: those that it has, overwritten by the RC's.
fn merged(spec: &RcSpec, labels: &Labels) -> Labels {
    let mut merged = labels.clone();
    merged.extend(spec.labels_of_pod());
    merged
}

/// Writes an intent, or checks that the right one is unchanged; guarded by the observed index.
fn intent_op(spec: &RcSpec, pod_ref: &PodRef, observed: Intent) -> Op {
    let key = key::intent(&pod_ref.node, &pod_ref.pod);
    match observed {
        Intent::Same(index) => Op::CheckIndex { key, index },
        Intent::Missing | Intent::Differs(_) => {
            let value = bytes::Bytes::copy_from_slice(spec.manifest.text().as_bytes());
            Op::Cas { key, value, flags: 0, index: observed.index() }
        }
    }
}

fn label_op(pod_ref: &PodRef, labels: &Labels, index: Index) -> Op {
    let key = key::pod_labels(&pod_ref.node, &pod_ref.pod);
    let (value, flags) = (encode_labels(labels), 0);
    Op::Cas { key, value, flags, index }
}

fn removal_ops(pod_ref: &PodRef, pod: &RcPod) -> Vec<Op> {
    let label = key::pod_labels(&pod_ref.node, &pod_ref.pod);
    let intent = key::intent(&pod_ref.node, &pod_ref.pod);
    // `delete-cas` alone would pass where the labels are gone: then the pod is no longer this RC's.
    let mut ops = vec![
        Op::CheckIndex { key: label.clone(), index: pod.label_index },
        Op::Delete { key: label },
    ];
    // An intent that was written since it was observed as missing would be left behind.
    ops.push(match pod.intent {
        Intent::Missing => Op::CheckNotExists { key: intent },
        Intent::Same(index) | Intent::Differs(index) => Op::DeleteCas { key: intent, index },
    });
    ops
}

fn adopted(intent: Index) -> Intent {
    if intent == Index::ZERO { Intent::Missing } else { Intent::Same(intent) }
}

/// A pod under the manifest's present id, on the same node.
fn renamed(spec: &RcSpec, pod_ref: &PodRef) -> PodRef {
    PodRef { node: pod_ref.node.clone(), pod: spec.manifest.id().clone() }
}

/// Operations of one step, each guarded by an observed index.
pub fn ops(spec: &RcSpec, step: &PodStep) -> Vec<Op> {
    match step {
        PodStep::Add { pod_ref, intent } => vec![
            label_op(pod_ref, &spec.labels_of_pod(), Index::ZERO),
            intent_op(spec, pod_ref, adopted(*intent)),
        ],
        PodStep::TakeOver { pod_ref, pod, from, record } => vec![
            Op::CheckIndex { key: key::rc(*from), index: *record },
            label_op(pod_ref, &merged(spec, &pod.labels), pod.label_index),
            intent_op(spec, pod_ref, pod.intent),
        ],
        PodStep::Remove { pod_ref, pod, .. } => removal_ops(pod_ref, pod),
        PodStep::Repair { pod_ref, pod, why: Drift::PodIdChanged } => {
            let new = renamed(spec, pod_ref);
            let mut ops = removal_ops(pod_ref, pod);
            ops.push(label_op(&new, &merged(spec, &pod.labels), Index::ZERO));
            ops.push(intent_op(spec, &new, Intent::Missing));
            ops
        }
        PodStep::Repair { pod_ref, pod, .. } => {
            let labels = merged(spec, &pod.labels);
            let label = if labels == pod.labels {
                let key = key::pod_labels(&pod_ref.node, &pod_ref.pod);
                Op::CheckIndex { key, index: pod.label_index }
            } else {
                label_op(pod_ref, &labels, pod.label_index)
            };
            vec![label, intent_op(spec, pod_ref, pod.intent)]
        }
    }
}

/// Changes what the step's node has allocated. Where the record cannot be read, an existing pod's allocation is left
/// as it is.
fn change_allocation(
    ledger: &mut Ledger<'_>,
    spec: &RcSpec,
    step: &PodStep,
) -> Result<(), Insufficient> {
    let (owner, want) = (spec.owner(), PodResources::of_manifest(&spec.manifest));
    match step {
        PodStep::Add { pod_ref, .. } => {
            ledger.allocate_devices(&pod_ref.node, &pod_ref.pod, &owner, &want)
        }
        PodStep::TakeOver { pod_ref, from, .. } => {
            ledger.release(&pod_ref.node, &pod_ref.pod, &AllocationOwner::Rc(*from));
            ledger.allocate_devices(&pod_ref.node, &pod_ref.pod, &owner, &want)
        }
        PodStep::Remove { pod_ref, .. } => {
            ledger.release(&pod_ref.node, &pod_ref.pod, &owner);
            if !want.is_nothing() {
                // A pod that asks for something has an allocation. If none is seen, what is seen is old: it precedes a
                // restored snapshot, or is this farm's own write that the restore undid.
                ledger.check(&pod_ref.node);
            }
            Ok(())
        }
        PodStep::Repair { pod_ref, .. } if ledger.node(&pod_ref.node).is_unreadable => Ok(()),
        PodStep::Repair { pod_ref, why, .. } => {
            if *why == Drift::PodIdChanged {
                ledger.release(&pod_ref.node, &pod_ref.pod, &owner);
            }
            ledger.allocate_devices(&pod_ref.node, spec.manifest.id(), &owner, &want)
        }
    }
}

/// The part of a plan that goes into the next transaction.
#[derive(Debug, Default)]
pub struct StepBatch {
    /// How many of the steps.
    pub steps: usize,
    /// Their operations, those of `bookings` included.
    pub ops: Vec<Op>,
    /// Changes of what nodes have allocated. None when the pods ask for nothing and were allocated nothing.
    pub bookings: Vec<Booking>,
}

/// Why a transaction cannot be made.
#[derive(Debug)]
pub enum BatchError {
    /// Not even one step fits into a transaction.
    TooLarge,
    /// The node has no capacity for its pod any more.
    Insufficient(NodeName, Insufficient),
}

/// Fills the next transaction with the first of `steps`, as many as fit.
///
/// # Errors
/// [`BatchError`].
pub fn next_batch(
    spec: &RcSpec,
    steps: &[PodStep],
    limits: TxnLimits,
    capacities: &NodeCapacities,
) -> Result<StepBatch, BatchError> {
    let (mut count, mut bytes) = (FIXED_OPS, FIXED_BYTES);
    let mut ledger = Ledger::on(capacities);
    let mut batch = StepBatch::default();
    // By node: a later step on the same node replaces the booking of an earlier one.
    let mut bookings: BTreeMap<NodeName, (Booking, Op)> = BTreeMap::new();
    for step in steps {
        let node = &step.pod_ref().node;
        let ops = ops(spec, step);
        change_allocation(&mut ledger, spec, step)
            .map_err(|why| BatchError::Insufficient(node.clone(), why))?;
        let booking = ledger.booking(node).map(|booking| {
            let op = booking.op();
            (booking, op)
        });
        let replaced = booking.as_ref().and(bookings.get(node));
        count += ops.len() + usize::from(booking.is_some());
        if let PodStep::TakeOver { .. } = step {
            // The audit record of the other RC names the node.
            (count, bytes) = (count + 1, bytes + 2 * node.as_str().len() + AUDIT_BYTES);
        }
        count -= usize::from(replaced.is_some());
        bytes +=
            ops.iter().chain(booking.iter().map(|(_, op)| op)).map(Op::body_bytes).sum::<usize>();
        bytes -= replaced.map_or(0, |(_, op)| op.body_bytes());
        if count > limits.ops || bytes > limits.bytes {
            break;
        }
        batch.steps += 1;
        batch.ops.extend(ops);
        bookings.extend(booking.map(|booking| (node.clone(), booking)));
    }
    if batch.steps == 0 && !steps.is_empty() {
        return Err(BatchError::TooLarge);
    }
    for (booking, op) in bookings.into_values() {
        batch.ops.push(op);
        batch.bookings.push(booking);
    }
    Ok(batch)
}

/// The pods after `step` was committed at `index`.
pub fn apply(pods: &mut RcPods, spec: &RcSpec, step: &PodStep, index: Index) {
    match step {
        PodStep::Add { pod_ref, intent } => {
            let intent = match adopted(*intent) {
                Intent::Missing => Intent::Same(index),
                kept => kept,
            };
            let labels = spec.labels_of_pod();
            let health = Health::Absent;
            let created = index;
            let pod =
                RcPod { label_index: index, created, labels, intent, health, unproved: false };
            pods.insert(pod_ref.clone(), pod);
        }
        PodStep::TakeOver { pod_ref, pod, .. } => {
            let intent = match pod.intent {
                Intent::Same(kept) => Intent::Same(kept),
                Intent::Missing | Intent::Differs(_) => Intent::Same(index),
            };
            let labels = merged(spec, &pod.labels);
            let (created, health) = (pod.created, pod.health);
            let unproved = pod.unproved || !matches!(pod.intent, Intent::Same(_));
            let pod = RcPod { label_index: index, created, labels, intent, health, unproved };
            pods.insert(pod_ref.clone(), pod);
        }
        PodStep::Remove { pod_ref, .. } => {
            pods.remove(pod_ref);
        }
        PodStep::Repair { pod_ref, pod, why } => {
            let labels = merged(spec, &pod.labels);
            let moved = *why == Drift::PodIdChanged;
            let label_index = if labels == pod.labels && !moved { pod.label_index } else { index };
            let intent = match pod.intent {
                Intent::Same(kept) if !moved => Intent::Same(kept),
                _ => Intent::Same(index),
            };
            let created = if moved { index } else { pod.created };
            let unproved = pod.unproved || moved || !matches!(pod.intent, Intent::Same(_));
            let new = RcPod { label_index, created, labels, intent, health: pod.health, unproved };
            pods.remove(pod_ref);
            pods.insert(renamed(spec, pod_ref), new);
        }
    }
}

/// Stands for the index of a transaction that is not committed yet.
pub const UNCOMMITTED: Index = Index(u64::MAX);

/// The pods after `steps`, which are not committed yet.
pub fn after(pods: &RcPods, spec: &RcSpec, steps: &[PodStep]) -> RcPods {
    let mut pods = pods.clone();
    steps.iter().for_each(|step| apply(&mut pods, spec, step, UNCOMMITTED));
    pods
}

/// Nodes that steps add to, remove from and repair, for the audit record.
pub fn nodes(steps: &[PodStep]) -> (Vec<NodeName>, Vec<NodeName>, Vec<NodeName>) {
    let (mut added, mut removed, mut repaired) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        let node = step.pod_ref().node.clone();
        match step {
            PodStep::Add { .. } | PodStep::TakeOver { .. } => added.push(node),
            PodStep::Remove { .. } => removed.push(node),
            PodStep::Repair { .. } => repaired.push(node),
        }
    }
    (added, removed, repaired)
}

/// Nodes that have a pod.
pub fn node_set(pods: &RcPods) -> BTreeSet<NodeName> {
    pods.keys().map(|pod_ref| pod_ref.node.clone()).collect()
}
