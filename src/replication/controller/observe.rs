//! Builds the plan's input from the caches, and plans.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::MutexGuard;

use super::{RcController, RcView};
use crate::cluster::ClusterView;
use crate::cluster::nodes::NodeReadiness;
use crate::farm::kind::ReconcileError;
use crate::replication::RcPods;
use crate::replication::failpoints;
use crate::replication::plan::{
    ReplicationObserved, ReplicationPlan, TransferConditions, may_change_allocations, plan,
};
use rcfarm_api::ids::{NodeName, PodRef, RcId, RecordId};
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_store::{Index, offload};

impl RcController {
    /// Nodes that report the manifest as one that cannot be run, and why.
    pub(super) fn unfit(&self, pods: &RcPods) -> BTreeMap<NodeName, Arc<str>> {
        let unfit = |pod_ref: &PodRef| {
            let reported = self.view.reported(pod_ref, self.fresh.as_ref());
            Some((pod_ref.node.clone(), reported.unfit?))
        };
        pods.keys().filter_map(unfit).collect()
    }

    /// Nodes that restart their pod again and again, and how it ends.
    pub(super) fn restarting(&self, pods: &RcPods) -> BTreeMap<NodeName, Arc<str>> {
        let restarting = |pod_ref: &PodRef| {
            let reported = self.view.reported(pod_ref, self.fresh.as_ref());
            Some((pod_ref.node.clone(), reported.restarting?))
        };
        pods.keys().filter_map(restarting).collect()
    }

    /// Readiness of a node for this RC.
    pub(super) fn readiness(&self, input: &RcView, node: &NodeName) -> NodeReadiness {
        let shunned = || {
            let now = self.ctx.clock.wall();
            input.failing.contains_key(node)
                || self.chain.status().quarantine(node, input.record_index, now).is_some()
        };
        match self.view.readiness(node) {
            NodeReadiness::Ready | NodeReadiness::Suspect if shunned() => {
                NodeReadiness::Quarantined
            }
            readiness => readiness,
        }
    }

    /// The plan's input. Slots are looked up apart ([`RcController::look_up_slots`]).
    async fn observe(&self, input: &RcView) -> Result<ReplicationObserved, ReconcileError> {
        let words = |of: &BTreeMap<NodeName, Arc<str>>| {
            of.iter().map(|(node, why)| (node.clone(), why.to_string())).collect()
        };
        let mut observed = ReplicationObserved {
            spec: input.spec.clone(),
            pods: input.pods.clone(),
            eligible: input.eligible.clone(),
            not_ready: BTreeMap::new(),
            unfit: words(&input.unfit),
            restarting: words(&input.restarting),
            set_aside: BTreeMap::new(),
            slots: BTreeMap::new(),
            surplus: BTreeMap::new(),
            capacities: self.view.node_capacities(),
            allowed_actions: self.view.allowed_actions(),
            transfer: TransferConditions {
                under_way: self.chain.status().transfer.clone(),
                lock_held: self.lock_held_elsewhere(),
                discovery_synced: true,
                only_eligible: self.placement.scheduler.gives_only_eligible(),
            },
        };
        self.look_up_readiness(input, &mut observed);
        observed.look_up_set_aside(self.chain.status(), input.record_index, self.ctx.clock.wall());
        if observed.nodes_wanted() > 0 {
            let record = |rc| self.other_record(rc);
            observed.surplus =
                self.caches.surplus(&input.spec, &self.own, self.fresh.as_ref(), record);
        }
        failpoints::change_observed(&mut observed);
        if observed.has_misplaced_pod() {
            let healthy = self.caches.healthy_nodes(&input.pods);
            let synced = self.placement.discovery.synced(input.spec.manifest.id(), &healthy);
            observed.transfer.discovery_synced = synced.await?;
        }
        Ok(observed)
    }

    /// The record of another RC, if it is valid, and its ModifyIndex.
    pub(super) fn other_record(&self, rc: RcId) -> Option<(RcSpec, Index)> {
        let records = self.claimed.records.snapshot();
        let record = records.value.0.get(&RecordId::from(rc.to_string().as_str()))?;
        Some((RcSpec::decode(rc, &record.value).ok()?, record.index))
    }

    /// Readiness of the nodes that have a pod, and if nodes are wanted, of the eligible nodes that are not ready. Only
    /// the latter costs a pass over the nodes' records.
    fn look_up_readiness(&self, input: &RcView, observed: &mut ReplicationObserved) {
        let not_ready = |node: &NodeName| {
            let readiness = self.readiness(input, node);
            (readiness != NodeReadiness::Ready).then(|| (node.clone(), readiness))
        };
        let of_pods = input.pods.keys().map(|pod_ref| &pod_ref.node);
        observed.not_ready = of_pods.filter_map(not_ready).collect();
        let seeks = observed.nodes_wanted() > 0;
        self.caches.interests().seek(self.id, seeks);
        if seeks {
            let unfit = self.view.unfit_nodes();
            let others = unfit.iter().chain(self.chain.status().quarantined_nodes.keys());
            let others = others.filter(|node| input.eligible.contains(*node));
            observed.not_ready.extend(others.filter_map(not_ready));
        }
    }

    /// Plans. If the plan may change allocations, the farm makes no other such plan until the guard is dropped.
    pub(super) async fn decide<'v>(
        &self,
        view: &'v ClusterView,
        input: &RcView,
    ) -> Result<(ReplicationPlan, Option<MutexGuard<'v, ()>>), ReconcileError> {
        let mut observed = self.observe(input).await?;
        let size = observed.eligible.len() + observed.pods.len();
        let free_nodes = offload(size, || self.look_up_slots(input, &mut observed)).await;
        let mut guard = None;
        if may_change_allocations(&observed, free_nodes) {
            guard = Some(view.ledger.lock_plans().await);
            // Another task of this farm may have allocated something meanwhile.
            observed.capacities = view.node_capacities();
            offload(size, || self.look_up_slots(input, &mut observed)).await;
        }
        let mut plan = offload(size, || plan(&observed)).await;
        failpoints::change_plan(&observed, &mut plan);
        Ok((plan, guard))
    }

    /// Looks up the slots that the plan needs; returns how many nodes are free for it.
    fn look_up_slots(&self, input: &RcView, observed: &mut ReplicationObserved) -> usize {
        observed.look_up_slots(|node| self.caches.slot(&input.spec, &self.own, node))
    }

    /// Whether somebody else holds the record's mutation lock, or forbids transfers.
    fn lock_held_elsewhere(&self) -> bool {
        let locks = self.claimed.locks.snapshot();
        let own = self.claimed.claim.epoch().session();
        locks.value.0.get(&self.claimed.id).is_some_and(|locks| {
            ["update", "node_transfer"]
                .iter()
                .any(|kind| locks.others.get(*kind).is_some_and(|session| session != own))
        })
    }
}
