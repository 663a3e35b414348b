//! Folding the log into a state, and comparing that state with what is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use super::job_fold::fold_jobs;
use super::queues::is_abridged;
use super::record_fold::{FoldedRecords, record_change};
use super::{
    AuditRecord, Checkpoint, ControllerChange, Details, EventType, FoldedController, FoldedJob,
    PROMISE_LEAKED, QueueChange, Retarget, abridged,
};
use crate::Index;
use crate::ids::{Namespaced, NodeName, QueueName, RcId};
use crate::queue::spec::QueueSpec;

/// A record with its position in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// The key's UUID.
    pub id: Uuid,
    /// CreateIndex of the record, which orders the log exactly. Ids of two farms do so only if their clocks agree, and
    /// p2's ids (version 4) do not.
    pub index: Index,
    /// The parsed record.
    pub record: AuditRecord,
}

/// State that results from a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folded {
    /// Controllers with a record or pods, according to the log.
    pub controllers: BTreeMap<RcId, FoldedController>,
    /// Last specification of each queue; `None`: it was deleted.
    pub queues: BTreeMap<QueueName, Option<Value>>,
    /// Jobs that were not deleted.
    pub jobs: BTreeMap<Namespaced, FoldedJob>,
    /// Other records that users write.
    pub records: FoldedRecords,
    /// Records that contradict those before them.
    pub gaps: Vec<Gap>,
    /// Number of retargets without a controller (by p2). They cannot be folded.
    pub unattributed: usize,
}

/// A record that contradicts those before it, or is invalid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Gap {
    /// Id of the record.
    pub record: Uuid,
    /// Controller of the record, if it names one.
    pub controller: Option<RcId>,
    /// Description for people.
    pub what: String,
}

/// Stored state of one controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actual {
    /// Nodes with a pod that is labelled with the controller's id.
    pub nodes: BTreeSet<NodeName>,
    /// Desired count of the record. `None`: no record, or an invalid one.
    pub desired: Option<i64>,
}

/// A difference between the log and the stored state. Each change by rcfarm has its record in its transaction, so it
/// was made by another program or by hand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// The log does not name the nodes: p2 placed the pods, and nothing has changed since.
    NotInLog {
        /// Id of the controller.
        controller: RcId,
    },
    /// The pods are on other nodes than in the log.
    Nodes {
        /// Id of the controller.
        controller: RcId,
        /// In the log, but not stored.
        missing: BTreeSet<NodeName>,
        /// Stored, but not in the log.
        unexplained: BTreeSet<NodeName>,
    },
    /// The record is not the one that a command wrote last. The count may be the same.
    Record {
        /// Id of the controller.
        controller: RcId,
    },
    /// The counts of record and log differ, or only one of them exists: the record was changed by hand.
    Desired {
        /// Id of the controller.
        controller: RcId,
        /// Count in the log.
        logged: Option<i64>,
        /// Count in the record.
        actual: Option<i64>,
    },
}

/// Folds a log in the order of its indexes, from the newest complete checkpoint or from the empty state.
pub fn fold(log: &[Logged]) -> Folded {
    let ordered = in_order(log);
    let base = Base::of(&ordered);
    fold_from(&base, &ordered, Index(u64::MAX))
}

/// The records in the order in which they were committed.
pub(super) fn in_order(log: &[Logged]) -> Vec<&Logged> {
    let mut ordered: Vec<&Logged> = log.iter().collect();
    ordered.sort_by_key(|logged| (logged.index, logged.id));
    ordered
}

/// Start of a fold: a state, and the index that it covers.
#[derive(Debug, Default)]
pub(super) struct Base {
    pub(super) through: Index,
    /// Records of the checkpoint.
    pub(super) records: BTreeSet<Uuid>,
    state: BTreeMap<RcId, FoldedController>,
}

impl Base {
    /// The complete checkpoint with the greatest covered index.
    pub(super) fn of(ordered: &[&Logged]) -> Base {
        let mut sets: BTreeMap<Uuid, BTreeMap<usize, (&Logged, Checkpoint)>> = BTreeMap::new();
        let checkpoints = ordered.iter().filter(|l| l.record.event_type == EventType::Checkpoint);
        for logged in checkpoints {
            if let Ok(Details::Checkpoint(part)) = logged.record.details() {
                sets.entry(part.set).or_default().insert(part.part, (logged, part));
            }
        }
        let is_complete = |parts: &BTreeMap<usize, (&Logged, Checkpoint)>| {
            parts.values().all(|(_, part)| part.parts == parts.len())
        };
        let complete = sets.into_values().filter(is_complete).map(Base::join);
        complete.max_by_key(|base| base.through).unwrap_or_default()
    }

    fn join(parts: BTreeMap<usize, (&Logged, Checkpoint)>) -> Base {
        let mut base = Base::default();
        for (logged, part) in parts.into_values() {
            // An imported log has the indexes of its new cluster. A checkpoint that is older than what it covers was
            // imported, and the records that it covers were pruned before.
            base.through = if part.through < logged.index { part.through } else { Index::ZERO };
            base.records.insert(logged.id);
            for (id, FoldedController { nodes, desired, record }) in part.controllers {
                let whole = base.state.entry(id).or_default();
                (whole.desired, whole.record) = (desired, record);
                if let Some(nodes) = nodes {
                    whole.nodes.get_or_insert_default().extend(nodes);
                }
            }
        }
        base
    }
}

/// Folds the records after the base, up to and including index `until`.
pub(super) fn fold_from(base: &Base, ordered: &[&Logged], until: Index) -> Folded {
    let mut folded = Folded { controllers: base.state.clone(), ..Folded::default() };
    // A prune keeps what the state of queues, jobs and other records stands on, so that checkpoints do not have them.
    folded.jobs = fold_jobs(ordered.iter().copied().filter(|logged| logged.index <= until));
    for logged in ordered.iter().filter(|logged| logged.index <= until) {
        if let Some(change) = queue_change(logged) {
            folded.queues.insert(change.queue, change.after);
        }
        folded.records.extend(record_change(logged));
    }
    for logged in ordered.iter().filter(|l| l.index > base.through && l.index <= until) {
        match logged.record.details() {
            Ok(details) => folded.apply(logged.id, details),
            Err(error) => folded.gap(logged.id, None, error.to_string()),
        }
    }
    // A deleted controller without pods leaves no trace.
    folded.controllers.retain(|_, controller| {
        controller.desired.is_some() || controller.nodes.as_ref().is_some_and(|n| !n.is_empty())
    });
    folded
}

/// The change of a queue's record, if this is one.
pub(super) fn queue_change(logged: &Logged) -> Option<QueueChange> {
    // Few records are about queues: the details of the others are not decoded.
    let of_queues = [EventType::QueueCreated, EventType::QueueChanged, EventType::QueueDeleted];
    if !of_queues.contains(&logged.record.event_type) {
        return None;
    }
    match logged.record.details() {
        Ok(
            Details::QueueCreated(change)
            | Details::QueueChanged(change)
            | Details::QueueDeleted(change),
        ) => Some(change),
        _ => None,
    }
}

impl Folded {
    fn gap(&mut self, record: Uuid, controller: Option<RcId>, what: String) {
        self.gaps.push(Gap { record, controller, what });
    }

    fn apply(&mut self, record: Uuid, details: Details) {
        match details {
            Details::Retarget(retarget) => self.retarget(record, retarget),
            Details::ControllerCreated(change) => {
                let controller = self.change(&change);
                controller.nodes.get_or_insert_default();
            }
            Details::ControllerScaled(change)
            | Details::ControllerUpdated(change)
            | Details::ControllerEnabled(change)
            | Details::ControllerDisabled(change) => _ = self.change(&change),
            Details::ControllerDeleted(change) => {
                let controller = self.change(&change);
                controller.nodes.get_or_insert_with(|| change.orphans.into_iter().collect());
            }
            Details::OrphansRemoved(removed) if removed.reason == PROMISE_LEAKED => {}
            Details::OrphansRemoved(removed) => {
                let controller = self.controllers.get_mut(&removed.replication_controller_id);
                if let Some(nodes) = controller.and_then(|controller| controller.nodes.as_mut()) {
                    nodes.retain(|node| !removed.nodes.contains(node));
                }
            }
            Details::ChangeAcknowledged(accepted) => {
                let id = accepted.replication_controller_id;
                let (nodes, desired) = (Some(accepted.nodes), accepted.desired_after);
                let record = accepted.record;
                self.controllers.insert(id, FoldedController { nodes, desired, record });
                self.gaps.retain(|gap| gap.controller != Some(id));
            }
            Details::Other(EventType::Retarget, _) => self.unattributed += 1,
            // Neither the nodes nor the desired count of a controller change.
            _ => {}
        }
    }

    fn change(&mut self, change: &ControllerChange) -> &mut FoldedController {
        let controller = self.controllers.entry(change.replication_controller_id).or_default();
        controller.desired = change.desired_after;
        controller.record.clone_from(&change.record);
        controller
    }

    fn retarget(&mut self, record: Uuid, retarget: Retarget) {
        let id = retarget.replication_controller_id;
        let controller = self.controllers.entry(id).or_default();
        controller.desired = Some(retarget.desired_after);
        let before = controller.nodes.take();
        let was_known = before.is_some();
        let mut after = before.unwrap_or_default();
        after.retain(|node| !retarget.nodes_removed.contains(node));
        after.extend(retarget.nodes_added);
        let (length, follows) = match retarget.nodes {
            Some(listed) => {
                let listed = listed.into_iter().collect();
                let (length, follows) = (after.len(), after == listed);
                controller.nodes = Some(listed);
                (length, follows)
            }
            None => {
                let (length, follows) = (after.len(), after.len() == retarget.count);
                controller.nodes = (was_known || follows).then_some(after);
                (length, follows)
            }
        };
        if was_known && !follows {
            let what = format!(
                "it ends with {} nodes, but from the records before it follow {length}, or other ones",
                retarget.count
            );
            self.gap(record, Some(id), what);
        }
    }
}

/// Compares the folded with the stored state, in the order of the controllers' ids.
pub fn compare(folded: &Folded, actual: &BTreeMap<RcId, Actual>) -> Vec<Difference> {
    let ids: BTreeSet<RcId> = folded.controllers.keys().chain(actual.keys()).copied().collect();
    let nothing = Actual::default();
    let mut differences = Vec::new();
    for controller in ids {
        let stored = actual.get(&controller).unwrap_or(&nothing);
        let Some(logged) = folded.controllers.get(&controller) else {
            differences.push(Difference::NotInLog { controller });
            continue;
        };
        match &logged.nodes {
            None => differences.push(Difference::NotInLog { controller }),
            Some(nodes) if *nodes != stored.nodes => differences.push(Difference::Nodes {
                controller,
                missing: nodes - &stored.nodes,
                unexplained: &stored.nodes - nodes,
            }),
            Some(_) => {}
        }
        if logged.desired != stored.desired {
            let (logged, actual) = (logged.desired, stored.desired);
            differences.push(Difference::Desired { controller, logged, actual });
        }
    }
    differences
}

/// Compares the records of controllers with the hashes in the log. `stored`: [`super::record_hash`] of each record.
pub fn compare_records(folded: &Folded, stored: &BTreeMap<RcId, String>) -> Vec<Difference> {
    let differs = |(id, logged): (&RcId, &FoldedController)| {
        let (logged, stored) = (logged.record.as_ref()?, stored.get(id)?);
        (logged != stored).then_some(Difference::Record { controller: *id })
    };
    folded.controllers.iter().filter_map(differs).collect()
}

/// Queues whose stored specification is not that of the log. Queues that the log does not name are left out.
pub fn compare_queues(
    folded: &Folded,
    stored: &BTreeMap<QueueName, QueueSpec>,
) -> BTreeSet<QueueName> {
    let differs = |(name, logged): &(&QueueName, &Option<Value>)| {
        if let (Some(logged), Some(stored)) = (logged, stored.get(*name))
            && is_abridged(logged)
        {
            return serde_json::to_value(stored).is_ok_and(|spec| abridged(spec) != *logged);
        }
        let logged = logged.as_ref().map(|spec| serde_json::from_value::<QueueSpec>(spec.clone()));
        match (logged, stored.get(*name)) {
            (Some(Ok(logged)), Some(stored)) => logged != *stored,
            // A specification of another version cannot be compared.
            (Some(Err(_)), Some(_)) => false,
            (logged, stored) => logged.is_some() != stored.is_some(),
        }
    };
    folded.queues.iter().filter(differs).map(|(name, _)| name.clone()).collect()
}

impl Difference {
    /// The controller that differs.
    pub fn controller(&self) -> RcId {
        match self {
            Difference::NotInLog { controller }
            | Difference::Nodes { controller, .. }
            | Difference::Record { controller }
            | Difference::Desired { controller, .. } => *controller,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |nodes: &BTreeSet<NodeName>| {
            nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
        };
        let count = |desired: &Option<i64>| {
            desired.map_or_else(|| "no record".to_owned(), |count| format!("a count of {count}"))
        };
        match self {
            Difference::NotInLog { controller } => {
                write!(f, "{controller}: the log does not say where its pods are")
            }
            Difference::Nodes { controller, missing, unexplained } => {
                write!(f, "{controller}: ")?;
                if !missing.is_empty() {
                    write!(f, "the log has pods on {}, which are not stored", names(missing))?;
                }
                if !missing.is_empty() && !unexplained.is_empty() {
                    f.write_str("; ")?;
                }
                if !unexplained.is_empty() {
                    write!(
                        f,
                        "there are pods on {}, which the log does not have",
                        names(unexplained)
                    )?;
                }
                Ok(())
            }
            Difference::Record { controller } => {
                write!(f, "{controller}: its record is not the one that a command wrote last")
            }
            Difference::Desired { controller, logged, actual } => {
                write!(
                    f,
                    "{controller}: the log says {}, stored is {}",
                    count(logged),
                    count(actual)
                )
            }
        }
    }
}
