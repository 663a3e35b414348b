//! Where a new group would be placed, and who would have to go.

use std::collections::BTreeSet;

use rcfarm_api::cells::ChainReason;

use super::packing::{self, Unpacked};
use super::view::{Side, Suggested};
use super::{leaves, mapping, nested};
use crate::group::{GroupIx, GroupKey, PodPlacementInfo};
use crate::model::{
    CellIx, CellPriority, LEAF_LEVEL, MIN_GUARANTEED_PRIORITY, OPPORTUNISTIC_PRIORITY,
};
use crate::request::{GroupRequest, chains};
use crate::state::State;

/// A place for a new group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub chain: String,
    pub pods: Vec<PodPlacementInfo>,
    /// Groups that run on as opportunistic.
    pub downgrades: Vec<GroupKey>,
    /// Groups whose reservation ends.
    pub cancels: Vec<GroupKey>,
    /// Groups whose pods must end first.
    pub victims: Vec<GroupKey>,
}

/// Cells of each pod: virtual leaves, or physical leaves for an opportunistic group. With the pod's member.
type Pods = Vec<(usize, Vec<CellIx>)>;

/// Most nodes of a virtual cluster's chain for which more is tried when the first mapping fails. Each further try takes
/// time that grows with the square of the nodes.
const MAX_NODES_TO_RETRY: usize = 128;

/// The first chain that has room for all of a group.
pub(crate) fn plan(
    state: &State,
    request: &GroupRequest,
    suggested: Suggested<'_>,
) -> Result<Found, Vec<ChainReason>> {
    let model = &state.model;
    let suggested = suggested.filter(|_| !request.ignore_suggested_nodes);
    let vc_name = &request.key.virtual_cluster;
    let Some(vc) = model.vcs.get(vc_name) else {
        return Err(vec![reason("", format!("VC {vc_name} does not exists!"))]);
    };
    if let Some(id) = &request.pinned_cell_id {
        let nodes = vc.pinned_nodes.get(id).map(Vec::as_slice).unwrap_or_default();
        let root = nodes.first().map(|&node| model.virtuals.get(node).chain);
        let chain = root.map_or("", |chain| model.chain(chain).name.as_str());
        return guaranteed(state, request, nodes, suggested, chain)
            .map_err(|why| vec![reason(id, why)]);
    }
    let mut reasons = Vec::new();
    for chain in chains(request, model) {
        let name = &model.chain(chain).name;
        let found = if request.priority >= MIN_GUARANTEED_PRIORITY {
            let Some(nodes) = vc.nodes.get(&chain) else { continue };
            guaranteed(state, request, nodes, suggested, name)
        } else {
            opportunistic(state, request, &model.chain_nodes[chain as usize], suggested, name)
        };
        match found {
            Ok(found) => return Ok(found),
            Err(why) => reasons.push(reason(name, why)),
        }
    }
    if reasons.is_empty() {
        let why = format!("VC {vc_name} has no cells that the request could use");
        reasons.push(reason("", why));
    }
    Err(reasons)
}

fn reason(chain: &str, reason: String) -> ChainReason {
    ChainReason { chain: chain.to_owned(), reason }
}

fn guaranteed(
    state: &State,
    request: &GroupRequest,
    nodes: &[CellIx],
    suggested: Suggested<'_>,
    chain: &str,
) -> Result<Found, String> {
    let vc = &request.key.virtual_cluster;
    let side = Side { state, physical: false, suggested };
    // First without preemption within the virtual cluster, then with.
    let mut placed = place(side, nodes, request, OPPORTUNISTIC_PRIORITY);
    if placed.is_err() {
        placed = place(side, nodes, request, request.priority);
    }
    let pods = placed.map_err(|why| format!("{why} when scheduling in VC {vc}"))?;
    let retry = nodes.len() <= MAX_NODES_TO_RETRY;
    let mapped = map(state, &pods, request, suggested, chain, retry);
    let other = || avoiding_bad(state, nodes, request, suggested, chain);
    mapped.or_else(|| if retry { other() } else { None }).ok_or_else(|| {
        let kind = if suggested.is_some() { "bad or non-suggested" } else { "bad" };
        let cells: Vec<&str> =
            pods.iter().flat_map(|(_, pod)| pod).map(|&leaf| state.model.virtuals.address(leaf)).collect();
        let shown = if cells.len() > 16 { 16 } else { cells.len() };
        let more = if cells.len() > shown { ", …" } else { "" };
        format!(
            "Mapping the virtual placement would need to use at least one {kind} node (virtual placement: {}{more})",
            cells[..shown].join(", ")
        )
    })
}

/// A second try when the packing that is best for the virtual cluster cannot be mapped: without the virtual nodes that no
/// usable physical node is left for.
///
/// Each virtual node is mapped by itself, after those before it; what cannot be mapped is left out.
fn avoiding_bad(
    state: &State,
    nodes: &[CellIx],
    request: &GroupRequest,
    suggested: Suggested<'_>,
    chain: &str,
) -> Option<Found> {
    let model = &state.model;
    let mut mappable: Vec<CellIx> = Vec::new();
    let mut leaves: Vec<CellIx> = Vec::new();
    let side = Side { state, physical: false, suggested };
    for &node in nodes {
        if side.usable(node) != super::view::Usable::Yes {
            continue;
        }
        let range = model.leaves(&model.virtuals, node);
        let own = &model.virtuals.leaves[range.start as usize..range.end as usize];
        let before = leaves.len();
        // One leaf stands for the node: a node is healthy as a whole.
        leaves.extend(own.first());
        if mapping::map(state, &leaves, suggested, true).is_some() {
            mappable.push(node);
        } else {
            leaves.truncate(before);
        }
    }
    [OPPORTUNISTIC_PRIORITY, request.priority].into_iter().find_map(|priority| {
        let pods = place(side, &mappable, request, priority).ok()?;
        map(state, &pods, request, suggested, chain, true)
    })
}

/// Maps a virtual placement, and says who has to go.
fn map(
    state: &State,
    pods: &Pods,
    request: &GroupRequest,
    suggested: Suggested<'_>,
    chain: &str,
    retry: bool,
) -> Option<Found> {
    let virtual_leaves: Vec<CellIx> =
        pods.iter().flat_map(|(_, pod)| pod.iter().copied()).collect();
    let lazy = lazily_preempted(state, &virtual_leaves);
    let downgraded;
    let mapped_in = if lazy.is_empty() {
        state
    } else {
        let mut copy = state.clone();
        copy.change(|state| {
            for &group in &lazy {
                state.downgrade(group, &request.key.name, jiff::Timestamp::UNIX_EPOCH);
            }
        });
        downgraded = copy;
        &downgraded
    };
    let physical = mapping::map(mapped_in, &virtual_leaves, suggested, false).or_else(|| {
        retry.then(|| mapping::map(mapped_in, &virtual_leaves, suggested, true)).flatten()
    })?;
    // A leaf that was bound already may be on a node that is bad, or not suggested.
    let side = Side { state: mapped_in, physical: true, suggested };
    if physical.iter().any(|&leaf| side.usable(leaf) != super::view::Usable::Yes) {
        return None;
    }
    let mut rest = physical.as_slice();
    let pods = pods.iter().map(|(member, virtual_leaves)| {
        let (own, others) = rest.split_at(virtual_leaves.len());
        rest = others;
        place_of(state, *member, own.to_vec(), virtual_leaves.clone())
    });
    let pods = pods.collect();
    let keys = |groups: Vec<GroupIx>| -> Vec<GroupKey> { keys(state, groups) };
    Some(found(state, chain, pods, keys(lazy)))
}

/// Groups that use the chosen cells now and let themselves be preempted lazily.
fn lazily_preempted(state: &State, virtual_leaves: &[CellIx]) -> Vec<GroupIx> {
    let mut groups = Vec::new();
    for &leaf in virtual_leaves {
        let bound = state.v2p[leaf as usize];
        if bound == crate::model::NONE {
            continue;
        }
        let (Some(user), None) = state.occupants(bound) else { continue };
        let lazy = state.groups.at(user).is_some_and(|group| {
            group.request.lazy_preemption_enable && group.guaranteed() && !group.preempting
        });
        if lazy && !groups.contains(&user) {
            groups.push(user);
        }
    }
    groups
}

fn opportunistic(
    state: &State,
    request: &GroupRequest,
    nodes: &[CellIx],
    suggested: Suggested<'_>,
    chain: &str,
) -> Result<Found, String> {
    let side = Side { state, physical: true, suggested };
    let pods = place(side, nodes, request, OPPORTUNISTIC_PRIORITY)
        .map_err(|why| format!("{why} when scheduling in physical cluster"))?;
    let pods = pods.into_iter().map(|(member, leaves)| place_of(state, member, leaves, Vec::new()));
    Ok(found(state, chain, pods.collect(), Vec::new()))
}

fn place_of(
    state: &State,
    member: usize,
    leaves: Vec<CellIx>,
    virtual_leaves: Vec<CellIx>,
) -> PodPlacementInfo {
    let model = &state.model;
    let node = leaves
        .first()
        .map_or("", |&leaf| model.node_names[model.physical.get(leaf).node as usize].as_str());
    let devices =
        leaves.iter().map(|&leaf| model.device_numbers[state.leaf_number(leaf)]).collect();
    PodPlacementInfo { member, node: node.to_owned(), devices, pod: None, leaves, virtual_leaves }
}

fn found(
    state: &State,
    chain: &str,
    pods: Vec<PodPlacementInfo>,
    downgrades: Vec<GroupKey>,
) -> Found {
    let mut victims = BTreeSet::new();
    let mut cancels = BTreeSet::new();
    for &leaf in pods.iter().flat_map(|pod| &pod.leaves) {
        let (user, reserver) = state.occupants(leaf);
        victims.extend(user);
        cancels.extend(reserver);
    }
    let chain = chain.to_owned();
    let victims = keys(state, victims);
    Found { chain, pods, downgrades, cancels: keys(state, cancels), victims }
}

fn keys(state: &State, groups: impl IntoIterator<Item = GroupIx>) -> Vec<GroupKey> {
    let mut keys: Vec<GroupKey> = groups
        .into_iter()
        .filter_map(|at| state.groups.at(at).map(|group| group.key.clone()))
        .collect();
    keys.sort();
    keys
}

/// Divides the pods over nodes, and picks leaves on each.
fn place(
    side: Side<'_>,
    nodes: &[CellIx],
    request: &GroupRequest,
    priority: CellPriority,
) -> Result<Pods, String> {
    if let Some(group) = &request.nested {
        let placed = nested::place(side, nodes, request, group, priority)?;
        let pods = placed.into_iter().enumerate().flat_map(|(member, pods)| {
            pods.into_iter().map(move |cells| {
                let leaves = cells.iter().flat_map(|&cell| side.leaf_cells(cell).iter().copied());
                (member, leaves.collect())
            })
        });
        return Ok(pods.collect());
    }
    let mut sizes = Vec::with_capacity(request.pod_count());
    let mut of_member = Vec::with_capacity(sizes.capacity());
    for (n, member) in request.members.iter().enumerate() {
        sizes.extend(std::iter::repeat_n(member.cells, member.pods as usize));
        of_member.extend(std::iter::repeat_n(n, member.pods as usize));
    }
    let ranked = side.ranked(nodes, priority);
    let picked = packing::pack(&ranked, &sizes).map_err(|why| match why {
        Unpacked::Insufficient => "insufficient capacity".to_owned(),
        Unpacked::GaveUp => "no packing found within the limit of steps".to_owned(),
        Unpacked::Unusable(at) => {
            let node = ranked[at];
            let kind = match node.usable {
                super::view::Usable::NotSuggested => "non-suggested",
                _ => "bad",
            };
            format!("have to use at least one {kind} node {}", side.address(node.cell))
        }
    })?;
    let mut available: std::collections::BTreeMap<usize, Vec<CellIx>> =
        std::collections::BTreeMap::new();
    let mut pods = Vec::with_capacity(sizes.len());
    for ((&at, &size), &member) in picked.iter().zip(&sizes).zip(&of_member) {
        let leaves = available
            .entry(at)
            .or_insert_with(|| leaves::available(&side, ranked[at].cell, priority));
        let own = leaves::select(side.arena(), leaves, size as usize)
            .ok_or_else(|| "insufficient capacity".to_owned())?;
        debug_assert!(own.iter().all(|&leaf| side.level(leaf) == LEAF_LEVEL));
        pods.push((member, own));
    }
    Ok(pods)
}
