//! Deletes what is left of a job whose record is gone. Pure.
//!
//! First the pods; once their nodes have stopped them, the group with its allocations, the status and pending commands.
//! Each transaction checks that the record is absent. So an incomplete list removes nothing, and a job created
//! meanwhile under the same name keeps its keys.

use super::caches::Pods;
use super::events;
use super::manifest::PodIdentity;
use super::writes::{remove_ops, remove_unlabelled_ops};
use crate::cluster::commands::Pending;
use crate::farm::kind::ControllerContext;
use rcfarm_api::audit::{AuditRecord, DELETED, Details, JobStep};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::{Index, Op};

/// One transaction of the collection.
#[derive(Debug, Default)]
#[must_use]
pub struct OrphanCollection {
    /// Operations besides fence, guard, status and audit record.
    pub ops: Vec<Op>,
    /// Pods removed.
    pub pods: Vec<(PodRef, PodIdentity)>,
    /// Whether the group is deleted.
    pub group: bool,
    /// Whether nothing is left afterwards; the status is deleted, too.
    pub is_last: bool,
}

/// `room`: limit of operations.
pub fn collect_orphans(
    id: &Namespaced,
    (group_index, group): &(Index, Option<PodGroupRecord>),
    pods: &Pods,
    commands: &[Pending],
    room: usize,
) -> OrphanCollection {
    let mut collection = OrphanCollection::default();
    for (place, (labelled, intent)) in pods.members.iter().chain(&pods.orphans) {
        let ops = remove_ops(place, labelled.index, *intent);
        if collection.ops.len() + ops.len() > room {
            return collection;
        }
        collection.ops.extend(ops);
        collection.pods.push((place.clone(), labelled.identity.clone()));
    }
    for (place, (identity, intent)) in &pods.unlabelled {
        let ops = remove_unlabelled_ops(place, *intent);
        if collection.ops.len() + ops.len() > room {
            return collection;
        }
        collection.ops.extend(ops);
        collection.pods.push((place.clone(), identity.clone()));
    }
    if !collection.pods.is_empty() || !pods.leaving.is_empty() {
        return collection;
    }
    let owner = group.as_ref().and_then(|group| group.spec.owner.as_ref());
    if owner.is_some_and(|owner| owner.kind == "Job" && owner.name == id.name.as_str()) {
        collection.group = true;
        collection.ops.extend(Op::delete_if_there(key::pod_group(id), *group_index));
    }
    // The deletion of the status takes an operation more than its replacement.
    let left = room.saturating_sub(collection.ops.len() + 1) / 2;
    let consumed = commands.iter().take(left);
    collection.ops.extend(consumed.flat_map(|one| Op::delete_if_there(one.key.clone(), one.index)));
    collection.is_last = true;
    collection
}

/// Audit record of the transaction.
pub fn audited(
    ctx: &ControllerContext,
    id: &Namespaced,
    status: &JobStatus,
    collection: &OrphanCollection,
) -> AuditRecord {
    let phase =
        if collection.is_last { DELETED.to_owned() } else { status.state.phase.to_string() };
    let removed =
        collection.pods.iter().map(|(place, identity)| format!("{}@{}", identity.slot, place.node));
    let details = JobStep {
        phase,
        reason: "RecordGone".to_owned(),
        message: "its record was deleted".to_owned(),
        pods_removed: removed.collect(),
        ..events::unasked(ctx, id, status)
    };
    AuditRecord::new(&Details::JobStep(details), ctx.clock.wall())
}
