//! Places nested groups: V2's `withinOneCell`, and pods that ask for whole cells of a type.

use std::cmp::Reverse;

use super::leaves;
use super::view::{RankedNode, Side, Usable};
use crate::model::{CellIx, CellLevel, CellPriority, FREE_PRIORITY, LEAF_LEVEL};
use crate::request::{GroupRequest, NestedGroup};

/// Steps after which the search with backtracking gives up.
const MAX_STEPS: usize = 20_000;
/// Most pods and groups for which it is tried: it is recursive.
const MAX_DEPTH: usize = 400;

/// Cells of each pod, by member.
pub(crate) type PlacedLeaves = Vec<Vec<Vec<CellIx>>>;

/// Places a nested group at `priority`: the reference's greedy rule, then a search with backtracking.
///
/// Pods and child groups are taken in descending order of leaves. Cells that can contain a group are tried in order:
/// healthy, lower level, more used, less used by higher priorities, order of the configuration.
pub(crate) fn place(
    side: Side<'_>,
    nodes: &[CellIx],
    request: &GroupRequest,
    group: &NestedGroup,
    priority: CellPriority,
) -> Result<PlacedLeaves, String> {
    let first = nodes.first().ok_or("insufficient capacity")?;
    let chain = side.model().chain_of(side.arena(), *first);
    let level_of = |cell_type: &str| chain.level_of(cell_type);
    let mut members = Vec::new();
    for member in &request.members {
        let level = match &member.cell_type {
            None => LEAF_LEVEL,
            Some(cell_type) => level_of(cell_type)
                .filter(|&level| level <= chain.node_level)
                .ok_or_else(|| format!("no cells of type {cell_type} on a node"))?,
        };
        members.push((level, member.cells as usize, member.pods as usize));
    }
    let mut search = Search {
        side,
        roots: roots(&side, nodes),
        nodes: nodes.iter().map(|&cell| side.node(cell, priority)).collect(),
        priority,
        members,
        taken: std::collections::BTreeSet::new(),
        placed: vec![Vec::new(); request.members.len()],
        unusable: None,
        steps: 0,
    };
    rank(&mut search.nodes);
    let root = search.resolve(group, &level_of)?;
    if search.greedy(&root, None) {
        return Ok(search.placed);
    }
    search.clear();
    if root.size() <= MAX_DEPTH
        && search.solve(Agenda::Group { group: &root, within: None, rest: None })
    {
        return Ok(search.placed);
    }
    Err(match search.unusable {
        Some(cell) => format!("have to use at least one bad cell {}", side.address(cell)),
        None => "insufficient capacity".to_owned(),
    })
}

fn rank(nodes: &mut [RankedNode]) {
    nodes.sort_by_key(|node| (node.usable, Reverse(node.same), node.higher));
}

/// Roots of what the nodes belong to.
fn roots(side: &Side<'_>, nodes: &[CellIx]) -> Vec<CellIx> {
    let mut roots: Vec<CellIx> = nodes.iter().map(|&node| side.arena().get(node).root).collect();
    roots.dedup();
    roots.sort_unstable();
    roots.dedup();
    roots
}

/// A group with levels in place of names, its children sorted.
struct Resolved {
    within: Option<CellLevel>,
    member: Option<usize>,
    leaves: usize,
    pods: usize,
    children: Vec<Resolved>,
}

impl Resolved {
    fn size(&self) -> usize {
        1 + self.pods + self.children.iter().map(Resolved::size).sum::<usize>()
    }
}

/// What is still to be placed, for the search with backtracking.
#[derive(Clone, Copy)]
enum Agenda<'a> {
    Group {
        group: &'a Resolved,
        within: Option<CellIx>,
        rest: Option<&'a Agenda<'a>>,
    },
    Pods {
        member: usize,
        left: usize,
        hosts: &'a [CellIx],
        from: usize,
        rest: Option<&'a Agenda<'a>>,
    },
}

struct Search<'a> {
    side: Side<'a>,
    roots: Vec<CellIx>,
    /// Ranked.
    nodes: Vec<RankedNode>,
    priority: CellPriority,
    /// Level, cells per pod, pods.
    members: Vec<(CellLevel, usize, usize)>,
    /// Leaves given to pods of this group.
    taken: std::collections::BTreeSet<CellIx>,
    placed: PlacedLeaves,
    /// A bad cell that was passed over.
    unusable: Option<CellIx>,
    steps: usize,
}

impl<'a> Search<'a> {
    fn clear(&mut self) {
        self.taken.clear();
        self.placed.iter_mut().for_each(Vec::clear);
    }

    fn resolve(
        &self,
        group: &NestedGroup,
        level_of: &dyn Fn(&str) -> Option<CellLevel>,
    ) -> Result<Resolved, String> {
        let within = match &group.within_one_cell {
            None => None,
            Some(cell_type) => Some(level_of(cell_type).ok_or_else(|| {
                format!("no matched cells in vc, unknown withinOneCell {cell_type}")
            })?),
        };
        let mut children = Vec::new();
        for child in &group.children {
            children.push(self.resolve(child, level_of)?);
        }
        children.sort_by_key(|child: &Resolved| Reverse(child.leaves));
        let pods = group.member.map_or(0, |member| self.members[member].2);
        let own = group.member.map_or(0, |member| {
            let (level, cells, pods) = self.members[member];
            let chain = self.side.model().chain_of(self.side.arena(), self.roots[0]);
            chain.level(level).leaves as usize * cells * pods
        });
        let leaves = own + children.iter().map(|child| child.leaves).sum::<usize>();
        Ok(Resolved { within, member: group.member, leaves, pods, children })
    }

    /// Cells that can contain a group; one none stands for the whole chain.
    fn containers(&mut self, group: &Resolved, within: Option<CellIx>) -> Vec<Option<CellIx>> {
        let Some(level) = group.within else { return vec![within] };
        let side = self.side;
        let below = match within {
            Some(cell) => vec![cell],
            None => self.roots.clone(),
        };
        let mut cells = Vec::new();
        for cell in below {
            if side.level(cell) <= level {
                cells.push(cell);
                continue;
            }
            let chain = side.model().chain_of(side.arena(), cell);
            let size = chain.level(side.level(cell)).size;
            cells.extend((cell..cell + size).filter(|&c| side.level(c) == level));
        }
        let mut views: Vec<(CellLevel, RankedNode)> =
            cells.iter().map(|&cell| (side.level(cell), side.node(cell, self.priority))).collect();
        views.retain(|(_, view)| view.free as usize >= group.leaves);
        let at_most_one_node = |level| {
            let chain = side.model().chain_of(side.arena(), self.roots[0]);
            level <= chain.node_level
        };
        views.sort_by_key(|(level, view)| (view.usable, *level, Reverse(view.same), view.higher));
        if let Some((_, bad)) = views
            .iter()
            .find(|(level, view)| at_most_one_node(*level) && view.usable != Usable::Yes)
        {
            self.unusable = Some(bad.cell);
        }
        views.retain(|(level, view)| view.usable == Usable::Yes || !at_most_one_node(*level));
        views.into_iter().map(|(_, view)| Some(view.cell)).collect()
    }

    /// Where pods of a container can be: itself if it is part of a node, else its usable nodes.
    fn hosts(&mut self, within: Option<CellIx>) -> Vec<CellIx> {
        let side = self.side;
        let mut hosts = Vec::new();
        if let Some(cell) = within {
            let chain = side.model().chain_of(side.arena(), cell);
            if side.level(cell) <= chain.node_level {
                return vec![cell];
            }
        }
        for node in &self.nodes {
            let inside = within.is_none_or(|cell| {
                side.arena().ancestor(node.cell, side.level(cell)) == Some(cell)
            });
            if inside && node.usable == Usable::Yes {
                hosts.push(node.cell);
            } else if inside && node.free > 0 {
                self.unusable.get_or_insert(node.cell);
            }
        }
        hosts
    }

    /// Cells for a pod of `member` on `host`.
    fn pick(&self, host: CellIx, member: usize) -> Option<Vec<CellIx>> {
        let (level, count, _) = self.members[member];
        let mut free = Vec::new();
        let mut lower = Vec::new();
        self.available(host, level, &mut free, &mut lower);
        free.extend(lower);
        leaves::select(self.side.arena(), &mut free, count)
    }

    /// Cells of `level` below `cell`, those in more used cells first.
    fn available(
        &self,
        cell: CellIx,
        level: CellLevel,
        free: &mut Vec<CellIx>,
        lower: &mut Vec<CellIx>,
    ) {
        let side = &self.side;
        if side.level(cell) > level {
            let mut children: Vec<CellIx> = side.children(cell).collect();
            children.sort_by_key(|&child| Reverse(side.counts(child).from(self.priority)));
            for child in children {
                self.available(child, level, free, lower);
            }
        } else if side.level(cell) == level {
            let top = side.counts(cell).top();
            let untaken = side.leaf_cells(cell).iter().all(|leaf| !self.taken.contains(leaf));
            if untaken && top == FREE_PRIORITY {
                free.push(cell);
            } else if untaken && top < self.priority {
                lower.push(cell);
            }
        }
    }

    fn put(&mut self, member: usize, cells: Vec<CellIx>) {
        for &cell in &cells {
            self.taken.extend(self.side.leaf_cells(cell));
        }
        self.placed[member].push(cells);
    }

    fn undo(&mut self, member: usize) {
        for cell in self.placed[member].pop().unwrap_or_default() {
            for leaf in self.side.leaf_cells(cell) {
                self.taken.remove(leaf);
            }
        }
    }

    /// The reference's rule: next fit within a container, no way back but to the next container.
    fn greedy(&mut self, group: &Resolved, within: Option<CellIx>) -> bool {
        for container in self.containers(group, within) {
            let before: Vec<usize> = self.placed.iter().map(Vec::len).collect();
            let done = self.greedy_pods(group, container)
                && group.children.iter().all(|child| self.greedy(child, container));
            if done {
                return true;
            }
            for (member, &count) in before.iter().enumerate() {
                while self.placed[member].len() > count {
                    self.undo(member);
                }
            }
        }
        false
    }

    fn greedy_pods(&mut self, group: &Resolved, container: Option<CellIx>) -> bool {
        let Some(member) = group.member else { return true };
        let hosts = self.hosts(container);
        let mut left = group.pods;
        for host in hosts {
            while left > 0 {
                let Some(cells) = self.pick(host, member) else { break };
                self.put(member, cells);
                left -= 1;
            }
        }
        left == 0
    }

    fn solve(&mut self, agenda: Agenda<'_>) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return false;
        }
        match agenda {
            Agenda::Group { group, within, rest } => {
                for container in self.containers(group, within) {
                    if self.solve_group(group, container, rest) {
                        return true;
                    }
                }
                false
            }
            Agenda::Pods { left: 0, rest, .. } => rest.is_none_or(|rest| self.solve(*rest)),
            Agenda::Pods { member, left, hosts, from, rest } => {
                for (at, &host) in hosts.iter().enumerate().skip(from) {
                    let Some(cells) = self.pick(host, member) else { continue };
                    self.put(member, cells);
                    let next = Agenda::Pods { member, left: left - 1, hosts, from: at, rest };
                    if self.solve(next) {
                        return true;
                    }
                    self.undo(member);
                }
                false
            }
        }
    }

    fn solve_group(
        &mut self,
        group: &Resolved,
        container: Option<CellIx>,
        rest: Option<&Agenda<'_>>,
    ) -> bool {
        self.solve_children(group, container, group.children.len(), rest)
    }

    /// Puts the children on the agenda from the last to the first, then the own pods before them.
    fn solve_children(
        &mut self,
        group: &Resolved,
        container: Option<CellIx>,
        count: usize,
        rest: Option<&Agenda<'_>>,
    ) -> bool {
        if let Some(last) = count.checked_sub(1) {
            let child = Agenda::Group { group: &group.children[last], within: container, rest };
            return self.solve_children(group, container, last, Some(&child));
        }
        match group.member {
            None => rest.is_none_or(|rest| self.solve(*rest)),
            Some(member) => {
                let hosts = self.hosts(container);
                self.solve(Agenda::Pods { member, left: group.pods, hosts: &hosts, from: 0, rest })
            }
        }
    }
}
