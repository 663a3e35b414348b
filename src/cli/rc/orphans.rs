//! `rcfarm rc orphans`: pods whose label names a controller that is gone, and allocations of nodes whose pods are gone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::allocations::allocations;
use super::snapshot::{PodLabels, places};
use crate::cli::context::{CommandContext, Committed};
use crate::cli::failure::{CliExit, failure};
use crate::cli::node::snapshot::fitness;
use crate::cli::output::{or_dash, table};
use crate::placement::capacity::{Booking, Ledger, OrphanedAllocation, freeing};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::audit::{Details, OrphansRemoved, PROMISE_LEAKED};
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{NodeName, PodId, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::{Entry, Op, Query};

/// What to do with them.
#[derive(clap::Args)]
pub struct OrphansArgs {
    /// Remove them
    #[arg(long)]
    remove: bool,
}

/// An orphan in a list.
#[derive(Serialize)]
struct Orphan {
    what: What,
    replication_controller_id: RcId,
    node: NodeName,
    pod_id: PodId,
    /// Whether it was removed; absent when that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
}

/// What is left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// A pod without its controller; it keeps what it was allocated.
    Pod,
    /// A promise without its pod.
    Promise,
}

/// Three operations per pod, and two more: few enough for every version of Consul.
const PODS_PER_TRANSACTION: usize = 20;

pub(super) async fn run(context: &CommandContext, args: &OrphansArgs) -> anyhow::Result<CliExit> {
    let labelled = context.store.list(&key::labels(LabelKind::Pod), Query::PLAIN).await?.value;
    // Read after the pods: a controller that was made meanwhile is seen, one that was deleted is no matter.
    let records = context.store.keys(&key::rcs(), None, Query::PLAIN).await?.value;
    let records: BTreeSet<RcId> =
        records.iter().filter_map(|key| key::rcs().tail(key)?.parse().ok()).collect();
    let mut orphans: BTreeMap<(RcId, PodId), Vec<(PodRef, PodLabels)>> = BTreeMap::new();
    for (place, pod) in places(&labelled) {
        if let Some(rc) = pod.rc.filter(|rc| !records.contains(rc)) {
            orphans.entry((rc, place.pod.clone())).or_default().push((place, pod));
        }
    }
    let mut rows = Vec::new();
    for ((rc, pod_id), pods) in &orphans {
        for pods in pods.chunks(PODS_PER_TRANSACTION) {
            let removed =
                if args.remove { Some(remove(context, *rc, pod_id, pods).await?) } else { None };
            rows.extend(pods.iter().map(|(place, _)| Orphan {
                what: What::Pod,
                replication_controller_id: *rc,
                node: place.node.clone(),
                pod_id: place.pod.clone(),
                removed,
            }));
        }
    }
    let mut allocations = allocations(context).await?;
    allocations
        .orphaned_allocations
        .sort_by(|a, b| (a.owner, &a.pod, &a.node).cmp(&(b.owner, &b.pod, &b.node)));
    for orphaned_allocations in
        allocations.orphaned_allocations.chunk_by(|a, b| (a.owner, &a.pod) == (b.owner, &b.pod))
    {
        for orphaned_allocations in orphaned_allocations.chunks(PODS_PER_TRANSACTION) {
            let removed =
                if args.remove { Some(free(context, orphaned_allocations).await?) } else { None };
            rows.extend(orphaned_allocations.iter().map(|orphaned| Orphan {
                what: What::Promise,
                replication_controller_id: orphaned.owner,
                node: orphaned.node.clone(),
                pod_id: orphaned.pod.clone(),
                removed,
            }));
        }
    }
    context.out.show(&rows, || {
        if rows.is_empty() {
            return "there are no orphans".to_owned();
        }
        let words = |removed| if removed { "removed" } else { "changed meanwhile, left" };
        let columns = rows.iter().map(|row| {
            let (rc, node) = (row.replication_controller_id.to_string(), row.node.to_string());
            let what = format!("{:?}", row.what).to_lowercase();
            vec![what, node, row.pod_id.to_string(), rc, or_dash(row.removed.map(words))]
        });
        table(&["WHAT", "NODE", "POD", "CONTROLLER", "REMOVED"], columns)
    })?;
    if rows.iter().any(|row| row.removed == Some(false)) {
        return Err(failure("not all orphans were removed", "look again: rcfarm rc orphans"));
    }
    Ok(CliExit::Ok)
}

/// Removes some pods of a controller. Consul itself checks that its record is absent at that moment: an empty
/// answer may also mean that the token may not see it.
async fn remove(
    context: &CommandContext,
    rc: RcId,
    pod_id: &PodId,
    pods: &[(PodRef, PodLabels)],
) -> anyhow::Result<bool> {
    let keys = pods.iter().map(|(place, _)| key::intent(&place.node, &place.pod));
    let intents = context.get_many(keys).await?;
    let rooms = fitness(context).await?.rooms;
    let mut ledger = Ledger::on(&rooms);
    let mut ops = vec![Op::CheckNotExists { key: key::rc(rc) }];
    for (place, pod) in pods {
        let labels = key::pod_labels(&place.node, &place.pod);
        ops.push(Op::DeleteCas { key: labels, index: pod.entry.modify_index });
        let intent = key::intent(&place.node, &place.pod);
        let seen: Option<&Entry> = intents.get(intent.as_str());
        ops.push(match seen {
            Some(seen) => Op::DeleteCas { key: intent, index: seen.modify_index },
            None => Op::CheckNotExists { key: intent },
        });
        ledger.release(&place.node, &place.pod, &AllocationOwner::Rc(rc));
    }
    ops.extend(ledger.bookings().iter().map(Booking::op));
    let details = Details::OrphansRemoved(OrphansRemoved {
        replication_controller_id: rc,
        pod_id: pod_id.clone(),
        nodes: pods.iter().map(|(place, _)| place.node.clone()).collect(),
        actor: context.actor(),
        reason: "Requested".to_owned(),
    });
    Ok(matches!(context.commit(ops, &details, None).await?, Committed::Applied(_)))
}

/// Frees promises to pods of one id and one controller. Consul itself checks that the pods are absent at that moment.
async fn free(
    context: &CommandContext,
    orphaned_allocations: &[OrphanedAllocation],
) -> anyhow::Result<bool> {
    // Read again: the chunk before may have changed the same nodes.
    let rooms = fitness(context).await?.rooms;
    let (mut ops, bookings) = freeing(&rooms, orphaned_allocations);
    ops.extend(bookings.iter().map(Booking::op));
    let details = Details::OrphansRemoved(OrphansRemoved {
        replication_controller_id: orphaned_allocations[0].owner,
        pod_id: orphaned_allocations[0].pod.clone(),
        nodes: orphaned_allocations.iter().map(|orphaned| orphaned.node.clone()).collect(),
        actor: context.actor(),
        reason: PROMISE_LEAKED.to_owned(),
    });
    Ok(matches!(context.commit(ops, &details, None).await?, Committed::Applied(_)))
}
