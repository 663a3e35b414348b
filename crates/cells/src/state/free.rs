//! Free cells as a buddy system: a free cell is listed where its parent is not wholly free.
//!
//! The lists are sets in order of the configuration. They depend on what is allocated, not on the order in which it
//! was allocated.

use std::collections::BTreeSet;

use crate::model::{CellIx, CellLevel, CellModel};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FreeCells {
    /// By chain and level.
    lists: Vec<Vec<BTreeSet<CellIx>>>,
}

impl FreeCells {
    pub fn new(model: &CellModel) -> FreeCells {
        let lists = model.chains.iter().map(|chain| {
            let mut levels = vec![BTreeSet::new(); chain.top() + 1];
            levels[chain.top()] = chain.tops.iter().copied().collect();
            levels
        });
        FreeCells { lists: lists.collect() }
    }

    pub fn list(&self, chain: u16, level: CellLevel) -> &BTreeSet<CellIx> {
        &self.lists[chain as usize][level]
    }

    /// The listed cell that is `cell` or contains it.
    pub fn listed_above(&self, model: &CellModel, cell: CellIx) -> Option<CellIx> {
        let lists = &self.lists[model.physical.get(cell).chain as usize];
        model.physical.path(cell).find(|&cell| lists[model.physical.level(cell)].contains(&cell))
    }

    /// Allocates a cell, and splits what contains it. False if no free cell contains it.
    pub fn take(&mut self, model: &CellModel, cell: CellIx) -> bool {
        let Some(listed) = self.listed_above(model, cell) else { return false };
        let lists = &mut self.lists[model.physical.get(cell).chain as usize];
        lists[model.physical.level(listed)].remove(&listed);
        let mut at = cell;
        while at != listed {
            let Some(parent) = model.physical.parent(at) else { break };
            let level = model.physical.level(at);
            lists[level].extend(model.children(&model.physical, parent).filter(|&c| c != at));
            at = parent;
        }
        true
    }

    /// Frees an allocated cell, and merges it with its siblings as far as they are free.
    pub fn give(&mut self, model: &CellModel, cell: CellIx) {
        let lists = &mut self.lists[model.physical.get(cell).chain as usize];
        let mut at = cell;
        loop {
            let level = model.physical.level(at);
            let parent = model.physical.parent(at).filter(|&parent| {
                model
                    .children(&model.physical, parent)
                    .all(|c| c == at || lists[level].contains(&c))
            });
            let Some(parent) = parent else {
                lists[level].insert(at);
                return;
            };
            for child in model.children(&model.physical, parent) {
                lists[level].remove(&child);
            }
            at = parent;
        }
    }

    /// Number of listed cells, by level.
    pub fn counts(&self, chain: u16) -> Vec<i64> {
        self.lists[chain as usize].iter().map(|list| list.len() as i64).collect()
    }

    /// Cells of a level that are free, listed or within a listed one.
    pub fn left(&self, model: &CellModel, chain: u16, level: CellLevel) -> i64 {
        let of = model.chain(chain);
        let mut left = 0;
        for at in (level..=of.top()).rev() {
            left *= i64::from(if at < of.top() { of.level(at + 1).fan_out } else { 1 });
            left += self.list(chain, at).len() as i64;
        }
        left
    }

    /// The highest level at which the free cells cannot give all that is needed: level, needed, available.
    pub fn lacking(
        &self,
        model: &CellModel,
        chain: u16,
        needed: &[i64],
    ) -> Option<(CellLevel, i64, i64)> {
        lacking(model, chain, &self.counts(chain), needed)
    }
}

/// Whether `counts` free cells by level can be split into `needed` cells by level: the safety check. It gives the highest
/// level that lacks cells, with what is needed and available.
///
/// What is left at a level can be split into cells of the next. This is exact for cells of uniform fan-out.
pub(crate) fn lacking(
    model: &CellModel,
    chain: u16,
    counts: &[i64],
    needed: &[i64],
) -> Option<(CellLevel, i64, i64)> {
    let of = model.chain(chain);
    let mut available = 0i64;
    for level in (1..=of.top()).rev() {
        available = available.saturating_add(counts[level]);
        if available < needed[level] {
            return Some((level, needed[level], available));
        }
        let fan_out = i64::from(of.level(level).fan_out);
        available = (available - needed[level]).saturating_mul(fan_out);
    }
    None
}

/// Changes counts as if a cell of `level` were split out of a listed cell of level `from`.
pub(crate) fn split(
    model: &CellModel,
    chain: u16,
    counts: &mut [i64],
    from: CellLevel,
    level: CellLevel,
) {
    counts[from] -= 1;
    for (at, count) in counts.iter_mut().enumerate().take(from).skip(level) {
        *count += i64::from(model.chain(chain).level(at + 1).fan_out) - 1;
    }
}
