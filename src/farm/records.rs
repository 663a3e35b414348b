//! Cached views of a kind's records, locks and labels, of the other farms, and of doorbells.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use rcfarm_api::ids::{FarmName, NodeName, RecordId, SessionId};
use rcfarm_api::labels::{Labels, Selector, decode_labels};
use rcfarm_api::{Stored, Timestamp, key};
use rcfarm_store::cache::CacheIndex;
use rcfarm_store::{Decoder, Entry, Index, Op, Prefix, Versioned, VersionedIndex};

/// A record: its value as stored.
pub type Record = Versioned<Bytes>;

/// Decodes each value as its bytes.
pub struct RawDecoder;

impl Decoder for RawDecoder {
    type Key = RecordId;
    type Value = Bytes;

    fn key(prefix: &Prefix, key: &str) -> Option<RecordId> {
        prefix.tail(key).map(RecordId::from)
    }

    fn decode(_: &RecordId, entry: &Entry) -> Option<Bytes> {
        Some(entry.value.clone())
    }
}

/// All records of a kind.
pub type Records = VersionedIndex<RawDecoder>;

/// Sessions that hold locks of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordLocks {
    /// The ownership lock.
    pub owner: Option<SessionId>,
    /// Other locks, by the last segment of their keys (`update`, `node_transfer`, …).
    pub others: BTreeMap<String, SessionId>,
}

/// All locks of a kind's records. Keys without a session are not locks.
#[derive(Debug, Default)]
pub struct Locks(pub BTreeMap<RecordId, RecordLocks>);

impl CacheIndex for Locks {
    fn build(_: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let mut locks: BTreeMap<RecordId, RecordLocks> = BTreeMap::new();
        for entry in entries {
            let Some(session) = entry.session else { continue };
            let Some(tail) = prefix.tail(&entry.key) else { continue };
            let (id, other) = key::split_lock(prefix, tail);
            let locks = locks.entry(id.into()).or_default();
            match other {
                None => locks.owner = Some(session),
                Some(other) => drop(locks.others.insert(other.to_owned(), session)),
            }
        }
        Locks(locks)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Decodes label sets; `None` if the value is no label set.
pub struct LabelDecoder;

impl Decoder for LabelDecoder {
    type Key = RecordId;
    type Value = Option<Arc<Labels>>;

    fn key(prefix: &Prefix, key: &str) -> Option<RecordId> {
        prefix.tail(key).map(RecordId::from)
    }

    fn decode(_: &RecordId, entry: &Entry) -> Option<Self::Value> {
        Some(decode_labels(&entry.value).ok().map(Arc::new))
    }
}

/// The labels of a kind's records. A record whose labels cannot be decoded matches no selector but the one that matches
/// everything.
#[derive(Debug, Default)]
pub struct RecordLabels(pub VersionedIndex<LabelDecoder>);

impl RecordLabels {
    /// The labels of `id`; `None` when they cannot be decoded.
    pub fn of(&self, id: &RecordId) -> Option<Arc<Labels>> {
        self.0.get(id).map_or_else(|| Some(Arc::default()), |labels| labels.value.clone())
    }

    /// An operation that Consul refuses unless the labels of `id`, below `prefix`, are still the cached ones. `None`: it
    /// has none in the cache. Consul wants the right to write a key for the check that it does not exist, and farms may
    /// only read labels.
    pub fn guard(&self, prefix: &Prefix, id: &RecordId) -> Option<Op> {
        let index = self.0.get(id)?.index;
        Some(Op::CheckIndex { key: prefix.key_of(id.as_str())?, index })
    }
}

impl CacheIndex for RecordLabels {
    fn build(old: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        RecordLabels(VersionedIndex::build(&old.0, prefix, entries))
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Stored for FarmPresence {}

/// A live farm's own record at `rcfarm/farms/<farm>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarmPresence {
    pub session: SessionId,
    /// Which records it claims.
    pub selector: String,
    /// Version of its program.
    pub version: String,
    /// When its session began.
    pub since: Timestamp,
    /// Records that it owns, by kind; updated every 3 s at most.
    #[serde(default)]
    pub claims: BTreeMap<String, usize>,
    /// Address of its HTTP scheduler; `None`: the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Caches that the mass deletion guard holds back, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspicions: Vec<String>,
    /// Why its session has no check, so that a crash of the farm is noticed late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check_problem: Option<String>,
    /// Nodes that failed to start pods of several records. It adds none there for a while.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub suspect_nodes: BTreeSet<NodeName>,
    /// Keys below the prefixes of records whose names are not valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable_keys: Vec<String>,
    /// It is shutting down: other farms hand it no records.
    #[serde(default)]
    pub leaving: bool,
}

/// A live farm, read from its presence. The CreateIndex of its key changes with its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFarm {
    pub session: SessionId,
    /// Which records it claims.
    pub selector: Selector,
    /// Whether it is shutting down. It is handed no records then.
    pub leaving: bool,
}

/// Decodes `rcfarm/farms/<farm>`. A presence key that no session locks is of no live farm.
pub struct PeerDecoder;

impl Decoder for PeerDecoder {
    type Key = FarmName;
    type Value = PeerFarm;

    fn key(prefix: &Prefix, key: &str) -> Option<FarmName> {
        prefix.tail(key)?.parse().ok()
    }

    fn decode(_: &FarmName, entry: &Entry) -> Option<PeerFarm> {
        let session = entry.session.clone()?;
        let presence = FarmPresence::decode(&entry.value).ok()?;
        let selector = presence.selector.parse().ok()?;
        Some(PeerFarm { session, selector, leaving: presence.leaving })
    }
}

/// The live farms.
pub type Peers = VersionedIndex<PeerDecoder>;

/// Doorbells by kind and name, with the ModifyIndex of each.
#[derive(Debug, Default)]
pub struct Doorbells(pub BTreeMap<(String, RecordId), Index>);

impl CacheIndex for Doorbells {
    fn build(_: &Self, prefix: &Prefix, entries: Vec<Entry>) -> Self {
        let bell = |entry: Entry| {
            let (kind, id) = prefix.tail(&entry.key)?.split_once('/')?;
            Some(((kind.to_owned(), RecordId::from(id)), entry.modify_index))
        };
        Doorbells(entries.into_iter().filter_map(bell).collect())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record_labels::{OwnLabels, SelectedBy};
    use super::*;

    fn entry(key: &str, value: &str, session: Option<&str>, index: u64) -> Entry {
        Entry {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            flags: 0,
            session: session.map(SessionId::from),
            lock_index: 0,
            create_index: Index(index),
            modify_index: Index(index),
        }
    }

    #[test]
    fn locks_of_one_record_are_told_apart() {
        let locks = Locks::build(
            &Locks::default(),
            &key::rc_locks(),
            vec![
                entry("lock/replication_controllers/x", "", Some("s1"), 1),
                entry("lock/replication_controllers/x/update", "", Some("s2"), 2),
                entry("lock/replication_controllers/y", "", None, 3),
            ],
        );
        let x = &locks.0[&RecordId::from("x")];
        assert_eq!(x.owner, Some(SessionId::from("s1")));
        assert_eq!(x.others["update"], SessionId::from("s2"));
        assert!(!locks.0.contains_key(&RecordId::from("y")), "no session, no lock");
    }

    #[test]
    fn malformed_labels_match_only_everything() {
        let labels = RecordLabels::build(
            &RecordLabels::default(),
            &key::labels(key::LabelKind::ReplicationController),
            vec![
                entry("labels/replication_controller/x", r#"{"a":"b"}"#, None, 1),
                entry("labels/replication_controller/y", "[", None, 2),
            ],
        );
        let own = OwnLabels::default();
        let labels = SelectedBy { keys: &labels, own: &own };
        let selector: Selector = "a=b".parse().unwrap();
        assert!(labels.matches(&"x".into(), &selector));
        assert!(!labels.matches(&"y".into(), &selector));
        assert!(!labels.matches(&"z".into(), &selector));
        assert!(labels.matches(&"y".into(), &Selector::everything()));
    }

    #[test]
    fn a_presence_without_a_session_is_nobody() {
        let value = r#"{"session":"s","selector":"","version":"1","since":"2026-01-01T00:00:00Z"}"#;
        let peers = Peers::build(
            &Peers::default(),
            &key::farms(),
            vec![
                entry("rcfarm/farms/a", value, Some("s"), 1),
                entry("rcfarm/farms/b", value, None, 2),
                entry("rcfarm/farms/c", "{", Some("s"), 3),
            ],
        );
        assert_eq!(peers.0.keys().map(FarmName::as_str).collect::<Vec<_>>(), ["a"]);
    }
}
