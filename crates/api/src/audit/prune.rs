//! Retention: plans to delete old records and to keep their folded state.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::fold::{Base, Folded, fold_from, in_order, queue_change};
use super::job_fold::fold_jobs;
use super::{Checkpoint, EventType, FoldedController, FoldedJob, Logged};
use crate::ids::{NodeName, QueueName, RcId};
use crate::{Index, Timestamp};

/// Approximate size of a checkpoint's part in bytes. Consul stores values up to 512 KiB.
const PART_BYTES: usize = 64 * 1024;
/// Number of nodes of one controller that stay in one part.
const CHUNK_NODES: usize = 128;

/// Steps of a prune: first all checkpoints, then the deletions. A crash in between leaves a log that folds to the same
/// state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// Parts of one set. Each is written as a record with the time of the prune. Empty if nothing is deleted.
    pub checkpoints: Vec<Checkpoint>,
    /// Records to delete.
    pub delete: Vec<Uuid>,
}

/// Plans the deletion of records older than `older_than`. `set`, a UUID of version 7, is the id of the checkpoint.
///
/// A checkpoint covers all records up to the newest deleted one in the order of the log. A newer timestamp before that
/// record (a clock was ahead) keeps a record readable, but it is no longer folded.
pub fn prune_plan(log: &[Logged], older_than: Timestamp, set: Uuid) -> PrunePlan {
    let ordered = in_order(log);
    let is_checkpoint = |logged: &Logged| logged.record.event_type == EventType::Checkpoint;
    let changes = ordered.iter().filter_map(|l| Some((queue_change(l)?.queue, l.id)));
    let last: BTreeMap<QueueName, Uuid> = changes.collect();
    let jobs = fold_jobs(ordered.iter().copied());
    let of_jobs = jobs.values().flat_map(FoldedJob::sources);
    let kept: BTreeSet<Uuid> = last.into_values().chain(of_jobs).collect();
    let old: Vec<&Logged> = ordered
        .iter()
        .copied()
        .filter(|logged| !is_checkpoint(logged) && logged.record.timestamp < older_than)
        .filter(|logged| !kept.contains(&logged.id))
        .collect();
    let Some(newest) = old.last() else {
        return PrunePlan::default();
    };
    let base = Base::of(&ordered);
    let through = newest.index.max(base.through);
    let Folded { controllers, .. } = fold_from(&base, &ordered, through);
    // Superseded checkpoints are deleted, and old incomplete ones.
    let superseded = ordered
        .iter()
        .filter(|logged| is_checkpoint(logged))
        .filter(|logged| logged.record.timestamp < older_than || base.records.contains(&logged.id));
    PrunePlan {
        checkpoints: parts(controllers, through, set),
        delete: old.iter().copied().chain(superseded.copied()).map(|logged| logged.id).collect(),
    }
}

/// Divides a state into parts of bounded size.
fn parts(state: BTreeMap<RcId, FoldedController>, through: Index, set: Uuid) -> Vec<Checkpoint> {
    let mut parts: Vec<BTreeMap<RcId, FoldedController>> = vec![BTreeMap::new()];
    let mut bytes = 0;
    for (id, FoldedController { nodes, desired, record }) in state {
        let is_known = nodes.is_some();
        let nodes: Vec<NodeName> = nodes.into_iter().flatten().collect();
        let empty = nodes.is_empty().then_some(&[][..]);
        for some in empty.into_iter().chain(nodes.chunks(CHUNK_NODES)) {
            let more = 80 + some.iter().map(|node| node.as_str().len() + 3).sum::<usize>();
            if bytes > 0 && bytes + more > PART_BYTES {
                parts.push(BTreeMap::new());
                bytes = 0;
            }
            bytes += more;
            let part = parts.last_mut().expect("never empty").entry(id).or_default();
            part.desired = desired;
            part.record.clone_from(&record);
            if is_known {
                part.nodes.get_or_insert_default().extend(some.iter().cloned());
            }
        }
    }
    let count = parts.len();
    let part = |(part, controllers)| Checkpoint { set, part, parts: count, through, controllers };
    parts.into_iter().enumerate().map(part).collect()
}
