//! Folding the log into the state of the other records that users write, and comparing that with what is stored:
//! CronJobs, JobFlows, JobTemplates, priority classes and the configuration of cells. A prune keeps the last record of
//! each, so that checkpoints do not have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::job_fold::DELETED;
use super::queues::{abridged_hash, is_abridged};
use super::{
    Actor, CellsChange, Details, EventType, Logged, PriorityClassChange, RecordChange, record_hash,
};
use crate::ids::{Namespaced, ObjectName};
use crate::key::{self, Key, Prefix};

/// Action or reason of a record by which a user accepted what is stored.
const ACCEPTED: &str = super::ACKNOWLEDGED;

/// A record that users write, other than controllers, queues and jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", content = "name")]
pub enum LoggedRecord {
    /// A CronJob's document.
    CronJob(Namespaced),
    /// A JobFlow's document.
    JobFlow(Namespaced),
    /// A JobTemplate's document.
    JobTemplate(Namespaced),
    /// A priority class.
    PriorityClass(ObjectName),
    /// The configuration of cells.
    Cells,
}

/// Hashes of records by the log; `None`: the record was deleted.
pub type FoldedRecords = BTreeMap<LoggedRecord, Option<String>>;

/// A record whose stored value is not that of the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RecordDifference {
    /// The record.
    #[serde(flatten)]
    pub record: LoggedRecord,
    /// Description for people.
    pub what: String,
}

impl LoggedRecord {
    /// Prefixes of all these records.
    #[must_use]
    pub fn prefixes() -> [Prefix; 5] {
        let documents = [key::cron_jobs(), key::job_flows(), key::job_templates()];
        let [crons, flows, templates] = documents;
        [crons, flows, templates, key::priority_classes(), key::cells()]
    }

    /// The record of a listed key. `None`: the key is of another prefix, or of no record.
    #[must_use]
    pub fn of_key(key: &str) -> Option<LoggedRecord> {
        let document = |prefix: &Prefix| key::namespaced(prefix, key);
        if key == key::cell_config().as_str() {
            return Some(LoggedRecord::Cells);
        }
        if let Some(name) = key::priority_classes().tail(key) {
            return name.parse().ok().map(LoggedRecord::PriorityClass);
        }
        let flow = || document(&key::job_flows()).map(LoggedRecord::JobFlow);
        let template = || document(&key::job_templates()).map(LoggedRecord::JobTemplate);
        let cron = document(&key::cron_jobs()).map(LoggedRecord::CronJob);
        cron.or_else(flow).or_else(template)
    }

    /// The record's key.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            LoggedRecord::CronJob(id) => key::cron_job(id),
            LoggedRecord::JobFlow(id) => key::job_flow(id),
            LoggedRecord::JobTemplate(id) => key::job_template(id),
            LoggedRecord::PriorityClass(name) => key::priority_class(name),
            LoggedRecord::Cells => key::cell_config(),
        }
    }

    /// Hash of a stored value as the log has it. Documents are compared byte by byte; priority classes and cells as
    /// JSON, because the log repeats their fields.
    #[must_use]
    pub fn hash(&self, value: &[u8]) -> String {
        match self {
            LoggedRecord::CronJob(_) | LoggedRecord::JobFlow(_) | LoggedRecord::JobTemplate(_) => {
                record_hash(value)
            }
            LoggedRecord::PriorityClass(_) | LoggedRecord::Cells => json_hash(&json(value)),
        }
    }

    /// The record by which a user accepts what is stored; `None`: nothing is.
    #[must_use]
    pub fn accepted(&self, stored: Option<&[u8]>, actor: Actor) -> Details {
        let document = |kind: &str, record: &Namespaced, actor| {
            let (kind, record, action) = (kind.to_owned(), record.clone(), ACCEPTED.to_owned());
            let hash = stored.map(|value| self.hash(value));
            Details::RecordChanged(RecordChange { kind, record, actor, action, hash })
        };
        let (reason, before, after) = (ACCEPTED.to_owned(), None, stored.map(json));
        match self {
            LoggedRecord::CronJob(id) => document(CRON_JOB, id, actor),
            LoggedRecord::JobFlow(id) => document(JOB_FLOW, id, actor),
            LoggedRecord::JobTemplate(id) => document(JOB_TEMPLATE, id, actor),
            LoggedRecord::PriorityClass(name) => {
                let priority_class = name.clone();
                let change = PriorityClassChange { priority_class, actor, reason, before, after };
                Details::PriorityClassChanged(change)
            }
            LoggedRecord::Cells => {
                Details::CellsChanged(CellsChange { actor, reason, before, after })
            }
        }
    }

    /// The record of a document; `None`: of a kind that is not compared.
    fn of_document(kind: &str, record: Namespaced) -> Option<LoggedRecord> {
        match kind {
            CRON_JOB => Some(LoggedRecord::CronJob(record)),
            JOB_FLOW => Some(LoggedRecord::JobFlow(record)),
            JOB_TEMPLATE => Some(LoggedRecord::JobTemplate(record)),
            _ => None,
        }
    }
}

const CRON_JOB: &str = "CronJob";
const JOB_FLOW: &str = "JobFlow";
const JOB_TEMPLATE: &str = "JobTemplate";

impl fmt::Display for LoggedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoggedRecord::CronJob(id) => write!(f, "{CRON_JOB} {id}"),
            LoggedRecord::JobFlow(id) => write!(f, "{JOB_FLOW} {id}"),
            LoggedRecord::JobTemplate(id) => write!(f, "{JOB_TEMPLATE} {id}"),
            LoggedRecord::PriorityClass(name) => write!(f, "priority class {name}"),
            LoggedRecord::Cells => f.write_str("cells"),
        }
    }
}

impl fmt::Display for RecordDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.record, self.what)
    }
}

/// A stored value as JSON. What is no JSON becomes a string, which differs from every record.
fn json(value: &[u8]) -> Value {
    serde_json::from_slice(value)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(value).into_owned()))
}

/// Hash of a record that the log repeats, also of one that is [`abridged`](super::abridged) there.
fn json_hash(value: &Value) -> String {
    match abridged_hash(value) {
        Some(hash) if is_abridged(value) => hash.to_owned(),
        _ => record_hash(value.to_string().as_bytes()),
    }
}

/// The record that this changes, with the hash of what was written; `None` in place of it: the record was deleted.
pub(super) fn record_change(logged: &Logged) -> Option<(LoggedRecord, Option<String>)> {
    // Few records are about these: the details of the others are not decoded.
    let is_of_these = matches!(
        logged.record.event_type,
        EventType::RecordChanged
            | EventType::RecordStep
            | EventType::PriorityClassChanged
            | EventType::CellsChanged
    );
    if !is_of_these {
        return None;
    }
    let hash = |after: Option<Value>| after.as_ref().map(json_hash);
    match logged.record.details().ok()? {
        Details::RecordChanged(change) => {
            Some((LoggedRecord::of_document(&change.kind, change.record)?, change.hash))
        }
        // A farm changes no record, but deletes one that is marked for it.
        Details::RecordStep(step) if step.reason == DELETED => {
            Some((LoggedRecord::of_document(&step.kind, step.record)?, None))
        }
        Details::PriorityClassChanged(change) => {
            Some((LoggedRecord::PriorityClass(change.priority_class), hash(change.after)))
        }
        Details::CellsChanged(change) => Some((LoggedRecord::Cells, hash(change.after))),
        _ => None,
    }
}

/// Records whose stored value is not that of the log. `stored`: [`LoggedRecord::hash`] of each. Records that the log
/// does not name are left out.
#[must_use]
pub fn compare_logged_records(
    folded: &FoldedRecords,
    stored: &BTreeMap<LoggedRecord, String>,
) -> BTreeSet<RecordDifference> {
    let difference = |(record, logged): (&LoggedRecord, &Option<String>)| {
        let what = match (logged, stored.get(record)) {
            (Some(logged), Some(stored)) if logged == stored => return None,
            (None, None) => return None,
            (Some(_), Some(_)) => "its record is not the one that a command wrote last",
            (Some(_), None) => "the log has it, and it has no record",
            (None, Some(_)) => "the log has its deletion, and there is a record",
        };
        Some(RecordDifference { record: record.clone(), what: what.to_owned() })
    };
    folded.iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::audit::{AuditRecord, LONGEST_REPEATED, RecordStep, fold, prune_plan};
    use crate::{Index, Timestamp};

    fn nightly() -> LoggedRecord {
        LoggedRecord::CronJob("team-a/nightly".parse().unwrap())
    }

    fn all() -> [LoggedRecord; 5] {
        let id: Namespaced = "team-a/nightly".parse().unwrap();
        [
            LoggedRecord::CronJob(id.clone()),
            LoggedRecord::JobFlow(id.clone()),
            LoggedRecord::JobTemplate(id),
            LoggedRecord::PriorityClass("high".parse().unwrap()),
            LoggedRecord::Cells,
        ]
    }

    /// A change of a record to a value, or its deletion.
    fn change(record: &LoggedRecord, value: Option<&str>) -> Details {
        let user = Actor::User { name: "alice".to_owned() };
        record.accepted(value.map(str::as_bytes), user)
    }

    fn step(kind: &str, reason: &str) -> Details {
        Details::RecordStep(RecordStep {
            kind: kind.to_owned(),
            record: "team-a/nightly".parse().unwrap(),
            uid: Index(7),
            actor: Actor::Farm,
            farm: None,
            phase: None,
            reason: reason.to_owned(),
            message: String::new(),
            jobs_created: Vec::new(),
            jobs_deleted: Vec::new(),
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

    /// What differs when one record is stored, or none.
    fn differences(events: &[Details], stored: Option<(&LoggedRecord, &str)>) -> Vec<String> {
        let hash = |(record, value): (&LoggedRecord, &str)| {
            (record.clone(), record.hash(value.as_bytes()))
        };
        let found = compare_logged_records(
            &fold(&log(events)).records,
            &stored.map(hash).into_iter().collect(),
        );
        found.into_iter().map(|difference| difference.to_string()).collect()
    }

    #[test]
    fn keys_of_records_name_them() {
        for record in all() {
            let key = record.key();
            assert_eq!(LoggedRecord::of_key(key.as_str()), Some(record));
            let prefixes = LoggedRecord::prefixes();
            assert_eq!(prefixes.iter().filter(|p| p.tail(key.as_str()).is_some()).count(), 1);
        }
        for other in ["rcfarm/cells/_", "rcfarm/cron_jobs/_", "rcfarm/jobs/team-a/nightly"] {
            assert_eq!(LoggedRecord::of_key(other), None, "{other}");
        }
    }

    #[test]
    fn edit_and_deletion_without_a_record_differ() {
        for record in all() {
            let (old, new) = (r#"{"value":1}"#, r#"{"value":2}"#);
            let events = [change(&record, Some("{}")), change(&record, Some(old))];
            assert_eq!(differences(&events, Some((&record, old))), [""; 0]);
            let said = |stored| differences(&events, stored).concat();
            assert!(said(Some((&record, new))).contains("is not the one"), "{record}");
            assert!(said(Some((&record, "no JSON"))).contains("is not the one"), "{record}");
            assert!(said(None).contains("it has no record"), "{record}");
            // Of what is not named in the log nothing is said.
            assert_eq!(differences(&[], Some((&record, old))), [""; 0]);
            // What is accepted is no difference, whatever it is.
            for stored in [Some(new), Some("no JSON"), None] {
                let events = [&events[..], &[change(&record, stored)]].concat();
                let there = stored.map(|value| (&record, value));
                assert_eq!(differences(&events, there), [""; 0], "{record} {stored:?}");
            }
            let deleted = [change(&record, Some(old)), change(&record, None)];
            let said = differences(&deleted, Some((&record, old))).concat();
            assert!(said.contains("the log has its deletion"), "{said}");
        }
    }

    #[test]
    fn only_the_deletion_by_its_owner_ends_a_document() {
        for (kind, record) in [("CronJob", &all()[0]), ("JobFlow", &all()[1])] {
            let created = change(record, Some("{}"));
            for reason in ["Scheduled", "RecordGone"] {
                let events = [created.clone(), step(kind, reason)];
                assert_eq!(differences(&events, Some((record, "{}"))), [""; 0]);
                assert_eq!(differences(&events, None).len(), 1);
            }
            assert_eq!(differences(&[created, step(kind, "Deleted")], None), [""; 0]);
        }
        let other = [change(&nightly(), Some("{}")), step("JobFlow", "Deleted")];
        assert_eq!(differences(&other, Some((&nightly(), "{}"))), [""; 0]);
        assert_eq!(differences(&[step("Later", "Deleted")], None), [""; 0]);
    }

    #[test]
    fn record_that_is_too_long_for_the_log_is_compared_by_its_hash() {
        for record in &all()[3..] {
            let long =
                |last: &str| json!({"note": "a".repeat(LONGEST_REPEATED) + last}).to_string();
            let events = [change(record, Some(&long("x")))];
            assert_eq!(differences(&events, Some((record, &long("x")))), [""; 0]);
            assert_eq!(differences(&events, Some((record, &long("y")))).len(), 1);
        }
    }

    #[test]
    fn order_of_fields_and_blanks_do_not_matter_in_classes() {
        let class = &all()[3];
        let events = [change(class, Some(r#"{"value":1,"description":"x"}"#))];
        let stored = "{\"description\": \"x\",\n \"value\": 1}";
        assert_eq!(differences(&events, Some((class, stored))), [""; 0]);
    }

    #[test]
    fn prune_keeps_the_last_record_of_each() {
        let prune = |log: &[Logged], older_than| {
            let older_than = Timestamp::from_second(older_than).unwrap();
            let plan = prune_plan(log, older_than, Uuid::from_u128(99));
            plan.delete.iter().map(|id| id.as_u128()).collect::<Vec<_>>()
        };
        for record in all() {
            let written = |value| change(&record, Some(value));
            let log = log(&[written("1"), written("2"), written("3"), change(&record, None)]);
            assert_eq!(prune(&log[..3], 100), [1, 2], "{record}");
            assert_eq!(prune(&log, 3), [1, 2], "{record}: the deletion is not old");
            assert_eq!(prune(&log, 100), [1, 2, 3, 4], "{record}");
            assert_eq!(fold(&log[2..3]).records, fold(&log[..3]).records);
        }
        // Steps of an owner are not kept; its deletion is a deletion.
        let created = change(&nightly(), Some("{}"));
        let log = log(&[created, step("CronJob", "Scheduled"), step("CronJob", "Deleted")]);
        assert_eq!(prune(&log[..2], 100), [2]);
        assert_eq!(prune(&log, 100), [1, 2, 3]);
    }
}
