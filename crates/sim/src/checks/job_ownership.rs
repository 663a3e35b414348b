//! Ownership of jobs and schedulers (1).

use std::collections::BTreeSet;

use super::view::identities;
use crate::facts::{CheckFacts, Report};
use crate::model::{AppliedWrite, JobModel, ModelEvent};
use rcfarm_api::ids::Namespaced;

/// 1: a writer of a job holds its lock; a writer of statuses of groups and queues holds a scheduler's.
pub fn check(
    applied_write: &AppliedWrite<'_>,
    model: &JobModel,
    facts: &CheckFacts,
    report: Report<'_>,
) {
    let Some(process) = applied_write.process() else { return };
    let mut jobs: BTreeSet<&Namespaced> = BTreeSet::new();
    let mut orders = false;
    for seen in &applied_write.events {
        match seen {
            // The farm of the record that made a job writes it, too: `checks/flows.rs`.
            ModelEvent::Job(_, (_, Some(job))) if job.owner.is_some() => {}
            ModelEvent::Job(id, _) | ModelEvent::JobStatus(id, _) | ModelEvent::Group(id) => {
                _ = jobs.insert(id)
            }
            ModelEvent::Pod(pair) | ModelEvent::Intent(_, pair) => {
                jobs.extend(identities(pair).map(|m| &m.job))
            }
            ModelEvent::GroupStatus(..)
            | ModelEvent::QueueStatus
            | ModelEvent::SchedulerStatus
            | ModelEvent::Allocations { of_members: true } => orders = true,
            _ => {}
        }
    }
    let mine = |session: Option<&rcfarm_api::ids::SessionId>| {
        session.is_some_and(|session| facts.sessions.get(session) == Some(&process))
    };
    for id in jobs {
        if !mine(model.job_owners.get(id)) {
            report(1, format!("#{process} changed {id}, whose lock it does not hold"));
        }
    }
    if orders && !model.scheduler_owners.values().any(|session| mine(Some(session))) {
        report(1, format!("#{process} ordered the queues, and holds no scheduler's lock"));
    }
}
