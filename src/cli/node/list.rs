//! `rcfarm node list`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, Serializer};

use super::snapshot::{NodeListState, NodeSnapshot, all, unknown};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{age, or_dash, table};
use rcfarm_api::ids::{NodeName, PodId, PodRef, SessionId};
use rcfarm_api::labels::{Labels, Selector};
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::resource_list::{ResourceList, units};
use rcfarm_api::{Stored, Timestamp, key};

#[derive(clap::Args)]
pub struct NodeListArgs {
    /// Only nodes whose labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

#[derive(Serialize)]
pub(super) struct NodeRow {
    pub(super) name: NodeName,
    pub(super) state: NodeListState,
    /// Draining, even if the node is down.
    pub(super) draining: bool,
    pub(super) drain_deadline: Option<Timestamp>,
    /// Number of intents.
    pub(super) pods: usize,
    /// Those of them whose processes have ended: they stay with their logs.
    pub(super) ended_pods: usize,
    pub(super) labels: Labels,
    pub(super) address: Option<String>,
    #[serde(serialize_with = "with_units")]
    pub(super) capacity: Option<ResourceList>,
    pub(super) agent_version: Option<String>,
    /// Session of the agent while it runs.
    pub(super) agent_session: Option<SessionId>,
    /// Time of the last change of a pod's health.
    pub(super) last_heard: Option<Timestamp>,
    /// What its agent wants an operator to see to.
    pub(super) problem: Option<String>,
    /// Errors in its record and labels.
    pub(super) invalid: Vec<String>,
}

fn with_units<S: Serializer>(capacity: &Option<ResourceList>, to: S) -> Result<S::Ok, S::Error> {
    capacity.as_ref().map(units::json).serialize(to)
}

impl NodeRow {
    /// `pods`: number of intents, and of those that have ended.
    pub(super) fn of(
        node: &NodeSnapshot,
        (pods, ended_pods): (usize, usize),
        last_heard: Option<Timestamp>,
    ) -> NodeRow {
        let record = node.record.as_ref().ok().filter(|_| node.entry.is_some());
        NodeRow {
            name: node.name.clone(),
            state: node.state(),
            draining: node.is_draining(),
            drain_deadline: record.and_then(|record| record.drain_deadline),
            pods,
            ended_pods,
            labels: node.labels.clone().unwrap_or_default(),
            address: record.map(|r| r.address.clone()).filter(|address| !address.is_empty()),
            capacity: record.map(|r| r.capacity.clone()).filter(|c| !c.is_zero()),
            agent_version: record.and_then(|record| record.agent_version.clone()),
            agent_session: node.agent().cloned(),
            last_heard,
            problem: record.and_then(|record| record.problem.clone()),
            invalid: node.invalid(),
        }
    }

    /// Number of pods, without those that have ended.
    fn pods_words(&self) -> String {
        let running = self.pods - self.ended_pods;
        match self.ended_pods {
            0 => running.to_string(),
            ended => format!("{running} ({ended} ended)"),
        }
    }

    /// Age of the last report.
    pub(super) fn heard(&self, now: Timestamp) -> String {
        match (&self.agent_session, self.last_heard) {
            (Some(_), _) => "now".to_owned(),
            (None, last) => or_dash(last.map(|last| age(last, now))),
        }
    }
}

pub(super) async fn run(context: &CommandContext, args: &NodeListArgs) -> anyhow::Result<CliExit> {
    let mut nodes = all(context).await?;
    let intents = context.keys(&key::intents()).await?;
    let ended = ended(context).await?;
    let mut pods: BTreeMap<NodeName, (usize, usize)> = BTreeMap::new();
    for (node, pod) in intents.iter().filter_map(|key| key::node_and_pod(&key::intents(), key)) {
        let place = PodRef { node, pod };
        let count = pods.entry(place.node.clone()).or_default();
        *count = (count.0 + 1, count.1 + usize::from(ended.contains(&place)));
    }
    for name in pods.keys().filter(|name| !nodes.contains_key(name)).cloned().collect::<Vec<_>>() {
        nodes.insert(name.clone(), unknown(name));
    }
    if let Some(selector) = &args.selector {
        nodes.retain(|_, node| node.labels.as_ref().is_ok_and(|labels| selector.matches(labels)));
    }
    let heard = last_heard(context).await?;
    let count = |node: &NodeSnapshot| pods.get(&node.name).copied().unwrap_or_default();
    let row = |node: &NodeSnapshot| NodeRow::of(node, count(node), heard.get(&node.name).copied());
    let rows: Vec<(&NodeSnapshot, NodeRow)> =
        nodes.values().map(|node| (node, row(node))).collect();
    for (_, row) in &rows {
        row.invalid.iter().for_each(|why| context.note(why));
        if let Some(problem) = &row.problem {
            context.note(format!("{}: {problem}", row.name));
        }
    }
    let shown: Vec<&NodeRow> = rows.iter().map(|(_, row)| row).collect();
    context.show(&shown, || {
        if rows.is_empty() {
            return "nothing matches".to_owned();
        }
        let now = context.now();
        table(
            &rows,
            &[
                ("NODE", &|(_, row)| row.name.to_string()),
                ("STATE", &|(node, _)| node.state_words()),
                ("PODS", &|(_, row)| row.pods_words()),
                ("CAPACITY", &|(_, row)| or_dash(row.capacity.as_ref())),
                ("AGENT", &|(_, row)| or_dash(row.agent_version.as_ref())),
                ("HEARD", &|(_, row)| row.heard(now)),
                ("LABELS", &|(_, row)| label_words(&row.labels)),
            ],
        )
    })
}

/// Pods whose processes have all ended, as their nodes say.
async fn ended(context: &CommandContext) -> anyhow::Result<BTreeSet<PodRef>> {
    let prefix = key::pod_statuses();
    let entries = context.list(&prefix).await?;
    let ended = entries.iter().filter_map(|entry| {
        let (pod, node) = key::pod_and_node(&prefix, &entry.key)?;
        let status = PodStatus::decode(&entry.value).ok()?;
        (status.phase == NodePodPhase::Ended).then_some(PodRef { node, pod })
    });
    Ok(ended.collect())
}

/// Timestamp of a health record.
#[derive(Deserialize)]
struct Heartbeat {
    #[serde(rename = "Time")]
    time: Timestamp,
}

/// Time of the last health record of each node.
async fn last_heard(context: &CommandContext) -> anyhow::Result<BTreeMap<NodeName, Timestamp>> {
    let prefix = key::healths();
    let mut heard = BTreeMap::new();
    for entry in context.list(&prefix).await? {
        let place = prefix.tail(&entry.key).and_then(|tail| tail.split_once('/'));
        let node = place.and_then(|(_, node)| node.parse::<NodeName>().ok());
        let told = serde_json::from_slice::<Heartbeat>(&entry.value).ok();
        if let (Some(node), Some(Heartbeat { time })) = (node, told) {
            let last = heard.entry(node).or_insert(time);
            *last = time.max(*last);
        }
    }
    Ok(heard)
}

/// As [`last_heard`], for one node with known pods.
pub(super) async fn last_heard_of<'p>(
    context: &CommandContext,
    node: &NodeName,
    pods: impl Iterator<Item = &'p PodId>,
) -> anyhow::Result<Option<Timestamp>> {
    let read = context.get_many(pods.map(|pod| key::health(pod, node))).await?;
    let time = |value: &[u8]| serde_json::from_slice::<Heartbeat>(value).ok().map(|told| told.time);
    Ok(read.values().filter_map(|entry| time(&entry.value)).max())
}

pub(super) fn label_words(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "-".to_owned() } else { pairs.join(",") }
}
