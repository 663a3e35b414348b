//! The status of a CronJob that its owner farm writes: the value of `rcfarm/cron_job_status/<ns>/<name>`. Pure.
//!
//! The document is stored as users write it. Each transaction of the owner replaces the status by CAS and increments
//! `revision`. A job is created in the transaction that lists it here, so the list has every job that was made.

use serde::{Deserialize, Serialize};

use crate::ids::ObjectName;
use crate::job::status::JobOwner;
use crate::text::displays_as_variant;
use crate::{Index, Stored, Timestamp};

/// `kind` of a CronJob's document.
pub const KIND: &str = "CronJob";

/// The status record. Times of day are those of the schedule, in UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronStatus {
    /// Incremented by every transaction of an owner.
    pub revision: u64,
    /// ModifyIndex of the record that this status is about.
    pub observed_index: Index,
    /// CreateIndex of that record, which distinguishes CronJobs of one name.
    pub uid: Index,
    /// What it does, or why it made no job. A fixed token.
    pub reason: CronReason,
    /// Message for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Schedule and time zone that `considered` was counted with. Where they change, counting begins anew.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub schedule: String,
    /// Scheduled times up to this one are done with: a job was made, or they were passed over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub considered: Option<Timestamp>,
    /// Scheduled time of the last job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Timestamp>,
    /// When a job of it last completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Timestamp>,
    /// Its jobs, in the order in which they were made. Deleted ones are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<CronRun>,
    /// The owner farm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<JobOwner>,
    /// Why the record could not be reconciled the last time; none once it could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The record is not reconciled until then, because it kept failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Stored for CronStatus {}

impl CronStatus {
    /// Jobs that have not ended.
    pub fn active(&self) -> impl Iterator<Item = &CronRun> {
        self.jobs.iter().filter(|run| run.state == RunState::Active)
    }
}

/// A job that a CronJob made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronRun {
    /// Name of the job, in the CronJob's namespace.
    pub name: ObjectName,
    /// The scheduled time that it was made for.
    pub scheduled: Timestamp,
    /// Whether it has ended, as the owner last saw it.
    #[serde(default)]
    pub state: RunState,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
}

/// Whether a job of a CronJob has ended, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    /// It has not ended.
    #[default]
    Active,
    /// It completed.
    Succeeded,
    /// It failed or was terminated.
    Failed,
}

displays_as_variant!(RunState);

/// What a CronJob does, or why it made no job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CronReason {
    /// It waits for its next scheduled time.
    #[default]
    Scheduled,
    /// `suspend` is set.
    Suspended,
    /// A run is due, and its policy is `Forbid` while a job is active.
    JobAlreadyActive,
    /// A run is due, and too many of its jobs are active.
    TooManyActive,
    /// A run was passed over: `startingDeadlineSeconds` had passed.
    MissedDeadline,
    /// More than 100 runs were missed, of which the latest was made.
    TooManyMissedTimes,
    /// A run was passed over: another job has its name.
    JobNameTaken,
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

displays_as_variant!(CronReason);
