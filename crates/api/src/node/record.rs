//! What a node says of itself, and what an operator wants of it: the value of `rcfarm/nodes/<node>`.
//!
//! The agent's session holds the key, so that its end is the sign that the agent is gone; the record stays
//! (behaviour `release`). An operator changes `state` by CAS; the agent keeps what it finds there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Stored;
use crate::Timestamp;
use crate::ids::SessionId;
use crate::manifest::Resources;

/// The record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Where its pods are reached: a host name or an IP address.
    #[serde(default)]
    pub address: String,
    /// Where its agent shows its pods and their logs, as `host:port`; `None`: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// The labels that the agent was started with: those that it puts on the node and takes off again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it has. All zero: nothing was declared.
    #[serde(default)]
    pub capacity: Resources,
    /// What an operator wants.
    #[serde(default)]
    pub state: NodeState,
    /// Until when a drain is meant to be over; `rcfarm node drain` reports what is left then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Timestamp>,
    /// Version of the agent; `None` when the node has none of ours, such as a node of p2's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The agent's session when it last wrote; the agent is gone when this does not hold the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// For so many milliseconds after its session was ended by force a single instance may still live here, if the
    /// agent cannot be reached: farms count the node as down no sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// What an operator wants of a node. Whether it is down is not written: the lock tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It may run pods.
    #[default]
    Ready,
    /// It shall become empty and stay so.
    Draining,
}

impl Stored for NodeRecord {
    const PAGE: &'static str = "docs/guide/nodes.md";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldError;

    #[test]
    fn a_record_by_hand_needs_little_and_keeps_what_we_do_not_know() {
        let record = NodeRecord::decode(br#"{"state":"draining","rack":7}"#).unwrap();
        assert_eq!(record.state, NodeState::Draining);
        assert_eq!(record.session, None);
        let again: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
        assert_eq!(again["rack"], 7);
        for (value, path) in [
            (r#"{"rack":7,"state":"sleepy"}"#, "state"),
            (r#"{"capacity":{"cpu_milli":-1}}"#, "capacity.cpu_milli"),
            (r#"{"drain_deadline":"soon","state":"draining"}"#, "drain_deadline"),
            ("[]", FieldError::WHOLE),
            ("{", FieldError::WHOLE),
        ] {
            let error = NodeRecord::decode(value.as_bytes()).unwrap_err();
            assert_eq!(error.path, path, "{value}");
            assert!(!error.problem.is_empty());
        }
    }
}
