//! Groups that ask for cells. They are placed by a [`CellScheduler`] that is rebuilt from the configuration, the nodes
//! and what groups hold according to their statuses. It is kept as long as none of these changes. A group that needs what
//! groups of lower priority use reserves it (`plan/eviction.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Asked, Candidate, Message, Pass, Why};
use crate::batch::placing::{PlacementChange, VersionedStatus, placement};
use crate::placement::capacity::{GangPlacement, IndexVersion};
use crate::placement::cells::gang::{self, assign, may_preempt, slots};
use crate::placement::cells::{self, Holders};
use rcfarm_api::cells::{AffinityGroupRecord, CellRequest, GroupKey};
use rcfarm_api::ids::NodeName;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord, PodGroupSpec, TaskSpec};
use rcfarm_api::pod_group::status::{PlacementState, PodGroupReason, PodGroupStatus};
use rcfarm_api::{Index, ResourceList};
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
    /// Why the disruption budgets of the holders forbid to stop them, as far as they do.
    budgets: Vec<Option<String>>,
    /// Requests that had no place, until a node changes, a group is placed, or a budget permits something else.
    no_place: BTreeMap<Request, Why>,
    /// Nodes for tasks, until a node or a group changes: as they are, or once a group has preempted others.
    suggested: BTreeMap<SuggestedFor, Arc<BTreeSet<String>>>,
    version: Option<IndexVersion>,
}

/// What decides where a group is placed: its virtual cluster, its request in JSON, its tasks.
type Request = (String, String, Vec<TaskSpec>);

/// What decides whom a group may preempt: its virtual cluster and priority.
type Preemptor = (String, i32);

/// For which tasks nodes are suggested, and for which preemptor.
type SuggestedFor = (Vec<TaskSpec>, Option<Preemptor>);

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

    pub(super) fn scheduler(&self) -> Option<&CellScheduler> {
        self.now.as_ref().or(self.base.as_ref())
    }

    /// Takes over the cells as a change of this pass leaves them.
    pub(super) fn went_on(&mut self, after: CellScheduler) {
        self.now = Some(after);
        self.no_place.clear();
    }

    /// The stored group that holds or reserves cells under a name.
    pub(super) fn holder(&self, key: &GroupKey) -> Option<GroupId> {
        let is_it = |(_, status): &&(GroupId, Arc<PodGroupStatus>)| {
            cells::held(status).is_some_and(|record| record.request.key == *key)
        };
        self.holders.iter().find(is_it).map(|(id, _)| id.clone())
    }

    /// What groups have on each node, by what they hold.
    fn asks_of(
        &self,
        of: impl Fn(&AffinityGroupRecord) -> bool,
    ) -> BTreeMap<NodeName, ResourceList> {
        gang::asks_of(self.holders.iter().map(|(_, status)| &**status), of)
    }
}

/// What a pass does about a group.
enum Decided {
    Place(CellPlan),
    /// Reserve the cells; the text says who has to go.
    Reserve(CellPlan, String),
    /// The victims of its reservation have not gone yet.
    Await(String),
}

/// A place for a group, or what it reserves.
struct Found {
    /// Who has to go first.
    awaits: Option<String>,
    nodes: GangPlacement,
    record: AffinityGroupRecord,
    /// The cells once it is placed.
    after: CellScheduler,
    /// Groups that run on as opportunistic, with what they hold then.
    downgraded: Vec<(GroupId, AffinityGroupRecord)>,
    /// Reservations that end.
    overridden: Vec<PlacementChange>,
}

fn invalid(text: impl Into<String>) -> Why {
    (PodGroupReason::InvalidRecord, Message::Text(text.into()))
}

fn insufficient(text: String) -> Why {
    (PodGroupReason::InsufficientCapacity, Message::Text(text))
}

impl<'a> Pass<'a, '_> {
    /// Places a group in cells, reserves them, or sets its reason.
    pub(super) fn admit_to_cells(
        &mut self,
        c: &Candidate<'a>,
        request: &CellRequest,
        asked: &Asked,
    ) {
        self.plan.asks_cells = true;
        if self.is_changed(c.id) {
            // Its reservation was overridden.
            return;
        }
        let found = match self.check_queue(c, asked) {
            Ok(()) => self.find_cells(c, request),
            Err(why) => Err(why),
        };
        let found = match found {
            Ok(found) => found,
            Err(why) if why.0 == PodGroupReason::Preempting => return self.block(c, why),
            Err(why) if c.known.is_some_and(|known| known.value.reservation.is_some()) => {
                return self.end_reservation(c, why);
            }
            Err(why) => return self.block(c, why),
        };
        let (placed, at) = (self.placed, self.plan.changes.len());
        match found.awaits {
            Some(text) => self.reserve(c, asked, found.record, text),
            None => self.bind(c, &found.nodes, Some(found.record)),
        }
        if self.placed == placed {
            // A node lacks something that cells do not count: the group waits.
            return;
        }
        self.memory.cells.went_on(found.after);
        let mut before = found.overridden;
        for (id, record) in found.downgraded {
            let Some(known) = self.seen.statuses.get(&id) else { continue };
            let mut after = (*known.value).clone();
            if let Some(place) = &mut after.placement {
                place.cells = Some(Box::new(record));
            }
            before.push(PlacementChange::of_status(&id, Some(known), after));
        }
        for change in &before {
            if let Some(known) =
                change.before.as_ref().filter(|known| known.value.reservation.is_some())
                && let Some(queue) = &known.value.queue
            {
                self.plan.usage.discharge(self.seen.queues, queue, &known.value.charged);
            }
        }
        // Before the group that takes the cells: without that group the others get them back.
        self.plan.changes.splice(at..at, before);
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
        let held = self.memory.cells.scheduler().and_then(|scheduler| scheduler.group(key));
        let reserved = held.map(|group| Arc::clone(&group.request));
        if reserved.is_some() && self.memory.cells.holder(key).as_ref() != Some(c.id) {
            return Err(invalid(format!(
                "spec.cells: another PodGroup is the affinity group {key}"
            )));
        }
        // A pod never runs where its task's selector does not match.
        let group = GroupRequest { ignore_suggested_nodes: false, ..request.group.clone() };
        if reserved.as_ref().is_some_and(|reserved| **reserved != group) {
            return Err(insufficient("its request has changed".to_owned()));
        }
        self.memory.cells.follow(self.memory.index.version());
        let known = self.memory.cells.no_place.get(&asked).filter(|_| reserved.is_none());
        if let Some(why) = known {
            return Err(why.clone());
        }
        // To ask again in each pass would take the pass from the groups behind, whatever the answer is.
        let remembered = reserved.is_none().then_some(asked);
        let decided = self.decide(c, group, model, remembered.is_none());
        let (plan, awaits) = match self.remember(&remembered, decided)? {
            Decided::Place(plan) => (plan, None),
            Decided::Reserve(plan, text) => (plan, Some(text)),
            Decided::Await(text) => {
                return Err((PodGroupReason::Preempting, Message::Text(text)));
            }
        };
        let downgraded = self.downgraded(&plan)?;
        let overridden = self.overridden(&plan.cancels, c.id)?;
        let assigned = assign(spec, &plan, &slots).map_err(invalid);
        let (nodes, names) = self.remember(&remembered, assigned)?;
        let changed = || insufficient("the cells have changed meanwhile".to_owned());
        let mut after = self.memory.cells.scheduler().cloned().ok_or_else(changed)?;
        after.commit_gang(&plan, &names, self.seen.now).map_err(|_| changed())?;
        let record = after.record(key).ok_or_else(changed)?;
        let downgraded =
            downgraded.into_iter().filter_map(|(id, key)| Some((id, after.record(&key)?)));
        let downgraded = downgraded.collect();
        if awaits.is_some() {
            let mut place = placement(spec, &nodes, PlacementState::Bound);
            place.cells = Some(Box::new(record.clone()));
            if let Some(too_large) = self.too_large(&place) {
                return Err(invalid(too_large));
            }
        }
        Ok(Found { awaits, nodes, record, after, downgraded, overridden })
    }

    /// Keeps why a request has no place.
    fn remember<T>(&mut self, asked: &Option<Request>, found: Result<T, Why>) -> Result<T, Why> {
        if let (Err(why), Some(asked)) = (&found, asked) {
            self.memory.cells.no_place.insert(asked.clone(), why.clone());
        }
        found
    }

    /// Where the group would be placed. It changes nothing. `is_reserved`: it has a reservation.
    ///
    /// # Errors
    /// Why it has no place.
    fn decide(
        &mut self,
        c: &Candidate<'a>,
        group: GroupRequest,
        model: &CellModel,
        is_reserved: bool,
    ) -> Result<Decided, Why> {
        let pod = PodRequest { group, member: 0 };
        let made = gang::decide(&pod.group, is_reserved, |preempting| {
            self.ask(c, &pod, model, preempting)
        })?;
        let plan = match made {
            CellDecision::Bind(plan) => return Ok(Decided::Place(plan)),
            CellDecision::Preempt(plan) => plan,
            CellDecision::Wait(wait) => {
                return Err((PodGroupReason::InsufficientCapacity, Message::Chains(wait.reasons)));
            }
        };
        let victims: Vec<String> =
            plan.victims.iter().take(MOST_NAMED).map(GroupKey::to_string).collect();
        let text = format!(
            "chain {}: it waits for the end of {} of lower priority: {}",
            plan.chain,
            if plan.victims.len() == 1 { "a group" } else { "groups" },
            victims.join(", ")
        );
        if !plan.is_new() {
            return Ok(Decided::Await(text));
        }
        let of = |key: &GroupKey| self.stop_of(key);
        if let Some(why) = gang::forbidden(&plan, of) {
            return Err((PodGroupReason::BudgetExhausted, Message::Text(format!("{text}; {why}"))));
        }
        match self.lacks_after(&plan, &c.record.spec) {
            Some(lack) => Err(insufficient(format!("{text}; {lack} even then"))),
            None => Ok(Decided::Reserve(plan, text)),
        }
    }

    /// What the scheduler decides. `preempting`: as if those whom the group may preempt had no processors and no memory.
    ///
    /// # Errors
    /// The request cannot be right.
    fn ask(
        &mut self,
        c: &Candidate<'a>,
        pod: &PodRequest,
        model: &CellModel,
        preempting: bool,
    ) -> Result<CellDecision, Why> {
        let by = preempting.then_some(&pod.group);
        let suggested = self.suggested(&c.record.spec.tasks, model, by);
        self.memory.cells.steps += model.nodes().count();
        let Some(scheduler) = self.memory.cells.scheduler() else {
            return Err(insufficient("the cells are not known yet".to_owned()));
        };
        let decision = scheduler.plan(pod, &c.id.to_string(), Some(&suggested));
        decision.map_err(|bad| invalid(format!("spec.cells: {bad}")))
    }

    /// A group that holds cells, and why its disruption budget forbids to stop it.
    fn stop_of(&self, key: &GroupKey) -> Option<(&AffinityGroupRecord, Option<String>)> {
        let is_it = |(_, status): &&(GroupId, Arc<PodGroupStatus>)| {
            cells::held(status).is_some_and(|record| record.request.key == *key)
        };
        let (id, status) = self.memory.cells.holders.iter().find(is_it)?;
        let group = self.seen.groups.get(id).and_then(|group| group.value.as_ref().ok());
        Some((cells::held(status)?, group.and_then(PodGroupRecord::forbids_stop)))
    }

    /// The first node that has too few processors or too little memory for the group once its victims have gone.
    fn lacks_after(&self, plan: &CellPlan, spec: &PodGroupSpec) -> Option<String> {
        let freed = self.memory.cells.asks_of(|record| plan.victims.contains(&record.request.key));
        gang::lack(plan, spec, |node| {
            let mut free = self.memory.index.node_capacities().of(node).free();
            if let Some(freed) = freed.get(node) {
                free.add(freed);
            }
            free
        })
    }

    /// Nodes on which a pod of each task could run; `by`: once a group has preempted all whom it may preempt.
    fn suggested(
        &mut self,
        tasks: &[TaskSpec],
        model: &CellModel,
        by: Option<&GroupRequest>,
    ) -> Arc<BTreeSet<String>> {
        let index = &self.memory.index;
        let cells = &mut self.memory.cells;
        let of = by.map(|by| (by.key.virtual_cluster.clone(), by.priority));
        let asked = (tasks.to_vec(), of);
        if let Some(known) = cells.suggested.get(&asked) {
            return Arc::clone(known);
        }
        let freed =
            by.map(|by| cells.asks_of(|record| may_preempt(by, record))).unwrap_or_default();
        let free = |node: &NodeName| {
            let mut free = index.node_capacities().of(node).free();
            if let Some(freed) = freed.get(node) {
                free.add(freed);
            }
            free
        };
        let found = Arc::new(cells::suggested(model, self.seen.fleet, tasks, free));
        cells.steps += model.nodes().count();
        cells.suggested.insert(asked, Arc::clone(&found));
        found
    }

    /// PodGroups that run on as opportunistic.
    ///
    /// # Errors
    /// This pass changes one of them already: the group is placed in the next one.
    fn downgraded(&mut self, plan: &CellPlan) -> Result<Vec<(GroupId, GroupKey)>, Why> {
        let mut found = Vec::new();
        for key in &plan.downgrades {
            let holder = self.memory.cells.holder(key);
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
    pub(super) fn follow_cells(&mut self, config: Index, model: &Arc<CellModel>) {
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
        let budget = |(id, _): &(GroupId, Arc<PodGroupStatus>)| {
            self.seen.groups.get(id)?.value.as_ref().ok()?.forbids_stop()
        };
        let budgets: Vec<Option<String>> = holders.iter().map(budget).collect();
        let known = &mut self.memory.cells;
        // It was with groups that may not have been placed after all.
        if known.now.is_some() || known.budgets != budgets {
            known.no_place.clear();
        }
        known.budgets = budgets;
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
            known.suggested.clear();
            known.steps += health.len();
            (known.base, known.config) = (Some(scheduler), config);
            (known.health, known.holders) = (health, holders);
        }
    }
}
