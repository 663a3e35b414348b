//! Updates in order: which pods get a changed manifest now, so that enough of the others stay healthy.
//!
//! A pod that does not pass its check costs nothing: it gets the manifest at once. So a corrected manifest reaches the
//! pods that a bad one has taken down, and a bad one takes down no more than the minimum health spares.
//!
//! While the caches of nodes or health are untrusted, a pod may only seem to fail its check: then none is restarted.

use std::cmp::Reverse;

use super::{Drift, PodStep, ReplicationObserved};
use crate::cluster::view::AllowedActions;
use rcfarm_api::ids::PodRef;

/// Repairs to make now, and pods whose repair waits.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    pub(super) now: Vec<PodStep>,
    pub(super) later: Vec<PodRef>,
}

/// Whether a step makes a node restart its pod.
pub(super) fn restarts(step: &PodStep) -> bool {
    matches!(step, PodStep::Repair { why: Drift::IntentDiffers | Drift::PodIdChanged, .. })
}

/// Divides `repairs`, which are made beside `steps`.
///
/// With a minimum health the passing pods above it may be restarted. Without one a passing pod may be restarted while
/// all pods are healthy, one at a time.
pub(super) fn in_order(
    observed: &ReplicationObserved,
    steps: &[PodStep],
    repairs: Vec<PodStep>,
) -> Repairs {
    if !observed.spec.in_order {
        return Repairs { now: repairs, later: Vec::new() };
    }
    let is_trusted = observed.allowed_actions == AllowedActions::Full;
    let may_pass = |step: &PodStep| match step {
        PodStep::Repair { pod_ref, pod, .. } => !is_trusted || observed.is_passing(pod_ref, pod),
        _ => false,
    };
    let costs = |step: &PodStep| restarts(step) && may_pass(step);
    let (mut costly, now): (Vec<PodStep>, Vec<PodStep>) = repairs.into_iter().partition(costs);
    // Pods that are being restarted already come first.
    costly.sort_by_key(|step| match step {
        PodStep::Repair { pod, .. } => Reverse(pod.unproved),
        _ => Reverse(false),
    });
    let spare = if is_trusted { spare(observed, steps).min(costly.len()) } else { 0 };
    let later = costly.split_off(spare);
    let later = later.iter().map(|step| step.pod_ref().clone()).collect();
    Repairs { now: now.into_iter().chain(costly).collect(), later }
}

/// How many passing pods may be restarted once `steps` are made. A pod that is added is not healthy yet.
fn spare(observed: &ReplicationObserved, steps: &[PodStep]) -> usize {
    let is_removed = |step: &&PodStep| matches!(step, PodStep::Remove { .. });
    let removed: Vec<&PodRef> = steps.iter().filter(is_removed).map(PodStep::pod_ref).collect();
    let stay = observed.pods.iter().filter(|(pod_ref, _)| !removed.contains(pod_ref));
    let (mut all, mut healthy) = (steps.len() - removed.len(), 0_usize);
    for (pod_ref, pod) in stay {
        all += 1;
        healthy += usize::from(observed.is_up(pod_ref, pod));
    }
    match observed.spec.min_health {
        Some(min_health) => healthy.saturating_sub(min_health as usize),
        None => usize::from(healthy == all),
    }
}
