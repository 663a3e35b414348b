//! States of all devices, groups and pods, and whether the tables of `machine` allow what a step did with them.

use std::collections::{BTreeMap, BTreeSet};

use rcfarm_cells::inspect::PhysicalCellStatus;
use rcfarm_cells::machine::{
    AffinityGroupChange as Group, AffinityGroupStage, CellChange as Cell, CellPodChange as Pod,
    CellPodStage, CellState,
};
use rcfarm_cells::{AffinityGroupState, CellScheduler, GroupKey};

/// States at one time. Groups and pods that are not there are pending and waiting.
#[derive(Debug, PartialEq, Eq)]
pub struct Stages {
    leaves: BTreeMap<String, CellState>,
    groups: BTreeMap<GroupKey, AffinityGroupStage>,
    pods: BTreeMap<String, CellPodStage>,
    /// Node and devices of each pod that is bound.
    places: BTreeMap<String, (String, Vec<i32>)>,
}

/// Events by which a step may change devices, groups and pods; `None`: it may change all.
type Allowed = (&'static [Cell], &'static [Group], &'static [Pod]);

/// What each step of a history may do. A step that places a group may end others' reservations, which gives back what they
/// had reserved of third groups.
fn allowed(step: &str) -> Option<Allowed> {
    Some(match step {
        "bound" => (
            &[Cell::Allocate, Cell::Occupy, Cell::TakeOver, Cell::Cancel],
            &[Group::Place, Group::Occupy, Group::Cancel, Group::Unreserved],
            &[Pod::Place, Pod::Cancel],
        ),
        "preempts" => (
            &[Cell::Reserve, Cell::Cancel],
            &[Group::Preempt, Group::Cancel, Group::Reserved, Group::Unreserved],
            &[Pod::Reserve, Pod::Cancel],
        ),
        "waits" => (&[Cell::Cancel], &[Group::Cancel, Group::Unreserved], &[Pod::Cancel]),
        "pod ended" | "group ended" => (
            &[Cell::Release, Cell::Cancel],
            &[Group::End, Group::Cancel, Group::Unreserved],
            &[Pod::End, Pod::Cancel],
        ),
        "reconfigured" => return None,
        _ => (&[], &[], &[]),
    })
}

fn leaves(cells: &[PhysicalCellStatus], found: &mut BTreeMap<String, CellState>) {
    for cell in cells {
        if cell.cell_children.is_empty() {
            found.insert(cell.cell.cell_address.clone(), cell.cell.cell_state);
        }
        leaves(&cell.cell_children, found);
    }
}

/// The states of one map that the other has, too, or has not: both, with `none` for what is not there.
fn pairs<'s, K: Ord, S: Copy>(
    before: &'s BTreeMap<K, S>,
    after: &'s BTreeMap<K, S>,
    none: S,
) -> impl Iterator<Item = (&'s K, S, S)> {
    let keys: BTreeSet<&K> = before.keys().chain(after.keys()).collect();
    let of = move |states: &BTreeMap<K, S>, key: &K| states.get(key).copied().unwrap_or(none);
    keys.into_iter().map(move |key| (key, of(before, key), of(after, key)))
}

impl Stages {
    pub fn of(cells: &CellScheduler) -> Stages {
        let mut found = Stages {
            leaves: BTreeMap::new(),
            groups: BTreeMap::new(),
            pods: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        leaves(&cells.physical_cells(), &mut found.leaves);
        for group in cells.groups() {
            let stage = match cells.group_state(&group.key) {
                Some(AffinityGroupState::Preempting) => AffinityGroupStage::Preempting,
                Some(AffinityGroupState::Allocated) => AffinityGroupStage::Allocated,
                Some(AffinityGroupState::BeingPreempted) => AffinityGroupStage::BeingPreempted,
                None => AffinityGroupStage::Pending,
            };
            found.groups.insert(group.key.clone(), stage);
            for pod in &group.preempting_pods {
                found.pods.insert(pod.clone(), CellPodStage::Preempting);
            }
            for place in &group.pods {
                let Some(pod) = &place.pod else { continue };
                found.pods.insert(pod.clone(), CellPodStage::Bound);
                found.places.insert(pod.clone(), (place.node.clone(), place.devices.clone()));
            }
        }
        found
    }

    /// Checks that the tables allow what a step did. A place that a pod has stays, whatever the step.
    pub fn steps(&self, after: &Stages, step: &str) -> Result<(), String> {
        for (pod, place) in &self.places {
            let now = after.places.get(pod);
            if now.is_some_and(|now| now != place) {
                return Err(format!("{pod} was bound to {place:?}, and is to {now:?}"));
            }
        }
        let Some((cell, group, pod)) = allowed(step) else { return Ok(()) };
        for (address, was, is) in pairs(&self.leaves, &after.leaves, CellState::Free) {
            if was != is && !cell.iter().any(|event| was.after(*event) == Some(is)) {
                return Err(format!("device {address} was {was:?} and is {is:?}"));
            }
        }
        let none = AffinityGroupStage::Pending;
        for (key, was, is) in pairs(&self.groups, &after.groups, none) {
            if was != is && !group.iter().any(|event| was.after(*event) == Some(is)) {
                return Err(format!("group {key} was {was:?} and is {is:?}"));
            }
        }
        for (name, was, is) in pairs(&self.pods, &after.pods, CellPodStage::Waiting) {
            // A decision is committed at once here: nothing stays between it and the allocation.
            let next = |event: &Pod| match (was.after(*event)?, event) {
                (placed, Pod::Place) => placed.after(Pod::Confirm),
                (CellPodStage::Unknown, Pod::End) => Some(CellPodStage::Waiting),
                (next, _) => Some(next),
            };
            if was != is && !pod.iter().any(|event| next(event) == Some(is)) {
                return Err(format!("pod {name} was {was:?} and is {is:?}"));
            }
        }
        Ok(())
    }
}
