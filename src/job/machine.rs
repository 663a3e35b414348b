//! The job's state machine: a total function of phase, request and counts. Pure.
//!
//! It follows `volcano.md` §2.1 except for the defects listed there. `docs/reference/state-machines/job.md` shows the
//! table, `docs/reference/differences-volcano.md` the differences and their reasons.

use rcfarm_api::job::phase::JobPhase;
use std::fmt;

use rcfarm_api::command::CommandAction;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRequest {
    /// No request: follow the counts.
    Sync,
    /// The record is suspended.
    Suspend,
    /// A limit was exceeded, or a member failed permanently.
    Fail,
    /// Action of a command or policy.
    Do(CommandAction),
}

impl JobRequest {
    pub const ALL: [JobRequest; 10] = [
        JobRequest::Sync,
        JobRequest::Suspend,
        JobRequest::Fail,
        JobRequest::Do(CommandAction::RestartJob),
        JobRequest::Do(CommandAction::RestartTask),
        JobRequest::Do(CommandAction::RestartPod),
        JobRequest::Do(CommandAction::AbortJob),
        JobRequest::Do(CommandAction::ResumeJob),
        JobRequest::Do(CommandAction::CompleteJob),
        JobRequest::Do(CommandAction::TerminateJob),
    ];
}

impl fmt::Display for JobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRequest::Sync => f.pad("Sync"),
            JobRequest::Suspend => f.pad("Suspend"),
            JobRequest::Fail => f.pad("Fail"),
            JobRequest::Do(action) => action.fmt(f),
        }
    }
}

/// Result of counting members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseDecision {
    /// There are no members.
    Empty,
    /// Fewer than `minAvailable` have started.
    Short,
    /// At least `minAvailable` have started.
    Enough,
    /// More members are pending than `replicas - minAvailable`.
    TooManyPending,
    /// The job has succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
}

impl PhaseDecision {
    /// All results.
    pub const ALL: [PhaseDecision; 6] = [
        PhaseDecision::Empty,
        PhaseDecision::Short,
        PhaseDecision::Enough,
        PhaseDecision::TooManyPending,
        PhaseDecision::Succeeded,
        PhaseDecision::Failed,
    ];
}

/// Whether a restart is allowed, and whether it counts towards `maxRetry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryBudget {
    /// Allowed and not counted.
    Free,
    /// Allowed and counted.
    Left,
    /// Refused: `maxRetry` is reached.
    Spent,
}

/// Input of the state machine besides phase and request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFacts {
    /// Result of counting members.
    pub verdict: PhaseDecision,
    /// Whether any member is pending, running or leaving.
    pub alive: bool,
    /// Whether enough members have left that `minAvailable` can start again.
    pub cleared: bool,
    /// Applies to restarts.
    pub budget: RetryBudget,
}

/// Members to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Every member goes on.
    Nobody,
    /// The task or pod of the request.
    Target,
    /// All members.
    All,
    /// Members that have not ended. Ended ones keep their logs.
    Unfinished,
    /// According to `cleanPodPolicy`.
    ByPolicy,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Move {
    /// Next phase.
    pub to: JobPhase,
    /// Members to remove.
    pub stop: Stop,
    /// Whether it counts towards `maxRetry`.
    pub counts: bool,
}

/// Next phase and actions for a request.
pub fn step(phase: JobPhase, ask: JobRequest, facts: JobFacts) -> Move {
    use JobPhase as P;
    match phase {
        P::Pending | P::Running => at_work(phase, ask, facts),
        P::Restarting => restarting(ask, facts),
        P::Aborting | P::Aborted => match ask {
            JobRequest::Do(CommandAction::ResumeJob) => go(P::Restarting, Stop::Unfinished),
            JobRequest::Do(CommandAction::TerminateJob) => go(P::Terminating, Stop::Unfinished),
            _ => stopping(phase, P::Aborted, facts),
        },
        P::Completing => stopping(phase, P::Completed, facts),
        P::Terminating => stopping(phase, P::Terminated, facts),
        P::Completed | P::Terminated | P::Failed => go(phase, Stop::ByPolicy),
    }
}

fn go(to: JobPhase, stop: Stop) -> Move {
    Move { to, stop, counts: false }
}

fn stopping(phase: JobPhase, then: JobPhase, facts: JobFacts) -> Move {
    go(if facts.alive { phase } else { then }, Stop::Unfinished)
}

/// Requests that stop or end a job in the same way in every active phase.
fn ending(ask: JobRequest) -> Option<Move> {
    Some(match ask {
        JobRequest::Suspend => go(JobPhase::Aborting, Stop::All),
        JobRequest::Fail => go(JobPhase::Failed, Stop::Unfinished),
        JobRequest::Do(CommandAction::AbortJob) => go(JobPhase::Aborting, Stop::Unfinished),
        JobRequest::Do(CommandAction::CompleteJob) => go(JobPhase::Completing, Stop::Unfinished),
        JobRequest::Do(CommandAction::TerminateJob) => go(JobPhase::Terminating, Stop::Unfinished),
        _ => return None,
    })
}

fn at_work(phase: JobPhase, ask: JobRequest, facts: JobFacts) -> Move {
    if let Some(end) = ending(ask) {
        return end;
    }
    match ask {
        JobRequest::Do(CommandAction::RestartJob) => restart(Stop::All, facts),
        JobRequest::Do(CommandAction::RestartTask | CommandAction::RestartPod) => {
            restart(Stop::Target, facts)
        }
        _ => match (phase, facts.verdict) {
            (JobPhase::Pending, PhaseDecision::Short | PhaseDecision::TooManyPending) => {
                go(JobPhase::Pending, Stop::Nobody)
            }
            (JobPhase::Pending, _) => go(JobPhase::Running, Stop::Nobody),
            (_, PhaseDecision::Succeeded) => go(JobPhase::Completed, Stop::ByPolicy),
            (_, PhaseDecision::Failed) => go(JobPhase::Failed, Stop::ByPolicy),
            (_, PhaseDecision::TooManyPending) => go(JobPhase::Pending, Stop::Nobody),
            (_, PhaseDecision::Empty | PhaseDecision::Short | PhaseDecision::Enough) => {
                go(phase, Stop::Nobody)
            }
        },
    }
}

fn restart(stop: Stop, facts: JobFacts) -> Move {
    match facts.budget {
        RetryBudget::Spent => go(JobPhase::Failed, Stop::Unfinished),
        RetryBudget::Left => Move { to: JobPhase::Restarting, stop, counts: true },
        RetryBudget::Free => go(JobPhase::Restarting, stop),
    }
}

/// A restart in progress is already counted; a further restart is not counted again.
fn restarting(ask: JobRequest, facts: JobFacts) -> Move {
    if let Some(end) = ending(ask) {
        return end;
    }
    let next = if facts.cleared { JobPhase::Pending } else { JobPhase::Restarting };
    match ask {
        JobRequest::Do(CommandAction::RestartJob) => go(JobPhase::Restarting, Stop::All),
        JobRequest::Do(CommandAction::RestartTask | CommandAction::RestartPod) => {
            go(JobPhase::Restarting, Stop::Target)
        }
        _ if facts.budget == RetryBudget::Spent => go(JobPhase::Failed, Stop::Unfinished),
        _ => go(next, Stop::Nobody),
    }
}

/// The whole table as text, shown in `docs/reference/state-machines/job.md`.
#[must_use]
pub fn table() -> String {
    let mut text = String::from(
        "| phase | asked | if | then | removed | counted |\n|---|---|---|---|---|---|\n",
    );
    for phase in JobPhase::ALL {
        for ask in JobRequest::ALL {
            let mut rows: Vec<(Vec<String>, Move)> = Vec::new();
            for facts in all_facts() {
                let step = step(phase, ask, facts);
                match rows.iter_mut().find(|(_, other)| *other == step) {
                    Some((when, _)) => when.push(row_of(facts)),
                    None => rows.push((vec![row_of(facts)], step)),
                }
            }
            let alone = rows.len() == 1;
            for (when, step) in rows {
                let when = if alone { "always".to_owned() } else { shortened(&when) };
                let to = if step.to == phase { "stays".to_owned() } else { step.to.to_string() };
                let counted = if step.counts { "yes" } else { "" };
                text.push_str(&format!(
                    "| {phase} | {ask} | {when} | {to} | {:?} | {counted} |\n",
                    step.stop
                ));
            }
        }
    }
    text
}

fn all_facts() -> impl Iterator<Item = JobFacts> {
    let bools = [false, true];
    PhaseDecision::ALL.into_iter().flat_map(move |verdict| {
        bools.into_iter().flat_map(move |alive| {
            bools.into_iter().flat_map(move |cleared| {
                [RetryBudget::Free, RetryBudget::Left, RetryBudget::Spent]
                    .into_iter()
                    .map(move |budget| JobFacts { verdict, alive, cleared, budget })
            })
        })
    })
}

fn row_of(facts: JobFacts) -> String {
    let JobFacts { verdict, alive, cleared, budget } = facts;
    format!("{verdict:?} {} {} {budget:?}", yes(alive, "alive"), yes(cleared, "cleared"))
}

fn yes(holds: bool, word: &str) -> String {
    if holds { word.to_owned() } else { format!("not-{word}") }
}

/// Common part of a row's cases; differing values as alternatives.
fn shortened(cases: &[String]) -> String {
    let mut parts = Vec::new();
    let all: Vec<Vec<&str>> = cases.iter().map(|case| case.split(' ').collect()).collect();
    let kinds = [6, 2, 2, 3];
    for (column, kind) in kinds.into_iter().enumerate() {
        let mut values: Vec<&str> = Vec::new();
        for case in &all {
            if !values.contains(&case[column]) {
                values.push(case[column]);
            }
        }
        if values.len() < kind {
            parts.push(values.join(" or "));
        }
    }
    if parts.is_empty() { "otherwise".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests;
