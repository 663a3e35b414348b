//! What the owner farm says of an RC: the value of `status/replication_controllers/<uuid>/rcfarm`.
//!
//! The status is also the chain that keeps an owner's transactions in order: each one replaces it by CAS and
//! raises `revision`, so a transaction whose answer was lost and that is applied late finds its place taken.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Index;
use crate::Stored;
use crate::ids::{FarmName, NodeName};
use crate::{Timestamp, backoff};

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RcStatus {
    /// ModifyIndex of the RC record that this is about.
    pub observed_index: Index,
    /// Grows by one with every transaction of an owner.
    pub revision: u64,
    /// Counts.
    pub replicas: Replicas,
    /// What holds and why, one per type, in the order of [`RcConditionType`]. Those of a newer program that this one
    /// does not know are dropped, and only they: above all a transfer under way survives.
    #[serde(default, deserialize_with = "known_conditions")]
    pub conditions: Vec<RcCondition>,
    /// Who owns the RC.
    pub owner: Option<RcOwner>,
    /// A node transfer under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    /// The last thing that went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The farm leaves the record alone until then, because it kept failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Nodes that could not start a pod of it: none is placed there for a while.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_nodes: BTreeMap<NodeName, Quarantine>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// A node that could not start a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// No pod is placed there until then.
    pub until: Timestamp,
    /// How often in a row.
    pub failures: u32,
    /// What the node said.
    pub why: String,
    /// ModifyIndex of the RC record that the pod was of: a change of the record may be the cure, and ends it.
    pub observed_index: Index,
}

/// A node's first quarantine; each that follows is twice as long.
pub const FIRST_QUARANTINE: Duration = Duration::from_secs(60);
/// The longest one. An entry is forgotten when it is over for as long.
pub const LONGEST_QUARANTINE: Duration = Duration::from_secs(3_600);

fn known_conditions<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<RcCondition>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// Counts of pods and nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    /// Asked for.
    pub desired: u32,
    /// Pods that carry the RC's id.
    pub current: u32,
    /// Of these, passing their health check.
    pub healthy: u32,
    /// Nodes that may run it.
    pub eligible: u32,
}

/// Who owns the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcOwner {
    /// The farm.
    pub farm: FarmName,
    /// Since when.
    pub since: Timestamp,
}

/// A node transfer under way: enough for any later owner to finish it or to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The idempotency token given to the scheduler, and the id in the audit log.
    pub id: Uuid,
    /// The node to leave.
    pub old_node: NodeName,
    /// The node to go to, once the scheduler has named it.
    pub new_node: Option<NodeName>,
    /// Why it is being undone: from then on nobody goes on with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoing: Option<String>,
}

/// One statement about the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcCondition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: RcConditionType,
    /// Whether it holds.
    pub status: bool,
    /// Why, as a fixed token.
    pub reason: RcReason,
    /// Why, for people.
    pub message: String,
    /// When `status` or `reason` last changed.
    pub last_transition_time: Timestamp,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RcConditionType {
    /// The record can be worked on.
    Valid,
    /// As many pods are scheduled as asked for.
    Scheduled,
    /// Every pod is on an eligible node, or is left where it is on purpose.
    Placed,
}

/// Why a condition holds or does not. Fixed tokens: scripts and alerts match them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RcReason {
    /// Everything is as desired.
    AsDesired,
    /// The record breaks a rule; `message` names the field.
    InvalidRecord,
    /// The record is disabled.
    Disabled,
    /// No node matches the selector.
    NoEligibleNodes,
    /// Fewer nodes match than replicas are asked for.
    InsufficientNodes,
    /// Nodes match, but too few of them have room for what the pod asks for; or a pod's node has no room for it.
    InsufficientCapacity,
    /// Enough nodes match, but the pod's place on some is taken by a pod that is not this RC's.
    PlaceTaken,
    /// The farm is about to add or remove pods.
    Scaling,
    /// Repeated failures; see `last_error` and `quarantined_until`.
    Quarantined,
    /// A tree became suddenly much smaller; nothing is removed or moved until a person confirms.
    SuspiciousTree,
    /// Pods stand on ineligible nodes and the strategy is static: an operator moves them.
    IneligibleNodes,
    /// Pods stand on nodes whose agents are gone and the strategy is static: an operator moves them.
    NodeDown,
    /// A node transfer is under way.
    TransferUnderWay,
    /// A transfer waits: service discovery is not in step with the pods.
    DiscoveryNotSynced,
    /// A transfer waits: another pod is not healthy.
    PodsUnhealthy,
    /// A transfer waits: somebody holds the record's mutation or transfer lock.
    LockHeld,
    /// A transfer was undone; see `last_error`.
    TransferFailed,
    /// Pods stand on nodes that cannot start them, and no other node may have them, or the strategy is static.
    CannotStart,
}

impl std::fmt::Display for RcReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

impl Stored for RcStatus {}

impl RcStatus {
    /// The condition of a type.
    #[must_use]
    pub fn condition(&self, kind: RcConditionType) -> Option<&RcCondition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }

    /// Sets a condition; the time moves only when status or reason change.
    pub fn set_condition(
        &mut self,
        kind: RcConditionType,
        status: bool,
        reason: RcReason,
        message: String,
        now: Timestamp,
    ) {
        let since = match self.condition(kind) {
            Some(c) if c.status == status && c.reason == reason => c.last_transition_time,
            _ => now,
        };
        self.conditions.retain(|c| c.kind != kind);
        self.conditions.push(RcCondition {
            kind,
            status,
            reason,
            message,
            last_transition_time: since,
        });
        self.conditions.sort_by_key(|c| c.kind);
    }

    /// Why no pod is placed on `node` at `now`, while the record is as at `record_index`.
    #[must_use]
    pub fn quarantine(
        &self,
        node: &NodeName,
        record_index: Index,
        now: Timestamp,
    ) -> Option<&Quarantine> {
        let entry = self.quarantined_nodes.get(node)?;
        (entry.observed_index == record_index && entry.until > now).then_some(entry)
    }

    /// When the next quarantine ends.
    #[must_use]
    pub fn next_release(&self, record_index: Index, now: Timestamp) -> Option<Timestamp> {
        let all = self.quarantined_nodes.values();
        let active = all.filter(|one| one.observed_index == record_index && one.until > now);
        active.map(|one| one.until).min()
    }

    /// Notes that `node` could not start a pod; forgets what is long over, or was about another record.
    pub fn set_quarantine(
        &mut self,
        node: &NodeName,
        record_index: Index,
        why: &str,
        now: Timestamp,
    ) {
        self.quarantined_nodes.retain(|_, one| {
            one.observed_index == record_index && now < one.until + LONGEST_QUARANTINE
        });
        let before = self.quarantined_nodes.get(node).map_or(0, |one| one.failures);
        let pause = backoff(FIRST_QUARANTINE, LONGEST_QUARANTINE, before);
        let entry = Quarantine {
            until: now + pause,
            failures: before + 1,
            why: why.to_owned(),
            observed_index: record_index,
        };
        self.quarantined_nodes.insert(node.clone(), entry);
    }

    /// Whether it is settled: every condition holds, for the record as it was at `observed_index`.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.conditions.len() == 3 && self.conditions.iter().all(|c| c.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let mut status = RcStatus::default();
        let kind = RcConditionType::Scheduled;
        status.set_condition(kind, false, RcReason::NoEligibleNodes, "0 of 3".into(), at(1));
        status.set_condition(kind, false, RcReason::NoEligibleNodes, "0 of 4".into(), at(2));
        assert_eq!(status.condition(kind).unwrap().last_transition_time, at(1));
        assert_eq!(status.condition(kind).unwrap().message, "0 of 4");
        status.set_condition(kind, true, RcReason::AsDesired, String::new(), at(3));
        assert_eq!(status.condition(kind).unwrap().last_transition_time, at(3));
        assert_eq!(status.conditions.len(), 1);
    }

    #[test]
    fn quarantine_doubles_and_ends_with_a_new_record() {
        let (node, other): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let mut status = RcStatus::default();
        let mut now = at(0);
        for (failures, pause) in [(1, 60), (2, 120), (3, 240)] {
            status.set_quarantine(&node, Index(7), "no such program", now);
            let entry = status.quarantine(&node, Index(7), now).unwrap();
            assert_eq!((entry.failures, entry.until), (failures, now + Duration::from_secs(pause)));
            assert_eq!(status.next_release(Index(7), now), Some(entry.until));
            assert!(status.quarantine(&node, Index(8), now).is_none());
            now = entry.until;
            assert!(status.quarantine(&node, Index(7), now).is_none());
        }
        assert_eq!(RcStatus::decode(&status.encode()).unwrap(), status);
        now += LONGEST_QUARANTINE;
        status.set_quarantine(&other, Index(7), "full", now);
        assert_eq!(status.quarantined_nodes.keys().collect::<Vec<_>>(), [&other]);
    }

    #[test]
    fn a_status_survives_the_store() {
        let mut status = RcStatus { revision: 7, ..RcStatus::default() };
        status.set_condition(RcConditionType::Valid, true, RcReason::AsDesired, "x".into(), at(1));
        assert_eq!(RcStatus::decode(&status.encode()).unwrap(), status);
        assert!(!status.is_settled(), "two conditions are missing");
    }

    #[test]
    fn what_a_newer_program_wrote_costs_no_transfer() {
        let text = r#"{"observed_index":7,"revision":3,"replicas":{"desired":1,"current":1,"healthy":0,
            "eligible":2},"conditions":[
            {"type":"Scheduled","status":true,"reason":"AsDesired","message":"","last_transition_time":"2026-01-01T00:00:00Z"},
            {"type":"Placed","status":false,"reason":"Unheard","message":"","last_transition_time":"2026-01-01T00:00:00Z"},
            {"type":"Shiny","status":true,"reason":"AsDesired","message":"","last_transition_time":"2026-01-01T00:00:00Z"}],
            "owner":{"farm":"a","since":"2026-01-01T00:00:00Z"},"surge":2,
            "transfer":{"id":"f7fe0fb7-34b8-4a64-9ae2-5ac1f4d5b8a0","old_node":"n1","new_node":"n2","step":4}}"#;
        let status = RcStatus::decode(text.as_bytes()).unwrap();
        assert_eq!(status.transfer.as_ref().unwrap().new_node.as_ref().unwrap().as_str(), "n2");
        assert_eq!(status.conditions.len(), 1);
        let again: serde_json::Value = serde_json::from_slice(&status.encode()).unwrap();
        assert_eq!(again["surge"], 2);
    }
}
