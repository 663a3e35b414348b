//! Groups that others of their queue go before, in queues that admit what fits.
//!
//! The first group of a queue that waits for capacity is its head. The head's status counts the groups behind it that
//! were admitted before it (`passed`). Once these are as many as the queue's `maxPasses`, its capacity is kept for it: no
//! group behind it is placed on a node that one of its members could use, and no elastic group of the queue grows.
//! If it waits for the queue's quota, no group behind it is admitted at all. A head that would not fit even if all
//! groups had ended is skipped: it would hold up its queue for nothing.

use std::collections::BTreeSet;

use super::{Candidate, Message, Pass, Why};
use crate::batch::placing::{PlacementChange, gang};
use crate::placement::capacity::{
    Decision, Fleet, FleetIndex, Gang, GangPlacement, NodeCapacity, place,
};
use rcfarm_api::ids::{NodeName, QueueName};
use rcfarm_api::labels::Labels;
use rcfarm_api::pod_group::status::PodGroupReason;

/// Placements beside a head's nodes that one pass tries per queue. Each compares all nodes.
const MOST_TRIES: usize = 50;

/// The first group of a queue that waits for capacity.
pub(super) struct Head<'a> {
    candidate: Candidate<'a>,
    reason: PodGroupReason,
    /// Groups that went before it, those of this pass included.
    passed: u32,
    /// Whether `passed` has grown in this pass.
    is_changed: bool,
    kept: Option<Kept>,
}

/// Capacity that is kept for a head.
struct Kept {
    /// Nodes that one of its members could use.
    nodes: BTreeSet<NodeName>,
    tries: usize,
}

impl<'a> Pass<'a, '_> {
    fn max_passes(&self, queue: &QueueName) -> u32 {
        self.seen.queues.0.get(queue).map_or(u32::MAX, |queue| queue.spec.max_passes)
    }

    /// Makes a group that does not fit the head of its queue, if there is none.
    pub(super) fn note_head(&mut self, c: &Candidate<'a>, reason: PodGroupReason) {
        let waits_for_capacity =
            matches!(reason, PodGroupReason::InsufficientCapacity | PodGroupReason::QueueFull);
        if !waits_for_capacity || self.heads.contains_key(&c.queue) {
            return;
        }
        let passed = c.known.map_or(0, |known| known.value.passed);
        let mut head = Head { candidate: c.clone(), reason, passed, is_changed: false, kept: None };
        if passed >= self.max_passes(&c.queue) {
            let Some(kept) = self.keep_for(&head) else { return };
            head.kept = Some(kept);
        }
        self.heads.insert(c.queue.clone(), head);
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
            head.kept = self.keep_for(&head);
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

    /// What is kept for a head. `None`: it would not fit even if all groups had ended.
    fn keep_for(&mut self, head: &Head<'a>) -> Option<Kept> {
        let Candidate { id, queue, record, .. } = &head.candidate;
        let spec = &record.spec;
        let gang = gang(id, spec, &spec.least_to_place(), self.seen.spec);
        let emptied = self.emptied.take().unwrap_or_else(|| {
            let fleet = self.without_groups();
            let index = FleetIndex::of(&fleet);
            (fleet, index)
        });
        let (fleet, index) = self.emptied.insert(emptied);
        if index.find(&gang).is_none() || !Self::has_min_resources(&head.candidate, fleet) {
            return None;
        }
        let mut nodes = BTreeSet::new();
        if head.reason == PodGroupReason::InsufficientCapacity {
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
        Some(Kept { nodes, tries: 0 })
    }

    /// The nodes without what is allocated to groups.
    fn without_groups(&self) -> Fleet {
        let of_others = |room: &NodeCapacity| {
            let mut room = room.clone();
            room.allocated.pods.retain(|_, allocation| allocation.owner.group().is_none());
            room
        };
        let rooms = self.memory.index.node_capacities().iter();
        let node_capacities =
            rooms.map(|(node, room)| (node.clone(), of_others(room).into())).collect();
        Fleet { node_capacities, ..self.seen.fleet.clone() }
    }

    /// The placement `found` of a group behind a head; if it uses nodes that are kept, one on other nodes.
    ///
    /// # Errors
    /// Only nodes that are kept have room.
    pub(super) fn beside_head(
        &mut self,
        c: &Candidate<'a>,
        gang: &Gang,
        found: GangPlacement,
    ) -> Result<GangPlacement, Why> {
        let Some(head) = self.heads.get_mut(&c.queue).filter(|_| !c.admitted) else {
            return Ok(found);
        };
        let Some(kept) = head.kept.as_mut() else { return Ok(found) };
        if kept.is_free_of(&found) {
            return Ok(found);
        }
        if kept.tries < MOST_TRIES {
            kept.tries += 1;
            let node_capacities = self.memory.index.node_capacities().clone();
            let mut fleet = Fleet { node_capacities, ..self.seen.fleet.clone() };
            fleet.unfit.extend(kept.nodes.iter().cloned());
            if let Decision::Bind(other) = place(gang, &fleet) {
                return Ok(other);
            }
        }
        Err(self.goes_first(&c.queue))
    }

    /// [`Pass::beside_head`], without a search.
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

    /// Writes the counts of this pass into the heads' statuses, before the admissions that they count.
    pub(super) fn write_passes(&mut self) {
        for head in self.heads.values().filter(|head| head.is_changed) {
            let c = &head.candidate;
            let messages = &mut self.plan.message_changes;
            let said = messages.iter().position(|change| change.id == *c.id);
            let said = said.and_then(|at| messages.remove(at).after);
            let mut after = said.unwrap_or_else(|| c.status());
            after.passed = head.passed;
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
