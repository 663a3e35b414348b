//! Identity of a job's pod, in its labels and its manifest.

use serde::{Deserialize, Serialize};

use super::spec::{JobUid, Slot};
use crate::ids::Namespaced;
use crate::key::{ATTEMPT_LABEL as ATTEMPT, JOB_UID_LABEL as UID};
use crate::labels::Labels;

/// Label with the job's name.
pub const JOB_NAME: &str = "volcano.sh/job-name";
/// Label with the job's namespace.
pub const JOB_NAMESPACE: &str = "volcano.sh/job-namespace";
/// Label with the name of the task.
pub const TASK: &str = "volcano.sh/task-spec";
/// Label with the number of the member in its task.
pub const TASK_INDEX: &str = "volcano.sh/task-index";
/// Label with the attempt of the whole job.
pub const VERSION: &str = "volcano.sh/job-version";

/// Identity of a job's pod: `job` of the manifest, and the same in its labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    #[serde(rename = "id")]
    pub job: Namespaced,
    /// The job's uid.
    pub uid: JobUid,
    /// The member.
    #[serde(flatten)]
    pub slot: Slot,
    /// The attempt of the whole job.
    pub version: u64,
    /// The attempt at this member.
    pub attempt: u32,
}

/// The identity in this manifest; `None`: it was not made for a job. Manifests of jobs are JSON; other formats are not
/// parsed.
#[must_use]
pub fn identity_in(manifest: &[u8]) -> Option<PodIdentity> {
    #[derive(Deserialize)]
    struct WithIdentity {
        job: PodIdentity,
    }
    let made = manifest.starts_with(b"{").then_some(manifest)?;
    serde_json::from_slice(made).ok().map(|WithIdentity { job }| job)
}

/// The identity in these labels; `None` if they are not complete.
#[must_use]
pub fn mark_of(labels: &Labels) -> Option<PodIdentity> {
    let of = |name: &str| labels.get(name);
    let (job, slot) = name_of(labels)?;
    Some(PodIdentity {
        job,
        uid: uid_of(labels)?,
        slot,
        version: of(VERSION)?.parse().ok()?,
        attempt: of(ATTEMPT)?.parse().ok()?,
    })
}

/// The job and member that these labels name, whatever the uid.
#[must_use]
pub fn name_of(labels: &Labels) -> Option<(Namespaced, Slot)> {
    let of = |name: &str| labels.get(name);
    let (namespace, name) = (of(JOB_NAMESPACE)?.parse().ok()?, of(JOB_NAME)?.parse().ok()?);
    let slot = Slot::new(of(TASK)?, of(TASK_INDEX)?.parse().ok()?);
    Some((Namespaced { namespace, name }, slot))
}

/// The uid that these labels carry.
#[must_use]
pub fn uid_of(labels: &Labels) -> Option<JobUid> {
    labels.get(UID)?.parse().ok()
}
