//! Folding the log into the state of jobs, and comparing that with what is stored. A prune keeps the records that the
//! state of a job stands on, so that checkpoints do not have jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Details, EventType, JobChange, JobStep, Logged};
use crate::Index;
use crate::ids::Namespaced;

/// Phase in the log of a job whose record was deleted.
pub const DELETED: &str = "Deleted";
/// Action of a record by which a user created a job.
const CREATED: &str = "Created";
/// Action of a record by which a user accepted the stored state of a job.
pub const ACKNOWLEDGED: &str = "Acknowledged";
/// Action of a record by which a command removed what a deleted job had left.
pub const ORPHANS_REMOVED: &str = "OrphansRemoved";

/// State of a job according to the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoldedJob {
    /// Hash of its record ([`super::record_hash`]). `None`: unknown.
    pub record: Option<String>,
    /// What its owner wrote last. `None`: nothing yet.
    pub step: Option<FoldedStep>,
    /// Records of the log that the state stands on.
    sources: [Option<Uuid>; 2],
}

/// What a status of a job says: of which job it is, its phase, and the attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldedStep {
    /// CreateIndex of the job's record.
    pub uid: Index,
    /// Name of the phase.
    pub phase: String,
    /// Attempt of the whole job.
    pub version: u64,
}

/// Stored state of one job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredJob {
    /// Hash of its record. `None`: no record.
    pub record: Option<String>,
    /// From its status. `None`: no status, or an invalid one.
    pub step: Option<FoldedStep>,
}

/// A job whose stored state is not that of the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct JobDifference {
    /// Namespace and name of the job.
    pub job: Namespaced,
    /// Description for people.
    pub what: String,
}

impl FoldedJob {
    /// Records of the log that must stay, so that the rest folds to the same state.
    pub fn sources(&self) -> impl Iterator<Item = Uuid> {
        self.sources.into_iter().flatten()
    }
}

/// Folds records, given in the order in which they were committed.
pub(super) fn fold_jobs<'l>(
    ordered: impl IntoIterator<Item = &'l Logged>,
) -> BTreeMap<Namespaced, FoldedJob> {
    let mut jobs: BTreeMap<Namespaced, FoldedJob> = BTreeMap::new();
    let of_jobs = |logged: &&Logged| {
        matches!(logged.record.event_type, EventType::JobStep | EventType::JobChanged)
    };
    for logged in ordered.into_iter().filter(of_jobs) {
        match logged.record.details() {
            Ok(Details::JobStep(step)) => apply_step(&mut jobs, logged.id, step),
            Ok(Details::JobChanged(change)) => apply_change(&mut jobs, logged.id, change),
            _ => {}
        }
    }
    jobs
}

fn apply_step(jobs: &mut BTreeMap<Namespaced, FoldedJob>, id: Uuid, step: JobStep) {
    if step.phase == DELETED {
        jobs.remove(&step.job);
        return;
    }
    let job = jobs.entry(step.job).or_default();
    job.step = Some(FoldedStep { uid: step.uid, phase: step.phase, version: step.version });
    job.sources[1] = Some(id);
}

fn apply_change(jobs: &mut BTreeMap<Namespaced, FoldedJob>, id: Uuid, change: JobChange) {
    match change.action.as_str() {
        ORPHANS_REMOVED => _ = jobs.remove(&change.job),
        ACKNOWLEDGED if change.record.is_none() && change.step.is_none() => {
            jobs.remove(&change.job);
        }
        ACKNOWLEDGED => {
            let JobChange { job, record, step, .. } = change;
            // The record stands for both until each is replaced.
            let sources = [Some(id), step.as_ref().map(|_| id)];
            jobs.insert(job, FoldedJob { record, step, sources });
        }
        // A command changes no record.
        _ if change.command.is_some() => {}
        action => {
            let job = jobs.entry(change.job).or_default();
            if action == CREATED {
                *job = FoldedJob::default();
            }
            (job.record, job.sources[0]) = (change.record, Some(id));
        }
    }
}

/// Jobs whose stored state is not that of the log. Jobs that the log does not name are left out.
pub fn compare_jobs(
    folded: &BTreeMap<Namespaced, FoldedJob>,
    stored: &BTreeMap<Namespaced, StoredJob>,
) -> BTreeSet<JobDifference> {
    let nothing = StoredJob::default();
    let mut differences = BTreeSet::new();
    for (job, logged) in folded {
        let what = difference(logged, stored.get(job).unwrap_or(&nothing));
        differences.extend(what.map(|what| JobDifference { job: job.clone(), what }));
    }
    differences
}

fn difference(logged: &FoldedJob, stored: &StoredJob) -> Option<String> {
    if stored.record.is_none() {
        return Some("the log has it, and it has no record".to_owned());
    }
    if logged.record.is_some() && logged.record != stored.record {
        return Some("its record is not the one that a command wrote last".to_owned());
    }
    let step = logged.step.as_ref()?;
    match &stored.step {
        None => Some(format!("the log says {}, and it has no status", step.phase)),
        Some(stored) if stored == step => None,
        Some(stored) if stored.uid != step.uid => {
            Some("its status is not of the job that the log names".to_owned())
        }
        Some(stored) => Some(format!(
            "the log says {} of attempt {}, its status {} of attempt {}",
            step.phase, step.version, stored.phase, stored.version
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::audit::{Actor, AuditRecord, fold, prune_plan};
    use crate::ids::FarmName;

    fn job() -> Namespaced {
        "team-a/mnist".parse().unwrap()
    }

    fn step(phase: &str, version: u64) -> Details {
        Details::JobStep(JobStep {
            job: job(),
            uid: Index(7),
            actor: Actor::Farm,
            farm: "f1".parse::<FarmName>().ok(),
            asked: None,
            command: None,
            phase_before: "Pending".to_owned(),
            phase: phase.to_owned(),
            reason: String::new(),
            message: String::new(),
            version,
            retry_count: 0,
            pods_added: Vec::new(),
            pods_removed: Vec::new(),
            pods_adopted: Vec::new(),
            pods_released: Vec::new(),
        })
    }

    fn change(action: &str, record: Option<&str>) -> Details {
        Details::JobChanged(JobChange {
            job: job(),
            actor: Actor::User { name: "alice".to_owned() },
            action: action.to_owned(),
            reason: String::new(),
            command: None,
            record: record.map(str::to_owned),
            step: None,
        })
    }

    fn log(events: &[Details]) -> Vec<Logged> {
        let logged = |(n, details): (u64, &Details)| Logged {
            id: Uuid::from_u128(u128::from(n)),
            index: Index(n),
            record: AuditRecord::new(details, Timestamp::from_second(n.cast_signed()).unwrap()),
        };
        (1..).zip(events).map(logged).collect()
    }

    fn stored(record: &str, phase: &str, version: u64) -> BTreeMap<Namespaced, StoredJob> {
        let step = FoldedStep { uid: Index(7), phase: phase.to_owned(), version };
        [(job(), StoredJob { record: Some(record.to_owned()), step: Some(step) })].into()
    }

    fn differences(events: &[Details], stored: &BTreeMap<Namespaced, StoredJob>) -> Vec<String> {
        let found = compare_jobs(&fold(&log(events)).jobs, stored);
        found.into_iter().map(|difference| difference.what).collect()
    }

    #[test]
    fn job_differs_from_the_log_by_record_phase_and_attempt() {
        let events = [change("Created", Some("a")), step("Pending", 0), step("Running", 0)];
        assert_eq!(differences(&events, &stored("a", "Running", 0)), [""; 0]);
        let said = |stored| differences(&events, &stored).concat();
        assert!(said(stored("b", "Running", 0)).contains("its record is not the one"));
        assert!(said(stored("a", "Failed", 0)).contains("Running of attempt 0, its status Failed"));
        assert!(said(stored("a", "Running", 1)).contains("attempt 1"));
        let mut other = stored("a", "Running", 0);
        other.get_mut(&job()).unwrap().step.as_mut().unwrap().uid = Index(8);
        assert!(said(other.clone()).contains("not of the job"));
        other.get_mut(&job()).unwrap().step = None;
        assert!(said(other).contains("no status"));
        assert!(said(BTreeMap::new()).contains("no record"));
        // Records of versions before have no hash; jobs that the log does not name are no difference.
        let events = [change("Created", None)];
        assert_eq!(differences(&events, &stored("b", "Running", 0)), [""; 0]);
        assert_eq!(differences(&[], &stored("b", "Running", 0)), [""; 0]);
    }

    #[test]
    fn deleted_job_is_forgotten_and_an_accepted_one_is_as_stored() {
        let created = change("Created", Some("a"));
        for end in [step(DELETED, 0), change(ORPHANS_REMOVED, None), change(ACKNOWLEDGED, None)] {
            let events = [created.clone(), step("Running", 0), end];
            assert_eq!(differences(&events, &BTreeMap::new()), [""; 0]);
        }
        let Details::JobChanged(mut accepted) = change(ACKNOWLEDGED, Some("b")) else { panic!() };
        accepted.step = stored("b", "Failed", 2)[&job()].step.clone();
        let events = [created, step("Running", 0), Details::JobChanged(accepted)];
        assert_eq!(differences(&events, &stored("b", "Failed", 2)), [""; 0]);
    }

    #[test]
    fn prune_keeps_what_the_state_of_jobs_stands_on() {
        let deleted = [change("Created", Some("a")), step("Running", 0), step(DELETED, 0)];
        let again = [
            change("Created", Some("b")),
            step("Pending", 0),
            change("Changed", Some("c")),
            step("Running", 0),
        ];
        let log = log(&[&deleted[..], &again[..]].concat());
        let plan = prune_plan(&log, Timestamp::from_second(100).unwrap(), Uuid::from_u128(99));
        let kept: Vec<Logged> =
            log.iter().filter(|logged| !plan.delete.contains(&logged.id)).cloned().collect();
        assert_eq!(kept.iter().map(|logged| logged.index.0).collect::<Vec<_>>(), [6, 7]);
        assert_eq!(fold(&kept).jobs, fold(&log).jobs);
    }

    /// The acknowledgement stands for the status until the next step.
    #[test]
    fn prune_keeps_an_acknowledged_status_when_the_record_is_changed() {
        let Details::JobChanged(mut accepted) = change(ACKNOWLEDGED, Some("b")) else { panic!() };
        accepted.step = stored("b", "Failed", 2)[&job()].step.clone();
        let events = [
            change("Created", Some("a")),
            step("Running", 0),
            Details::JobChanged(accepted),
            change("Changed", Some("c")),
        ];
        let log = log(&events);
        let plan = prune_plan(&log, Timestamp::from_second(100).unwrap(), Uuid::from_u128(99));
        let kept: Vec<Logged> =
            log.iter().filter(|logged| !plan.delete.contains(&logged.id)).cloned().collect();
        assert_eq!(kept.iter().map(|logged| logged.index.0).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(fold(&kept).jobs, fold(&log).jobs);
    }
}
