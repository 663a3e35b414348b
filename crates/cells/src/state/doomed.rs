//! Doomed bad cells: preassigned cells for which no healthy physical cell is left.
//!
//! Each is bound to a bad free cell, so that its virtual cluster sees the loss and places nothing there, or on its
//! healthy part. The bindings are derived anew after each change: they depend on the state, not on its history.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::State;
use crate::model::{CellIx, CellModel, NONE};

impl State {
    /// Makes a change, and derives doomed cells anew.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut State) -> R) -> R {
        self.clear_doomed();
        let done = change(self);
        self.derive_doomed();
        done
    }

    fn clear_doomed(&mut self) {
        let model = Arc::clone(&self.model);
        for (v, p) in std::mem::take(&mut self.doomed) {
            self.v2p[v as usize] = NONE;
            self.p2v[p as usize] = NONE;
            self.free.give(&model, p);
            self.count_needed(v, 1);
        }
    }

    fn derive_doomed(&mut self) {
        let model = Arc::clone(&self.model);
        for chain in 0..model.chains.len() as u16 {
            let any_bad = model.chains[chain as usize].tops.iter().any(|&cell| !self.healthy(cell));
            if any_bad && self.needed[chain as usize].iter().any(|&needed| needed > 0) {
                self.doom_chain(&model, chain);
            }
        }
    }

    /// Levels from the top, virtual clusters by name, cells in order of the configuration; until nothing changes, since
    /// a cell that is split out leaves fewer above and below it.
    fn doom_chain(&mut self, model: &CellModel, chain: u16) {
        let mut bad = self.bad_free_cells(model, chain);
        loop {
            let mut changed = false;
            for level in (1..=model.chain(chain).top()).rev() {
                for (vc, name) in model.vcs.keys().enumerate() {
                    while self.vc_needed[vc][chain as usize][level]
                        > self.free.left(model, chain, level) - bad[level].len() as i64
                    {
                        let cell = bad[level].iter().copied().find(|&cell| self.safe_to_take(cell));
                        let preassigned = model.vcs[name].preassigned.get(&chain);
                        let unbound = preassigned.into_iter().flatten().copied().find(|&v| {
                            model.virtuals.level(v) == level && self.v2p[v as usize] == NONE
                        });
                        let (Some(p), Some(v)) = (cell, unbound) else { break };
                        self.doom(model, v, p, &mut bad);
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    fn doom(&mut self, model: &CellModel, v: CellIx, p: CellIx, bad: &mut [BTreeSet<CellIx>]) {
        self.free.take(model, p);
        self.count_needed(v, -1);
        self.v2p[v as usize] = p;
        self.p2v[p as usize] = v;
        self.doomed.insert(v, p);
        for above in model.physical.path(p) {
            bad[model.physical.level(above)].remove(&above);
        }
        let size = model.chain_of(&model.physical, p).level(model.physical.level(p)).size;
        for cells in bad.iter_mut() {
            let below: Vec<CellIx> = cells.range(p..p + size).copied().collect();
            for cell in below {
                cells.remove(&cell);
            }
        }
    }

    /// Bad cells that are free, by level.
    fn bad_free_cells(&self, model: &CellModel, chain: u16) -> Vec<BTreeSet<CellIx>> {
        let top = model.chain(chain).top();
        let mut cells = vec![BTreeSet::new(); top + 1];
        for level in 1..=top {
            for &listed in self.free.list(chain, level) {
                if self.healthy(listed) {
                    continue;
                }
                let size = model.chain(chain).level(level).size;
                for cell in listed..listed + size {
                    if !self.healthy(cell) {
                        cells[model.physical.level(cell)].insert(cell);
                    }
                }
            }
        }
        cells
    }
}
