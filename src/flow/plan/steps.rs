//! Which steps may run: from the jobs of the steps that they depend on.

use std::collections::BTreeMap;

use super::{FlowObserved, ObservedJob, OwnJob, ProbeRequest};
use crate::flow::document::{FailurePolicy, FlowStep, ProbeCheck};
use crate::job::dependencies::DependencyType;
use rcfarm_api::flow::{FlowJob, FlowStatus};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::job::phase::JobPhase;

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepState {
    /// It has no job yet.
    Waiting,
    /// Its job has not ended, or is made again.
    Active,
    Completed,
    /// Its last job has failed, was terminated, or was deleted before its end was seen.
    Failed,
    /// It gets no job.
    Skipped,
}

/// What is to be done for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing any more.
    None,
    /// It waits for other steps.
    Wait,
    /// It runs when its probes pass.
    Probe(WantedProbes),
    /// Its job is to be made.
    Make { retries: u32 },
}

/// Probes of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedProbes {
    /// What a status says already: they do not pass.
    pub(super) lacks: Option<String>,
    /// Those that need the network.
    pub(super) requests: Vec<ProbeRequest>,
}

/// The steps of a flow with their jobs.
pub(super) struct Steps<'a> {
    seen: &'a FlowObserved<'a>,
    /// The job of each step, if it has one.
    jobs: Vec<Option<&'a FlowJob>>,
    is_failing: bool,
}

impl<'a> Steps<'a> {
    pub(super) fn new(seen: &'a FlowObserved<'a>, status: &'a FlowStatus) -> Steps<'a> {
        let by_step: BTreeMap<&ObjectName, &FlowJob> =
            status.job_status_list.iter().map(|job| (&job.step, job)).collect();
        let jobs: Vec<Option<&FlowJob>> =
            seen.spec.steps.iter().map(|step| by_step.get(&step.name).copied()).collect();
        let has_failed = |(step, job): (&FlowStep, &Option<&FlowJob>)| {
            job.is_some_and(|job| has_failed(job) && !may_retry(step, job))
        };
        let is_failing = seen.spec.steps.iter().zip(&jobs).any(has_failed);
        Steps { seen, jobs, is_failing }
    }

    /// Whether a step has failed for good.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Names of the steps in a state.
    pub(super) fn named(&self, states: &[StepState], wanted: StepState) -> Vec<ObjectName> {
        let steps = self.seen.spec.steps.iter().zip(states);
        steps.filter(|(_, state)| **state == wanted).map(|(step, _)| step.name.clone()).collect()
    }

    /// State of each step, and what is to be done for it.
    pub(super) fn evaluate(&self) -> (Vec<StepState>, Vec<Verdict>) {
        let spec = self.seen.spec;
        let mut states = vec![StepState::Waiting; spec.steps.len()];
        let mut verdicts = vec![Verdict::None; spec.steps.len()];
        for position in &spec.order {
            let step = &spec.steps[*position];
            let (state, verdict) = match self.jobs[*position] {
                Some(job) => self.of_job(step, job),
                None => match self.dependency(step, &states) {
                    Some(verdict) => (StepState::Waiting, verdict),
                    None => (StepState::Skipped, Verdict::None),
                },
            };
            states[*position] = state;
            verdicts[*position] = verdict;
        }
        (states, verdicts)
    }

    fn of_job(&self, step: &FlowStep, job: &FlowJob) -> (StepState, Verdict) {
        let stops = self.is_failing && self.seen.spec.on_failure == FailurePolicy::Stop;
        match job.state {
            JobPhase::Completed => (StepState::Completed, Verdict::None),
            _ if !has_failed(job) => (StepState::Active, Verdict::None),
            _ if may_retry(step, job) && !stops => {
                (StepState::Active, Verdict::Make { retries: job.retries + 1 })
            }
            _ => (StepState::Failed, Verdict::None),
        }
    }

    /// What is to be done for a step without a job. `None`: it is skipped.
    fn dependency(&self, step: &FlowStep, states: &[StepState]) -> Option<Verdict> {
        use StepState::{Active, Completed, Failed, Skipped, Waiting};
        let of = |wanted: &[StepState]| {
            step.targets.iter().any(|target| wanted.contains(&states[*target]))
        };
        let is_impossible = match step.dependency {
            DependencyType::AfterOk => {
                let halts = self.is_failing && self.seen.spec.on_failure != FailurePolicy::Continue;
                halts || of(&[Failed, Skipped])
            }
            DependencyType::AfterAny => false,
            DependencyType::AfterNotOk => of(&[Completed, Skipped]),
        };
        Some(match () {
            () if is_impossible => return None,
            () if of(&[Waiting]) => Verdict::Wait,
            () if !of(&[Active]) => Verdict::Make { retries: 0 },
            () if step.probes.is_empty() => Verdict::Wait,
            () => {
                let wanted = self.probes(step, states);
                let answer = answer(self.seen, &step.name, &wanted.requests);
                let passed = wanted.requests.is_empty() || answer == Some(&Ok(()));
                match wanted.lacks.is_none() && passed {
                    true => Verdict::Make { retries: 0 },
                    false => Verdict::Probe(wanted),
                }
            }
        })
    }

    /// The probes of a step, of those of its targets that have not ended.
    fn probes(&self, step: &FlowStep, states: &[StepState]) -> WantedProbes {
        let mut wanted = WantedProbes { lacks: None, requests: Vec::new() };
        let active = step.targets.iter().filter(|target| states[**target] == StepState::Active);
        let jobs: Vec<(&FlowJob, Option<&OwnJob>)> = active
            .filter_map(|target| self.jobs[*target])
            .map(|job| match self.seen.jobs.get(&job.name) {
                Some(ObservedJob::Own(own)) => (job, Some(&**own)),
                _ => (job, None),
            })
            .collect();
        for probe in &step.probes {
            let mut is_asked = false;
            for (job, own) in &jobs {
                let Some(own) = own.filter(|own| own.tasks.contains_key(&probe.task)) else {
                    continue;
                };
                is_asked = true;
                match &probe.check {
                    ProbeCheck::Phase(phase) => {
                        let counts = &own.tasks[&probe.task];
                        let others = counts.iter().any(|(one, n)| one != phase && *n > 0);
                        if others || counts.get(phase).copied().unwrap_or(0) == 0 {
                            wanted.lacks = Some(format!(
                                "task {} of job {} is not {phase:?}",
                                probe.task, job.name
                            ));
                        }
                    }
                    _ if own.phase != JobPhase::Running => {
                        wanted.lacks = Some(format!("job {} is {}", job.name, own.phase));
                    }
                    check => wanted.requests.push(ProbeRequest {
                        step: step.name.clone(),
                        job: job.name.clone(),
                        uid: own.uid,
                        task: probe.task.clone(),
                        check: check.clone(),
                    }),
                }
            }
            if !is_asked {
                wanted.lacks =
                    Some(format!("no member of a task {} of its targets is there yet", probe.task));
            }
        }
        wanted
    }
}

/// What became of the network probes of a step, if exactly these were made.
pub(super) fn answer<'a>(
    seen: &FlowObserved<'a>,
    step: &ObjectName,
    requests: &[ProbeRequest],
) -> Option<&'a Result<(), String>> {
    let answer = seen.probes.get(step)?;
    (answer.requests == requests).then_some(&answer.result)
}

fn has_failed(job: &FlowJob) -> bool {
    matches!(job.state, JobPhase::Failed | JobPhase::Terminated)
}

/// Whether a step gets another job. Who terminates or deletes a job does not want it again.
fn may_retry(step: &FlowStep, job: &FlowJob) -> bool {
    job.state == JobPhase::Failed && job.retries < step.retry && !job.stopping
}
