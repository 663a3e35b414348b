//! `rcfarm node remove`.
//!
//! Keys deleted in one transaction: the node's record and labels. Then, in others: what a dead agent has left in
//! `reality/`, `status/pods/` and `health/`. A crash in between leaves these; the command can be repeated.

use serde_json::json;

use super::pods::{NodePod, pod_ids, pods, pods_table, pods_words};
use super::snapshot::{NodeSnapshot, find};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use rcfarm_api::audit::{Details, NodeChange};
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::key;
use rcfarm_node::agent::report::removal;
use rcfarm_store::{Entry, Key, Op, Txn};

#[derive(clap::Args)]
pub struct NodeRemoveArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: NodeName,
    /// Remove record and labels although pods or an agent are there; both are kept, and listed
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(
    context: &CommandContext,
    args: &NodeRemoveArgs,
) -> anyhow::Result<CliExit> {
    let node = find(context, &args.node).await?;
    let pods = pods(context, &node).await?;
    let agent = node.agent().cloned();
    if !node.is_known() {
        return Err(failure(
            format!("{} has neither a record nor labels, only pods; nothing to remove", node.name),
            format!("see whose they are: rcfarm node get {}", node.name),
        ));
    }
    if !args.force {
        check_unused(&node, &pods)?;
    }
    delete(context, &node, &pods).await?;
    let leftovers = match agent {
        None => collect_orphans(context, &node.name).await?,
        Some(_) => 0,
    };
    let shown = json!({
        "name": node.name,
        "removed": {
            "record": node.entry.is_some(), "labels": node.label_entry.is_some(),
            "leftovers": leftovers,
        },
        "left": {"pods": pods, "agent_session": agent},
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

/// Deletes reports of a dead agent about pods without an intent. Returns the number of pods.
async fn collect_orphans(context: &CommandContext, node: &NodeName) -> anyhow::Result<usize> {
    let mut said = pod_ids(context, &key::node_realities(node)).await?;
    for prefix in [key::pod_statuses(), key::healths()] {
        let keys = context.keys(&prefix).await?;
        let pods = keys.iter().filter_map(|key| key::pod_and_node(&prefix, key));
        said.extend(pods.filter(|(_, of)| of == node).map(|(pod, _)| pod));
    }
    let wanted = pod_ids(context, &key::node_intents(node)).await?;
    let stale: Vec<&PodId> = said.difference(&wanted).collect();
    for some in stale.chunks(context.limits.ops / 3) {
        let mut txn = Txn::by_user();
        txn.extend(some.iter().flat_map(|pod| removal(node, pod)));
        // Plain deletes cannot be refused.
        let _ = context.store.txn(txn.ops()).await?;
    }
    Ok(stale.len())
}

fn check_unused(node: &NodeSnapshot, pods: &[NodePod]) -> anyhow::Result<()> {
    let name = &node.name;
    let force = format!("or leave them as they are: rcfarm node remove {name} --force");
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

/// Deletes record and labels if unchanged, both or neither.
async fn delete(
    context: &CommandContext,
    node: &NodeSnapshot,
    pods: &[NodePod],
) -> anyhow::Result<()> {
    let gone = |key: Key, seen: &Option<Entry>| match seen {
        Some(entry) => Op::DeleteCas { key, index: entry.modify_index },
        None => Op::CheckNotExists { key },
    };
    let ops = [
        gone(key::node(&node.name), &node.entry),
        gone(key::node_labels(&node.name), &node.label_entry),
    ];
    let details = Details::NodeRemoved(NodeChange {
        node: node.name.clone(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
        drain_deadline: None,
        pods: pods.iter().map(|pod| pod.pod_id.clone()).collect(),
    });
    let name = &node.name;
    context.commit(ops, &details, None).await?.map_err(|_| {
        failure(
            format!("{name}: somebody changed its record or labels meanwhile; nothing was removed"),
            format!("look at it, then try again: rcfarm node get {name}"),
        )
    })?;
    Ok(())
}
