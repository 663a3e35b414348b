//! Audit records of RCs.

use uuid::Uuid;

use super::plan::PodStep;
use super::{RcPods, writes};
use crate::farm::kind::ControllerContext;
use rcfarm_api::audit::{Actor, AuditRecord, Details, NodeTransfer, Retarget};
use rcfarm_api::ids::NodeName;
use rcfarm_api::rc::spec::RcSpec;
use rcfarm_api::rc::status::Transfer;

/// Pods were added, removed or repaired; `pods` is the result.
pub fn retarget(
    ctx: &ControllerContext,
    spec: &RcSpec,
    steps: &[PodStep],
    pods: &RcPods,
    desired_before: u32,
) -> AuditRecord {
    let (nodes_added, nodes_removed, nodes_repaired) = writes::nodes(steps);
    let nodes = writes::node_set(pods);
    let moved = !nodes_added.is_empty() && !nodes_removed.is_empty();
    let reason = match (nodes_added.is_empty(), nodes_removed.is_empty()) {
        _ if moved => "NodeTransfer",
        (false, _) => "ScaleUp",
        (_, false) => "ScaleDown",
        (true, true) => "Repair",
    };
    let details = Retarget {
        pod_id: spec.manifest.id().clone(),
        availability_zone: spec.availability_zone().to_owned(),
        cluster_name: spec.cluster_name().to_owned(),
        nodes: Retarget::listed(nodes.iter()),
        replication_controller_id: spec.id,
        farm: Some(ctx.farm.clone()),
        actor: Actor::Farm,
        reason: reason.to_owned(),
        nodes_added,
        nodes_removed,
        nodes_repaired,
        desired_before: Some(i64::from(desired_before)),
        desired_after: i64::from(spec.replicas_desired),
        count: pods.len(),
    };
    AuditRecord::new(&Details::Retarget(details), ctx.clock.wall())
}

/// Pods of the disabled RC `spec` on these nodes were taken over by another RC; `left` remain.
pub fn taken_over(
    ctx: &ControllerContext,
    spec: &RcSpec,
    nodes_removed: Vec<NodeName>,
    left: usize,
) -> AuditRecord {
    let details = Retarget {
        pod_id: spec.manifest.id().clone(),
        availability_zone: spec.availability_zone().to_owned(),
        cluster_name: spec.cluster_name().to_owned(),
        nodes: None,
        replication_controller_id: spec.id,
        farm: Some(ctx.farm.clone()),
        actor: Actor::Farm,
        reason: "TakenOver".to_owned(),
        nodes_added: Vec::new(),
        nodes_removed,
        nodes_repaired: Vec::new(),
        desired_before: Some(i64::from(spec.replicas_desired)),
        desired_after: i64::from(spec.replicas_desired),
        count: left,
    };
    AuditRecord::new(&Details::Retarget(details), ctx.clock.wall())
}

fn node_transfer(ctx: &ControllerContext, spec: &RcSpec, transfer: &Transfer) -> NodeTransfer {
    let id: Uuid = transfer.id;
    NodeTransfer {
        node_transfer_id: id,
        replication_controller_id: spec.id,
        pod_id: spec.manifest.id().clone(),
        availability_zone: spec.availability_zone().to_owned(),
        cluster_name: spec.cluster_name().to_owned(),
        replication_controller_node_selector: spec.node_selector.to_string(),
        old_node: transfer.old_node.clone(),
        new_node: transfer.new_node.clone(),
        replica_count: i64::from(spec.replicas_desired),
        rollback_reason: None,
        farm: Some(ctx.farm.clone()),
    }
}

/// A transfer begins.
pub fn transfer_started(
    ctx: &ControllerContext,
    spec: &RcSpec,
    transfer: &Transfer,
) -> AuditRecord {
    let details = Details::NodeTransferStart(node_transfer(ctx, spec, transfer));
    AuditRecord::new(&details, ctx.clock.wall())
}

/// A transfer was completed. The retarget record of the same transaction lists the pods.
pub fn transfer_done(
    ctx: &ControllerContext,
    spec: &RcSpec,
    transfer: &Transfer,
    to: &NodeName,
) -> AuditRecord {
    let details = NodeTransfer { new_node: Some(to.clone()), ..node_transfer(ctx, spec, transfer) };
    AuditRecord::new(&Details::NodeTransferCompletion(details), ctx.clock.wall())
}

/// A transfer was undone.
pub fn transfer_undone(
    ctx: &ControllerContext,
    spec: &RcSpec,
    transfer: &Transfer,
    why: &str,
) -> AuditRecord {
    let rollback_reason = Some(why.to_owned());
    let details = NodeTransfer { rollback_reason, ..node_transfer(ctx, spec, transfer) };
    AuditRecord::new(&Details::NodeTransferRollback(details), ctx.clock.wall())
}
