//! `rcfarm node drain`, `undrain`.
//!
//! Key written: `rcfarm/nodes/<node>`, by CAS, in one transaction with its audit record; the node's agent writes it,
//! too.
//! A crash between two nodes leaves the first one changed.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep, timeout_at};

use super::pods::{NodePod, pod_ids, pods, pods_table, pods_words, tally};
use super::snapshot::{NodeListState, NodeSnapshot, Which, check_readable};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{Progress, duration};
use rcfarm_api::audit::{Details, NodeChange};
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::record::{DrainJobs, NodeState};
use rcfarm_api::{Stored, Timestamp, key};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Index, Op, Query, StoreError};

#[derive(clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    which: Which,
    /// Time limit; afterwards the command reports the remaining pods, and the nodes stay draining
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = duration)]
    deadline: Duration,
    /// What happens to members of jobs: evict them, to be started on other nodes, or wait until they end
    #[arg(long, value_name = "POLICY", default_value = "evict")]
    jobs: JobsPolicy,
    /// Wait until no pod is left (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Do not wait
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
}

/// Value of `--jobs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum JobsPolicy {
    Evict,
    Wait,
}

#[derive(clap::Args)]
pub struct UndrainArgs {
    #[command(flatten)]
    which: Which,
}

/// A node after the command.
#[derive(Serialize)]
struct Row {
    name: NodeName,
    state: NodeListState,
    draining: bool,
    drain_deadline: Option<Timestamp>,
    /// Remaining pods with their reasons.
    pods: Vec<NodePod>,
}

impl Row {
    fn of(node: &NodeSnapshot, pods: Vec<NodePod>) -> Row {
        Row {
            name: node.name.clone(),
            state: node.state(),
            draining: node.is_draining(),
            drain_deadline: node.record.as_ref().ok().and_then(|record| record.drain_deadline),
            pods,
        }
    }
}

/// Maximum interval of reads, for changes in keys that are not watched.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Interval once the node has no intents: a watch of an empty prefix wakes on unrelated writes.
const READ_SOON: Duration = Duration::from_millis(300);

pub(super) async fn drain(context: &CommandContext, args: &DrainArgs) -> anyhow::Result<CliExit> {
    let give_up = monotonic() + args.deadline;
    let deadline = context.now().checked_add(args.deadline).map_err(|_| {
        failure(
            format!("--deadline: {} is too long", humantime::format_duration(args.deadline)),
            "write it like 30m, 2h or 7d",
        )
    })?;
    let nodes = args.which.find(context).await?;
    let jobs = match args.jobs {
        JobsPolicy::Evict => DrainJobs::Evict,
        JobsPolicy::Wait => DrainJobs::Wait,
    };
    let wanted = (NodeState::Draining, Some(deadline), Some(jobs));
    for node in &nodes {
        change(context, node, wanted, Details::NodeDrained).await?;
    }
    let names: Vec<NodeName> = nodes.into_iter().map(|node| node.name).collect();
    let waits = args.wait || !args.no_wait;
    let rows = if waits {
        emptied(context, &names, give_up).await?
    } else {
        read_rows(context, &names).await?
    };
    context.show(&rows, || drained_text(&rows))?;
    if !waits || rows.iter().all(|row| row.pods.is_empty()) {
        return Ok(CliExit::Ok);
    }
    Err(unfinished(&rows, args.deadline))
}

/// Error for the pods that remain at the deadline.
fn unfinished(rows: &[Row], deadline: Duration) -> anyhow::Error {
    let on: Vec<&str> =
        rows.iter().filter(|row| !row.pods.is_empty()).map(|row| row.name.as_str()).collect();
    let left: Vec<&NodePod> = rows.iter().flat_map(|row| &row.pods).collect();
    let first = left.iter().find_map(|pod| pod.replication_controller_id);
    let explain =
        first.map(|id| format!("what holds it up: rcfarm rc explain {id}; ")).unwrap_or_default();
    failure(
        format!(
            "the deadline of {} has passed with {} left on {} ({}); the drain goes on",
            humantime::format_duration(deadline),
            pods_words(left.len()),
            on.join(", "),
            tally(left.iter().copied()),
        ),
        format!(
            "{explain}to wait again: rcfarm node drain {0}; to end the drain: rcfarm node undrain {0}",
            on.join(" ")
        ),
    )
}

pub(super) async fn undrain(
    context: &CommandContext,
    args: &UndrainArgs,
) -> anyhow::Result<CliExit> {
    let nodes = args.which.find(context).await?;
    let mut changed = BTreeSet::new();
    for node in &nodes {
        if change(context, node, (NodeState::Ready, None, None), Details::NodeUndrained).await? {
            changed.insert(node.name.clone());
        }
    }
    let names: Vec<NodeName> = nodes.into_iter().map(|node| node.name).collect();
    let rows = read_rows(context, &names).await?;
    context.show(&rows, || {
        let line = |row: &Row| match changed.contains(&row.name) {
            true => format!("{}: no longer draining ({})\n", row.name, row.state),
            false => format!("{}: not draining, as before ({})\n", row.name, row.state),
        };
        rows.iter().map(line).collect()
    })
}

/// Writes the desired state of a node by CAS, with its audit record. The agent's session keeps the lock on the key
/// (`consul-semantics.md` §0 #4). `false`: the state was set before.
async fn change(
    context: &CommandContext,
    seen: &NodeSnapshot,
    (state, drain_deadline, drain_jobs): (NodeState, Option<Timestamp>, Option<DrainJobs>),
    details: impl Fn(NodeChange) -> Details,
) -> anyhow::Result<bool> {
    let attempt = async || {
        let node = NodeSnapshot::read(context, &seen.name).await?;
        check_readable(&node)?;
        let Ok(mut record) = node.record.clone() else { return Ok(None) };
        let seen = (record.state, record.drain_deadline, record.drain_jobs);
        if seen == (state, drain_deadline, drain_jobs) {
            return Ok(Some(false));
        }
        (record.state, record.drain_deadline) = (state, drain_deadline);
        record.drain_jobs = drain_jobs;
        let (index, flags) =
            node.entry.as_ref().map_or((Index::ZERO, 0), |entry| (entry.modify_index, entry.flags));
        let op = Op::Cas { key: key::node(&node.name), value: record.encode(), flags, index };
        let details = details(NodeChange {
            node: node.name.clone(),
            actor: context.actor(),
            reason: "Requested".to_owned(),
            drain_deadline,
            pods: pod_ids(context, &key::node_intents(&node.name)).await?.into_iter().collect(),
        });
        Ok(context.commit([op], &details, None).await?.is_ok().then_some(true))
    };
    context.edit(key::node(&seen.name), attempt).await
}

async fn read_rows(context: &CommandContext, names: &[NodeName]) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in names {
        let node = NodeSnapshot::read(context, name).await?;
        let mut pods = pods(context, &node).await?;
        pods.retain(|pod| !pod.ended);
        rows.push(Row::of(&node, pods));
    }
    Ok(rows)
}

/// Waits until no pod is left, the deadline has passed, or the drain was ended by others.
async fn emptied(
    context: &CommandContext,
    names: &[NodeName],
    give_up: Instant,
) -> anyhow::Result<Vec<Row>> {
    let mut progress = Progress::default();
    let mut index = Index::ZERO;
    let mut told = BTreeSet::new();
    loop {
        let rows = match read_rows(context, names).await {
            Err(error) if is_passing(&error) && monotonic() < give_up => {
                progress.say(&format!("{error}; trying again"));
                sleep(READ_EVERY).await;
                continue;
            }
            read => read?,
        };
        if let Some(row) = rows.iter().find(|row| !row.draining) {
            return Err(failure(
                format!("somebody has ended the drain of {} meanwhile", row.name),
                "see who: rcfarm audit list --since 10m",
            ));
        }
        let left: Vec<&NodePod> = rows.iter().flat_map(|row| &row.pods).collect();
        if left.is_empty() {
            return Ok(rows);
        }
        for pod in &left {
            let Some((reason, text)) = pod.stuck(context) else { continue };
            if told.insert((pod.node.clone(), pod.pod_id.clone(), reason.to_owned())) {
                progress.note(context.out, &text);
            }
        }
        progress.say(&format!("{} left ({})", pods_words(left.len()), tally(left.iter().copied())));
        if monotonic() >= give_up {
            return Ok(rows);
        }
        let watched = left.iter().find(|pod| pod.intended).map(|pod| pod.node.clone());
        index = wait(context, watched.as_ref(), index, give_up).await;
    }
}

/// Waits for a change of a node's intents, for at most [`READ_EVERY`] and not beyond `give_up`.
async fn wait(
    context: &CommandContext,
    node: Option<&NodeName>,
    index: Index,
    give_up: Instant,
) -> Index {
    let Some(node) = node else {
        let _ = timeout_at(give_up, sleep(READ_SOON)).await;
        return Index::ZERO;
    };
    let query = Query::after(index, READ_EVERY);
    let intents = key::node_intents(node);
    match timeout_at(give_up, context.store.keys(&intents, None, query)).await {
        Ok(Ok(answer)) => answer.index,
        // The next read reports the error if it persists.
        Ok(Err(_)) => {
            let _ = timeout_at(give_up, sleep(READ_EVERY)).await;
            Index::ZERO
        }
        Err(_) => Index::ZERO,
    }
}

fn is_passing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(StoreError::is_retryable)
}

fn drained_text(rows: &[Row]) -> String {
    let mut text = String::new();
    for Row { name, drain_deadline, pods, .. } in rows {
        let until = drain_deadline.map(|at| format!(" until {at:.0}")).unwrap_or_default();
        text.push_str(&match pods.len() {
            0 => format!("{name}: empty; it takes no pods until: rcfarm node undrain {name}\n"),
            left => format!("{name}: draining{until}, {} left\n", pods_words(left)),
        });
    }
    let left: Vec<&NodePod> = rows.iter().flat_map(|row| &row.pods).collect();
    if !left.is_empty() {
        text.push('\n');
        text.push_str(&pods_table(left));
    }
    text
}
