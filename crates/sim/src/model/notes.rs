//! Records in the history of jobs what each write shows.

use std::collections::BTreeSet;
use std::time::Duration;

use super::history::Try;
use super::jobs::{JobModel, ModelEvent};
use super::write::AppliedWrite;
use crate::reached::{Occasion, met};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::spec::{JobSpec, JobUid};
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::pod_group::status::PodGroupPhase;

/// Records pods that a write shows to be lost; called before the checks.
pub fn losses(model: &mut JobModel, applied_write: &AppliedWrite<'_>) {
    for seen in &applied_write.events {
        let ModelEvent::Intent(place, (Some(identity), None)) = seen else { continue };
        if applied_write.process().is_none() || model.maybe_down(place, applied_write.at) {
            met(Occasion::MemberLost);
            model.history.lost.insert(Try::from(&**identity));
        }
    }
}

/// Records the effects of a write; called after the checks.
pub fn note(model: &mut JobModel, applied_write: &AppliedWrite<'_>) {
    let mut touched: BTreeSet<Namespaced> = BTreeSet::new();
    for seen in &applied_write.events {
        match seen {
            ModelEvent::Intent(_, (_, Some(identity))) => {
                let one = Try::from(&**identity);
                let array = model.statuses.get(&one.job).and_then(|status| status.array.as_ref());
                if let Some(index) = array.and_then(|array| array.members.get(&one.slot.index)) {
                    model.history.indexes.insert(one.clone(), *index);
                }
                model.history.made.insert(one);
            }
            ModelEvent::GroupStatus(id, (_, after)) => {
                let waiting = &mut model.history.waiting;
                match after.as_ref().is_some_and(|after| after.phase == PodGroupPhase::Pending) {
                    true => drop(waiting.entry(id.clone()).or_insert(applied_write.at)),
                    false => drop(waiting.remove(id)),
                }
            }
            // The job's tasks may need other numbers of members now.
            ModelEvent::Job(id, _) => drop(touched.insert(id.clone())),
            ModelEvent::PodStatus(place, Some(pod_state)) => {
                let Some(identity) = model.realities.get(place) else { continue };
                touched.insert(identity.job.clone());
                if pod_state.phase.has_ended() {
                    model.history.ended.insert(Try::from(&**identity), pod_state.exit_code(None));
                }
            }
            ModelEvent::Command(id, (Some(command), None)) if applied_write.process().is_some() => {
                model.history.consumed.insert(*id);
                if let rcfarm_api::command::Target::Job { job, .. } = &command.target
                    && let Some(seen) = model.jobs.get(job)
                {
                    model.history.commanded.insert((job.clone(), seen.uid));
                }
            }
            ModelEvent::Reality(_, (before, after)) => {
                touched.extend(before.iter().chain(after).map(|identity| identity.job.clone()));
            }
            _ => {}
        }
    }
    for id in touched {
        note_ready(model, &id, applied_write.at);
    }
}

/// Records which tasks of a job are ready for their dependents.
pub fn note_ready(model: &mut JobModel, id: &Namespaced, at: Duration) {
    let ready: Vec<_> = match model.spec(id) {
        Some((uid, spec)) => {
            ready_tasks(model, id, uid, spec).map(|task| (id.clone(), uid, task)).collect()
        }
        None => Vec::new(),
    };
    let history = &mut model.history;
    let were: Vec<_> = history.ready_now.iter().filter(|(job, ..)| job == id).collect();
    let were: Vec<_> = were.into_iter().cloned().collect();
    for key in were {
        history.ready_now.remove(&key);
        history.ready.insert(key, at);
    }
    history.ready_now.extend(ready);
}

/// Tasks with at least `minAvailable` members that run or have succeeded, by the nodes' statuses.
pub fn ready_tasks<'a>(
    model: &'a JobModel,
    id: &'a Namespaced,
    uid: JobUid,
    spec: &'a JobSpec,
) -> impl Iterator<Item = String> + 'a {
    let there = move |task: &str| {
        let own = model.real_of(id).filter(|(place, identity)| {
            let pod_state = model.pod_states.get(*place);
            identity.uid == uid
                && identity.slot.task == task
                && pod_state.is_some_and(|s| {
                    s.phase == PodPhase::Succeeded || s.phase == PodPhase::Running && s.ready
                })
        });
        own.count()
    };
    spec.tasks.iter().filter_map(move |task| {
        let wanted = task.min_available.unwrap_or(0) as usize;
        (there(&task.name) >= wanted).then(|| task.name.clone())
    })
}
