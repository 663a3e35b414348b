//! What the owner of a JobFlow does next. Pure.
//!
//! A plan is one transaction. It makes, stops or deletes a few jobs, and its status says so: an owner may die between
//! any two.

mod changes;
mod deletion;
mod observe;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::document::{FailurePolicy, FlowSpec, ProbeCheck, RetainPolicy, job_name};
use super::template::{self, MakingFlow};
use crate::farm::records::Records;
use crate::job::dependencies::DependencyType;
use rcfarm_api::flow::{FlowJob, FlowPhase, FlowReason, FlowStatus};
use rcfarm_api::ids::{Namespaced, ObjectName, RecordId};
use rcfarm_api::job::phase::JobPhase;
use rcfarm_api::job::status::PodPhase;
use rcfarm_api::{FieldError, Index, Timestamp};
use steps::{StepState, Steps};

pub use changes::refused_change;
pub use deletion::{deletion, next_to_delete};

/// Jobs of a flow that have not ended. More steps wait: each wake-up reads the statuses of these jobs.
pub const MOST_ACTIVE: usize = 100;
/// Jobs that a transaction makes, stops or deletes.
pub const MOST_ACTIONS: usize = 16;
/// Size of a job's audit records and of the framing of its operations, in bytes.
const ACTION_BYTES: usize = 1024;
/// Pause until members are asked again, or what the statuses of jobs lack is looked for again.
pub const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Pause until a job that has the name of another one is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Templates that a plan tries in vain: each of them is decoded.
const MOST_INVALID: usize = 64;
/// Steps that a message names.
const MOST_NAMED: usize = 3;

/// Input of a plan.
#[derive(Debug, Clone)]
pub struct FlowObserved<'a> {
    pub id: &'a Namespaced,
    /// CreateIndex of the record.
    pub uid: Index,
    pub spec: &'a FlowSpec,
    /// As stored; it may be that of an earlier flow of the name.
    pub status: &'a FlowStatus,
    /// Jobs that were read: those whose end was not seen, those that have the name of a job to be made, and those to
    /// be deleted.
    pub jobs: &'a ObservedJobs,
    pub templates: &'a Records,
    /// What became of the last network probes of each step. Those of other members than the step asks now do not count.
    pub probes: &'a ProbeAnswers,
    pub room: ActionLimits,
    pub now: Timestamp,
}

/// What a transaction takes.
#[derive(Debug, Clone, Copy)]
pub struct ActionLimits {
    /// Bytes of values.
    pub bytes: usize,
    /// Jobs that it makes, stops or deletes.
    pub actions: usize,
}

/// Jobs that were read, by name.
pub type ObservedJobs = BTreeMap<ObjectName, ObservedJob>;

/// A job that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedJob {
    /// There is no job of the name.
    Gone,
    /// It is not the flow's.
    Foreign,
    Own(Box<OwnJob>),
}

/// A job of the flow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnJob {
    /// CreateIndex of its record.
    pub uid: Index,
    pub phase: JobPhase,
    /// When the phase began; `None`: no farm has looked at it yet.
    pub since: Option<Timestamp>,
    /// Restarts by its policies.
    pub restarts: u32,
    /// Seconds from its creation to its end.
    pub ran_for: Option<i64>,
    /// Members by task and phase.
    pub tasks: BTreeMap<String, BTreeMap<PodPhase, u32>>,
    pub is_deleting: bool,
    /// Size of its record; `None`: only its status was read.
    pub bytes: Option<usize>,
}

/// A transaction, and when to plan again.
#[derive(Debug, Clone, PartialEq)]
pub struct FlowPlan {
    /// The status to write. The rest of it is the controller's.
    pub status: FlowStatus,
    pub actions: Vec<FlowAction>,
    /// When to plan again, if nothing changes.
    pub wake_after: Option<Duration>,
    /// Probes that steps wait for, whether they were made in vain or not at all. They are made beside the plans.
    pub probes: Vec<ProbeRequest>,
    /// Templates whose change matters.
    pub waits_for: BTreeSet<RecordId>,
}

/// What a transaction does besides writing the status.
#[derive(Debug, Clone, PartialEq)]
pub enum FlowAction {
    /// Creates a job, if the template is as it was seen.
    Create { name: ObjectName, job: Value, template: Namespaced, template_index: Index },
    /// Commands a job to terminate.
    Terminate { name: ObjectName, uid: Option<Index> },
    /// Marks a job as being deleted.
    Delete { name: ObjectName, why: FlowDeleteReason },
    /// Deletes record and status.
    Finish,
}

/// Why a job is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowDeleteReason {
    /// The flow has succeeded, and `jobRetainPolicy` is `delete`.
    NotRetained,
    /// The flow is being deleted.
    OwnerDeleted,
}

/// A probe over the network, of all members of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The step that waits for it.
    pub step: ObjectName,
    pub job: ObjectName,
    /// CreateIndex of the job's record.
    pub uid: Index,
    pub task: String,
    pub check: ProbeCheck,
}

/// What became of the probes of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// The probes that were made, in the order of the plan.
    pub requests: Vec<ProbeRequest>,
    /// Why one of them does not pass.
    pub result: Result<(), String>,
}

/// Answers by step.
pub type ProbeAnswers = BTreeMap<ObjectName, ProbeAnswer>;

/// Plans the next transaction.
#[must_use]
pub fn plan(seen: &FlowObserved<'_>) -> FlowPlan {
    if seen.spec.deleting {
        return deletion(seen.id, seen.uid, seen.status, (seen.jobs, seen.room));
    }
    let mut planning = Planning::new(seen);
    planning.advance();
    planning.finish()
}

/// A plan in the making.
struct Planning<'a> {
    seen: &'a FlowObserved<'a>,
    status: FlowStatus,
    actions: Vec<FlowAction>,
    /// Bytes that status and actions take; 0: not counted yet.
    bytes: usize,
    /// Jobs that have not ended.
    active: usize,
    /// Templates that made no valid job.
    invalid: usize,
    wake_after: Option<Duration>,
    probes: Vec<ProbeRequest>,
    waits_for: BTreeSet<RecordId>,
    /// What is to be said, the most important reason being the one that counts.
    notes: Vec<(FlowReason, String)>,
}

impl<'a> Planning<'a> {
    fn new(seen: &'a FlowObserved<'a>) -> Planning<'a> {
        let mut status = observe::begin(seen.uid, seen.status);
        observe::take_in(&mut status, seen.jobs, seen.now);
        Planning {
            seen,
            active: status.active().count(),
            invalid: 0,
            status,
            actions: Vec::new(),
            bytes: 0,
            wake_after: None,
            probes: Vec::new(),
            waits_for: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    fn note(&mut self, reason: FlowReason, why: impl Into<String>) {
        self.notes.push((reason, why.into()));
    }

    fn wake(&mut self, after: Duration) {
        self.wake_after = Some(self.wake_after.map_or(after, |earlier| earlier.min(after)));
    }

    fn advance(&mut self) {
        let spec = self.seen.spec;
        if let Some(FieldError { path, problem, .. }) = refused_change(spec, &self.status) {
            self.note(FlowReason::ChangeRefused, format!("{path}: {problem}"));
            return;
        }
        if self.status.completion_time.is_some() {
            self.note_failures();
            self.delete_if_not_retained();
            return;
        }
        let steps = Steps::new(self.seen, &self.status);
        let (states, verdicts) = steps.evaluate();
        let is_failing = steps.is_failing();
        self.status.skipped_steps = steps.named(&states, StepState::Skipped);
        if is_failing && spec.on_failure == FailurePolicy::Stop {
            self.stop_siblings();
        }
        for position in &spec.order {
            match &verdicts[*position] {
                steps::Verdict::Make { retries } => self.make(*position, *retries),
                steps::Verdict::Probe(wanted) => self.probe(*position, wanted),
                steps::Verdict::Wait | steps::Verdict::None => {}
            }
        }
        let is_settled =
            states.iter().all(|state| !matches!(state, StepState::Waiting | StepState::Active));
        if is_failing {
            self.note_failures();
        }
        let is_over = is_settled && self.actions.is_empty();
        if is_over {
            self.status.completion_time = Some(self.seen.now);
        }
        self.status.state.phase = match self.status.state.phase {
            _ if is_failing && (is_over || spec.on_failure != FailurePolicy::Continue) => {
                FlowPhase::Failed
            }
            _ if is_over => FlowPhase::Succeed,
            FlowPhase::Running => FlowPhase::Running,
            _ => observe::phase(&self.status),
        };
        if is_over {
            self.delete_if_not_retained();
        }
    }

    /// Makes the job of a step, unless something is in its way.
    fn make(&mut self, position: usize, retries: u32) {
        let seen = self.seen;
        let step = &seen.spec.steps[position];
        if self.actions.len() >= seen.room.actions
            || self.active >= MOST_ACTIVE
            || self.invalid >= MOST_INVALID
        {
            return;
        }
        let Ok(name) = job_name(&seen.id.name, &step.name, retries) else { return };
        match seen.jobs.get(&name) {
            Some(ObservedJob::Foreign) => {
                let why = format!("{} waits: there is another job {name}", step.name);
                self.note(FlowReason::JobNameTaken, why);
                self.wake(LOOK_AGAIN);
                return;
            }
            // The status is older than the job, as after a restored snapshot.
            Some(ObservedJob::Own(job)) if !job.is_deleting => {
                return self.list(position, name, retries);
            }
            Some(ObservedJob::Own(_)) => {
                let why = format!("{} waits: its job {name} is being deleted", step.name);
                self.note(FlowReason::JobNameTaken, why);
                self.wake(PROBE_EVERY);
                return;
            }
            Some(ObservedJob::Gone) | None => {}
        }
        let template =
            Namespaced { namespace: seen.id.namespace.clone(), name: step.template.clone() };
        let record = RecordId::from(template.to_string().as_str());
        let Some(stored) = seen.templates.get(&record) else {
            let why = format!("{} waits: there is no template {}", step.name, step.template);
            self.note(FlowReason::TemplateMissing, why);
            self.waits_for.insert(record);
            return;
        };
        let job = Namespaced { namespace: seen.id.namespace.clone(), name: name.clone() };
        let flow = MakingFlow { id: seen.id, uid: seen.uid };
        let made = template::job(flow, step, &job, &stored.value);
        let job = match made.map(|job| (job.to_string().len(), job)) {
            Ok((bytes, job)) if self.fits(bytes) => job,
            Ok(_) if !self.actions.is_empty() => return,
            other => {
                let error = match other {
                    Err(error) => error.to_string(),
                    Ok((bytes, _)) => format!("the job is too large, with {bytes} bytes"),
                };
                let why = format!("{} waits: template {}: {error}", step.name, step.template);
                self.note(FlowReason::TemplateInvalid, why);
                self.waits_for.insert(record);
                self.invalid += 1;
                return;
            }
        };
        let template_index = stored.index;
        self.actions.push(FlowAction::Create { name: name.clone(), job, template, template_index });
        self.list(position, name, retries);
    }

    /// Whether a record of so many bytes fits into the transaction beside the status; if so, it is counted.
    fn fits(&mut self, bytes: usize) -> bool {
        if self.bytes == 0 {
            self.bytes = observe::bytes(&self.status);
        }
        let with_it = self.bytes + bytes + ACTION_BYTES;
        let fits = with_it <= self.seen.room.bytes;
        if fits {
            self.bytes = with_it;
        }
        fits
    }

    /// Lists a job that is made, or was found.
    fn list(&mut self, position: usize, name: ObjectName, retries: u32) {
        let (step, now) = (&self.seen.spec.steps[position], self.seen.now);
        self.active += 1;
        let known = self.status.job_status_list.iter_mut().find(|job| job.step == step.name);
        let earlier =
            known.map(|job| (job.name.clone(), std::mem::take(&mut job.running_histories)));
        let mut job = FlowJob {
            name,
            step: step.name.clone(),
            state: JobPhase::Pending,
            start_timestamp: observe::rounded(now),
            end_timestamp: None,
            restart_count: 0,
            retries,
            running_histories: Vec::new(),
            step_hash: step.hash.clone(),
            uid: None,
            stopping: false,
            deleted_jobs: 0,
        };
        if let Some((name, histories)) = earlier {
            job.running_histories = histories;
            self.status.conditions.remove(&name);
        }
        observe::note_phase(&mut job, JobPhase::Pending, now);
        match self.status.job_status_list.iter_mut().find(|known| known.step == job.step) {
            Some(known) => *known = job,
            None => self.status.job_status_list.push(job),
        }
    }

    /// Notes what a step's probes lack.
    fn probe(&mut self, position: usize, wanted: &steps::WantedProbes) {
        let step = &self.seen.spec.steps[position].name;
        let why = if let Some(lacks) = &wanted.lacks {
            self.wake(PROBE_EVERY);
            lacks.clone()
        } else {
            self.probes.extend(wanted.requests.iter().cloned());
            match steps::answer(self.seen, step, &wanted.requests) {
                Some(Err(why)) => why.clone(),
                _ => "its probes are being made".to_owned(),
            }
        };
        self.note(FlowReason::ProbeWaiting, format!("{step} waits: {why}"));
    }

    /// Commands the jobs that have not ended to terminate, but for those of steps that a failure lets run.
    fn stop_siblings(&mut self) {
        let spec = self.seen.spec;
        let goes_on = |job: &FlowJob| {
            let step = spec.steps.iter().find(|step| step.name == job.step);
            step.is_some_and(|step| step.dependency != DependencyType::AfterOk)
        };
        let active = self.status.job_status_list.iter_mut();
        let active = active.filter(|job| !job.state.is_final() && !job.stopping && !goes_on(job));
        for job in active.take(self.seen.room.actions) {
            job.stopping = true;
            self.actions.push(FlowAction::Terminate { name: job.name.clone(), uid: job.uid });
        }
    }

    fn note_failures(&mut self) {
        let failed: Vec<String> =
            self.status.job_status_list.iter().filter_map(observe::failure).collect();
        for why in failed {
            self.note(FlowReason::StepFailed, why);
        }
    }

    fn delete_if_not_retained(&mut self) {
        let succeeded = self.status.state.phase == FlowPhase::Succeed;
        if succeeded && self.seen.spec.retain == RetainPolicy::Delete {
            let reads = (self.seen.jobs, self.seen.room);
            let why = FlowDeleteReason::NotRetained;
            self.actions.extend(deletion::delete_some(
                &self.seen.id.name,
                &mut self.status,
                reads,
                why,
            ));
            if !self.status.job_status_list.iter().all(FlowJob::is_deleted) {
                self.wake(Duration::ZERO);
            }
        }
    }

    fn finish(mut self) -> FlowPlan {
        observe::derive(&mut self.status, self.seen.spec.steps.len());
        let is_over = self.status.completion_time.is_some();
        let usual = if is_over { FlowReason::AllStepsEnded } else { FlowReason::JobsActive };
        let reason =
            BY_IMPORTANCE.into_iter().find(|one| self.notes.iter().any(|note| note.0 == *one));
        self.status.reason = reason.unwrap_or(usual);
        let of_reason = self.notes.iter().filter(|note| Some(note.0) == reason);
        let said: Vec<&str> = of_reason.map(|note| note.1.as_str()).collect();
        self.status.message = said[..said.len().min(MOST_NAMED)].join("; ");
        if said.len() > MOST_NAMED {
            self.status.message += &format!("; and {} more", said.len() - MOST_NAMED);
        }
        FlowPlan {
            status: self.status,
            actions: self.actions,
            wake_after: self.wake_after,
            probes: self.probes,
            waits_for: self.waits_for,
        }
    }
}

/// Reasons that a plan notes, the most important one first.
const BY_IMPORTANCE: [FlowReason; 6] = [
    FlowReason::ChangeRefused,
    FlowReason::StepFailed,
    FlowReason::JobNameTaken,
    FlowReason::TemplateInvalid,
    FlowReason::TemplateMissing,
    FlowReason::ProbeWaiting,
];

#[cfg(test)]
mod tests;
