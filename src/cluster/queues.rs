//! `rcfarm/queues/` and `rcfarm/pod_groups/`: records of queues and PodGroups.

use std::collections::BTreeMap;
use std::sync::Arc;

use rcfarm_api::ids::QueueName;
use rcfarm_api::pod_group::spec::{GroupId, PodGroupRecord};
use rcfarm_api::pod_group::status::PodGroupStatus;
use rcfarm_api::queue::spec::QueueRecord;
use rcfarm_api::{FieldError, Stored, key};
use rcfarm_store::{Decoder, Entry, Prefix, Versioned, VersionedIndex};

/// A queue's record, or why it cannot be decoded.
pub type StoredQueue = Versioned<Result<QueueRecord, FieldError>>;

pub type StoredQueues = BTreeMap<QueueName, Arc<StoredQueue>>;

/// Decodes `rcfarm/queues/<queue>`.
pub struct QueueDecoder;

impl Decoder for QueueDecoder {
    type Key = QueueName;
    type Value = Result<QueueRecord, FieldError>;

    fn key(prefix: &Prefix, key: &str) -> Option<QueueName> {
        prefix.tail(key)?.parse().ok()
    }

    fn decode(_: &QueueName, entry: &Entry) -> Option<Self::Value> {
        Some(QueueRecord::decode(&entry.value))
    }
}

/// `rcfarm/queues/`
pub type QueueIndex = VersionedIndex<QueueDecoder>;

/// A PodGroup's record, or all its invalid fields. Its CreateIndex identifies the group among those of its name, and
/// orders groups by age.
pub type StoredGroup = Versioned<Result<PodGroupRecord, Vec<FieldError>>>;

pub type StoredGroups = BTreeMap<GroupId, Arc<StoredGroup>>;

/// Decodes and validates a PodGroup's record.
///
/// # Errors
/// All invalid fields.
pub fn read_group(id: &GroupId, value: &[u8]) -> Result<PodGroupRecord, Vec<FieldError>> {
    let record = PodGroupRecord::decode(value).map_err(|bad| vec![bad])?;
    match record.spec.check(id) {
        bad if bad.is_empty() => Ok(record),
        bad => Err(bad),
    }
}

/// Decodes `rcfarm/pod_groups/<namespace>/<name>`.
pub struct GroupDecoder;

impl Decoder for GroupDecoder {
    type Key = GroupId;
    type Value = Result<PodGroupRecord, Vec<FieldError>>;

    fn key(prefix: &Prefix, key: &str) -> Option<GroupId> {
        key::namespaced(prefix, key)
    }

    fn decode(id: &GroupId, entry: &Entry) -> Option<Self::Value> {
        Some(read_group(id, &entry.value))
    }
}

/// `rcfarm/pod_groups/`
pub type GroupIndex = VersionedIndex<GroupDecoder>;

/// Decodes `rcfarm/pod_group_status/<namespace>/<name>`; `None`: the value is no status.
pub struct GroupStatusDecoder;

impl Decoder for GroupStatusDecoder {
    type Key = GroupId;
    type Value = Option<PodGroupStatus>;

    fn key(prefix: &Prefix, key: &str) -> Option<GroupId> {
        key::namespaced(prefix, key)
    }

    fn decode(_: &GroupId, entry: &Entry) -> Option<Self::Value> {
        Some(PodGroupStatus::decode(&entry.value).ok())
    }
}

/// `rcfarm/pod_group_status/`
pub type GroupStatusIndex = VersionedIndex<GroupStatusDecoder>;
