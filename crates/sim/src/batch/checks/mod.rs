//! What must never happen to jobs, gangs, queues and commands, looked at after every applied write. The numbers are
//! those of the list of invariants.
//!
//! | file | invariants |
//! |---|---|
//! | `gang.rs` | 14 allocations, 16 gangs whole |
//! | `queue.rs` | 17 limits and counters, 18 order, 19 nobody is put out, 21 edges of queues and groups |
//! | `steps.rs` | 15 audit, 21 edges and conditions, 22 counters, 25 the end of a job; commands, once |
//! | `pods.rs` | 20 uids and attempts, 22 tries, 23 dependencies, 24 pauses |
//!
//! Here: 1 owners. What a farm decides it decides on views that are a moment old; where a transaction cannot guard a
//! view (what nodes say), a rule holds if there was a moment within [`VIEW`] at which the write would have been right.

mod gang;
mod pods;
mod queue;
mod steps;

use std::collections::BTreeSet;

use super::model::{AppliedBatchWrite, BatchModel, ModelEvent};
use crate::invariant::{CheckFacts, Say, VIEW};
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::ids::PodRef;

/// Looks at one write; the model is what it left.
pub fn check(
    applied_write: &AppliedBatchWrite,
    model: &BatchModel,
    facts: &CheckFacts,
    say: Say<'_>,
) {
    gang::check(applied_write, model, say);
    queue::check(applied_write, model, facts, say);
    pods::starts_on_nodes(applied_write, model, say);
    let Some(process) = applied_write.process() else { return };
    owners(applied_write, model, process, facts, say);
    steps::check(applied_write, model, facts, say);
    pods::check(applied_write, model, facts, say);
}

/// 1: whoever changes a job, or what orders the queues, holds its lock.
fn owners(
    applied_write: &AppliedBatchWrite,
    model: &BatchModel,
    process: u32,
    facts: &CheckFacts,
    say: Say<'_>,
) {
    let mut jobs: BTreeSet<&Namespaced> = BTreeSet::new();
    let mut orders = false;
    for seen in &applied_write.changes {
        match seen {
            ModelEvent::Job(id, _) | ModelEvent::JobStatus(id, _) | ModelEvent::Group(id) => {
                _ = jobs.insert(id)
            }
            ModelEvent::Pod(pair) | ModelEvent::Intent(_, pair) => {
                jobs.extend(identities(pair).map(|m| &m.job))
            }
            ModelEvent::GroupStatus(..)
            | ModelEvent::QueueStatus
            | ModelEvent::SchedulerStatus
            | ModelEvent::Allocations => orders = true,
            _ => {}
        }
    }
    let mine = |session: Option<&rcfarm_api::ids::SessionId>| {
        session.is_some_and(|session| facts.sessions.get(session) == Some(&process))
    };
    for id in jobs {
        if !mine(model.job_owners.get(id)) {
            say(1, format!("#{process} changed {id}, whose lock it does not hold"));
        }
    }
    if orders && !model.scheduler_owners.values().any(|session| mine(Some(session))) {
        say(1, format!("#{process} ordered the queues, and holds no scheduler's lock"));
    }
}

/// The marks before and after.
fn identities(pair: &super::model::Pair<PodIdentity>) -> impl Iterator<Item = &PodIdentity> {
    pair.0.iter().chain(&pair.1).map(|identity| &**identity)
}

/// The latest time that the clock of the process has shown which did it. A write is decided first and written then, and
/// the clock may have jumped back in between.
fn clock(applied_write: &AppliedBatchWrite, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().max()
}

/// The earliest that it has shown, for it may have jumped ahead.
fn clock_before(applied_write: &AppliedBatchWrite, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().min()
}

/// Whether a node may have looked down within [`VIEW`].
pub fn maybe_down(model: &BatchModel, place: &PodRef, applied_write: &AppliedBatchWrite) -> bool {
    let from = applied_write.write.at.saturating_sub(VIEW);
    let gone = model.nodes.get(&place.node).is_some_and(|node| node.gone);
    let absences = model.history.absences.get(&place.node);
    gone || absences.is_some_and(|all| all.iter().any(|(_, until)| *until >= from))
}
