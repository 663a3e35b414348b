//! What the passes of a scheduler remember of each other, so that a pass costs as much as has changed. It decides
//! nothing: a pass without it has the same result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cells::KnownCells;
use super::known::KnownGroups;
use super::min_resources::KnownTotals;
use crate::placement::capacity::{
    Decision, Fleet, FleetIndex, Gang, GangPlacement, IndexVersion, NodeCapacities, NodeCapacity,
};
use rcfarm_api::ids::{NodeName, QueueName};
use rcfarm_api::pod_group::spec::TaskSpec;
use rcfarm_api::pod_group::status::PodGroupReason;
use rcfarm_api::scheduler::Packing;

/// Number of passes after which a request that nobody has made again is forgotten.
pub(super) const PASSES_KEPT: u64 = 100;

/// Nodes by free capacity, and requests that did not fit.
#[derive(Debug, Default)]
pub struct PassMemory {
    pub(in crate::batch) index: FleetIndex,
    pub(super) totals: KnownTotals,
    no_room: BTreeMap<Vec<TaskSpec>, DoesNotFit>,
    emptied: Option<Box<EmptiedNodes>>,
    beside: BTreeMap<QueueName, NotBeside>,
    packing: Packing,
    pass: u64,
    pub(super) known: KnownGroups,
    pub(super) cells: KnownCells,
}

/// A request that did not fit.
#[derive(Debug)]
struct DoesNotFit {
    reason: PodGroupReason,
    /// Made when it is first asked for in a pass.
    message: Option<String>,
    /// Name of the gang. Of several tasks the choice among equal nodes depends on it.
    gang: String,
    version: IndexVersion,
    /// Pass in which this was last found to be true. Within a pass capacity only shrinks.
    pass: u64,
}

impl PassMemory {
    /// Begins a pass over the nodes as they are.
    pub(super) fn begin(&mut self, fleet: &Fleet, packing: Packing) {
        self.pass += 1;
        self.index.follow(fleet);
        let (pass, is_same) = (self.pass, packing == self.packing);
        self.no_room.retain(|_, known| is_same && known.pass + PASSES_KEPT >= pass);
        self.packing = packing;
        let version = self.index.version();
        self.beside.retain(|_, known| known.version == version && is_same);
    }

    /// Number of the pass.
    pub(super) fn pass(&self) -> u64 {
        self.pass
    }

    /// Comparisons of nodes in this pass.
    pub(super) fn steps(&self) -> usize {
        let emptied = self.emptied.as_ref().filter(|emptied| emptied.pass == self.pass);
        let of_emptied = emptied.map_or(0, |emptied| emptied.memory.index.steps());
        self.index.steps() + of_emptied + self.cells.steps(self.pass)
    }

    /// The nodes without what is allocated to groups. No pass changes them.
    pub(super) fn emptied(&mut self, fleet: &Fleet) -> &mut EmptiedNodes {
        let emptied = self.emptied.get_or_insert_default();
        if emptied.pass != self.pass {
            emptied.pass = self.pass;
            emptied.follow(fleet, self.index.node_capacities(), self.packing);
        }
        emptied
    }

    /// Nodes for a gang, without those that its queue keeps.
    ///
    /// # Errors
    /// The reason why it has no room; `None`: only nodes that are kept have room.
    pub(super) fn find_beside(
        &mut self,
        queue: &QueueName,
        kept: &BTreeSet<NodeName>,
        gang: &Gang,
    ) -> Result<GangPlacement, Option<PodGroupReason>> {
        let version = self.index.version();
        let known = self.beside.get(queue).filter(|known| known.version == version);
        let known = known.filter(|known| known.kept == *kept);
        let request = (gang.name.clone(), gang.tasks.clone());
        match known.map(|known| known.gangs.get(&request)) {
            Some(Some(reason)) => return Err(*reason),
            Some(None) => {}
            None => {
                let known = NotBeside { kept: kept.clone(), version, gangs: BTreeMap::new() };
                self.beside.insert(queue.clone(), known);
            }
        }
        if let Some(found) = self.index.find_without(gang, kept) {
            return Ok(found);
        }
        let reason = self.find(gang).err();
        if let Some(known) = self.beside.get_mut(queue) {
            known.gangs.insert(request, reason);
        }
        Err(reason)
    }

    /// Reason why a gang has no room, if that is known.
    pub(super) fn known_no_room(&mut self, gang: &Gang) -> Option<PodGroupReason> {
        let known = self.no_room.get_mut(&gang.tasks)?;
        if known.pass < self.pass {
            let was_tried = gang.tasks.len() == 1 || known.gang == gang.name;
            if !was_tried || self.index.may_have_room(known.version, gang) {
                return None;
            }
            (known.pass, known.version, known.message) = (self.pass, self.index.version(), None);
        }
        Some(known.reason)
    }

    /// Nodes for a gang.
    ///
    /// # Errors
    /// The reason why it has no room.
    pub(in crate::batch) fn find(&mut self, gang: &Gang) -> Result<GangPlacement, PodGroupReason> {
        if let Some(reason) = self.known_no_room(gang) {
            return Err(reason);
        }
        if let Some(placement) = self.index.find(gang) {
            return Ok(placement);
        }
        let is_nowhere = gang.tasks.iter().any(|task| self.index.eligible(task) == 0);
        let reason = match is_nowhere {
            true => PodGroupReason::NoEligibleNodes,
            false => PodGroupReason::InsufficientCapacity,
        };
        let (gang_name, version, pass) = (gang.name.clone(), self.index.version(), self.pass);
        let known = DoesNotFit { reason, message: None, gang: gang_name, version, pass };
        self.no_room.insert(gang.tasks.clone(), known);
        Err(reason)
    }

    /// Text for people on why a gang has no room.
    pub(super) fn message(&mut self, gang: &Gang) -> String {
        if let Some(text) = self.no_room.get(&gang.tasks).and_then(|known| known.message.clone()) {
            return text;
        }
        let text = match self.index.place(gang) {
            Decision::Wait(waits) => {
                let text = |wait: &crate::placement::capacity::TaskWait| {
                    format!("task {}: {}", wait.task, wait.message)
                };
                waits.iter().map(text).collect::<Vec<_>>().join("; ")
            }
            Decision::Bind(_) | Decision::Preempt(_) => "there was no room".to_owned(),
        };
        if let Some(known) = self.no_room.get_mut(&gang.tasks) {
            known.message = Some(text.clone());
        }
        text
    }
}

/// Requests that do not fit on the nodes that a queue does not keep.
#[derive(Debug)]
struct NotBeside {
    kept: BTreeSet<NodeName>,
    version: IndexVersion,
    /// By name and tasks of the gang, the reason; `None`: nodes that are kept have room.
    gangs: BTreeMap<(String, Vec<TaskSpec>), Option<PodGroupReason>>,
}

/// The nodes without what is allocated to groups, and requests that fit there.
#[derive(Debug, Default)]
pub(super) struct EmptiedNodes {
    pub(super) fleet: Fleet,
    memory: PassMemory,
    fitting: BTreeMap<Vec<TaskSpec>, IndexVersion>,
    /// The nodes that these were made from.
    source: NodeCapacities,
    /// Pass in which they were.
    pass: u64,
}

impl EmptiedNodes {
    /// Takes over nodes. Those that are the same objects as before cost a comparison.
    fn follow(&mut self, fleet: &Fleet, source: &NodeCapacities, packing: Packing) {
        let mut node_capacities = std::mem::take(&mut self.fleet.node_capacities);
        let changed = source.differing(&self.source);
        if changed.iter().any(|node| source.get(node).is_none()) {
            node_capacities =
                source.iter().map(|(node, room)| (node.clone(), emptied(room))).collect();
        } else {
            for node in changed {
                let room = emptied(source.of(node));
                if node_capacities.get(node) != Some(&room) {
                    node_capacities.insert(node.clone(), room);
                }
            }
        }
        self.source = source.clone();
        self.fleet = Fleet { node_capacities, ..fleet.clone() };
        self.memory.begin(&self.fleet, packing);
        let version = self.memory.index.version();
        self.fitting.retain(|_, known| *known == version);
    }

    pub(super) fn version(&self) -> IndexVersion {
        self.memory.index.version()
    }

    pub(super) fn has_room(&mut self, gang: &Gang) -> bool {
        if self.fitting.contains_key(&gang.tasks) {
            return true;
        }
        let fits = self.memory.find(gang).is_ok();
        if fits {
            self.fitting.insert(gang.tasks.clone(), self.memory.index.version());
        }
        fits
    }
}

fn emptied(room: &NodeCapacity) -> Arc<NodeCapacity> {
    let mut room = room.clone();
    room.allocated.pods.retain(|_, allocation| allocation.owner.group().is_none());
    Arc::new(room)
}
