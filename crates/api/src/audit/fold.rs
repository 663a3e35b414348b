//! What the log says the state is, and how that compares with what is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use uuid::Uuid;

use super::{
    AuditRecord, Checkpoint, ControllerChange, Details, EventType, FoldedController,
    PROMISE_LEAKED, Retarget,
};
use crate::Index;
use crate::ids::{NodeName, RcId};

/// A record with its place in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// The key's UUID.
    pub id: Uuid,
    /// The index at which the record was created. It orders the log exactly, where the ids of two farms only
    /// do so as far as their clocks agree, and p2's (version 4) not at all.
    pub index: Index,
    /// The record.
    pub record: AuditRecord,
}

/// What a log says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folded {
    /// Each controller that has a record or pods, according to the log.
    pub controllers: BTreeMap<RcId, FoldedController>,
    /// Where the log does not follow from itself.
    pub gaps: Vec<Gap>,
    /// Retargets that do not say of which controller they are (p2's). They cannot be folded.
    pub unattributed: usize,
}

/// A record that does not follow from those before it, or cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Gap {
    /// The record.
    pub record: Uuid,
    /// Of which controller, if it says.
    pub controller: Option<RcId>,
    /// In words.
    pub what: String,
}

/// What is stored for one controller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Actual {
    /// Nodes with a pod that carries its id.
    pub nodes: BTreeSet<NodeName>,
    /// The count in its record; `None` when there is no (readable) record.
    pub desired: Option<i64>,
}

/// Something in which the log and the state differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// The log does not say where the pods are: they were placed by p2, and nothing was changed since.
    NotInLog {
        /// Whose.
        controller: RcId,
    },
    /// The pods are elsewhere than the log says.
    Nodes {
        /// Whose.
        controller: RcId,
        /// In the log, but not stored.
        missing: BTreeSet<NodeName>,
        /// Stored, but not in the log.
        unexplained: BTreeSet<NodeName>,
    },
    /// The record's count is another than the log's, or only one of them has a record: it was changed by hand.
    Desired {
        /// Whose.
        controller: RcId,
        /// The log's count.
        logged: Option<i64>,
        /// The record's count.
        actual: Option<i64>,
    },
}

/// Folds a log, in the order of its indexes, from the newest complete checkpoint (or from empty).
#[must_use]
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

/// Where folding starts: a state, and the index that it covers.
#[derive(Debug, Default)]
pub(super) struct Base {
    pub(super) through: Index,
    /// The records that hold it.
    pub(super) records: BTreeSet<Uuid>,
    state: BTreeMap<RcId, FoldedController>,
}

impl Base {
    /// The complete checkpoint that covers most.
    pub(super) fn of(ordered: &[&Logged]) -> Base {
        let mut sets: BTreeMap<Uuid, BTreeMap<usize, (&Logged, Checkpoint)>> = BTreeMap::new();
        for logged in ordered {
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
            // A log that was imported elsewhere has that cluster's indexes. It was pruned before, so a
            // checkpoint that seems older than what it covers covers nothing that is still there.
            base.through = if part.through < logged.index { part.through } else { Index::ZERO };
            base.records.insert(logged.id);
            for (id, FoldedController { nodes, desired }) in part.controllers {
                let whole = base.state.entry(id).or_default();
                whole.desired = desired;
                if let Some(nodes) = nodes {
                    whole.nodes.get_or_insert_default().extend(nodes);
                }
            }
        }
        base
    }
}

/// Folds what comes after the base, up to and including `until`.
pub(super) fn fold_from(base: &Base, ordered: &[&Logged], until: Index) -> Folded {
    let mut folded = Folded { controllers: base.state.clone(), ..Folded::default() };
    for logged in ordered.iter().filter(|l| l.index > base.through && l.index <= until) {
        match logged.record.details() {
            Ok(details) => folded.apply(logged.id, details),
            Err(error) => folded.gap(logged.id, None, error.to_string()),
        }
    }
    // Gone and without pods: as if it had never been.
    folded.controllers.retain(|_, controller| {
        controller.desired.is_some() || controller.nodes.as_ref().is_some_and(|n| !n.is_empty())
    });
    folded
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
            Details::Other(EventType::Retarget, _) => self.unattributed += 1,
            Details::NodeTransferStart(_)
            | Details::NodeTransferCompletion(_)
            | Details::NodeTransferRollback(_)
            | Details::LabelsChanged(_)
            | Details::NodeDrained(_)
            | Details::NodeUndrained(_)
            | Details::NodeRemoved(_)
            | Details::QueueCreated(_)
            | Details::QueueChanged(_)
            | Details::QueueDeleted(_)
            | Details::GroupsOrdered(_)
            | Details::JobStep(_)
            | Details::JobChanged(_)
            | Details::Checkpoint(_)
            | Details::Other(..) => {}
        }
    }

    fn change(&mut self, change: &ControllerChange) -> &mut FoldedController {
        let controller = self.controllers.entry(change.replication_controller_id).or_default();
        controller.desired = change.desired_after;
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

/// Compares what the log says with what is stored, in the order of the controllers' ids.
#[must_use]
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
