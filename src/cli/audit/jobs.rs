//! Jobs in `rcfarm audit verify` and `acknowledge`: their records and statuses beside the folded log.

use std::collections::BTreeMap;

use rcfarm_api::Stored;
use rcfarm_api::audit::{
    ACKNOWLEDGED, FoldedStep, JobChange, JobDifference, StoredJob, record_hash,
};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_store::{Entry, Prefix};

use crate::cli::context::CommandContext;

/// Prefixes that the comparison needs.
pub(super) fn trees() -> [Prefix; 2] {
    [key::jobs(), key::job_statuses()]
}

/// Stored state of each job. Entries of other prefixes are ignored.
pub(super) fn stored_jobs(entries: &[Entry]) -> BTreeMap<Namespaced, StoredJob> {
    let mut jobs: BTreeMap<Namespaced, StoredJob> = BTreeMap::new();
    for entry in entries {
        if let Some(job) = key::namespaced(&key::jobs(), &entry.key) {
            jobs.entry(job).or_default().record = Some(record_hash(&entry.value));
        } else if let Some(job) = key::namespaced(&key::job_statuses(), &entry.key) {
            jobs.entry(job).or_default().step = JobStatus::decode(&entry.value).ok().map(step);
        }
    }
    jobs
}

fn step(status: JobStatus) -> FoldedStep {
    let (uid, version) = (status.uid.0, status.version);
    FoldedStep { uid, phase: status.state.phase.to_string(), version }
}

/// A difference in one line.
pub(super) fn describe(JobDifference { job, what }: &JobDifference) -> String {
    format!("job {job}: {what}")
}

/// The record by which a user accepts the stored state of a job.
pub(super) fn acknowledged(
    context: &CommandContext,
    difference: &JobDifference,
    stored: &BTreeMap<Namespaced, StoredJob>,
) -> JobChange {
    let StoredJob { record, step } = stored.get(&difference.job).cloned().unwrap_or_default();
    JobChange {
        job: difference.job.clone(),
        actor: context.actor(),
        action: ACKNOWLEDGED.to_owned(),
        reason: difference.what.clone(),
        command: None,
        // A status without a record is that of a job that is gone.
        step: step.filter(|_| record.is_some()),
        record,
    }
}
