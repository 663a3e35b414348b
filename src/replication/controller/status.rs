//! The status of an RC: what it says, and when it is written.

use std::time::Duration;

use tracing::warn;

use super::RcController;
use super::RcView;
use crate::farm::kind::{Action, ReconcileError, ReconcileResult};
use crate::farm::status_chain::Committed;
use crate::replication::RcPods;
use crate::replication::plan::{PlannedCondition, ReplicationPlan};
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus, Replicas};
use rcfarm_api::{FieldError, Timestamp, key};
use rcfarm_store::Index;
use rcfarm_store::time::monotonic;

/// Long-term interval of status writes that change only health, so that a flapping pod costs few of them.
const HEALTH_EVERY: Duration = Duration::from_secs(2);
/// 8 of these writes at once: the restart after an exit must not delay the report of the next exit.
const HEALTH_BURST: Duration = Duration::from_secs(8 * 2);

impl RcController {
    /// The status once `pods` are written. `done`: the plan, if these are the last of its steps.
    pub(super) fn status_after(
        &self,
        input: &RcView,
        pods: &RcPods,
        done: Option<&ReplicationPlan>,
    ) -> RcStatus {
        let mut status = self.chain.status().clone();
        let now = self.ctx.clock.wall();
        match done {
            Some(plan) => set_conditions(&mut status, &plan.conditions, now),
            None => {
                let kind = RcConditionType::Scheduled;
                let message = "pods are being added or removed".to_owned();
                status.set_condition(kind, false, RcReason::Scaling, message, now);
            }
        }
        status.replicas = self.replicas(input, pods);
        status.observed_index = input.record_index;
        status.last_error = None;
        status.quarantined_until = None;
        status
    }

    fn replicas(&self, input: &RcView, pods: &RcPods) -> Replicas {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Replicas {
            desired: input.spec.replicas_desired,
            current: count(pods.len()),
            healthy: count(self.caches.healthy_nodes(pods).len()),
            eligible: count(input.eligible.len()),
        }
    }

    /// Writes the status alone, if it changes. The error of a transfer stays while the transfer is under way, or its
    /// failure is a condition.
    pub(super) async fn update_status(
        &mut self,
        input: &RcView,
        conditions: &[PlannedCondition],
    ) -> ReconcileResult {
        let mut status = self.chain.status().clone();
        set_conditions(&mut status, conditions, self.ctx.clock.wall());
        status.observed_index = input.record_index;
        status.replicas = self.replicas(input, &input.pods);
        let has_failed =
            |condition: &PlannedCondition| condition.reason == RcReason::TransferFailed;
        if status.transfer.is_none() && !conditions.iter().any(has_failed) {
            status.last_error = None;
        }
        status.quarantined_until = None;
        self.write_status(input.record_index, status).await
    }

    /// Writes a status, unless it differs from the last one in the number of eligible nodes alone. Changes of the
    /// number of healthy pods alone are limited to one per [`HEALTH_EVERY`]. A new owner always writes.
    pub(super) async fn write_status(
        &mut self,
        record_index: Index,
        status: RcStatus,
    ) -> ReconcileResult {
        let last = self.chain.status();
        if last.owner.as_ref() == Some(&self.owner) {
            let mut same = status.clone();
            same.replicas.eligible = last.replicas.eligible;
            if same == *last {
                return Ok(Action::AwaitChange);
            }
            same.replicas.healthy = last.replicas.healthy;
            if same == *last
                && let Err(wait) = self.health_writes.take(HEALTH_EVERY, HEALTH_BURST, monotonic())
            {
                return Ok(Action::RequeueAfter(wait));
            }
        }
        match self.commit(record_index, Vec::new(), status, Vec::new()).await? {
            Committed::Applied(_) => Ok(Action::AwaitChange),
            Committed::Refused(_) => Ok(self.chain.after_refusal()),
        }
    }

    /// Writes into the status what is wrong with the record, and logs it once.
    pub(super) async fn report_invalid(
        &mut self,
        record_index: Index,
        bad: &FieldError,
    ) -> Result<(), ReconcileError> {
        let mut status = self.chain.status().clone();
        let (kind, reason) = (RcConditionType::Valid, RcReason::InvalidRecord);
        status.set_condition(kind, false, reason, bad.to_string(), self.ctx.clock.wall());
        status.observed_index = record_index;
        status.last_error = Some(bad.to_string());
        status.quarantined_until = None;
        if self.alerted.as_ref() != status.last_error.as_ref() {
            self.alerted.clone_from(&status.last_error);
            warn!(alert = true, key = %key::rc(self.id), field = bad.path, why = bad.problem,
                fix = bad.fix, "the record is not valid; its pods are left as they are");
        }
        self.write_status(record_index, status).await.map(drop)
    }
}

fn set_conditions(status: &mut RcStatus, conditions: &[PlannedCondition], now: Timestamp) {
    for condition in conditions {
        let PlannedCondition { kind, status: holds, reason, message } = condition;
        status.set_condition(*kind, *holds, *reason, message.clone(), now);
    }
}
