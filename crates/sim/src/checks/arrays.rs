//! Arrays, and jobs that wait for others (23, 47).

use std::collections::BTreeSet;

use crate::facts::Report;
use crate::model::{AppliedWrite, JobModel, ModelEvent};
use crate::reached::{Occasion, met, met_if};
use crate::workload::hostile::is_hostile;
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::command::Target;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::array::ArraySpec;
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::job::status::JobStatus;

/// Checks one write of a process. A restored snapshot takes history away.
pub fn check(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    if applied_write.process().is_none() || model.restored_at.is_some() {
        return;
    }
    for seen in &applied_write.events {
        match seen {
            ModelEvent::JobStatus(id, (before, Some(after))) if !is_hostile(id) => {
                let before = before.as_deref().filter(|before| before.uid == after.uid);
                begun(applied_write, id, (before, after), model, report);
                noted(id, (before, after), model, report);
            }
            ModelEvent::Intent(_, (None, Some(identity))) if !is_hostile(&identity.job) => {
                let spec = model.spec(&identity.job).filter(|(uid, _)| *uid == identity.uid);
                if let Some(array) = spec.and_then(|(_, spec)| spec.array.as_ref()) {
                    made(applied_write, identity, array, model, report);
                }
            }
            _ => {}
        }
    }
}

/// 23: a job that waits for others writes its first phase once they have ended as it asks.
fn begun(
    applied_write: &AppliedWrite<'_>,
    id: &Namespaced,
    (before, after): (Option<&JobStatus>, &JobStatus),
    model: &JobModel,
    report: Report<'_>,
) {
    let Some(job) = model.jobs.get(id).filter(|job| job.uid == after.uid) else { return };
    let is_first = before.is_none_or(|before| before.phases.is_empty());
    if job.dependencies.is_empty() || !is_first || after.phases.is_empty() || job.deleting {
        return;
    }
    let is_asked = applied_write.events.iter().any(|seen| match seen {
        ModelEvent::Command(_, (Some(command), None)) => {
            matches!(&command.target, Target::Job { job, .. } if job == id)
        }
        _ => false,
    });
    met(Occasion::DependentJobBegan);
    let unmet = job.dependencies.iter().find_map(|one| one.unmet(model.target(&one.job(id))));
    if let Some(unmet) = unmet.filter(|_| !is_asked) {
        report(23, format!("{id} began, which waits: {}", unmet.why));
    }
}

/// 47: what is noted of the tasks of an array has happened, and stays.
fn noted(
    id: &Namespaced,
    (before, after): (Option<&JobStatus>, &JobStatus),
    model: &JobModel,
    report: Report<'_>,
) {
    let Some(now) = &after.array else { return };
    let held: BTreeSet<u32> = now.members.values().copied().collect();
    if held.len() != now.members.len() {
        report(47, format!("{id}: two members have one task: {:?}", now.members));
    }
    let then = before.and_then(|before| before.array.as_ref());
    let was_completed =
        |index: u32| then.is_some_and(|then| then.completed_indexes.contains(index));
    let lost = then.and_then(|then| {
        let mut ended = then.completed_indexes.iter().chain(then.failed_indexes.iter());
        ended.find(|index| !now.has_ended(*index))
    });
    if let Some(index) = lost {
        report(47, format!("{id}: the end of task {index} is forgotten"));
    }
    let mut new = now.completed_indexes.iter().filter(|index| !was_completed(*index));
    if let Some(index) = new.find(|index| !has_succeeded(model, id, after.uid, *index)) {
        report(47, format!("{id}: task {index} is noted as completed, and has not succeeded"));
    }
}

/// Whether an attempt at a task has succeeded on a node.
fn has_succeeded(model: &JobModel, id: &Namespaced, uid: JobUid, index: u32) -> bool {
    let tries = model
        .history
        .indexes
        .iter()
        .filter(|(one, of)| one.job == *id && one.uid == uid && **of == index);
    tries.into_iter().any(|(one, _)| model.history.ended.get(one) == Some(&Some(0)))
}

/// 47: a task starts that has not ended, and no more at once than the limit says.
fn made(
    applied_write: &AppliedWrite<'_>,
    identity: &PodIdentity,
    array: &ArraySpec,
    model: &JobModel,
    report: Report<'_>,
) {
    let (id, slot) = (&identity.job, &identity.slot);
    let Some(status) = model.statuses.get(id).filter(|status| status.uid == identity.uid) else {
        return;
    };
    let index = status.array.as_ref().and_then(|array| array.members.get(&slot.index));
    let Some(index) = index.copied() else {
        report(47, format!("{slot} of {id} was made without a task"));
        return;
    };
    let earlier = applied_write.events.iter().find_map(|seen| match seen {
        ModelEvent::JobStatus(of, (Some(before), _)) if of == id => before.array.as_ref(),
        _ => None,
    });
    let is_over = earlier.or(status.array.as_ref()).is_some_and(|array| array.has_ended(index));
    if is_over {
        report(47, format!("task {index} of {id} was started again after its end"));
    }
    let of_index = |of: u32| {
        let tries = model.history.indexes.iter();
        tries.filter(move |(one, has)| one.job == *id && one.uid == identity.uid && **has == of)
    };
    met_if(of_index(index).next().is_some(), Occasion::TaskRepeated);
    let mut own = model
        .history
        .indexes
        .iter()
        .filter(|(one, _)| one.job == *id && one.uid == identity.uid && one.slot == *slot);
    met_if(own.any(|(_, has)| *has != index), Occasion::NextTaskMade);
    let intended = model.intents.values().filter(|(of, _)| of.job == *id && of.uid == identity.uid);
    let count = intended.count();
    if count > array.limit as usize {
        report(47, format!("{count} tasks of {id} run at once, its limit is {}", array.limit));
    }
}
