//! Updates the groups that have a status, before others are admitted. Pure.
//!
//! It also completes what an earlier owner has begun: a reservation is completed, or released if a node lacks capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::growth::{ended_members, lacks_members, least_members, placed_members};
use super::known::ChangedGroup;
use super::{Candidate, Pass};
use crate::batch::placing::{
    GroupMember, PlacementChange, VersionedStatus, fitted, members, missing, parts, with_allocation,
};
use crate::batch::pod_group_machine::{MemberState, Order, next};
use crate::cluster::queues::StoredGroup;
use rcfarm_api::FieldError;
use rcfarm_api::Index;
use rcfarm_api::ResourceList;
use rcfarm_api::pod_group::spec::{GroupId, MemberCounts, PodGroupRecord, PodGroupSpec};
use rcfarm_api::pod_group::status::{
    PlacementState, PodGroupPhase, PodGroupReason, PodGroupStatus,
};

/// Whether members have no pod: their nodes may go down.
fn has_pending(group: &StoredGroup) -> bool {
    group.value.as_ref().is_ok_and(|record| record.members.pending > 0)
}

impl<'a> Pass<'a, '_> {
    /// Updates the groups that are not known from earlier passes. Those that need a placement wait for it.
    pub(super) fn reconcile_all(&mut self, groups: &[ChangedGroup<'a>]) {
        if groups.is_empty() {
            return;
        }
        // Reservations first: they come before any new placement.
        for group in groups {
            if let Some(known) = group.known.filter(|known| self.is_mine(known))
                && !self.is_set_aside(group.id)
                && self.state_of(known) == Some(PlacementState::Reserving)
            {
                self.roll_forward(group.id, known);
            }
        }
        for group in groups {
            match group.known {
                Some(known) if self.is_mine(known) => self.reconcile_one(group, known),
                Some(_) => self.memory.known.remember(group, false, None),
                None => {}
            }
        }
        for group in groups.iter().filter(|group| group.known.is_none()) {
            if let Some(stored) = group.stored.filter(|_| !self.seen.unreadable.contains(group.id))
            {
                self.add_new(group, stored);
            }
        }
        self.memory.known.sort();
    }

    /// Updates a group that has a status.
    fn reconcile_one(&mut self, changed: &ChangedGroup<'a>, known: &'a VersionedStatus) {
        let id = changed.id;
        let group = changed.stored.filter(|group| group.created == known.value.of);
        if self.is_set_aside(id) {
            return self.report_set_aside(id, Some(known), group.map(|group| &**group));
        }
        match (self.state_of(known), group) {
            (Some(PlacementState::Reserving), _) => {}
            (Some(PlacementState::Releasing), group) => {
                self.roll_back(id, known, group.map(|group| &**group));
            }
            (_, None) => self.forget(id, known),
            (_, Some(group)) => {
                let before = self.effects();
                let candidate = self.keep(id, known, group);
                let is_settled = before == self.effects() && !has_pending(group);
                let rank = candidate.map(|candidate| self.add_waiting(&candidate, is_settled));
                if is_settled {
                    let may_grow = lacks_members(known, group);
                    self.memory.known.remember(changed, may_grow, rank);
                }
            }
        }
    }

    /// Takes in a group that has no status.
    fn add_new(&mut self, changed: &ChangedGroup<'a>, group: &'a Arc<StoredGroup>) {
        let id = changed.id;
        match &group.value {
            Ok(record) if self.orders(&record.spec.queue) && self.is_set_aside(id) => {
                self.report_set_aside(id, None, Some(group));
            }
            Ok(record) if self.orders(&record.spec.queue) => {
                let candidate = self.candidate(id, group, record, None);
                let rank = self.add_waiting(&candidate, true);
                self.memory.known.remember(changed, false, Some(rank));
            }
            Err(bad) if self.is_default() => self.report_invalid(id, None, group, bad),
            _ => self.memory.known.remember(changed, false, None),
        }
    }

    /// A group that waits for a placement.
    pub(super) fn candidate_of(&self, id: &GroupId) -> Option<Candidate<'a>> {
        let (id, group) = self.seen.groups.get_key_value(id)?;
        let record = group.value.as_ref().ok()?;
        Some(self.candidate(id, group, record, self.seen.statuses.get(id)))
    }

    /// Releases allocations of groups that have no status.
    pub(super) fn free_orphaned(&mut self) {
        if !self.is_default() {
            return;
        }
        let mut orphaned_allocations: BTreeMap<GroupId, Vec<GroupMember>> = BTreeMap::new();
        for (node, room) in self.seen.fleet.node_capacities.iter() {
            for (pod, allocation) in &room.allocated.pods {
                let group = allocation.owner.group();
                let is_orphaned = |id: &GroupId| {
                    !self.is_set_aside(id)
                        && !self.seen.statuses.contains_key(id)
                        && !self.seen.unreadable.contains(id)
                };
                let Some(id) = group.filter(is_orphaned) else { continue };
                let (node, pod, want) = (node.clone(), pod.clone(), allocation.resources());
                let port = allocation.port;
                let devices = BTreeSet::new();
                let member = GroupMember { node, pod, want, port, devices };
                orphaned_allocations.entry(id).or_default().push(member);
            }
        }
        for (id, members) in orphaned_allocations {
            let parts = parts(self.memory.index.node_capacities(), &id, members, self.seen.bounds);
            for release in parts {
                // A release cannot fail.
                let _ = self.book(&id, &release, &[]);
                let (allocate, record_index) = (Vec::new(), None);
                let change = PlacementChange {
                    id: id.clone(),
                    before: None,
                    after: None,
                    release,
                    allocate,
                    record_index,
                };
                self.plan.changes.push(change);
            }
        }
    }

    fn state_of(&self, known: &VersionedStatus) -> Option<PlacementState> {
        known.value.placement.as_ref().map(|placement| placement.state)
    }

    /// Whether a queue names this scheduler.
    fn orders(&self, queue: &rcfarm_api::ids::QueueName) -> bool {
        self.seen.queues.scheduler(queue) == *self.seen.me
    }

    pub(super) fn is_default(&self) -> bool {
        self.seen.me.as_str() == rcfarm_api::queue::spec::DEFAULT_SCHEDULER
    }

    /// Whether this scheduler is responsible: the queue in the status counts.
    fn is_mine(&self, known: &VersionedStatus) -> bool {
        match &known.value.queue {
            Some(queue) => self.orders(queue),
            None => self.is_default(),
        }
    }

    fn candidate(
        &self,
        id: &'a GroupId,
        group: &'a StoredGroup,
        record: &'a PodGroupRecord,
        known: Option<&'a VersionedStatus>,
    ) -> Candidate<'a> {
        let admitted = known.is_some_and(|known| known.value.phase.is_admitted());
        // An admitted group stays with the queue that is charged, even if its record names another.
        let charged = known.filter(|_| admitted).and_then(|known| known.value.queue.clone());
        let queue = charged.unwrap_or_else(|| record.spec.queue.clone());
        Candidate { id, queue, group, record, known, admitted }
    }

    /// Releases the allocations of a deleted group, or of an earlier one of the name; then deletes its status.
    fn forget(&mut self, id: &'a GroupId, known: &'a VersionedStatus) {
        if !self.seen.may_forget {
            return;
        }
        let Some(place) = &known.value.placement else {
            return self.drop_status(id, known, Vec::new());
        };
        let all = members(id, place);
        if !self.is_large(id, place, &all) {
            return self.drop_status(id, known, all);
        }
        self.begin_release(
            id,
            known,
            (*known.value).clone(),
            PodGroupPhase::Pending,
            PodGroupReason::Releasing,
        );
    }

    /// Makes the last change depend on the ModifyIndex of the group's record (0: absent).
    pub(super) fn require_record(&mut self, id: &GroupId) {
        let index = self.seen.groups.get(id).map_or(Index::ZERO, |group| group.index);
        if let Some(change) = self.plan.changes.last_mut() {
            change.record_index = Some(index);
        }
    }

    /// Makes the last change, which binds a group, depend on its record if members have ended. These get no node: if they
    /// started again meanwhile, the gang would be short of them.
    pub(super) fn require_ended(&mut self, id: &GroupId, spec: &PodGroupSpec) {
        if !spec.ended.is_empty() {
            self.require_record(id);
        }
    }

    fn drop_status(&mut self, id: &GroupId, known: &VersionedStatus, release: Vec<GroupMember>) {
        self.apply_release(id, &known.value, &release);
        let before = Some(known.clone());
        let allocate = Vec::new();
        let change = PlacementChange {
            id: id.clone(),
            before,
            after: None,
            release,
            allocate,
            record_index: None,
        };
        self.plan.changes.push(change);
        self.require_record(id);
        // A new group of the name is handled in the next pass.
        self.plan.more |= self.seen.groups.contains_key(id);
    }

    /// Applies a release to the pass' copies of fleet and usage.
    fn apply_release(&mut self, id: &GroupId, status: &PodGroupStatus, release: &[GroupMember]) {
        // A release cannot fail.
        let _ = self.book(id, release, &[]);
        if let Some(queue) = status.queue.as_ref().filter(|_| status.phase.is_admitted()) {
            self.plan.usage.discharge(self.seen.queues, queue, &status.charged);
        }
    }

    /// Sets a large placement to `Releasing`. Until it is released no member starts, and the queue stays charged.
    fn begin_release(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        mut after: PodGroupStatus,
        then: PodGroupPhase,
        reason: PodGroupReason,
    ) {
        let message = std::mem::take(&mut after.message);
        if let Some(place) = &mut after.placement {
            (place.state, place.then) = (PlacementState::Releasing, Some(then));
        }
        after.say(known.value.phase, reason, message, self.seen.now);
        self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
        self.require_record(id);
        self.plan.more = true;
    }

    /// Releases remaining allocations, in parts. Sets the next phase once none is left.
    fn roll_back(
        &mut self,
        id: &'a GroupId,
        known: &'a VersionedStatus,
        group: Option<&'a StoredGroup>,
    ) {
        let Some(place) = &known.value.placement else { return };
        let rest = with_allocation(self.memory.index.node_capacities(), id, members(id, place));
        let parts = parts(self.memory.index.node_capacities(), id, rest, self.seen.bounds);
        if !parts.is_empty() {
            self.plan.more = true;
            for part in parts {
                // Others may use the capacity after the whole release.
                let mut change =
                    PlacementChange::of_status(id, Some(known), (*known.value).clone());
                change.release = part;
                self.plan.changes.push(change);
            }
            return;
        }
        if group.is_none() && self.seen.may_forget {
            return self.drop_status(id, known, Vec::new());
        }
        let then = place.then.unwrap_or(PodGroupPhase::Pending);
        let mut after = (*known.value).clone();
        after.placement = None;
        if !then.is_admitted() {
            self.apply_release(id, &known.value, &[]);
            after.charged = ResourceList::default();
        }
        let (reason, message) = (after.reason, std::mem::take(&mut after.message));
        let reason =
            if reason == PodGroupReason::Releasing { PodGroupReason::AsDesired } else { reason };
        after.say(then, reason, message, self.seen.now);
        self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
        self.plan.more = true;
    }

    /// Makes the missing allocations of a reservation, in parts; then sets `Bound`. Releases all if a node lacks
    /// capacity or the group has changed.
    fn roll_forward(&mut self, id: &'a GroupId, known: &'a VersionedStatus) {
        let Some(place) = &known.value.placement else { return };
        let group = self.seen.groups.get(id).filter(|group| group.created == known.value.of);
        let record = group.and_then(|group| group.value.as_ref().ok());
        if group.is_none() && !self.seen.may_forget {
            return;
        }
        if !record.is_some_and(|record| self.still_wanted(id, known, &record.spec)) {
            let after = (*known.value).clone();
            let is_kept = group.is_some() && known.value.eviction.is_none();
            let then = if is_kept { PodGroupPhase::Inqueue } else { PodGroupPhase::Pending };
            return self.begin_release(id, known, after, then, PodGroupReason::Releasing);
        }
        let rest = missing(&self.seen.fleet.node_capacities, id, members(id, place));
        if rest.is_empty() {
            let mut after = (*known.value).clone();
            if let Some(place) = &mut after.placement {
                place.state = PlacementState::Bound;
            }
            (after.place_by, after.sent_back) = (None, 0);
            after.say(after.phase, PodGroupReason::AsDesired, String::new(), self.seen.now);
            self.plan.changes.push(PlacementChange::of_status(id, Some(known), after));
            if let Some(record) = record {
                self.require_ended(id, &record.spec);
            }
            return;
        }
        if let Err(insufficient) = self.book(id, &[], &rest) {
            let mut after = (*known.value).clone();
            after.message = insufficient;
            return self.begin_release(
                id,
                known,
                after,
                PodGroupPhase::Inqueue,
                PodGroupReason::ReservationFailed,
            );
        }
        self.plan.more = true;
        for part in parts(&self.seen.fleet.node_capacities, id, rest, self.seen.bounds) {
            let mut change = PlacementChange::of_status(id, Some(known), (*known.value).clone());
            change.allocate = part;
            self.plan.changes.push(change);
        }
    }

    fn still_wanted(&self, id: &GroupId, known: &VersionedStatus, spec: &PodGroupSpec) -> bool {
        let Some(place) = &known.value.placement else { return false };
        let (kept, lost) = fitted(id, spec, place);
        let counts = place.counts();
        let has = |task: &str| counts.get(task).copied().unwrap_or(0);
        spec.hold.is_none()
            && known.value.eviction.is_none()
            && spec.least_to_place().into_iter().all(|(task, least)| has(task) >= least)
            && spec.round == known.value.round
            && lost.is_empty()
            && kept.members.len() == place.members.len()
            && kept.members.iter().all(|(task, nodes)| place.members.get(task) == Some(nodes))
    }

    /// Updates a group whose placement is complete or absent. Returns it if it needs a placement.
    fn keep(
        &mut self,
        id: &'a GroupId,
        known: &'a VersionedStatus,
        group: &'a StoredGroup,
    ) -> Option<Candidate<'a>> {
        let status = &*known.value;
        let record = match &group.value {
            Ok(record) => record,
            Err(bad) => {
                self.report_invalid(id, Some(known), group, bad);
                return None;
            }
        };
        let order = self.order(id, status, record);
        if order == Order::Keep && status.phase == PodGroupPhase::Pending {
            return Some(self.candidate(id, group, record, Some(known)));
        }
        let phase = next(status.phase, order, self.counts(status, record, order));
        match (order, &status.placement) {
            (Order::Again, _) => self.start_round(id, known, record, phase),
            (Order::Requeue, _) => self.requeue(id, known, record, phase),
            _ if !phase.is_admitted() => self.release_unused(id, known, record, phase),
            (_, Some(place)) => {
                if !self.replace_down_nodes(id, known, record, place) {
                    self.adjust(id, known, &record.spec, place, phase);
                }
            }
            (_, None) => {
                match status.place_by {
                    Some(until) if until > self.seen.now => self.due(until),
                    // Its victims are being stopped.
                    Some(_) => self.extend(id, known, &record.spec),
                    None => {}
                }
                return Some(self.candidate(id, group, record, Some(known)));
            }
        }
        None
    }

    /// Releases the placement for a new round of the record. An admitted group stays admitted until it is placed again
    /// or its timeout passes.
    fn start_round(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        record: &PodGroupRecord,
        phase: PodGroupPhase,
    ) {
        let spec = &record.spec;
        let mut after = PodGroupStatus { members: record.members, ..(*known.value).clone() };
        (after.round, after.reservation) = (spec.round, None);
        after.owner_uid = spec.owner.as_ref().map(|owner| owner.uid.clone());
        after.place_by = phase.is_admitted().then(|| self.timeout(spec));
        // It is placed again in the next pass; lower groups of the queue that is charged wait.
        let charged = known.value.queue.clone().filter(|_| phase.is_admitted());
        self.blocked_by.insert(charged.unwrap_or_else(|| spec.queue.clone()), id.clone());
        after.say(known.value.phase, PodGroupReason::AsDesired, String::new(), self.seen.now);
        self.release_placement(id, known, after, phase);
    }

    /// Puts an admitted group back into its queue: it is on hold, another group takes its room, or it found no nodes in
    /// time.
    fn requeue(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        record: &PodGroupRecord,
        phase: PodGroupPhase,
    ) {
        let mut after = PodGroupStatus { members: record.members, ..(*known.value).clone() };
        (after.reservation, after.place_by, after.evictions) = (None, None, 0);
        let evicted = after.evicted().map(ToString::to_string);
        let after = match (&record.spec.hold, evicted) {
            (Some(hold), _) => {
                after.say(known.value.phase, hold.reason, hold.message.clone(), self.seen.now);
                after
            }
            (None, Some(why)) => {
                if self.is_strict(&record.spec.queue) {
                    // It keeps its place.
                    self.blocked_by.insert(record.spec.queue.clone(), id.clone());
                }
                after.say(known.value.phase, PodGroupReason::Evicted, why, self.seen.now);
                after
            }
            (None, None) => {
                if self.is_strict(&record.spec.queue) {
                    // It is placed again in the next pass.
                    self.blocked_by.insert(record.spec.queue.clone(), id.clone());
                }
                self.requeued(after, &record.spec)
            }
        };
        self.release_placement(id, known, after, phase);
    }

    /// Releases the placement of a group that has ended, or that has too few members left. In the second case its pods
    /// keep their nodes until they have left or run.
    fn release_unused(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        record: &PodGroupRecord,
        phase: PodGroupPhase,
    ) {
        let status = &*known.value;
        let MemberCounts { bound, running, releasing, .. } = record.members;
        let in_use = phase == PodGroupPhase::Pending && bound + running + releasing > 0;
        if phase == status.phase || in_use {
            return;
        }
        if let Some(queue) = status.queue.as_ref().filter(|_| phase == PodGroupPhase::Pending) {
            // It is placed again in the next pass; lower groups of its queue wait.
            self.blocked_by.insert(queue.clone(), id.clone());
        }
        let mut after = PodGroupStatus { members: record.members, ..status.clone() };
        after.eviction = None;
        after.say(status.phase, PodGroupReason::AsDesired, String::new(), self.seen.now);
        self.release_placement(id, known, after, phase);
    }

    /// What to do about a group, before its members are counted.
    fn order(&self, id: &GroupId, status: &PodGroupStatus, record: &PodGroupRecord) -> Order {
        let (spec, members) = (&record.spec, &record.members);
        let alive = members.bound + members.running + members.releasing;
        let late = status.placement.is_none()
            && status.phase.is_admitted()
            && status.place_by.is_some_and(|until| until <= self.seen.now)
            && !(status.reservation.is_some() && self.victims_stop(id));
        // Pods keep their nodes: the owner removes them first.
        let is_evicted = status.evicted().is_some()
            && self.counts(status, record, Order::Keep) != MemberState::AllEnded;
        let is_leaving = spec.hold.is_some() || is_evicted;
        let held = is_leaving && alive == 0 && status.phase.is_admitted();
        match () {
            () if held || late => Order::Requeue,
            () if spec.round > status.round && status.phase != PodGroupPhase::Pending => {
                Order::Again
            }
            () => Order::Keep,
        }
    }

    /// What the members' counts amount to.
    fn counts(
        &self,
        status: &PodGroupStatus,
        record: &PodGroupRecord,
        order: Order,
    ) -> MemberState {
        if order == Order::Again {
            return MemberState::TooFew;
        }
        let (spec, least) = (&record.spec, least_members(&record.spec));
        let placed = status.placement.as_ref().map_or(0, |place| placed_members(spec, place));
        let ended = ended_members(spec);
        let partially_placed = placed.saturating_add(ended) < least && record.members.pending > 0;
        let MemberCounts { succeeded, failed, .. } = record.members;
        // Owners need not name the members that have ended: those keep their nodes.
        let placed_and_ended = succeeded.saturating_add(failed).saturating_sub(ended);
        match MemberState::of(&record.members, least, partially_placed) {
            // Others have a node and are about to start.
            MemberState::AllEnded if placed > placed_and_ended => MemberState::Enough,
            state => state,
        }
    }

    /// Releases the placement and sets `phase`, if the group's record is unchanged: its owner may be starting pods. A
    /// large placement is released in several steps.
    fn release_placement(
        &mut self,
        id: &GroupId,
        known: &VersionedStatus,
        mut after: PodGroupStatus,
        phase: PodGroupPhase,
    ) {
        let release = known.value.placement.as_ref().map_or_else(Vec::new, |p| members(id, p));
        let place = known.value.placement.as_ref();
        if place.is_some_and(|place| self.is_large(id, place, &release)) {
            let reason = if after.reason == PodGroupReason::AsDesired {
                PodGroupReason::Releasing
            } else {
                after.reason
            };
            return self.begin_release(id, known, after, phase, reason);
        }
        after.placement = None;
        if phase.is_admitted() {
            let _ = self.book(id, &release, &[]);
        } else {
            self.apply_release(id, &known.value, &release);
            after.charged = ResourceList::default();
        }
        let (reason, message) = (after.reason, std::mem::take(&mut after.message));
        after.say(phase, reason, message, self.seen.now);
        let mut change = PlacementChange::of_status(id, Some(known), after);
        change.release = release;
        self.plan.changes.push(change);
        self.require_record(id);
        self.plan.more = true;
    }

    /// Reports an invalid record and leaves its pods running.
    pub(super) fn report_invalid(
        &mut self,
        id: &GroupId,
        known: Option<&VersionedStatus>,
        group: &StoredGroup,
        bad: &[FieldError],
    ) {
        let mut after = known.map_or_else(PodGroupStatus::default, |k| (*k.value).clone());
        if known.is_none() {
            (after.of, after.since) = (group.created, group.created);
        }
        let has_no_place = after.placement.is_none() && after.phase.is_admitted();
        if has_no_place {
            self.apply_release(id, &after, &[]);
            (after.charged, after.place_by) = (ResourceList::default(), None);
            after.reservation = None;
        }
        let phase = if has_no_place { PodGroupPhase::Pending } else { after.phase };
        after.say(phase, PodGroupReason::InvalidRecord, FieldError::list(bad), self.seen.now);
        if known.is_none_or(|known| *known.value != after) {
            // A release comes before placements of this pass that may use it.
            let to =
                if has_no_place { &mut self.plan.changes } else { &mut self.plan.message_changes };
            to.push(PlacementChange::of_status(id, known, after));
        }
    }
}
