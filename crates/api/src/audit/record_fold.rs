//! Folding the log into the state of the other records that users write, and comparing that with what is stored:
//! CronJobs, JobFlows, JobTemplates, PodGroups, schedulers, priority classes, the configuration of cells and drains of
//! nodes. A prune keeps the last record of each, so that checkpoints do not have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::job_fold::DELETED;
use super::queues::{abridged_hash, is_abridged};
use super::{
    Actor, CellsChange, Details, EventType, JobTypeChange, Logged, NodeChange, PriorityClassChange,
    RecordChange, record_hash,
};
use crate::Stored;
use crate::ids::{DEFAULT_NAMESPACE, Namespaced, NodeName, ObjectName};
use crate::key::{self, Key, Prefix};
use crate::node::record::{NodeRecord, NodeState};

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
    /// A PodGroup's document, without the counts that its owner reports.
    PodGroup(Namespaced),
    /// A scheduler's document.
    Scheduler(ObjectName),
    /// A priority class.
    PriorityClass(ObjectName),
    /// The JobType of the kind.
    JobType(ObjectName),
    /// The configuration of cells.
    Cells,
    /// The drain of a node. Its record is otherwise its agent's.
    Drain(NodeName),
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
    pub fn prefixes() -> [Prefix; 9] {
        [
            key::cron_jobs(),
            key::job_flows(),
            key::job_templates(),
            key::pod_groups(),
            key::schedulers(),
            key::priority_classes(),
            key::job_types(),
            key::cells(),
            key::nodes(),
        ]
    }

    /// The record of a listed key. `None`: the key is of another prefix, or of no record.
    #[must_use]
    pub fn of_key(key: &str) -> Option<LoggedRecord> {
        if key == key::cell_config().as_str() {
            return Some(LoggedRecord::Cells);
        }
        if let Some(name) = key::priority_classes().tail(key) {
            return name.parse().ok().map(LoggedRecord::PriorityClass);
        }
        if let Some(name) = key::schedulers().tail(key) {
            return name.parse().ok().map(LoggedRecord::Scheduler);
        }
        if let Some(name) = key::nodes().tail(key) {
            return name.parse().ok().map(LoggedRecord::Drain);
        }
        if let Some(name) = key::job_types().tail(key) {
            return name.parse().ok().map(LoggedRecord::JobType);
        }
        let of = |prefix: Prefix, record: fn(Namespaced) -> LoggedRecord| {
            key::namespaced(&prefix, key).map(record)
        };
        of(key::cron_jobs(), LoggedRecord::CronJob)
            .or_else(|| of(key::job_flows(), LoggedRecord::JobFlow))
            .or_else(|| of(key::job_templates(), LoggedRecord::JobTemplate))
            .or_else(|| of(key::pod_groups(), LoggedRecord::PodGroup))
    }

    /// The record's key.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            LoggedRecord::CronJob(id) => key::cron_job(id),
            LoggedRecord::JobFlow(id) => key::job_flow(id),
            LoggedRecord::JobTemplate(id) => key::job_template(id),
            LoggedRecord::PodGroup(id) => key::pod_group(id),
            LoggedRecord::Scheduler(name) => key::scheduler(name),
            LoggedRecord::PriorityClass(name) => key::priority_class(name),
            LoggedRecord::JobType(name) => key::job_type(name),
            LoggedRecord::Cells => key::cell_config(),
            LoggedRecord::Drain(node) => key::node(node),
        }
    }

    /// Hash of a stored value as the log has it; `None`: the log has none of such a value, as of a node that is not
    /// drained. Documents are compared byte by byte; PodGroups, priority classes and cells as JSON: owners of groups
    /// report counts in them, and the log repeats the fields of the others.
    #[must_use]
    pub fn hash(&self, value: &[u8]) -> Option<String> {
        match self {
            LoggedRecord::CronJob(_)
            | LoggedRecord::JobFlow(_)
            | LoggedRecord::JobTemplate(_)
            | LoggedRecord::Scheduler(_) => Some(record_hash(value)),
            LoggedRecord::PodGroup(_) => {
                let mut group = json(value);
                if let Some(fields) = group.as_object_mut() {
                    fields.remove("members");
                }
                Some(record_hash(group.to_string().as_bytes()))
            }
            LoggedRecord::PriorityClass(_) | LoggedRecord::JobType(_) | LoggedRecord::Cells => {
                Some(json_hash(&json(value)))
            }
            LoggedRecord::Drain(_) => is_drained(value).then(|| DRAINED.to_owned()),
        }
    }

    /// The record by which a user accepts what is stored; `None`: nothing is.
    #[must_use]
    pub fn accepted(&self, stored: Option<&[u8]>, actor: Actor) -> Details {
        let document = |kind: &str, record: Namespaced, actor| {
            let (kind, action) = (kind.to_owned(), ACCEPTED.to_owned());
            let hash = stored.and_then(|value| self.hash(value));
            Details::RecordChanged(RecordChange { kind, record, actor, action, hash })
        };
        let (reason, before, after) = (ACCEPTED.to_owned(), None, stored.map(json));
        match self {
            LoggedRecord::CronJob(id) => document(CRON_JOB, id.clone(), actor),
            LoggedRecord::JobFlow(id) => document(JOB_FLOW, id.clone(), actor),
            LoggedRecord::JobTemplate(id) => document(JOB_TEMPLATE, id.clone(), actor),
            LoggedRecord::PodGroup(id) => document(POD_GROUP, id.clone(), actor),
            LoggedRecord::Scheduler(name) => document(SCHEDULER, without_namespace(name), actor),
            LoggedRecord::PriorityClass(name) => {
                let priority_class = name.clone();
                let change = PriorityClassChange { priority_class, actor, reason, before, after };
                Details::PriorityClassChanged(change)
            }
            LoggedRecord::JobType(name) => {
                let job_type = name.clone();
                let change = JobTypeChange { job_type, actor, reason, before, after };
                Details::JobTypeChanged(change)
            }
            LoggedRecord::Cells => {
                Details::CellsChanged(CellsChange { actor, reason, before, after })
            }
            LoggedRecord::Drain(node) => {
                let (node, drain_deadline, pods) = (node.clone(), None, Vec::new());
                let change = NodeChange { node, actor, reason, drain_deadline, pods };
                match stored.is_some_and(is_drained) {
                    true => Details::NodeDrained(change),
                    false => Details::NodeUndrained(change),
                }
            }
        }
    }

    /// The record of a document; `None`: of a kind that is not compared.
    #[must_use]
    pub fn of_document(kind: &str, record: Namespaced) -> Option<LoggedRecord> {
        match kind {
            CRON_JOB => Some(LoggedRecord::CronJob(record)),
            JOB_FLOW => Some(LoggedRecord::JobFlow(record)),
            JOB_TEMPLATE => Some(LoggedRecord::JobTemplate(record)),
            POD_GROUP => Some(LoggedRecord::PodGroup(record)),
            SCHEDULER => Some(LoggedRecord::Scheduler(record.name)),
            _ => None,
        }
    }
}

/// A name of a kind without namespaces, as the log has it.
fn without_namespace(name: &ObjectName) -> Namespaced {
    let namespace = DEFAULT_NAMESPACE.parse().expect("a legal name");
    Namespaced { namespace, name: name.clone() }
}

/// Stands for the hash of a drain.
const DRAINED: &str = "drained";

fn is_drained(record: &[u8]) -> bool {
    NodeRecord::decode(record).is_ok_and(|record| record.state == NodeState::Draining)
}

const CRON_JOB: &str = "CronJob";
const JOB_FLOW: &str = "JobFlow";
const JOB_TEMPLATE: &str = "JobTemplate";
const POD_GROUP: &str = "PodGroup";
const SCHEDULER: &str = "Scheduler";

impl fmt::Display for LoggedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoggedRecord::CronJob(id) => write!(f, "{CRON_JOB} {id}"),
            LoggedRecord::JobFlow(id) => write!(f, "{JOB_FLOW} {id}"),
            LoggedRecord::JobTemplate(id) => write!(f, "{JOB_TEMPLATE} {id}"),
            LoggedRecord::PodGroup(id) => write!(f, "{POD_GROUP} {id}"),
            LoggedRecord::Scheduler(name) => write!(f, "{SCHEDULER} {name}"),
            LoggedRecord::PriorityClass(name) => write!(f, "priority class {name}"),
            LoggedRecord::JobType(name) => write!(f, "job type {name}"),
            LoggedRecord::Cells => f.write_str("cells"),
            LoggedRecord::Drain(node) => write!(f, "drain of node {node}"),
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
            | EventType::JobTypeChanged
            | EventType::CellsChanged
            | EventType::NodeDrained
            | EventType::NodeUndrained
            | EventType::NodeRemoved
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
        Details::JobTypeChanged(change) => {
            Some((LoggedRecord::JobType(change.job_type), hash(change.after)))
        }
        Details::CellsChanged(change) => Some((LoggedRecord::Cells, hash(change.after))),
        Details::NodeDrained(change) => {
            Some((LoggedRecord::Drain(change.node), Some(DRAINED.to_owned())))
        }
        Details::NodeUndrained(change) | Details::NodeRemoved(change) => {
            Some((LoggedRecord::Drain(change.node), None))
        }
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
        let is_drain = matches!(record, LoggedRecord::Drain(_));
        let what = match (logged, stored.get(record)) {
            (Some(logged), Some(stored)) if logged == stored => return None,
            (None, None) => return None,
            (Some(_), None) if is_drain => "the log has it, and the node is not drained",
            (None, Some(_)) if is_drain => "the log has its end, and the node is drained",
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

    fn all() -> [LoggedRecord; 8] {
        let id: Namespaced = "team-a/nightly".parse().unwrap();
        [
            LoggedRecord::CronJob(id.clone()),
            LoggedRecord::JobFlow(id.clone()),
            LoggedRecord::JobTemplate(id.clone()),
            LoggedRecord::PriorityClass("high".parse().unwrap()),
            LoggedRecord::JobType("PaddleJob".parse().unwrap()),
            LoggedRecord::Cells,
            LoggedRecord::PodGroup(id),
            LoggedRecord::Scheduler("gpus".parse().unwrap()),
        ]
    }

    fn drain() -> LoggedRecord {
        LoggedRecord::Drain("n1".parse().unwrap())
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
            Some((record.clone(), record.hash(value.as_bytes())?))
        };
        let found = compare_logged_records(
            &fold(&log(events)).records,
            &stored.and_then(hash).into_iter().collect(),
        );
        found.into_iter().map(|difference| difference.to_string()).collect()
    }

    #[test]
    fn keys_of_records_name_them() {
        for record in all().into_iter().chain([drain()]) {
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
    fn drain_that_was_begun_or_ended_by_hand_differs() {
        let (drained, ready) = (r#"{"state":"draining"}"#, r#"{"state":"ready"}"#);
        let said = |events: &[Option<&str>], stored| {
            let events: Vec<Details> =
                events.iter().map(|value| change(&drain(), *value)).collect();
            differences(&events, Some((&drain(), stored))).concat()
        };
        assert_eq!(said(&[Some(drained)], drained), "");
        assert_eq!(said(&[Some(drained), Some(ready)], ready), "");
        assert_eq!(said(&[], drained), "", "it is not in the log");
        let begun = "drain of node n1: the log has it, and the node is not drained";
        assert_eq!(said(&[Some(drained)], ready), begun);
        let ended = "drain of node n1: the log has its end, and the node is drained";
        assert_eq!(said(&[Some(drained), Some(ready)], drained), ended);
        assert_eq!(said(&[Some(drained), None], drained), ended);
    }

    #[test]
    fn counts_that_the_owner_of_a_group_reports_are_no_difference() {
        let group = &all()[6];
        let events = [change(group, Some(r#"{"spec":{"queue":"q"}}"#))];
        let with_counts = r#"{"members":{"running":3},"spec":{"queue":"q"}}"#;
        assert_eq!(differences(&events, Some((group, with_counts))), [""; 0]);
        let other = r#"{"members":{"running":3},"spec":{"queue":"r"}}"#;
        assert_eq!(differences(&events, Some((group, other))).len(), 1);
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
        for record in &all()[3..6] {
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
