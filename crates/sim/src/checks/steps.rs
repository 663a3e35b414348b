//! The steps of a flow and what may have become of them, from its document and the jobs that it made: reckoned
//! independently of the program.

use serde_json::Value;

use crate::model::{FlowModel, MadeJob};
use rcfarm_api::flow::{self, FlowStatus};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::PodPhase;
use rcfarm_store::Index;

/// What the flow may take a step for. A job that was deleted may have been seen before its end, at its end, or not.
#[derive(Debug, Clone, Copy, Default)]
struct Possible {
    completed: bool,
    failed: bool,
    skipped: bool,
}

struct Step<'a> {
    name: &'a str,
    targets: Vec<usize>,
    dependency: &'a str,
    /// Task and phase of a probe.
    probe: Option<(&'a str, PodPhase)>,
    retry: u64,
    /// Its jobs, the last one last.
    jobs: Vec<&'a MadeJob>,
}

/// The steps of a flow with their jobs.
pub struct StepProgress<'a> {
    flow: &'a Namespaced,
    steps: Vec<Step<'a>>,
    policy: &'a str,
    possible: Vec<Possible>,
    /// After a restored snapshot, the flow may have missed how jobs ended.
    is_restored: bool,
}

/// What the status of a flow that is over lists.
pub enum Judgement {
    Ended { failed: bool },
    Wrong(String),
}

impl<'a> StepProgress<'a> {
    pub fn of(
        flow: &'a Namespaced,
        uid: Index,
        document: &'a Value,
        model: &'a FlowModel,
    ) -> StepProgress<'a> {
        let spec = &document["spec"];
        let listed = spec["flows"].as_array().map_or(&[][..], Vec::as_slice);
        let position = |name: &Value| listed.iter().position(|step| step["name"] == *name);
        let step = |value: &'a Value| {
            let on = &value["dependsOn"];
            let probe = on.pointer("/probe/taskStatusList/0/taskName").and_then(Value::as_str);
            let targets = on["targets"].as_array().into_iter().flatten();
            let name = value["name"].as_str().unwrap_or_default();
            let retry = value["retry"].as_u64().unwrap_or(0);
            let jobs =
                (0..=retry).map_while(|n| model.job_of(&job(flow, name, n)?, (flow::KIND, uid)));
            Step {
                name,
                targets: targets.filter_map(position).collect(),
                dependency: on["type"].as_str().unwrap_or("afterok"),
                probe: probe.map(|task| (task, PodPhase::Running)),
                retry,
                jobs: jobs.collect(),
            }
        };
        let steps: Vec<Step<'a>> = listed.iter().map(step).collect();
        let policy = spec["failurePolicy"].as_str().unwrap_or("keep");
        let possible = vec![Possible::default(); steps.len()];
        let is_restored = model.restored_at.is_some();
        let mut progress = StepProgress { flow, steps, policy, possible, is_restored };
        // The longest path is not longer than there are steps.
        for _ in 0..progress.steps.len() {
            progress.possible =
                (0..progress.steps.len()).map(|n| progress.possible_of(n)).collect();
        }
        progress
    }

    fn possible_of(&self, n: usize) -> Possible {
        let step = &self.steps[n];
        let Some(job) = step.jobs.last() else {
            let any = |of: fn(Possible) -> bool| {
                step.targets.iter().any(|target| of(self.possible[*target]))
            };
            let halts = self.policy != "continue" && self.possible.iter().any(|one| one.failed);
            let skipped = match step.dependency {
                "afterok" => halts || any(|one| one.failed || one.skipped),
                "afternotok" => any(|one| one.completed || one.skipped),
                _ => false,
            };
            return Possible { skipped, ..Possible::default() };
        };
        // The TTL takes away a job that was aborted and never resumed, too.
        let may_be_missed = job.removed || job.gone && (self.is_restored || job.ended.is_none());
        let completed = job.ended == Some(JobPhase::Completed);
        let failed = match job.ended {
            Some(JobPhase::Completed) | None => false,
            // With `stop`, another failure takes the retries away.
            Some(JobPhase::Failed) => step.jobs.len() as u64 > step.retry || self.policy == "stop",
            Some(_) => true,
        };
        Possible { completed, failed: failed || may_be_missed, skipped: false }
    }

    /// The step and the attempt of a job.
    pub fn step_of(&self, id: &Namespaced) -> Option<(usize, u64)> {
        let all = self.steps.iter().enumerate();
        let mut named = all.flat_map(|(n, step)| (0..=step.retry).map(move |retry| (n, retry)));
        named.find(|(n, retry)| job(self.flow, self.steps[*n].name, *retry).as_ref() == Some(id))
    }

    pub fn is_dependent(&self, step: usize) -> bool {
        !self.steps[step].targets.is_empty()
    }

    /// Whether a target has not ended, and a probe lets the step run.
    pub fn runs_by_probe(&self, step: usize) -> bool {
        let step = &self.steps[step];
        let is_active = |target: &usize| {
            let last = self.steps[*target].jobs.last();
            last.is_some_and(|job| job.ended.is_none())
        };
        step.probe.is_some() && step.targets.iter().any(is_active)
    }

    /// Why a step must not have another job.
    pub fn may_not_retry(&self, step: usize, attempt: u64) -> Option<String> {
        let before = self.steps[step].jobs.get(usize::try_from(attempt).ok()? - 1);
        let ended = before.and_then(|job| job.ended);
        (ended != Some(JobPhase::Failed)).then(|| format!("the job before it is {ended:?}"))
    }

    /// Why a step must not have its first job yet.
    pub fn may_not_run(&self, step: usize) -> Option<String> {
        let step = &self.steps[step];
        let lacks = |target: &&usize| {
            let (is, job) = (self.possible[**target], self.steps[**target].jobs.last());
            let by_probe = step
                .probe
                .zip(job)
                .is_some_and(|((task, phase), job)| job.passed.contains(&(task.to_owned(), phase)));
            let holds = match step.dependency {
                "afterok" => is.completed,
                "afternotok" => is.failed,
                _ => is.completed || is.failed || is.skipped,
            };
            !holds && !by_probe
        };
        let target = step.targets.iter().find(lacks)?;
        let (name, is) = (self.steps[*target].name, self.possible[*target]);
        Some(format!("it runs {} of {name}, which is {is:?}", step.dependency))
    }

    /// Whether the status of a flow that is over lists what became of its jobs.
    pub fn judge(&self, status: &FlowStatus) -> Judgement {
        let mut any_failed = false;
        for (step, possible) in self.steps.iter().zip(&self.possible) {
            let name = step.name;
            let listed = status.job_status_list.iter().find(|job| job.step.as_str() == name);
            let Some(listed) = listed else {
                let says = status.skipped_steps.iter().any(|step| step.as_str() == name);
                match says && possible.skipped && step.jobs.is_empty() {
                    true => continue,
                    false => {
                        return Judgement::Wrong(format!("step {name} has no job: {possible:?}"));
                    }
                }
            };
            let failed = listed.state != JobPhase::Completed;
            let is_possible = if failed { possible.failed } else { possible.completed };
            let is_last = listed.retries as usize + 1 == step.jobs.len();
            if !listed.state.is_final() || !is_possible || !is_last {
                let what = format!("step {name} is listed as {} of {}", listed.state, listed.name);
                let made = step.jobs.len();
                return Judgement::Wrong(format!("{what}; its {made} jobs allow {possible:?}"));
            }
            any_failed |= failed;
        }
        Judgement::Ended { failed: any_failed }
    }
}

fn job(flow: &Namespaced, step: &str, retry: u64) -> Option<Namespaced> {
    let name = match retry {
        0 => format!("{}-{step}", flow.name),
        n => format!("{}-{step}-retry{n}", flow.name),
    };
    Some(Namespaced { namespace: flow.namespace.clone(), name: name.parse().ok()? })
}
