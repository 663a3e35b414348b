//! Reservations of cells, and the eviction of groups that use them. Pure.
//!
//! A group that fits its virtual cluster, but meets cells of groups that it may preempt, is admitted and reserves them: its
//! status holds the reservation (`PodGroupStatus::reservation`). Whom that evicts follows from the reservation and from
//! who uses its cells, in each pass anew: a farm that goes on after another finds the same victims, and those that it
//! finds evicted stay so. A victim's status says for whom and why (`PodGroupStatus::eviction`). Its owner stops its
//! members; once none is left, it goes back to its queue and keeps its place there. When no victim is left, the group is
//! placed. A reservation ends with its group, with a change of its request, when it can no longer be used, or at the
//! time `place_by`; then the victims that have not been stopped run on.

use std::collections::BTreeMap;

use super::{Asked, Candidate, Message, Pass, Why};
use crate::batch::placing::{PlacementChange, VersionedStatus};
use crate::batch::pod_group_machine::{MemberState, Order, next};
use crate::placement::cells;
use rcfarm_api::cells::{AffinityGroupRecord, GroupKey, numbers};
use rcfarm_api::pod_group::spec::{GroupId, MemberCounts, PodGroupSpec};
use rcfarm_api::pod_group::status::{Eviction, PlacementState, PodGroupReason, PodGroupStatus};
use rcfarm_api::{ResourceList, Timestamp};
use rcfarm_cells::CellScheduler;

/// Groups that are told in one pass to stop; the next pass goes on.
const EVICTED_PER_PASS: usize = 32;

/// Groups with a reservation, an eviction, or a guarantee to get back.
#[derive(Debug, Default)]
pub(super) struct Preemption<'a> {
    /// As stored.
    pub(super) stored: Vec<(&'a GroupId, &'a VersionedStatus)>,
    /// Reservations of this pass, with their deadlines.
    reserved: BTreeMap<GroupKey, (GroupId, Option<Timestamp>)>,
}

/// Whether a status has something that [`Pass::evict_all`] follows.
pub(super) fn takes_part(status: &PodGroupStatus) -> bool {
    status.reservation.is_some()
        || status.eviction.is_some()
        || cells::held(status).is_some_and(|record| record.lazy_preemption.is_some())
}

/// Evictions for one admission of a group, by device that it asks for. In the worst case each device has another group,
/// and all of them have to be chosen anew once.
const EVICTIONS_PER_LEAF: u32 = 2;

/// Devices of a group's places.
fn leaves(record: &AffinityGroupRecord) -> u32 {
    let devices = record.pods.iter().map(|pod| numbers(&pod.devices).len());
    u32::try_from(devices.sum::<usize>()).unwrap_or(u32::MAX)
}

/// Ends a reservation in a status that is no longer admitted.
fn without_reservation(mut status: PodGroupStatus) -> PodGroupStatus {
    status.phase = next(status.phase, Order::Requeue, MemberState::TooFew);
    (status.reservation, status.place_by, status.evictions) = (None, None, 0);
    status.charged = ResourceList::default();
    status
}

impl<'a> Pass<'a, '_> {
    /// Whether this pass changes the group already; the next one goes on.
    pub(super) fn is_changed(&mut self, id: &GroupId) -> bool {
        let is_changed = self.plan.changes.iter().any(|change| change.id == *id);
        self.plan.more |= is_changed;
        is_changed
    }

    /// Admits a group and reserves its cells.
    pub(super) fn reserve(
        &mut self,
        c: &Candidate<'a>,
        asked: &Asked,
        record: AffinityGroupRecord,
        text: String,
    ) {
        let mut after = c.status();
        if c.admitted {
            self.plan.usage.discharge(self.seen.queues, &c.queue, &after.charged);
        }
        after.charged = asked.charge.clone();
        self.plan.usage.charge(self.seen.queues, &c.queue, &after.charged);
        (after.not_before, after.passed, after.kept_until) = (None, 0, None);
        // A reservation in place of an earlier one has no longer time.
        let until = after.place_by.filter(|_| c.admitted);
        let until = until.unwrap_or_else(|| self.timeout(&c.record.spec));
        after.place_by = Some(until);
        let key = record.request.key.clone();
        (after.reservation, after.eviction) = (Some(Box::new(record)), None);
        let phase = next(after.phase, Order::Admit, MemberState::TooFew);
        after.say(phase, PodGroupReason::Preempting, text, self.seen.now);
        self.plan.changes.push(PlacementChange::of_status(c.id, c.known, after));
        self.preemption.reserved.insert(key, (c.id.clone(), Some(until)));
        if !c.admitted {
            self.note_pass(c);
        }
        self.placed += 1;
    }

    /// Ends the reservation of a group that cannot use it: the group goes back to its queue.
    pub(super) fn end_reservation(&mut self, c: &Candidate<'a>, (reason, message): Why) {
        let known = c.status();
        if let (Some(record), Some(mut cells)) =
            (&known.reservation, self.memory.cells.scheduler().cloned())
        {
            cells.cancel(&record.request.key, "it can no longer be used");
            self.memory.cells.went_on(cells);
        }
        if c.admitted {
            self.plan.usage.discharge(self.seen.queues, &c.queue, &known.charged);
        }
        let mut after = without_reservation(known);
        let text = self.text(message);
        after.say(after.phase, reason, text, self.seen.now);
        self.plan.changes.push(PlacementChange::of_status(c.id, c.known, after));
        self.plan.more = true;
    }

    /// Ends the reservations that a placement overrides.
    ///
    /// # Errors
    /// This pass changes one of the groups already: the placement is made in the next one.
    pub(super) fn overridden(
        &mut self,
        keys: &[GroupKey],
        by: &GroupId,
    ) -> Result<Vec<PlacementChange>, Why> {
        let mut changes = Vec::new();
        for key in keys {
            let Some(id) = self.memory.cells.holder(key).filter(|id| id != by) else {
                if self.preemption.reserved.contains_key(key) {
                    self.plan.more = true;
                    let text = format!("it takes what {key} reserves in a moment");
                    return Err((PodGroupReason::InsufficientCapacity, Message::Text(text)));
                }
                continue;
            };
            let Some(known) = self.seen.statuses.get(&id) else { continue };
            if self.is_changed(&id) {
                let text = format!("it takes what {key} reserves in a moment");
                return Err((PodGroupReason::InsufficientCapacity, Message::Text(text)));
            }
            let mut after = without_reservation((*known.value).clone());
            let text = format!("{by} has a higher priority, and takes what it had reserved");
            after.say(after.phase, PodGroupReason::InsufficientCapacity, text, self.seen.now);
            changes.push(PlacementChange::of_status(&id, Some(known), after));
        }
        Ok(changes)
    }

    /// Whether victims of a group are being stopped, and none of them runs any more: their grace ends, and the group
    /// waits for it after its deadline.
    pub(super) fn victims_stop(&self, id: &GroupId) -> bool {
        let of = |known: &VersionedStatus| {
            known.value.evicted().is_some_and(|eviction| eviction.by() == Some(id))
        };
        let mut victims = self.preemption.stored.iter().filter(|(_, known)| of(known)).peekable();
        let stops = |(id, _): &(&GroupId, &VersionedStatus)| {
            let record = self.seen.groups.get(*id).and_then(|group| group.value.as_ref().ok());
            record.is_none_or(|record| {
                let MemberCounts { bound, running, .. } = record.members;
                bound + running == 0
            })
        };
        victims.peek().is_some() && victims.all(stops)
    }

    /// Gives a reservation more time.
    pub(super) fn extend(&mut self, id: &GroupId, known: &VersionedStatus, spec: &PodGroupSpec) {
        let after = PodGroupStatus { place_by: Some(self.timeout(spec)), ..(*known.value).clone() };
        self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
    }

    /// Tells groups that use reserved cells, or cells of nodes that they have to leave, to stop, and those that need not
    /// any more that they may run on.
    /// Gives groups their guarantee back whose preemptor has gone.
    pub(super) fn evict_all(&mut self) {
        if !self.is_default() {
            return;
        }
        let drained = self.drained();
        let is_idle = self.preemption.stored.is_empty() && self.preemption.reserved.is_empty();
        if is_idle && drained.is_empty() {
            return;
        }
        let stored = self.seen.cells.and_then(|stored| Some((stored, stored.value.as_ref().ok()?)));
        if let Some((stored, model)) = stored {
            self.follow_cells(stored.index, model);
        }
        let scheduler = self.memory.cells.scheduler().filter(|_| stored.is_some()).cloned();
        let mut victims = scheduler.as_ref().map(|of| self.victims(of)).unwrap_or_default();
        for (id, eviction) in drained {
            victims.entry(id).or_default().push(eviction);
        }
        self.tell(&victims);
        for (id, known) in std::mem::take(&mut self.preemption.stored) {
            let mut after = (*known.value).clone();
            if after.evicted().is_some() && !victims.contains_key(id) {
                let is_bound =
                    after.placement.as_ref().is_some_and(|p| p.state == PlacementState::Bound);
                if is_bound {
                    after.eviction = None;
                    after.say(after.phase, PodGroupReason::AsDesired, String::new(), self.seen.now);
                }
            }
            if let (Some(scheduler), Some(place)) = (&scheduler, &mut after.placement) {
                restore(scheduler, &mut place.cells);
            }
            if after != *known.value && !self.is_changed(id) {
                self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
            }
        }
    }

    /// Tells groups why they have to stop, as many as a pass may. A group that has had too many told already gives up.
    fn tell(&mut self, victims: &BTreeMap<GroupId, Vec<Eviction>>) {
        let mut left = EVICTED_PER_PASS;
        for (id, evictions) in victims {
            let Some(known) = self.seen.statuses.get(id) else { continue };
            let has_it = |eviction: &Eviction| {
                known.value.eviction.as_ref().is_some_and(|had| had.has_same_cause(eviction))
            };
            let state = known.value.placement.as_ref().map(|place| place.state);
            let is_leaving = state.is_none_or(|state| state == PlacementState::Releasing);
            if is_leaving || evictions.iter().any(has_it) || self.is_changed(id) {
                continue;
            }
            if left == 0 {
                self.plan.more = true;
                break;
            }
            let Some(eviction) = evictions.first() else { continue };
            if let Some(by) = eviction.by()
                && !self.count_eviction(by)
            {
                continue;
            }
            left -= 1;
            let mut after = (*known.value).clone();
            let text = eviction.to_string();
            after.eviction = Some(eviction.clone());
            after.say(after.phase, PodGroupReason::Evicted, text, self.seen.now);
            self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
        }
    }

    /// Counts an eviction for a group. `false`: it has had as many as it may, and goes back to its queue: its reservation
    /// was made anew again and again, each time with other victims.
    fn count_eviction(&mut self, by: &GroupId) -> bool {
        let known = self.seen.statuses.get(by);
        let planned = self.plan.changes.iter_mut().rev().find(|change| change.id == *by);
        let mut after = match (&planned, known) {
            (Some(change), _) => change.after.clone(),
            (None, Some(known)) => Some((*known.value).clone()),
            (None, None) => None,
        };
        let Some(status) = after.as_mut().filter(|status| status.reservation.is_some()) else {
            // It has given up in this pass.
            self.plan.more = true;
            return false;
        };
        let leaves = status.reservation.as_ref().map_or(0, |record| leaves(record));
        let is_over = status.evictions >= leaves.saturating_mul(EVICTIONS_PER_LEAF);
        let is_planned = planned.is_some();
        if !is_over {
            status.evictions = status.evictions.saturating_add(1);
            match planned {
                Some(change) => change.after = after,
                None => {
                    let status = after.unwrap_or_default();
                    self.plan.changes.push(PlacementChange::of_status(by, known, status));
                }
            }
            return true;
        }
        let spec = self.seen.groups.get(by).and_then(|group| group.value.as_ref().ok());
        if let (Some(record), Some(status), false) = (spec, after, is_planned) {
            let charged = status.charged.clone();
            if let Some(queue) = &status.queue {
                self.plan.usage.discharge(self.seen.queues, queue, &charged);
            }
            let made = status.evictions;
            let mut after = self.requeued(without_reservation(status), &record.spec);
            after.evictions = 0;
            let text =
                format!("it has had {made} groups stopped and was not placed; {}", after.message);
            after.say(after.phase, PodGroupReason::BackedOff, text, self.seen.now);
            self.plan.changes.push(PlacementChange::of_status(by, known, after));
        }
        self.plan.more = true;
        false
    }

    /// Groups that use reserved cells, with the groups that get these.
    fn victims(&mut self, scheduler: &CellScheduler) -> BTreeMap<GroupId, Vec<Eviction>> {
        let mut victims: BTreeMap<GroupId, Vec<Eviction>> = BTreeMap::new();
        for group in scheduler.groups().filter(|group| group.preempting) {
            let reserved = self.preemption.reserved.get(&group.key).cloned();
            let (preemptor, until) = match reserved {
                Some(of) => of,
                None => {
                    let Some(id) = self.memory.cells.holder(&group.key) else { continue };
                    let until = self.seen.statuses.get(&id).and_then(|known| known.value.place_by);
                    (id, until)
                }
            };
            for key in scheduler.victims(&group.key) {
                let Some(victim) = self.memory.cells.holder(&key) else {
                    // It was placed in this pass.
                    self.plan.more = true;
                    continue;
                };
                let (priority, vc) = (group.request.priority, &group.key.virtual_cluster);
                let why = format!("its cells go to a group of {vc} of priority {priority}");
                let (preemptor, since) = (preemptor.clone(), self.seen.now);
                let drain = None;
                let eviction = Eviction { preemptor, drain, why, since, until };
                victims.entry(victim).or_default().push(eviction);
            }
        }
        victims
    }
}

/// Takes over that a group has its guarantee back.
fn restore(scheduler: &CellScheduler, stored: &mut Option<Box<AffinityGroupRecord>>) {
    let Some(record) = stored.as_ref().filter(|record| record.lazy_preemption.is_some()) else {
        return;
    };
    let key = &record.request.key;
    let is_restored = scheduler.group(key).is_some_and(|group| group.lazy_preemption.is_none());
    if let Some(restored) = scheduler.record(key).filter(|_| is_restored) {
        *stored = Some(Box::new(restored));
    }
}
