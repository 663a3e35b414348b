//! Groups that others of their queue go before, in queues that admit what fits.
//!
//! The first group of a queue that waits for capacity is its head. The head's status counts the groups behind it that
//! were admitted before it (`passed`). Once these are as many as the queue's `maxPasses`, its capacity is kept for it: no
//! group behind it is placed on a node that one of its members could use, and no elastic group of the queue grows.
//! If it waits for the queue's quota, no group behind it is admitted at all. A group that would not fit even if all
//! groups had ended is no head: it would hold up its queue for nothing.
//!
//! Groups of other queues may take what is kept. From the first that does, it is kept for the head's
//! `scheduleTimeoutSeconds`; then it is released, and counted anew. Otherwise a queue could stand still for ever.

use std::collections::BTreeSet;

use super::{Candidate, Message, Pass, Why};
use crate::batch::placing::{PlacementChange, VersionedStatus, gang};
use crate::placement::capacity::{Fleet, Gang, GangPlacement, NodeCapacity};
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{NodeName, QueueName};
use rcfarm_api::labels::Labels;
use rcfarm_api::pod_group::status::PodGroupReason;

/// The first group of a queue that waits for capacity.
pub(super) struct Head<'a> {
    candidate: Candidate<'a>,
    /// The queue whose quota it waits for, its own or one above; `None`: it waits for nodes.
    full: Option<QueueName>,
    /// Groups that went before it, those of this pass included.
    passed: u32,
    /// When what is kept for it is released; `None`: no group of another queue has taken of it.
    kept_until: Option<Timestamp>,
    /// Whether `passed` or `kept_until` has changed in this pass.
    is_changed: bool,
    kept: Option<Kept>,
}

/// Capacity that is kept for a head.
struct Kept {
    /// Nodes that one of its members could use.
    nodes: BTreeSet<NodeName>,
}

impl<'a> Pass<'a, '_> {
    fn max_passes(&self, queue: &QueueName) -> u32 {
        self.seen.queues.0.get(queue).map_or(u32::MAX, |queue| queue.spec.max_passes)
    }

    /// Makes a group that does not fit the head of its queue, if there is none.
    pub(super) fn note_head(&mut self, c: &Candidate<'a>, reason: PodGroupReason) {
        if !self.lacks_head(&c.queue, reason) || !self.fits_empty_nodes(c) {
            return;
        }
        let of = |known: &VersionedStatus| (known.value.passed, known.value.kept_until);
        let (mut passed, mut kept_until) = c.known.map_or((0, None), of);
        let is_over = kept_until.is_some_and(|until| until <= self.seen.now);
        if is_over {
            (passed, kept_until) = (0, None);
        }
        let full = self.full_queue(c);
        let candidate = c.clone();
        let mut head =
            Head { candidate, full, passed, kept_until, is_changed: is_over, kept: None };
        if passed >= self.max_passes(&c.queue) && !is_over {
            head.kept = Some(self.keep_for(&head));
            kept_until.into_iter().for_each(|until| self.due(until));
        }
        self.heads.insert(c.queue.clone(), head);
    }

    /// Whether a queue has no head, and a group that waits for this reason may become it.
    pub(super) fn lacks_head(&self, queue: &QueueName, reason: PodGroupReason) -> bool {
        matches!(reason, PodGroupReason::InsufficientCapacity | PodGroupReason::QueueFull)
            && !self.heads.contains_key(queue)
    }

    /// Whether a group would fit if all groups had ended.
    fn fits_empty_nodes(&mut self, c: &Candidate<'a>) -> bool {
        let spec = &c.record.spec;
        let gang = gang(c.id, spec, &spec.least_to_place(), self.seen.spec);
        let emptied = self.memory.emptied(self.seen.fleet);
        emptied.has_room(&gang) && Self::has_min_resources(c, &emptied.fleet)
    }

    /// The queue whose quota a group waits for; `None`: it waits for nodes.
    fn full_queue(&self, c: &Candidate<'a>) -> Option<QueueName> {
        let spec = &c.record.spec;
        let charge = spec.charge(&spec.least_to_place());
        let too_much = [&spec.min_resources, &charge]
            .into_iter()
            .filter(|wanted| !wanted.is_zero())
            .find_map(|wanted| self.seen.queues.fits(&self.plan.usage, &c.queue, wanted).err());
        too_much.map(|too_much| too_much.queue)
    }

    /// Counts an admission before the head of the queue.
    pub(super) fn note_pass(&mut self, admitted: &Candidate<'_>) {
        let most = self.max_passes(&admitted.queue);
        let Some(head) = self.heads.get_mut(&admitted.queue).filter(|head| head.passed < most)
        else {
            return;
        };
        (head.passed, head.is_changed) = (head.passed + 1, true);
        if head.passed == most
            && let Some(mut head) = self.heads.remove(&admitted.queue)
        {
            head.kept = Some(self.keep_for(&head));
            self.heads.insert(admitted.queue.clone(), head);
        }
    }

    /// Number of groups of a queue that may still go before its head; `None`: any number.
    pub(super) fn passes_left(&self, queue: &QueueName) -> Option<usize> {
        let head = self
            .heads
            .get(queue)
            .filter(|head| head.kept.is_some() || head.passed < self.max_passes(queue))?;
        let left = self.max_passes(queue).saturating_sub(head.passed);
        Some(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Whether capacity is kept for a head of the queue.
    pub(super) fn keeps_capacity(&self, queue: &QueueName) -> bool {
        self.heads.get(queue).is_some_and(|head| head.kept.is_some())
    }

    /// What is kept for a head: nodes, or its queue's quota.
    fn keep_for(&mut self, head: &Head<'a>) -> Kept {
        let Candidate { id, queue, record, .. } = &head.candidate;
        let spec = &record.spec;
        let gang = gang(id, spec, &spec.least_to_place(), self.seen.spec);
        let fleet = &self.memory.emptied(self.seen.fleet).fleet;
        let mut nodes = BTreeSet::new();
        if head.full.is_none() {
            let usable = fleet.node_capacities.iter().filter(|(node, room)| {
                // `minResources` are of all nodes together.
                let wanted = !spec.min_resources.is_zero() || could_use(&gang, fleet, node, room);
                !fleet.unfit.contains(*node) && wanted
            });
            nodes = usable.map(|(node, _)| node.clone()).collect();
        }
        let is_other = |node: &NodeName| !fleet.unfit.contains(node) && !nodes.contains(node);
        if nodes.is_empty() || !fleet.labels.nodes.keys().any(is_other) {
            self.blocked_by.insert(queue.clone(), (*id).clone());
        }
        Kept { nodes }
    }

    /// Placement of a group behind a head, on nodes that are not kept; `None`: none are kept. What a pass tries counts as
    /// steps, and is remembered until the nodes change: the next pass goes on behind it.
    pub(super) fn find_beside_head(
        &mut self,
        c: &Candidate<'a>,
        gang: &Gang,
    ) -> Option<Result<GangPlacement, Why>> {
        let kept = self.heads.get(&c.queue).filter(|_| !c.admitted)?.kept.as_ref()?;
        let found = self.memory.find_beside(&c.queue, &kept.nodes, gang);
        Some(found.map_err(|reason| match reason {
            Some(reason) => (reason, Message::DoesNotFit(gang.clone())),
            None => self.goes_first(&c.queue),
        }))
    }

    /// Refuses a placement of a group behind a head that uses nodes that are kept.
    ///
    /// # Errors
    /// It uses nodes that are kept.
    pub(super) fn check_beside_head(
        &self,
        c: &Candidate<'a>,
        found: GangPlacement,
    ) -> Result<GangPlacement, Why> {
        let kept = self.heads.get(&c.queue).filter(|_| !c.admitted).and_then(|h| h.kept.as_ref());
        match kept.is_none_or(|kept| kept.is_free_of(&found)) {
            true => Ok(found),
            false => Err(self.goes_first(&c.queue)),
        }
    }

    fn goes_first(&self, queue: &QueueName) -> Why {
        let text = self.why_first(queue).unwrap_or_else(|| "another goes first".to_owned());
        (PodGroupReason::BehindInQueue, Message::Text(text))
    }

    /// Why the head of a queue goes before others; `None`: nothing is kept for it.
    pub(super) fn why_first(&self, queue: &QueueName) -> Option<String> {
        let head = self.heads.get(queue).filter(|head| head.kept.is_some())?;
        let (id, passed) = (head.candidate.id, head.passed);
        Some(format!(
            "{id} goes first: {passed} groups of the queue went before it, and maxPasses of {queue} allows no more"
        ))
    }

    /// Whether a group of another queue was placed in this pass with what is kept for a head.
    fn has_lost(&self, head: &Head<'a>) -> bool {
        let Some(kept) = &head.kept else { return false };
        let chain = |queue| self.seen.queues.0.get(queue).map_or(&[][..], |queue| &queue.chain);
        self.bound.iter().filter(|(queue, _)| *queue != head.candidate.queue).any(
            |(queue, nodes)| match &head.full {
                Some(full) => chain(queue).contains(full),
                None => !nodes.is_disjoint(&kept.nodes),
            },
        )
    }

    /// Writes the counts of this pass into the heads' statuses, before the admissions that they count. What is kept in
    /// vain, because other queues take it, is kept until the head's time-out.
    pub(super) fn write_passes(&mut self) {
        let mut heads = std::mem::take(&mut self.heads);
        for head in heads.values_mut().filter(|head| head.kept_until.is_none()) {
            if self.has_lost(head) {
                let until = self.timeout(&head.candidate.record.spec);
                (head.kept_until, head.is_changed) = (Some(until), true);
                self.due(until);
            }
        }
        self.heads = heads;
        for head in self.heads.values().filter(|head| head.is_changed) {
            let c = &head.candidate;
            let messages = &mut self.plan.message_changes;
            let said = messages.iter().position(|change| change.id == *c.id);
            let said = said.and_then(|at| messages.remove(at).after);
            let mut after = said.unwrap_or_else(|| c.status());
            (after.passed, after.kept_until) = (head.passed, head.kept_until);
            self.plan.changes.insert(0, PlacementChange::of_status(c.id, c.known, after));
        }
    }
}

impl Kept {
    fn is_free_of(&self, found: &GangPlacement) -> bool {
        !found.tasks.values().flatten().any(|node| self.nodes.contains(node))
    }
}

/// Whether a member of the gang could run on a node once the groups' pods there have ended.
fn could_use(gang: &Gang, fleet: &Fleet, node: &NodeName, room: &NodeCapacity) -> bool {
    static NONE: Labels = Labels::new();
    let labels = fleet.labels.nodes.get(node).unwrap_or(&NONE);
    gang.tasks.iter().any(|task| {
        task.selector_or_all().matches(labels)
            && (task.resources.is_zero() || room.free().fits(&task.resources))
    })
}
