//! Where the members of a job are, for the members themselves: the content of `rcfarm/peers/<node>/<ns>/<job>`. Pure.
//!
//! The environment of a process says where its peers were at its start. A peer that moves is elsewhere then, so the same
//! addresses stand in files that follow (decision 38). The manifest of a member says what its files are made of
//! ([`stanza`]); the addresses are the same for all members of a job ([`record`]).

use std::collections::{BTreeMap, BTreeSet};

use super::frameworks::{self, ClusterPeer};
use rcfarm_api::Stored;
use rcfarm_api::ids::{Namespaced, NodeName};
use rcfarm_api::job::peers::{PeerAddress, PeersRecord};
use rcfarm_api::job::spec::{JobSpec, JobTask, JobUid, OnPeerChange, Slot};
use rcfarm_api::job::status::{LARGEST_STATUS, PublishedPeers, largest_status};
use rcfarm_api::key;
use rcfarm_api::manifest::{PeerChange, PeersStanza, content_hash};
use rcfarm_store::Op;

/// Bytes of the names of a job's nodes in its status, at most. Members on more nodes are not told of moves. A transaction
/// leaves as much room for them.
const LARGEST_NODES: usize = 32 * 1024;
/// Members of jobs with more tasks have no files: each would name every task.
const MOST_TASKS: usize = 64;
/// Bytes of one record, at most.
const LARGEST_RECORD: usize = 128 * 1024;
/// Bytes of the records of all nodes of a job, at most: Consul keeps them in memory, and a move writes each again.
const LARGEST_RECORDS: usize = 8 * 1024 * 1024;
/// Bytes of a node's name in JSON besides the name.
const NAME_BYTES: usize = 3;

/// The files of a member; `None`: it is told of no peer, or the job does not ask for files.
#[must_use]
pub fn stanza(job: &JobSpec, slot: &Slot) -> Option<PeersStanza> {
    let ssh = frameworks::ssh(job);
    let only_keys =
        || ssh.clone().map(|ssh| PeersStanza { ssh: Some(ssh), ..PeersStanza::default() });
    let on_change = match job.on_peer_change {
        OnPeerChange::Nothing => return only_keys(),
        OnPeerChange::Files => None,
        OnPeerChange::Signal(signal) => Some(PeerChange::Signal(signal)),
        OnPeerChange::Restart => Some(PeerChange::Restart),
    };
    if job.tasks.len() > MOST_TASKS {
        return only_keys();
    }
    let stanza = frameworks::of(job.framework).peers(job, slot);
    // A signal or a restart is about what else it is told.
    let on_change = on_change.filter(|_| !stanza.is_empty());
    let stanza = PeersStanza { on_change, ssh, ..stanza };
    (!stanza.is_empty()).then_some(stanza)
}

/// Whether any member has files or variables that name others, besides the configuration of ssh.
#[must_use]
pub fn has_files(job: &JobSpec) -> bool {
    job.tasks.iter().any(|task| {
        let stanza = stanza(job, &Slot::new(&task.name, 0));
        stanza.is_some_and(|told| !told.files.is_empty() || !told.variables.is_empty())
    })
}

/// The tasks of which any member is told. Members of a task are told of the same tasks. The configuration of ssh names
/// all.
#[must_use]
pub fn told_tasks(job: &JobSpec) -> BTreeSet<String> {
    if frameworks::ssh(job).is_some() {
        return job.tasks.iter().map(|task| task.name.clone()).collect();
    }
    let first = |task: &JobTask| stanza(job, &Slot::new(&task.name, 0));
    let stanzas: Vec<PeersStanza> = job.tasks.iter().filter_map(first).collect();
    stanzas.iter().flat_map(PeersStanza::tasks).map(str::to_owned).collect()
}

/// The record of a job's members. `peers`: from `Placed::peers`.
#[must_use]
pub fn record(
    job: &JobSpec,
    uid: JobUid,
    revision: u64,
    peers: &BTreeMap<Slot, ClusterPeer>,
    told: &BTreeSet<String>,
) -> PeersRecord {
    let tasks = job.tasks.iter().filter(|task| told.contains(&task.name)).map(|task| {
        let listens = frameworks::of(job.framework).listens(job, task);
        let address = |index| {
            let peer = peers.get(&Slot::new(&task.name, index))?;
            Some(PeerAddress { host: peer.host.clone(), port: listens.map(|port| peer.port(port)) })
        };
        (task.name.clone(), (0..task.replicas).map(address).collect())
    });
    PeersRecord { uid, revision, tasks: tasks.collect(), ..PeersRecord::default() }
}

/// Change of a job's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeersChange {
    /// The writes, one per node.
    pub ops: Vec<Op>,
    /// What the status says afterwards.
    pub published: Option<PublishedPeers>,
}

/// Makes the records of the nodes those of `wanted`; `None`: none is wanted. Nodes that left lose theirs. A record that a
/// node has already is written only if the addresses have changed.
#[must_use]
pub fn change(
    id: &Namespaced,
    before: Option<&PublishedPeers>,
    wanted: Option<(&PeersRecord, BTreeSet<NodeName>)>,
) -> PeersChange {
    let had = before.map(|before| before.nodes.clone()).unwrap_or_default();
    let (record, nodes) = match wanted {
        Some((record, nodes)) if !nodes.is_empty() => (Some(record), nodes),
        _ => (None, BTreeSet::new()),
    };
    let hash = record.map(hash_of).unwrap_or_default();
    let is_same = before.is_some_and(|before| before.hash == hash);
    let value = record.map(Stored::encode).unwrap_or_default();
    let written = nodes.iter().filter(|node| !is_same || !had.contains(*node));
    let set =
        written.map(|node| Op::Set { key: key::peers(node, id), value: value.clone(), flags: 0 });
    let gone = had.difference(&nodes).map(|node| Op::Delete { key: key::peers(node, id) });
    let ops = set.chain(gone).collect();
    PeersChange { ops, published: record.map(|_| PublishedPeers { hash, nodes }) }
}

/// What the status has to say before these writes are sent in transactions of their own: all nodes that may have a record
/// then, and no hash, so that every record is written again if the owner dies in between. `None`: it says so.
#[must_use]
pub fn announced(
    before: Option<&PublishedPeers>,
    published: Option<&PublishedPeers>,
) -> Option<PublishedPeers> {
    let nodes = |of: Option<&PublishedPeers>| of.map(|of| of.nodes.clone()).unwrap_or_default();
    let all: BTreeSet<NodeName> = nodes(before).union(&nodes(published)).cloned().collect();
    let says_so = before.is_some_and(|before| before.hash.is_empty() && before.nodes == all);
    (!says_so).then(|| PublishedPeers { hash: String::new(), nodes: all })
}

/// Hash of the addresses, in hexadecimal. The revision does not count.
fn hash_of(record: &PeersRecord) -> String {
    let record = PeersRecord { revision: 0, ..record.clone() };
    format!("{:016x}", content_hash(&record.encode()))
}

/// Whether the status has room for the names of these nodes, whatever else it will hold, and a transaction for the
/// record.
#[must_use]
pub fn fits(job: &JobSpec, record: &PeersRecord, nodes: &BTreeSet<NodeName>) -> bool {
    let names: usize = nodes.iter().map(|node| node.as_str().len() + NAME_BYTES).sum();
    let tasks = job.tasks.iter().map(|task| (task.name.len(), task.replicas));
    let bytes = record.encode().len();
    names <= LARGEST_NODES
        && largest_status(tasks, job.array.as_ref()) + names <= LARGEST_STATUS
        && bytes <= LARGEST_RECORD
        && bytes.saturating_mul(nodes.len()) <= LARGEST_RECORDS
}

#[cfg(test)]
mod tests;
