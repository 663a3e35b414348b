//! Liveness of CronJobs and JobFlows after the faults have ended.

use std::collections::BTreeSet;

use crate::checks::{minute_in, misjudged};
use crate::facts::{AFTER_FAULTS, CheckFacts};
use crate::model::FlowModel;
use crate::workload::hostile::is_hostile;
use crate::workload::schedules;
use rcfarm_api::Timestamp;
use rcfarm_api::cron;
use rcfarm_api::flow::{self, FlowPhase};
use rcfarm_api::ids::{Namespaced, SessionId};
use rcfarm_store::time::Clock as _;

/// Describes what is not settled, with the invariant that it violates; `None`: everything is.
#[must_use]
pub fn unsettled(
    model: &FlowModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
) -> Option<(u32, String)> {
    let lives = |session: Option<&SessionId>| {
        let process = session.and_then(|session| facts.sessions.get(session));
        process.is_some_and(|process| live.contains(process))
    };
    let now = facts.users_clock.as_ref()?.wall();
    let mut crons = model.crons.keys().filter(|id| !is_hostile(id));
    let crons = crons.find_map(|id| match lives(model.cron_owners.get(id)) {
        true => cron(model, facts, id, now),
        false => Some((27, format!("CronJob {id} has no owner that lives"))),
    });
    let flows = || {
        let mut flows = model.flows.keys().filter(|id| !is_hostile(id));
        flows.find_map(|id| match lives(model.flow_owners.get(id)) {
            true => flow(model, id),
            false => Some((27, format!("JobFlow {id} has no owner that lives"))),
        })
    };
    crons.or_else(flows).or_else(|| leftovers(model)).or_else(|| dispatched(model))
}

/// 48: a token makes one job of a template.
fn dispatched(model: &FlowModel) -> Option<(u32, String)> {
    let ((template, token), jobs) = model.dispatched.iter().find(|(_, jobs)| jobs.len() > 1)?;
    Some((48, format!("{token} of {template} made {jobs:?}")))
}

/// 39: no run is due any more, and those that were due in quiet times were made.
fn cron(
    model: &FlowModel,
    facts: &CheckFacts,
    id: &Namespaced,
    now: Timestamp,
) -> Option<(u32, String)> {
    let not_yet = |what: String| Some((27, format!("CronJob {id} {what}")));
    let record = &model.crons[id];
    let Some(document) = record.document.as_ref().filter(|_| !record.deleting) else {
        return not_yet("is not valid, or is not gone".to_owned());
    };
    let Some(status) = model.cron_statuses.get(id).filter(|status| status.uid == record.uid) else {
        return not_yet("has no status".to_owned());
    };
    if schedules::is_due_soon(document, now) {
        return not_yet("is due again soon".to_owned());
    }
    let Some(considered) = status.considered else {
        return not_yet("counts from no time on".to_owned());
    };
    if let Some(minute) = schedules::due_between(document, considered, now).first() {
        return not_yet(format!("has not made the run of minute {minute}: {status:?}"));
    }
    let healed_at = facts.healed_at.filter(|_| model.restored_at.is_none())?;
    // Whatever the policy allows must have been made: from then on nobody interferes.
    let spec = &document["spec"];
    let made: BTreeSet<i64> =
        model.jobs_of(cron::KIND, id, record.uid).filter_map(|(job, _)| minute_in(job)).collect();
    let quiet = healed_at.checked_add(AFTER_FAULTS).ok()?;
    let mut due = schedules::due_between(document, quiet, now);
    if spec.get("concurrencyPolicy").is_some() {
        // While a job is active, runs wait or replace it; the last one is made in the end.
        due = due.split_off(due.len().saturating_sub(1));
    }
    let is_foreign = |minute: &i64| {
        // Another CronJob of the name, which was dropped, has made a job of that name.
        let name = format!("{id}-{minute}").parse::<Namespaced>();
        name.is_ok_and(|name| {
            let made = model.made.get(&name).into_iter().flatten();
            made.into_iter().any(|job| job.owner.uid != record.uid)
        })
    };
    let missing = due.iter().find(|minute| !made.contains(minute) && !is_foreign(minute))?;
    Some((39, format!("CronJob {id} did not make the run of minute {missing}: {status:?}")))
}

/// 40: the flow is over, and has the phase that its jobs imply.
fn flow(model: &FlowModel, id: &Namespaced) -> Option<(u32, String)> {
    let not_yet = |what: String| Some((27, format!("JobFlow {id} {what}")));
    let record = &model.flows[id];
    let Some(document) = record.document.as_ref().filter(|_| !record.deleting) else {
        return not_yet("is not valid, or is not gone".to_owned());
    };
    let Some(status) = model.flow_statuses.get(id).filter(|status| status.uid == record.uid) else {
        return not_yet("has no status".to_owned());
    };
    if status.completion_time.is_none() {
        return not_yet(format!(
            "is {} ({}: {})",
            status.state.phase, status.reason, status.message
        ));
    }
    if let Some(why) = misjudged(id, status, document, model) {
        return Some((40, format!("JobFlow {id}: {why}")));
    }
    if document["spec"]["jobRetainPolicy"] == "delete" && status.state.phase == FlowPhase::Succeed {
        let left = model.jobs_of(flow::KIND, id, record.uid).find(|(_, job)| !job.gone);
        return left.and_then(|(job, _)| not_yet(format!("has succeeded, and {job} is there")));
    }
    None
}

/// Nothing remains of records that are gone but their jobs.
fn leftovers(model: &FlowModel) -> Option<(u32, String)> {
    let cron = model.cron_statuses.keys().find(|id| !model.crons.contains_key(*id));
    let flow = model.flow_statuses.keys().find(|id| !model.flows.contains_key(*id));
    cron.or(flow).map(|id| (27, format!("{id} is gone, and its status is there")))
}
