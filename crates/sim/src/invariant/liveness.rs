//! What must always happen, once the faults have ended (27 to 29).

use std::collections::BTreeSet;

use super::{CheckFacts, Picture};
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::rc::spec::RcSpec;

/// What is not yet as it shall be; `None`: everything is. `live` are the processes that run.
#[must_use]
pub fn unsettled(
    picture: &Picture,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    wanted: &[RcId],
) -> Option<String> {
    let absent = |process: &&u32| {
        let session = picture.present.get(&facts.processes[process].farm);
        session.is_none() || session != facts.current.get(process)
    };
    if let Some(process) = live.iter().find(absent) {
        // An earlier session of its name may live on until its TTL has passed.
        return Some(format!("{} #{process} has not got its name", facts.processes[process].farm));
    }
    wanted.iter().find_map(|rc| {
        let Some(spec) = picture.spec(*rc) else { return Some(format!("{rc} has no record")) };
        let allocations = || allocations(picture, spec);
        owner(picture, facts, live, *rc).or_else(|| count(picture, spec)).or_else(allocations)
    })
}

/// What is allocated in a record's name is allocated to its pods.
fn allocations(picture: &Picture, spec: &RcSpec) -> Option<String> {
    let owner = spec.owner();
    picture.allocations.iter().find_map(|(node, allocated)| {
        let own = allocated.pods.iter().filter(|(_, allocation)| allocation.owner == owner);
        let is_left = |pod: &PodId| {
            let place = PodRef { node: node.clone(), pod: pod.clone() };
            picture.pods.get(&place).and_then(|pod| pod.rc) != Some(spec.id)
        };
        let left = own.map(|(pod, _)| pod).find(|pod| is_left(pod));
        left.map(|pod| format!("{} has no pod {pod} on {node}, which promised it room", spec.id))
    })
}

fn owner(picture: &Picture, facts: &CheckFacts, live: &BTreeSet<u32>, rc: RcId) -> Option<String> {
    let Some(session) = picture.owners.get(&rc) else { return Some(format!("{rc} has no owner")) };
    let Some(process) = facts.sessions.get(session).filter(|process| live.contains(process)) else {
        return Some(format!("{rc} is owned by a process that is dead"));
    };
    let farm = &facts.processes[process];
    if facts.current.get(process) != Some(session) {
        return Some(format!("{rc} is owned by an earlier session of {}", farm.farm));
    }
    let labels = picture.rc_labels.get(&rc).and_then(|t| t.now()?.clone()).unwrap_or_default();
    if !farm.selector.matches(&labels) {
        return Some(format!("{rc} is owned by {}, whose selector does not match it", farm.farm));
    }
    let said = picture.statuses.get(&rc).and_then(|status| status.owner.as_ref());
    (said.map(|owner| &owner.farm) != Some(&farm.farm))
        .then(|| format!("{rc} is owned by {}, which has not said so", farm.farm))
}

/// As many pods as asked for, or as there is room for.
fn count(picture: &Picture, spec: &RcSpec) -> Option<String> {
    let mine = picture.places(spec.id);
    let on: BTreeSet<_> = mine.iter().map(|place| &place.node).collect();
    let free = |node: &&rcfarm_api::ids::NodeName| {
        let place = PodRef { node: (*node).clone(), pod: spec.manifest.id().clone() };
        let taken = picture.pods.contains_key(&place) || picture.intents.contains(&place);
        !on.contains(node) && !taken && picture.is_fit(spec, node) && picture.has_room(spec, node)
    };
    let room = mine.len() + picture.node_labels.keys().filter(free).count();
    let wanted = room.min(spec.replicas_desired as usize);
    (mine.len() != wanted).then(|| {
        let said = picture.statuses.get(&spec.id).map(|status| &status.conditions);
        format!("{} has {} pods, not {wanted}, and says {said:?}", spec.id, mine.len())
    })
}
