//! `rcfarm rc get`, `status`, `pods`.

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use super::find::{FoundRc, find};
use super::snapshot::{INTENTS_HIDDEN, RcSnapshot, read_snapshot};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{age, fields, or_dash, table};
use crate::cluster::intents::Intent;
use crate::cluster::nodes::NodeReadiness;
use crate::replication::plan::RcPod;
use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::rc::spec::RcRecord;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_api::{Stored, key};
use rcfarm_store::Query;

#[derive(clap::Args)]
pub struct RcGetArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
    /// Print only the manifest, byte for byte
    #[arg(long)]
    manifest: bool,
}

pub(super) async fn get(context: &CommandContext, args: &RcGetArgs) -> anyhow::Result<CliExit> {
    let found = find(context, &args.rc).await?;
    if args.manifest {
        let record = found.record.map_err(|bad| failure(bad.to_string(), bad.fix))?;
        use std::io::Write;
        std::io::stdout().lock().write_all(record.manifest.as_bytes())?;
        return Ok(CliExit::Ok);
    }
    let raw: Value = serde_json::from_slice(&found.entry.value)
        .with_context(|| format!("{}: the value is not JSON", found.entry.key))?;
    let shown = json!({
        "key": found.entry.key,
        "modify_index": found.entry.modify_index,
        "record": raw,
        "invalid": found.spec().err().map(|bad| bad.to_string()),
    });
    context.show(&shown, || match &found.record {
        Ok(record) => record_text(record, &found.spec().err().map(|bad| bad.to_string())),
        Err(bad) => fields([
            ("id", found.id.to_string()),
            ("invalid", bad.to_string()),
            ("value", String::from_utf8_lossy(&found.entry.value).into_owned()),
        ]),
    })
}

fn record_text(record: &RcRecord, invalid: &Option<String>) -> String {
    let labels: Vec<String> =
        record.pod_labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect();
    let mut rows = vec![
        ("id", record.id.to_string()),
        ("replicas_desired", record.replicas_desired.to_string()),
        ("disabled", record.disabled.to_string()),
        ("node_selector", record.node_selector.clone()),
        ("allocation_strategy", record.allocation_strategy.clone()),
        ("pod_labels", labels.join(",")),
    ];
    rows.extend(record.other.iter().map(|(name, value)| (name.as_str(), value.to_string())));
    rows.extend(invalid.clone().map(|why| ("invalid", why)));
    rows.push(("manifest", record.manifest.clone()));
    fields(rows)
}

pub(super) async fn status(context: &CommandContext, rc: &str) -> anyhow::Result<CliExit> {
    let found = find(context, rc).await?;
    let lock = context.get(&key::rc_lock(found.id)).await?.and_then(|entry| entry.session);
    let entry = context.store.get(&key::rc_status(found.id), Query::PLAIN).await?.value;
    let status = entry
        .map(|entry| {
            RcStatus::decode(&entry.value).with_context(|| format!("cannot read {}", entry.key))
        })
        .transpose()?;
    let unhealthy = unhealthy(context, &found).await?;
    let is_current =
        status.as_ref().is_some_and(|status| status.observed_index >= found.entry.modify_index);
    let shown = json!({
        "id": found.id,
        "pod_id": found.pod_id(),
        "record_index": found.entry.modify_index,
        "is_current": is_current,
        "owner_session": lock,
        "status": status,
        "unhealthy_pods": unhealthy,
    });
    context.show(&shown, || {
        let mut rows = vec![("controller", found.title()), ("session", or_dash(lock.as_ref()))];
        let text = match &status {
            None => {
                rows.push(("status", "no farm has looked at it yet".to_owned()));
                fields(rows)
            }
            Some(status) => status_text(context, rows, status, is_current),
        };
        text + &unhealthy_text(&unhealthy)
    })
}

/// A pod that is not healthy.
#[derive(Serialize)]
struct Unhealthy {
    node: NodeName,
    pod_id: PodId,
    health: Health,
    /// Phase reported by its node, if any.
    phase: Option<NodePodPhase>,
    why: String,
}

/// Unhealthy pods with the reports of their nodes.
async fn unhealthy(context: &CommandContext, found: &FoundRc) -> anyhow::Result<Vec<Unhealthy>> {
    let seen = read_snapshot(context, found).await?;
    let is_well = |place: &PodRef, pod: &RcPod| {
        pod.health == Health::Passing && seen.readiness(&place.node) != NodeReadiness::Down
    };
    let ailing: Vec<_> = seen.pods.iter().filter(|(place, pod)| !is_well(place, pod)).collect();
    let keys = ailing.iter().map(|(place, _)| key::pod_status(&place.pod, &place.node));
    let told = context.get_many(keys).await?;
    let row = |(place, pod): &(&PodRef, &RcPod)| {
        let key = key::pod_status(&place.pod, &place.node);
        let status = told.get(key.as_str());
        let status = status.and_then(|entry| PodStatus::decode(&entry.value).ok());
        Unhealthy {
            node: place.node.clone(),
            pod_id: place.pod.clone(),
            health: pod.health,
            phase: status.as_ref().map(|status| status.phase),
            why: why_unhealthy(seen.readiness(&place.node), pod.health, status.as_ref()),
        }
    };
    Ok(ailing.iter().map(row).collect())
}

fn why_unhealthy(readiness: NodeReadiness, health: Health, status: Option<&PodStatus>) -> String {
    match (readiness, status) {
        (NodeReadiness::Down, _) => "its node is down".to_owned(),
        (_, None) if health == Health::Absent => {
            "its node has said nothing of it yet: does its agent run?".to_owned()
        }
        (_, Some(status)) if health == Health::Absent => {
            format!("its node cannot be heard; it said last: {} {}", status.phase, status.message)
        }
        (_, Some(status)) if !status.message.is_empty() => status.message.clone(),
        (_, Some(_) | None) => "its check does not pass".to_owned(),
    }
}

fn unhealthy_text(unhealthy: &[Unhealthy]) -> String {
    if unhealthy.is_empty() {
        return String::new();
    }
    let table = table(
        unhealthy,
        &[
            ("NOT HEALTHY ON", &|row| row.node.to_string()),
            ("POD", &|row| row.pod_id.to_string()),
            ("HEALTH", &|row| row.health.to_string()),
            ("STATE", &|row| or_dash(row.phase)),
            ("WHY", &|row| row.why.clone()),
        ],
    );
    format!("\n{table}")
}

fn status_text(
    context: &CommandContext,
    mut rows: Vec<(&str, String)>,
    status: &RcStatus,
    is_current: bool,
) -> String {
    let now = context.now();
    let replicas = status.replicas;
    let owner = status.owner.as_ref();
    let owner = owner.map(|owner| format!("farm {}, for {}", owner.farm, age(owner.since, now)));
    rows.extend([
        ("owner", or_dash(owner)),
        (
            "pods",
            format!(
                "{} of {} scheduled, {} healthy, {} nodes eligible",
                replicas.current, replicas.desired, replicas.healthy, replicas.eligible
            ),
        ),
    ]);
    if !is_current {
        rows.push(("note", "the record has changed since; the farm has yet to look".to_owned()));
    }
    if let Some(transfer) = &status.transfer {
        let to = or_dash(transfer.new_node.as_ref());
        rows.push(("transfer", format!("from {} to {to}", transfer.old_node)));
    }
    rows.extend(status.last_error.clone().map(|error| ("last error", error)));
    rows.extend(status.quarantined_until.map(|until| ("left alone until", until.to_string())));
    let conditions = table(
        &status.conditions,
        &[
            ("CONDITION", &|condition| format!("{:?}", condition.kind)),
            ("HOLDS", &|condition| condition.status.to_string()),
            ("REASON", &|condition| condition.reason.to_string()),
            ("SINCE", &|condition| age(condition.last_transition_time, now)),
            ("MESSAGE", &|condition| condition.message.clone()),
        ],
    );
    format!("{}\n{conditions}", fields(rows))
}

#[derive(Serialize)]
struct PodRow {
    node: NodeName,
    pod_id: PodId,
    health: Health,
    /// `same`, `missing` or `differs`, compared with the record's manifest; `unreadable`: the token may not read it.
    intent: &'static str,
    eligible: bool,
}

pub(super) async fn pods(context: &CommandContext, rc: &str) -> anyhow::Result<CliExit> {
    let found = find(context, rc).await?;
    let RcSnapshot { pods, eligible, reads_intents, .. } = read_snapshot(context, &found).await?;
    let rows: Vec<PodRow> = pods
        .iter()
        .map(|(place, pod)| PodRow {
            node: place.node.clone(),
            pod_id: place.pod.clone(),
            health: pod.health,
            intent: match pod.intent {
                _ if !reads_intents => "unreadable",
                Intent::Same(_) => "same",
                Intent::Missing => "missing",
                Intent::Differs(_) => "differs",
            },
            eligible: eligible.contains(&place.node),
        })
        .collect();
    if !reads_intents {
        context.note(INTENTS_HIDDEN);
    }
    context.show_rows(
        &rows,
        &format!("{} has no pods", found.title()),
        &[
            ("NODE", &|row| row.node.to_string()),
            ("POD", &|row| row.pod_id.to_string()),
            ("HEALTH", &|row| format!("{:?}", row.health).to_lowercase()),
            ("INTENT", &|row| row.intent.to_owned()),
            ("ELIGIBLE", &|row| if row.eligible { "yes" } else { "no" }.to_owned()),
        ],
    )
}
