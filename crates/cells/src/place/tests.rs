//! Properties of placement: the linear search for leaves, and the packing.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::leaves::select;
use super::packing::{Exact, exact};
use crate::CellConfig;
use crate::model::{Arena, CellIx, CellModel};

/// One node: levels of fan-out below it.
fn node(fan_outs: &[u32]) -> CellModel {
    let mut types = String::new();
    for (n, fan_out) in fan_outs.iter().enumerate() {
        let node = n + 1 == fan_outs.len();
        types += &format!(
            "    L{}: {{childCellType: L{n}, childCellNumber: {fan_out}, isNodeLevel: {node}}}\n",
            n + 1
        );
    }
    let text = format!(
        "physicalCluster:\n  cellTypes:\n{types}  physicalCells: [{{cellType: L{}}}]\n",
        fan_outs.len()
    );
    CellConfig::parse(&text).expect("it can be read").validate().expect("it is legal")
}

fn common(arena: &Arena, cells: &[CellIx]) -> usize {
    (1..)
        .find(|&level| {
            let above: BTreeSet<_> =
                cells.iter().map(|&cell| arena.ancestor(cell, level)).collect();
            above.len() == 1
        })
        .expect("the root is common")
}

/// The reference's rule: of all combinations in order of their numbers, the first with the lowest common ancestor.
fn exhaustive(arena: &Arena, available: &[CellIx], count: usize) -> Option<Vec<CellIx>> {
    fn combine(
        arena: &Arena,
        rest: &[CellIx],
        count: usize,
        picked: &mut Vec<CellIx>,
        best: &mut Option<(usize, Vec<CellIx>)>,
    ) {
        if picked.len() == count {
            let level = common(arena, picked);
            if best.as_ref().is_none_or(|(lowest, _)| level < *lowest) {
                *best = Some((level, picked.clone()));
            }
            return;
        }
        for (n, &cell) in rest.iter().enumerate() {
            picked.push(cell);
            combine(arena, &rest[n + 1..], count, picked, best);
            picked.pop();
        }
    }
    let mut best = None;
    combine(arena, available, count, &mut Vec::new(), &mut best);
    best.map(|(_, cells)| cells)
}

/// Whether pods fit: every division is tried.
fn fits(free: &mut Vec<u32>, sizes: &[u32]) -> bool {
    let Some((&size, rest)) = sizes.split_first() else { return true };
    (0..free.len()).any(|at| {
        let room = free[at];
        if room < size {
            return false;
        }
        free[at] -= size;
        let found = fits(free, rest);
        free[at] = room;
        found
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Free leaves come first, then preemptible ones: the list is two ascending runs.
    #[test]
    fn select_equals_exhaustive_search(
        shape in 0usize..4,
        mut uses in proptest::collection::vec(0u8..3, 12),
        count in 1usize..6,
    ) {
        let fan_outs: [&[u32]; 4] = [&[2, 2, 2], &[3, 2], &[8], &[2, 3, 2]];
        let model = node(fan_outs[shape]);
        let leaves = &model.physical.leaves;
        uses.truncate(leaves.len());
        let of = |wanted: u8| leaves.iter().zip(&uses).filter(move |&(_, &is)| is == wanted).map(|(&leaf, _)| leaf);
        let mut available: Vec<CellIx> = of(0).chain(of(1)).collect();
        let before = available.clone();
        let expected = exhaustive(&model.physical, &available, count);
        let found = select(&model.physical, &mut available, count);
        prop_assert_eq!(&found, &expected);
        let taken: BTreeSet<CellIx> = found.into_iter().flatten().collect();
        let left: Vec<CellIx> = before.into_iter().filter(|leaf| !taken.contains(leaf)).collect();
        prop_assert_eq!(available, left);
    }

    #[test]
    fn packing_equals_exhaustive_search(
        mut free in proptest::collection::vec(0u32..9, 1..6),
        mut sizes in proptest::collection::vec(1u32..9, 1..7),
    ) {
        sizes.sort_unstable();
        match exact(&free, &sizes) {
            Exact::Found(found) => {
                for (&at, &size) in found.iter().zip(&sizes) {
                    prop_assert!(free[at] >= size);
                    free[at] -= size;
                }
                prop_assert_eq!(found.len(), sizes.len());
            }
            Exact::Impossible => prop_assert!(!fits(&mut free, &sizes)),
            Exact::GaveUp => prop_assert!(false, "it gave up"),
        }
    }
}
