//! Failpoints of the plan: they change its input or its output, so that the plan itself has none.
//! Without the feature `failpoints` both functions do nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::plan::{PodRemoveReason, PodStep, ReplicationObserved, ReplicationPlan};
use crate::cluster::nodes::NodeReadiness;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::Health;
use rcfarm_store::failpoints::{Failpoint, enabled};

/// Changes what a plan is made from.
pub(super) fn change_observed(observed: &mut ReplicationObserved) {
    if enabled(Failpoint::DisabledIgnored) {
        Arc::make_mut(&mut observed.spec).disabled = false;
    }
    if enabled(Failpoint::NoMinimumHealth) {
        Arc::make_mut(&mut observed.spec).min_health = None;
    }
    if enabled(Failpoint::UpdateUnordered) {
        Arc::make_mut(&mut observed.spec).in_order = false;
    }
    if enabled(Failpoint::RestartsUncounted) {
        Arc::make_mut(&mut observed.pods).values_mut().for_each(|pod| pod.unproved = false);
    }
    if enabled(Failpoint::UnfitTaken) {
        let pods = observed.pods.clone();
        let used: BTreeSet<&NodeName> = pods.keys().map(|pod_ref| &pod_ref.node).collect();
        observed.not_ready.retain(|node, _| used.contains(node));
    }
    let desired = observed.spec.replicas_desired as usize;
    if enabled(Failpoint::TransferBlind) && observed.pods.len() == desired {
        for (pod_ref, pod) in Arc::make_mut(&mut observed.pods) {
            let is_down = observed.not_ready.get(&pod_ref.node) == Some(&NodeReadiness::Down);
            pod.health = if is_down { pod.health } else { Health::Passing };
        }
    }
}

pub(super) fn change_plan(observed: &ReplicationObserved, plan: &mut ReplicationPlan) {
    if !enabled(Failpoint::RemovalUnordered) {
        return;
    }
    let is_removal = |step: &PodStep| matches!(step, PodStep::Remove { .. });
    let count = plan.steps.iter().filter(|step| is_removal(step)).count();
    let first = observed.pods.iter().take(count).map(|(pod_ref, pod)| PodStep::Remove {
        pod_ref: pod_ref.clone(),
        pod: pod.clone(),
        why: PodRemoveReason::Surplus,
    });
    let removals: Vec<PodStep> = first.collect();
    let removed: BTreeSet<_> = removals.iter().map(PodStep::pod_ref).collect();
    plan.steps.retain(|step| !is_removal(step) && !removed.contains(step.pod_ref()));
    plan.steps.splice(0..0, removals.iter().cloned());
}
