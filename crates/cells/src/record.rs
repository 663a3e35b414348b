//! Groups as records, and a scheduler made of them again.
//!
//! A group's record decides: it has the places of all pods, with their virtual cells. Reservations are records, too, so
//! that they outlive the process. The order of the records does not matter: those of higher priority come first, then by
//! name.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
pub use rcfarm_api::cells::{AffinityGroupRecord, PodPlacementRecord};
use rcfarm_api::cells::{numbers, ranges};
use serde::{Deserialize, Serialize};

use crate::group::{AffinityGroup, GroupIx, GroupKey, LazyPreemptionStatus, PodPlacementInfo};
use crate::model::{CellHealthiness, CellIx, CellModel, NONE};
use crate::scheduler::{CellEvent, CellScheduler};
use crate::state::State;

/// What could not be restored as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RebuildNote {
    pub group: GroupKey,
    /// What is different, and why.
    pub note: String,
}

impl CellScheduler {
    /// The record of a group.
    pub fn record(&self, key: &GroupKey) -> Option<AffinityGroupRecord> {
        let group = self.group(key)?;
        let virtuals = &self.model().virtuals;
        let mut preassigned = BTreeMap::new();
        let pods = group.pods.iter().map(|pod| {
            let root = pod.virtual_leaves.iter().find(|&&leaf| leaf != NONE);
            let root = root.map(|&leaf| virtuals.get(leaf).root);
            let cell = root.map(|root| {
                let of = self.model().chain_of(virtuals, root);
                let cell_type = of.level(virtuals.level(root)).cell_type.clone();
                preassigned.insert(virtuals.address(root).to_owned(), cell_type);
                virtuals.address(root).to_owned()
            });
            let first = root.map_or(0, |root| virtuals.get(root).first_leaf);
            // A leaf without a virtual cell is −1: a new configuration had none for it.
            let leaf = |&leaf: &CellIx| match leaf {
                NONE => -1,
                leaf => (virtuals.get(leaf).first_leaf - first) as i32,
            };
            PodPlacementRecord {
                member: pod.member,
                node: pod.node.clone(),
                devices: ranges(pod.devices.iter().copied()),
                leaves: root
                    .map(|_| ranges(pod.virtual_leaves.iter().map(leaf)))
                    .unwrap_or_default(),
                cell,
                pod: pod.pod.clone(),
            }
        });
        let pods = pods.collect();
        Some(AffinityGroupRecord {
            request: (*group.request).clone(),
            preempting: group.preempting,
            chain: group.chain.clone(),
            preassigned,
            pods,
            preempting_pods: group.preempting_pods.clone(),
            lazy_preemption: group.lazy_preemption.clone(),
        })
    }

    /// Records of all groups.
    pub fn records(&self) -> Vec<AffinityGroupRecord> {
        self.groups().filter_map(|group| self.record(&group.key)).collect()
    }

    /// A scheduler with the groups of `records`, in any order. Nodes that `nodes` does not name are bad.
    ///
    /// With the configuration under which the records were written, the result is what was. With another one, groups keep
    /// running where they are. A group whose virtual cells are gone runs on as opportunistic. A reservation that no longer
    /// fits ends. Devices that are gone are left out. Each of these is noted.
    pub fn rebuild<'a>(
        model: Arc<CellModel>,
        nodes: impl IntoIterator<Item = (&'a str, CellHealthiness)>,
        records: impl IntoIterator<Item = AffinityGroupRecord>,
        now: Timestamp,
    ) -> (CellScheduler, Vec<RebuildNote>) {
        let mut scheduler = CellScheduler::new(model);
        scheduler.set_nodes(nodes);
        let mut records: Vec<AffinityGroupRecord> = records.into_iter().collect();
        records.sort_by(|a, b| {
            let (of_a, of_b) = (&a.request, &b.request);
            of_b.priority.cmp(&of_a.priority).then_with(|| of_a.key.cmp(&of_b.key))
        });
        let mut notes = Vec::new();
        let mut events = Vec::new();
        scheduler.state.change(|state| {
            for record in records {
                let key = record.request.key.clone();
                if state.groups.get(&key).is_some() {
                    let note = "the group has two records; the second is left out".to_owned();
                    notes.push(RebuildNote { group: key, note });
                    continue;
                }
                let mut restore = Restore { state, notes: &mut notes, key, now };
                restore.group(record);
            }
            state.restore_downgraded(&mut events);
        });
        notes.retain(|note| {
            !events.iter().any(|event| *event == CellEvent::Restored { group: note.group.clone() })
                || !note.note.starts_with(DOWNGRADED)
        });
        (scheduler, notes)
    }
}

const DOWNGRADED: &str = "it runs on as opportunistic";

struct Restore<'a> {
    state: &'a mut State,
    notes: &'a mut Vec<RebuildNote>,
    key: GroupKey,
    now: Timestamp,
}

impl Restore<'_> {
    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(RebuildNote { group: self.key.clone(), note: note.into() });
    }

    fn group(&mut self, record: AffinityGroupRecord) {
        let mut pods: Vec<PodPlacementInfo> =
            record.pods.iter().map(|pod| self.place(pod, record.preempting)).collect();
        let lost = pods.iter().flat_map(|pod| &pod.leaves).any(|&leaf| leaf == NONE);
        if record.preempting && lost {
            self.note("its reservation has ended: devices are gone");
            return;
        }
        let guaranteed = record.request.priority >= 0;
        if guaranteed {
            for (pod, of) in pods.iter_mut().zip(&record.pods) {
                pod.virtual_leaves = self.virtual_leaves(&record, of, pod.leaves.len());
            }
        }
        let lazy = record.lazy_preemption.clone().filter(|_| guaranteed);
        let own =
            LazyPreemptionStatus { preemptor: self.key.name.clone(), preemption_time: self.now };
        let at = self.state.groups.insert(AffinityGroup {
            key: self.key.clone(),
            request: Arc::new(record.request),
            preempting: record.preempting,
            chain: record.chain,
            pods,
            preempting_pods: record.preempting_pods,
            lazy_preemption: guaranteed.then(|| lazy.clone().unwrap_or(own)),
        });
        if !guaranteed || lazy.is_some() {
            self.state.hold(at);
            return;
        }
        if let Err(why) = hold_guaranteed(self.state, at) {
            if record.preempting {
                self.state.groups.remove(at);
                self.note(format!("its reservation has ended: {why}"));
            } else {
                self.state.hold(at);
                self.note(format!("{DOWNGRADED}: {why}"));
            }
        }
    }

    /// Finds the physical leaves of a pod. What another group has already is left out.
    fn place(&mut self, record: &PodPlacementRecord, preempting: bool) -> PodPlacementInfo {
        let devices = numbers(&record.devices);
        let model = Arc::clone(&self.state.model);
        let node = model.nodes.get(&record.node);
        let mut leaves = Vec::new();
        for &device in &devices {
            let leaf = node.and_then(|&node| model.devices.get(&(node, device)));
            let Some(&leaf) = leaf else {
                self.note(format!("no cell has device {device} of node {}", record.node));
                leaves.push(NONE);
                continue;
            };
            let (user, reserver) = self.state.occupants(leaf);
            let taken = if preempting { reserver } else { user };
            let twice = leaves.contains(&leaf);
            if taken.is_some() || twice {
                self.note(format!("another pod has device {device} of node {}", record.node));
                leaves.push(NONE);
            } else {
                leaves.push(leaf);
            }
        }
        PodPlacementInfo {
            member: record.member,
            node: record.node.clone(),
            devices,
            pod: record.pod.clone(),
            leaves,
            virtual_leaves: Vec::new(),
        }
    }

    /// The virtual leaves that a record names, where the configuration has them and they are of the recorded type.
    fn virtual_leaves(
        &self,
        record: &AffinityGroupRecord,
        pod: &PodPlacementRecord,
        count: usize,
    ) -> Vec<CellIx> {
        let model = &self.state.model;
        let virtuals = &model.virtuals;
        let cell = pod.cell.as_ref().and_then(|address| {
            let &cell = model.preassigned.get(address)?;
            let of = model.chain_of(virtuals, cell);
            let is = Some(&of.level(virtuals.level(cell)).cell_type);
            let vc = model.owners.get(&cell);
            (is == record.preassigned.get(address) && vc == Some(&self.key.virtual_cluster))
                .then_some(cell)
        });
        let mut leaves = vec![NONE; count];
        if let Some(cell) = cell {
            let range = model.leaves(virtuals, cell);
            for (leaf, number) in leaves.iter_mut().zip(numbers(&pod.leaves)) {
                if let Ok(number) = u32::try_from(number)
                    && number < range.end - range.start
                {
                    *leaf = virtuals.leaves[(range.start + number) as usize];
                }
            }
        }
        leaves
    }
}

/// Lets a group hold its leaves with their virtual leaves, one by one; other virtual leaves where those do not fit.
pub(crate) fn hold_guaranteed(state: &mut State, at: GroupIx) -> Result<(), String> {
    let Some(group) = state.groups.shared(at) else { return Ok(()) };
    let lazy = group.lazy_preemption.clone();
    if let Some(group) = state.groups.edit(at) {
        group.lazy_preemption = None;
    }
    let mut failed = None;
    let mut done = 0;
    for n in 0..group.pods.len() {
        if let Err(why) = hold_pod(state, at, &group, n) {
            failed = Some(why);
            break;
        }
        done = n + 1;
    }
    let Some(why) = failed else { return Ok(()) };
    for pod in &group.pods[..done] {
        let_go(state, &group, &pod.leaves);
    }
    // The recorded virtual cells are kept, for when they fit again.
    if let Some(edited) = state.groups.edit(at) {
        edited.lazy_preemption = lazy;
        edited.pods = group.pods.clone();
    }
    Err(why)
}

fn let_go(state: &mut State, group: &AffinityGroup, leaves: &[CellIx]) {
    for &leaf in leaves.iter().filter(|&&leaf| leaf != NONE) {
        if group.preempting {
            state.unreserve_leaf(leaf);
        } else {
            state.release_leaf(leaf);
        }
    }
}

/// Lets a pod hold its leaves: with the virtual leaves that it had, or with those of one other preassigned cell.
fn hold_pod(
    state: &mut State,
    at: GroupIx,
    group: &AffinityGroup,
    pod: usize,
) -> Result<(), String> {
    let of = &group.pods[pod];
    if of.leaves.iter().all(|&leaf| leaf == NONE) {
        return Ok(());
    }
    let recorded = |_: &State, n: usize, _: CellIx| {
        let v = of.virtual_leaves.get(n).copied().filter(|&v| v != NONE);
        v.ok_or("the virtual cell is gone")
    };
    let mut why = match hold_leaves(state, at, group, pod, &recorded) {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    let model = Arc::clone(&state.model);
    let vc = &group.key.virtual_cluster;
    let Some(vc) = model.vcs.get(vc) else { return Err(format!("VC {vc} not found")) };
    let first = of.leaves.iter().find(|&&leaf| leaf != NONE).copied().unwrap_or(NONE);
    let chain = model.physical.get(first).chain;
    let roots: Vec<CellIx> = match &group.request.pinned_cell_id {
        Some(id) => vc.pinned.get(id).copied().into_iter().collect(),
        None => vc.preassigned.get(&chain).cloned().unwrap_or_default(),
    };
    for root in roots {
        let descend = |state: &State, _: usize, leaf: CellIx| descend(state, root, leaf);
        match hold_leaves(state, at, group, pod, &descend) {
            Ok(()) => return Ok(()),
            Err(problem) => why = problem,
        }
    }
    Err(format!("{why} (pod on {})", of.node))
}

/// Lets a pod hold its leaves with the virtual leaves that `choose` gives; undoes that if one does not fit.
fn hold_leaves(
    state: &mut State,
    at: GroupIx,
    group: &AffinityGroup,
    pod: usize,
    choose: &dyn Fn(&State, usize, CellIx) -> Result<CellIx, &'static str>,
) -> Result<(), String> {
    let leaves = &group.pods[pod].leaves;
    for (n, &leaf) in leaves.iter().enumerate() {
        if leaf == NONE {
            continue;
        }
        let found = choose(state, n, leaf).and_then(|v| state.bindable(v, leaf).map(|()| v));
        let v = match found {
            Ok(v) => v,
            Err(why) => {
                let_go(state, group, &leaves[..n]);
                return Err(why.to_owned());
            }
        };
        if let Some(group) = state.groups.edit(at)
            && let Some(of) = group.pods.get_mut(pod).and_then(|pod| pod.virtual_leaves.get_mut(n))
        {
            *of = v;
        }
        if group.preempting {
            state.reserve_leaf(leaf, at);
        } else {
            state.use_leaf(leaf, at);
        }
    }
    Ok(())
}

/// The first virtual leaf below `root` that a leaf could be bound to.
fn descend(state: &State, root: CellIx, leaf: CellIx) -> Result<CellIx, &'static str> {
    const TAKEN: &str = "no virtual cell of the virtual cluster is free there";
    let model = &state.model;
    let level = model.virtuals.level(root);
    let same_chain = model.virtuals.get(root).chain == model.physical.get(leaf).chain;
    let physical = model.physical.ancestor(leaf, level).filter(|&cell| state.level(cell) == level);
    let Some(physical) = physical.filter(|_| same_chain) else {
        return Err("the virtual cell is larger than the physical one");
    };
    let bound = state.v2p[root as usize];
    let free = bound == NONE && state.p2v[physical as usize] == NONE;
    if bound != physical && !free {
        return Err(TAKEN);
    }
    let mut v = root;
    while model.virtuals.level(v) > 1 {
        let below = model.physical.ancestor(leaf, model.virtuals.level(v) - 1).unwrap_or(leaf);
        let wanted = state.p2v[below as usize];
        let next = model.children(&model.virtuals, v).find(|&child| match wanted {
            NONE => state.v2p[child as usize] == NONE,
            wanted => child == wanted,
        });
        v = next.ok_or(TAKEN)?;
    }
    Ok(v)
}
