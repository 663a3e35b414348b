//! Retention: plans to delete old records and to keep their folded state.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::fold::{Base, Folded, fold_from, in_order, queue_change};
use super::job_fold::fold_jobs;
use super::record_fold::record_change;
use super::{Checkpoint, EventType, FoldedController, FoldedJob, Logged};
use crate::ids::{NodeName, RcId};
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
    let jobs = fold_jobs(ordered.iter().copied());
    let of_jobs = jobs.values().flat_map(FoldedJob::sources);
    let of_queues = last_records(&ordered, older_than, |logged| {
        queue_change(logged).map(|change| (change.queue, change.after.is_none()))
    });
    let of_records = last_records(&ordered, older_than, |logged| {
        record_change(logged).map(|(record, hash)| (record, hash.is_none()))
    });
    let kept: BTreeSet<Uuid> = of_queues.into_iter().chain(of_records).chain(of_jobs).collect();
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

/// The records on which the state of something stands: the last one of each. `changed`: what a record of the log
/// changes, and whether that is its deletion, which is needed as long as a record of its earlier life is kept.
fn last_records<K: Ord>(
    ordered: &[&Logged],
    older_than: Timestamp,
    changed: impl Fn(&Logged) -> Option<(K, bool)>,
) -> BTreeSet<Uuid> {
    /// The last record of something.
    struct Last {
        id: Uuid,
        is_deletion: bool,
        /// All its records are old.
        are_old: bool,
    }
    let mut last: BTreeMap<K, Last> = BTreeMap::new();
    for logged in ordered {
        let Some((key, is_deletion)) = changed(logged) else { continue };
        let is_old = logged.record.timestamp < older_than;
        let last = last.entry(key).or_insert(Last { id: logged.id, is_deletion, are_old: true });
        let are_old = last.are_old && is_old;
        *last = Last { id: logged.id, is_deletion, are_old };
    }
    let is_needed = |last: &Last| !(last.is_deletion && last.are_old);
    last.into_values().filter(is_needed).map(|last| last.id).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Actor, AuditRecord, Details, QueueChange};

    /// A change of queue `q`: its weight, or its deletion, at a time in seconds.
    fn change(n: u64, after: Option<u32>, at: i64) -> Logged {
        let change = QueueChange {
            queue: "q".parse().unwrap(),
            actor: Actor::User { name: "ada".to_owned() },
            reason: "Requested".to_owned(),
            farm: None,
            before: None,
            after: after.map(|weight| serde_json::json!({"weight": weight})),
        };
        let details = match after {
            Some(_) => Details::QueueChanged(change),
            None => Details::QueueDeleted(change),
        };
        let at = Timestamp::from_second(at).unwrap();
        Logged {
            id: Uuid::from_u128(n.into()),
            index: Index(n),
            record: AuditRecord::new(&details, at),
        }
    }

    #[test]
    fn old_deletion_of_a_queue_is_deleted_with_the_records_before_it() {
        let log = [change(1, Some(1), 10), change(2, Some(2), 20), change(3, None, 30)];
        let deleted = |log: &[Logged], older_than| {
            let plan = prune_plan(log, Timestamp::from_second(older_than).unwrap(), Uuid::nil());
            plan.delete.iter().map(|id| id.as_u128()).collect::<Vec<_>>()
        };
        assert_eq!(deleted(&log[..2], 100), [1], "the queue stands on its last record");
        assert_eq!(deleted(&log, 25), [1, 2], "the deletion is not old");
        assert_eq!(deleted(&log, 100), [1, 2, 3]);
        // A clock was ahead: without the deletion the queue would come back.
        let ahead = [change(1, Some(1), 10), change(2, Some(2), 500), change(3, None, 30)];
        assert_eq!(deleted(&ahead, 100), [1]);
    }
}
