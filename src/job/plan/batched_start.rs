//! Batched start: several transactions create the members whose pods do not fit into one. Pure.
//!
//! The first transaction writes the status: it lists the members to start, and those that later transactions create
//! (`starting`). The later ones check the status' ModifyIndex and do not write it, so several can be in flight. Any new
//! write of the status invalidates the rest. Before the next plan the owner, or its successor, reads the pods again: a
//! member in `starting` without a pod was not started.

use std::collections::BTreeSet;

use super::{JobObserved, JobPlan};
use crate::job::members::attempt_of;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::JobStatus;

/// Upper limit of pods per batched start.
const MOST: usize = 4_096;

/// Ends the batched start in the status: members of `starting` without a pod are no longer `started`.
pub(super) fn reconcile_existing(status: &mut JobStatus, seen: &JobObserved<'_>) {
    if !status.is_starting() {
        return;
    }
    let current = |slot: &Slot, version, attempt| {
        version == status.version && attempt == attempt_of(status, slot)
    };
    let there = seen.pods.iter().filter(|pod| current(&pod.slot, pod.version, pod.attempt));
    // A pod that is real without an intent was created, and removed afterwards.
    let there = there.map(|pod| &pod.slot).chain(seen.leaving.keys());
    let there: BTreeSet<Slot> = there.cloned().collect();
    for (task, memory) in &mut status.tasks {
        for index in std::mem::take(&mut memory.starting).iter() {
            if !there.contains(&Slot::new(task, index)) {
                memory.started.remove(index);
            }
        }
    }
}

/// Limit of pods that a plan creates: one transaction's room while pods are removed, adopted or released.
pub(super) fn most(seen: &JobObserved<'_>, plan: &JobPlan) -> usize {
    let alone =
        plan.remove.is_empty() && plan.adopt.is_empty() && !plan.release && !plan.collect_orphans;
    if alone { MOST.max(seen.room) } else { seen.room }
}
