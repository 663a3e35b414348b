//! Turns the steps of a plan into transactions, as full as they may be, and says what is known afterwards. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Drift, PodStep, RcPod};
use crate::cluster::intents::Intent;
use crate::placement::capacity::{Booking, Insufficient, Ledger, NodeCapacities};
use rcfarm_api::ids::NodeName;
use rcfarm_api::ids::PodRef;
use rcfarm_api::key;
use rcfarm_api::labels::{Labels, encode_labels};
use rcfarm_api::manifest::content_hash;
use rcfarm_api::node::Health;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Index, Op, TxnLimits};

/// Operations that every transaction of an owner has besides its pods': fence, record guard, status, audit.
pub const FIXED_OPS: usize = 4;
/// Bytes set aside for these four. The audit record alone may list 128 nodes and name 60 more, 200 bytes each, in base64.
const FIXED_BYTES: usize = 64 * 1024;

/// The labels that a repaired pod gets: the RC's over what is there.
fn merged(spec: &RcSpec, labels: &Labels) -> Labels {
    let mut merged = labels.clone();
    merged.extend(spec.labels_of_pod());
    merged
}

/// Writes or keeps an intent, guarded by what was seen.
fn intent_op(spec: &RcSpec, place: &PodRef, seen: Intent) -> Op {
    let key = key::intent(&place.node, &place.pod);
    match seen {
        Intent::Same(index) => Op::CheckIndex { key, index },
        Intent::Missing | Intent::Differs(_) => {
            let value = bytes::Bytes::copy_from_slice(spec.manifest.text().as_bytes());
            if enabled(Failpoint::NoIntentGuard) {
                return Op::Set { key, value, flags: 0 };
            }
            Op::Cas { key, value, flags: 0, index: seen.index() }
        }
    }
}

fn label_op(place: &PodRef, labels: &Labels, index: Index) -> Op {
    let key = key::pod_labels(&place.node, &place.pod);
    let (value, flags) = (encode_labels(labels), 0);
    if enabled(Failpoint::NoLabelGuard) {
        return Op::Set { key, value, flags };
    }
    Op::Cas { key, value, flags, index }
}

fn removal_ops(place: &PodRef, pod: &RcPod) -> Vec<Op> {
    let label = key::pod_labels(&place.node, &place.pod);
    let intent = key::intent(&place.node, &place.pod);
    // Alone, `delete-cas` passes when the labels are gone: then the pod is not ours any more, but its owner's.
    let mut ops = vec![
        Op::CheckIndex { key: label.clone(), index: pod.label_index },
        Op::Delete { key: label },
    ];
    if enabled(Failpoint::NoOwnIdCheck) {
        ops.remove(0);
    }
    // One that was not seen may be there all the same, and would be left behind.
    ops.push(match pod.intent {
        Intent::Missing => Op::CheckNotExists { key: intent },
        Intent::Same(index) | Intent::Differs(index) => Op::DeleteCas { key: intent, index },
    });
    ops
}

fn adopted(intent: Index) -> Intent {
    if intent == Index::ZERO { Intent::Missing } else { Intent::Same(intent) }
}

/// The place of a pod under the manifest's present id.
fn renamed(spec: &RcSpec, place: &PodRef) -> PodRef {
    PodRef { node: place.node.clone(), pod: spec.manifest.id().clone() }
}

/// The operations of one step, each guarded by what the plan saw.
#[must_use]
pub fn ops(spec: &RcSpec, step: &PodStep) -> Vec<Op> {
    match step {
        PodStep::Add { place, intent } => vec![
            label_op(place, &spec.labels_of_pod(), Index::ZERO),
            intent_op(spec, place, adopted(*intent)),
        ],
        PodStep::Remove { place, pod, .. } => removal_ops(place, pod),
        PodStep::Repair { place, pod, why: Drift::PodIdChanged } => {
            let new = renamed(spec, place);
            let mut ops = removal_ops(place, pod);
            ops.push(label_op(&new, &merged(spec, &pod.labels), Index::ZERO));
            ops.push(intent_op(spec, &new, Intent::Missing));
            ops
        }
        PodStep::Repair { place, pod, .. } => {
            let labels = merged(spec, &pod.labels);
            let label = if labels == pod.labels {
                let key = key::pod_labels(&place.node, &place.pod);
                Op::CheckIndex { key, index: pod.label_index }
            } else {
                label_op(place, &labels, pod.label_index)
            };
            vec![label, intent_op(spec, place, pod.intent)]
        }
    }
}

/// What one step changes of what its node has allocated. Where the record cannot be read, a pod that is there is left
/// as it is.
fn book(ledger: &mut Ledger<'_>, spec: &RcSpec, step: &PodStep) -> Result<(), Insufficient> {
    let (owner, want) = (spec.owner(), spec.resources());
    match step {
        PodStep::Add { place, .. } => ledger.allocate(&place.node, &place.pod, &owner, want),
        PodStep::Remove { place, .. } => {
            ledger.release(&place.node, &place.pod, &owner);
            Ok(())
        }
        PodStep::Repair { place, .. } if ledger.room(&place.node).is_unreadable => Ok(()),
        PodStep::Repair { place, why, .. } => {
            if *why == Drift::PodIdChanged {
                ledger.release(&place.node, &place.pod, &owner);
            }
            ledger.allocate(&place.node, spec.manifest.id(), &owner, want)
        }
    }
}

/// What the steps of one transaction change of what nodes have allocated. None, when the pods ask for nothing and were
/// promised nothing.
///
/// # Errors
/// The node that has no room for its pod any more.
pub fn bookings(
    spec: &RcSpec,
    steps: &[PodStep],
    rooms: &NodeCapacities,
) -> Result<Vec<Booking>, (NodeName, Insufficient)> {
    let mut ledger = Ledger::on(rooms);
    for step in steps {
        let booked = book(&mut ledger, spec, step);
        booked.map_err(|insufficient| (step.place().node.clone(), insufficient))?;
    }
    Ok(ledger.bookings())
}

/// How many of `steps` go into the next transaction; 0 when not even one fits.
#[must_use]
pub fn fitting(
    spec: &RcSpec,
    steps: &[PodStep],
    limits: TxnLimits,
    rooms: &NodeCapacities,
) -> usize {
    let (mut count, mut bytes) = (FIXED_OPS, FIXED_BYTES);
    let mut ledger = Ledger::on(rooms);
    let mut booked: BTreeMap<NodeName, usize> = BTreeMap::new();
    let fits = |step: &&PodStep| {
        let ops = ops(spec, step);
        count += ops.len();
        bytes += ops.iter().map(Op::body_bytes).sum::<usize>();
        let node = &step.place().node;
        // What does not fit any more is found out when it is written.
        if book(&mut ledger, spec, step).is_ok()
            && let Some(booking) = ledger.booking(node)
        {
            booked.insert(node.clone(), booking.op().body_bytes());
        }
        count + booked.len() <= limits.ops && bytes + booked.values().sum::<usize>() <= limits.bytes
    };
    steps.iter().take_while(fits).count()
}

/// The pods after `step` was committed at `index`.
pub fn apply(pods: &mut BTreeMap<PodRef, RcPod>, spec: &RcSpec, step: &PodStep, index: Index) {
    match step {
        PodStep::Add { place, intent } => {
            let intent = match adopted(*intent) {
                Intent::Missing => Intent::Same(index),
                kept => kept,
            };
            let labels = spec.labels_of_pod();
            let health = Health::Absent;
            let pod = RcPod { label_index: index, created: index, labels, intent, health };
            pods.insert(place.clone(), pod);
        }
        PodStep::Remove { place, .. } => {
            pods.remove(place);
        }
        PodStep::Repair { place, pod, why } => {
            let labels = merged(spec, &pod.labels);
            let moved = *why == Drift::PodIdChanged;
            let label_index = if labels == pod.labels && !moved { pod.label_index } else { index };
            let intent = match pod.intent {
                Intent::Same(kept) if !moved => Intent::Same(kept),
                _ => Intent::Same(index),
            };
            let created = if moved { index } else { pod.created };
            let new = RcPod { label_index, created, labels, intent, health: pod.health };
            pods.remove(place);
            pods.insert(renamed(spec, place), new);
        }
    }
}

/// Places that a committed step left.
#[must_use]
pub fn left(spec: &RcSpec, step: &PodStep) -> Option<PodRef> {
    match step {
        PodStep::Remove { place, .. } => Some(place.clone()),
        PodStep::Repair { place, why: Drift::PodIdChanged, .. }
            if place.pod != *spec.manifest.id() =>
        {
            Some(place.clone())
        }
        PodStep::Add { .. } | PodStep::Repair { .. } => None,
    }
}

/// Nodes that steps add to, remove from and repair, for the audit record.
#[must_use]
pub fn nodes(steps: &[PodStep]) -> (Vec<NodeName>, Vec<NodeName>, Vec<NodeName>) {
    let (mut added, mut removed, mut repaired) = (Vec::new(), Vec::new(), Vec::new());
    for step in steps {
        let node = step.place().node.clone();
        match step {
            PodStep::Add { .. } => added.push(node),
            PodStep::Remove { .. } => removed.push(node),
            PodStep::Repair { .. } => repaired.push(node),
        }
    }
    (added, removed, repaired)
}

/// All nodes with a pod.
#[must_use]
pub fn node_set(pods: &BTreeMap<PodRef, RcPod>) -> BTreeSet<NodeName> {
    pods.keys().map(|place| place.node.clone()).collect()
}

/// The hash that intents are compared by.
#[must_use]
pub fn manifest_hash(spec: &RcSpec) -> u64 {
    content_hash(spec.manifest.text().as_bytes())
}
