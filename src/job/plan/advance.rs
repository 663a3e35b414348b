//! One step of the state machine: which members stop, and the phase that begins. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::transition;
use super::triggers::{self, Trigger};
use super::{JobObserved, JobPlan};
use crate::job::frameworks::{FrameworkOutcome, TaskCounts, total};
use crate::job::machine::{JobFacts, JobRequest, Move, RetryBudget, Stop, step};
use crate::job::members::{MemberPod, MemberRemoveReason};
use crate::job::services;
use rcfarm_api::Timestamp;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::spec::{JobSpec, Slot};
use rcfarm_api::job::status::JobReason;

/// Takes one step of the state machine. Returns the removed members.
pub(super) fn advance(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    before: &TaskCounts<'_>,
    trigger: &Trigger,
    outcome: &FrameworkOutcome,
) -> BTreeSet<Slot> {
    let phase = plan.status.state.phase;
    let step = step(phase, trigger.ask, facts(seen, plan, before, trigger, outcome));
    let gone = stop_members(seen, plan, members, trigger, step);
    if step.counts {
        plan.status.retry_count += 1;
    }
    if step.to == JobPhase::Restarting && matches!(trigger.ask, JobRequest::Do(_)) {
        after_restart(seen, plan, step.stop, trigger);
    }
    if trigger.is_of_the_whole() {
        plan.status.delayed.clear();
    }
    let is_stopped = matches!(step.to, JobPhase::Aborting | JobPhase::Aborted);
    plan.status.suspended =
        is_stopped && (plan.status.suspended || trigger.ask == JobRequest::Suspend);
    if !step.to.is_active() || step.stop == Stop::All {
        // Lost members begin anew with the others, or not at all.
        plan.status.tasks.values_mut().for_each(|memory| memory.evicted = Default::default());
    }
    if step.to != phase {
        let why = transition::cause(seen, plan, members, trigger, outcome, step.to);
        enter(seen, plan, step.to, why);
    }
    gone
}

/// Input of the state machine.
fn facts(
    seen: &JobObserved<'_>,
    plan: &JobPlan,
    before: &TaskCounts<'_>,
    trigger: &Trigger,
    outcome: &FrameworkOutcome,
) -> JobFacts {
    let all = total(before);
    let out = all.terminating + u32::try_from(plan.remove.len()).unwrap_or(u32::MAX);
    JobFacts {
        verdict: outcome.verdict,
        alive: all.alive() || out > 0,
        cleared: seen.job.replicas().saturating_sub(out) >= seen.job.min_available,
        budget: budget(seen.job, plan, trigger),
    }
}

/// Whether `maxRetry` allows a restart.
fn budget(job: &JobSpec, plan: &JobPlan, trigger: &Trigger) -> RetryBudget {
    let (retries, phase) = (plan.status.retry_count, plan.status.state.phase);
    match trigger.by_person || trigger.by_member {
        true => RetryBudget::Free,
        false if retries < job.max_retry => RetryBudget::Left,
        // The limit does not stop a restart in progress, unless it was lowered meanwhile.
        false if phase == JobPhase::Restarting && retries == job.max_retry => RetryBudget::Left,
        false => RetryBudget::Spent,
    }
}

/// Removes the members that the step stops. Each begins another attempt if it starts again.
fn stop_members(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    members: &BTreeMap<Slot, &MemberPod>,
    trigger: &Trigger,
    step: Move,
) -> BTreeSet<Slot> {
    let gone: BTreeSet<Slot> = members
        .iter()
        .filter(|(slot, pod)| is_stopped(step.stop, seen.job, trigger, slot, pod))
        .map(|(slot, _)| slot.clone())
        .collect();
    let why = match step.to {
        JobPhase::Restarting => MemberRemoveReason::Restart,
        _ => MemberRemoveReason::Stop,
    };
    plan.remove.extend(gone.iter().map(|slot| (members[slot].clone(), why)));
    for slot in &gone {
        let memory = plan.status.memory(&slot.task);
        memory.started.remove(slot.index);
        memory.handled.remove(slot.index);
        memory.completed = false;
        *memory.attempts.entry(slot.index).or_default() += 1;
    }
    gone
}

/// Enters a phase, for a reason with a message.
fn enter(
    seen: &JobObserved<'_>,
    plan: &mut JobPlan,
    to: JobPhase,
    (reason, message): (String, String),
) {
    let before = plan.status.state.phase;
    plan.status.enter(to, seen.job.kind(), reason, message, seen.now);
    match to {
        JobPhase::Running if plan.status.start_time.is_none() => {
            plan.status.start_time = Some(seen.now);
        }
        // The deadline starts anew on resume (`kubeflow.md` §4.4).
        JobPhase::Restarting if matches!(before, JobPhase::Aborted | JobPhase::Aborting) => {
            plan.status.start_time = None;
        }
        _ => {}
    }
}

fn is_stopped(stop: Stop, job: &JobSpec, trigger: &Trigger, slot: &Slot, pod: &MemberPod) -> bool {
    match stop {
        Stop::Nobody => false,
        Stop::All => true,
        Stop::Unfinished => !pod.phase.has_ended(),
        Stop::Target => trigger.targets.contains(slot),
        // The member's service goes with it.
        Stop::ByPolicy => services::is_cleaned(job.clean_pods, pod.phase),
    }
}

/// A restart of the whole job begins a new attempt. After a failure it waits for the restart delay.
fn after_restart(seen: &JobObserved<'_>, plan: &mut JobPlan, stop: Stop, trigger: &Trigger) {
    let status = &mut plan.status;
    if trigger.by_person {
        status.carried.clear();
    }
    let delay = seen.job.restart_delay;
    let at = |pause| seen.now.checked_add(pause).unwrap_or(Timestamp::MAX);
    if stop == Stop::All {
        status.version = status.version.saturating_add(1);
        status.delayed.clear();
        for memory in status.tasks.values_mut() {
            memory.started = Default::default();
            memory.handled = Default::default();
            memory.completed = false;
            memory.not_before.clear();
        }
        let restarts = match seen.job.restarts_gang {
            true => triggers::failures(status),
            false => status.retry_count,
        };
        let at_once = trigger.by_person || trigger.reason == JobReason::Evicted;
        status.not_before = (!at_once).then(|| at(delay.before(restarts)));
        return;
    }
    status
        .delayed
        .retain(|delayed| delayed.slot.as_ref().is_none_or(|slot| !trigger.targets.contains(slot)));
    for slot in &trigger.targets {
        let memory = status.memory(&slot.task);
        if trigger.by_person {
            memory.not_before.remove(&slot.index);
            memory.failed.remove(&slot.index);
            continue;
        }
        let failed = memory.failed.entry(slot.index).or_default();
        *failed = failed.saturating_add(1);
        memory.not_before.insert(slot.index, at(delay.before(*failed)));
    }
}
