//! Members whose pods do not fit into one transaction are started in a batched start of several. Pure.
//!
//! The transaction that begins it says in the status which members are started, and which of them the others make
//! (`starting`). The others do not touch the status: each is guarded by its ModifyIndex, so several are under way at once,
//! and none of them comes through once the status has been written again. Whoever plans next, the owner or the one after
//! it, first sees to that if any may be under way, and then looks which pods are there: what is not there was not started.

use std::collections::BTreeSet;

use super::members::attempt_of;
use super::plan::{JobObserved, JobPlan};
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::JobStatus;

/// No more pods than this are made in one batched start: the rest comes after it.
const MOST: usize = 4_096;

/// Ends the batched start that the status tells of: members of which there is no pod were not started.
pub(super) fn reconcile_existing(status: &mut JobStatus, seen: &JobObserved<'_>) {
    if !status.is_starting() {
        return;
    }
    let current = |slot: &Slot, version, attempt| {
        version == status.version && attempt == attempt_of(status, slot)
    };
    let there = seen.pods.iter().filter(|pod| current(&pod.slot, pod.version, pod.attempt));
    // One that a node still runs was made, and taken away since.
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

/// So many pods may be made by a plan. While others go or change hands, these come first.
pub(super) fn most(seen: &JobObserved<'_>, plan: &JobPlan) -> usize {
    let alone =
        plan.remove.is_empty() && plan.adopt.is_empty() && !plan.release && !plan.collect_orphans;
    if alone { MOST.max(seen.room) } else { seen.room }
}
