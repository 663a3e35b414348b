//! Divides pods over nodes.

use std::collections::BTreeSet;

use super::view::{RankedNode, Usable};

/// Steps after which the exact search gives up.
const MAX_STEPS: usize = 200_000;

/// Why pods do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// Not even with bad and unsuggested nodes.
    Insufficient,
    /// Only with this bad or unsuggested node (its number).
    Unusable(usize),
    /// The exact search gave up.
    GaveUp,
}

/// Number of the node of each pod. Sizes are ascending; nodes are ranked, usable ones first.
///
/// The reference's rule comes first: next fit, in ascending order of size. It misses some placements that exist, such as
/// `[2, 2, 3]` on nodes with 3 and 4 free leaves. An exact search finds those.
pub(crate) fn pack(nodes: &[RankedNode], sizes: &[u32]) -> Result<Vec<usize>, Unpacked> {
    let usable = nodes.iter().take_while(|node| node.usable == Usable::Yes).count();
    if let Some(found) = next_fit(&nodes[..usable], sizes) {
        return Ok(found);
    }
    let free = |nodes: &[RankedNode]| -> Vec<u32> { nodes.iter().map(|node| node.free).collect() };
    match exact(&free(&nodes[..usable]), sizes) {
        Exact::Found(found) => return Ok(found),
        Exact::GaveUp => return Err(Unpacked::GaveUp),
        Exact::Impossible => {}
    }
    if usable == nodes.len() {
        return Err(Unpacked::Insufficient);
    }
    let with_all = next_fit(nodes, sizes).or_else(|| match exact(&free(nodes), sizes) {
        Exact::Found(found) => Some(found),
        _ => None,
    });
    match with_all {
        None => Err(Unpacked::Insufficient),
        Some(found) => {
            let first = found.iter().copied().find(|&at| at >= usable);
            Err(first.map_or(Unpacked::Insufficient, Unpacked::Unusable))
        }
    }
}

fn next_fit(nodes: &[RankedNode], sizes: &[u32]) -> Option<Vec<usize>> {
    let mut found = Vec::with_capacity(sizes.len());
    let (mut at, mut picked) = (0, 0);
    while found.len() < sizes.len() {
        let size = sizes[found.len()];
        if nodes.get(at)?.free - picked >= size {
            found.push(at);
            picked += size;
        } else {
            (at, picked) = (at + 1, 0);
        }
    }
    Some(found)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exact {
    Found(Vec<usize>),
    Impossible,
    GaveUp,
}

/// A packing, if one exists. Largest pods first, fullest nodes first. Nodes with equal room are alike, so the search
/// runs over how many nodes have how much room.
pub(crate) fn exact(free: &[u32], sizes: &[u32]) -> Exact {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| sizes[b].cmp(&sizes[a]).then(a.cmp(&b)));
    let sorted: Vec<u32> = order.iter().map(|&pod| sizes[pod]).collect();
    let needed: u64 = sorted.iter().map(|&size| u64::from(size)).sum();
    let largest = free.iter().copied().max().unwrap_or(0);
    if needed > free.iter().map(|&room| u64::from(room)).sum() || sorted.first() > Some(&largest) {
        return Exact::Impossible;
    }
    let mut nodes_with = vec![0u32; largest as usize + 1];
    for &room in free {
        nodes_with[room as usize] += 1;
    }
    let mut search =
        Search { sizes: &sorted, nodes_with, picks: Vec::new(), failed: BTreeSet::new(), steps: 0 };
    match search.run() {
        Some(true) => {}
        Some(false) => return Exact::Impossible,
        None => return Exact::GaveUp,
    }
    // Which node had that much room: the first in order.
    let mut room = free.to_vec();
    let mut found = vec![0; sizes.len()];
    for ((&pod, &size), &pick) in order.iter().zip(&sorted).zip(&search.picks) {
        let Some(at) = room.iter().position(|&room| room == pick) else { return Exact::GaveUp };
        room[at] -= size;
        found[pod] = at;
    }
    Exact::Found(found)
}

struct Search<'a> {
    sizes: &'a [u32],
    /// Number of nodes by room.
    nodes_with: Vec<u32>,
    /// Room of the node that each pod got.
    picks: Vec<u32>,
    /// States that have no solution, by number of pods placed.
    failed: BTreeSet<(usize, Vec<u32>)>,
    steps: usize,
}

impl Search<'_> {
    /// Depth first, without recursion. None if it takes too long.
    fn run(&mut self) -> Option<bool> {
        // The least room to try for the next pod.
        let mut from = 0u32;
        loop {
            if self.picks.len() == self.sizes.len() {
                return Some(true);
            }
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return None;
            }
            let size = self.sizes[self.picks.len()];
            let fresh = from == 0;
            let dead = fresh && self.failed.contains(&(self.picks.len(), self.nodes_with.clone()));
            let next = (from.max(size)..self.nodes_with.len() as u32)
                .find(|&room| !dead && self.nodes_with[room as usize] > 0);
            if let Some(room) = next {
                self.shift(room, room - size);
                self.picks.push(room);
                from = 0;
                continue;
            }
            self.failed.insert((self.picks.len(), self.nodes_with.clone()));
            let Some(room) = self.picks.pop() else { return Some(false) };
            self.shift(room - self.sizes[self.picks.len()], room);
            from = room + 1;
        }
    }

    fn shift(&mut self, from: u32, to: u32) {
        self.nodes_with[from as usize] -= 1;
        self.nodes_with[to as usize] += 1;
    }
}
