//! Moves one pod off an ineligible node, step by step. After a crash at any point the next owner finishes or undoes it
//! (`p2.md` §2.3).
//!
//! 1. One transaction records the transfer in the status and takes the record's mutation lock.
//! 2. The scheduler allocates a node, which is recorded. The transfer's id is the idempotency token.
//! 3. The scheduler deallocates the old node.
//! 4. One transaction swaps the pods, clears the transfer and releases the lock.
//!
//! When a step fails for good, the transfer is marked as being undone, so that no later owner continues it. Then the
//! new node is deallocated and the transfer is cleared; the pods stay as they were.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{info, warn};

use super::{RcController, RcView, SCHEDULER_TIMEOUT, no_answer};
use crate::cluster::nodes::NodeReadiness;
use crate::farm::kind::{Action, ReconcileError};
use crate::farm::status_chain::Committed;
use crate::placement::capacity::PodResources;
use crate::placement::{ScheduleError, ScheduleRequest, WantedNodes};
use crate::replication::events;
use crate::replication::plan::{PodRemoveReason, PodStep, SlotState, has_capacity};
use crate::replication::writes::{self, BatchError};
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus, Transfer};
use rcfarm_api::{backoff, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Op};

/// Attempts to deallocate the old node before the transfer is undone, and the new node before an operator is alerted.
const ATTEMPTS: u32 = 5;
/// Pause before the next transfer after one was undone; longer with each failure.
const HOLD_OFF: Duration = Duration::from_secs(30);

impl RcController {
    /// Takes the mutation lock; succeeds if this session holds it already.
    fn lock_op(&self) -> Op {
        Op::Lock {
            key: key::rc_mutation_lock(self.id),
            value: self.ctx.farm.to_string().into(),
            session: self.claimed.claim.epoch().session().clone(),
        }
    }

    /// Releases the mutation lock. It is taken first, so that the release is not refused if it was not held.
    fn unlock_ops(&self) -> [Op; 3] {
        let key = key::rc_mutation_lock(self.id);
        let session = self.claimed.claim.epoch().session().clone();
        let value = bytes::Bytes::new();
        [self.lock_op(), Op::Unlock { key: key.clone(), value, session }, Op::Delete { key }]
    }

    /// Step 1: records the transfer in the status and takes the lock.
    pub(super) async fn start_transfer(
        &mut self,
        input: RcView,
        old_node: NodeName,
    ) -> Result<Action, ReconcileError> {
        if let Some(wait) = self.transfer_pause() {
            return Ok(Action::RequeueAfter(wait));
        }
        let id = self.ctx.ids.uuid();
        let transfer = Transfer { id, old_node, new_node: None, undoing: None };
        let mut status = self.chain.status().clone();
        let now = self.ctx.clock.wall();
        let message = format!("from {}", transfer.old_node);
        let (kind, reason) = (RcConditionType::Placed, RcReason::TransferUnderWay);
        status.set_condition(kind, false, reason, message, now);
        status.transfer = Some(transfer.clone());
        let record = events::transfer_started(&self.ctx, &input.spec, &transfer);
        let ops = vec![self.lock_op()];
        match self.commit(input.record_index, ops, status, vec![record]).await? {
            Committed::Applied(_) => {
                info!(record = %self.id, from = %transfer.old_node, "node transfer begun");
                self.transfer_attempts = 0;
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            // Most likely another session took the lock, which the lock watch will show.
            Committed::Refused(_) => Ok(Action::RequeueAfter(Duration::from_millis(500))),
        }
    }

    /// Takes the next step of the transfer in the status, or undoes it.
    pub(super) async fn continue_transfer(
        &mut self,
        input: RcView,
    ) -> Result<Action, ReconcileError> {
        if let Some(wait) = self.transfer_pause() {
            return Ok(Action::RequeueAfter(wait));
        }
        let Some(transfer) = self.chain.status().transfer.clone() else {
            return Ok(Action::AwaitChange);
        };
        if let Some(why) = &transfer.undoing {
            return self.undo_transfer(input, why).await;
        }
        let old = input.pods.keys().find(|place| place.node == transfer.old_node).cloned();
        let Some(old) = old else {
            return self.undo_transfer(input, "the pod is gone from the old node").await;
        };
        let ready = self.readiness(&input, &transfer.old_node) <= NodeReadiness::Suspect;
        let has_room = has_capacity(&input.spec, &self.view.node_capacities(), &old);
        if ready && has_room && input.eligible.contains(&transfer.old_node) {
            return self.undo_transfer(input, "the old node is fit again").await;
        }
        match transfer.new_node.clone() {
            None => self.allocate(input, transfer).await,
            Some(new) => self.swap(input, transfer, old, new).await,
        }
    }

    /// Rest of the pause after a failed step or an undone transfer.
    pub(super) fn transfer_pause(&self) -> Option<Duration> {
        let wait = self.transfer_not_before?.checked_duration_since(monotonic())?;
        (wait > Duration::ZERO).then_some(wait)
    }

    /// Step 2: asks the scheduler for a node and records it.
    async fn allocate(
        &mut self,
        input: RcView,
        transfer: Transfer,
    ) -> Result<Action, ReconcileError> {
        let in_use = &Self::nodes_in_use(&input) | &self.view.unfit_nodes();
        let mut in_use = &in_use | &self.nodes_without_capacity(&input);
        let quarantined =
            |node: &&NodeName| self.readiness(&input, node) == NodeReadiness::Quarantined;
        in_use.extend(self.chain.status().quarantined_nodes.keys().filter(quarantined).cloned());
        let asked = self.placement.scheduler.allocate_nodes(WantedNodes {
            request: ScheduleRequest::of(&input.spec),
            current: &in_use,
            count: 1,
            force: true,
            token: transfer.id,
        });
        let answer = timeout(SCHEDULER_TIMEOUT, asked).await.unwrap_or_else(|_| Err(no_answer()));
        let node = match answer.and_then(|nodes| only(&nodes, &in_use)) {
            Ok(node) => node,
            // The same token returns the same node, so a call without an answer is repeated before giving up.
            Err(ScheduleError::Unreachable(why)) if self.transfer_attempts < 2 => {
                return Ok(self.try_later(&why));
            }
            Err(error) => return self.undo_transfer(input, &error.to_string()).await,
        };
        let taken = self.caches.slot(&input.spec, &self.own, &node) == SlotState::Other;
        let mut status = self.chain.status().clone();
        status.transfer = Some(Transfer { new_node: Some(node.clone()), ..transfer });
        match self.commit(input.record_index, vec![self.lock_op()], status, Vec::new()).await? {
            Committed::Applied(_) if taken => {
                let why = format!("on {node} the pod's place is taken");
                self.undo_transfer(input, &why).await
            }
            Committed::Applied(_) => {
                self.transfer_attempts = 0;
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            Committed::Refused(_) => Ok(self.try_later("refused")),
        }
    }

    /// Asks the scheduler to deallocate nodes. The transfer's id is the idempotency token.
    async fn deallocate(
        &self,
        input: &RcView,
        nodes: &[NodeName],
        transfer: &Transfer,
    ) -> Result<(), ScheduleError> {
        let request = ScheduleRequest::of(&input.spec);
        let asked = self.placement.scheduler.deallocate_nodes(request, nodes, transfer.id);
        timeout(SCHEDULER_TIMEOUT, asked).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Steps 3 and 4: deallocates the old node, then swaps the pods.
    async fn swap(
        &mut self,
        input: RcView,
        transfer: Transfer,
        old: PodRef,
        new: NodeName,
    ) -> Result<Action, ReconcileError> {
        let intent = match self.caches.slot(&input.spec, &self.own, &new) {
            SlotState::Nobody => Index::ZERO,
            SlotState::Ours(index) => index,
            SlotState::Other => {
                let why = format!("on {new} the pod's place is taken");
                return self.undo_transfer(input, &why).await;
            }
        };
        // A scheduler may return any node. A node that it allocates is eligible from then on.
        if !input.eligible.contains(&new) || self.view.readiness(&new) != NodeReadiness::Ready {
            return self.undo_transfer(input, &format!("{new} is not fit for the pod")).await;
        }
        let leaving = [transfer.old_node.clone()];
        if let Err(error) = self.deallocate(&input, &leaving, &transfer).await {
            if self.transfer_attempts < ATTEMPTS {
                return Ok(self.try_later(&error.to_string()));
            }
            warn!(alert = true, record = %self.id, node = %transfer.old_node, %error,
                "the old node cannot be deallocated: the transfer is undone");
            let why = format!("{} cannot be deallocated: {error}", transfer.old_node);
            return self.undo_transfer(input, &why).await;
        }
        let pod = input.pods[&old].clone();
        let pod_ref = PodRef { node: new.clone(), pod: input.spec.manifest.id().clone() };
        let steps = [
            PodStep::Remove { pod_ref: old, pod, why: PodRemoveReason::Ineligible },
            PodStep::Add { pod_ref, intent },
        ];
        self.commit_swap(input, transfer, new, steps).await
    }

    /// Removes the old pod, adds the new one, clears the transfer and releases the lock, in one transaction.
    async fn commit_swap(
        &mut self,
        mut input: RcView,
        transfer: Transfer,
        new: NodeName,
        steps: [PodStep; 2],
    ) -> Result<Action, ReconcileError> {
        let view = self.view.clone();
        let guard = match PodResources::of_manifest(&input.spec.manifest).is_nothing() {
            true => None,
            false => Some(view.ledger.lock_plans().await),
        };
        let capacities = view.node_capacities();
        let batch = match writes::next_batch(&input.spec, &steps, self.ctx.limits, &capacities) {
            Ok(batch) if batch.steps == steps.len() => batch,
            failed => {
                drop(guard);
                let why = match failed {
                    Err(BatchError::Insufficient(node, insufficient)) => {
                        format!("on {node} the room is gone: {insufficient}")
                    }
                    Ok(_) | Err(BatchError::TooLarge) => {
                        "the swap is too large for one transaction".to_owned()
                    }
                };
                return self.undo_transfer(input, &why).await;
            }
        };
        let mut ops = batch.ops;
        ops.extend(self.unlock_ops());
        let status = self.status_after_swap(&input, &transfer, &new);
        let pods = writes::after(&input.pods, &input.spec, &steps);
        let desired = input.spec.replicas_desired;
        let records = vec![
            events::retarget(&self.ctx, &input.spec, &steps, &pods, desired),
            events::transfer_done(&self.ctx, &input.spec, &transfer, &new),
        ];
        match self.commit(input.record_index, ops, status, records).await? {
            Committed::Applied(index) => {
                view.ledger.wrote(&batch.bookings, index);
                self.record_pods(&mut input, pods, index);
                info!(record = %self.id, from = %transfer.old_node, to = %new, "pod moved");
                (self.transfer_attempts, self.transfer_not_before) = (0, None);
                self.transfers_failed = 0;
                Ok(Action::RequeueAfter(Duration::ZERO))
            }
            Committed::Refused(_) if self.transfer_attempts < ATTEMPTS => {
                Ok(self.try_later("refused"))
            }
            Committed::Refused(_) => {
                drop(guard);
                if self.chain.is_behind() {
                    self.refresh().await?;
                }
                self.undo_transfer(input, "the swap keeps being refused").await
            }
        }
    }

    /// The status without the transfer. A node that could not start the pod is quarantined for this RC.
    fn status_after_swap(&self, input: &RcView, transfer: &Transfer, new: &NodeName) -> RcStatus {
        let mut status = self.chain.status().clone();
        let now = self.ctx.clock.wall();
        let (kind, reason) = (RcConditionType::Placed, RcReason::AsDesired);
        status.set_condition(kind, true, reason, String::new(), now);
        (status.transfer, status.last_error) = (None, None);
        let is_down = self.view.readiness(&transfer.old_node) == NodeReadiness::Down;
        status.set_carried((&transfer.old_node, new), is_down, input.record_index, now);
        if let Some(why) = input.failing.get(&transfer.old_node) {
            status.set_quarantine(&transfer.old_node, input.record_index, why, now);
        }
        status
    }

    /// Marks the transfer as being undone, deallocates the new node, then clears the transfer. If the node cannot be
    /// deallocated, an operator is alerted.
    pub(super) async fn undo_transfer(
        &mut self,
        input: RcView,
        why: &str,
    ) -> Result<Action, ReconcileError> {
        let Some(transfer) = self.chain.status().transfer.clone() else {
            return Ok(Action::AwaitChange);
        };
        if transfer.undoing.is_none() {
            let mut status = self.chain.status().clone();
            status.transfer = Some(Transfer { undoing: Some(why.to_owned()), ..transfer.clone() });
            match self.commit(input.record_index, Vec::new(), status, Vec::new()).await? {
                Committed::Applied(_) => self.transfer_attempts = 0,
                Committed::Refused(_) => return Ok(self.try_later("refused")),
            }
        }
        let in_use = Self::nodes_in_use(&input);
        let allocated: Vec<NodeName> =
            transfer.new_node.iter().filter(|node| !in_use.contains(*node)).cloned().collect();
        if let Err(error) = self.deallocate(&input, &allocated, &transfer).await {
            if self.transfer_attempts < ATTEMPTS {
                return Ok(self.try_later(&error.to_string()));
            }
            let node = transfer.new_node.as_ref().map_or("?", NodeName::as_str);
            warn!(alert = true, record = %self.id, node, token = %transfer.id, %error,
                "the node of an undone transfer could not be deallocated: deallocate it by hand");
        }
        self.clear_transfer(input, transfer, why).await
    }

    /// Clears an undone transfer and releases the lock. The next transfer waits: 30 s, doubled with each failure in a
    /// row, up to 10 min.
    async fn clear_transfer(
        &mut self,
        input: RcView,
        transfer: Transfer,
        why: &str,
    ) -> Result<Action, ReconcileError> {
        let mut status = self.chain.status().clone();
        let now = self.ctx.clock.wall();
        let (kind, reason) = (RcConditionType::Placed, RcReason::TransferFailed);
        status.set_condition(kind, false, reason, why.to_owned(), now);
        status.transfer = None;
        status.last_error = Some(why.to_owned());
        let record = events::transfer_undone(&self.ctx, &input.spec, &transfer, why);
        let ops = self.unlock_ops().to_vec();
        match self.commit(input.record_index, ops, status, vec![record]).await? {
            Committed::Applied(_) => {
                info!(record = %self.id, from = %transfer.old_node, why, "node transfer undone");
                let hold_off = backoff(HOLD_OFF, HOLD_OFF * 20, self.transfers_failed);
                self.transfers_failed = self.transfers_failed.saturating_add(1);
                self.transfer_not_before = Some(monotonic() + hold_off);
                Ok(Action::RequeueAfter(hold_off))
            }
            Committed::Refused(_) => Ok(self.try_later("refused")),
        }
    }

    /// Repeats a step after a pause: 250 ms, doubled with each attempt, up to 30 s.
    fn try_later(&mut self, why: &str) -> Action {
        let base = Duration::from_millis(250);
        let pause = backoff(base, Duration::from_secs(30), self.transfer_attempts);
        self.transfer_attempts += 1;
        self.transfer_not_before = Some(monotonic() + pause);
        info!(record = %self.id, attempts = self.transfer_attempts, why, "transfer: trying again");
        Action::RequeueAfter(pause)
    }
}

/// Checks that the scheduler returned exactly one node, which is not in use.
fn only(nodes: &[NodeName], in_use: &BTreeSet<NodeName>) -> Result<NodeName, ScheduleError> {
    match nodes {
        [node] if !in_use.contains(node) => Ok(node.clone()),
        _ => Err(ScheduleError::BadAnswer(format!("one new node was asked for, {nodes:?} came"))),
    }
}
