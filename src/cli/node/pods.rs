//! Pods of a node, and why those that should leave are still there.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::snapshot::NodeSnapshot;
use crate::cli::context::CommandContext;
use crate::cli::output::{or_dash, table};
use crate::cli::rc::find::{FoundRc, title};
use crate::cluster::nodes::NodeReadiness;
use crate::cluster::snapshot::ClusterSnapshot;
use rcfarm_api::budget::{BudgetMembers, allowed};
use rcfarm_api::ids::{Namespaced, NodeName, PodId, RcId};
use rcfarm_api::job::identity::name_of;
use rcfarm_api::labels::decode_labels;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::DrainJobs;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::pod_group::spec::PodGroupRecord;
use rcfarm_api::rc::status::{RcConditionType, RcReason, RcStatus};
use rcfarm_api::{Stored, key};
use rcfarm_store::{Prefix, Query};

#[derive(Debug, Clone, Serialize)]
pub(super) struct NodePod {
    pub(super) node: NodeName,
    pub(super) pod_id: PodId,
    pub(super) replication_controller_id: Option<RcId>,
    pub(super) health: Health,
    /// Whether it has an intent.
    pub(super) intended: bool,
    /// Whether the node reports it in `reality/`.
    pub(super) real: bool,
    /// Whether it is a member of a job and has ended: it stays with its log, and no drain waits for it.
    pub(super) ended: bool,
    /// Why it is still there; `None`: it need not leave.
    pub(super) stays: Option<Stay>,
}

/// Why a pod that should leave is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Stay {
    /// An [`RcReason`] of the owner, or a token of this module.
    pub(super) reason: String,
    pub(super) message: String,
}

impl Stay {
    fn new(reason: impl ToString, message: impl Into<String>) -> Stay {
        Stay { reason: reason.to_string(), message: message.into() }
    }
}

impl NodePod {
    /// Why the pod stays until somebody does something about it, and what: the reason, and a sentence. `None`: it is
    /// about to leave, or to be looked at.
    pub(super) fn stuck(&self, context: &CommandContext) -> Option<(&str, String)> {
        let Stay { reason, message } = self.stays.as_ref()?;
        let controller = self.replication_controller_id.map(|id| id.to_string());
        let explain = || match &controller {
            Some(id) => format!("see rcfarm rc explain {id}"),
            None => format!("see rcfarm node get {}", self.node),
        };
        let remedy = match reason.as_str() {
            "Stopping" | "NotSeenYet" | "JobMoves" | "Scaling" | "TransferUnderWay"
            | "UpdateUnderWay" | "PodsUnhealthy" | "AsDesired" | "LockHeld"
            | "DiscoveryNotSynced" => return None,
            "NoController" => {
                let intent = context.stored_key(&key::intent(&self.node, &self.pod_id));
                format!("delete it: consul kv delete {intent}")
            }
            "JobRuns" => {
                format!("wait, or evict it: rcfarm node drain {} --jobs evict", self.node)
            }
            "BudgetExhausted" => {
                "wait until others of the job run elsewhere, or delete the job".to_owned()
            }
            // Their messages name the command.
            "ControllerGone" | "NoOwner" | "Disabled" => String::new(),
            "InsufficientNodes" | "NoEligibleNodes" | "PlaceTaken" | "InsufficientCapacity" => {
                let id = controller.as_deref().unwrap_or("RC");
                format!(
                    "add a node that its selector matches, or want fewer: rcfarm rc scale {id} COUNT; {}",
                    explain()
                )
            }
            _ => explain(),
        };
        let remedy = if remedy.is_empty() { remedy } else { format!("; {remedy}") };
        let text =
            format!("pod {} stays on {} ({reason}): {message}{remedy}", self.pod_id, self.node);
        Some((reason, text))
    }
}

struct Controller {
    found: Option<FoundRc>,
    status: Option<RcStatus>,
    is_owned: bool,
}

/// Reads the pods of a node, by intents, labels and `reality/`.
pub(super) async fn pods(
    context: &CommandContext,
    node: &NodeSnapshot,
) -> anyhow::Result<Vec<NodePod>> {
    let store = &context.store;
    let name = &node.name;
    // Labels first: label and intent are deleted in one transaction, and the owner of a vanishing pod must be known.
    let entries = store.list(&key::node_pod_labels(name), Query::PLAIN).await?.value;
    let labelled = ClusterSnapshot::of(&entries).pods;
    let intended = pod_ids(context, &key::node_intents(name)).await?;
    // The last report of a node that is down is ignored.
    let is_told = node.readiness() != NodeReadiness::Down;
    let real = pod_ids(context, &key::node_realities(name)).await?;
    let owners: BTreeMap<PodId, RcId> = labelled
        .iter()
        .filter_map(|(place, pod)| Some((place.pod.clone(), pod.value.rc?)))
        .collect();
    let jobs: BTreeMap<PodId, Namespaced> = entries
        .iter()
        .filter_map(|entry| {
            let pod = key::node_pod_labels(name).tail(&entry.key)?.parse().ok()?;
            Some((pod, name_of(&decode_labels(&entry.value).ok()?)?.0))
        })
        .collect();
    let labelled: BTreeSet<PodId> = labelled.iter().map(|(place, _)| place.pod.clone()).collect();
    let mut all = &intended | &labelled;
    if is_told {
        all.extend(real.iter().cloned());
    }
    let healths = context.get_many(all.iter().map(|pod| key::health(pod, name))).await?;
    let statuses = context.get_many(jobs.keys().map(|pod| key::pod_status(pod, name))).await?;
    let intents = context.get_many(jobs.keys().map(|pod| key::intent(name, pod))).await?;
    let has_ended = |pod: &PodId| {
        let entry = statuses.get(key::pod_status(pod, name).as_str());
        let status = entry.and_then(|entry| PodStatus::decode(&entry.value).ok());
        // A member that is started again has a newer intent.
        let intent = intents.get(key::intent(name, pod).as_str()).map(|entry| entry.modify_index);
        let is_present = |status: &PodStatus| intent.is_none() || status.is_of(intent);
        status.is_some_and(|status| status.phase == NodePodPhase::Ended && is_present(&status))
    };
    let groups = context.get_many(jobs.values().map(key::pod_group)).await?;
    let controllers = controllers(context, owners.values().copied().collect()).await?;
    let pod = |pod_id: PodId| {
        let rc = owners.get(&pod_id).copied();
        let health = healths.get(key::health(&pod_id, name).as_str());
        let is_leaving = !intended.contains(&pod_id) && !labelled.contains(&pod_id);
        let controller = rc.and_then(|rc| Some((rc, controllers.get(&rc)?)));
        NodePod {
            node: name.clone(),
            replication_controller_id: rc,
            health: health.map_or(Health::Absent, |entry| Health::decode(&entry.value)),
            intended: intended.contains(&pod_id),
            real: real.contains(&pod_id),
            ended: has_ended(&pod_id),
            stays: match (jobs.get(&pod_id), is_leaving) {
                (Some(job), false) => {
                    let group = groups.get(key::pod_group(job).as_str());
                    let group = group.and_then(|entry| PodGroupRecord::decode(&entry.value).ok());
                    stays_of_job(node, job, group.as_ref()).filter(|_| !has_ended(&pod_id))
                }
                _ => stays(node, controller, is_leaving),
            },
            pod_id,
        }
    };
    Ok(all.into_iter().map(pod).collect())
}

/// The pods whose ids are the names of the keys below a prefix.
pub(super) async fn pod_ids(
    context: &CommandContext,
    prefix: &Prefix,
) -> anyhow::Result<BTreeSet<PodId>> {
    let keys = context.keys(prefix).await?;
    Ok(keys.iter().filter_map(|key| prefix.tail(key)?.parse().ok()).collect())
}

async fn controllers(
    context: &CommandContext,
    ids: BTreeSet<RcId>,
) -> anyhow::Result<BTreeMap<RcId, Controller>> {
    let keys = ids.iter().flat_map(|id| [key::rc(*id), key::rc_status(*id), key::rc_lock(*id)]);
    let mut read = context.get_many(keys).await?;
    let mut controller = |id: RcId| {
        let status = read.remove(key::rc_status(id).as_str());
        let lock = read.remove(key::rc_lock(id).as_str());
        Controller {
            found: read.remove(key::rc(id).as_str()).map(|entry| FoundRc::of(id, entry)),
            status: status.and_then(|entry| RcStatus::decode(&entry.value).ok()),
            is_owned: lock.is_some_and(|entry| entry.session.is_some()),
        }
    };
    Ok(ids.into_iter().map(|id| (id, controller(id))).collect())
}

/// Why a member of a job is still on a node that is not ready; `None`: it may stay.
fn stays_of_job(
    node: &NodeSnapshot,
    job: &Namespaced,
    group: Option<&PodGroupRecord>,
) -> Option<Stay> {
    let evicts = node.record.as_ref().is_ok_and(|r| r.drain_jobs == Some(DrainJobs::Evict));
    let (reason, what) = match (node.readiness(), evicts) {
        (NodeReadiness::Ready, _) => return None,
        (NodeReadiness::Draining, false) => ("JobRuns", "it stays until it ends".to_owned()),
        (NodeReadiness::Draining, true) => match group.and_then(why_kept) {
            Some(why) => ("BudgetExhausted", why),
            None => ("JobMoves", MOVES.to_owned()),
        },
        _ => ("JobMoves", MOVES.to_owned()),
    };
    Some(Stay::new(reason, format!("a member of job {job}: {what}: rcfarm job explain {job}")))
}

const MOVES: &str = "it is evicted, and started on another node";

/// Why no member of a group may leave a drained node now. One with cells leaves as a whole.
fn why_kept(group: &PodGroupRecord) -> Option<String> {
    if group.spec.cells.is_some() {
        return group.forbids_stop();
    }
    let (budget, members) = (group.spec.budget.as_ref()?, group.budget_members());
    // Members that do not run leave whatever the budget is.
    (members.available > 0 && allowed(Some(budget), members) == 0).then(|| {
        let BudgetMembers { total, available } = members;
        format!(
            "its disruption budget is {}, and {available} of {total} members run",
            budget.shown()
        )
    })
}

/// Why a pod that should leave `node` is still there; `None`: it may stay.
fn stays(
    node: &NodeSnapshot,
    controller: Option<(RcId, &Controller)>,
    is_leaving: bool,
) -> Option<Stay> {
    if is_leaving {
        return Some(Stay::new("Stopping", "its intent is gone; the node has yet to stop it"));
    }
    let is_fit = node.readiness() == NodeReadiness::Ready;
    let Some((id, controller)) = controller else {
        let message = "no controller has it, so nobody moves it";
        return (!is_fit).then(|| Stay::new("NoController", message));
    };
    let Some(found) = &controller.found else {
        let message = format!("its controller {id} is gone: rcfarm rc orphans");
        return Some(Stay::new("ControllerGone", message));
    };
    let spec = found.spec().ok();
    let matches = match (&spec, &node.labels) {
        (Some(spec), Ok(labels)) => spec.node_selector.matches(labels),
        (Some(_), Err(_)) => false,
        (None, _) => true,
    };
    (!is_fit || !matches).then(|| why(node, found, controller))
}

/// Why the controller has not moved the pod yet.
fn why(node: &NodeSnapshot, found: &FoundRc, controller: &Controller) -> Stay {
    if !controller.is_owned {
        let message = format!("no farm owns {}: rcfarm rc explain {}", found.title(), found.id);
        return Stay::new("NoOwner", message);
    }
    if found.record.as_ref().is_ok_and(|record| record.disabled) {
        let message = format!("its controller is disabled: rcfarm rc enable {}", found.id);
        return Stay::new(RcReason::Disabled, message);
    }
    let Some(status) = &controller.status else { return unseen() };
    let failed = |kind| status.condition(kind).filter(|condition| !condition.status);
    if let Some(invalid) = failed(RcConditionType::Valid) {
        return Stay::new(invalid.reason, invalid.message.clone());
    }
    let Some(placed) = failed(RcConditionType::Placed) else { return unseen() };
    let mut message = match (placed.reason, &status.transfer) {
        (_, Some(transfer)) if transfer.old_node == node.name => match &transfer.new_node {
            Some(to) => format!("it moves to {to}"),
            None => "a node for it is being chosen".to_owned(),
        },
        (_, Some(transfer)) => format!("the one on {} moves first", transfer.old_node),
        // Without numbers: the status is updated with a delay if only the health changes.
        (RcReason::PodsUnhealthy, None) => {
            "too few of its controller's pods are healthy to spare this one".to_owned()
        }
        _ => placed.message.clone(),
    };
    if let Some(error) = status.last_error.as_ref().filter(|error| **error != message) {
        message.push_str(&format!("; last error: {error}"));
    }
    Stay::new(placed.reason, message)
}

fn unseen() -> Stay {
    Stay::new("NotSeenYet", "its owner has yet to look")
}

pub(super) fn pods_words(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

/// Number of pods by reason, as in `3 TransferUnderWay, 1 NoOwner`.
pub(super) fn tally<'p>(pods: impl Iterator<Item = &'p NodePod>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for stay in pods.filter_map(|pod| pod.stays.as_ref()) {
        *counts.entry(&stay.reason).or_default() += 1;
    }
    let words: Vec<String> =
        counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    words.join(", ")
}

pub(super) fn pods_table<'p>(pods: impl IntoIterator<Item = &'p NodePod>) -> String {
    let controller = |pod: &NodePod| Some(title(Some(&pod.pod_id), pod.replication_controller_id?));
    let stays = |pod: &&'p NodePod| pod.stays.clone().unwrap_or_else(|| Stay::new("-", ""));
    table(
        &pods.into_iter().collect::<Vec<_>>(),
        &[
            ("NODE", &|pod| pod.node.to_string()),
            ("POD", &|pod| pod.pod_id.to_string()),
            ("CONTROLLER", &|pod| or_dash(controller(pod))),
            ("HEALTH", &|pod| match pod.ended {
                true => "-".to_owned(),
                false => format!("{:?}", pod.health).to_lowercase(),
            }),
            ("STAYS", &|pod| stays(pod).reason),
            ("WHY", &|pod| stays(pod).message),
        ],
    )
}
