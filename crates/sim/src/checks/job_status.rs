//! Changes of jobs' statuses: edges, conditions, counters, commands, audit log, and the end (15, 21, 22, 24, 25).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::view::{clock, identities};
use crate::facts::{CheckFacts, Report};
use crate::model::{AppliedWrite, JobModel, ModelEvent, ModelJob, Pair, Try};
use crate::reached::{Occasion, met, met_if};
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{Details, JobStep};
use rcfarm_api::command::{Command, CommandAction, Target};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, JobUid};
use rcfarm_api::job::status::{JobConditionType, JobStatus, holds};
use rcfarm_api::queue::spec::Desired;

/// Checks one write of a process.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    if applied_write.process().is_none() {
        return;
    }
    for seen in &applied_write.events {
        match seen {
            ModelEvent::JobStatus(id, (before, Some(after))) => {
                status(applied_write, id, (before, after), model, facts, report);
            }
            ModelEvent::Job(id, (Some(record), None)) => {
                gone(applied_write, id, record, model, facts, report)
            }
            ModelEvent::Command(id, (Some(command), None)) => {
                consumed(applied_write, *id, command, model, facts, report)
            }
            _ => {}
        }
    }
    for seen in &applied_write.events {
        let (ModelEvent::Pod(pair) | ModelEvent::Intent(_, pair)) = seen else { continue };
        let told = |id: &Namespaced| {
            let of = |seen: &ModelEvent| matches!(seen, ModelEvent::JobStatus(of, _) if of == id);
            // Leftovers of a job without a record are collected.
            applied_write.events.iter().any(of) || !model.jobs.contains_key(id)
        };
        // The status announced the batched start; created pods are checked against it with the pods.
        let is_made = matches!(pair, (None, Some(_)));
        if let Some(identity) =
            identities(pair).find(|identity| !told(&identity.job)).filter(|_| !is_made)
        {
            report(22, format!("pods of {} were changed, and its status was not", identity.job));
        }
    }
    batched_starts(applied_write, model, report);
}

/// 15: transactions that create pods without a new status have audit records of these pods.
fn batched_starts(applied_write: &AppliedWrite<'_>, model: &JobModel, report: Report<'_>) {
    let status_of = |seen: &ModelEvent| match seen {
        ModelEvent::JobStatus(id, _) => Some(id.clone()),
        _ => None,
    };
    let told: BTreeSet<Namespaced> = applied_write.events.iter().filter_map(status_of).collect();
    let mut added: BTreeMap<&Namespaced, BTreeSet<String>> = BTreeMap::new();
    for seen in &applied_write.events {
        if let ModelEvent::Intent(place, (_, Some(identity))) = seen
            && !told.contains(&identity.job)
        {
            added
                .entry(&identity.job)
                .or_default()
                .insert(format!("{}@{}", identity.slot, place.node));
        }
    }
    for (id, added) in added {
        let steps: Vec<&JobStep> = logged(applied_write, id).collect();
        let is = |step: &JobStep| step.pods_added.iter().cloned().collect::<BTreeSet<_>>();
        // Several transactions of one batched start may have been applied as one.
        let logged: BTreeSet<String> = steps.iter().flat_map(|step| is(step)).collect();
        let count: usize = steps.iter().map(|step| step.pods_added.len()).sum();
        if logged != added || count != added.len() {
            report(15, format!("{id}: {added:?} made; the log says {steps:?}"));
        }
        let phase = model.statuses.get(id).map(|status| status.state.phase.to_string());
        if let Some(step) = steps.iter().find(|step| phase.as_ref() != Some(&step.phase)) {
            report(15, format!("{id} is {phase:?}; the log says {step:?}"));
        }
    }
}

fn logged<'d>(
    applied_write: &'d AppliedWrite<'_>,
    id: &'d Namespaced,
) -> impl Iterator<Item = &'d JobStep> {
    let steps = applied_write.events.iter().filter_map(|seen| match seen {
        ModelEvent::Audit(details) => match &**details {
            Details::JobStep(step) => Some(step),
            _ => None,
        },
        _ => None,
    });
    steps.filter(move |step| step.job == *id)
}

fn status(
    applied_write: &AppliedWrite<'_>,
    id: &Namespaced,
    (before, after): (&Option<Arc<JobStatus>>, &Arc<JobStatus>),
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let revision = before.as_ref().map_or(0, |before| before.revision);
    if after.revision != revision + 1 {
        report(15, format!("{id}: revision {} follows {revision}", after.revision));
    }
    conditions(id, after, report);
    let fresh = JobStatus { uid: after.uid, ..JobStatus::default() };
    let before = before.as_deref().filter(|before| before.uid == after.uid).unwrap_or(&fresh);
    edges(id, before, after, report);
    log(applied_write, id, before, after, report);
    let Some((uid, spec)) = model.spec(id) else { return };
    // An owner that could not reconcile a job says so in a status based on what it knows.
    let is_said = matches!(after.state.reason.as_str(), "Quarantined" | "InvalidRecord");
    if after.uid != uid {
        if is_said {
            return;
        }
        report(20, format!("{id} is {uid}, and its status tells of {}", after.uid));
        return;
    }
    counters(applied_write, id, (before, after), spec, model, report);
    let now = clock(applied_write, facts);
    let fails = after.state.phase == JobPhase::Failed && before.state.phase != JobPhase::Failed;
    let ended = after.state.phase.is_final() && !before.state.phase.is_final();
    met_if(ended, Occasion::Ended);
    waits_for_others(id, after, spec, model);
    if fails && after.state.reason == "DeadlineExceeded" {
        met(Occasion::DeadlinePassed);
        let due = before.start_time.zip(spec.active_deadline);
        let due = due.and_then(|(start, limit)| start.checked_add(limit).ok());
        if due.zip(now).is_none_or(|(due, now)| now < due) {
            report(24, format!("{id} failed at {now:?}, its deadline is {due:?}"));
        }
    } else if fails && after.state.reason != "MaxRetryReached" {
        let failed = failures(model, id, uid).any(|(_, code)| code.is_some());
        if !failed {
            report(
                22,
                format!("{id} failed ({}), and none of its members did", after.state.reason),
            );
        }
    }
    let done = after.state.phase == JobPhase::Completed && before.state.phase.starts_members();
    let ended_well = model
        .history
        .ended
        .iter()
        .any(|(of, code)| of.job == *id && of.uid == uid && *code == Some(0));
    if done && !ended_well && spec.replicas() > 0 {
        report(21, format!("{id} completed, and none of its members did"));
    }
}

/// Whether a job is placed and members wait for other tasks.
fn waits_for_others(id: &Namespaced, status: &JobStatus, spec: &JobSpec, model: &JobModel) {
    let made = |task: &str| {
        model
            .intents
            .values()
            .any(|(identity, _)| identity.job == *id && identity.slot.task == task)
    };
    let waits = spec.tasks.iter().any(|task| !task.depends_on.is_empty() && !made(&task.name));
    let group = model.group_statuses.get(id).zip(model.groups.get(id));
    let placed = group.is_some_and(|(status, group)| {
        group.record.as_ref().is_some_and(|record| status.may_start(&record.spec))
    });
    met_if(waits && placed && status.state.phase.starts_members(), Occasion::DependentWaits);
}

/// Attempts of a job that failed.
pub fn failures<'b>(
    model: &'b JobModel,
    id: &'b Namespaced,
    uid: JobUid,
) -> impl Iterator<Item = (&'b Try, Option<i32>)> {
    let own = model.history.ended.iter().filter(move |(of, _)| of.job == *id && of.uid == uid);
    own.filter(|(_, code)| **code != Some(0)).map(|(of, code)| (of, *code))
}

/// 21: exactly one of Succeeded and Failed after the end, none before; never both Running and Restarting.
fn conditions(id: &Namespaced, status: &JobStatus, report: Report<'_>) {
    use JobConditionType as C;
    let [good, bad, runs, restarts] = [C::Succeeded, C::Failed, C::Running, C::Restarting]
        .map(|kind| holds(&status.conditions, kind));
    let phase = status.state.phase;
    let wanted = (phase == JobPhase::Completed, phase.is_final() && phase != JobPhase::Completed);
    if (good, bad) != wanted {
        report(21, format!("{id} is {phase}, Succeeded is {good} and Failed is {bad}"));
    }
    if runs && restarts {
        report(21, format!("{id} is Running and Restarting"));
    }
}

/// 21: the phases passed, in order, follow listed edges.
fn edges(id: &Namespaced, before: &JobStatus, after: &JobStatus, report: Report<'_>) {
    let (old, new): (Vec<JobPhase>, Vec<JobPhase>) = (
        before.phases.iter().map(|record| record.status).collect(),
        after.phases.iter().map(|record| record.status).collect(),
    );
    let entered = (0..=new.len()).find_map(|count| {
        let (kept, entered) = new.split_at(new.len() - count);
        let was: Vec<JobPhase> = old.iter().copied().filter(|p| !entered.contains(p)).collect();
        (was == kept).then_some(entered)
    });
    let Some(entered) = entered else {
        report(21, format!("{id}: its phases were {old:?} and are {new:?}"));
        return;
    };
    let mut at = before.state.phase;
    for to in entered {
        if !(listed(at, *to) || old.is_empty() && *to == JobPhase::Pending) {
            report(21, format!("{id} went from {at} to {to}"));
        }
        at = *to;
    }
    if at != after.state.phase {
        report(21, format!("{id} is {}, and entered {entered:?}", after.state.phase));
    }
}

/// The edges of Volcano's machine (`volcano.md` §2.1), and those of `docs/reference/differences-volcano.md`.
fn listed(from: JobPhase, to: JobPhase) -> bool {
    use JobPhase as P;
    match from {
        P::Pending | P::Running => {
            !matches!(to, P::Aborted | P::Terminated)
                && from != to
                && !(from == P::Pending && to == P::Completed)
        }
        P::Restarting => {
            matches!(to, P::Pending | P::Aborting | P::Completing | P::Terminating | P::Failed)
        }
        P::Aborting => matches!(to, P::Aborted | P::Restarting | P::Terminating),
        P::Aborted => matches!(to, P::Restarting | P::Terminating),
        P::Completing => to == P::Completed,
        P::Terminating => to == P::Terminated,
        P::Completed | P::Terminated | P::Failed => false,
    }
}

/// 15: each change has one audit record, in the same transaction.
fn log(
    applied_write: &AppliedWrite<'_>,
    id: &Namespaced,
    before: &JobStatus,
    after: &JobStatus,
    report: Report<'_>,
) {
    let steps: Vec<&JobStep> = logged(applied_write, id).collect();
    let mut added: BTreeSet<String> = BTreeSet::new();
    let mut moved = false;
    let mut command = None;
    for seen in &applied_write.events {
        match seen {
            ModelEvent::Intent(place, (_, Some(identity))) if identity.job == *id => {
                _ = added.insert(format!("{}@{}", identity.slot, place.node))
            }
            ModelEvent::Intent(_, (Some(identity), None)) if identity.job == *id => moved = true,
            ModelEvent::Command(of, (Some(asked), None)) => {
                if matches!(&asked.target, Target::Job { job, .. } if job == id) {
                    command = Some(*of);
                }
            }
            _ => {}
        }
    }
    let told =
        before.state.phase != after.state.phase || !added.is_empty() || moved || command.is_some();
    let [step] = steps[..] else {
        if told || !steps.is_empty() {
            report(15, format!("{id}: {} records of a step in the log", steps.len()));
        }
        return;
    };
    let agrees = step.phase_before == before.state.phase.to_string()
        && step.phase == after.state.phase.to_string()
        && step.pods_added.iter().cloned().collect::<BTreeSet<_>>() == added
        && step.command == command
        && step.retry_count == after.retry_count;
    if !agrees {
        let (from, to) = (before.state.phase, after.state.phase);
        report(15, format!("{id}: {from} to {to}, {added:?} made; the log says {step:?}"));
    }
}

/// 22: counters grow by one with the restart that they count, and never exceed it or their limit. 20: only a restart of
/// the whole job begins a new attempt of it.
fn counters(
    applied_write: &AppliedWrite<'_>,
    id: &Namespaced,
    (before, after): (&JobStatus, &JobStatus),
    spec: &JobSpec,
    model: &JobModel,
    report: Report<'_>,
) {
    let asked =
        logged(applied_write, id).find_map(|step| step.asked.as_deref()).unwrap_or("nothing");
    let by_person = logged(applied_write, id).any(|step| step.command.is_some());
    let restart = matches!(asked, "RestartJob" | "RestartTask" | "RestartPod");
    let (old, new) = (before.retry_count, after.retry_count);
    if new != old && (new != old + 1 || !restart || by_person) {
        report(22, format!("{id}: {old} retries became {new}, asked was {asked}"));
    }
    met_if(new > old, Occasion::Retried);
    met_if(new > old && new == spec.max_retry, Occasion::LastRetry);
    if new > spec.max_retry {
        report(22, format!("{id} made {new} retries of {}", spec.max_retry));
    }
    let (old, new) = (before.version, after.version);
    if new != old && (new != old + 1 || asked != "RestartJob") {
        report(20, format!("{id}: attempt {old} became {new}, asked was {asked}"));
    }
    let mut failed = 0;
    for (name, memory) in &after.tasks {
        failed += memory.failures;
        let was = before.tasks.get(name);
        for (index, tries) in &memory.attempts {
            let old = was.and_then(|was| was.attempts.get(index)).copied().unwrap_or(0);
            if !(old..=old + 1).contains(tries) {
                report(22, format!("{id}: {name}-{index} was tried {old} times and then {tries}"));
            }
        }
        if was.is_some_and(|was| was.failures > memory.failures) {
            report(22, format!("{id}: failures of {name} were forgotten"));
        }
    }
    if model.restored_at.is_some() {
        return;
    }
    let uid = after.uid;
    let faults = failures(model, id, uid).count();
    let own_faults = failures(model, id, uid).filter(|(_, code)| code.is_some()).count();
    let lost = model.history.lost.iter().filter(|of| of.job == *id && of.uid == uid).count();
    if after.retry_count as usize > faults + lost {
        let n = after.retry_count;
        report(
            22,
            format!("{id}: {n} retries were counted, {faults} members failed, {lost} were lost"),
        );
    }
    if failed as usize > own_faults {
        report(22, format!("{id}: {failed} failures were counted, there were {own_faults}"));
    }
}

/// When a job's record expires.
fn expires(spec: &JobSpec, status: &JobStatus) -> Option<Timestamp> {
    let end = match status.state.phase {
        phase if phase.is_final() => status.completion_time,
        JobPhase::Aborted if !spec.suspend => Some(status.state.last_transition_time),
        _ => None,
    };
    end?.checked_add(spec.ttl?).ok()
}

/// 25: a record is deleted by a user or after its TTL, and nothing of it remains.
fn gone(
    applied_write: &AppliedWrite<'_>,
    id: &Namespaced,
    record: &ModelJob,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    met(if record.deleting { Occasion::Farewell } else { Occasion::TimeUp });
    if record.spec.is_none() && !record.deleting {
        report(25, format!("{id} was deleted, and nobody can read what it says"));
    }
    let status = applied_write.events.iter().find_map(|seen| match seen {
        ModelEvent::JobStatus(of, (before, None)) if of == id => before.as_deref(),
        _ => None,
    });
    if let Some(spec) = record.spec.as_ref().filter(|_| !record.deleting) {
        let due = status.filter(|status| status.uid == record.uid);
        let due = due.and_then(|status| expires(spec, status));
        let now = clock(applied_write, facts);
        if due.zip(now).is_none_or(|(due, now)| now < due) {
            let phase = status.map(|status| status.state.phase);
            report(25, format!("{id} was deleted when it was {phase:?}; due {due:?}, now {now:?}"));
        }
    }
    if let Some((place, _)) = model.pods.iter().find(|(_, identity)| identity.job == *id) {
        report(25, format!("{id} was deleted, and {}/{} stays", place.node, place.pod));
    }
    if model.groups.contains_key(id) {
        report(25, format!("{id} was deleted, and its group stays"));
    }
}

/// A command is consumed in the transaction that executes it, or, if the job is deleted (25), with the job.
fn consumed(
    applied_write: &AppliedWrite<'_>,
    command_id: uuid::Uuid,
    command: &Command,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    if model.history.consumed.contains(&command_id) {
        report(22, format!("command {command_id} was carried out twice"));
    }
    let Target::Job { job, uid, task, index } = &command.target else {
        return queues(command, model, report);
    };
    if !model.jobs.contains_key(job) {
        return;
    }
    let pair: Option<&Pair<JobStatus>> = applied_write.events.iter().find_map(|seen| match seen {
        ModelEvent::JobStatus(id, pair) if id == job => Some(pair),
        _ => None,
    });
    let Some((before, after)) = pair else {
        report(22, format!("{} of {job} was consumed, and nothing was done", command.action));
        return;
    };
    let (Some(after), Some((record_uid, spec))) = (after, model.spec(job)) else { return };
    let earlier = model.given.get(&command_id).is_some_and(|given| *given < record_uid.0);
    let of_another = uid.is_some_and(|uid| JobUid(uid) != record_uid);
    if earlier || of_another || spec.deleting {
        return;
    }
    let before = before.as_ref().filter(|before| before.uid == after.uid);
    let due = before.and_then(|before| expires(spec, before));
    if due.zip(clock(applied_write, facts)).is_some_and(|(due, now)| now >= due) {
        return;
    }
    let from = before.map_or(JobPhase::Pending, |before| before.state.phase);
    let members = match (task, index) {
        (Some(task), index) => {
            spec.task(task).is_some_and(|task| index.unwrap_or(0) < task.replicas)
        }
        (None, _) => false,
    };
    use JobPhase as P;
    let at_work = matches!(from, P::Pending | P::Running | P::Restarting);
    let stopped = matches!(from, P::Aborting | P::Aborted);
    let wanted = match command.action {
        CommandAction::AbortJob if at_work => P::Aborting,
        CommandAction::TerminateJob if at_work || stopped => P::Terminating,
        CommandAction::CompleteJob if at_work => P::Completing,
        CommandAction::RestartJob if at_work => P::Restarting,
        CommandAction::RestartTask | CommandAction::RestartPod if at_work && members => {
            P::Restarting
        }
        CommandAction::ResumeJob if stopped => P::Restarting,
        _ => return,
    };
    met(Occasion::CommandCarriedOut);
    if after.state.phase != wanted {
        let action = command.action;
        report(22, format!("{action} of {job}: {from} became {}, not {wanted}", after.state.phase));
    }
}

fn queues(command: &Command, model: &JobModel, report: Report<'_>) {
    let Target::Queue { queue } = &command.target else { return };
    let wanted = match command.action {
        CommandAction::OpenQueue => Desired::Open,
        CommandAction::CloseQueue => Desired::Closed,
        _ => return,
    };
    let state = model.queues.get(queue).and_then(|spec| Some(spec.as_ref()?.state));
    if state != Some(wanted) {
        report(22, format!("{} of {queue} was consumed, and it is {state:?}", command.action));
    }
}
