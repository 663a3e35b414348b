//! `rcfarm rc plan`, `explain`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::find::{FoundRc, find};
use super::snapshot::{AskedScheduler, INTENTS_HIDDEN, RcSnapshot, read_snapshot};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::farm::{self, LiveFarm};
use crate::cli::output::{age, fields};
use crate::cluster::nodes::NodeReadiness;
use crate::placement::capacity::PodResources;
use crate::replication::plan::{
    Drift, PodRemoveReason, PodStep, ReplicationObserved, ReplicationPlan, SlotState, TransferPlan,
    has_capacity, plan as decide,
};
use rcfarm_api::FieldError;
use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::key;
use rcfarm_api::labels::{Labels, Selector, decode_labels};
use rcfarm_api::rc::spec::{RcSpec, check_count};
use rcfarm_api::resource_list::units;

#[derive(clap::Args)]
pub struct PlanArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
    /// Assume this number of desired pods
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    replicas: Option<i64>,
    /// Assume this node selector
    #[arg(long, value_name = "SELECTOR")]
    node_selector: Option<Selector>,
    /// Write the plan's input to a file as JSON, for a bug report; without the manifest's text
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// A change that a farm would make.
#[derive(Serialize)]
struct PlannedChange {
    /// `add`, `remove`, `repair` or `transfer`.
    action: &'static str,
    node: NodeName,
    pod_id: PodId,
    reason: &'static str,
}

pub(super) async fn plan(context: &CommandContext, args: &PlanArgs) -> anyhow::Result<CliExit> {
    let mut found = find(context, &args.rc).await?;
    if let (Some(selector), Ok(record)) = (&args.node_selector, &mut found.record) {
        record.node_selector = selector.to_string();
    }
    if let (Some(count), Ok(record)) = (args.replicas, &mut found.record) {
        check_count(count).map_err(|bad| {
            failure(format!("--replicas: {}", bad.problem), "give a number from 0 up")
        })?;
        record.replicas_desired = count;
    }
    let invalid = |what: &str, bad: FieldError| {
        let title = found.title();
        let problem = format!("{title}: {what} {}: {}; no farm works on it", bad.path, bad.problem);
        failure(problem, bad.fix)
    };
    let spec = found.spec().map_err(|bad| invalid("field", bad))?;
    let seen = read_snapshot(context, &found).await?;
    let spec = seen.with_labels(spec).map_err(|bad| invalid("its label", bad))?;
    let observed = seen.observed(&spec);
    if let Some(file) = &args.dump {
        dump(file, &observed)?;
    }
    let plan = decide(&observed);
    let changes = changes(&spec, &seen, &plan);
    let shown = json!({
        "id": found.id,
        "pod_id": spec.manifest.id(),
        "changes": changes,
        "replicas": {"before": seen.pods.len(), "after": plan.replicas.current},
        "replicas_desired": spec.replicas_desired,
        "findings": conditions(&plan),
        "unfit_nodes": unfit(&seen, &spec),
        "reads_intents": seen.reads_intents,
    });
    if !seen.reads_intents {
        context.note(INTENTS_HIDDEN);
    }
    context.show(&shown, || plan_text(&found, &seen, &spec, &plan, &changes))?;
    Ok(if changes.is_empty() { CliExit::Ok } else { CliExit::Changes })
}

fn dump(file: &Path, observed: &ReplicationObserved) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(observed)?;
    text.push('\n');
    std::fs::write(file, text).map_err(|error| {
        failure(format!("--dump {}: {error}", file.display()), "name a file that can be written")
    })
}

fn changes(spec: &RcSpec, seen: &RcSnapshot, plan: &ReplicationPlan) -> Vec<PlannedChange> {
    let leaves = |node: &NodeName| match seen.readiness(node) {
        NodeReadiness::Down => "its node is down",
        NodeReadiness::Draining => "its node is draining",
        NodeReadiness::Quarantined => "its node cannot start it",
        NodeReadiness::Ready | NodeReadiness::Suspect if seen.eligible.contains(node) => {
            "its node has no room for it"
        }
        NodeReadiness::Ready | NodeReadiness::Suspect => "its node is not eligible",
    };
    let step = |step: &PodStep| {
        let (action, reason) = match step {
            PodStep::Add { .. } => ("add", "wanted"),
            PodStep::TakeOver { .. } => {
                ("add", "wanted; it takes over a pod too many of a disabled controller")
            }
            PodStep::Remove { why: PodRemoveReason::Ineligible, pod_ref, .. } => {
                ("remove", leaves(&pod_ref.node))
            }
            PodStep::Remove { why: PodRemoveReason::Unhealthy, .. } => {
                ("remove", "one too many, and not healthy")
            }
            PodStep::Remove { why: PodRemoveReason::Surplus, .. } => {
                ("remove", "one too many, and the newest")
            }
            PodStep::Repair { why, .. } => ("repair", repair_words(*why)),
        };
        let PodRef { node, pod } = step.pod_ref().clone();
        PlannedChange { action, node, pod_id: pod, reason }
    };
    let mut changes: Vec<PlannedChange> = plan.steps.iter().map(step).collect();
    if let TransferPlan::Start(node) = &plan.transfer {
        let pod_id = spec.manifest.id().clone();
        let reason = leaves(node);
        changes.push(PlannedChange { action: "transfer", node: node.clone(), pod_id, reason });
    }
    changes
}

fn repair_words(why: Drift) -> &'static str {
    match why {
        Drift::IntentMissing => "its intent is missing",
        Drift::IntentDiffers => "its intent is not the record's manifest",
        Drift::LabelsDiffer => "a label of the record is missing or differs",
        Drift::AllocationDiffers => "its node has not promised it what the manifest asks for",
        Drift::PodIdChanged => "the manifest has another id now",
    }
}

fn conditions(plan: &ReplicationPlan) -> Value {
    let condition = |condition: &crate::replication::plan::PlannedCondition| {
        json!({
            "type": condition.kind,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
        })
    };
    plan.conditions.iter().map(condition).collect()
}

fn plan_text(
    found: &FoundRc,
    seen: &RcSnapshot,
    spec: &RcSpec,
    plan: &ReplicationPlan,
    changes: &[PlannedChange],
) -> String {
    let (before, after) = (seen.pods.len(), plan.replicas.current);
    let desired = spec.replicas_desired;
    let mut text = format!("{}: {before} -> {after} pods, {desired} desired\n", found.title());
    let width = changes.iter().map(|change| change.node.as_str().len()).max().unwrap_or(0);
    for change in changes {
        let sign = match change.action {
            "add" => '+',
            "remove" => '-',
            "repair" => '~',
            _ => '>',
        };
        let PlannedChange { action, node, reason, .. } = change;
        text.push_str(&format!("  {sign} {node:width$}  {action}: {reason}\n"));
    }
    if changes.is_empty() {
        text.push_str("  nothing to do\n");
    }
    for condition in plan.conditions.iter().filter(|condition| !condition.status) {
        text.push_str(&format!(
            "{:?}: no ({}) {}\n",
            condition.kind, condition.reason, condition.message
        ));
    }
    let unready = unfit(seen, spec).into_iter().filter(|unfit| unfit.reason.is_of_the_node());
    for Unfit { node, why, .. } in unready.take(NODES_SHOWN) {
        text.push_str(&format!("unfit: {node}: {why}\n"));
    }
    text
}

const NODES_SHOWN: usize = 20;

/// A node that cannot take a pod.
#[derive(Serialize)]
struct Unfit {
    node: NodeName,
    reason: UnfitReason,
    why: String,
}

/// Why a node cannot take a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum UnfitReason {
    Draining,
    Down,
    /// It could not start the pod, now or recently.
    Quarantined,
    /// A pod of the same id and another owner is there.
    PlaceTaken,
    /// It lacks the requested resources.
    InsufficientCapacity,
    NotMatching,
    /// The owner's scheduler does not list it.
    NotNamed,
}

impl UnfitReason {
    /// Whether the node matches but is not ready.
    fn is_of_the_node(self) -> bool {
        matches!(self, UnfitReason::Draining | UnfitReason::Down | UnfitReason::Quarantined)
    }
}

pub(super) async fn explain(context: &CommandContext, rc: &str) -> anyhow::Result<CliExit> {
    let found = find(context, rc).await?;
    let seen = read_snapshot(context, &found).await?;
    let spec = found.spec().and_then(|spec| seen.with_labels(spec));
    let plan = spec.as_ref().ok().map(|spec| decide(&seen.observed(spec)));
    let owner = owner(context, &found).await?;
    let unfit = spec.as_ref().map(|spec| unfit(&seen, spec)).unwrap_or_default();
    let verdict = match (&spec, &plan) {
        (Ok(_), Some(plan)) => verdict(&found, &seen, plan),
        (Err(bad), _) => format!("no farm can work on the record: {bad}"),
        (Ok(_), None) => String::new(),
    };
    let shown = json!({
        "id": found.id,
        "pod_id": found.pod_id(),
        "verdict": verdict,
        "invalid": spec.as_ref().err().map(|bad| json!({"field": bad.path, "why": bad.problem, "fix": bad.fix})),
        "owner": owner,
        "pods": seen.pods.len(),
        "replicas_desired": found.desired(),
        "nodes": seen.nodes.len(),
        "eligible_nodes": seen.eligible,
        "scheduler": scheduler_words(&seen.asked),
        "resources": spec.as_ref().ok().map(|spec| spec.resources()).filter(|want| !want.is_zero()).map(units::json),
        "unfit_nodes": unfit,
        "findings": plan.as_ref().map(conditions),
        "last_error": seen.status.as_ref().and_then(|status| status.last_error.clone()),
    });
    context.show(&shown, || {
        let mut rows = vec![("controller", found.title()), ("verdict", verdict.clone())];
        rows.push(("owner", owner));
        rows.push(("status", status_words(context, &found, &seen)));
        if let Ok(spec) = &spec {
            let selector = match spec.node_selector.to_string() {
                _ if matches!(seen.asked, AskedScheduler::Server(_)) => {
                    "named by the scheduler".to_owned()
                }
                all if all.is_empty() => "all nodes".to_owned(),
                selector => format!("nodes that match {selector}"),
            };
            let (eligible, all) = (seen.eligible.len(), seen.nodes.len());
            let unready = unfit.iter().filter(|unfit| unfit.reason.is_of_the_node()).count();
            let but = match unready {
                0 => String::new(),
                unready => format!(", {unready} of them not ready"),
            };
            rows.push(("nodes", format!("{eligible} of {all} eligible: {selector}{but}")));
        }
        rows.extend(scheduler_words(&seen.asked).map(|words| ("scheduler", words)));
        rows.push(("unfit", unfit_text(&unfit)));
        fields(rows)
    })
}

/// The first failed condition, or a summary.
fn verdict(found: &FoundRc, seen: &RcSnapshot, plan: &ReplicationPlan) -> String {
    let (current, desired) = (seen.pods.len(), plan.replicas.desired);
    match plan.conditions.iter().find(|condition| !condition.status) {
        Some(condition) => format!("{}: {}", condition.reason, condition.message),
        None if !plan.is_idle() => format!(
            "{current} of {desired} pods scheduled; {} changes are due: rcfarm rc plan {}",
            plan.steps.len().max(1),
            found.id
        ),
        None if found.record.as_ref().is_ok_and(|record| record.disabled) => {
            format!("disabled, with the {desired} pods that it asks for")
        }
        None => format!("as desired: {current} of {desired} pods scheduled"),
    }
}

/// Owner of the record, or why there is none.
async fn owner(context: &CommandContext, found: &FoundRc) -> anyhow::Result<String> {
    let lock = context.get(&key::rc_lock(found.id)).await?;
    let holder = lock.and_then(|entry| entry.session);
    let live = farm::live(context).await?;
    if let Some(session) = holder {
        let farm = live.iter().find(|farm| farm.presence.session == session);
        return Ok(match farm {
            Some(LiveFarm { name, presence }) => {
                format!("farm {name}, up for {}", age(presence.since, context.now()))
            }
            None => {
                format!("session {session}, which is of no farm that shows itself (a p2 farm?)")
            }
        });
    }
    if live.is_empty() {
        return Ok("nobody: no farm is running; start one: rcfarm farm run".to_owned());
    }
    let labels = context.get(&key::rc_labels(found.id)).await?;
    let labels = labels.and_then(|entry| decode_labels(&entry.value).ok()).unwrap_or_default();
    let reasons: Vec<String> = live.iter().map(|farm| not_claimed(farm, &labels)).collect();
    Ok(format!("nobody\n{}", reasons.join("\n")))
}

fn not_claimed(LiveFarm { name, presence }: &LiveFarm, labels: &Labels) -> String {
    match presence.selector.parse::<Selector>().map(|selector| selector.explain(labels)) {
        Ok(Some(why)) => format!("farm {name} does not want it: {why}"),
        Ok(None) if presence.leaving => format!("farm {name} is about to leave"),
        Ok(None) => format!("farm {name} should claim it any moment"),
        Err(error) => format!("farm {name} has an unreadable selector: {error}"),
    }
}

fn status_words(context: &CommandContext, found: &FoundRc, seen: &RcSnapshot) -> String {
    let Some(status) = &seen.status else {
        return "no farm has looked at it yet".to_owned();
    };
    let mut words = if status.observed_index >= found.entry.modify_index {
        "the owner has seen the record as it is".to_owned()
    } else {
        "the owner has not yet seen the last change of the record".to_owned()
    };
    if let Some(error) = &status.last_error {
        words.push_str(&format!("\nlast error: {error}"));
    }
    if let Some(until) = status.quarantined_until.filter(|until| *until > context.now()) {
        words.push_str(&format!("\nleft alone until {until}"));
    }
    words
}

/// Nodes that cannot take a pod: first those that match but are not ready, then those without capacity, then conflicts.
fn unfit(seen: &RcSnapshot, spec: &RcSpec) -> Vec<Unfit> {
    let unready = seen.eligible.iter().filter_map(|node| {
        let (reason, why) = match seen.readiness(node) {
            NodeReadiness::Ready => return None,
            NodeReadiness::Suspect => {
                let why = "is passed over for a while: it could not start pods of several controllers or jobs";
                (UnfitReason::Quarantined, why)
            }
            NodeReadiness::Draining => (UnfitReason::Draining, "is draining"),
            NodeReadiness::Down => (UnfitReason::Down, "is down: its agent is gone"),
            NodeReadiness::Quarantined => {
                let why = seen.quarantined.get(node).map_or("cannot start it", String::as_str);
                (UnfitReason::Quarantined, why)
            }
        };
        let holds = seen.pods.keys().any(|place| place.node == *node);
        let pod = if holds { "; a pod is still there" } else { "" };
        Some(Unfit { node: node.clone(), reason, why: format!("matches, but {why}{pod}") })
    });
    let ready = |node: &NodeName| seen.readiness(node) == NodeReadiness::Ready;
    let taken = seen.slots.iter().filter_map(|(node, (slot, owner))| {
        let pod = spec.manifest.id();
        let why = match (slot, owner) {
            (SlotState::Other, Some(owner)) => {
                format!("eligible, but its pod {pod} belongs to {owner}")
            }
            (SlotState::Other, None) => {
                format!("eligible, but there is a pod {pod} of no controller")
            }
            (SlotState::Nobody | SlotState::Ours(_), _) => return None,
        };
        let reason = UnfitReason::PlaceTaken;
        ready(node).then(|| Unfit { node: node.clone(), reason, why })
    });
    let roomless = seen.eligible.iter().filter(|node| ready(node)).filter_map(|node| {
        let own = seen.pods.keys().find(|place| place.node == *node).cloned();
        let place = own
            .clone()
            .unwrap_or_else(|| PodRef { node: node.clone(), pod: spec.manifest.id().clone() });
        if has_capacity(spec, &seen.node_capacities, &place) {
            return None;
        }
        let insufficient = seen.node_capacities.of(node).insufficient_for(
            &place.pod,
            &spec.owner(),
            &PodResources::of_manifest(&spec.manifest),
        )?;
        let pod = if own.is_some() { "; a pod is there all the same" } else { "" };
        let why = format!("matches, but has no room: {insufficient}{pod}");
        Some(Unfit { node: node.clone(), reason: UnfitReason::InsufficientCapacity, why })
    });
    let others = seen.nodes.iter().filter(|(node, _)| !seen.eligible.contains(*node));
    let unmatched = others.map(|(node, labels)| {
        let (reason, why) = match (spec.node_selector.explain(labels), &seen.asked) {
            (Some(why), _) => (UnfitReason::NotMatching, why),
            (None, AskedScheduler::Server(address)) => {
                (UnfitReason::NotNamed, format!("the scheduler at {address} does not name it"))
            }
            (None, _) => (UnfitReason::NotMatching, "it does not match".to_owned()),
        };
        Unfit { node: node.clone(), reason, why }
    });
    unready.chain(roomless).chain(taken).chain(unmatched).collect()
}

/// Source of the eligible nodes; `None`: labels.
fn scheduler_words(asked: &AskedScheduler) -> Option<String> {
    match asked {
        AskedScheduler::Labels => None,
        AskedScheduler::Server(address) => Some(address.clone()),
        AskedScheduler::Silent { address, why } => {
            Some(format!("{address} gave no answer, so labels had to do: {why}"))
        }
    }
}

fn unfit_text(unfit: &[Unfit]) -> String {
    if unfit.is_empty() {
        return "no node".to_owned();
    }
    let shown =
        unfit.iter().take(NODES_SHOWN).map(|unfit| format!("{}: {}", unfit.node, unfit.why));
    let mut lines: Vec<String> = shown.collect();
    if unfit.len() > NODES_SHOWN {
        lines.push(format!("and {} more: -o json lists them", unfit.len() - NODES_SHOWN));
    }
    lines.join("\n")
}
