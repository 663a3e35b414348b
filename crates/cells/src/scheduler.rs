//! The scheduler: decides, and applies what was decided.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use rcfarm_api::cells::ChainReason;
use serde::{Deserialize, Serialize};

use crate::group::{AffinityGroup, AffinityGroupState, GroupIx, GroupKey, PodPlacementInfo};
use crate::model::{CellHealthiness, CellModel};
use crate::place::plan::{self, Found};
use crate::request::{BadRequest, CheckedRequest as _, GroupRequest, PodRequest};
use crate::state::State;

/// The cells of a cluster and who has them.
///
/// [`CellScheduler::plan`] decides and changes nothing. [`CellScheduler::commit`] applies a decision.
#[derive(Debug, Clone)]
pub struct CellScheduler {
    pub(crate) state: State,
    revision: u64,
}

/// What to do with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellDecision {
    /// Commit, and start it.
    Bind(CellPlan),
    /// Commit to reserve its cells; stop the pods of the victims, and ask again.
    Preempt(CellPlan),
    /// Nothing can be done now.
    Wait(CellWait),
}

/// Why a group has to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellWait {
    /// By chain, in the order in which they were tried. Never empty.
    pub reasons: Vec<ChainReason>,
    /// The group has a reservation that can no longer be used: call [`CellScheduler::cancel`] with this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<String>,
}

impl CellWait {
    fn decision(reasons: Vec<ChainReason>) -> CellDecision {
        CellDecision::Wait(CellWait { reasons, cancel: None })
    }
}

/// A decision that can be committed while nothing else has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellPlan {
    /// The group.
    pub key: GroupKey,
    /// Place of the pod in [`CellPlan::pods`].
    pub slot: usize,
    /// Places of all pods of the group.
    pub pods: Vec<PodPlacementInfo>,
    /// Name of the chain.
    pub chain: String,
    /// Groups whose pods must end first.
    pub victims: Vec<GroupKey>,
    /// Groups whose reservation ends, to be placed anew.
    pub cancels: Vec<GroupKey>,
    /// Groups of the virtual cluster whose pods run on as opportunistic.
    pub downgrades: Vec<GroupKey>,
    request: Arc<GroupRequest>,
    step: Step,
    revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The group is new; its former reservation, if any, ends.
    New,
    /// The group has its cells.
    Slot,
    /// The group's cells are reserved, and victims remain.
    Await,
    /// The group's cells are reserved, and the victims are gone.
    Occupy,
}

impl CellPlan {
    /// Place of the pod.
    pub fn place(&self) -> &PodPlacementInfo {
        &self.pods[self.slot]
    }

    /// Whether the group has no reservation, or one that ends with this.
    pub fn is_new(&self) -> bool {
        self.step == Step::New
    }

    pub(crate) fn request(&self) -> &Arc<GroupRequest> {
        &self.request
    }
}

/// A change of a group, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CellEvent {
    /// The group has its cells.
    Allocated {
        /// The group.
        group: GroupKey,
    },
    /// The group's cells are reserved until the victims have ended.
    Reserved {
        /// The group.
        group: GroupKey,
        /// Whom it waits for.
        victims: Vec<GroupKey>,
    },
    /// The group's reservation has ended. It is pending.
    Cancelled {
        /// The group.
        group: GroupKey,
        /// What made it unusable, or who took its cells; for people.
        reason: String,
    },
    /// The group runs on as opportunistic.
    Downgraded {
        /// The group.
        group: GroupKey,
        /// The group that took its cells.
        preemptor: String,
    },
    /// The group has got its guarantee back.
    Restored {
        /// The group.
        group: GroupKey,
    },
    /// The group's last pod has gone, and its cells are free.
    Deleted {
        /// The group.
        group: GroupKey,
    },
}

/// The plan is out of date: something has changed since. Plan again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the plan is out of date")]
pub struct StalePlan;

impl CellScheduler {
    /// No group, and all nodes bad until [`CellScheduler::set_node`] says otherwise.
    pub fn new(model: Arc<CellModel>) -> CellScheduler {
        let mut state = State::new(Arc::clone(&model));
        state.change(|state| {
            (0..model.node_names.len()).for_each(|n| state.set_node(n as u32, true))
        });
        CellScheduler { state, revision: 0 }
    }

    /// The configuration.
    pub fn model(&self) -> &Arc<CellModel> {
        &self.state.model
    }

    /// A number that changes with each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Says what nodes can be used. Unknown names are ignored.
    pub fn set_nodes<'a>(&mut self, nodes: impl IntoIterator<Item = (&'a str, CellHealthiness)>) {
        let model = Arc::clone(self.model());
        let changed: Vec<(u32, bool)> = nodes
            .into_iter()
            .filter_map(|(node, health)| {
                model.nodes.get(node).map(|&n| (n, health == CellHealthiness::Bad))
            })
            .filter(|&(n, bad)| self.state.bad_node[n as usize] != bad)
            .collect();
        if !changed.is_empty() {
            self.revision += 1;
            self.state.change(|state| changed.iter().for_each(|&(n, bad)| state.set_node(n, bad)));
        }
    }

    /// Says whether a node can be used.
    pub fn set_node(&mut self, node: &str, health: CellHealthiness) {
        self.set_nodes([(node, health)]);
    }

    /// Whether a node can be used; none if no cell has it.
    pub fn node_health(&self, node: &str) -> Option<CellHealthiness> {
        let &node = self.state.model.nodes.get(node)?;
        let bad = self.state.bad_node[node as usize];
        Some(if bad { CellHealthiness::Bad } else { CellHealthiness::Healthy })
    }

    /// A group that holds cells.
    pub fn group(&self, key: &GroupKey) -> Option<&AffinityGroup> {
        self.state.groups.get(key)
    }

    /// All groups that hold cells, by name.
    pub fn groups(&self) -> impl Iterator<Item = &AffinityGroup> {
        self.state.groups.iter().map(|(_, group)| group)
    }

    /// State of a group; none if it holds no cells.
    pub fn group_state(&self, key: &GroupKey) -> Option<AffinityGroupState> {
        let &at = self.state.groups.by_key.get(key)?;
        let group = self.state.groups.at(at)?;
        Some(if group.preempting {
            AffinityGroupState::Preempting
        } else if self.preemptors(at).is_empty() {
            AffinityGroupState::Allocated
        } else {
            AffinityGroupState::BeingPreempted
        })
    }

    /// Groups that reserve cells of a group.
    fn preemptors(&self, of: GroupIx) -> Vec<GroupKey> {
        let Some(group) = self.state.groups.at(of).filter(|group| !group.preempting) else {
            return Vec::new();
        };
        let reservers: BTreeSet<GroupIx> =
            group.leaves().filter_map(|leaf| self.state.occupants(leaf).1).collect();
        self.keys(reservers)
    }

    /// Groups that use cells which a group has reserved.
    pub fn victims(&self, key: &GroupKey) -> Vec<GroupKey> {
        let Some(group) = self.group(key).filter(|group| group.preempting) else {
            return Vec::new();
        };
        let users: BTreeSet<GroupIx> =
            group.leaves().filter_map(|leaf| self.state.occupants(leaf).0).collect();
        self.keys(users)
    }

    fn keys(&self, groups: BTreeSet<GroupIx>) -> Vec<GroupKey> {
        let groups = groups.into_iter().filter_map(|at| self.state.groups.at(at));
        let mut keys: Vec<GroupKey> = groups.map(|group| group.key.clone()).collect();
        keys.sort();
        keys
    }

    /// Decides about a pod. `suggested` are the nodes that it may use, if the request is strict about them; `pod` is named
    /// in errors.
    ///
    /// # Errors
    ///
    /// What HiveD refuses with 400; besides, a request that differs from that of its group.
    pub fn plan(
        &self,
        request: &PodRequest,
        pod: &str,
        suggested: Option<&BTreeSet<String>>,
    ) -> Result<CellDecision, BadRequest> {
        if let Some(&at) = self.state.groups.by_key.get(&request.group.key)
            && let Some(group) = self.state.groups.shared(at)
        {
            return self.plan_existing(at, &group, request, suggested);
        }
        request.group.check(self.model(), pod)?;
        Ok(self.plan_new(&self.state, request, suggested))
    }

    fn plan_new(
        &self,
        state: &State,
        request: &PodRequest,
        suggested: Option<&BTreeSet<String>>,
    ) -> CellDecision {
        let found = match plan::plan(state, &request.group, suggested) {
            Ok(found) => found,
            Err(reasons) => return CellWait::decision(reasons),
        };
        let Some(slot) = found.pods.iter().position(|pod| pod.member == request.member) else {
            let reason = "the group has no such pod".to_owned();
            return CellWait::decision(vec![ChainReason { chain: found.chain, reason }]);
        };
        let Found { chain, pods, downgrades, cancels, victims } = found;
        let plan = CellPlan {
            key: request.group.key.clone(),
            slot,
            pods,
            chain,
            victims,
            cancels,
            downgrades,
            request: Arc::new(request.group.clone()),
            step: Step::New,
            revision: self.revision,
        };
        if plan.victims.is_empty() { CellDecision::Bind(plan) } else { CellDecision::Preempt(plan) }
    }

    fn plan_existing(
        &self,
        at: GroupIx,
        group: &Arc<AffinityGroup>,
        request: &PodRequest,
        suggested: Option<&BTreeSet<String>>,
    ) -> Result<CellDecision, BadRequest> {
        if *group.request != request.group {
            return Err(BadRequest::new(format!(
                "The request differs from that of affinity group {}",
                group.key.name
            )));
        }
        let wait = |reason: String| {
            Ok(CellWait::decision(vec![ChainReason { chain: group.chain.clone(), reason }]))
        };
        let victims = self.victims(&group.key);
        let plan = |slot, step| CellPlan {
            key: group.key.clone(),
            slot,
            pods: group.pods.clone(),
            chain: group.chain.clone(),
            victims: victims.clone(),
            cancels: Vec::new(),
            downgrades: Vec::new(),
            request: Arc::clone(&group.request),
            step,
            revision: self.revision,
        };
        if group.preempting {
            if let Err(unusable) = self.reservation_usable(group, suggested) {
                let mut state = self.state.clone();
                state.change(|state| state.cancel(at));
                let mut decision = self.plan_new(&state, request, suggested);
                if let CellDecision::Wait(wait) = &mut decision {
                    wait.cancel = Some(unusable);
                }
                return Ok(decision);
            }
            let slot = group.pods.iter().position(|pod| pod.member == request.member);
            let Some(slot) = slot else { return wait("the group has no such pod".to_owned()) };
            return Ok(if victims.is_empty() {
                CellDecision::Bind(plan(slot, Step::Occupy))
            } else {
                CellDecision::Preempt(plan(slot, Step::Await))
            });
        }
        let of_member = |pod: &&PodPlacementInfo| pod.member == request.member;
        let total = group.pods.iter().filter(of_member).count();
        let empty = group.pods.iter().position(|pod| of_member(&pod) && pod.pod.is_none());
        let Some(slot) = empty else {
            let cells = request.group.members.get(request.member).map_or(0, |member| member.cells);
            return Err(BadRequest::new(format!(
                "Requesting more pods than the configured number for {cells} leaf cells ({total} pods) in affinity \
                 group {}",
                group.key.name
            )));
        };
        if let Some(preemptor) = self.preemptors(at).first() {
            return wait(format!("the group is being preempted by {preemptor}"));
        }
        Ok(CellDecision::Bind(plan(slot, Step::Slot)))
    }

    /// Whether a reservation's nodes may all be used.
    fn reservation_usable(
        &self,
        group: &AffinityGroup,
        suggested: Option<&BTreeSet<String>>,
    ) -> Result<(), String> {
        let suggested = suggested.filter(|_| !group.request.ignore_suggested_nodes);
        for node in group.nodes() {
            if self.node_health(node) != Some(CellHealthiness::Healthy) {
                return Err(format!("node {node} is bad"));
            }
            if suggested.is_some_and(|nodes| !nodes.contains(node)) {
                return Err(format!("node {node} is not suggested"));
            }
        }
        Ok(())
    }

    /// Applies a decision for `pod`: gives it its place, or lets it wait for its group's reservation.
    ///
    /// # Errors
    ///
    /// Something has changed since the decision.
    pub fn commit(
        &mut self,
        plan: &CellPlan,
        pod: &str,
        now: Timestamp,
    ) -> Result<Vec<CellEvent>, StalePlan> {
        if plan.revision != self.revision {
            return Err(StalePlan);
        }
        let mut events = Vec::new();
        self.revision += 1;
        self.state.change(|state| match plan.step {
            Step::New => state.commit_new(plan, pod, now, &mut events),
            Step::Slot => state.occupy_slot(&plan.key, plan.slot, pod),
            Step::Await => state.await_reservation(&plan.key, pod),
            Step::Occupy => {
                state.occupy_reservation(&plan.key, &mut events);
                state.occupy_slot(&plan.key, plan.slot, pod);
            }
        });
        Ok(events)
    }

    /// Applies a decision for all pods of the group at once: `pods` are their names, in the order of [`CellPlan::pods`].
    /// Places that are taken already stay as they are.
    ///
    /// # Errors
    ///
    /// Something has changed since the decision.
    pub fn commit_gang(
        &mut self,
        plan: &CellPlan,
        pods: &[String],
        now: Timestamp,
    ) -> Result<Vec<CellEvent>, StalePlan> {
        let own = pods.get(plan.slot).map_or("", String::as_str);
        let events = self.commit(plan, own, now)?;
        let at = self.state.groups.by_key.get(&plan.key).copied();
        if let Some(group) = at.and_then(|at| self.state.groups.edit(at)) {
            if group.preempting {
                group.preempting_pods.extend(pods.iter().cloned());
            } else {
                for (place, pod) in group.pods.iter_mut().zip(pods) {
                    place.pod.get_or_insert_with(|| pod.clone());
                }
            }
        }
        Ok(events)
    }

    /// Ends a reservation: the group is pending again, its cells go back to those who use them.
    pub fn cancel(&mut self, key: &GroupKey, reason: &str) -> Vec<CellEvent> {
        let Some(&at) = self.state.groups.by_key.get(key) else { return Vec::new() };
        if !self.state.groups.at(at).is_some_and(|group| group.preempting) {
            return Vec::new();
        }
        self.revision += 1;
        let mut events = Vec::new();
        self.state.change(|state| {
            state.cancel(at);
            let (group, reason) = (key.clone(), reason.to_owned());
            events.push(CellEvent::Cancelled { group, reason });
            state.restore_downgraded(&mut events);
        });
        events
    }

    /// A pod has gone, whether it had a place or waited for one. Cells of a group are freed with its last pod.
    pub fn pod_gone(&mut self, key: &GroupKey, pod: &str) -> Vec<CellEvent> {
        let Some(&at) = self.state.groups.by_key.get(key) else { return Vec::new() };
        let Some(group) = self.state.groups.edit(at) else { return Vec::new() };
        self.revision += 1;
        if group.preempting {
            group.preempting_pods.remove(pod);
            if group.preempting_pods.is_empty() {
                return self.cancel(key, "its pods are gone");
            }
            return Vec::new();
        }
        let Some(place) = group.pods.iter_mut().find(|place| place.pod.as_deref() == Some(pod))
        else {
            return Vec::new();
        };
        place.pod = None;
        if group.allocated_pods().next().is_some() {
            return Vec::new();
        }
        self.delete(key)
    }

    /// Gives up all that a group holds, whatever its pods do.
    pub fn delete(&mut self, key: &GroupKey) -> Vec<CellEvent> {
        let Some(&at) = self.state.groups.by_key.get(key) else { return Vec::new() };
        if self.state.groups.at(at).is_some_and(|group| group.preempting) {
            return self.cancel(key, "the group was deleted");
        }
        self.revision += 1;
        let mut events = Vec::new();
        self.state.change(|state| {
            state.delete(at);
            events.push(CellEvent::Deleted { group: key.clone() });
            state.restore_downgraded(&mut events);
        });
        events
    }
}
