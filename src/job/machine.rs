//! The job's state machine: a total function of the phase, what is asked, and what the counts say. Pure.
//!
//! The table is `volcano.md` §2.1 without what it records as defects; `docs/reference/state-machines/job.md` shows all of it, and
//! `docs/reference/differences-volcano.md` where it differs and why.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::Action;

/// How far a job has come. Volcano's ten.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum JobPhase {
    /// Not enough members run.
    #[default]
    Pending,
    /// Enough members run.
    Running,
    /// Members are removed, to be started again.
    Restarting,
    /// Members are being stopped; it can go on later.
    Aborting,
    /// Stopped; it can go on later.
    Aborted,
    /// Members that are left over are being stopped.
    Completing,
    /// Done.
    Completed,
    /// Members are being stopped, for good.
    Terminating,
    /// Stopped for good.
    Terminated,
    /// Failed.
    Failed,
}

impl JobPhase {
    /// All ten.
    pub const ALL: [JobPhase; 10] = [
        JobPhase::Pending,
        JobPhase::Running,
        JobPhase::Restarting,
        JobPhase::Aborting,
        JobPhase::Aborted,
        JobPhase::Completing,
        JobPhase::Completed,
        JobPhase::Terminating,
        JobPhase::Terminated,
        JobPhase::Failed,
    ];

    /// Whether nothing leads out of it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, JobPhase::Completed | JobPhase::Terminated | JobPhase::Failed)
    }

    /// Whether members may be started in it.
    #[must_use]
    pub fn starts_members(self) -> bool {
        matches!(self, JobPhase::Pending | JobPhase::Running)
    }
}

impl fmt::Display for JobPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// What is asked of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: look how it stands.
    Sync,
    /// Its record says that it shall not run now.
    Suspend,
    /// A limit was passed, or a member failed in a way that is not tried again.
    Fail,
    /// A command or a policy.
    Do(Action),
}

impl Ask {
    /// All that there is.
    pub const ALL: [Ask; 10] = [
        Ask::Sync,
        Ask::Suspend,
        Ask::Fail,
        Ask::Do(Action::RestartJob),
        Ask::Do(Action::RestartTask),
        Ask::Do(Action::RestartPod),
        Ask::Do(Action::AbortJob),
        Ask::Do(Action::ResumeJob),
        Ask::Do(Action::CompleteJob),
        Ask::Do(Action::TerminateJob),
    ];
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Sync => f.pad("Sync"),
            Ask::Suspend => f.pad("Suspend"),
            Ask::Fail => f.pad("Fail"),
            Ask::Do(action) => action.fmt(f),
        }
    }
}

/// What the counts of members say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There are no members to count.
    Empty,
    /// Fewer than needed have started.
    Short,
    /// As many as needed have started.
    Enough,
    /// More are waiting than the job could do without.
    TooManyPending,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
}

impl Verdict {
    /// All that there are.
    pub const ALL: [Verdict; 6] = [
        Verdict::Empty,
        Verdict::Short,
        Verdict::Enough,
        Verdict::TooManyPending,
        Verdict::Succeeded,
        Verdict::Failed,
    ];
}

/// Whether a restart may be made, and whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// A person asks: it is made, and not counted.
    Free,
    /// It is made and counted.
    Left,
    /// `maxRetry` were made.
    Spent,
}

/// What the machine must know besides phase and ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What the counts say.
    pub verdict: Verdict,
    /// Members are there that have not ended: waiting, running, or on their way out.
    pub alive: bool,
    /// So few are still on their way out that enough could start again.
    pub cleared: bool,
    /// For restarts.
    pub budget: Budget,
}

/// Which members are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// None.
    Nobody,
    /// The task or the pod that the ask is about.
    Target,
    /// All.
    All,
    /// Those that have not ended. What has ended stays, with its logs.
    Unfinished,
    /// As the job's `cleanPodPolicy` says.
    ByPolicy,
}

/// A step of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Move {
    /// The phase after it.
    pub to: JobPhase,
    /// Which members go.
    pub stop: Stop,
    /// Whether it counts as one of `maxRetry`.
    pub counts: bool,
}

/// Decides.
pub fn step(phase: JobPhase, ask: Ask, facts: Facts) -> Move {
    use JobPhase as P;
    match phase {
        P::Pending | P::Running => at_work(phase, ask, facts),
        P::Restarting => restarting(ask, facts),
        P::Aborting | P::Aborted => match ask {
            Ask::Do(Action::ResumeJob) => go(P::Restarting, Stop::Unfinished),
            Ask::Do(Action::TerminateJob) => go(P::Terminating, Stop::Unfinished),
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

fn stopping(phase: JobPhase, then: JobPhase, facts: Facts) -> Move {
    go(if facts.alive { phase } else { then }, Stop::Unfinished)
}

/// The asks that end a job, or stop it, in the same way wherever it stands.
fn ending(ask: Ask) -> Option<Move> {
    Some(match ask {
        Ask::Suspend => go(JobPhase::Aborting, Stop::All),
        Ask::Fail => go(JobPhase::Failed, Stop::Unfinished),
        Ask::Do(Action::AbortJob) => go(JobPhase::Aborting, Stop::Unfinished),
        Ask::Do(Action::CompleteJob) => go(JobPhase::Completing, Stop::Unfinished),
        Ask::Do(Action::TerminateJob) => go(JobPhase::Terminating, Stop::Unfinished),
        _ => return None,
    })
}

fn at_work(phase: JobPhase, ask: Ask, facts: Facts) -> Move {
    if let Some(end) = ending(ask) {
        return end;
    }
    match ask {
        Ask::Do(Action::RestartJob) => restart(Stop::All, facts),
        Ask::Do(Action::RestartTask | Action::RestartPod) => restart(Stop::Target, facts),
        _ => match (phase, facts.verdict) {
            (JobPhase::Pending, Verdict::Short | Verdict::TooManyPending) => {
                go(JobPhase::Pending, Stop::Nobody)
            }
            (JobPhase::Pending, _) => go(JobPhase::Running, Stop::Nobody),
            (_, Verdict::Succeeded) => go(JobPhase::Completed, Stop::ByPolicy),
            (_, Verdict::Failed) => go(JobPhase::Failed, Stop::ByPolicy),
            (_, Verdict::TooManyPending) => go(JobPhase::Pending, Stop::Nobody),
            (_, Verdict::Empty | Verdict::Short | Verdict::Enough) => go(phase, Stop::Nobody),
        },
    }
}

fn restart(stop: Stop, facts: Facts) -> Move {
    match facts.budget {
        Budget::Spent => go(JobPhase::Failed, Stop::Unfinished),
        Budget::Left => Move { to: JobPhase::Restarting, stop, counts: true },
        Budget::Free => go(JobPhase::Restarting, stop),
    }
}

/// A restart that is under way was counted when it began; another one on top of it is the same.
fn restarting(ask: Ask, facts: Facts) -> Move {
    if let Some(end) = ending(ask) {
        return end;
    }
    let next = if facts.cleared { JobPhase::Pending } else { JobPhase::Restarting };
    match ask {
        Ask::Do(Action::RestartJob) => go(JobPhase::Restarting, Stop::All),
        Ask::Do(Action::RestartTask | Action::RestartPod) => go(JobPhase::Restarting, Stop::Target),
        _ if facts.budget == Budget::Spent => go(JobPhase::Failed, Stop::Unfinished),
        _ => go(next, Stop::Nobody),
    }
}

/// The whole table as text: what `docs/reference/state-machines/job.md` shows.
#[must_use]
pub fn table() -> String {
    let mut text = String::from(
        "| phase | asked | if | then | removed | counted |\n|---|---|---|---|---|---|\n",
    );
    for phase in JobPhase::ALL {
        for ask in Ask::ALL {
            let mut rows: Vec<(Vec<String>, Move)> = Vec::new();
            for facts in all_facts() {
                let step = step(phase, ask, facts);
                match rows.iter_mut().find(|(_, other)| *other == step) {
                    Some((when, _)) => when.push(words(facts)),
                    None => rows.push((vec![words(facts)], step)),
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

fn all_facts() -> impl Iterator<Item = Facts> {
    let bools = [false, true];
    Verdict::ALL.into_iter().flat_map(move |verdict| {
        bools.into_iter().flat_map(move |alive| {
            bools.into_iter().flat_map(move |cleared| {
                [Budget::Free, Budget::Left, Budget::Spent].into_iter().map(move |budget| Facts {
                    verdict,
                    alive,
                    cleared,
                    budget,
                })
            })
        })
    })
}

fn words(facts: Facts) -> String {
    let Facts { verdict, alive, cleared, budget } = facts;
    format!("{verdict:?} {} {} {budget:?}", yes(alive, "alive"), yes(cleared, "cleared"))
}

fn yes(holds: bool, word: &str) -> String {
    if holds { word.to_owned() } else { format!("not-{word}") }
}

/// What all cases of a row have in common, and the rest as a choice.
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
