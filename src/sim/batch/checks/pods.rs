//! Members of jobs as they come and go (8, 20, 22 to 24).

use std::sync::Arc;

use super::super::history::Try;
use super::super::model::{AppliedBatchWrite, BatchModel, ModelEvent};
use super::{clock, maybe_down};
use crate::audit::Details;
use crate::command::Target;
use crate::ids::Namespaced;
use crate::job::machine::JobPhase;
use crate::job::manifest::PodIdentity;
use crate::job::spec::Slot;
use crate::job::status::JobStatus;
use crate::rc::plan::PodRef;
use crate::sim::invariant::{CheckFacts, Say, VIEW};
use crate::sim::reached::{Occasion, met_if};

/// After one deed of a process.
pub fn check(deed: &AppliedBatchWrite, board: &BatchModel, facts: &CheckFacts, say: Say<'_>) {
    for seen in &deed.changes {
        match seen {
            ModelEvent::Intent(place, (before, Some(mark))) if before.as_ref() != Some(mark) => {
                if before.is_some() {
                    say(20, format!("{}/{} was overwritten", place.node, place.pod));
                }
                made(deed, place, mark, board, facts, say);
            }
            ModelEvent::Intent(place, (Some(mark), None)) => removed(deed, place, mark, board, say),
            _ => {}
        }
    }
}

fn status_of<'d>(
    deed: &'d AppliedBatchWrite,
    id: &Namespaced,
) -> Option<(Option<&'d JobStatus>, Option<&'d JobStatus>)> {
    deed.changes.iter().find_map(|seen| match seen {
        ModelEvent::JobStatus(of, (before, after)) if of == id => {
            Some((before.as_deref(), after.as_deref()))
        }
        _ => None,
    })
}

fn made(
    deed: &AppliedBatchWrite,
    place: &PodRef,
    mark: &Arc<PodIdentity>,
    board: &BatchModel,
    facts: &CheckFacts,
    say: Say<'_>,
) {
    let (id, name) = (&mark.job, &place.pod);
    if board.pods.get(place) != Some(mark) {
        say(8, format!("{name} on {} has not the labels of its intent", place.node));
    }
    let Some((uid, spec)) = board.spec(id) else {
        say(20, format!("{name} was made, and there is no job {id} that can be read"));
        return;
    };
    if mark.uid != uid {
        say(20, format!("{name} was made for {id} {}, which is {uid}", mark.uid));
    }
    if board.history.made.contains(&Try::from(&**mark)) {
        say(
            22,
            format!("{name}, attempt {} and try {}, was made twice", mark.version, mark.attempt),
        );
    }
    if board.restored_at.is_none() {
        beside(deed, place, mark, board, say);
    }
    depends(deed, mark, board, say);
    let born_again = board.realities.values().any(|of| of.job == *id && of.uid < uid);
    met_if(born_again, Occasion::BornAgain);
    let written = status_of(deed, id);
    let (before, after) = written.unwrap_or((None, board.statuses.get(id).map(|now| &**now)));
    let Some(after) = after else { return };
    let memory = after.tasks.get(&mark.slot.task);
    let is_told = memory.is_some_and(|memory| match written {
        Some(_) => memory.started.contains(mark.slot.index),
        None => memory.starting.contains(mark.slot.index),
    });
    if !is_told {
        say(22, format!("{name} was made, and the status of {id} does not tell that it starts"));
    }
    if !after.state.phase.starts_members() || spec.suspend {
        say(21, format!("{name} was made while {id} is {}", after.state.phase));
    }
    let current = after.tasks.get(&mark.slot.task);
    let tries = current.and_then(|memory| memory.attempts.get(&mark.slot.index)).copied();
    if (mark.version, mark.attempt) != (after.version, tries.unwrap_or(0)) {
        say(20, format!("{name} is of another attempt than {id}"));
    }
    let Some(before) = before.filter(|before| before.uid == uid) else { return };
    let own = before.tasks.get(&mark.slot.task).and_then(|m| m.not_before.get(&mark.slot.index));
    let due = before.not_before.into_iter().chain(own.copied()).max();
    met_if(due.is_some(), Occasion::PausedMade);
    if due.zip(clock(deed, facts)).is_some_and(|(due, now)| now < due) {
        say(24, format!("{name} was made before {due:?}"));
    }
}

/// 20: no two pods of a member, and none of an older attempt beside one of a newer.
fn beside(
    deed: &AppliedBatchWrite,
    place: &PodRef,
    mark: &Arc<PodIdentity>,
    board: &BatchModel,
    say: Say<'_>,
) {
    let id = &mark.job;
    for (other, of) in board.pods.iter().filter(|(at, of)| of.job == *id && *at != place) {
        if of.uid == mark.uid && (of.slot == mark.slot || of.version != mark.version) {
            say(
                20,
                format!(
                    "{} was made on {}, {} stands on {}",
                    place.pod, place.node, other.pod, other.node
                ),
            );
        }
    }
    real_beside(deed, place, mark, board, say);
}

fn real_beside(
    deed: &AppliedBatchWrite,
    place: &PodRef,
    mark: &PodIdentity,
    board: &BatchModel,
    say: Say<'_>,
) {
    for (other, of) in board.real_of(&mark.job) {
        let older = of.uid == mark.uid
            && (of.slot == mark.slot && of.attempt != mark.attempt || of.version != mark.version);
        if older && of != mark && !maybe_down(board, other, deed) {
            let (a, b) = (of.version, of.attempt);
            say(
                20,
                format!(
                    "{} on {} ({}, {}) beside {} on {} ({a}, {b}), which still runs",
                    place.pod, place.node, mark.version, mark.attempt, other.pod, other.node
                ),
            );
        }
    }
}

/// 20, as nodes see it: whatever the store says, tries do not run beside each other.
pub fn starts_on_nodes(deed: &AppliedBatchWrite, board: &BatchModel, say: Say<'_>) {
    if board.restored_at.is_some() {
        return;
    }
    for seen in &deed.changes {
        if let ModelEvent::Reality(place, (None, Some(mark))) = seen
            && !maybe_down(board, place, deed)
        {
            real_beside(deed, place, mark, board, say);
        }
    }
}

/// 23: what it depends on was so, lately.
fn depends(deed: &AppliedBatchWrite, mark: &PodIdentity, board: &BatchModel, say: Say<'_>) {
    let Some((uid, spec)) = board.spec(&mark.job) else { return };
    let Some(task) = spec.task(&mark.slot.task) else {
        say(20, format!("{} has no task {}", mark.job, mark.slot.task));
        return;
    };
    let from = deed.write.at.saturating_sub(VIEW);
    let was_ready = |name: &String| {
        let key = (mark.job.clone(), uid, name.clone());
        let waits = spec.task(name).is_some_and(|task| task.min_available.is_some());
        let history = &board.history;
        let until = history.ready.get(&key);
        !waits || history.ready_now.contains(&key) || until.is_some_and(|until| *until >= from)
    };
    let mut all = task.depends_on.iter().map(was_ready);
    let ready = if task.any_dependency { all.any(|one| one) } else { all.all(|one| one) };
    met_if(!task.depends_on.is_empty(), Occasion::DependentMade);
    if !task.depends_on.is_empty() && !ready {
        let (slot, on) = (&mark.slot, task.depends_on.join(", "));
        say(23, format!("{} of {} started, which waits for {on}", slot, mark.job));
    }
}

fn removed(
    deed: &AppliedBatchWrite,
    place: &PodRef,
    mark: &PodIdentity,
    board: &BatchModel,
    say: Say<'_>,
) {
    let id = &mark.job;
    if board.pods.contains_key(place) {
        say(8, format!("{} on {} went, and its labels stay", place.pod, place.node));
    }
    if board.jobs.get(id).is_some_and(|job| job.uid < mark.uid) {
        say(25, format!("{} of the newer {id} was removed for the older", place.pod));
    }
    let step = deed.changes.iter().find_map(|seen| match seen {
        ModelEvent::Audit(details) => match &**details {
            Details::JobStep(step) if step.job == *id => Some(step),
            _ => None,
        },
        _ => None,
    });
    let asked = step.and_then(|step| step.asked.as_deref());
    // A restart that is one too many ends the job: then nothing is restarted, and all that runs is stopped.
    let ends = step.is_some_and(|step| step.phase == JobPhase::Failed.to_string());
    if !matches!(asked, Some("RestartPod" | "RestartTask")) || ends {
        return;
    }
    let Some((Some(before), _)) = status_of(deed, id) else { return };
    let memory = before.tasks.get(&mark.slot.task);
    let tries = memory.and_then(|m| m.attempts.get(&mark.slot.index)).copied().unwrap_or(0);
    let current = before.uid == mark.uid && (mark.version, mark.attempt) == (before.version, tries);
    let in_range = board.spec(id).is_some_and(|(_, spec)| {
        spec.task(&mark.slot.task).is_some_and(|task| mark.slot.index < task.replicas)
    });
    let failed = board.history.ended.get(&Try::from(mark)).is_some_and(|code| *code != Some(0));
    let meant = failed || named(deed, &mark.slot, asked) || maybe_down(board, place, deed);
    // The members of a task go together: one of them failed, or it was named.
    let of_task =
        asked == Some("RestartTask")
            && board.history.ended.iter().any(|(of, code)| {
                of.job == *id && of.slot.task == mark.slot.task && *code != Some(0)
            });
    let beside = board.real_of(id).any(|(_, of)| of.uid == mark.uid && of.slot != mark.slot);
    met_if(current && beside, Occasion::OneOfMany);
    if current && in_range && !meant && !of_task {
        let why = step.map(|step| step.message.as_str()).unwrap_or_default();
        let pod = &place.pod;
        say(20, format!("{pod} was removed, although it was another that was restarted ({why})"));
    }
}

/// Whether the command that is consumed names the member.
fn named(deed: &AppliedBatchWrite, slot: &Slot, asked: Option<&str>) -> bool {
    deed.changes.iter().any(|seen| match seen {
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
