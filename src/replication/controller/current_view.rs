//! Reads before a plan that removes some pods of an RC, moves one, or restarts some in order. Its pods, and the labels and
//! records of their nodes, must be at least as new as the record; their health must be as new as the decision. Plans that
//! only add pods, or remove all, need none.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{RcController, RcView};
use crate::farm::kind::ReconcileError;
use crate::replication::RcPods;
use crate::replication::plan::{PodStep, ReplicationPlan, TransferPlan};
use rcfarm_api::ids::{PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::{Index, Key, Op, Prefix, Query, Question, TxnOutcome};

impl RcController {
    /// Whether the plan depends on how many pods there are and which of them are healthy.
    pub(super) fn takes_pods_away(&self, input: &RcView, plan: &ReplicationPlan) -> bool {
        let removes = |step: &PodStep| matches!(step, PodStep::Remove { .. });
        if plan.takes_over() {
            return true;
        }
        let moves = match &plan.transfer {
            TransferPlan::Start(_) => true,
            // The swap of the pods. The steps before it remove none.
            TransferPlan::Continue => {
                let transfer = self.chain.status().transfer.as_ref();
                transfer.is_some_and(|t| t.new_node.is_some() && t.undoing.is_none())
            }
            TransferPlan::Nothing | TransferPlan::Wait(_) => false,
        };
        if input.spec.in_order && plan.restarts() {
            return true;
        }
        // Where all pods go, each removal's own check is enough.
        plan.steps.iter().any(removes) && input.spec.replicas_desired > 0
            || moves && self.transfer_pause().is_none()
    }

    /// Whether the pods and their nodes are at least as new as the record. `p2-rm --deallocate` deletes a pod and lowers
    /// the count at once; others relabel or drain a node first. The watch of the records may be the faster one.
    ///
    /// A tree's index shows it only while the tree changes. Otherwise what was counted is compared with the store,
    /// [`rcfarm_store::TxnLimits::ops`] keys per request. Of an RC whose pods are taken over these are all of its pods:
    /// somebody else may have taken one.
    pub(super) async fn has_current_view(
        &self,
        input: &RcView,
        plan: &ReplicationPlan,
    ) -> Result<bool, ReconcileError> {
        let is_at = |(place, pod): (&PodRef, Index)| Question::IsAt {
            key: key::pod_labels(&place.node, &place.pod),
            index: pod,
        };
        let labels = self.view.pods.snapshot();
        let taken_from = plan.steps.iter().filter_map(|step| match step {
            PodStep::TakeOver { from, .. } => Some(*from),
            _ => None,
        });
        let taken_from: BTreeSet<RcId> = taken_from.collect();
        let others = taken_from.into_iter().flat_map(|rc| labels.value.of_rc(rc));
        let others = others.filter(|(place, _)| self.own.labels.pending(&labels, place).is_none());
        let mut questions: Vec<Question> =
            others.map(|(place, pod)| is_at((place, pod.index))).collect();
        if input.labels_index < input.record_index {
            questions.extend(input.pods.iter().map(|(place, pod)| is_at((place, pod.label_index))));
        }
        let (labels, records) = &input.nodes;
        let pods_nodes = Self::nodes_in_use(input);
        let mut unlisted: Vec<(Prefix, Key)> = Vec::new();
        let mut compare = |prefix: Prefix, key: Key, index: Option<Index>| match index {
            Some(index) => questions.push(Question::IsAt { key, index }),
            None => unlisted.push((prefix, key)),
        };
        if labels.index < input.record_index && self.placement.scheduler.goes_by_labels() {
            for node in &pods_nodes {
                let index = labels.value.index_of(node);
                compare(key::labels(LabelKind::Node), key::node_labels(node), index);
            }
        }
        if records.index < input.record_index {
            for node in &pods_nodes {
                compare(key::nodes(), key::node(node), records.value.index_of(node));
            }
        }
        for some in questions.chunks(self.ctx.limits.ops.max(1)) {
            if let TxnOutcome::Refused(_) = self.ctx.reader.ask(some).await? {
                return Ok(false);
            }
        }
        self.are_absent(&unlisted).await
    }

    /// Whether none of these keys exists. They are listed: a transaction may check that a key is absent only with the right
    /// to write it.
    async fn are_absent(&self, keys: &[(Prefix, Key)]) -> Result<bool, ReconcileError> {
        let prefixes: BTreeSet<&Prefix> = keys.iter().map(|(prefix, _)| prefix).collect();
        for prefix in prefixes {
            let listed = self.ctx.reader.keys(prefix, None, Query::CONSISTENT).await?.value;
            let listed: BTreeSet<String> = listed.into_iter().collect();
            if keys.iter().any(|(_, key)| listed.contains(key.as_str())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// An operation that Consul refuses if the record's labels have changed. They decide which pods a plan may restart,
    /// and they are another cache than the record. Labels that are absent cannot be guarded
    /// ([`crate::farm::records::RecordLabels::guard`]): they are read.
    pub(super) async fn labels_guard(
        &self,
        input: &RcView,
        plan: &ReplicationPlan,
    ) -> Result<Option<Op>, ReconcileError> {
        if !plan.restarts() || input.labels_guard.is_some() {
            return Ok(input.labels_guard.clone().filter(|_| plan.restarts()));
        }
        let labels = self.ctx.reader.get(&key::rc_labels(self.id), Query::CONSISTENT).await?;
        if labels.value.is_some() {
            self.claimed.labels.refresh_soon();
            return Err(ReconcileError::Elsewhere("the labels have changed".to_owned()));
        }
        Ok(None)
    }

    /// Reads the pods' health now; returns whether it differs from that in `input`. The cache of health may be a minute
    /// old: p2's preparer rings no doorbell.
    pub(super) async fn update_health(
        &mut self,
        input: &mut RcView,
        takes_over: bool,
    ) -> Result<bool, ReconcileError> {
        self.fresh = Some(self.view.read_health(input.spec.manifest.id()).await?);
        let mut pods = RcPods::clone(&input.pods);
        for (place, pod) in &mut pods {
            pod.health = self.view.reported(place, self.fresh.as_ref()).health;
        }
        let failing = self.failing(&pods);
        // Health of pods to be taken over is not part of the input: the plan is made again.
        let differs = takes_over || pods != *input.pods || failing != input.failing;
        (input.unfit, input.restarting) = (self.unfit(&pods), self.restarting(&pods));
        (input.pods, input.failing) = (Arc::new(pods), failing);
        Ok(differs)
    }
}
