//! The status that the owner farm writes: the value of `status/replication_controllers/<uuid>/rcfarm`.
//!
//! Each transaction of the owner replaces the status by CAS and increments `revision`. A transaction whose answer was
//! lost is therefore refused if it arrives after a later one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::carried::{Carried, keep_most};
use crate::ids::{FarmName, NodeName};
use crate::text::displays_as_variant;
use crate::{Index, Stored, Timestamp, backoff};

/// The status record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RcStatus {
    /// ModifyIndex of the RC record that this status is about.
    pub observed_index: Index,
    /// Incremented by every transaction of an owner.
    pub revision: u64,
    /// Counts.
    pub replicas: Replicas,
    /// One condition per type, in the order of [`RcConditionType`]. Unknown conditions of a newer program are dropped;
    /// everything else, such as a transfer, is kept.
    #[serde(default, deserialize_with = "known_conditions")]
    pub conditions: Vec<RcCondition>,
    /// Who owns the RC.
    pub owner: Option<RcOwner>,
    /// A node transfer under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The record is not reconciled until then, because it kept failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_until: Option<Timestamp>,
    /// Nodes that failed to start a pod of this RC: none is added there for a while.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_nodes: BTreeMap<NodeName, Quarantine>,
    /// Pods whose last nodes went down soon after they were given them, by their present nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub carried: BTreeMap<NodeName, CarriedPod>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// A node that failed to start a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// No pod is added there until then.
    pub until: Timestamp,
    /// Failures in a row.
    pub failures: u32,
    /// The node's message.
    pub why: String,
    /// ModifyIndex of the RC record of the failed pod. A change of the record ends the quarantine, since it may fix the
    /// cause.
    pub observed_index: Index,
}

/// A pod whose last nodes went down soon after they were given it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedPod {
    /// Its nodes before, and since when it is on its present one.
    #[serde(flatten)]
    pub carried: Carried,
    /// ModifyIndex of the RC record. A change of the record ends this, since it may fix the cause.
    pub observed_index: Index,
}

/// Length of a node's first quarantine; doubled each time.
pub const FIRST_QUARANTINE: Duration = Duration::from_secs(60);
/// Longest quarantine. An entry is dropped when it has been over for as long.
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
    /// Desired pods.
    pub desired: u32,
    /// Pods that carry the RC's id.
    pub current: u32,
    /// Pods that also pass their health check.
    pub healthy: u32,
    /// Eligible nodes.
    pub eligible: u32,
}

/// Who owns the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcOwner {
    pub farm: FarmName,
    /// Since when.
    pub since: Timestamp,
}

/// A node transfer under way, with all that a later owner needs to finish or undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Idempotency token for the scheduler, and id in the audit log.
    pub id: Uuid,
    /// The node to leave.
    pub old_node: NodeName,
    /// The new node, once the scheduler has chosen it.
    pub new_node: Option<NodeName>,
    /// Why it is being undone. It is not continued once this is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoing: Option<String>,
}

/// A condition of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RcCondition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: RcConditionType,
    /// Whether it holds.
    pub status: bool,
    /// Reason, as a fixed token.
    pub reason: RcReason,
    /// Why, for people.
    pub message: String,
    /// When `status` or `reason` last changed.
    pub last_transition_time: Timestamp,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RcConditionType {
    /// The record is valid.
    Valid,
    /// As many pods exist as desired.
    Scheduled,
    /// Every pod is on an eligible node, or stays where it is on purpose.
    Placed,
    /// No pod waits for the record's manifest. Farms of versions before updates in order do not write it.
    Updated,
    /// No pod is restarted again and again. Farms of earlier versions do not write it.
    Running,
}

/// Reason of a condition. Fixed tokens: scripts and alerts match them.
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
    /// Fewer nodes match than replicas are desired.
    InsufficientNodes,
    /// Too few matching nodes have capacity, or a pod's node has none for it.
    InsufficientCapacity,
    /// Enough nodes match, but on some of them another pod has the same id.
    PlaceTaken,
    /// Pods are being added or removed.
    Scaling,
    /// Repeated failures; see `last_error` and `quarantined_until`.
    Quarantined,
    /// The mass deletion guard holds a cache back: nothing is removed or moved until an operator confirms.
    SuspiciousTree,
    /// Pods are on ineligible nodes and the strategy is static: an operator moves them.
    IneligibleNodes,
    /// Pods are on nodes whose agents are gone and the strategy is static: an operator moves them.
    NodeDown,
    /// A node transfer is under way.
    TransferUnderWay,
    /// A transfer waits until service discovery is in sync.
    DiscoveryNotSynced,
    /// A transfer waits until all other pods are healthy.
    PodsUnhealthy,
    /// A transfer waits: another session holds the record's mutation or transfer lock.
    LockHeld,
    /// A transfer was undone; see `last_error`.
    TransferFailed,
    /// Pods are on nodes that cannot start them, and no other node is free, or the strategy is static. Or no node can
    /// run the manifest.
    CannotStart,
    /// A pod is set aside: several nodes in a row went down soon after they were given it.
    NodesLost,
    /// Pods get the record's manifest one after the other; `message` says what the next one waits for.
    UpdateUnderWay,
    /// Processes of pods end soon after their start, and are restarted again and again; `message` says how they end.
    PodsRestarting,
}

displays_as_variant!(RcReason);

impl Stored for RcStatus {}

impl RcStatus {
    /// The condition of a type.
    pub fn condition(&self, kind: RcConditionType) -> Option<&RcCondition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }

    /// Sets a condition. Its time changes only with status or reason.
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

    /// Why no pod is added on `node` at `now`, for the record at `record_index`.
    pub fn quarantine(
        &self,
        node: &NodeName,
        record_index: Index,
        now: Timestamp,
    ) -> Option<&Quarantine> {
        let entry = self.quarantined_nodes.get(node)?;
        (entry.observed_index == record_index && entry.until > now).then_some(entry)
    }

    /// When the next quarantine ends, or the next pod is no longer set aside.
    pub fn next_release(&self, record_index: Index, now: Timestamp) -> Option<Timestamp> {
        let all = self.quarantined_nodes.values();
        let active = all.filter(|one| one.observed_index == record_index && one.until > now);
        let set_aside = self
            .carried
            .keys()
            .filter_map(|node| Some(self.set_aside(node, record_index, now)?.goes_on_at()));
        active.map(|one| one.until).chain(set_aside).min()
    }

    /// Why the pod on `node`, which is down, is not given to another node at `now`, for the record at `record_index`.
    #[must_use]
    pub fn set_aside(
        &self,
        node: &NodeName,
        record_index: Index,
        now: Timestamp,
    ) -> Option<&Carried> {
        let pod = self.carried.get(node).filter(|pod| pod.observed_index == record_index)?;
        Some(&pod.carried).filter(|carried| carried.is_set_aside(now))
    }

    /// Notes that a pod was moved, and whether because its node went down.
    pub fn set_carried(
        &mut self,
        (from, to): (&NodeName, &NodeName),
        is_down: bool,
        record_index: Index,
        now: Timestamp,
    ) {
        let before = self.carried.remove(from);
        self.carried
            .retain(|_, pod| pod.observed_index == record_index && pod.carried.is_recent(now));
        if !is_down {
            return;
        }
        let before = before.filter(|pod| pod.observed_index == record_index);
        let carried = Carried::from_node(before.as_ref().map(|pod| &pod.carried), from, now);
        let pod = CarriedPod { carried, observed_index: record_index };
        self.carried.insert(to.clone(), pod);
        let mut all: Vec<_> = std::mem::take(&mut self.carried).into_iter().collect();
        keep_most(&mut all, |(_, pod)| &pod.carried);
        self.carried = all.into_iter().collect();
    }

    /// Quarantines `node`; drops entries that are long over or about another version of the record.
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

    /// Whether every condition holds for the record at `observed_index`.
    pub fn is_settled(&self) -> bool {
        self.conditions.len() >= 3 && self.conditions.iter().all(|c| c.status)
    }

    /// `AsDesired`, `Pending`, or the reason of the first condition that does not hold.
    pub fn state(&self) -> String {
        let failed = self.conditions.iter().find(|condition| !condition.status);
        match failed {
            Some(condition) => condition.reason.to_string(),
            None if self.is_settled() => RcReason::AsDesired.to_string(),
            None => "Pending".to_owned(),
        }
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
    fn pod_is_set_aside_on_its_third_node_until_the_record_changes() {
        let node = |n: u32| -> NodeName { format!("n{n}").parse().unwrap() };
        let mut status = RcStatus::default();
        let carry = |status: &mut RcStatus, n: u32, is_down: bool, second: i64| {
            status.set_carried((&node(n), &node(n + 1)), is_down, Index(7), at(second));
        };
        carry(&mut status, 0, true, 0);
        carry(&mut status, 1, true, 30);
        assert_eq!(status.carried.keys().collect::<Vec<_>>(), [&node(2)]);
        let why = status.set_aside(&node(2), Index(7), at(60)).unwrap();
        assert_eq!((why.times, &why.nodes), (2, &vec![node(0), node(1)]));
        assert_eq!(status.next_release(Index(7), at(60)), Some(at(630)));
        assert_eq!(status.set_aside(&node(2), Index(7), at(630)), None);
        assert_eq!(status.set_aside(&node(2), Index(8), at(60)), None, "the record has changed");
        assert_eq!(RcStatus::decode(&status.encode()).unwrap(), status);
        let mut drained = status.clone();
        carry(&mut drained, 2, false, 60);
        assert_eq!(drained.carried.len(), 0, "it was not given away because its node went down");
        for n in 0..200 {
            status.set_carried((&node(1_000 + n), &node(2_000 + n)), true, Index(7), at(60));
        }
        assert_eq!(status.carried.len(), crate::carried::MOST_CARRIED);
        assert!(status.carried.contains_key(&node(2)), "the one with most nodes stays");
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
