//! A node as its agent reports it, and its desired state: the value of `rcfarm/nodes/<node>`.
//!
//! The agent's session locks the key. When the session ends, the lock is released and the record stays (behaviour
//! `release`). Operators change `state` by CAS; the agent keeps it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ports::PortRange;
use crate::ids::SessionId;
use crate::{ResourceList, Stored, Timestamp};

/// The record. Unknown fields survive a rewrite.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Address of its pods: a host name or an IP address.
    #[serde(default)]
    pub address: String,
    /// Address of its agent's HTTP server for logs, as `host:port`; `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Unix socket of its agent's server for logs, on the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_socket: Option<String>,
    /// A fault of the node that its operator must remove, such as a full disk or a check that Consul refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Labels that the agent was started with. It sets them on the node and removes them again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its capacity; all zero: not declared.
    #[serde(default, with = "crate::resource_list::units")]
    pub capacity: ResourceList,
    /// Ports that pods are given here; `None`: none, and members of jobs use their framework's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<PortRange>,
    /// Desired state.
    #[serde(default)]
    pub state: NodeState,
    /// Deadline of a drain; `rcfarm node drain` then reports what is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline: Option<Timestamp>,
    /// What a drain does with members of jobs; `None`: [`DrainJobs::Wait`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_jobs: Option<DrainJobs>,
    /// Version of the agent; `None` for nodes without rcfarm's agent, such as p2's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The agent's session when it last wrote; the agent is gone if this session does not lock the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Milliseconds that a single instance may outlive its session here, if the agent cannot be reached. Farms count
    /// the node as down no sooner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Desired state of a node. Whether it is down is not stored: the lock shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It may run pods.
    #[default]
    Ready,
    /// It shall become empty and stay empty.
    Draining,
}

/// What a drain does with members of jobs that run on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainJobs {
    /// They are evicted, and started on other nodes.
    Evict,
    /// They stay until they end.
    Wait,
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
            (r#"{"ports":"9-1"}"#, "ports"),
            ("[]", FieldError::WHOLE),
            ("{", FieldError::WHOLE),
        ] {
            let error = NodeRecord::decode(value.as_bytes()).unwrap_err();
            assert_eq!(error.path, path, "{value}");
            assert!(!error.problem.is_empty());
        }
    }
}
