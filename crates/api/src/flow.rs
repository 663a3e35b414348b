//! The status of a JobFlow that its owner farm writes: the value of `rcfarm/job_flow_status/<ns>/<name>`. Pure.
//!
//! The field names are those of Volcano's `flow.volcano.sh/v1alpha1`, with its spelling. Each transaction of the owner
//! replaces the status by CAS and increments `revision`. A job is created in the transaction that lists it here, so the
//! list has every job that was made, those that their TTL has removed included.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::ObjectName;
use crate::job::phase::JobPhase;
use crate::job::status::{JobOwner, PodPhase};
use crate::text::displays_as_variant;
use crate::{Index, Stored, Timestamp};

/// `kind` of a flow's document.
pub const KIND: &str = "JobFlow";

/// `kind` of the document of a template.
pub const TEMPLATE_KIND: &str = "JobTemplate";

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowStatus {
    /// Incremented by every transaction of an owner.
    pub revision: u64,
    /// ModifyIndex of the record that this status is about.
    pub observed_index: Index,
    /// CreateIndex of that record, which distinguishes flows of one name.
    pub uid: Index,
    /// Its phase.
    pub state: FlowState,
    /// What it does, or what it waits for. A fixed token.
    pub reason: FlowReason,
    /// Message for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Jobs by phase. They are the last jobs of their steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_jobs: Vec<ObjectName>,
    /// Also those that are completing or terminating.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub running_jobs: Vec<ObjectName>,
    /// Failed ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_jobs: Vec<ObjectName>,
    /// Completed ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub completed_jobs: Vec<ObjectName>,
    /// Terminated ones, and those that were deleted before their end was seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terminated_jobs: Vec<ObjectName>,
    /// Restarting, aborting and aborted ones.
    #[serde(rename = "unKnowJobs", skip_serializing_if = "Vec::is_empty")]
    pub unknown_jobs: Vec<ObjectName>,
    /// Steps that make no job, as their dependencies cannot hold any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped_steps: Vec<ObjectName>,
    /// The last job of each step that has one, in the order in which the steps were first made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub job_status_list: Vec<FlowJob>,
    /// By job. A large flow has only those of jobs that have not ended.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<ObjectName, FlowCondition>,
    /// When every step had ended or was skipped. No job is made after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Timestamp>,
    /// The owner farm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<JobOwner>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The record is not reconciled until then, because it kept failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Stored for FlowStatus {}

impl FlowStatus {
    /// Jobs whose end was not seen yet.
    pub fn active(&self) -> impl Iterator<Item = &FlowJob> {
        self.job_status_list.iter().filter(|job| !job.state.is_final())
    }
}

/// Phase of a flow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowState {
    pub phase: FlowPhase,
}

/// Phase of a flow; Volcano's five.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowPhase {
    /// No job runs or has completed yet.
    #[default]
    Pending,
    /// Jobs run, or wait for others.
    Running,
    /// Every step has ended or was skipped, and none has failed.
    Succeed,
    /// A step has failed.
    Failed,
    /// It is being deleted.
    Terminating,
}

displays_as_variant!(FlowPhase);

/// A job of a flow: the last one of its step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowJob {
    /// Name of the job, in the flow's namespace.
    pub name: ObjectName,
    pub step: ObjectName,
    /// Its last phase that was seen. `Terminated` if it was deleted before its end was seen.
    #[serde(default)]
    pub state: JobPhase,
    /// When it was made.
    pub start_timestamp: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Timestamp>,
    /// Restarts that the job's policies caused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restart_count: u32,
    /// How often the step was made again after a failure. Earlier jobs have names with smaller numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// Its phases, oldest first. A large flow keeps none of jobs that have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running_histories: Vec<RunningHistory>,
    /// Hash of what the step said when the job was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step_hash: String,
    /// CreateIndex of its record, once it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Index>,
    /// It was asked to terminate because another step has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// How many of the step's jobs the flow has marked for deletion, the first one first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deleted_jobs: u32,
}

impl FlowJob {
    /// Whether the flow has marked all jobs of the step for deletion.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted_jobs > self.retries
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A phase of a job's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningHistory {
    /// When it began.
    pub start_timestamp: Timestamp,
    /// When the next one began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<Timestamp>,
    /// The phase.
    pub state: JobPhase,
}

/// State of a job as it was when its phase last changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowCondition {
    pub phase: JobPhase,
    /// When it was made.
    pub create_time: Timestamp,
    /// Seconds from its creation to its end, as in `65s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_duration: Option<String>,
    /// Members by task and phase.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub task_status_count: BTreeMap<String, TaskPhases>,
}

/// Members of a task by phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskPhases {
    /// Their number by phase.
    pub phase: BTreeMap<PodPhase, u32>,
}

/// What a flow does, or what it waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FlowReason {
    /// Its jobs run, or wait for members and for other steps.
    #[default]
    JobsActive,
    /// A step waits for a template that is not there.
    TemplateMissing,
    /// A step's template and patch make no valid job.
    TemplateInvalid,
    /// A step waits until its probes pass.
    ProbeWaiting,
    /// A step waits: another job has the name of its job.
    JobNameTaken,
    /// The record was changed in a field that must not change; no jobs are made until that is taken back.
    ChangeRefused,
    /// A step has failed.
    StepFailed,
    /// Every step has ended or was skipped.
    AllStepsEnded,
    /// The record breaks a rule.
    InvalidRecord,
    /// It kept failing and is retried rarely.
    Quarantined,
    /// It is being deleted with its jobs.
    Deleting,
    /// Written by a newer version.
    #[serde(other)]
    Unknown,
}

displays_as_variant!(FlowReason);
