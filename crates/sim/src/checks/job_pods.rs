//! Pods of jobs' members (8, 20, 22 to 24).

use std::sync::Arc;

use super::view::clock;
use crate::facts::{CheckFacts, Report, VIEW};
use crate::model::{AppliedWrite, JobModel, ModelEvent, Try};
use crate::reached::{Occasion, met_if};
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::audit::Details;
use rcfarm_api::command::Target;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::Slot;
use rcfarm_api::job::status::JobStatus;

/// Checks one write: starts by nodes, and creation and removal by processes.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    starts_on_nodes(applied_write, model, report);
    if applied_write.process().is_none() {
        return;
    }
    for seen in &applied_write.events {
        match seen {
            ModelEvent::Intent(place, (before, Some(identity)))
                if before.as_ref() != Some(identity) =>
            {
                if before.is_some() {
                    report(20, format!("{}/{} was overwritten", place.node, place.pod));
                }
                made(applied_write, place, identity, model, facts, report);
            }
            ModelEvent::Intent(place, (Some(identity), None)) => {
                removed(applied_write, place, identity, model, report)
            }
            _ => {}
        }
    }
}

fn status_of<'d>(
    applied_write: &'d AppliedWrite<'_>,
    id: &Namespaced,
) -> Option<(Option<&'d JobStatus>, Option<&'d JobStatus>)> {
    applied_write.events.iter().find_map(|seen| match seen {
        ModelEvent::JobStatus(of, (before, after)) if of == id => {
            Some((before.as_deref(), after.as_deref()))
        }
        _ => None,
    })
}

fn made(
    applied_write: &AppliedWrite<'_>,
    place: &PodRef,
    identity: &Arc<PodIdentity>,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let (id, name) = (&identity.job, &place.pod);
    if model.pods.get(place) != Some(identity) {
        report(8, format!("{name} on {} has not the labels of its intent", place.node));
    }
    let Some((uid, spec)) = model.spec(id) else {
        report(20, format!("{name} was made, and there is no job {id} that can be read"));
        return;
    };
    if identity.uid != uid {
        report(20, format!("{name} was made for {id} {}, which is {uid}", identity.uid));
    }
    if model.history.made.contains(&Try::from(&**identity)) {
        report(
            22,
            format!(
                "{name}, attempt {} and try {}, was made twice",
                identity.version, identity.attempt
            ),
        );
    }
    if model.restored_at.is_none() {
        beside(applied_write, place, identity, model, report);
    }
    depends(applied_write, identity, model, report);
    let born_again = model.realities.values().any(|of| of.job == *id && of.uid < uid);
    met_if(born_again, Occasion::BornAgain);
    let written = status_of(applied_write, id);
    let (before, after) = written.unwrap_or((None, model.statuses.get(id).map(|now| &**now)));
    let Some(after) = after else { return };
    let memory = after.tasks.get(&identity.slot.task);
    let is_told = memory.is_some_and(|memory| match written {
        Some(_) => memory.started.contains(identity.slot.index),
        None => memory.starting.contains(identity.slot.index),
    });
    if !is_told {
        report(22, format!("{name} was made, and the status of {id} does not tell that it starts"));
    }
    if !after.state.phase.starts_members() || spec.suspend {
        report(21, format!("{name} was made while {id} is {}", after.state.phase));
    }
    let current = after.tasks.get(&identity.slot.task);
    let tries = current.and_then(|memory| memory.attempts.get(&identity.slot.index)).copied();
    if (identity.version, identity.attempt) != (after.version, tries.unwrap_or(0)) {
        report(20, format!("{name} is of another attempt than {id}"));
    }
    let Some(before) = before.filter(|before| before.uid == uid) else { return };
    let own =
        before.tasks.get(&identity.slot.task).and_then(|m| m.not_before.get(&identity.slot.index));
    let due = before.not_before.into_iter().chain(own.copied()).max();
    met_if(due.is_some(), Occasion::PausedMade);
    if due.zip(clock(applied_write, facts)).is_some_and(|(due, now)| now < due) {
        report(24, format!("{name} was made before {due:?}"));
    }
}

/// 20: no two pods of a member, and no pods of an older attempt beside those of a newer one.
fn beside(
    applied_write: &AppliedWrite<'_>,
    place: &PodRef,
    identity: &Arc<PodIdentity>,
    model: &JobModel,
    report: Report<'_>,
) {
    let id = &identity.job;
    for (other, of) in model.pods.iter().filter(|(at, of)| of.job == *id && *at != place) {
        if of.uid == identity.uid && (of.slot == identity.slot || of.version != identity.version) {
            report(
                20,
                format!(
                    "{} was made on {}, {} stands on {}",
                    place.pod, place.node, other.pod, other.node
                ),
            );
        }
    }
    real_beside(applied_write, place, identity, model, report);
}

fn real_beside(
    applied_write: &AppliedWrite<'_>,
    place: &PodRef,
    identity: &PodIdentity,
    model: &JobModel,
    report: Report<'_>,
) {
    for (other, of) in model.real_of(&identity.job) {
        let older = of.uid == identity.uid
            && (of.slot == identity.slot && of.attempt != identity.attempt
                || of.version != identity.version);
        if older && of != identity && !model.maybe_down(other, applied_write.at) {
            let (a, b) = (of.version, of.attempt);
            report(
                20,
                format!(
                    "{} on {} ({}, {}) beside {} on {} ({a}, {b}), which still runs",
                    place.pod,
                    place.node,
                    identity.version,
                    identity.attempt,
                    other.pod,
                    other.node
                ),
            );
        }
    }
}

/// 20, on nodes: whatever the store says, attempts at a member do not run at the same time.
fn starts_on_nodes(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    if model.restored_at.is_some() {
        return;
    }
    for seen in &applied_write.events {
        if let ModelEvent::Reality(place, (None, Some(identity))) = seen
            && !model.maybe_down(place, applied_write.at)
        {
            real_beside(applied_write, place, identity, model, report);
        }
    }
}

/// 23: its dependencies were ready recently.
fn depends(
    applied_write: &AppliedWrite<'_>,
    identity: &PodIdentity,
    model: &JobModel,
    report: Report<'_>,
) {
    let Some((uid, spec)) = model.spec(&identity.job) else { return };
    let Some(task) = spec.task(&identity.slot.task) else {
        report(20, format!("{} has no task {}", identity.job, identity.slot.task));
        return;
    };
    let from = applied_write.at.saturating_sub(VIEW);
    let was_ready = |name: &String| {
        let key = (identity.job.clone(), uid, name.clone());
        let waits = spec.task(name).is_some_and(|task| task.min_available.is_some());
        let history = &model.history;
        let until = history.ready.get(&key);
        !waits || history.ready_now.contains(&key) || until.is_some_and(|until| *until >= from)
    };
    let mut all = task.depends_on.iter().map(was_ready);
    let ready = if task.any_dependency { all.any(|one| one) } else { all.all(|one| one) };
    met_if(!task.depends_on.is_empty(), Occasion::DependentMade);
    if !task.depends_on.is_empty() && !ready {
        let (slot, on) = (&identity.slot, task.depends_on.join(", "));
        report(23, format!("{} of {} started, which waits for {on}", slot, identity.job));
    }
}

fn removed(
    applied_write: &AppliedWrite<'_>,
    place: &PodRef,
    identity: &PodIdentity,
    model: &JobModel,
    report: Report<'_>,
) {
    let id = &identity.job;
    if model.pods.contains_key(place) {
        report(8, format!("{} on {} went, and its labels stay", place.pod, place.node));
    }
    if model.jobs.get(id).is_some_and(|job| job.uid < identity.uid) {
        report(25, format!("{} of the newer {id} was removed for the older", place.pod));
    }
    let step = applied_write.events.iter().find_map(|seen| match seen {
        ModelEvent::Audit(details) => match &**details {
            Details::JobStep(step) if step.job == *id => Some(step),
            _ => None,
        },
        _ => None,
    });
    let asked = step.and_then(|step| step.asked.as_deref());
    // A restart beyond the limit fails the job: nothing is restarted, and all running pods are stopped.
    let ends = step.is_some_and(|step| step.phase == JobPhase::Failed.to_string());
    if !matches!(asked, Some("RestartPod" | "RestartTask")) || ends {
        return;
    }
    let Some((Some(before), _)) = status_of(applied_write, id) else { return };
    let memory = before.tasks.get(&identity.slot.task);
    let tries = memory.and_then(|m| m.attempts.get(&identity.slot.index)).copied().unwrap_or(0);
    // An orphan of an earlier job of the name is collected, whatever its status says.
    let is_orphan = model.jobs.get(id).is_some_and(|job| job.uid != identity.uid);
    let current = !is_orphan
        && before.uid == identity.uid
        && (identity.version, identity.attempt) == (before.version, tries);
    let in_range = model.spec(id).is_some_and(|(_, spec)| {
        spec.task(&identity.slot.task).is_some_and(|task| identity.slot.index < task.replicas)
    });
    let failed = model.history.ended.get(&Try::from(identity)).is_some_and(|code| *code != Some(0));
    let meant = failed
        || named(applied_write, &identity.slot, asked)
        || model.maybe_down(place, applied_write.at);
    // The members of a task are removed together: one failed, or the task was named.
    let of_task = asked == Some("RestartTask")
        && model.history.ended.iter().any(|(of, code)| {
            of.job == *id && of.slot.task == identity.slot.task && *code != Some(0)
        });
    let beside =
        model.real_of(id).any(|(_, of)| of.uid == identity.uid && of.slot != identity.slot);
    met_if(current && beside, Occasion::OneOfMany);
    if current && in_range && !meant && !of_task {
        let why = step.map(|step| step.message.as_str()).unwrap_or_default();
        let pod = &place.pod;
        report(
            20,
            format!("{pod} was removed, although it was another that was restarted ({why})"),
        );
    }
}

/// Whether the consumed command names the member.
fn named(applied_write: &AppliedWrite<'_>, slot: &Slot, asked: Option<&str>) -> bool {
    applied_write.events.iter().any(|seen| match seen {
        ModelEvent::Command(_, (Some(command), None)) => match &command.target {
            Target::Job { task: Some(task), index, .. } => {
                let whole = asked == Some("RestartTask");
                *task == slot.task && (whole || index.is_none_or(|index| index == slot.index))
            }
            _ => false,
        },
        _ => false,
    })
}
