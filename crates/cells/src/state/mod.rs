//! What is in use: leaves with their groups, bindings of virtual to physical cells, free cells, bad nodes.
//!
//! All of it is a function of the configuration, the bad nodes and the groups' placements. The order in which groups
//! came and went leaves no trace.

pub(crate) mod counts;
pub(crate) mod doomed;
pub(crate) mod free;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::counts::LeafCounts;
use self::free::FreeCells;
use crate::group::{AffinityGroup, GroupIx, GroupKey};
use crate::model::{CellIx, CellLevel, CellModel, CellPriority, NONE, OPPORTUNISTIC_PRIORITY};

#[derive(Debug, Clone)]
pub(crate) struct State {
    pub model: Arc<CellModel>,
    /// Used leaves of each physical cell.
    pub physical: Vec<LeafCounts>,
    /// Used leaves of each virtual cell.
    pub virtuals: Vec<LeafCounts>,
    /// The virtual cell that a physical cell is bound to.
    pub p2v: Vec<CellIx>,
    /// The physical cell that a virtual cell is bound to.
    pub v2p: Vec<CellIx>,
    /// Bound children of each virtual cell.
    bound_children: Vec<u32>,
    /// Whether a virtual cell is pinned, and so always bound.
    pinned: Vec<bool>,
    pub free: FreeCells,
    /// Preassigned cells that are not bound, by chain and level.
    pub needed: Vec<Vec<i64>>,
    /// The same of each virtual cluster, in order of name.
    pub vc_needed: Vec<Vec<Vec<i64>>>,
    /// Number of the virtual cluster of each preassigned cell.
    pub owner: BTreeMap<CellIx, usize>,
    /// Group that uses a physical leaf, by leaf number.
    pub using: Vec<Option<GroupIx>>,
    /// Group that reserves a physical leaf, by leaf number.
    pub reserving: Vec<Option<GroupIx>>,
    pub bad_node: Vec<bool>,
    /// Bad nodes of each physical cell.
    pub bad: Vec<u32>,
    /// Preassigned cells that no healthy cell is left for, with the bad cell that stands for it.
    pub doomed: BTreeMap<CellIx, CellIx>,
    pub groups: Groups,
}

/// Groups by name and by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    pub by_key: BTreeMap<GroupKey, GroupIx>,
    slots: Vec<Option<Arc<AffinityGroup>>>,
}

impl Groups {
    pub fn get(&self, key: &GroupKey) -> Option<&AffinityGroup> {
        self.by_key.get(key).and_then(|&at| self.at(at))
    }
    pub fn at(&self, at: GroupIx) -> Option<&AffinityGroup> {
        self.slots.get(at as usize)?.as_deref()
    }
    pub fn edit(&mut self, at: GroupIx) -> Option<&mut AffinityGroup> {
        self.slots.get_mut(at as usize)?.as_mut().map(Arc::make_mut)
    }
    pub fn shared(&self, at: GroupIx) -> Option<Arc<AffinityGroup>> {
        self.slots.get(at as usize)?.clone()
    }
    pub fn insert(&mut self, group: AffinityGroup) -> GroupIx {
        let key = group.key.clone();
        let at = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[at] = Some(Arc::new(group));
        self.by_key.insert(key, at as GroupIx);
        at as GroupIx
    }
    pub fn remove(&mut self, at: GroupIx) -> Option<Arc<AffinityGroup>> {
        let group = self.slots.get_mut(at as usize)?.take()?;
        self.by_key.remove(&group.key);
        Some(group)
    }
    pub fn iter(&self) -> impl Iterator<Item = (GroupIx, &AffinityGroup)> {
        self.by_key.values().filter_map(|&at| self.at(at).map(|group| (at, group)))
    }
}

impl State {
    pub fn new(model: Arc<CellModel>) -> State {
        let (cells, virtual_cells) = (model.physical.len(), model.virtuals.len());
        let levels = || -> Vec<Vec<i64>> {
            model.chains.iter().map(|chain| vec![0; chain.top() + 1]).collect()
        };
        let mut state = State {
            physical: vec![LeafCounts::default(); cells],
            virtuals: vec![LeafCounts::default(); virtual_cells],
            p2v: vec![NONE; cells],
            v2p: vec![NONE; virtual_cells],
            bound_children: vec![0; virtual_cells],
            pinned: vec![false; virtual_cells],
            free: FreeCells::new(&model),
            needed: levels(),
            vc_needed: vec![levels(); model.vcs.len()],
            owner: BTreeMap::new(),
            using: vec![None; model.physical.leaves.len()],
            reserving: vec![None; model.physical.leaves.len()],
            bad_node: vec![false; model.node_names.len()],
            bad: vec![0; cells],
            doomed: BTreeMap::new(),
            groups: Groups::default(),
            model: Arc::clone(&model),
        };
        for (number, vc) in model.vcs.values().enumerate() {
            for &cell in vc.preassigned.values().flatten() {
                state.owner.insert(cell, number);
                state.count_needed(cell, 1);
            }
            for (id, &cell) in &vc.pinned {
                state.owner.insert(cell, number);
                if let Some(&(physical, _)) = model.pinned.get(id) {
                    state.pinned[cell as usize] = true;
                    state.v2p[cell as usize] = physical;
                    state.p2v[physical as usize] = cell;
                    state.free.take(&model, physical);
                }
            }
        }
        state
    }

    pub fn is_pinned(&self, virtual_cell: CellIx) -> bool {
        self.pinned[virtual_cell as usize]
    }

    fn count_needed(&mut self, preassigned: CellIx, change: i64) {
        let of = self.model.virtuals.get(preassigned);
        let (chain, level) = (of.chain as usize, of.level as usize);
        self.needed[chain][level] += change;
        if let Some(&vc) = self.owner.get(&preassigned) {
            self.vc_needed[vc][chain][level] += change;
        }
    }

    /// Leaf number of a physical leaf.
    pub fn leaf_number(&self, leaf: CellIx) -> usize {
        self.model.physical.get(leaf).first_leaf as usize
    }

    /// Whether all nodes of a physical cell are healthy.
    pub fn healthy(&self, cell: CellIx) -> bool {
        self.bad[cell as usize] == 0
    }

    /// Sets the health of a node. Doomed cells must have been cleared.
    pub fn set_node(&mut self, node: u32, bad: bool) {
        if self.bad_node[node as usize] == bad {
            return;
        }
        self.bad_node[node as usize] = bad;
        let model = Arc::clone(&self.model);
        for &cell in &model.node_cells[node as usize] {
            let size = model.chain_of(&model.physical, cell).level(model.physical.level(cell)).size;
            for below in cell..cell + size {
                self.bad[below as usize] = u32::from(bad);
            }
            for above in model.physical.path(cell).skip(1) {
                let count = &mut self.bad[above as usize];
                *count = if bad { *count + 1 } else { count.saturating_sub(1) };
            }
        }
    }

    // ----- bindings

    /// Whether a virtual leaf could be bound to a physical one, and why not.
    pub fn bindable(&self, virtual_leaf: CellIx, leaf: CellIx) -> Result<(), &'static str> {
        let model = &self.model;
        let (mut v, mut p) = (virtual_leaf, leaf);
        loop {
            let bound = self.v2p[v as usize];
            if bound != NONE {
                return if bound == p {
                    Ok(())
                } else {
                    Err("the virtual cell is bound elsewhere")
                };
            }
            if self.p2v[p as usize] != NONE {
                return Err("the physical cell is bound elsewhere");
            }
            match (model.virtuals.parent(v), model.physical.parent(p)) {
                (Some(above_v), Some(above_p)) => (v, p) = (above_v, above_p),
                (Some(_), None) => return Err("the virtual cell is larger than the physical one"),
                (None, _) => return self.allocatable(v, p),
            }
        }
    }

    fn allocatable(&self, preassigned: CellIx, cell: CellIx) -> Result<(), &'static str> {
        let model = &self.model;
        let of = model.physical.get(cell);
        let to = model.virtuals.get(preassigned);
        if (of.chain, of.level) != (to.chain, to.level) {
            return Err("the cells are of different types");
        }
        if self.safe_to_take(cell) {
            Ok(())
        } else if self.free.listed_above(model, cell).is_none() {
            Err("the physical cell is not free")
        } else {
            Err("other virtual clusters would lack cells")
        }
    }

    /// Whether a free cell can be allocated to an unbound preassigned cell, such that all others still fit.
    pub fn safe_to_take(&self, cell: CellIx) -> bool {
        let model = &self.model;
        let Some(listed) = self.free.listed_above(model, cell) else { return false };
        let chain = model.physical.get(cell).chain;
        let level = model.physical.level(cell);
        let mut counts = self.free.counts(chain);
        free::split(model, chain, &mut counts, model.physical.level(listed), level);
        let mut needed = self.needed[chain as usize].clone();
        needed[level] -= 1;
        free::lacking(model, chain, &counts, &needed).is_none()
    }

    fn bind(&mut self, virtual_leaf: CellIx, leaf: CellIx) {
        let model = Arc::clone(&self.model);
        let (mut v, mut p) = (virtual_leaf, leaf);
        while self.v2p[v as usize] == NONE {
            self.v2p[v as usize] = p;
            self.p2v[p as usize] = v;
            match (model.virtuals.parent(v), model.physical.parent(p)) {
                (Some(above_v), Some(above_p)) => {
                    self.bound_children[above_v as usize] += 1;
                    (v, p) = (above_v, above_p);
                }
                _ => {
                    self.free.take(&model, p);
                    self.count_needed(v, -1);
                    return;
                }
            }
        }
    }

    fn unbind(&mut self, virtual_leaf: CellIx) {
        let model = Arc::clone(&self.model);
        let mut v = virtual_leaf;
        while !self.pinned[v as usize] {
            let p = std::mem::replace(&mut self.v2p[v as usize], NONE);
            if p == NONE {
                return;
            }
            self.p2v[p as usize] = NONE;
            match model.virtuals.parent(v) {
                Some(above) => {
                    self.bound_children[above as usize] -= 1;
                    if self.bound_children[above as usize] > 0 {
                        return;
                    }
                    v = above;
                }
                None => {
                    self.free.give(&model, p);
                    self.count_needed(v, 1);
                    return;
                }
            }
        }
    }

    // ----- leaves

    /// Gives a leaf to a holder: with a virtual leaf at its priority, else as opportunistic.
    fn attach(&mut self, leaf: CellIx, virtual_leaf: Option<CellIx>, priority: CellPriority) {
        let model = Arc::clone(&self.model);
        let priority = if virtual_leaf.is_some() { priority } else { OPPORTUNISTIC_PRIORITY };
        for cell in model.physical.path(leaf) {
            self.physical[cell as usize].add(priority);
        }
        if let Some(virtual_leaf) = virtual_leaf {
            for cell in model.virtuals.path(virtual_leaf) {
                self.virtuals[cell as usize].add(priority);
            }
            self.bind(virtual_leaf, leaf);
        }
    }

    /// Takes a leaf from its holder.
    fn detach(&mut self, leaf: CellIx) {
        let model = Arc::clone(&self.model);
        let priority = self.physical[leaf as usize].top();
        for cell in model.physical.path(leaf) {
            self.physical[cell as usize].remove(priority);
        }
        let virtual_leaf = self.p2v[leaf as usize];
        if virtual_leaf != NONE && priority >= 0 {
            for cell in model.virtuals.path(virtual_leaf) {
                self.virtuals[cell as usize].remove(priority);
            }
            self.unbind(virtual_leaf);
        }
    }

    fn attach_to(&mut self, leaf: CellIx, group: GroupIx) {
        let (virtual_leaf, priority) = match self.groups.at(group) {
            Some(group) => (group.virtual_leaf(leaf), group.request.priority),
            None => (None, OPPORTUNISTIC_PRIORITY),
        };
        self.attach(leaf, virtual_leaf, priority);
    }

    /// A group begins to use a leaf.
    pub fn use_leaf(&mut self, leaf: CellIx, group: GroupIx) {
        let at = self.leaf_number(leaf);
        self.using[at] = Some(group);
        if self.reserving[at].is_none() {
            self.attach_to(leaf, group);
        }
    }

    /// The group that uses a leaf has gone.
    pub fn release_leaf(&mut self, leaf: CellIx) {
        let at = self.leaf_number(leaf);
        if self.using[at].take().is_some() && self.reserving[at].is_none() {
            self.detach(leaf);
        }
    }

    /// A preempting group reserves a leaf: it is its holder from now on.
    pub fn reserve_leaf(&mut self, leaf: CellIx, group: GroupIx) {
        let at = self.leaf_number(leaf);
        if self.using[at].is_some() {
            self.detach(leaf);
        }
        self.reserving[at] = Some(group);
        self.attach_to(leaf, group);
    }

    /// A reservation ends. The leaf goes back to the group that uses it, if any.
    pub fn unreserve_leaf(&mut self, leaf: CellIx) {
        let at = self.leaf_number(leaf);
        if self.reserving[at].take().is_some() {
            self.detach(leaf);
        }
        if let Some(group) = self.using[at] {
            self.attach_to(leaf, group);
        }
    }

    /// The reserver of a leaf that nobody uses any more begins to use it.
    pub fn occupy_leaf(&mut self, leaf: CellIx) {
        let at = self.leaf_number(leaf);
        if let (Some(group), None) = (self.reserving[at], self.using[at]) {
            self.reserving[at] = None;
            self.using[at] = Some(group);
        }
    }

    /// Changes what a group holds, with all its leaves taken from it meanwhile.
    pub fn change_held<R>(
        &mut self,
        group: GroupIx,
        change: impl FnOnce(&mut AffinityGroup) -> R,
    ) -> Option<R> {
        let held = self.held_by(group);
        for &leaf in &held {
            self.detach(leaf);
        }
        let done = self.groups.edit(group).map(change);
        for &leaf in &held {
            self.attach_to(leaf, group);
        }
        done
    }

    /// Leaves of which a group is the holder.
    pub fn held_by(&self, group: GroupIx) -> Vec<CellIx> {
        let Some(of) = self.groups.at(group) else { return Vec::new() };
        of.leaves().filter(|&leaf| self.holder(leaf) == Some(group)).collect()
    }

    /// The reserver of a leaf, else its user.
    pub fn holder(&self, leaf: CellIx) -> Option<GroupIx> {
        let at = self.leaf_number(leaf);
        self.reserving[at].or(self.using[at])
    }

    /// State of a leaf: who uses it, who reserves it.
    pub fn occupants(&self, leaf: CellIx) -> (Option<GroupIx>, Option<GroupIx>) {
        let at = self.leaf_number(leaf);
        (self.using[at], self.reserving[at])
    }

    /// The physical cell that a virtual cell shows: the one that it is bound to, or a bad one that it stands for.
    ///
    /// Below a bound cell, physical cells that are bad and not bound are shown by the first virtual cells that are not
    /// bound, in order, so that the virtual cluster sees them.
    pub fn shown(&self, cell: CellIx) -> Option<CellIx> {
        let bound = self.v2p[cell as usize];
        if bound != NONE {
            return Some(bound);
        }
        let model = &self.model;
        let parent = model.virtuals.parent(cell)?;
        let above = self.shown(parent)?;
        if self.healthy(above) {
            return None;
        }
        let unbound = |&c: &CellIx| self.v2p[c as usize] == NONE;
        let at = model.children(&model.virtuals, parent).filter(unbound).position(|c| c == cell)?;
        model
            .children(&model.physical, above)
            .filter(|&c| !self.healthy(c) && self.p2v[c as usize] == NONE)
            .nth(at)
    }

    /// Health as the virtual cluster sees it.
    pub fn virtual_healthy(&self, cell: CellIx) -> bool {
        self.shown(cell).is_none_or(|cell| self.healthy(cell))
    }

    /// Names of the nodes of a physical cell.
    pub fn nodes_of(&self, cell: CellIx) -> Vec<&str> {
        let model = &self.model;
        let level = model.chain_of(&model.physical, cell).node_level;
        if model.physical.level(cell) <= level {
            return vec![&model.node_names[model.physical.get(cell).node as usize]];
        }
        let size = model.chain_of(&model.physical, cell).level(model.physical.level(cell)).size;
        (cell..cell + size)
            .filter(|&c| model.physical.level(c) == level)
            .map(|c| model.node_names[model.physical.get(c).node as usize].as_str())
            .collect()
    }

    pub fn level(&self, cell: CellIx) -> CellLevel {
        self.model.physical.level(cell)
    }
}
