//! The order of groups that wait, and whether a group surely waits on.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::shapes::{Rank, ShapeAnswer, ShapeRequest, WaitingGroup};
use super::{Asked, Candidate, GroupStatuses, Pass, missing_class};
use crate::batch::pod_group_machine::{MemberState, Order, next};
use crate::batch::queues::Queues;
use crate::cluster::queues::StoredGroups;
use crate::placement::capacity::IndexVersion;
use rcfarm_api::Timestamp;
use rcfarm_api::cells::ChainReason;
use rcfarm_api::ids::QueueName;
use rcfarm_api::manifest::command_line::cut;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupSpec};
use rcfarm_api::pod_group::status::{PodGroupPhase, PodGroupReason, PodGroupStatus};
use rcfarm_api::queue::status::WAITING_LISTED;

/// Passes after which a shape asks again for what it knows: what nobody asks for is forgotten.
const ASKED_EVERY: u64 = super::memory::PASSES_KEPT / 2;

pub(super) fn rank(queues: &Queues, c: &Candidate<'_>) -> Rank {
    let queue = queues.0.get(&c.queue).map_or(0, |queue| queue.spec.priority);
    let priority = queues.1.priority(&c.record.spec);
    (Reverse(queue), Reverse(c.admitted), Reverse(priority), c.since(), c.id.clone())
}

/// Waiting groups per queue, in order of admission.
#[must_use]
pub fn positions(
    queues: &Queues,
    groups: &StoredGroups,
    statuses: &GroupStatuses,
) -> BTreeMap<QueueName, Vec<GroupId>> {
    let mut all: BTreeMap<QueueName, Vec<Candidate<'_>>> = BTreeMap::new();
    for (id, group) in groups {
        let Ok(record) = &group.value else { continue };
        let known = statuses.get(id).filter(|known| known.value.of == group.created);
        let queue = record.spec.queue.clone();
        let waits = known.is_none_or(|known| known.value.phase == PodGroupPhase::Pending);
        if waits {
            let candidate = Candidate { id, queue, group, record, known, admitted: false };
            all.entry(candidate.queue.clone()).or_default().push(candidate);
        }
    }
    let in_order = |(queue, mut waiting): (QueueName, Vec<Candidate<'_>>)| {
        waiting.sort_by_cached_key(|c| rank(queues, c));
        (queue, waiting.into_iter().map(|c| c.id.clone()).collect())
    };
    all.into_iter().map(in_order).collect()
}

/// Chains whose reasons a status has, and the longest of these in bytes.
const CHAINS_KEPT: (usize, usize) = (16, 256);

/// Why each chain has no place for a group, in a line.
pub(super) fn text_of(chains: &[ChainReason]) -> String {
    chains.iter().map(ChainReason::to_string).collect::<Vec<_>>().join("; ")
}

/// What a status says of the chains.
pub(super) fn kept(chains: &[ChainReason]) -> Vec<ChainReason> {
    let (most, longest) = CHAINS_KEPT;
    let of = |one: &ChainReason| ChainReason {
        chain: cut(&one.chain, longest),
        reason: cut(&one.reason, longest),
    };
    chains.iter().take(most).map(of).collect()
}

/// The message of a group that waits: one that was evicted says so until it is placed.
pub(super) fn with_eviction(status: &PodGroupStatus, text: String) -> String {
    match status.eviction.as_ref().filter(|_| status.placement.is_none()) {
        Some(eviction) => format!("{eviction}; now: {text}"),
        None => text,
    }
}

/// A status with the message of a group that waits, as it would be stored.
pub(super) fn shown(c: &Candidate<'_>, reason: PodGroupReason, text: &str) -> PodGroupStatus {
    let mut status = c.status();
    let text = with_eviction(&status, text.to_owned());
    status.say(status.phase, reason, text, Timestamp::UNIX_EPOCH);
    status
}

impl<'a> Pass<'a, '_> {
    /// Adds a group to those that wait for a placement. Returns its place in their order.
    pub(super) fn add_waiting(&mut self, c: &Candidate<'a>, is_settled: bool) -> Rank {
        let rank = rank(self.seen.queues, c);
        let spec = &c.record.spec;
        let all = spec.all_to_place();
        let is_plain = !c.admitted
            && spec.hold.is_none()
            && spec.ended.is_empty()
            && spec.min_resources.is_zero()
            && spec.cells.is_none()
            && c.known.is_none_or(|known| known.value.not_before.is_none())
            && (spec.min_member.is_none() || spec.least_to_place() == all)
            && missing_class(self.seen.queues, spec).is_none();
        let asked = is_plain.then(|| self.asked(c, &all));
        let shape = asked.map(|asked| self.memory.known.shapes.place(c.id, &c.queue, asked));
        let said = c.known.filter(|known| known.value.queue.as_ref() == Some(&c.queue));
        let said = said.map(|known| known.value.reason);
        self.memory.known.add_waiting(rank.clone(), WaitingGroup { shape, said }, is_settled);
        rank
    }

    /// Whether a waiting group surely waits on, with nothing to write about it. It is listed then.
    pub(super) fn waits_on(&mut self, id: &GroupId, group: &WaitingGroup) -> bool {
        let Some(at) = group.shape.filter(|_| !self.is_spent()) else { return false };
        let shapes = &self.memory.known.shapes;
        let known = &shapes.all[at];
        let answer = match known.state == shapes.state {
            true => known.answer,
            false => self.answer(at),
        };
        let Some(reason) = answer.reason else { return false };
        let most = self.seen.bounds.message_changes;
        if group.said != Some(reason) && self.plan.message_changes.len() < most {
            return false;
        }
        if !answer.is_listed {
            let request = self.memory.known.shapes.all[at].request.clone();
            self.list(&request.queue, id, reason);
            self.memory.known.shapes.all[at].answer.is_listed = self.is_listed(&request.queue);
        }
        true
    }

    /// A change was made that may change the answers.
    pub(super) fn answers_changed(&mut self) {
        self.memory.known.shapes.state += 1;
    }

    fn is_listed(&self, queue: &QueueName) -> bool {
        self.plan.waiting.get(queue).is_some_and(|listed| listed.len() >= WAITING_LISTED)
    }

    fn answer(&mut self, at: usize) -> ShapeAnswer {
        let request = self.memory.known.shapes.all[at].request.clone();
        let reason = self.reason_to_wait(at, &request);
        let answer = ShapeAnswer { reason, is_listed: self.is_listed(&request.queue) };
        let shapes = &mut self.memory.known.shapes;
        (shapes.all[at].state, shapes.all[at].answer) = (shapes.state, answer);
        answer
    }

    /// Reason why a group of a shape waits, if examining it would change nothing.
    fn reason_to_wait(&mut self, at: usize, request: &ShapeRequest) -> Option<PodGroupReason> {
        let ShapeRequest { queue, asked } = request;
        if let Some((reason, _)) = self.seen.queues.refusal(queue) {
            return Some(reason);
        }
        if self.blocked_by.contains_key(queue) {
            return Some(PodGroupReason::BehindInQueue);
        }
        let reason = match self.seen.queues.fits(&self.plan.usage, queue, &asked.charge) {
            Err(too_much) => too_much.reason,
            Ok(()) if self.keeps_capacity(queue) => return None,
            Ok(()) => self.no_room(at, asked)?,
        };
        let changes_queue = match self.is_strict(queue) {
            true => reason != PodGroupReason::ExceedsCapability,
            false => self.lacks_head(queue, reason) && self.fits_empty(at, asked),
        };
        (!changes_queue).then_some(reason)
    }

    fn no_room(&mut self, at: usize, asked: &Asked) -> Option<PodGroupReason> {
        let (version, pass) = (self.memory.index.version(), self.memory.pass());
        let is_sure = |(of, asked, _): &(IndexVersion, u64, PodGroupReason)| {
            // Within a pass capacity only shrinks.
            *asked == pass || *of == version && asked + ASKED_EVERY > pass
        };
        if let Some((_, _, reason)) = self.memory.known.shapes.all[at].no_room.filter(is_sure) {
            return Some(reason);
        }
        let reason = self.memory.known_no_room(&asked.gang);
        let version = self.memory.index.version();
        self.memory.known.shapes.all[at].no_room = reason.map(|reason| (version, pass, reason));
        reason
    }

    fn fits_empty(&mut self, at: usize, asked: &Asked) -> bool {
        let emptied = self.memory.emptied(self.seen.fleet);
        let version = emptied.version();
        let known = self.memory.known.shapes.all[at].fits_empty;
        if let Some((_, fits)) = known.filter(|(of, _)| *of == version) {
            return fits;
        }
        let fits = self.memory.emptied(self.seen.fleet).has_room(&asked.gang);
        self.memory.known.shapes.all[at].fits_empty = Some((version, fits));
        fits
    }

    /// Status of an admitted group that found no placement in time. It is no longer charged. In a FIFO queue it keeps its
    /// place; in others it moves to the end of its queue, with a pause before the next attempt.
    pub(super) fn requeued(
        &mut self,
        mut after: PodGroupStatus,
        spec: &PodGroupSpec,
    ) -> PodGroupStatus {
        let now = self.seen.now;
        let seconds =
            spec.schedule_timeout_seconds.unwrap_or(self.seen.spec.schedule_timeout_seconds);
        after.place_by = None;
        let message = if self.is_strict(&spec.queue) {
            format!("it had no place within {seconds} s; it keeps its place in the queue")
        } else {
            after.sent_back = after.sent_back.saturating_add(1);
            let until = now.checked_add(self.seen.spec.pause(after.sent_back)).unwrap_or(now);
            self.due(until);
            after.not_before = Some(until);
            after.since = self.seen.latest;
            format!("it had no place within {seconds} s; again after {until}")
        };
        let phase = next(after.phase, Order::Requeue, MemberState::TooFew);
        after.say(phase, PodGroupReason::BackedOff, message, now);
        after
    }

    /// Deadline for the placement of a group.
    pub(super) fn timeout(&self, spec: &PodGroupSpec) -> Timestamp {
        let seconds =
            spec.schedule_timeout_seconds.unwrap_or(self.seen.spec.schedule_timeout_seconds);
        let timeout = std::time::Duration::from_secs(seconds);
        self.seen.now.checked_add(timeout).unwrap_or(self.seen.now)
    }
}
