//! Liveness of replication controllers after the faults have ended (27 to 29).

use std::collections::BTreeSet;

use super::names::nameless;
use crate::facts::CheckFacts;
use crate::model::ServiceModel;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::rc::status::RcConditionType;

/// Describes what is not settled; `None`: everything is. `live` are the running processes.
#[must_use]
pub fn unsettled(
    model: &ServiceModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    wanted: &[RcId],
) -> Option<String> {
    if let Some(what) = nameless(&model.present, facts, live) {
        return Some(what);
    }
    wanted.iter().find_map(|rc| {
        let Some(spec) = model.spec(*rc) else { return Some(format!("{rc} has no record")) };
        let allocations = || allocations(model, spec);
        owner(model, facts, live, *rc)
            .or_else(|| count(model, spec))
            .or_else(allocations)
            .or_else(|| outdated(model, spec))
    })
}

/// A record's allocations belong to its pods.
fn allocations(model: &ServiceModel, spec: &RcSpec) -> Option<String> {
    let owner = spec.owner();
    model.allocations.iter().find_map(|(node, allocated)| {
        let own = allocated.pods.iter().filter(|(_, allocation)| allocation.owner == owner);
        let is_left = |pod: &PodId| {
            let place = PodRef { node: node.clone(), pod: pod.clone() };
            model.pods.get(&place).and_then(|pod| pod.rc) != Some(spec.id)
        };
        let left = own.map(|(pod, _)| pod).find(|pod| is_left(pod));
        left.map(|pod| {
            format!("{} has no pod {pod} on {node}, which has an allocation for it", spec.id)
        })
    })
}

fn owner(
    model: &ServiceModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    rc: RcId,
) -> Option<String> {
    let Some(session) = model.owners.get(&rc) else { return Some(format!("{rc} has no owner")) };
    let Some(process) = facts.sessions.get(session).filter(|process| live.contains(process)) else {
        return Some(format!("{rc} is owned by a process that is dead"));
    };
    let farm = &facts.processes[process];
    if facts.current.get(process) != Some(session) {
        return Some(format!("{rc} is owned by an earlier session of {}", farm.farm));
    }
    let labels = model.rc_labels.get(&rc).and_then(|t| t.now()?.clone()).unwrap_or_default();
    if !farm.selector.matches(&labels) {
        return Some(format!("{rc} is owned by {}, whose selector does not match it", farm.farm));
    }
    let said = model.statuses.get(&rc).and_then(|status| status.owner.as_ref());
    (said.map(|owner| &owner.farm) != Some(&farm.farm))
        .then(|| format!("{rc} is owned by {}, which has not said so", farm.farm))
}

/// All pods have the record's manifest, and their nodes run it. A pod on a node that it is to leave may have an earlier
/// one. Where the minimum health spares no pod, the status says that the update waits.
fn outdated(model: &ServiceModel, spec: &RcSpec) -> Option<String> {
    let wanted = spec.manifest.text();
    let places = model.places(spec.id);
    let is_outdated = |place: &&PodRef| {
        !waits(model, spec, places.len())
            && model.is_fit(spec, &place.node)
            && model.intent(place).is_some_and(|intent| intent.value != wanted)
    };
    let is_restarting = |place: &&PodRef| model.unproved.contains_key(*place);
    let place = places.iter().find(|place| is_restarting(place) || is_outdated(place))?;
    Some(format!("{} on {} does not have the manifest of {}", place.pod, place.node, spec.id))
}

/// Whether the minimum health forbids to restart any of `pods` pods, and the status says that an update waits.
fn waits(model: &ServiceModel, spec: &RcSpec, pods: usize) -> bool {
    let labels = model.rc_labels.get(&spec.id).and_then(|t| t.now()?.as_ref());
    let in_order = spec.clone().with_labels(labels).ok().filter(|spec| spec.in_order);
    let least = in_order.and_then(|spec| spec.min_health);
    let status = model.statuses.get(&spec.id);
    let updated = status.and_then(|status| status.condition(RcConditionType::Updated));
    least.is_some_and(|least| pods <= least as usize)
        && updated.is_some_and(|condition| !condition.status)
}

/// As many pods as desired, or as there is room for.
fn count(model: &ServiceModel, spec: &RcSpec) -> Option<String> {
    let mine = model.places(spec.id);
    let on: BTreeSet<_> = mine.iter().map(|place| &place.node).collect();
    let free = |node: &&rcfarm_api::ids::NodeName| {
        let place = PodRef { node: (*node).clone(), pod: spec.manifest.id().clone() };
        let taken = model.pods.contains_key(&place) || model.intents.contains(&place);
        !on.contains(node) && !taken && model.is_fit(spec, node) && model.has_room(spec, node)
    };
    let room = mine.len() + model.node_labels.keys().filter(free).count();
    let wanted = room.min(spec.replicas_desired as usize);
    (mine.len() != wanted).then(|| {
        let said = model.statuses.get(&spec.id).map(|status| &status.conditions);
        format!("{} has {} pods, not {wanted}, and says {said:?}", spec.id, mine.len())
    })
}
