//! One-shot read of nodes: `rcfarm/nodes/` and `labels/node/`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::snapshot::ClusterSnapshot;
use rcfarm_api::ids::{NodeName, SessionId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, Selector, decode_labels};
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::{FieldError, Stored};
use rcfarm_store::{Entry, Key, Query};

/// State of a node in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NodeListState {
    /// Its agent runs; it takes pods.
    Ready,
    /// It is being drained, or is drained.
    Draining,
    /// Its agent is gone.
    Down,
    /// Known only by labels or pods, as p2's nodes; takes pods like a ready one.
    NoAgent,
    /// Its record is invalid. Farms ignore the record, so it takes pods like a ready one.
    Unreadable,
}

impl fmt::Display for NodeListState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            NodeListState::Ready => "ready",
            NodeListState::Draining => "draining",
            NodeListState::Down => "down",
            NodeListState::NoAgent => "no agent",
            NodeListState::Unreadable => "unreadable",
        })
    }
}

pub(super) struct NodeSnapshot {
    pub(super) name: NodeName,
    pub(super) entry: Option<Entry>,
    pub(super) record: Result<NodeRecord, FieldError>,
    pub(super) label_entry: Option<Entry>,
    pub(super) labels: Result<Labels, FieldError>,
}

impl NodeSnapshot {
    fn of(name: NodeName, entry: Option<Entry>, label_entry: Option<Entry>) -> NodeSnapshot {
        let record = entry.as_ref().map(|entry| NodeRecord::decode(&entry.value));
        let bad_labels = |error| FieldError::new(FieldError::WHOLE, format!("{error}"), "");
        let labels = label_entry.as_ref().map(|entry| decode_labels(&entry.value));
        NodeSnapshot {
            name,
            record: record.unwrap_or_else(|| Ok(NodeRecord::default())),
            labels: labels.unwrap_or_else(|| Ok(Labels::new())).map_err(bad_labels),
            entry,
            label_entry,
        }
    }

    /// Reads one node, which need not exist.
    pub(super) async fn read(
        context: &CommandContext,
        name: &NodeName,
    ) -> anyhow::Result<NodeSnapshot> {
        let (record, labels) = (key::node(name), key::node_labels(name));
        let mut read = context.get_many([record.clone(), labels.clone()]).await?;
        Ok(NodeSnapshot::of(
            name.clone(),
            read.remove(record.as_str()),
            read.remove(labels.as_str()),
        ))
    }

    /// Whether it has a record or labels.
    pub(super) fn is_known(&self) -> bool {
        self.entry.is_some() || self.label_entry.is_some()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.record.as_ref().is_ok_and(|record| record.state == NodeState::Draining)
    }

    /// Session of the running agent.
    pub(super) fn agent(&self) -> Option<&SessionId> {
        self.entry.as_ref().and_then(|entry| entry.session.as_ref())
    }

    pub(super) fn readiness(&self) -> NodeReadiness {
        let entry = self.entry.as_ref().map(std::slice::from_ref);
        ClusterSnapshot::of(entry.unwrap_or_default()).readiness(&self.name)
    }

    pub(super) fn state(&self) -> NodeListState {
        match (&self.record, self.readiness()) {
            (Err(_), _) => NodeListState::Unreadable,
            (Ok(_), NodeReadiness::Down) => NodeListState::Down,
            (Ok(_), NodeReadiness::Draining) => NodeListState::Draining,
            // Quarantine is known only to farms; `farm list` and the statuses of controllers show it.
            (Ok(_), NodeReadiness::Ready | NodeReadiness::Suspect | NodeReadiness::Quarantined) => {
                match self.agent() {
                    Some(_) => NodeListState::Ready,
                    None => NodeListState::NoAgent,
                }
            }
        }
    }

    /// The state as text; a node may be down and draining.
    pub(super) fn state_words(&self) -> String {
        match self.state() {
            NodeListState::Down if self.is_draining() => "down, draining".to_owned(),
            state => state.to_string(),
        }
    }

    /// Errors in the node's keys.
    pub(super) fn invalid(&self) -> Vec<String> {
        let describe =
            |key: Key, bad: &FieldError| format!("{key}: field {}: {}", bad.path, bad.problem);
        let record = self.record.as_ref().err().map(|bad| describe(key::node(&self.name), bad));
        let labels =
            self.labels.as_ref().err().map(|bad| describe(key::node_labels(&self.name), bad));
        record.into_iter().chain(labels).collect()
    }
}

/// All nodes with a record or labels.
pub(super) async fn all(
    context: &CommandContext,
) -> anyhow::Result<BTreeMap<NodeName, NodeSnapshot>> {
    let mut entries: BTreeMap<NodeName, [Option<Entry>; 2]> = BTreeMap::new();
    for (n, prefix) in [key::nodes(), key::labels(LabelKind::Node)].into_iter().enumerate() {
        for entry in context.list(&prefix).await? {
            let Some(Ok(name)) = prefix.tail(&entry.key).map(str::parse) else { continue };
            entries.entry(name).or_default()[n] = Some(entry);
        }
    }
    let node = |(name, [record, labels]): (NodeName, [_; 2])| {
        (name.clone(), NodeSnapshot::of(name, record, labels))
    };
    Ok(entries.into_iter().map(node).collect())
}

/// A node without record and labels.
pub(super) fn unknown(name: NodeName) -> NodeSnapshot {
    NodeSnapshot::of(name, None, None)
}

/// Selects one or several nodes.
#[derive(clap::Args)]
pub(super) struct Which {
    /// The nodes
    #[arg(value_name = "NODE", required_unless_present = "selector")]
    nodes: Vec<NodeName>,
    /// All nodes whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<Selector>,
}

impl Which {
    /// The selected nodes. Fails if any is unknown or has an invalid record, so that a mistake changes no node.
    pub(super) async fn find(&self, context: &CommandContext) -> anyhow::Result<Vec<NodeSnapshot>> {
        let mut nodes = Vec::new();
        if let Some(selector) = &self.selector {
            let matches =
                |node: &NodeSnapshot| node.labels.as_ref().is_ok_and(|l| selector.matches(l));
            nodes.extend(all(context).await?.into_values().filter(matches));
            if nodes.is_empty() {
                return Err(failure(
                    format!("no node matches {selector}"),
                    "see which nodes there are, with their labels: rcfarm node list",
                ));
            }
        }
        for name in &self.nodes {
            nodes.push(find(context, name).await?);
        }
        nodes.iter().try_for_each(check_readable)?;
        Ok(nodes)
    }
}

/// A node with a record, labels or pods.
pub(super) async fn find(
    context: &CommandContext,
    name: &NodeName,
) -> anyhow::Result<NodeSnapshot> {
    let node = NodeSnapshot::read(context, name).await?;
    let has_intents = async {
        let keys = context.store.keys(&key::node_intents(name), None, Query::PLAIN).await?;
        anyhow::Ok(!keys.value.is_empty())
    };
    if node.is_known() || has_intents.await? {
        return Ok(node);
    }
    Err(failure(
        format!("there is no node {name}: it has no record, no labels and no pods"),
        "see which there are: rcfarm node list",
    ))
}

/// Fails if the record is invalid: it is not rewritten.
pub(super) fn check_readable(node: &NodeSnapshot) -> anyhow::Result<()> {
    let Err(bad) = &node.record else { return Ok(()) };
    let key = key::node(&node.name);
    Err(failure(
        format!("{key}: field {}: {}; nothing was changed", bad.path, bad.problem),
        format!(
            "correct the field (consul kv get {key}), or forget the node: rcfarm node remove {}",
            node.name
        ),
    ))
}
