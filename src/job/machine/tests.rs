//! Volcano's measured facts about job states (`volcano.md` §5.4), one test each. Differences are marked and explained
//! in `docs/reference/differences-volcano.md`. F-J3, F-J4 and F-J6 to F-J13 concern counts: `frameworks/tests.rs`.

use super::*;
use rcfarm_api::command::CommandAction::{
    AbortJob, CompleteJob, RestartJob, RestartPod, RestartTask, ResumeJob, TerminateJob,
};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::phase::JobPhase as P;

const CALM: JobFacts = JobFacts {
    verdict: PhaseDecision::Enough,
    alive: true,
    cleared: false,
    budget: RetryBudget::Left,
};

fn to(phase: JobPhase, ask: JobRequest, facts: JobFacts) -> JobPhase {
    step(phase, ask, facts).to
}

fn sync(phase: JobPhase, verdict: PhaseDecision) -> JobPhase {
    to(phase, JobRequest::Sync, JobFacts { verdict, ..CALM })
}

#[test]
fn f_j1_a_pending_job_is_restarted_whatever_is_on_its_way_out() {
    for cleared in [false, true] {
        let step = step(P::Pending, JobRequest::Do(RestartJob), JobFacts { cleared, ..CALM });
        assert_eq!((step.to, step.counts, step.stop), (P::Restarting, true, Stop::All));
    }
}

#[test]
fn f_j2_a_pending_job_is_aborted_terminated_and_completed() {
    for (action, phase) in
        [(AbortJob, P::Aborting), (TerminateJob, P::Terminating), (CompleteJob, P::Completing)]
    {
        assert_eq!(to(P::Pending, JobRequest::Do(action), CALM), phase);
    }
}

#[test]
fn f_j3_f_j4_a_pending_job_runs_once_enough_have_started() {
    assert_eq!(sync(P::Pending, PhaseDecision::Enough), P::Running);
    assert_eq!(sync(P::Pending, PhaseDecision::Short), P::Pending);
    assert_eq!(to(P::Pending, JobRequest::Do(ResumeJob), CALM), P::Running, "as any other ask");
}

#[test]
fn f_j5_running_job_restarts_aborts_terminates_and_completes() {
    for (action, phase) in [
        (RestartJob, P::Restarting),
        (AbortJob, P::Aborting),
        (TerminateJob, P::Terminating),
        (CompleteJob, P::Completing),
    ] {
        assert_eq!(to(P::Running, JobRequest::Do(action), CALM), phase);
    }
}

#[test]
fn f_j6_to_f_j13_a_running_job_follows_its_counts() {
    assert_eq!(sync(P::Running, PhaseDecision::Succeeded), P::Completed);
    assert_eq!(sync(P::Running, PhaseDecision::Enough), P::Running);
    assert_eq!(sync(P::Running, PhaseDecision::TooManyPending), P::Pending);
    assert_eq!(sync(P::Running, PhaseDecision::Empty), P::Running);
    assert_eq!(sync(P::Running, PhaseDecision::Failed), P::Failed);
}

/// Differs: Volcano fails a restart in progress, so `maxRetry: N` gives N - 1 restarts. Here restart N + 1 is refused.
#[test]
fn f_j14_a_restart_beyond_the_limit_fails_the_job() {
    let spent = JobFacts { budget: RetryBudget::Spent, ..CALM };
    for action in [RestartJob, RestartTask, RestartPod] {
        let step = step(P::Running, JobRequest::Do(action), spent);
        assert_eq!((step.to, step.stop, step.counts), (P::Failed, Stop::Unfinished, false));
    }
    assert_eq!(
        to(P::Restarting, JobRequest::Sync, spent),
        P::Failed,
        "the limit was lowered meanwhile"
    );
}

#[test]
fn f_j15_a_restart_is_over_when_enough_are_out_of_the_way() {
    assert_eq!(to(P::Restarting, JobRequest::Sync, JobFacts { cleared: true, ..CALM }), P::Pending);
    assert_eq!(to(P::Restarting, JobRequest::Sync, CALM), P::Restarting);
}

/// Differs: a resume does not count as a retry.
#[test]
fn f_j16_an_aborted_job_is_resumed() {
    for phase in [P::Aborting, P::Aborted] {
        let step = step(phase, JobRequest::Do(ResumeJob), CALM);
        assert_eq!((step.to, step.counts), (P::Restarting, false));
    }
}

#[test]
fn f_j17_f_j18_f_j19_what_stops_is_stopped_when_nothing_is_left() {
    for (phase, then) in
        [(P::Aborting, P::Aborted), (P::Completing, P::Completed), (P::Terminating, P::Terminated)]
    {
        for ask in [JobRequest::Sync, JobRequest::Do(AbortJob), JobRequest::Do(RestartJob)] {
            assert_eq!(to(phase, ask, CALM), phase);
            assert_eq!(to(phase, ask, JobFacts { alive: false, ..CALM }), then);
        }
    }
}

#[test]
fn f_j20_nothing_leads_out_of_an_end() {
    for phase in [P::Completed, P::Failed, P::Terminated] {
        for ask in JobRequest::ALL {
            assert_eq!(to(phase, ask, CALM), phase, "{phase} {ask}");
        }
    }
}

#[test]
fn an_abort_while_restarting_is_not_lost() {
    for (action, phase) in
        [(AbortJob, P::Aborting), (TerminateJob, P::Terminating), (CompleteJob, P::Completing)]
    {
        assert_eq!(to(P::Restarting, JobRequest::Do(action), CALM), phase);
    }
    assert_eq!(to(P::Restarting, JobRequest::Suspend, CALM), P::Aborting);
}

#[test]
fn only_listed_edges_are_taken() {
    for phase in JobPhase::ALL {
        for ask in JobRequest::ALL {
            for verdict in PhaseDecision::ALL {
                for budget in [RetryBudget::Free, RetryBudget::Left, RetryBudget::Spent] {
                    for alive in [false, true] {
                        let facts = JobFacts { verdict, alive, cleared: alive, budget };
                        let step = step(phase, ask, facts);
                        assert!(!phase.is_final() || step.to == phase);
                        let counted = step.to == P::Restarting && phase.starts_members();
                        assert!(!step.counts || counted && budget == RetryBudget::Left);
                        let done = matches!(step.to, P::Aborted | P::Terminated);
                        assert!(!done || !alive || phase == step.to);
                    }
                }
            }
        }
    }
}

#[test]
fn the_whole_table_stands_in_the_documents() {
    let text = std::fs::read_to_string("docs/reference/state-machines/job.md").unwrap_or_default();
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let head = text.split("| phase |").next().unwrap_or_default();
        std::fs::write("docs/reference/state-machines/job.md", format!("{head}{table}")).unwrap();
        return;
    }
    assert!(
        text.ends_with(&table),
        "docs/reference/state-machines/job.md is behind: UPDATE_DOCS=1 cargo test --lib the_whole_table"
    );
}
