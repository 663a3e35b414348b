//! `minResources` of a group: what must be free before it is admitted, whatever its members ask for (`volcano.md` §1.4).
//! Checked against its queue and the queues above it, and against the nodes' free capacity together. It is not charged:
//! the queue is charged what the placed members ask for.

use super::{Candidate, Message, Pass, Why};
use crate::placement::capacity::{Fleet, IndexVersion};
use rcfarm_api::ResourceList;
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::resource_list::PODS;

/// Capacity of all nodes that take pods, together.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeTotals {
    free: ResourceList,
    capacity: ResourceList,
}

impl NodeTotals {
    fn of(fleet: &Fleet) -> NodeTotals {
        let mut all = NodeTotals::default();
        let fit = fleet.labels.nodes.keys().filter(|node| !fleet.unfit.contains(*node));
        for room in fit.map(|node| fleet.node_capacities.of(node)).filter(|r| !r.is_unreadable) {
            all.free.add(&room.free());
            all.capacity.add(&room.capacity);
        }
        all
    }

    /// The first resource of which less is free than `wanted`, in words. A number of pods is no limit where no node
    /// declares one.
    fn shortage(&self, wanted: &ResourceList) -> Option<String> {
        let is_limit = |what: &str| what != PODS || self.capacity.get(PODS).is_some();
        let (what, wanted) = wanted
            .iter()
            .find(|(what, wanted)| is_limit(what) && *wanted > self.free.amount(what))?;
        let spell = |amount| ResourceList::spell(what, amount);
        Some(format!(
            "{what}: {} wanted, {} of {} free on all nodes together",
            spell(wanted),
            spell(self.free.amount(what)),
            spell(self.capacity.amount(what)),
        ))
    }
}

/// The totals as last counted, with the version of the nodes that they are of.
pub(super) type KnownTotals = Option<(IndexVersion, NodeTotals)>;

impl Pass<'_, '_> {
    /// Whether a waiting group's `minResources` are left in its queue and free on the nodes.
    ///
    /// # Errors
    /// Why not, with the numbers.
    pub(super) fn check_min_resources(&mut self, c: &Candidate<'_>) -> Result<(), Why> {
        let wanted = &c.record.spec.min_resources;
        if wanted.is_zero() || c.admitted {
            return Ok(());
        }
        let say = |text: String| Message::Text(format!("spec.minResources: {text}"));
        let queues = self.seen.queues;
        if let Err(too_much) = queues.fits(&self.plan.usage, &c.queue, wanted) {
            return Err((too_much.reason, say(too_much.message)));
        }
        match self.node_totals().shortage(wanted) {
            None => Ok(()),
            Some(short) => Err((PodGroupReason::InsufficientCapacity, say(short))),
        }
    }

    /// Whether the nodes have a group's `minResources` if nothing else is allocated on them than on `empty`.
    pub(super) fn has_min_resources(c: &Candidate<'_>, empty: &Fleet) -> bool {
        let wanted = &c.record.spec.min_resources;
        wanted.is_zero() || NodeTotals::of(empty).shortage(wanted).is_none()
    }

    fn node_totals(&mut self) -> &NodeTotals {
        let version = self.memory.index.version();
        if self.memory.totals.as_ref().is_none_or(|(known, _)| *known != version) {
            let node_capacities = self.memory.index.node_capacities().clone();
            let fleet = Fleet { node_capacities, ..self.seen.fleet.clone() };
            self.memory.totals = Some((version, NodeTotals::of(&fleet)));
        }
        self.memory.totals.as_ref().map(|(_, totals)| totals).expect("just counted")
    }
}
