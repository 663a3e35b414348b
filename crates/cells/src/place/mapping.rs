//! Physical cells for the virtual cells of a placement.
//!
//! A preassigned cell that is not bound gets a free cell of its level, split out of the smallest free cell that can be
//! split safely. Within it, cells are mapped such that the topology is kept.

use std::collections::{BTreeMap, BTreeSet};

use super::view::Suggested;
use crate::model::{CellIx, CellLevel, LEAF_LEVEL, NONE, OPPORTUNISTIC_PRIORITY};
use crate::state::State;
use crate::state::free;

/// Physical leaf of each virtual leaf, in the order given. None if bad or unsuggested nodes would be needed.
///
/// `large_first` maps the cells that need most first, and to the worst cells that do: a second try when the first fails.
pub(crate) fn map(
    state: &State,
    virtual_leaves: &[CellIx],
    suggested: Suggested<'_>,
    large_first: bool,
) -> Option<Vec<CellIx>> {
    let chain = state.model.virtuals.get(*virtual_leaves.first()?).chain;
    let mut mapper = Mapper {
        state,
        suggested,
        large_first,
        chain,
        bindings: BTreeMap::new(),
        below: BTreeMap::new(),
        counts: state.free.counts(chain),
        needed: state.needed[chain as usize].clone(),
        removed: BTreeSet::new(),
        added: vec![BTreeSet::new(); state.model.chain(chain).top() + 1],
    };
    mapper.run(virtual_leaves)?;
    virtual_leaves.iter().map(|v| mapper.bindings.get(v).copied()).collect()
}

struct Mapper<'a> {
    state: &'a State,
    suggested: Suggested<'a>,
    large_first: bool,
    chain: u16,
    /// Physical leaf of each virtual leaf.
    bindings: BTreeMap<CellIx, CellIx>,
    /// Children to bind of each virtual cell.
    below: BTreeMap<CellIx, Vec<CellIx>>,
    /// Free cells by level, with what this mapping has taken.
    counts: Vec<i64>,
    needed: Vec<i64>,
    removed: BTreeSet<CellIx>,
    added: Vec<BTreeSet<CellIx>>,
}

impl Mapper<'_> {
    fn run(&mut self, virtual_leaves: &[CellIx]) -> Option<()> {
        let (mut preassigned, within) = self.binding_paths(virtual_leaves);
        if self.large_first {
            preassigned.sort_by_key(|&cell| std::cmp::Reverse(self.leaves_to_bind(cell)));
        }
        for cell in preassigned {
            self.allocate(cell)?;
        }
        for cells in within {
            let parent = self.state.model.virtuals.parent(cells[0])?;
            let physical = self.state.v2p[parent as usize];
            if physical == NONE || !self.assign(&cells, physical) {
                return None;
            }
        }
        Some(())
    }

    /// Unbound preassigned cells, and unbound children of bound cells, by parent. Fills `below` and the bound leaves.
    fn binding_paths(&mut self, virtual_leaves: &[CellIx]) -> (Vec<CellIx>, Vec<Vec<CellIx>>) {
        let arena = &self.state.model.virtuals;
        let mut preassigned = Vec::new();
        let mut within: Vec<(CellIx, Vec<CellIx>)> = Vec::new();
        for &leaf in virtual_leaves {
            let bound = self.state.v2p[leaf as usize];
            if bound != NONE {
                self.bindings.insert(leaf, bound);
                continue;
            }
            let mut cell = leaf;
            self.below.entry(leaf).or_default();
            loop {
                let Some(parent) = arena.parent(cell) else {
                    preassigned.push(cell);
                    break;
                };
                if self.state.v2p[parent as usize] != NONE {
                    match within.iter_mut().find(|(of, _)| *of == parent) {
                        Some((_, cells)) => cells.push(cell),
                        None => within.push((parent, vec![cell])),
                    }
                    break;
                }
                let known = self.below.contains_key(&parent);
                self.below.entry(parent).or_default().push(cell);
                if known {
                    break;
                }
                cell = parent;
            }
        }
        (preassigned, within.into_iter().map(|(_, cells)| cells).collect())
    }

    fn leaves_to_bind(&self, cell: CellIx) -> usize {
        match self.below.get(&cell).map(Vec::as_slice) {
            None | Some([]) => 1,
            Some(children) => children.iter().map(|&child| self.leaves_to_bind(child)).sum(),
        }
    }

    /// Finds a free physical cell for an unbound preassigned cell.
    fn allocate(&mut self, preassigned: CellIx) -> Option<()> {
        let level = self.state.model.virtuals.level(preassigned);
        for from in level..=self.state.model.chain(self.chain).top() {
            let mut counts = self.counts.clone();
            let mut needed = self.needed.clone();
            free::split(&self.state.model, self.chain, &mut counts, from, level);
            needed[level] -= 1;
            if counts[from] < 0
                || free::lacking(&self.state.model, self.chain, &counts, &needed).is_some()
            {
                continue;
            }
            if let Some((listed, cell)) = self.find(preassigned, from, level) {
                (self.counts, self.needed) = (counts, needed);
                self.take(listed, cell);
                return Some(());
            }
        }
        None
    }

    /// A listed cell of level `from`, and the cell within it that can be bound. Cells without opportunistic work first.
    fn find(
        &mut self,
        preassigned: CellIx,
        from: CellLevel,
        level: CellLevel,
    ) -> Option<(CellIx, CellIx)> {
        let state = self.state;
        if !self.large_first {
            let idle = state.free.list(self.chain, from).iter().copied();
            let added: Vec<CellIx> = self.added[from].iter().copied().collect();
            let mut added = added.into_iter().peekable();
            let mut idle = idle.peekable();
            while let Some(cell) = next_of(&mut idle, &mut added) {
                if !self.removed.contains(&cell)
                    && self.lent(cell) == 0
                    && self.usable(cell)
                    && let Some(found) = self.within(preassigned, cell, level)
                {
                    return Some((cell, found));
                }
            }
        }
        let mut cells: Vec<CellIx> = state.free.list(self.chain, from).iter().copied().collect();
        cells.extend(&self.added[from]);
        cells.retain(|cell| !self.removed.contains(cell) && self.usable(*cell));
        if self.large_first {
            cells.sort_by_key(|&c| (std::cmp::Reverse(state.bad[c as usize]), self.lent(c), c));
        } else {
            cells.retain(|&cell| self.lent(cell) > 0);
            cells.sort_by_key(|&cell| (self.lent(cell), cell));
        }
        cells.into_iter().find_map(|cell| Some((cell, self.within(preassigned, cell, level)?)))
    }

    /// The cell of `level` in `cell` that can be bound to `preassigned`.
    fn within(&mut self, preassigned: CellIx, cell: CellIx, level: CellLevel) -> Option<CellIx> {
        if self.state.level(cell) == level {
            return self.host(preassigned, cell).then_some(cell);
        }
        let children = self.candidates(cell);
        children.into_iter().find_map(|child| self.within(preassigned, child, level))
    }

    /// Usable children, those with less opportunistic work first.
    fn candidates(&self, cell: CellIx) -> Vec<CellIx> {
        let model = &self.state.model;
        let mut cells: Vec<CellIx> =
            model.children(&model.physical, cell).filter(|&c| self.usable(c)).collect();
        cells.sort_by_key(|&cell| self.lent(cell));
        cells
    }

    /// Leaves of a cell that opportunistic groups use.
    fn lent(&self, cell: CellIx) -> u32 {
        self.state.physical[cell as usize].at(OPPORTUNISTIC_PRIORITY)
    }

    /// Whether a cell is not bound, and healthy and suggested as far as one node; of several nodes, one suggested is enough.
    fn usable(&self, cell: CellIx) -> bool {
        let state = self.state;
        if state.p2v[cell as usize] != NONE {
            return false;
        }
        let single = state.level(cell) <= state.model.chain(self.chain).node_level;
        if single && !state.healthy(cell) {
            return false;
        }
        self.suggested
            .is_none_or(|nodes| state.nodes_of(cell).iter().any(|&node| nodes.contains(node)))
    }

    /// Maps a virtual cell and what is below it to a physical cell.
    fn host(&mut self, virtual_cell: CellIx, cell: CellIx) -> bool {
        if self.state.level(cell) == LEAF_LEVEL {
            self.bindings.insert(virtual_cell, cell);
            return true;
        }
        let children = self.below.get(&virtual_cell).cloned().unwrap_or_default();
        self.assign(&children, cell)
    }

    /// Maps virtual cells to different children of a physical cell.
    ///
    /// Each gets the first child that can host it. If that fails, augmenting paths find an assignment if one exists.
    fn assign(&mut self, cells: &[CellIx], parent: CellIx) -> bool {
        let candidates = self.candidates(parent);
        if candidates.len() < cells.len() {
            return false;
        }
        let mut picked = vec![false; candidates.len()];
        let greedy = cells.iter().all(|&cell| {
            let found =
                (0..candidates.len()).find(|&n| !picked[n] && self.host(cell, candidates[n]));
            found.inspect(|&n| picked[n] = true).is_some()
        });
        if greedy {
            return true;
        }
        let hosts: Vec<Vec<usize>> = cells
            .iter()
            .map(|&cell| {
                (0..candidates.len()).filter(|&n| self.host(cell, candidates[n])).collect()
            })
            .collect();
        let Some(matched) = matching(&hosts, candidates.len()) else { return false };
        cells.iter().zip(matched).all(|(&cell, n)| self.host(cell, candidates[n]))
    }

    fn take(&mut self, listed: CellIx, cell: CellIx) {
        let model = &self.state.model;
        let level = model.physical.level(listed);
        if !self.added[level].remove(&listed) {
            self.removed.insert(listed);
        }
        let mut at = cell;
        while at != listed {
            let Some(parent) = model.physical.parent(at) else { return };
            let siblings = model.children(&model.physical, parent).filter(|&c| c != at);
            self.added[model.physical.level(at)].extend(siblings);
            at = parent;
        }
    }
}

/// The smaller head of two ascending iterators.
fn next_of(
    a: &mut std::iter::Peekable<impl Iterator<Item = CellIx>>,
    b: &mut std::iter::Peekable<impl Iterator<Item = CellIx>>,
) -> Option<CellIx> {
    match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if second < first => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    }
}

/// A different host for each, if possible: bipartite matching by augmenting paths.
fn matching(hosts: &[Vec<usize>], candidates: usize) -> Option<Vec<usize>> {
    fn augment(
        at: usize,
        hosts: &[Vec<usize>],
        of: &mut [Option<usize>],
        visited: &mut [bool],
    ) -> bool {
        for &n in &hosts[at] {
            if std::mem::replace(&mut visited[n], true) {
                continue;
            }
            if of[n].is_none_or(|other| augment(other, hosts, of, visited)) {
                of[n] = Some(at);
                return true;
            }
        }
        false
    }
    let mut of = vec![None; candidates];
    for at in 0..hosts.len() {
        if !augment(at, hosts, &mut of, &mut vec![false; candidates]) {
            return None;
        }
    }
    (0..hosts.len()).map(|at| of.iter().position(|&other| other == Some(at))).collect()
}
