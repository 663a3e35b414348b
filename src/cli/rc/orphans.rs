//! `rcfarm rc orphans`: pods whose controller is gone, and allocations whose pod is gone.
//!
//! Keys written with `--remove`: intents and labels of orphaned pods are deleted, allocations are changed by CAS. Farms
//! write them too. Each transaction removes some orphans, so a crash leaves the others.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::allocations::allocations;
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::or_dash;
use crate::cluster::pods::PodLabels;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::capacity::{Booking, Ledger, NodeCapacities, OrphanedAllocation, freeing};
use rcfarm_api::allocation::AllocationOwner;
use rcfarm_api::audit::{Details, OrphansRemoved, PROMISE_LEAKED};
use rcfarm_api::ids::{NodeName, PodId, PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::cache::read_once;
use rcfarm_store::{Entry, Index, Op, StoreError};

#[derive(clap::Args)]
pub struct OrphansArgs {
    /// Remove the orphans
    #[arg(long)]
    remove: bool,
}

#[derive(Serialize)]
struct Orphan {
    what: What,
    replication_controller_id: RcId,
    node: NodeName,
    pod_id: PodId,
    /// Whether it was removed; absent without `--remove`.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    /// A pod without its controller. It keeps its allocation.
    Pod,
    /// An allocation without its pod.
    #[serde(rename = "promise")]
    Allocation,
}

/// At three operations per pod and two more, 62: within the 64 of every version of Consul.
const PODS_PER_TRANSACTION: usize = 20;

pub(super) async fn run(context: &CommandContext, args: &OrphansArgs) -> anyhow::Result<CliExit> {
    let labelled: PodLabels =
        read_once(context.store.as_ref(), &key::labels(LabelKind::Pod)).await?;
    // Read after the pods, so that a controller that was created meanwhile is seen.
    let records = context.keys(&key::rcs()).await?;
    let records: BTreeSet<RcId> =
        records.iter().filter_map(|key| key::rcs().tail(key)?.parse().ok()).collect();
    let mut orphans: BTreeMap<(RcId, PodId), Vec<(PodRef, Index)>> = BTreeMap::new();
    for (place, pod) in labelled.iter() {
        if let Some(rc) = pod.value.rc.filter(|rc| !records.contains(rc)) {
            let orphans = orphans.entry((rc, place.pod.clone())).or_default();
            orphans.push((place.clone(), pod.index));
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
                what: What::Allocation,
                replication_controller_id: orphaned.owner,
                node: orphaned.node.clone(),
                pod_id: orphaned.pod.clone(),
                removed,
            }));
        }
    }
    let removed = |removed| if removed { "removed" } else { "changed meanwhile, left" };
    context.show_rows(
        &rows,
        "there are no orphans",
        &[
            ("WHAT", &|row| format!("{:?}", row.what).to_lowercase()),
            ("NODE", &|row| row.node.to_string()),
            ("POD", &|row| row.pod_id.to_string()),
            ("CONTROLLER", &|row| row.replication_controller_id.to_string()),
            ("REMOVED", &|row| or_dash(row.removed.map(removed))),
        ],
    )?;
    if rows.iter().any(|row| row.removed == Some(false)) {
        return Err(failure("not all orphans were removed", "look again: rcfarm rc orphans"));
    }
    Ok(CliExit::Ok)
}

/// Removes some pods of a controller. The transaction checks that the record is absent, because an empty answer may also
/// mean that the token may not read it.
async fn remove(
    context: &CommandContext,
    rc: RcId,
    pod_id: &PodId,
    pods: &[(PodRef, Index)],
) -> anyhow::Result<bool> {
    let keys = pods.iter().map(|(place, _)| key::intent(&place.node, &place.pod));
    let intents = context.get_many(keys).await?;
    let node_capacities = node_capacities(context).await?;
    let mut ledger = Ledger::on(&node_capacities);
    let mut ops = vec![Op::CheckNotExists { key: key::rc(rc) }];
    for (place, label_index) in pods {
        let labels = key::pod_labels(&place.node, &place.pod);
        ops.push(Op::DeleteCas { key: labels, index: *label_index });
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
    Ok(context.commit(ops, &details, None).await?.is_ok())
}

/// Frees allocations of pods of one id and one controller. The transaction checks that the pods are absent.
async fn free(
    context: &CommandContext,
    orphaned_allocations: &[OrphanedAllocation],
) -> anyhow::Result<bool> {
    // Read again: the previous chunk may have changed the same nodes.
    let node_capacities = node_capacities(context).await?;
    let (mut ops, bookings) = freeing(&node_capacities, orphaned_allocations);
    ops.extend(bookings.iter().map(Booking::op));
    let details = Details::OrphansRemoved(OrphansRemoved {
        replication_controller_id: orphaned_allocations[0].owner,
        pod_id: orphaned_allocations[0].pod.clone(),
        nodes: orphaned_allocations.iter().map(|orphaned| orphaned.node.clone()).collect(),
        actor: context.actor(),
        reason: PROMISE_LEAKED.to_owned(),
    });
    Ok(context.commit(ops, &details, None).await?.is_ok())
}

async fn node_capacities(context: &CommandContext) -> Result<NodeCapacities, StoreError> {
    let prefixes = [key::nodes(), key::allocations()];
    Ok(ClusterSnapshot::read_once(context.store.as_ref(), prefixes).await?.node_capacities())
}
