//! Liveness of jobs and queues after the faults have ended.

use std::collections::BTreeSet;

use super::cells;
use super::names::nameless;
use crate::checks::stray;
use crate::facts::CheckFacts;
use crate::model::JobModel;
use crate::workload::documents::QUEUES;
use crate::workload::hostile::is_hostile;
use rcfarm_api::command::Target;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::pod_group::status::PlacementState;
use rcfarm_api::queue::status::QueueState;

/// Describes what is not settled, with the invariant that it violates; `None`: everything is. `live` are the running
/// processes. Agents keep the pods in `kept`, which only a restored snapshot lacks: their jobs wait until somebody
/// stops them, and others for these jobs.
#[must_use]
pub fn unsettled(
    model: &JobModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    kept: &BTreeSet<PodRef>,
) -> Option<(u32, String)> {
    if let Some(what) = nameless(&model.present, facts, live) {
        return Some((27, what));
    }
    let waits = kept.iter().any(|place| model.realities.contains_key(place));
    commands(model)
        .or_else(|| {
            model
                .jobs
                .keys()
                .filter(|id| !is_hostile(id) && !waits && !cells::may_wait(model, id))
                .find_map(|id| job(model, facts, live, id))
        })
        .or_else(|| gangs(model))
        .or_else(|| machines(model, kept))
        .or_else(|| queues(model))
}

/// 22: every command to an existing target was executed.
fn commands(model: &JobModel) -> Option<(u32, String)> {
    model.commands.iter().find_map(|(id, command)| {
        let there = match &command.target {
            Target::Job { job, .. } => model.jobs.contains_key(job) && !is_hostile(job),
            Target::Queue { queue } => model.queues.contains_key(queue),
        };
        there.then(|| (22, format!("command {id} was not carried out: {command:?}")))
    })
}

/// 27: every job has ended and left nothing behind.
fn job(
    model: &JobModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    id: &Namespaced,
) -> Option<(u32, String)> {
    let not_yet = |what: String| Some((27, format!("{id} {what}")));
    let Some((uid, spec)) = model.spec(id) else { return not_yet("cannot be read".to_owned()) };
    let owner = model.job_owners.get(id).and_then(|session| facts.sessions.get(session));
    if !owner.is_some_and(|process| live.contains(process)) {
        return not_yet("has no owner that lives".to_owned());
    }
    let Some(status) = model.statuses.get(id).filter(|status| status.uid == uid) else {
        if model.is_barred(id) {
            return None;
        }
        return not_yet("has no status".to_owned());
    };
    if !status.state.phase.is_final() {
        let state = &status.state;
        return not_yet(format!("is {} ({}: {})", state.phase, state.reason, state.message));
    }
    if spec.deleting || spec.ttl.is_some() {
        return not_yet("is still there, although its time is up".to_owned());
    }
    if model.groups.contains_key(id) {
        let own = model.pods.iter().filter(|(_, identity)| identity.job == *id);
        let pods: Vec<String> = own
            .map(|(place, identity)| {
                format!("{}@{} {}", identity.slot, place.node, identity.attempt)
            })
            .collect();
        let (phase, members) = (status.state.phase, status.members);
        return not_yet(format!("is {phase} and its group still there: {members:?}, {pods:?}"));
    }
    None
}

/// 16: no gang is partly placed, and ended ones have no allocations.
fn gangs(model: &JobModel) -> Option<(u32, String)> {
    let ours = model.group_statuses.iter().filter(|(id, _)| !is_hostile(id));
    let half = ours.into_iter().find_map(|(id, status)| {
        let place = status.placement.as_ref()?;
        (place.state != PlacementState::Bound).then(|| format!("{id} is {:?}", place.state))
    });
    let left = model.group_statuses.keys().find(|id| !model.groups.contains_key(*id));
    let left = left.map(|id| format!("{id} is gone, and its status is still there"));
    half.or(left).or_else(|| stray(model)).map(|what| (16, what))
}

/// All running pods are intended, and belong to the present job of their name.
fn machines(model: &JobModel, kept: &BTreeSet<PodRef>) -> Option<(u32, String)> {
    let dead = |node: &NodeName| model.nodes.get(node).is_some_and(|node| node.gone);
    let unwanted = |place: &&PodRef| {
        !model.intents.contains_key(*place) && !dead(&place.node) && !kept.contains(*place)
    };
    let running = model.realities.keys().find(unwanted);
    let running = running.map(|place| format!("{} runs on {}, unwanted", place.pod, place.node));
    let nobody = model.pods.iter().find(|(_, identity)| {
        model.jobs.get(&identity.job).is_some_and(|job| job.uid != identity.uid)
    });
    let nobody = nobody.map(|(place, identity)| {
        format!(
            "{} on {} is of {} {}, which is gone",
            place.pod, place.node, identity.job, identity.uid
        )
    });
    running.or(nobody).map(|what| (27, what))
}

/// Every queue is open, by its status too.
fn queues(model: &JobModel) -> Option<(u32, String)> {
    let ours = model.queues.keys().filter(|name| QUEUES.contains(&name.as_str()));
    ours.into_iter().find_map(|name| {
        let state = model.queue_statuses.get(name).and_then(|status| status.state);
        (state != Some(QueueState::Open)).then(|| (27, format!("queue {name} is {state:?}")))
    })
}
