//! `rcfarm/peers/<node>/<ns>/<job>`: where the members of a job are now, for the members on one node.
//!
//! The job's owner writes one record per node of the job, all with the same content. A node's agent reads those of its
//! own node alone, and writes files of them for the members that it runs
//! ([`PeersStanza`](crate::manifest::PeersStanza)).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::spec::JobUid;
use super::ssh_keys::SshKeyPair;
use crate::Stored;

/// Addresses of a job's members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeersRecord {
    /// Uid of the job. Members of another job of the name leave the record alone.
    pub uid: JobUid,
    /// Revision of the job's status under which it was written. Addresses that change back have another revision.
    pub revision: u64,
    /// Members by task and index; `None`: it has no node. Only tasks of which members are told.
    pub tasks: BTreeMap<String, Vec<Option<PeerAddress>>>,
    /// Key pair of the job, if its members reach each other by ssh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshKeyPair>,
    /// Fields that we do not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Where a member is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Host name or IP address of its node.
    pub host: String,
    /// The port at which it listens by its framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl PeerAddress {
    /// Whether the host is a name or an address: nothing in it divides a line, a list or a text in JSON.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || ".:-_%[]".contains(c);
        !self.host.is_empty() && self.host.chars().all(is_legal)
    }

    /// `host:port`; the host alone without a port.
    #[must_use]
    pub fn endpoint(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }
}

impl Stored for PeersRecord {}

impl PeersRecord {
    /// The members of a task that have a node.
    pub fn placed(&self, task: &str) -> impl Iterator<Item = &PeerAddress> {
        let members = self.tasks.get(task).into_iter().flatten();
        members.flatten().filter(|peer| peer.is_legal())
    }

    /// The record without keys, to be kept outside of Consul.
    #[must_use]
    pub fn without_keys(&self) -> PeersRecord {
        PeersRecord { ssh: None, ..self.clone() }
    }

    /// These addresses; for members without a node, those of `before`.
    #[must_use]
    pub fn or(&self, before: &PeersRecord) -> PeersRecord {
        let mut all = self.clone();
        for (task, members) in &mut all.tasks {
            let earlier = before.tasks.get(task).into_iter().flatten();
            for (member, earlier) in members.iter_mut().zip(earlier) {
                if member.is_none() {
                    member.clone_from(earlier);
                }
            }
        }
        all
    }

    /// A member, if it has a node.
    #[must_use]
    pub fn member(&self, task: &str, index: u32) -> Option<&PeerAddress> {
        let members = self.tasks.get(task)?;
        members.get(usize::try_from(index).ok()?)?.as_ref().filter(|peer| peer.is_legal())
    }
}
