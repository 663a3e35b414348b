//! Groups that ask for cells. They are placed by a [`CellScheduler`] that is rebuilt from the configuration, the nodes
//! and what groups hold according to their statuses. It is kept as long as none of these changes. Nobody's pods are
//! stopped for a group: one that would need that waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Asked, Candidate, Message, Pass, Why};
use crate::batch::placing::{PlacementChange, VersionedStatus};
use crate::placement::capacity::{GangPlacement, IndexVersion};
use crate::placement::cells::{self, Holders};
use rcfarm_api::Index;
use rcfarm_api::cells::{AffinityGroupRecord, CellRequest, GroupKey};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::{PodGroupReason, PodGroupStatus};
use rcfarm_cells::{
    CellDecision, CellHealthiness, CellModel, CellPlan, CellScheduler, GroupRequest, PodRequest,
};

/// Groups that a message names at most.
const MOST_NAMED: usize = 8;

/// The cells as they were when a pass needed them.
#[derive(Debug, Default)]
pub(super) struct KnownCells {
    config: Index,
    health: Vec<CellHealthiness>,
    holders: Vec<(GroupId, Arc<PodGroupStatus>)>,
    /// As rebuilt.
    base: Option<CellScheduler>,
    /// With the groups that were placed in this pass.
    now: Option<CellScheduler>,
    /// The pass that has compared it with what is stored.
    pass: u64,
    /// Nodes compared in that pass.
    steps: usize,
    /// Requests that had no place, until a node changes or a group is placed.
    no_place: BTreeMap<Request, (PodGroupReason, String)>,
    /// Nodes for tasks, until a node changes.
    suggested: BTreeMap<Vec<TaskSpec>, Arc<BTreeSet<String>>>,
    version: Option<IndexVersion>,
}

/// What decides where a group is placed: its virtual cluster, its request in JSON, its tasks.
type Request = (String, String, Vec<TaskSpec>);

impl KnownCells {
    /// Nodes compared in a pass.
    pub(super) fn steps(&self, pass: u64) -> usize {
        if self.pass == pass { self.steps } else { 0 }
    }

    /// Forgets what was found for other nodes.
    fn follow(&mut self, version: IndexVersion) {
        if self.version != Some(version) {
            self.version = Some(version);
            self.no_place.clear();
            self.suggested.clear();
        }
    }

    fn scheduler(&self) -> Option<&CellScheduler> {
        self.now.as_ref().or(self.base.as_ref())
    }
}

/// A place for a group.
struct Found {
    nodes: GangPlacement,
    record: AffinityGroupRecord,
    /// The cells once it is placed.
    after: CellScheduler,
    /// Groups that run on as opportunistic, with what they hold then.
    downgraded: Vec<(GroupId, AffinityGroupRecord)>,
}

fn invalid(text: impl Into<String>) -> Why {
    (PodGroupReason::InvalidRecord, Message::Text(text.into()))
}

fn insufficient(text: String) -> Why {
    (PodGroupReason::InsufficientCapacity, Message::Text(text))
}

impl<'a> Pass<'a, '_> {
    /// Places a group in cells, or sets its reason.
    pub(super) fn admit_to_cells(
        &mut self,
        c: &Candidate<'a>,
        request: &CellRequest,
        asked: &Asked,
    ) {
        self.plan.asks_cells = true;
        let found = match self.check_queue(c, asked) {
            Ok(()) => self.find_cells(c, request),
            Err(why) => Err(why),
        };
        let found = match found {
            Ok(found) => found,
            Err(why) => return self.block(c, why),
        };
        let (placed, at) = (self.placed, self.plan.changes.len());
        self.bind(c, &found.nodes, Some(found.record));
        if self.placed == placed {
            // A node lacks something that cells do not count: the group waits.
            return;
        }
        self.memory.cells.now = Some(found.after);
        self.memory.cells.no_place.clear();
        for (id, record) in found.downgraded {
            let Some(known) = self.seen.statuses.get(&id) else { continue };
            let mut after = (*known.value).clone();
            if let Some(place) = &mut after.placement {
                place.cells = Some(Box::new(record));
            }
            let change = PlacementChange::of_status(&id, Some(known), after);
            // Before the group that takes its cells: without that group it gets them back.
            self.plan.changes.insert(at, change);
        }
    }

    /// The group's place in the cells.
    ///
    /// # Errors
    /// Why it has none.
    fn find_cells(&mut self, c: &Candidate<'a>, request: &CellRequest) -> Result<Found, Why> {
        let spec = &c.record.spec;
        if !self.is_default() {
            return Err(invalid("spec.cells: only queues of the scheduler default place by cells"));
        }
        let Some(stored) = self.seen.cells else {
            let text = "there are no cells; describe them: rcfarm cell config apply FILE";
            return Err((PodGroupReason::NoEligibleNodes, Message::Text(text.to_owned())));
        };
        let Ok(model) = &stored.value else {
            let text = "the configuration of cells is not valid: rcfarm doctor says what is wrong";
            return Err((PodGroupReason::NoEligibleNodes, Message::Text(text.to_owned())));
        };
        let slots = slots(spec, request).map_err(invalid)?;
        self.follow_cells(stored.index, model);
        let asked = {
            let key = GroupKey::new(request.group.key.virtual_cluster.clone(), "");
            let group = GroupRequest { key, ..request.group.clone() };
            let json = serde_json::to_string(&group).unwrap_or_default();
            (group.key.virtual_cluster, json, spec.tasks.clone())
        };
        let key = &request.group.key;
        let scheduler = self.memory.cells.scheduler();
        if scheduler.is_some_and(|scheduler| scheduler.group(key).is_some()) {
            return Err(invalid(format!(
                "spec.cells: another PodGroup is the affinity group {key}"
            )));
        }
        self.memory.cells.follow(self.memory.index.version());
        if let Some((reason, text)) = self.memory.cells.no_place.get(&asked) {
            return Err((*reason, Message::Text(text.clone())));
        }
        let decided = self.decide(c, request, model);
        if let Err((reason, Message::Text(text))) = &decided
            && *reason == PodGroupReason::InsufficientCapacity
        {
            self.memory.cells.no_place.insert(asked, (*reason, text.clone()));
        }
        let plan = decided?;
        let downgraded = self.downgraded(&plan)?;
        let (nodes, names) = assign(spec, &plan, &slots).map_err(invalid)?;
        let changed = || insufficient("the cells have changed meanwhile".to_owned());
        let mut after = self.memory.cells.scheduler().cloned().ok_or_else(changed)?;
        after.commit_gang(&plan, &names, self.seen.now).map_err(|_| changed())?;
        let record = after.record(key).ok_or_else(changed)?;
        let downgraded =
            downgraded.into_iter().filter_map(|(id, key)| Some((id, after.record(&key)?)));
        let downgraded = downgraded.collect();
        Ok(Found { nodes, record, after, downgraded })
    }

    /// Where the group would be placed. It changes nothing.
    ///
    /// # Errors
    /// Why it has no place.
    fn decide(
        &mut self,
        c: &Candidate<'a>,
        request: &CellRequest,
        model: &CellModel,
    ) -> Result<CellPlan, Why> {
        let suggested = self.suggested(&c.record.spec.tasks, model);
        self.memory.cells.steps += model.nodes().count();
        let Some(scheduler) = self.memory.cells.scheduler() else {
            return Err(insufficient("the cells are not known yet".to_owned()));
        };
        // A pod never runs where its task's selector does not match.
        let group = GroupRequest { ignore_suggested_nodes: false, ..request.group.clone() };
        let pod = PodRequest { group, member: 0 };
        let decision = scheduler.plan(&pod, &c.id.to_string(), Some(&suggested));
        match decision.map_err(|bad| invalid(format!("spec.cells: {bad}")))? {
            CellDecision::Bind(plan) => Ok(plan),
            CellDecision::Preempt(plan) => {
                let victims: Vec<String> =
                    plan.victims.iter().take(MOST_NAMED).map(GroupKey::to_string).collect();
                let text = format!(
                    "chain {}: it waits for the end of {} groups of lower priority: {}",
                    plan.chain,
                    plan.victims.len(),
                    victims.join(", ")
                );
                Err(insufficient(text))
            }
            CellDecision::Wait(wait) => {
                let text = |of: &rcfarm_cells::ChainReason| match &*of.chain {
                    "" => of.reason.clone(),
                    chain => format!("chain {chain}: {}", of.reason),
                };
                let texts: Vec<String> = wait.reasons.iter().map(text).collect();
                Err(insufficient(texts.join("; ")))
            }
        }
    }

    /// Nodes on which a pod of each task could run.
    fn suggested(&mut self, tasks: &[TaskSpec], model: &CellModel) -> Arc<BTreeSet<String>> {
        let index = &self.memory.index;
        let cells = &mut self.memory.cells;
        if let Some(known) = cells.suggested.get(tasks) {
            return Arc::clone(known);
        }
        let free = |node: &NodeName| index.node_capacities().of(node).free();
        let found = Arc::new(cells::suggested(model, self.seen.fleet, tasks, free));
        cells.steps += model.nodes().count();
        cells.suggested.insert(tasks.to_vec(), Arc::clone(&found));
        found
    }

    /// PodGroups that run on as opportunistic.
    ///
    /// # Errors
    /// This pass changes one of them already: the group is placed in the next one.
    fn downgraded(&mut self, plan: &CellPlan) -> Result<Vec<(GroupId, GroupKey)>, Why> {
        let mut found = Vec::new();
        for key in &plan.downgrades {
            let is_it = |(_, status): &&(GroupId, Arc<PodGroupStatus>)| {
                cells::held(status).is_some_and(|record| record.request.key == *key)
            };
            let holder = self.memory.cells.holders.iter().find(is_it).map(|(id, _)| id.clone());
            let is_free = |id: &GroupId| self.plan.changes.iter().all(|change| change.id != *id);
            match holder.filter(is_free) {
                Some(id) => found.push((id, key.clone())),
                None => {
                    self.plan.more = true;
                    return Err(insufficient(format!("it takes the cells of {key} in a moment")));
                }
            }
        }
        Ok(found)
    }

    /// Makes the scheduler that of what is stored, once in a pass.
    fn follow_cells(&mut self, config: Index, model: &Arc<CellModel>) {
        let pass = self.memory.pass();
        if self.memory.cells.pass == pass {
            return;
        }
        let holds = |(_, known): &(&GroupId, &VersionedStatus)| cells::held(&known.value).is_some();
        let of = self.seen.statuses.iter().filter(holds);
        let holders: Vec<(GroupId, Arc<PodGroupStatus>)> =
            of.map(|(id, known)| (id.clone(), known.value.clone())).collect();
        let records: Holders<'_> =
            holders.iter().filter_map(|(id, status)| Some((id, cells::held(status)?))).collect();
        let health = cells::node_health(model, self.seen.fleet, &records);
        let known = &mut self.memory.cells;
        if known.now.is_some() {
            // It was with groups that may not have been placed after all.
            known.no_place.clear();
        }
        (known.pass, known.now, known.steps) = (pass, None, 0);
        let is_same = known.base.is_some()
            && known.config == config
            && known.health == health
            && known.holders.len() == holders.len()
            && known
                .holders
                .iter()
                .zip(&holders)
                .all(|(old, new)| old.0 == new.0 && Arc::ptr_eq(&old.1, &new.1));
        if !is_same {
            let (scheduler, _) = cells::rebuild(model, &health, &records, self.seen.now);
            drop(records);
            known.no_place.clear();
            known.steps += health.len();
            (known.base, known.config) = (Some(scheduler), config);
            (known.health, known.holders) = (health, holders);
        }
    }
}

/// Pods of a group by member of the request, in order: task and index.
type Slots<'s> = BTreeMap<usize, Vec<(&'s TaskSpec, u32)>>;

/// The pods of a group.
///
/// # Errors
/// The group has another number of pods than its request.
fn slots<'s>(spec: &'s PodGroupSpec, request: &CellRequest) -> Result<Slots<'s>, String> {
    let mut slots: Slots<'_> = BTreeMap::new();
    for task in &spec.tasks {
        let member = request.tasks.get(&task.name).copied().unwrap_or_default();
        slots.entry(member).or_default().extend((0..task.replicas).map(|index| (task, index)));
    }
    for (number, member) in request.group.members.iter().enumerate() {
        let pods = slots.get(&number).map_or(0, Vec::len);
        if pods != member.pods as usize {
            return Err(format!(
                "spec.cells.group.members[{number}]: it has {} pods, the group's tasks have {pods}",
                member.pods
            ));
        }
    }
    Ok(slots)
}

/// Gives each pod of the group a place of the plan. Returns the nodes of members that have not ended, and the pods' names
/// by place.
///
/// # Errors
/// A place has another number of devices than its pod asks for.
fn assign(
    spec: &PodGroupSpec,
    plan: &CellPlan,
    slots: &Slots<'_>,
) -> Result<(GangPlacement, Vec<String>), String> {
    let mut next: BTreeMap<usize, usize> = BTreeMap::new();
    let mut names = Vec::with_capacity(plan.pods.len());
    let mut tasks: BTreeMap<String, Vec<NodeName>> = BTreeMap::new();
    for place in &plan.pods {
        let n = next.entry(place.member).or_default();
        let slot = slots.get(&place.member).and_then(|slots| slots.get(*n));
        let Some((task, index)) = slot else {
            return Err("spec.cells: there are more places than pods".to_owned());
        };
        *n += 1;
        let wanted: Vec<u64> =
            task.resources.devices().map(|(_, count)| count).filter(|count| *count > 0).collect();
        if wanted != [place.devices.len() as u64] || place.devices.iter().any(|n| *n < 0) {
            return Err(format!(
                "task {}: its cells are {} devices; it has to ask for that many, of one kind",
                task.name,
                place.devices.len()
            ));
        }
        let node = place.node.parse().map_err(|bad| format!("cells: {bad}"))?;
        names.push(AffinityGroupRecord::pod_name(&task.name, *index));
        if !spec.is_ended(&task.name, *index) {
            tasks.entry(task.name.clone()).or_default().push(node);
        }
    }
    Ok((GangPlacement { tasks }, names))
}
