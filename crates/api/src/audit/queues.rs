//! Details of events of queues, their groups and priority classes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Actor, record_hash};
use crate::ids::{FarmName, Namespaced, ObjectName, QueueName};

/// Longest specification or record that an event repeats, in bytes of JSON. Two of them, with names and the envelope,
/// fit into the space that transactions keep for an audit record (16 KiB in base64).
pub const LONGEST_REPEATED: usize = 4 * 1024;

/// What an event repeats of a specification or a record: the value, or in place of one that is longer than
/// [`LONGEST_REPEATED`] its size and its hash, as in `{"omitted": {"bytes": 5000, "hash": "0011223344556677"}}`.
#[must_use]
pub fn abridged(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= LONGEST_REPEATED {
        return value;
    }
    json!({ OMITTED: { "bytes": text.len(), "hash": record_hash(text.as_bytes()) } })
}

/// Whether this stands for a value that was too long.
pub(super) fn is_abridged(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.len() == 1 && fields.contains_key(OMITTED))
}

/// The hash in place of a value that was too long.
pub(super) fn abridged_hash(value: &Value) -> Option<&str> {
    value[OMITTED]["hash"].as_str()
}

const OMITTED: &str = "omitted";

/// A queue was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueChange {
    /// Name of the queue.
    pub queue: QueueName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Farm that made the change, if a farm did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub farm: Option<FarmName>,
    /// Spec before, [`abridged`]. `None`: no record, or an invalid one.
    pub before: Option<Value>,
    /// Spec now, [`abridged`]. `None`: the record was deleted.
    pub after: Option<Value>,
}

/// A priority class was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityClassChange {
    /// Name of the class.
    pub priority_class: ObjectName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Record before, [`abridged`]. `None`: there was none, or an invalid one.
    pub before: Option<Value>,
    /// Record now, [`abridged`]. `None`: it was deleted.
    pub after: Option<Value>,
}

/// A job type was created, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTypeChange {
    /// Kind of its jobs.
    pub job_type: ObjectName,
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Record before, [`abridged`]. `None`: there was none, or an invalid one.
    pub before: Option<Value>,
    /// Record now, [`abridged`]. `None`: it was deleted.
    pub after: Option<Value>,
}

/// The configuration of cells was created or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellsChange {
    /// Who made the change.
    pub actor: Actor,
    /// Reason, a fixed token.
    pub reason: String,
    /// Record before, [`abridged`]. `None`: there was none, or an invalid one.
    pub before: Option<Value>,
    /// Record now, [`abridged`].
    pub after: Option<Value>,
}

/// The owner of a scheduler record changed groups. One record per transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupsOrdered {
    /// Name of the scheduler record.
    pub scheduler: ObjectName,
    /// Farm that owns the scheduler record.
    pub farm: FarmName,
    /// Who made the change.
    pub actor: Actor,
    /// Changed groups in the order of decision.
    pub groups: Vec<GroupChange>,
}

/// Change of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChange {
    /// Namespace and name of the group.
    pub group: Namespaced,
    /// Queue that the group is charged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Phase before. `None`: the group had no status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Phase now. `None`: its status was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// State of its placement: `Reserving`, `Bound` or `Releasing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Reason, a fixed token.
    pub reason: String,
    /// Group for which it is evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<Namespaced>,
    /// Members that were given allocations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub promised: usize,
    /// Members whose allocations were freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released: usize,
}

impl QueueChange {
    /// The change as it is written.
    pub(super) fn abridged(&self) -> QueueChange {
        let [before, after] = [&self.before, &self.after].map(|spec| spec.clone().map(abridged));
        QueueChange { before, after, ..self.clone() }
    }
}

impl PriorityClassChange {
    /// The change as it is written.
    pub(super) fn abridged(&self) -> PriorityClassChange {
        let [before, after] = [&self.before, &self.after].map(|spec| spec.clone().map(abridged));
        PriorityClassChange { before, after, ..self.clone() }
    }
}

impl JobTypeChange {
    /// The change as it is written.
    pub(super) fn abridged(&self) -> JobTypeChange {
        let [before, after] = [&self.before, &self.after].map(|spec| spec.clone().map(abridged));
        JobTypeChange { before, after, ..self.clone() }
    }

    /// A change for tests.
    #[cfg(test)]
    pub(super) fn sample(actor: Actor) -> JobTypeChange {
        let (job_type, reason) = ("PaddleJob".parse().unwrap(), "Requested".to_owned());
        let before = Some(serde_json::json!({"spec": {}}));
        JobTypeChange { job_type, actor, reason, before, after: None }
    }
}

impl CellsChange {
    /// The change as it is written.
    pub(super) fn abridged(&self) -> CellsChange {
        let [before, after] = [&self.before, &self.after].map(|spec| spec.clone().map(abridged));
        CellsChange { before, after, ..self.clone() }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use uuid::Uuid;

    use super::*;
    use crate::audit::{AuditRecord, Details, Folded, Logged, compare_queues, fold};
    use crate::queue::spec::QueueSpec;
    use crate::{Index, Timestamp};

    /// A specification of so many bytes of JSON, of which the last is `last`.
    fn long_spec(bytes: usize, last: char) -> QueueSpec {
        let mut spec = QueueSpec { weight: 2, ..QueueSpec::default() };
        spec.other.insert("note".to_owned(), json!(""));
        let rest = bytes - json!(spec).to_string().len() - 1;
        spec.other.insert("note".to_owned(), json!(format!("{}{last}", "a".repeat(rest))));
        assert_eq!(json!(spec).to_string().len(), bytes);
        spec
    }

    fn queue_change(before: Option<Value>, after: Option<Value>) -> QueueChange {
        QueueChange {
            queue: "research".parse().unwrap(),
            actor: Actor::Farm,
            reason: "Requested".to_owned(),
            farm: None,
            before,
            after,
        }
    }

    fn record(details: &Details) -> AuditRecord {
        AuditRecord::new(details, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn specification_that_is_too_long_for_the_log_is_replaced_by_its_hash() {
        let longest = json!(long_spec(LONGEST_REPEATED, 'x'));
        let longer = json!(long_spec(LONGEST_REPEATED + 1, 'x'));
        assert_eq!(abridged(longest.clone()), longest);
        assert_eq!(abridged(longer.clone())["omitted"]["bytes"], LONGEST_REPEATED + 1);
        let all = |value: &Value| {
            let change = queue_change(Some(value.clone()), Some(value.clone()));
            let class = PriorityClassChange {
                priority_class: "high".parse().unwrap(),
                actor: Actor::Farm,
                reason: "Requested".to_owned(),
                before: Some(value.clone()),
                after: Some(value.clone()),
            };
            let cells = CellsChange {
                actor: Actor::Farm,
                reason: "Requested".to_owned(),
                before: Some(value.clone()),
                after: Some(value.clone()),
            };
            [
                Details::QueueCreated(change.clone()),
                Details::QueueChanged(change.clone()),
                Details::QueueDeleted(change),
                Details::PriorityClassChanged(class),
                Details::CellsChanged(cells),
            ]
        };
        for (value, written) in [(&longest, longest.clone()), (&longer, abridged(longer.clone()))] {
            for details in all(value) {
                let record = record(&details);
                for field in ["before", "after"] {
                    assert_eq!(record.event_details[field], written, "{:?}", record.event_type);
                }
                record.details().unwrap();
            }
        }
    }

    #[test]
    fn queue_whose_specification_is_too_long_for_the_log_is_compared_by_its_hash() {
        let name: QueueName = "research".parse().unwrap();
        let long = long_spec(LONGEST_REPEATED * 2, 'x');
        let details = Details::QueueChanged(queue_change(None, Some(json!(long))));
        let logged = Logged { id: Uuid::nil(), index: Index(1), record: record(&details) };
        let folded: Folded = fold(&[logged]);
        let stored = |spec: QueueSpec| BTreeMap::from([(name.clone(), spec)]);
        let changed = BTreeSet::from([name.clone()]);
        assert_eq!(compare_queues(&folded, &stored(long)), BTreeSet::new());
        let other = long_spec(LONGEST_REPEATED * 2, 'y');
        assert_eq!(compare_queues(&folded, &stored(other)), changed);
        assert_eq!(compare_queues(&folded, &stored(QueueSpec::default())), changed);
        assert_eq!(compare_queues(&folded, &BTreeMap::new()), changed, "it was deleted");
    }
}
