//! CronJobs and JobFlows: who writes them, what the audit log says of their ends, and the jobs that they make (1, 15, 23,
//! 39, 40).

use std::collections::BTreeSet;

use serde_json::Value;

use super::steps::{Judgement, StepProgress};
use super::view::{clock, clock_before};
use crate::facts::{CheckFacts, Report, VIEW};
use crate::model::{AppliedWrite, FlowEvent, FlowModel, MadeJob, ModelEvent, SimModel};
use crate::reached::{Occasion, met, met_if};
use crate::workload::hostile::is_hostile;
use crate::workload::schedules;
use rcfarm_api::Timestamp;
use rcfarm_api::audit::{DELETED, Details};
use rcfarm_api::cron;
use rcfarm_api::flow::{self, FlowPhase, FlowStatus};
use rcfarm_api::ids::{Namespaced, SessionId};
use rcfarm_store::Index;

/// Checks one write of a process. What the records of a hostile tenant mean is not reckoned.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &SimModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let Some(process) = applied_write.process() else { return };
    let flows = &model.flows;
    let is_mine = |session: Option<&SessionId>| {
        session.is_some_and(|session| facts.sessions.get(session) == Some(&process))
    };
    for seen in &applied_write.of_flows {
        let (id, holds) = match seen {
            FlowEvent::Made(id, uid) => {
                let Some(job) = flows.made.get(id).and_then(|made| made.last()) else { continue };
                if !is_hostile(id) {
                    made(applied_write, (id, *uid, job), flows, facts, report);
                }
                (id, is_mine(flows.holder(id, &job.owner)))
            }
            FlowEvent::Changed(id, owner) => {
                let is_there = model.jobs.jobs.contains_key(id);
                let own = is_mine(model.jobs.job_owners.get(id));
                (id, !is_there || own || is_mine(flows.holder(id, owner)))
            }
            FlowEvent::CronStatus(id) | FlowEvent::CronGone(id) => {
                (id, is_mine(flows.cron_owners.get(id)))
            }
            FlowEvent::FlowStatus(id, (before, after)) => {
                if let Some(after) = after
                    && !is_hostile(id)
                {
                    completed(id, before.as_deref(), after, flows, report);
                }
                (id, is_mine(flows.flow_owners.get(id)))
            }
            FlowEvent::FlowGone(id) => (id, is_mine(flows.flow_owners.get(id))),
        };
        if !holds {
            report(1, format!("#{process} changed {id}, whose lock it does not hold"));
        }
    }
    deletions(applied_write, report);
}

/// 15: the log says that a record was deleted in the transaction that deletes it, and in no other: `audit verify` folds
/// that.
fn deletions(applied_write: &AppliedWrite<'_>, report: Report<'_>) {
    let gone = applied_write.of_flows.iter().filter_map(|event| match event {
        FlowEvent::CronGone(id) => Some((cron::KIND, id)),
        FlowEvent::FlowGone(id) => Some((flow::KIND, id)),
        _ => None,
    });
    let logged = applied_write.events.iter().filter_map(|event| match event {
        ModelEvent::Audit(details) => match &**details {
            Details::RecordStep(step) if step.reason == DELETED => {
                Some((step.kind.as_str(), &step.record))
            }
            _ => None,
        },
        _ => None,
    });
    let (gone, logged): (BTreeSet<_>, BTreeSet<_>) = (gone.collect(), logged.collect());
    if gone != logged {
        report(15, format!("{gone:?} were deleted, the log says {logged:?}"));
    }
}

fn made(
    applied_write: &AppliedWrite<'_>,
    (id, uid, job): (&Namespaced, Index, &MadeJob),
    model: &FlowModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let owner = &job.owner;
    let is_cron = owner.kind == cron::KIND;
    let number = if is_cron { 39 } else { 40 };
    let earlier = model.made.get(id).into_iter().flatten();
    if earlier.filter(|earlier| earlier.owner == *owner && earlier.uid != uid).count() > 0 {
        report(number, format!("{id} was made again by {} {}", owner.kind, owner.name));
        return;
    }
    let record = model.record(id, owner).filter(|record| !record.deleting);
    let Some(document) = record.and_then(|record| record.document.as_ref()) else {
        let what = "which is not there, not valid, or being deleted";
        report(number, format!("{id} was made by {} {}, {what}", owner.kind, owner.name));
        return;
    };
    match is_cron {
        true => run(applied_write, (id, uid, job), document, model, facts, report),
        false => step(id, job, document, model, report),
    }
}

/// 39: a scheduled time of a CronJob makes a job.
fn run(
    applied_write: &AppliedWrite<'_>,
    (id, uid, job): (&Namespaced, Index, &MadeJob),
    document: &Value,
    model: &FlowModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    met(Occasion::RunMade);
    let spec = &document["spec"];
    if spec["suspend"] == true {
        report(39, format!("{id} was made while its CronJob was suspended"));
    }
    let Some(minute) = minute_in(id) else {
        report(39, format!("{id} is not named after a minute"));
        return;
    };
    let due = Timestamp::from_second(minute * 60).unwrap_or_default();
    if !schedules::is_due(document, minute) {
        report(39, format!("{id} was made for {due}, which {} does not name", spec["schedule"]));
    }
    met_if(schedules::is_first_after_change(minute), Occasion::RunAtChange);
    if clock(applied_write, facts).is_some_and(|now| now < due) {
        report(39, format!("{id} was made before {due}"));
    }
    let deadline = spec["startingDeadlineSeconds"].as_i64();
    let late = clock_before(applied_write, facts).map(|now| now.duration_since(due).as_secs());
    if let (Some(deadline), Some(late)) = (deadline, late)
        && late > deadline + VIEW.as_secs().cast_signed()
    {
        report(39, format!("{id} was made {late} s late; its deadline is {deadline} s"));
    }
    let name = Namespaced { namespace: id.namespace.clone(), name: job.owner.name.clone() };
    let others = model.jobs_of(cron::KIND, &name, job.owner.uid);
    let active: Vec<&Namespaced> = others
        .filter(|(_, other)| {
            other.uid != uid && other.ended.is_none() && !other.gone && !other.marked
        })
        .map(|(other, _)| other)
        .collect();
    met_if(!active.is_empty(), Occasion::RunBesideOther);
    let allows = spec.get("concurrencyPolicy").is_none();
    if !allows && let Some(other) = active.first() {
        report(39, format!("{id} was made while {other} is active: {}", spec["concurrencyPolicy"]));
    }
}

/// The minute since 1970 in the name of a CronJob's job.
pub fn minute_in(id: &Namespaced) -> Option<i64> {
    id.name.as_str().rsplit_once('-')?.1.parse().ok()
}

/// 23: a step of a flow gets a job once its dependencies allow it.
fn step(id: &Namespaced, job: &MadeJob, document: &Value, model: &FlowModel, report: Report<'_>) {
    let flow = Namespaced { namespace: id.namespace.clone(), name: job.owner.name.clone() };
    let progress = StepProgress::of(&flow, job.owner.uid, document, model);
    let Some((step, attempt)) = progress.step_of(id) else {
        report(40, format!("{id} is of no step of {flow}"));
        return;
    };
    met_if(attempt > 0, Occasion::StepRetried);
    if attempt > 0 {
        if let Some(why) = progress.may_not_retry(step, attempt) {
            report(40, format!("{id} was made again: {why}"));
        }
        return;
    }
    met_if(progress.is_dependent(step), Occasion::StepMade);
    met_if(progress.runs_by_probe(step), Occasion::StepProbed);
    if let Some(why) = progress.may_not_run(step) {
        report(23, format!("{id} was made: {why}"));
    }
}

/// 40: a flow that says that it is over is over, and has the phase that its jobs imply.
fn completed(
    id: &Namespaced,
    before: Option<&FlowStatus>,
    after: &FlowStatus,
    model: &FlowModel,
    report: Report<'_>,
) {
    let was = before.is_some_and(|old| old.uid == after.uid && old.completion_time.is_some());
    let Some(record) = model.flows.get(id).filter(|record| record.uid == after.uid) else { return };
    let Some(document) = record.document.as_ref().filter(|_| !record.deleting) else { return };
    if was || after.completion_time.is_none() {
        return;
    }
    met(match after.state.phase {
        FlowPhase::Succeed => Occasion::FlowSucceeded,
        _ => Occasion::FlowFailed,
    });
    if let Some(why) = misjudged(id, after, document, model) {
        report(40, format!("{id} is over: {why}"));
    }
}

/// What is wrong with the status of a flow that is over.
pub fn misjudged(
    id: &Namespaced,
    status: &FlowStatus,
    document: &Value,
    model: &FlowModel,
) -> Option<String> {
    let progress = StepProgress::of(id, status.uid, document, model);
    match progress.judge(status) {
        Judgement::Wrong(why) => Some(why),
        Judgement::Ended { failed } => {
            let implied = if failed { FlowPhase::Failed } else { FlowPhase::Succeed };
            let phase = status.state.phase;
            (phase != implied).then(|| format!("it is {phase}, its jobs imply {implied}"))
        }
    }
}
