//! Plans one pass over queues, groups and nodes. Pure.
//!
//! First it updates known groups (`plan/reconcile_existing.rs`). Then it places those that need nodes, in this order:
//! priority of the queue; admitted groups, which lost their nodes, before waiting ones; priority of the group; waiting
//! time. A group is admitted and placed in one step: its queue and the ancestors must have the capability, and each
//! member that it needs to start needs a node with capacity. Its `minResources` must be left, too
//! (`plan/min_resources.rs`). A group that asks for cells is placed by them (`plan/cells.rs`).
//!
//! In a FIFO queue a group that does not fit blocks those behind it and keeps its place, however long it waits, unless
//! it exceeds a capability outright. In other queues those behind it go ahead, until it was passed as often as the queue
//! allows (`plan/passes.rs`).
//!
//! A pass ends early once it has placed enough groups or compared enough nodes; the next one goes on
//! ([`BatchPlan::more`]). What did not fit is remembered until capacity grows ([`PassMemory`]).

mod adjust;
mod answered;
mod cells;
mod drain;
mod eviction;
mod growth;
mod known;
mod memory;
mod min_resources;
mod passes;
mod reconcile_existing;
mod shapes;
mod sizes;
mod taken;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eviction::Preemption;
pub use memory::PassMemory;
use passes::Head;
use shapes::{Rank, WaitingGroup};
pub use waiting::positions;

use super::answers::{GangAnswers, GangAsk};
use super::bounds::Bounds;
use super::placing::{
    GroupMember, PlacementChange, VersionedStatus, bookings, gang, members, placement,
};
use super::ports;
use super::queues::{Queues, Usage};
use crate::batch::pod_group_machine::{MemberState, Order, next};
use crate::cluster::cells::StoredCells;
use crate::cluster::queues::{StoredGroup, StoredGroups};
use crate::placement::capacity::{self, Fleet, Gang};
use rcfarm_api::Index;
use rcfarm_api::cells::{AffinityGroupRecord, ChainReason};
use rcfarm_api::ids::{NodeName, ObjectName, QueueName};
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::pod_group::spec::{Counts, GroupId, PodGroupRecord, PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::{PlacementState, PodGroupReason, PodGroupStatus};
use rcfarm_api::queue::spec::QueueStrategy;
use rcfarm_api::queue::status::{WAITING_LISTED, Waiting};
use rcfarm_api::scheduler::spec::SchedulerSpec;
use rcfarm_api::{ResourceList, Timestamp};

pub type GroupStatuses = BTreeMap<GroupId, VersionedStatus>;

/// Input of a pass.
pub struct BatchObserved<'a> {
    /// Name of the scheduler.
    pub me: &'a ObjectName,
    pub spec: &'a SchedulerSpec,
    /// All queues, those of other schedulers included.
    pub queues: &'a Queues,
    /// Records of all groups.
    pub groups: &'a StoredGroups,
    pub statuses: &'a GroupStatuses,
    /// Groups whose status cannot be decoded; they and their allocations stay unchanged.
    pub unreadable: &'a BTreeSet<GroupId>,
    /// Groups that are set aside, because their last change did not fit into a transaction.
    pub set_aside: &'a BTreeMap<GroupId, SetAside>,
    /// Nodes that the scheduler may use.
    pub fleet: &'a Fleet,
    /// The configuration of cells.
    pub cells: Option<&'a Arc<StoredCells>>,
    /// What the scheduler has said about gangs; `None`: all are placed by room.
    pub answers: Option<&'a GangAnswers>,
    /// Nodes that are down; members without a pod are moved away, groups that hold cells there are evicted.
    pub down: &'a BTreeSet<NodeName>,
    /// Nodes that are drained, with what the drain does about members of jobs.
    pub draining: &'a BTreeMap<NodeName, DrainJobs>,
    /// Whether the statuses of groups without a record may be deleted. `false` while ACLs hide a part of
    /// `rcfarm/pod_groups/`. Each delete also checks in its transaction that the record is absent.
    pub may_forget: bool,
    /// Whether to search for allocations of groups without a status.
    pub with_orphaned: bool,
    /// Wall-clock time.
    pub now: Timestamp,
    /// Index above all others; position of a group that moves to the end of its queue.
    pub latest: Index,
    pub bounds: Bounds,
}

/// A group that is not planned, because a change of it did not fit into a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// ModifyIndex of its record then; 0: absent. It is planned again once the record has changed.
    pub record: Index,
    /// Why, for people.
    pub why: String,
    /// Whether the status cannot be written, either.
    pub is_silent: bool,
}

/// Output of a pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchPlan {
    /// Changes, in the order of their commits.
    pub changes: Vec<PlacementChange>,
    /// Changes of messages only, committed when there is nothing else to do.
    pub message_changes: Vec<PlacementChange>,
    /// The first [`WAITING_LISTED`] waiting groups per queue, in order.
    pub waiting: BTreeMap<QueueName, Vec<Waiting>>,
    /// Charges after the changes.
    pub usage: Usage,
    /// Gangs about which the scheduler is to be asked.
    pub asks: Vec<GangAsk>,
    /// Whether a group that waited asks for cells.
    pub asks_cells: bool,
    /// Whether to run another pass at once.
    pub more: bool,
    /// Time of the next pass if nothing changes before.
    pub next: Option<Timestamp>,
}

/// A group that needs a placement.
#[derive(Debug, Clone)]
pub(super) struct Candidate<'a> {
    pub(super) id: &'a GroupId,
    pub(super) queue: QueueName,
    pub(super) group: &'a StoredGroup,
    pub(super) record: &'a PodGroupRecord,
    pub(super) known: Option<&'a VersionedStatus>,
    /// Whether its queue is already charged.
    pub(super) admitted: bool,
}

impl Candidate<'_> {
    fn since(&self) -> Index {
        self.known.map_or(self.group.created, |known| known.value.since)
    }

    /// Its status with the fields of the present record, owner and round.
    fn status(&self) -> PodGroupStatus {
        let mut status = self.known.map_or_else(PodGroupStatus::default, |k| (*k.value).clone());
        status.of = self.group.created;
        status.since = self.since();
        status.owner_uid = self.record.spec.owner.as_ref().map(|owner| owner.uid.clone());
        status.round = self.record.spec.round;
        status.queue = Some(self.queue.clone());
        status
    }
}

/// What some members of a candidate ask for.
#[derive(Debug)]
struct Asked {
    /// Of the queue.
    charge: ResourceList,
    /// Of the nodes.
    gang: Gang,
}

/// Reason why a group waits. The text is made only if its status does not say so yet.
type Why = (PodGroupReason, Message);

#[derive(Debug, Clone)]
enum Message {
    Text(String),
    DoesNotFit(Gang),
    /// It asks for cells, and no chain has them.
    Chains(Vec<ChainReason>),
    /// The scheduler is asked after this pass: the status stays as it is.
    Asked,
}

/// Selector and resources of a waiting group with a single pod and no `minResources`; `None`: another group.
fn single<'c>(c: &'c Candidate<'_>) -> Option<(&'c str, &'c ResourceList)> {
    match &c.record.spec.tasks[..] {
        [task] if task.replicas == 1 && !c.admitted => {
            let spec = &c.record.spec;
            let is_plain =
                spec.ended.is_empty() && spec.min_resources.is_zero() && spec.cells.is_none();
            is_plain.then_some((&task.node_selector[..], &task.resources))
        }
        _ => None,
    }
}

/// State of a pass.
pub(super) struct Pass<'a, 'm> {
    pub(super) seen: &'a BatchObserved<'a>,
    pub(super) memory: &'m mut PassMemory,
    pub(super) plan: BatchPlan,
    /// Groups that block others of their queue, by queue: in a FIFO queue one that does not fit, in any queue one that
    /// is placed again in the next pass.
    pub(super) blocked_by: BTreeMap<QueueName, GroupId>,
    /// By queue, the first group that waits for capacity. Not in FIFO queues.
    heads: BTreeMap<QueueName, Head<'a>>,
    /// Queues of the groups that were placed in this pass, with their nodes.
    bound: Vec<(QueueName, BTreeSet<NodeName>)>,
    placed: usize,
    preemption: Preemption<'a>,
    /// Number of calls of [`Pass::due`].
    dues: usize,
}

/// Plans one pass: releases orphaned allocations, updates known groups, places waiting ones in order, then adds the
/// missing members of elastic groups.
///
/// It stops after [`Bounds::placed`] groups or [`Bounds::steps`] comparisons; [`BatchPlan::more`] asks for another
/// pass.
/// `memory` is that of the scheduler's earlier passes, or empty.
#[must_use]
pub fn plan(seen: &BatchObserved<'_>, memory: &mut PassMemory) -> BatchPlan {
    memory.begin(seen.fleet, seen.spec.packing);
    let (plan, blocked_by, heads) = (BatchPlan::default(), BTreeMap::new(), BTreeMap::new());
    let (bound, preemption, placed, dues) = (Vec::new(), Preemption::default(), 0, 0);
    let mut pass = Pass { seen, memory, plan, blocked_by, heads, bound, placed, preemption, dues };
    let changes = pass.memory.known.changes(seen);
    pass.preemption.stored = changes.preemption;
    for known in changes.charged {
        if let Some(queue) = &known.value.queue {
            pass.plan.usage.charge(seen.queues, queue, &known.value.charged);
        }
    }
    if seen.with_orphaned {
        pass.free_orphaned();
    }
    pass.reconcile_all(&changes.groups);
    pass.admit_all();
    pass.write_passes();
    pass.evict_all();
    if !pass.plan.more {
        pass.grow_all(&changes.growing);
    }
    pass.plan
}

/// Why a group has no priority: it names a class that does not exist.
fn missing_class(queues: &Queues, spec: &PodGroupSpec) -> Option<String> {
    if spec.priority != 0 { None } else { queues.1.missing(&spec.priority_class_name) }
}

impl<'a> Pass<'a, '_> {
    /// Places the groups that wait, in order.
    fn admit_all(&mut self) {
        let waiting = std::mem::take(&mut self.memory.known.waiting);
        let mut all = waiting.iter();
        while let Some((rank, group)) = all.next() {
            if self.waits_on(&rank.4, group) {
                continue;
            }
            let Some(candidate) = self.candidate_of(&rank.4) else { continue };
            let before = self.marks();
            let more = self.examine(&candidate, all.clone());
            all.by_ref().take(more - 1).for_each(|_| {});
            if before != self.marks() {
                self.answers_changed();
            }
        }
        self.memory.known.waiting = waiting;
    }

    /// Differs after a step that may change whether others fit.
    fn marks(&self) -> [usize; 3] {
        [self.plan.changes.len(), self.blocked_by.len(), self.heads.len()]
    }

    /// Places a group and equal ones behind it, or sets their reasons. Returns the number of groups handled.
    fn examine<'w>(
        &mut self,
        c: &Candidate<'a>,
        behind: impl Iterator<Item = (&'w Rank, &'w WaitingGroup)>,
    ) -> usize {
        if let Some(why) = self.reason_to_skip(c) {
            self.wait(c, why);
            return 1;
        }
        if self.is_spent() {
            // These were not examined: their reasons stay.
            self.plan.more = true;
            if !c.admitted {
                let reason = c.known.map_or(PodGroupReason::AsDesired, |k| k.value.reason);
                self.list(&c.queue, c.id, reason);
            }
            return 1;
        }
        let asked = self.asked(c, &c.record.spec.all_to_place());
        if self.seen.answers.is_some() {
            return self.admit_one(c, asked);
        }
        if self.is_hopeless(c, &asked) || self.keeps_capacity(&c.queue) {
            return self.admit_one(c, asked);
        }
        match self.run(c, behind) {
            run if run.len() > 1 => self.admit_run(&run, asked),
            _ => self.admit_one(c, asked),
        }
    }

    /// Whether the rest is left to the next pass.
    pub(super) fn is_spent(&self) -> bool {
        let bounds = self.seen.bounds;
        self.placed >= bounds.placed || self.memory.steps() >= bounds.steps
    }

    fn asked(&self, c: &Candidate<'a>, counts: &Counts<'_>) -> Asked {
        let spec = &c.record.spec;
        Asked { charge: spec.charge(counts), gang: gang(c.id, spec, counts, self.seen.spec) }
    }

    /// Reason why a group is not placed at all in this pass.
    fn reason_to_skip(&mut self, c: &Candidate<'a>) -> Option<Why> {
        if let Some(hold) = &c.record.spec.hold {
            return Some((hold.reason, Message::Text(hold.message.clone())));
        }
        if !c.admitted {
            if let Some(why) = missing_class(self.seen.queues, &c.record.spec) {
                return Some((PodGroupReason::InvalidRecord, Message::Text(why)));
            }
            if let Some((reason, why)) = self.seen.queues.refusal(&c.queue) {
                return Some((reason, Message::Text(format!("spec.queue: {why}"))));
            }
            if let Some(until) =
                c.known.and_then(|k| k.value.not_before).filter(|t| *t > self.seen.now)
            {
                self.due(until);
                let text = format!("it had no place in time; again after {until}");
                return Some((PodGroupReason::BackedOff, Message::Text(text)));
            }
        }
        let first = self.blocked_by.get(&c.queue)?;
        let text = self.why_first(&c.queue).unwrap_or_else(|| format!("{first} goes first"));
        Some((PodGroupReason::BehindInQueue, Message::Text(text)))
    }

    /// Whether a group with a single pod surely does not fit, so that equal ones behind it need not be counted.
    fn is_hopeless(&mut self, c: &Candidate<'a>, asked: &Asked) -> bool {
        single(c).is_some()
            && (self.memory.known_no_room(&asked.gang).is_some()
                || self.seen.queues.fits(&self.plan.usage, &c.queue, &asked.charge).is_err())
    }

    /// A candidate and those directly behind it that have equal single pods; one request places them all.
    fn run<'w>(
        &self,
        first: &Candidate<'a>,
        behind: impl Iterator<Item = (&'w Rank, &'w WaitingGroup)>,
    ) -> Vec<Candidate<'a>> {
        let Some(wanted) = single(first) else { return Vec::new() };
        let alike = |c: &Candidate<'a>| {
            let waits = |k: &VersionedStatus| k.value.not_before.is_some_and(|t| t > self.seen.now);
            c.queue == first.queue
                && c.record.spec.hold.is_none()
                && missing_class(self.seen.queues, &c.record.spec).is_none()
                && !c.known.is_some_and(waits)
                && single(c) == Some(wanted)
        };
        let passes = self.passes_left(&first.queue).unwrap_or(usize::MAX);
        let most = (self.seen.bounds.placed - self.placed).min(passes);
        let behind = behind.filter_map(|(rank, _)| self.candidate_of(&rank.4)).take_while(alike);
        std::iter::once(first.clone()).chain(behind).take(most).collect()
    }

    /// Admits as many of equal single pods as fit. Returns the number of candidates handled.
    fn admit_run(&mut self, run: &[Candidate<'a>], one: Asked) -> usize {
        let (first, queues) = (&run[0], self.seen.queues);
        let mut usage = self.plan.usage.clone();
        let mut most = 0;
        while most < run.len() && queues.fits(&usage, &first.queue, &one.charge).is_ok() {
            usage.charge(queues, &first.queue, &one.charge);
            most += 1;
        }
        let mut all = one.gang.clone();
        let has_port = all.tasks[0].ports > 0;
        let resize = |task: &mut TaskSpec, replicas: u32| {
            (task.replicas, task.ports) = (replicas, if has_port { replicas } else { 0 });
        };
        resize(&mut all.tasks[0], u32::try_from(most).unwrap_or(u32::MAX));
        let fitting = self.memory.index.fitting(&all.tasks[0]);
        resize(&mut all.tasks[0], fitting);
        let answer = match all.tasks[0].replicas {
            0 | 1 => None,
            _ => self.memory.index.find(&all),
        };
        let Some(answer) = answer else { return self.admit_one(first, one) };
        let nodes: Vec<NodeName> = answer.tasks.into_values().flatten().collect();
        let is_taken = |(c, node): (&Candidate<'_>, &NodeName)| {
            let spec = &c.record.spec;
            self.holder((c.id, spec.pod_ids), &spec.tasks, node).is_some()
        };
        if run.iter().zip(&nodes).any(is_taken) {
            return self.admit_one(first, one);
        }
        for (candidate, node) in run.iter().zip(&nodes) {
            let spec = &candidate.record.spec;
            let answer = [(spec.tasks[0].name.clone(), vec![node.clone()])].into();
            self.bind(candidate, &capacity::GangPlacement { tasks: answer }, None);
        }
        nodes.len()
    }

    /// Admits and places one group with all its members or with the fewest, or sets its reason.
    fn admit_one(&mut self, c: &Candidate<'a>, all: Asked) -> usize {
        let spec = &c.record.spec;
        if let Err(why) = self.check_min_resources(c) {
            self.block(c, why);
            return 1;
        }
        if let Some(cells) = &spec.cells {
            self.admit_to_cells(c, cells, &all);
            return 1;
        }
        let mut found = self.find(c, all);
        let least = spec.least_to_place();
        let may_be_fewer = spec.min_member.is_some() && least != spec.all_to_place();
        if found.is_err() && may_be_fewer && !self.is_asked(c) {
            found = self.find(c, self.asked(c, &least));
        }
        match found {
            Ok(answer) => self.bind(c, &answer, None),
            Err(why) => self.block(c, why),
        }
        1
    }

    /// Whether a group is within the queue's capability.
    fn check_queue(&self, c: &Candidate<'a>, asked: &Asked) -> Result<(), Why> {
        let queues = self.seen.queues;
        let enough = match c.known.filter(|_| c.admitted) {
            Some(known) => {
                let mut usage = self.plan.usage.clone();
                usage.discharge(queues, &c.queue, &known.value.charged);
                queues.fits(&usage, &c.queue, &asked.charge)
            }
            None => queues.fits(&self.plan.usage, &c.queue, &asked.charge),
        };
        enough.map_err(|too_much| (too_much.reason, Message::Text(too_much.message)))
    }

    /// Placement within the queue's capability and the nodes' capacity.
    fn find(&mut self, c: &Candidate<'a>, asked: Asked) -> Result<capacity::GangPlacement, Why> {
        self.check_queue(c, &asked)?;
        if let Some(answer) = self.answered(c, &asked.gang) {
            return answer;
        }
        let found = match self.find_beside_head(c, &asked.gang) {
            Some(found) => found?,
            None => {
                let found = self.memory.find(&asked.gang);
                found.map_err(|reason| (reason, Message::DoesNotFit(asked.gang.clone())))?
            }
        };
        let found = self.beside((c.id, c.record.spec.pod_ids), &asked.gang, found);
        let found = found.map_err(|(reason, text)| (reason, Message::Text(text)))?;
        self.check_beside_head(c, found)
    }

    /// Makes the bookings of a change, so that the rest of the pass reckons with them.
    ///
    /// # Errors A member that does not fit. Nothing is booked.
    pub(super) fn book(
        &mut self,
        id: &GroupId,
        release: &[GroupMember],
        allocate: &[GroupMember],
    ) -> Result<(), String> {
        let index = &mut self.memory.index;
        for booking in bookings(index.node_capacities(), id, release, allocate)? {
            index.insert(booking.node, booking.room);
        }
        Ok(())
    }

    /// Admits and binds a group; writes the reservation ahead if it has too many nodes.
    fn bind(
        &mut self,
        c: &Candidate<'a>,
        answer: &capacity::GangPlacement,
        cells: Option<AffinityGroupRecord>,
    ) {
        let spec = &c.record.spec;
        let mut place = placement(spec, answer, PlacementState::Bound);
        place.cells = cells.map(Box::new);
        if let Err(why) = ports::assign(self.memory.index.node_capacities(), spec, &mut place) {
            return self.wait(c, (PodGroupReason::InsufficientCapacity, Message::Text(why)));
        }
        let allocate = members(c.id, &place);
        if let Some(too_large) = self.too_large(&place) {
            return self.wait(c, (PodGroupReason::InvalidRecord, Message::Text(too_large)));
        }
        let is_large = self.is_large(c.id, &place, &allocate);
        if let Err(message) = self.book(c.id, &[], &allocate) {
            // Found on this copy: a node's allocations cannot be read, or an equal pod placed before it has its id.
            return self.wait(c, (PodGroupReason::InsufficientCapacity, Message::Text(message)));
        }
        let mut after = c.status();
        let queues = self.seen.queues;
        if c.admitted {
            self.plan.usage.discharge(queues, &c.queue, &after.charged);
        }
        after.charged = place.charge();
        self.plan.usage.charge(queues, &c.queue, &after.charged);
        (after.not_before, after.passed, after.kept_until) = (None, 0, None);
        (after.reservation, after.eviction, after.evictions) = (None, None, 0);
        let phase = next(after.phase, Order::Admit, MemberState::TooFew);
        let reason = if is_large { PodGroupReason::Reserving } else { PodGroupReason::AsDesired };
        after.say(phase, reason, String::new(), self.seen.now);
        if is_large {
            place.state = PlacementState::Reserving;
            let until = after.place_by.filter(|_| c.admitted).unwrap_or_else(|| self.timeout(spec));
            after.place_by = Some(until);
            self.plan.more = true;
        } else {
            (after.place_by, after.sent_back) = (None, 0);
        }
        after.placement = Some(place);
        let mut change = PlacementChange::of_status(c.id, c.known, after);
        change.allocate = if is_large { Vec::new() } else { allocate };
        self.plan.changes.push(change);
        self.require_ended(c.id, spec);
        let nodes = answer.tasks.values().flatten().cloned().collect();
        self.bound.push((c.queue.clone(), nodes));
        if !c.admitted {
            self.note_pass(c);
        }
        self.placed += 1;
    }

    /// Handles a group that does not fit. In a FIFO queue it blocks those behind it, unless it exceeds a capability.
    fn block(&mut self, c: &Candidate<'a>, (reason, message): Why) {
        let until = c.known.and_then(|k| k.value.place_by).filter(|_| c.admitted);
        if let Some(until) = until {
            self.due(until);
        }
        if !self.is_strict(&c.queue) {
            // What is kept for the first is counted by capacity, not by cells.
            if c.record.spec.cells.is_none() && !matches!(message, Message::Asked) {
                self.note_head(c, reason);
            }
        } else if reason != PodGroupReason::ExceedsCapability {
            self.blocked_by.insert(c.queue.clone(), c.id.clone());
        }
        self.wait(c, (reason, message));
    }

    pub(super) fn is_strict(&self, queue: &QueueName) -> bool {
        let queue = self.seen.queues.0.get(queue);
        queue.is_some_and(|q| q.spec.dequeue_strategy == QueueStrategy::Fifo)
    }

    /// Sets the reason of a waiting group if it has changed.
    fn wait(&mut self, c: &Candidate<'a>, (reason, message): Why) {
        if !c.admitted {
            self.list(&c.queue, c.id, reason);
        }
        if matches!(message, Message::Asked) {
            return;
        }
        // What stands in the way of cells, and whom a group waits for, changes while the reason stays.
        let is_compared = reason == PodGroupReason::Preempting
            || c.record.spec.cells.is_some() && reason != PodGroupReason::BackedOff;
        let shown = match &message {
            Message::Text(text) if is_compared => Some(waiting::shown(c, reason, text)),
            Message::Chains(chains) => Some(waiting::shown(c, reason, &waiting::text_of(chains))),
            _ => None,
        };
        let said = c.known.is_some_and(|known| {
            let is_same = shown.as_ref().is_none_or(|shown| known.value.message == shown.message);
            is_same && known.value.reason == reason && known.value.queue.as_ref() == Some(&c.queue)
        });
        if !said && self.plan.message_changes.len() < self.seen.bounds.message_changes {
            let mut after = c.status();
            let chains = match &message {
                Message::Chains(chains) => waiting::kept(chains),
                _ => Vec::new(),
            };
            let text = match shown {
                Some(shown) => shown.message,
                None => waiting::with_eviction(&after, self.text(message)),
            };
            after.say(after.phase, reason, text, self.seen.now);
            after.chain_reasons = chains;
            self.plan.message_changes.push(PlacementChange::of_status(c.id, c.known, after));
        }
    }

    fn text(&mut self, message: Message) -> String {
        match message {
            Message::Text(text) => text,
            Message::DoesNotFit(gang) => self.memory.message(&gang),
            Message::Chains(chains) => waiting::text_of(&chains),
            Message::Asked => "the scheduler is asked".to_owned(),
        }
    }

    fn list(&mut self, queue: &QueueName, id: &GroupId, reason: PodGroupReason) {
        if !self.plan.waiting.contains_key(queue) {
            self.plan.waiting.insert(queue.clone(), Vec::new());
        }
        let waiting = self.plan.waiting.get_mut(queue).filter(|w| w.len() < WAITING_LISTED);
        if let Some(waiting) = waiting {
            waiting.push(Waiting { group: id.clone(), position: waiting.len() + 1, reason });
        }
    }

    /// Equal before and after a step that had no effect.
    fn effects(&self) -> [usize; 5] {
        let plan = &self.plan;
        let (changes, messages) = (plan.changes.len(), plan.message_changes.len());
        [changes, messages, self.blocked_by.len(), self.dues, usize::from(plan.more)]
    }

    /// Requests another pass at a time.
    pub(super) fn due(&mut self, at: Timestamp) {
        self.dues += 1;
        self.plan.next = Some(self.plan.next.map_or(at, |next| next.min(at)));
    }
}
