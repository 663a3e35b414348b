//! Groups that an earlier pass has examined. One whose record and status are the same objects as then, and about which
//! nothing was to be done, is not examined again; a waiting one keeps its place in the order of admission. A pass so
//! costs what has changed, besides one walk that compares pointers.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;

use super::BatchObserved;
use super::eviction::takes_part;
use super::shapes::{Rank, Shapes, WaitingGroup};
use crate::batch::placing::VersionedStatus;
use crate::batch::queues::Queues;
use crate::cluster::queues::StoredGroup;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::scheduler::spec::SchedulerSpec;

/// Number of shapes that are kept beyond two for each waiting group.
const SHAPES_KEPT: usize = 64;

/// Groups that earlier passes have examined. What they found depends on nothing but record, status, queues and the
/// scheduler's specification.
#[derive(Debug, Default)]
pub(super) struct KnownGroups {
    /// In the order of their names.
    groups: Vec<KnownGroup>,
    /// Groups that wait for a placement, in order of admission; those examined in this pass included.
    pub(super) waiting: BTreeMap<Rank, WaitingGroup>,
    /// Of `waiting`, those that the next pass examines again.
    unsettled: Vec<Rank>,
    pub(super) shapes: Shapes,
    queues: Queues,
    spec: SchedulerSpec,
}

/// A group that needs no examination as long as neither its status nor its record changes, whatever the time and the
/// nodes.
#[derive(Debug)]
struct KnownGroup {
    id: GroupId,
    status: Option<Arc<PodGroupStatus>>,
    record: Arc<StoredGroup>,
    /// Its place among those that wait; `None`: it waits for no placement.
    rank: Option<Box<Rank>>,
    /// Whether its queue is charged.
    is_charged: bool,
    may_grow: bool,
    /// Whether it reserves cells, is evicted, or has a guarantee to get back.
    takes_part: bool,
}

impl KnownGroup {
    /// Whether the next status and the next record are this group's, and the same objects as before.
    fn is_next(
        &self,
        status: Option<&(&GroupId, &VersionedStatus)>,
        record: Option<&(&GroupId, &Arc<StoredGroup>)>,
    ) -> bool {
        let is_same_status = match (&self.status, status) {
            (Some(known), Some((_, status))) => Arc::ptr_eq(known, &status.value),
            (None, Some((id, _))) => **id > self.id,
            (known, None) => known.is_none(),
        };
        is_same_status && record.is_some_and(|(_, record)| Arc::ptr_eq(&self.record, record))
    }
}

/// A group that this pass examines: its status or its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangedGroup<'a> {
    pub(super) id: &'a GroupId,
    pub(super) known: Option<&'a VersionedStatus>,
    pub(super) stored: Option<&'a Arc<StoredGroup>>,
}

/// What a pass examines, each in the order of the groups' names.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    /// Groups that are not known.
    pub(super) groups: Vec<ChangedGroup<'a>>,
    /// Statuses of all groups whose queue is charged.
    pub(super) charged: Vec<&'a VersionedStatus>,
    /// Groups that may lack members, those of `groups` included.
    pub(super) growing: Vec<(&'a GroupId, &'a VersionedStatus)>,
    /// Statuses with a reservation, an eviction, or a guarantee to get back.
    pub(super) preemption: Vec<(&'a GroupId, &'a VersionedStatus)>,
}

impl<'a> Changes<'a> {
    fn enter(&mut self, group: ChangedGroup<'a>) {
        if let Some(known) = group.known {
            self.growing.push((group.id, known));
            if takes_part(&known.value) {
                self.preemption.push((group.id, known));
            }
            if known.value.phase.is_admitted() {
                self.charged.push(known);
            }
        }
        self.groups.push(group);
    }
}

/// Statuses and records, in one walk.
struct Walk<'a, S: Iterator, R: Iterator> {
    statuses: Peekable<S>,
    records: Peekable<R>,
    changes: Changes<'a>,
}

impl<'a, S, R> Walk<'a, S, R>
where
    S: Iterator<Item = (&'a GroupId, &'a VersionedStatus)>,
    R: Iterator<Item = (&'a GroupId, &'a Arc<StoredGroup>)>,
{
    /// Enters the groups before `end`; `None`: all that are left.
    fn enter_until(&mut self, end: Option<&GroupId>) {
        loop {
            let ids = [self.statuses.peek().map(|(id, _)| *id), self.records.peek().map(|r| r.0)];
            let Some(id) = ids.into_iter().flatten().min() else { return };
            if end.is_some_and(|end| id >= end) {
                return;
            }
            let known = self.statuses.next_if(|(status, _)| *status == id).map(|(_, known)| known);
            let stored = self.records.next_if(|(record, _)| *record == id).map(|(_, s)| s);
            self.changes.enter(ChangedGroup { id, known, stored });
        }
    }

    /// Goes past a group if it is known, and nothing else concerns it.
    fn pass_known(&mut self, group: &KnownGroup) -> bool {
        let is_next = |walk: &mut Self| group.is_next(walk.statuses.peek(), walk.records.peek());
        if !is_next(self) {
            self.enter_until(Some(&group.id));
            if !is_next(self) {
                return false;
            }
        }
        self.records.next();
        let status = group.status.as_ref().and_then(|_| self.statuses.next());
        if let Some((id, known)) = status {
            if group.is_charged {
                self.changes.charged.push(known);
            }
            if group.may_grow {
                self.changes.growing.push((id, known));
            }
            if group.takes_part {
                self.changes.preemption.push((id, known));
            }
        }
        true
    }
}

impl KnownGroups {
    /// Forgets the groups that have changed, and returns what is to be examined.
    pub(super) fn changes<'a>(&mut self, seen: &BatchObserved<'a>) -> Changes<'a> {
        if self.queues != *seen.queues || self.spec != *seen.spec || self.has_many_shapes() {
            let (queues, spec) = (seen.queues.clone(), seen.spec.clone());
            *self = KnownGroups { queues, spec, ..KnownGroups::default() };
        }
        for rank in self.unsettled.drain(..) {
            self.waiting.remove(&rank);
        }
        let (statuses, records) = (seen.statuses.iter().peekable(), seen.groups.iter().peekable());
        let mut walk = Walk { statuses, records, changes: Changes::default() };
        let waiting = &mut self.waiting;
        let is_out = |id: &GroupId| seen.set_aside.contains_key(id) || seen.unreadable.contains(id);
        self.groups.retain(|group| {
            let is_known = !is_out(&group.id) && walk.pass_known(group);
            if let (false, Some(rank)) = (is_known, &group.rank) {
                waiting.remove(rank);
            }
            is_known
        });
        walk.enter_until(None);
        self.shapes.begin();
        walk.changes
    }

    fn has_many_shapes(&self) -> bool {
        self.shapes.len() > 2 * self.waiting.len() + SHAPES_KEPT
    }

    /// Adds a group that waits for a placement.
    pub(super) fn add_waiting(&mut self, rank: Rank, group: WaitingGroup, is_settled: bool) {
        if !is_settled {
            self.unsettled.push(rank.clone());
        }
        self.waiting.insert(rank, group);
    }

    /// Remembers that a group needs no examination. [`KnownGroups::sort`] follows.
    pub(super) fn remember(
        &mut self,
        group: &ChangedGroup<'_>,
        may_grow: bool,
        rank: Option<Rank>,
    ) {
        let Some(record) = group.stored else { return };
        self.groups.push(KnownGroup {
            id: group.id.clone(),
            status: group.known.map(|known| known.value.clone()),
            record: record.clone(),
            rank: rank.map(Box::new),
            is_charged: group.known.is_some_and(|known| known.value.phase.is_admitted()),
            may_grow,
            takes_part: group.known.is_some_and(|known| takes_part(&known.value)),
        });
    }

    /// Brings the groups into the order of their names.
    pub(super) fn sort(&mut self) {
        self.groups.sort_by(|a, b| a.id.cmp(&b.id));
    }
}
