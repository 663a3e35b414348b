//! Subjects of reads: the index of an answer, and which writes wake a blocked read (`consul-semantics.md` §4.1, §4.2).

use super::catalog::Catalog;
use super::kv::Kv;
use super::session::Sessions;
use rcfarm_api::Index;
use rcfarm_api::ids::SessionId;

/// The whole state at one index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Keys and tombstones.
    pub kv: Kv,
    /// Live sessions.
    pub sessions: Sessions,
    /// Nodes, services and checks.
    pub catalog: Catalog,
    /// The last Raft index.
    pub index: Index,
}

/// The subject of a read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Key(String),
    /// Keys that begin with this text.
    Prefix(String),
    Session(SessionId),
    /// All sessions.
    Sessions,
    Service(String),
    /// All checks.
    Checks,
    /// All nodes.
    Nodes,
    /// All services.
    Services,
}

impl Tables {
    /// The `X-Consul-Index` of a read; at least 1, so that a wait on it blocks.
    pub fn index_of(&self, subject: &Subject) -> Index {
        let index = match subject {
            Subject::Key(key) => self.kv.key_index(key),
            Subject::Prefix(prefix) => self.kv.prefix_index(prefix),
            Subject::Session(_) | Subject::Sessions => self.sessions.index(),
            Subject::Service(name) => self.catalog.service_index(name),
            Subject::Checks => self.catalog.check_index(),
            Subject::Nodes => self.catalog.node_index(),
            Subject::Services => self.catalog.services_index(),
        };
        index.max(Index(1))
    }
}
