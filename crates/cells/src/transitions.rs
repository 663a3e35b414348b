//! Changes of groups: placed, reserved, cancelled, downgraded, restored, ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::group::{AffinityGroup, GroupIx, GroupKey};
use crate::model::CellIx;
use crate::scheduler::{CellEvent, CellPlan};
use crate::state::State;

impl State {
    pub(crate) fn commit_new(
        &mut self,
        plan: &CellPlan,
        pod: &str,
        now: Timestamp,
        events: &mut Vec<CellEvent>,
    ) {
        if let Some(&own) = self.groups.by_key.get(&plan.key) {
            self.cancel(own);
            let reason = "its cells can no longer be used".to_owned();
            events.push(CellEvent::Cancelled { group: plan.key.clone(), reason });
        }
        for key in &plan.downgrades {
            if let Some(&at) = self.groups.by_key.get(key) {
                self.downgrade(at, &plan.key.name, now);
                let preemptor = plan.key.name.clone();
                events.push(CellEvent::Downgraded { group: key.clone(), preemptor });
            }
        }
        for key in &plan.cancels {
            if let Some(&at) = self.groups.by_key.get(key) {
                self.cancel(at);
                let reason = format!("{} has a higher priority", plan.key);
                events.push(CellEvent::Cancelled { group: key.clone(), reason });
            }
        }
        let preempting = !plan.victims.is_empty();
        let mut pods = plan.pods.clone();
        let mut preempting_pods = BTreeSet::new();
        if preempting {
            preempting_pods.insert(pod.to_owned());
        } else {
            pods[plan.slot].pod = Some(pod.to_owned());
        }
        let at = self.groups.insert(AffinityGroup {
            key: plan.key.clone(),
            request: Arc::clone(plan.request()),
            preempting,
            chain: plan.chain.clone(),
            pods,
            preempting_pods,
            lazy_preemption: None,
        });
        self.hold(at);
        let group = plan.key.clone();
        events.push(if preempting {
            CellEvent::Reserved { group, victims: plan.victims.clone() }
        } else {
            CellEvent::Allocated { group }
        });
        self.restore_downgraded(events);
    }

    /// A group begins to use, or to reserve, all its leaves.
    pub(crate) fn hold(&mut self, at: GroupIx) {
        let Some(group) = self.groups.shared(at) else { return };
        for leaf in group.leaves() {
            if group.preempting {
                self.reserve_leaf(leaf, at);
            } else {
                self.use_leaf(leaf, at);
            }
        }
    }

    pub(crate) fn occupy_slot(&mut self, key: &GroupKey, slot: usize, pod: &str) {
        let at = self.groups.by_key.get(key).copied();
        if let Some(group) = at.and_then(|at| self.groups.edit(at))
            && let Some(place) = group.pods.get_mut(slot)
        {
            place.pod = Some(pod.to_owned());
        }
    }

    pub(crate) fn await_reservation(&mut self, key: &GroupKey, pod: &str) {
        let at = self.groups.by_key.get(key).copied();
        if let Some(group) = at.and_then(|at| self.groups.edit(at)) {
            group.preempting_pods.insert(pod.to_owned());
        }
    }

    /// The victims are gone: a reservation becomes use.
    pub(crate) fn occupy_reservation(&mut self, key: &GroupKey, events: &mut Vec<CellEvent>) {
        let Some(&at) = self.groups.by_key.get(key) else { return };
        let leaves: Vec<CellIx> =
            self.groups.at(at).map(|group| group.leaves().collect()).unwrap_or_default();
        for leaf in leaves {
            self.occupy_leaf(leaf);
        }
        if let Some(group) = self.groups.edit(at) {
            group.preempting = false;
            group.preempting_pods.clear();
        }
        events.push(CellEvent::Allocated { group: key.clone() });
    }

    /// Ends a reservation.
    pub(crate) fn cancel(&mut self, at: GroupIx) {
        let Some(group) = self.groups.shared(at) else { return };
        for leaf in group.leaves() {
            self.unreserve_leaf(leaf);
        }
        self.groups.remove(at);
    }

    /// Ends the use of all leaves of a group.
    pub(crate) fn delete(&mut self, at: GroupIx) {
        let Some(group) = self.groups.shared(at) else { return };
        for leaf in group.leaves() {
            self.release_leaf(leaf);
        }
        self.groups.remove(at);
    }

    /// Lets a guaranteed group run on as opportunistic.
    pub(crate) fn downgrade(&mut self, at: GroupIx, preemptor: &str, now: Timestamp) {
        self.change_held(at, |group| {
            group.lazy_preemption = Some(crate::group::LazyPreemptionStatus {
                preemptor: preemptor.to_owned(),
                preemption_time: now,
            });
        });
    }

    /// Gives groups their guarantee back whose preemptor has gone, where their cells are free: by priority, then name.
    pub(crate) fn restore_downgraded(&mut self, events: &mut Vec<CellEvent>) {
        let mut waiting: Vec<(i32, GroupKey, GroupIx)> = self
            .groups
            .iter()
            .filter(|(_, group)| {
                group.lazy_preemption.as_ref().is_some_and(|lazy| {
                    let vc = group.key.virtual_cluster.clone();
                    let preemptor = GroupKey::new(vc, lazy.preemptor.clone());
                    preemptor == group.key || self.groups.get(&preemptor).is_none()
                })
            })
            .map(|(at, group)| (-group.request.priority, group.key.clone(), at))
            .collect();
        waiting.sort();
        for (_, key, at) in waiting {
            if self.try_restore(at) {
                events.push(CellEvent::Restored { group: key });
            }
        }
    }

    /// Gives a group its guarantee back, if none of its leaves is reserved and all fit into its virtual cluster.
    fn try_restore(&mut self, at: GroupIx) -> bool {
        let Some(group) = self.groups.shared(at) else { return false };
        let leaves: Vec<CellIx> = group.leaves().collect();
        if leaves.is_empty() || leaves.iter().any(|&leaf| self.occupants(leaf).1.is_some()) {
            return false;
        }
        for &leaf in &leaves {
            self.release_leaf(leaf);
        }
        let restored = crate::record::hold_guaranteed(self, at).is_ok();
        if !restored {
            self.hold(at);
        }
        restored
    }
}
