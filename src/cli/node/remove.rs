//! `rcfarm node remove`.
//!
//! Keys deleted: what a dead agent has left in `reality/` and `health/`, with `--forget` also in `status/pods/`; with the
//! last of that, in one transaction, the node's record and labels. Each transaction checks that record and labels are
//! unchanged. A crash in between leaves them; the command can be repeated.
//!
//! The statuses stay because the pods may still run: an agent that comes back stops a pod only if its status proves that
//! its intent was deleted, and then deletes the status.

use std::collections::BTreeMap;

use serde_json::json;

use super::pods::{NodePod, pod_ids, pods, pods_table, pods_words};
use super::snapshot::{NodeSnapshot, find};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use rcfarm_api::audit::{Details, NodeChange};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_node::agent::report::removal;
use rcfarm_store::{Entry, Key, Op};

#[derive(clap::Args)]
pub struct NodeRemoveArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: NodeName,
    /// Remove record and labels although pods or an agent are there; both are kept, and listed
    #[arg(long)]
    force: bool,
    /// Also delete the last statuses of its pods, for a machine that never comes back: otherwise its agent needs them, to
    /// stop pods that still run there
    #[arg(long)]
    forget: bool,
}

pub(super) async fn run(
    context: &CommandContext,
    args: &NodeRemoveArgs,
) -> anyhow::Result<CliExit> {
    let node = match args.forget {
        // Its record may be gone already.
        true => NodeSnapshot::read(context, &args.node).await?,
        false => find(context, &args.node).await?,
    };
    let pods = pods(context, &node).await?;
    let agent = node.agent().cloned();
    let stale = match agent {
        None => stale_reports(context, &node.name).await?,
        Some(_) => BTreeMap::new(),
    };
    let is_forgotten = args.forget && !stale.is_empty() && pods.is_empty();
    if !node.is_known() && !is_forgotten {
        return Err(failure(
            format!("{} has neither a record nor labels, only pods; nothing to remove", node.name),
            format!("see whose they are: rcfarm node get {}", node.name),
        ));
    }
    if !args.force {
        check_unused(&node, &pods)?;
    }
    let has_more = |keys: &StaleKeys| args.forget || keys.others > 0;
    let removed: Vec<PodId> =
        stale.iter().filter(|(_, keys)| has_more(keys)).map(|(pod, _)| pod.clone()).collect();
    delete(context, &node, &pods, &removed, args.forget).await?;
    let leftovers = removed.len();
    let statuses = stale.values().filter(|keys| keys.has_status && !args.forget).count();
    let shown = json!({
        "name": node.name,
        "removed": {
            "record": node.entry.is_some(), "labels": node.label_entry.is_some(),
            "leftovers": leftovers,
        },
        "left": {"pods": pods, "agent_session": agent, "statuses": statuses},
    });
    context.show(&shown, || {
        let mut text = format!("{}: removed\n", node.name);
        if leftovers > 0 {
            let words = pods_words(leftovers);
            text.push_str(&format!("with it what it had said of {words}\n"));
        }
        if let Some(session) = &agent {
            text.push_str(&format!("left: its agent, with session {session}\n"));
        }
        if !pods.is_empty() {
            text.push_str(&format!("left: {}\n\n{}", pods_words(pods.len()), pods_table(&pods)));
        }
        text
    })?;
    if statuses > 0 {
        context.note(format!(
            "the last status of {} stays: if the agent comes back, it stops what still runs, and deletes it; if the \
             machine never does: rcfarm node remove {} --forget",
            pods_words(statuses),
            node.name
        ));
    }
    if agent.is_some() {
        context.note("its agent still runs; until it is stopped, it may register the node again");
    }
    if pods.is_empty() && !pod_ids(context, &key::node_intents(&node.name)).await?.is_empty() {
        // A transaction cannot check that a prefix is empty.
        context.note(format!(
            "a farm has put a pod there meanwhile; see which: rcfarm node get {}",
            node.name
        ));
    }
    Ok(CliExit::Ok)
}

/// What a dead agent has left of a pod.
#[derive(Default)]
struct StaleKeys {
    has_status: bool,
    /// How many of its other keys there are.
    others: usize,
}

/// Pods without an intent that a dead agent has reported.
async fn stale_reports(
    context: &CommandContext,
    node: &NodeName,
) -> anyhow::Result<BTreeMap<PodId, StaleKeys>> {
    let mut stale: BTreeMap<PodId, StaleKeys> = BTreeMap::new();
    for pod in pod_ids(context, &key::node_realities(node)).await? {
        stale.entry(pod).or_default().others += 1;
    }
    for prefix in [key::pod_statuses(), key::healths()] {
        let keys = context.keys(&prefix).await?;
        let pods = keys.iter().filter_map(|key| key::pod_and_node(&prefix, key));
        for (pod, _) in pods.filter(|(_, of)| of == node) {
            let found = stale.entry(pod).or_default();
            match prefix == key::pod_statuses() {
                true => found.has_status = true,
                false => found.others += 1,
            }
        }
    }
    let wanted = pod_ids(context, &key::node_intents(node)).await?;
    stale.retain(|pod, _| !wanted.contains(pod));
    Ok(stale)
}

fn check_unused(node: &NodeSnapshot, pods: &[NodePod]) -> anyhow::Result<()> {
    let name = &node.name;
    let force = format!("or leave them as they are: rcfarm node remove {name} --force");
    // Ended members of jobs stay with their logs until the job goes.
    let pods: Vec<&NodePod> = pods.iter().filter(|pod| !pod.ended).collect();
    if !pods.is_empty() {
        let some: Vec<&str> = pods.iter().take(5).map(|pod| pod.pod_id.as_str()).collect();
        let more = if pods.len() > some.len() { ", …" } else { "" };
        return Err(failure(
            format!(
                "{name} has {} ({}{more}); nothing was changed",
                pods_words(pods.len()),
                some.join(", ")
            ),
            format!("have them leave first: rcfarm node drain {name}; {force}"),
        ));
    }
    match node.agent() {
        None => Ok(()),
        Some(session) => Err(failure(
            format!("the agent of {name} is running (session {session}); nothing was changed"),
            format!("stop it on the machine first, {force}"),
        )),
    }
}

/// Deletes stale reports, then record and labels, each only while record and labels are unchanged. `statuses`: whether
/// the reports' statuses go, too.
async fn delete(
    context: &CommandContext,
    node: &NodeSnapshot,
    pods: &[NodePod],
    stale: &[PodId],
    statuses: bool,
) -> anyhow::Result<()> {
    let keys =
        [(key::node(&node.name), &node.entry), (key::node_labels(&node.name), &node.label_entry)];
    // Besides three operations per pod: two for these keys, and the audit record.
    let mut parts = stale.chunks((context.limits.ops - 3) / 3).peekable();
    loop {
        let part = parts.next().unwrap_or_default();
        let is_last = parts.peek().is_none();
        let guard = |(key, seen): &(Key, &Option<Entry>)| match (key.clone(), seen) {
            (key, None) => Op::CheckNotExists { key },
            (key, Some(entry)) if is_last => Op::DeleteCas { key, index: entry.modify_index },
            (key, Some(entry)) => Op::CheckIndex { key, index: entry.modify_index },
        };
        let stays = |pod: &PodId, op: &Op| {
            let status = key::pod_status(pod, &node.name);
            !statuses && matches!(op, Op::Delete { key } if *key == status)
        };
        let removals = part
            .iter()
            .flat_map(|pod| removal(&node.name, pod).into_iter().filter(move |op| !stays(pod, op)));
        let ops: Vec<Op> = keys.iter().map(guard).chain(removals).collect();
        let (reason, pods) = match is_last {
            true => ("Requested", pods.iter().map(|pod| pod.pod_id.clone()).collect()),
            false => ("LeftoversRemoved", Vec::new()),
        };
        let details = Details::NodeRemoved(NodeChange {
            node: node.name.clone(),
            actor: context.actor(),
            reason: reason.to_owned(),
            drain_deadline: None,
            pods,
        });
        let name = &node.name;
        context.commit(ops, &details, None).await?.map_err(|_| {
            failure(
                format!(
                    "{name}: somebody changed its record or labels meanwhile; it is not removed"
                ),
                format!("look at it, then try again: rcfarm node get {name}"),
            )
        })?;
        if is_last {
            return Ok(());
        }
    }
}
