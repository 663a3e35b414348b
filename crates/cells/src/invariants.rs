//! What must hold after every change: I1 to I10 of the reference, `hived.md` §3.10.

use std::collections::BTreeSet;

use crate::model::{CellIx, FREE_PRIORITY, NONE};
use crate::scheduler::CellScheduler;
use crate::state::State;

impl CellScheduler {
    /// Where two schedulers differ, other than in how they came about. It walks over all cells: for tests.
    pub fn difference(&self, other: &CellScheduler) -> Option<String> {
        let (a, b) = (&self.state, &other.state);
        let key = |state: &State, at: Option<u32>| {
            at.and_then(|at| state.groups.at(at)).map(|group| group.key.clone())
        };
        for &leaf in &a.model.physical.leaves {
            let of = |state: &State| {
                let (user, reserver) = state.occupants(leaf);
                (key(state, user), key(state, reserver))
            };
            if of(a) != of(b) {
                return Some(format!(
                    "{}: {:?}, {:?}",
                    a.model.physical.address(leaf),
                    of(a),
                    of(b)
                ));
            }
        }
        let parts = [
            ("bindings", a.p2v == b.p2v && a.v2p == b.v2p),
            ("counts", a.physical == b.physical && a.virtuals == b.virtuals),
            ("free cells", a.free == b.free),
            ("needed cells", a.needed == b.needed && a.vc_needed == b.vc_needed),
            ("health", a.bad == b.bad),
            ("doomed cells", a.doomed == b.doomed),
        ];
        if let Some((what, _)) = parts.iter().find(|(_, same)| !same) {
            return Some((*what).to_owned());
        }
        let (a, b) = (self.records(), other.records());
        let differ = a.iter().zip(&b).find(|(a, b)| a != b);
        differ.map(|(a, b)| format!("records: {a:?}, {b:?}"))
    }

    /// Everything that is wrong, each with the number of its invariant. It walks over all cells: for tests.
    pub fn violations(&self) -> Vec<String> {
        let mut found = Found { state: &self.state, all: Vec::new() };
        found.leaves();
        found.groups();
        found.bindings();
        found.counts();
        found.free_cells();
        for (at, group) in self.state.groups.iter() {
            let reserved =
                group.leaves().any(|leaf| self.state.occupants(leaf).1.is_some_and(|by| by != at));
            let being =
                self.group_state(&group.key) == Some(crate::AffinityGroupState::BeingPreempted);
            if being != reserved {
                found.all.push(format!(
                    "I8: {} is BeingPreempted: {being}, reserved: {reserved}",
                    group.key
                ));
            }
        }
        found.all
    }
}

struct Found<'a> {
    state: &'a State,
    all: Vec<String>,
}

impl Found<'_> {
    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.all.push(what());
        }
    }

    /// I1, I2, I7: a leaf's groups exist, are in the right state and have the leaf; its priority is its holder's.
    fn leaves(&mut self) {
        let state = self.state;
        let name = |cell| state.model.physical.address(cell);
        for &leaf in &state.model.physical.leaves {
            let (user, reserver) = state.occupants(leaf);
            for (at, preempting) in [(user, false), (reserver, true)] {
                let Some(at) = at else { continue };
                let right = state.groups.at(at).is_some_and(|group| {
                    group.preempting == preempting && group.leaves().any(|own| own == leaf)
                });
                self.check(right, || {
                    format!("I1: {} has a group that does not have it", name(leaf))
                });
            }
            let holder = reserver.or(user).and_then(|at| state.groups.at(at));
            let priority = holder.map_or(FREE_PRIORITY, |group| group.priority());
            let is = state.physical[leaf as usize].top();
            self.check(is == priority, || {
                format!("I2: {} has priority {is}, its holder {priority}", name(leaf))
            });
        }
    }

    /// I7, I9, I10: a group has all its leaves, once, and each is bound to the virtual leaf that the group names.
    fn groups(&mut self) {
        let state = self.state;
        let name = |cell| state.model.physical.address(cell);
        for (at, group) in state.groups.iter() {
            let mut own = BTreeSet::new();
            let whole = group.pods.len() == group.request.pod_count();
            self.check(whole, || format!("I9: {} has not all its pods", group.key));
            let nodes = group.pods.iter().all(|pod| pod.leaves.len() == pod.devices.len());
            self.check(nodes, || format!("I9: {} has a pod without devices", group.key));
            for leaf in group.leaves() {
                self.check(own.insert(leaf), || {
                    format!("I7: {} has {} twice", group.key, name(leaf))
                });
                let (user, reserver) = state.occupants(leaf);
                let holds = if group.preempting { reserver } else { user };
                self.check(holds == Some(at), || {
                    format!("I1: {} is not held by {}", name(leaf), group.key)
                });
                if state.holder(leaf) == Some(at) && group.guaranteed() {
                    let v = group.virtual_leaf(leaf).unwrap_or(NONE);
                    self.check(v != NONE && state.p2v[leaf as usize] == v, || {
                        format!(
                            "I10: {} of {} is not bound to its virtual leaf",
                            name(leaf),
                            group.key
                        )
                    });
                }
            }
        }
    }

    /// I4: bindings are mutual, of one level and chain, and parents of bound cells are bound to each other.
    fn bindings(&mut self) {
        let state = self.state;
        let name = |cell| state.model.physical.address(cell);
        let model = &state.model;
        for (v, &p) in state.v2p.iter().enumerate() {
            if p == NONE {
                continue;
            }
            let v = v as CellIx;
            self.check(state.p2v[p as usize] == v, || format!("I4: {} is not bound back", name(p)));
            let (of_v, of_p) = (model.virtuals.get(v), model.physical.get(p));
            self.check((of_v.chain, of_v.level) == (of_p.chain, of_p.level), || {
                format!("I4: {} is bound to another level", name(p))
            });
            if let Some(above) = model.virtuals.parent(v) {
                let bound = state.v2p[above as usize];
                self.check(Some(bound) == model.physical.parent(p), || {
                    format!("I4: the parents of {} are not bound", name(p))
                });
            }
            let needless = state.virtuals[v as usize].total() == 0
                && !state.doomed.contains_key(&v)
                && !state.is_pinned(model.virtuals.get(v).root);
            self.check(!needless, || format!("I4: {} is bound for nothing", name(p)));
        }
        for (p, &v) in state.p2v.iter().enumerate() {
            let mutual = v == NONE || state.v2p[v as usize] == p as CellIx;
            self.check(mutual, || format!("I4: {} is bound one way", name(p as CellIx)));
        }
    }

    /// I5: counts of a cell are the sums of its children's, so that its priority is the highest of theirs.
    fn counts(&mut self) {
        let state = self.state;
        let model = &state.model;
        for (arena, counts, kind) in [
            (&model.physical, &state.physical, "physical"),
            (&model.virtuals, &state.virtuals, "virtual"),
        ] {
            for cell in 0..arena.len() as CellIx {
                let children = model.children(arena, cell);
                if children.len() == 0 {
                    continue;
                }
                let mut total = 0;
                let mut top = FREE_PRIORITY;
                for child in children {
                    total += counts[child as usize].total();
                    top = top.max(counts[child as usize].top());
                }
                let own = &counts[cell as usize];
                self.check(own.total() == total && own.top() == top, || {
                    format!("I5: {kind} cell {} differs from its children", arena.address(cell))
                });
            }
        }
    }

    /// I3, I6: what virtual clusters have not bound still fits; free and allocated cells make up the chain.
    fn free_cells(&mut self) {
        let state = self.state;
        let name = |cell| state.model.physical.address(cell);
        let model = &state.model;
        for (n, chain) in model.chains.iter().enumerate() {
            let at = n as u16;
            let lacking = state.free.lacking(model, at, &state.needed[n]);
            self.check(lacking.is_none(), || format!("I3: chain {} lacks {lacking:?}", chain.name));
            let mut covered = BTreeSet::new();
            let allocated = state.v2p.iter().enumerate().filter(|&(v, &p)| {
                p != NONE
                    && model.virtuals.parent(v as CellIx).is_none()
                    && model.physical.get(p).chain == at
            });
            let mut cells: Vec<CellIx> = allocated.map(|(_, &p)| p).collect();
            for level in 1..=chain.top() {
                let left = state.free.left(model, at, level);
                let needed = state.needed[n][level];
                self.check(left >= needed, || format!("I3: {left} of {needed} at level {level}"));
                cells.extend(state.free.list(at, level));
            }
            for cell in cells {
                for leaf in model.leaves(&model.physical, cell) {
                    self.check(covered.insert(leaf), || {
                        format!("I6: {} is listed twice", name(cell))
                    });
                }
            }
            let total = chain.tops.len() * chain.level(chain.top()).leaves as usize;
            self.check(covered.len() == total, || format!("I6: chain {} has a gap", chain.name));
        }
    }
}
