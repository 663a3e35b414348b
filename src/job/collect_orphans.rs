//! What is left of a job whose record is gone: deleted by hand, or while no farm ran. Pure.
//!
//! First its pods go, then, when their nodes have stopped them, the group with its place, then the status and the
//! commands that nobody carries out any more. Each transaction is guarded by the absence of the record: a look at a
//! tree that was cut short removes nothing, and a job that is made meanwhile looks after its name itself.

use super::caches::Pods;
use super::events;
use super::manifest::PodIdentity;
use super::writes::remove_ops;
use crate::cluster::commands::Pending;
use crate::farm::kind::ControllerContext;
use rcfarm_api::audit::{AuditRecord, Details, JobStep};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_store::{Index, Op};

/// The next thing to do.
#[derive(Debug, Default)]
#[must_use]
pub struct OrphanCollection {
    /// Operations, beside the fence, the guard, the status and the audit record.
    pub ops: Vec<Op>,
    /// Pods that go.
    pub pods: Vec<(PodRef, PodIdentity)>,
    /// The group goes.
    pub group: bool,
    /// Nothing is left after it: the status goes, too.
    pub is_last: bool,
}

/// Decides; `room`: so many operations fit.
pub fn collect_orphans(
    id: &Namespaced,
    (group_index, group): &(Index, Option<PodGroupRecord>),
    pods: &Pods,
    commands: &[Pending],
    room: usize,
) -> OrphanCollection {
    let mut collection = OrphanCollection::default();
    for (place, (labelled, intent)) in pods.intents.iter().chain(&pods.orphans) {
        let ops = remove_ops(place, labelled.index, intent.map(|(index, _)| index));
        if collection.ops.len() + ops.len() > room {
            return collection;
        }
        collection.ops.extend(ops);
        collection.pods.push((place.clone(), labelled.identity.clone()));
    }
    if !collection.pods.is_empty() || !pods.leaving.is_empty() {
        return collection;
    }
    let owner = group.as_ref().and_then(|group| group.spec.owner.as_ref());
    if owner.is_some_and(|owner| owner.kind == "Job" && owner.name == id.name.as_str()) {
        collection.group = true;
        collection.ops.push(Op::DeleteCas { key: key::pod_group(id), index: *group_index });
    }
    let left = room.saturating_sub(collection.ops.len());
    let consumed = commands.iter().take(left);
    collection
        .ops
        .extend(consumed.map(|one| Op::DeleteCas { key: key::command(one.id), index: one.index }));
    collection.is_last = true;
    collection
}

/// What the audit log says of it.
pub fn audited(
    ctx: &ControllerContext,
    id: &Namespaced,
    status: &JobStatus,
    collection: &OrphanCollection,
) -> AuditRecord {
    let phase =
        if collection.is_last { "Deleted".to_owned() } else { status.state.phase.to_string() };
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
