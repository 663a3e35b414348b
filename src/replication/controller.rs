//! Controller of one claimed RC: observe, plan, commit.
//!
//! | module | contents |
//! |---|---|
//! | `observe` | builds the input of the plan from the caches |
//! | `current_view` | reads before a plan that removes or moves pods |
//! | `proof` | whether nodes run what is intended, before more pods get a manifest |
//! | `transfer` | moves one pod to another node, step by step |
//! | `allocations` | nodes without capacity, and orphaned allocations |
//! | `status` | what the status says, and when it is written |

mod allocations;
mod current_view;
mod observe;
mod proof;
mod status;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use self::proof::ProvedIntents;
use super::caches::{OwnWrites, RcCaches};
use super::plan::{PodStep, RcPod, ReplicationPlan, TransferPlan};
use super::writes::{self, BatchError};
use super::{RcPods, events};
use crate::cluster::ClusterView;
use crate::cluster::allocations::booked_node;
use crate::cluster::health::FreshHealth;
use crate::cluster::nodes::{NodeIndex, NodeReadiness, NodeRecords};
use crate::farm::kind::{
    Action, ClaimedRecord, Controller, ControllerContext, ReconcileError, ReconcileResult,
};
use crate::farm::status_chain::{Change, Committed, RecordGuard, StatusChain, StatusWrite};
use crate::placement::{Discovery, EligibleNodes, ScheduleError, ScheduleRequest, Scheduler};
use rcfarm_api::audit::AuditRecord;
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::key::LabelKind;
use rcfarm_api::rc::spec::{RcRecord, RcSpec, RcStrategy};
use rcfarm_api::rc::status::{RcConditionType, RcOwner, RcReason, RcStatus};
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::cache::Snapshot;
use rcfarm_store::{Index, Op, Query, StoreError, TokenBucket};

const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which service discovery is checked while it is not in sync.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(10);
/// Interval at which a slot that another record's pod occupies is checked.
const PLACE_PAUSE: Duration = Duration::from_secs(30);
/// Interval at which the pods' health is read while an update waits for it.
const UPDATE_PAUSE: Duration = Duration::from_secs(10);
/// Scheduler and service discovery of RCs.
#[derive(Clone)]
pub struct PlacementSources {
    /// Chooses nodes.
    pub scheduler: Arc<dyn Scheduler>,
    /// By which clients find pods.
    pub discovery: Arc<dyn Discovery>,
}

/// Controller of one claimed replication controller.
pub struct RcController {
    ctx: ControllerContext,
    claimed: ClaimedRecord,
    id: RcId,
    caches: Arc<RcCaches>,
    view: Arc<ClusterView>,
    placement: PlacementSources,
    chain: StatusChain<RcStatus>,
    /// The farm knows that there is a status.
    is_noted: bool,
    own: OwnWrites,
    proved: ProvedIntents,
    /// The value decoded last, and its result.
    decoded: Option<(Bytes, Result<RcSpec, FieldError>)>,
    /// Health as read for the last doorbell, removal or move.
    fresh: Option<FreshHealth>,
    owner: RcOwner,
    /// What the log was last alerted to.
    alerted: Option<String>,
    /// Limits status writes that change only health.
    health_writes: TokenBucket,
    /// Failed attempts of the current transfer step.
    transfer_attempts: u32,
    /// Transfers undone since one was completed.
    transfers_failed: u32,
    transfer_not_before: Option<Instant>,
}

/// What one reconcile has read.
struct RcView {
    spec: Arc<RcSpec>,
    record_index: Index,
    /// Refused by Consul unless the RC's own labels are as they were read.
    labels_guard: Option<Op>,
    pods: Arc<RcPods>,
    /// Index of the labels that `pods` were taken from, besides own writes.
    labels_index: Index,
    /// Labels and records of nodes, as `eligible` and the readiness of nodes were taken from, or older.
    nodes: (Arc<Snapshot<NodeIndex>>, Arc<Snapshot<NodeRecords>>),
    eligible: EligibleNodes,
    /// Nodes that cannot start their pod, and why.
    failing: BTreeMap<NodeName, Arc<str>>,
    /// Nodes that report the manifest as one that cannot be run, and why.
    unfit: BTreeMap<NodeName, Arc<str>>,
    /// Nodes that restart their pod again and again, and how it ends.
    restarting: BTreeMap<NodeName, Arc<str>>,
}

impl RcController {
    /// A controller for a claimed RC.
    pub fn new(
        ctx: ControllerContext,
        claimed: ClaimedRecord,
        id: RcId,
        caches: Arc<RcCaches>,
        placement: PlacementSources,
    ) -> RcController {
        let statuses = &caches.statuses;
        let read = statuses.at_claim.take(|all| all.remove(&id).unwrap_or_default());
        let keys = (key::rc(id), key::rc_status(id));
        let chain = StatusChain::new(&ctx, &claimed, keys, read);
        let owner = RcOwner { farm: ctx.farm.clone(), since: ctx.clock.wall() };
        RcController {
            ctx,
            claimed,
            id,
            view: caches.cluster.clone(),
            caches,
            placement,
            chain,
            is_noted: false,
            own: OwnWrites::default(),
            proved: ProvedIntents::default(),
            decoded: None,
            fresh: None,
            owner,
            alerted: None,
            health_writes: TokenBucket::default(),
            transfer_attempts: 0,
            transfers_failed: 0,
            transfer_not_before: None,
        }
    }

    /// The checked record, its ModifyIndex and a guard of its labels, if it has any; `None` if it is gone or not valid.
    async fn current_record(
        &mut self,
    ) -> Result<Option<(RcSpec, Index, Option<Op>)>, ReconcileError> {
        let seen = self.claimed.records.snapshot();
        let Some(record) = seen.value.0.get(&self.claimed.id) else {
            self.collect_status().await?;
            return Ok(None);
        };
        if self.chain.is_behind() {
            self.refresh().await?;
        }
        let all = self.claimed.labels.snapshot();
        let labels = all.value.of(&self.claimed.id);
        let prefix = key::labels(LabelKind::ReplicationController);
        let guard = all.value.guard(&prefix, &self.claimed.id);
        let checked = self.decode(&record.value);
        match checked.and_then(|spec| spec.with_labels(labels.as_deref())) {
            Ok(spec) => Ok(Some((spec, record.index, guard))),
            Err(bad) => {
                self.report_invalid(record.index, &bad).await?;
                Ok(None)
            }
        }
    }

    /// Deletes the status and the doorbell of a record that was deleted without them, as p2's programs do. Its pods stay.
    /// The farm then releases the claim.
    ///
    /// `replication_controllers/` may be only readable, so that the transaction cannot check that the record is absent
    /// (Consul wants the right to write for that). A consistent read shows it instead. UUIDs are not reused, so the
    /// record can only come back from a backup between that read and the transaction. It then gets a new status, as
    /// only this owner writes it.
    async fn collect_status(&mut self) -> Result<(), ReconcileError> {
        if self.claimed.records.snapshot().untrusted.is_some() {
            return Ok(());
        }
        self.chain.refresh().await?;
        let record = self.ctx.reader.get(&key::rc(self.id), Query::CONSISTENT).await?;
        if record.value.is_some() {
            self.claimed.records.refresh_soon();
            return Ok(());
        }
        if self.chain.index() > Index::ZERO {
            self.chain.caught_up();
            let lost = self.chain.status().transfer.clone();
            let committed = self.chain.commit(Change {
                record: RecordGuard::Any,
                status: StatusWrite::Delete,
                ops: vec![Op::Delete { key: key::rc_bell(self.id) }],
                shared: Vec::new(),
                audit: Vec::new(),
            });
            if let Committed::Refused(_) = committed.await? {
                return Err(ReconcileError::Elsewhere("the status has changed".to_owned()));
            }
            if let Some(transfer) = lost {
                let new = transfer.new_node.map(|node| node.to_string()).unwrap_or_default();
                warn!(record = %self.id, old = %transfer.old_node, new,
                    "the record was deleted during a node transfer: the scheduler may still count its new node");
            }
            info!(record = %self.id, "deleted the status of a record that is gone");
        }
        // The record may come back.
        self.chain.fall_behind();
        self.is_noted = false;
        self.caches.statuses.leftovers.collected(&self.claimed.id);
        Ok(())
    }

    /// Reads the pods' health now if the doorbell was rung: the cache is refreshed less often.
    async fn read_health_after_doorbell(&mut self, spec: &RcSpec) -> Result<(), ReconcileError> {
        if self.caches.take_rung(self.id) {
            self.fresh = match self.view.read_health(spec.manifest.id()).await {
                Ok(fresh) => Some(fresh),
                // Without rights there is the cache, which is untrusted then.
                Err(StoreError::Forbidden { .. }) => None,
                Err(error) => {
                    // The doorbell still counts as rung.
                    self.caches.note_rung(self.id);
                    return Err(error.into());
                }
            };
        }
        Ok(())
    }

    /// Reads what the plan is made from: eligible nodes, pods, and nodes that cannot start theirs.
    async fn read_input(
        &mut self,
        (spec, index, labels_guard): (RcSpec, Index, Option<Op>),
    ) -> Result<RcView, ReconcileError> {
        self.own.labels.forget_shown(&self.view.pods.snapshot());
        self.own.intents.forget_shown(&self.view.intents.snapshot());
        self.caches.interests().select(self.id, &spec.node_selector);
        let nodes = (self.view.nodes.snapshot(), self.view.records.snapshot());
        let asked = self.placement.scheduler.eligible_nodes(ScheduleRequest::of(&spec));
        let eligible = match timeout(SCHEDULER_TIMEOUT, asked).await {
            Ok(Ok(nodes)) => nodes,
            Ok(Err(error)) => return Err(ReconcileError::Elsewhere(error.to_string())),
            Err(_) => return Err(ReconcileError::Elsewhere(no_answer().to_string())),
        };
        // Read before the pods, so that it is never newer than they are.
        let labels_index = self.view.pods.snapshot().index;
        let pods = self.caches.pods_of(&spec, &self.own, self.fresh.as_ref());
        let (failing, unfit) = (self.failing(&pods), self.unfit(&pods));
        let restarting = self.restarting(&pods);
        let (spec, pods) = (Arc::new(spec), Arc::new(pods));
        let mut input = RcView {
            spec,
            record_index: index,
            labels_guard,
            pods,
            labels_index,
            nodes,
            eligible,
            failing,
            unfit,
            restarting,
        };
        self.prove_pods(&mut input).await?;
        Ok(input)
    }

    /// Nodes that cannot start their pod, and why.
    fn failing(&self, pods: &RcPods) -> BTreeMap<NodeName, Arc<str>> {
        let failing = |pod_ref: &PodRef| {
            let reported = self.view.reported(pod_ref, self.fresh.as_ref());
            Some((pod_ref.node.clone(), reported.cannot_start?))
        };
        pods.keys().filter_map(failing).collect()
    }

    /// Decodes the record, unless its value is the one decoded last: reconciliations are far more frequent than edits.
    fn decode(&mut self, value: &Bytes) -> Result<RcSpec, FieldError> {
        if let Some((of, decoded)) = &self.decoded
            && of == value
        {
            return decoded.clone();
        }
        let record = RcRecord::decode(value);
        if let Ok(Some(name)) = record.as_ref().map(RcRecord::unknown_strategy) {
            warn!(record = %self.id, allocation_strategy = name,
                "unknown allocation strategy: it is taken for static, as by p2");
        }
        let decoded = record.and_then(|record| RcSpec::check(self.id, &record));
        self.decoded = Some((value.clone(), decoded.clone()));
        decoded
    }

    /// Commits the steps in as few transactions as they fit into.
    async fn carry_out(&mut self, mut input: RcView, plan: ReplicationPlan) -> ReconcileResult {
        let before = self.chain.status().replicas.desired;
        let mut rest = &plan.steps[..];
        let guard = self.labels_guard(&input, &plan).await?;
        while !rest.is_empty() {
            let mut limits = self.ctx.limits;
            limits.ops -= usize::from(guard.is_some());
            let batch = match writes::next_batch(
                &input.spec,
                rest,
                limits,
                &self.view.node_capacities(),
            ) {
                Ok(mut batch) => {
                    batch.ops.extend(guard.clone());
                    batch
                }
                Err(BatchError::TooLarge) => {
                    let why =
                        "field manifest: it is too large for a Consul transaction; shorten it";
                    return Err(ReconcileError::Record(why.to_owned()));
                }
                Err(BatchError::Insufficient(node, insufficient)) => {
                    debug!(record = %self.id, %node, %insufficient, "the capacity was taken: reconciling again");
                    return Ok(Action::RequeueAfter(Duration::ZERO));
                }
            };
            let (steps, after) = rest.split_at(batch.steps);
            let pods = writes::after(&input.pods, &input.spec, steps);
            let next = self.status_after(&input, &pods, after.is_empty().then_some(&plan));
            let mut audit = vec![events::retarget(&self.ctx, &input.spec, steps, &pods, before)];
            audit.extend(self.taken_over(steps));
            match self.commit(input.record_index, batch.ops, next, audit).await? {
                Committed::Applied(index) => {
                    self.view.ledger.wrote(&batch.bookings, index);
                    self.record_pods(&mut input, pods, index);
                    rest = after;
                }
                Committed::Refused(_) => return Ok(self.chain.after_refusal()),
            }
        }
        self.log_changes(&input, &plan);
        // Reconciles again for what waits until the count is right.
        Ok(Action::RequeueAfter(Duration::ZERO))
    }

    /// Records the pods after a transaction ([`writes::after`]) that was committed at `index`.
    fn record_pods(&mut self, input: &mut RcView, mut pods: RcPods, index: Index) {
        self.own.committed(&input.spec, &input.pods, &mut pods, index);
        for place in input.pods.keys().filter(|place| !pods.contains_key(place)) {
            self.view.note_removed(place);
        }
        let is_written = |pod: &RcPod| pod.label_index == index || pod.intent.index() == index;
        for (place, _) in pods.iter().filter(|(_, pod)| is_written(pod)) {
            self.view.note_written(place, index, &self.claimed.wake);
        }
        input.pods = Arc::new(pods);
    }

    /// Commits one transaction. If others have changed allocations that it depends on, these are read again.
    async fn commit(
        &mut self,
        record_index: Index,
        ops: Vec<Op>,
        mut status: RcStatus,
        audit: Vec<AuditRecord>,
    ) -> Result<Committed, ReconcileError> {
        status.owner = Some(self.owner.clone());
        let (shared, ops): (Vec<Op>, Vec<Op>) =
            ops.into_iter().partition(|op| booked_node(op).is_some());
        let nodes: Vec<Option<NodeName>> = shared.iter().map(booked_node).collect();
        let (record, status) = (RecordGuard::At(record_index), StatusWrite::Replace(status));
        let committed = self.chain.commit(Change { record, status, ops, shared, audit }).await?;
        match &committed {
            Committed::Applied(_) if !std::mem::replace(&mut self.is_noted, true) => {
                self.caches.statuses.leftovers.note(&self.claimed.id);
            }
            Committed::Applied(_) => {}
            Committed::Refused(refused) => {
                let overtaken = refused.shared.iter().filter_map(|n| nodes[*n].clone()).collect();
                self.view.ledger.reread(&overtaken).await?;
            }
        }
        Ok(committed)
    }

    /// Reads the status and then the pods.
    async fn refresh(&mut self) -> Result<(), ReconcileError> {
        self.own = OwnWrites::default();
        self.chain.refresh().await?;
        self.view.catch_up().await?;
        self.chain.caught_up();
        Ok(())
    }

    /// Alerts the log to a count that cannot be reached, once per message.
    fn alert(&mut self, plan: &ReplicationPlan) {
        if plan.alert == self.alerted {
            return;
        }
        if let Some(message) = &plan.alert {
            warn!(alert = true, record = %self.id, why = message, "the desired count cannot be reached");
        }
        self.alerted.clone_from(&plan.alert);
    }

    /// Logs how many pods a plan has changed, and names the first few nodes.
    fn log_changes(&self, input: &RcView, plan: &ReplicationPlan) {
        let (added, removed, repaired) = writes::nodes(&plan.steps);
        let few = |nodes: &[NodeName]| {
            let names: Vec<&str> = nodes.iter().take(5).map(NodeName::as_str).collect();
            names.join(",")
        };
        info!(
            record = %self.id, pod = %input.spec.manifest.id(),
            added = added.len(), removed = removed.len(), repaired = repaired.len(),
            nodes = few(&[added, removed, repaired].concat()),
            current = input.pods.len(), desired = input.spec.replicas_desired, "pods changed"
        );
    }

    /// One audit record for each RC whose pods these steps take over.
    fn taken_over(&self, steps: &[PodStep]) -> Vec<AuditRecord> {
        let mut taken: BTreeMap<RcId, Vec<NodeName>> = BTreeMap::new();
        for step in steps {
            if let PodStep::TakeOver { pod_ref, from, .. } = step {
                taken.entry(*from).or_default().push(pod_ref.node.clone());
            }
        }
        let labels = self.view.pods.snapshot();
        let record = |(rc, nodes): (RcId, Vec<NodeName>)| {
            let (spec, _) = self.other_record(rc)?;
            let is_left = |place: &&PodRef| {
                self.own.labels.pending(&labels, place).is_none() && !nodes.contains(&place.node)
            };
            let left = labels.value.of_rc(rc).map(|(place, _)| place).filter(is_left).count();
            Some(events::taken_over(&self.ctx, &spec, nodes, left))
        };
        taken.into_iter().filter_map(record).collect()
    }

    /// Whether the RC may continue its transfer, if there is one: with the static strategy only off a drained node.
    fn may_continue_transfer(&self, input: &RcView) -> bool {
        let drained = |node: &NodeName| self.view.readiness(node) == NodeReadiness::Draining;
        input.spec.strategy == RcStrategy::Dynamic
            || self
                .chain
                .status()
                .transfer
                .as_ref()
                .is_none_or(|transfer| drained(&transfer.old_node))
    }

    /// `next`, or the end of the next quarantine if that is earlier.
    fn or_quarantine_end(&self, input: &RcView, next: Action) -> Action {
        let now = self.ctx.clock.wall();
        let end = self.chain.status().next_release(input.record_index, now);
        let rest = end.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
        match (next, rest) {
            (Action::AwaitChange, Some(rest)) => Action::RequeueAfter(rest),
            (Action::RequeueAfter(pause), Some(rest)) => Action::RequeueAfter(pause.min(rest)),
            (next, None) => next,
        }
    }

    fn nodes_in_use(input: &RcView) -> BTreeSet<NodeName> {
        writes::node_set(&input.pods)
    }
}

impl Drop for RcController {
    fn drop(&mut self) {
        self.caches.set_waiting(self.id, false);
        self.caches.interests().forget(self.id);
    }
}

fn no_answer() -> ScheduleError {
    ScheduleError::Unreachable(format!("no answer within {SCHEDULER_TIMEOUT:?}"))
}

#[async_trait]
impl Controller for RcController {
    async fn reconcile(&mut self) -> ReconcileResult {
        let Some(record) = self.current_record().await? else {
            return Ok(Action::AwaitChange);
        };
        self.read_health_after_doorbell(&record.0).await?;
        let mut input = self.read_input(record).await?;
        let view = self.view.clone();
        let (mut plan, mut guard) = self.decide(&view, &input).await?;
        if self.takes_pods_away(&input, &plan) {
            if !self.has_current_view(&input, &plan).await? {
                self.view.catch_up_nodes().await?;
                return Ok(self.chain.found_outdated());
            }
            if self.update_health(&mut input, plan.takes_over()).await? {
                // A pod may pass only now, for the manifest that it had before.
                self.prove_pods(&mut input).await?;
                drop(guard);
                (plan, guard) = self.decide(&view, &input).await?;
            }
        }
        self.alert(&plan);
        if let Some(next) = self.free_orphaned(&input, &plan, guard.is_some()).await? {
            return Ok(next);
        }
        if !plan.steps.is_empty() {
            return self.carry_out(input, plan).await;
        }
        drop(guard);
        let unwanted = input.spec.disabled || !self.may_continue_transfer(&input);
        match (&plan.transfer, self.chain.status().transfer.is_some()) {
            (_, true) if unwanted => self.undo_transfer(input, "the record forbids it now").await,
            (TransferPlan::Start(node), _) => self.start_transfer(input, node.clone()).await,
            (TransferPlan::Continue, _) => self.continue_transfer(input).await,
            (TransferPlan::Wait(RcReason::PodsUnhealthy), true) => {
                self.undo_transfer(input, "other pods are not healthy").await
            }
            (TransferPlan::Wait(RcReason::DiscoveryNotSynced), _) => {
                // No watch reports when it is in sync.
                self.update_status(&input, &plan.conditions).await?;
                Ok(Action::RequeueAfter(DISCOVERY_PAUSE))
            }
            (transfer, _) => {
                let next = self.update_status(&input, &plan.conditions).await?;
                let next = match (next, transfer) {
                    // p2's preparer rings no doorbell when a pod is healthy again.
                    (Action::AwaitChange, _) if plan.updates() => {
                        self.caches.note_rung(self.id);
                        Action::RequeueAfter(UPDATE_PAUSE)
                    }
                    // No event tells when another record's pod leaves the slot.
                    (Action::AwaitChange, TransferPlan::Wait(RcReason::PlaceTaken)) => {
                        Action::RequeueAfter(PLACE_PAUSE)
                    }
                    // Nor does any tell when the other record is disabled.
                    (Action::AwaitChange, _) if plan.lacks_slots() => {
                        Action::RequeueAfter(PLACE_PAUSE)
                    }
                    (next, _) => next,
                };
                Ok(self.or_quarantine_end(&input, next))
            }
        }
    }

    async fn report_quarantine(
        &mut self,
        error: &str,
        pause: Duration,
    ) -> Result<(), ReconcileError> {
        for _ in 0..2 {
            let seen = self.claimed.records.snapshot();
            let Some(record) = seen.value.0.get(&self.claimed.id) else { return Ok(()) };
            if self.chain.is_behind() {
                self.refresh().await?;
            }
            // After a refusal or a panic the status was read again; its transfer must be kept.
            let mut status = self.chain.status().clone();
            let now = self.ctx.clock.wall();
            let (kind, reason) = (RcConditionType::Valid, RcReason::Quarantined);
            status.set_condition(kind, false, reason, error.to_owned(), now);
            status.observed_index = record.index;
            status.last_error = Some(error.to_owned());
            status.quarantined_until = now.checked_add(pause).ok();
            if let Committed::Applied(_) =
                self.commit(record.index, Vec::new(), status, Vec::new()).await?
            {
                break;
            }
        }
        Ok(())
    }
}
