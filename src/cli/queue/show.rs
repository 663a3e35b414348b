//! `rcfarm queue list`, `get`.

use serde_json::{Value, json};

use super::snapshot::{QueueSnapshot, snapshot};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{fields, or_dash, table};
use rcfarm_api::ids::QueueName;
use rcfarm_api::queue::status::QueueStatus;
use rcfarm_api::{FieldError, ResourceList};

pub(super) async fn list(context: &CommandContext) -> anyhow::Result<CliExit> {
    let snapshot = snapshot(context).await?;
    let all: Vec<Value> = snapshot.queues.0.keys().map(|name| shown(&snapshot, name)).collect();
    context.show(&all, || {
        if all.is_empty() {
            return "there are no queues; a farm makes the default one".to_owned();
        }
        let names: Vec<&QueueName> = snapshot.queues.0.keys().collect();
        let spec = |name: &QueueName| &snapshot.queues.0[name].spec;
        table(
            &names,
            &[
                ("NAME", &|name| name.to_string()),
                ("STATE", &|name| state(&snapshot, name)),
                ("PARENT", &|name| or_dash(spec(name).parent())),
                ("PRIORITY", &|name| spec(name).priority.to_string()),
                ("ORDER", &|name| order(&snapshot, name).to_owned()),
                ("WAITING", &|name| snapshot.positions.get(*name).map_or(0, Vec::len).to_string()),
                ("ADMITTED", &|name| snapshot.admitted(name).len().to_string()),
                ("USED", &|name| amounts(snapshot.usage.total(name))),
                ("CAPABILITY", &|name| amounts(&spec(name).capability)),
            ],
        )
    })
}

/// A queue's record, status and waiting groups as JSON, for both `list` and `get`.
fn shown(snapshot: &QueueSnapshot, name: &QueueName) -> Value {
    let queue = &snapshot.queues.0[name];
    let problems: Vec<String> = queue.problems.iter().map(FieldError::to_string).collect();
    let waiting: Vec<Value> = snapshot
        .positions
        .get(name)
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(n, id)| {
            let (reason, message) = snapshot.why(name, id);
            json!({"position": n + 1, "group": id, "reason": reason, "message": message,
                "passed": snapshot.passed(id)})
        })
        .collect();
    let admitted: Vec<Value> = snapshot
        .admitted(name)
        .into_iter()
        .map(|(id, s)| json!({"group": id, "phase": s.phase, "reason": s.reason, "charged": s.charged}))
        .collect();
    json!({
        "name": name,
        "state": state(snapshot, name),
        "spec": queue.spec,
        "invalid": problems,
        "ignored": queue.spec.ignored(),
        "used": snapshot.usage.total(name),
        "status": snapshot.statuses.get(name),
        "admitted": admitted,
        "waiting": waiting,
    })
}

fn state(snapshot: &QueueSnapshot, name: &QueueName) -> String {
    let state = snapshot.statuses.get(name).and_then(|status: &QueueStatus| status.state);
    state.map_or_else(|| "Pending".to_owned(), |state| state.to_string())
}

fn order(snapshot: &QueueSnapshot, name: &QueueName) -> &'static str {
    match snapshot.queues.0[name].spec.dequeue_strategy {
        rcfarm_api::queue::spec::QueueStrategy::Fifo => "fifo",
        rcfarm_api::queue::spec::QueueStrategy::Traverse => "traverse",
    }
}

fn amounts(amounts: &ResourceList) -> String {
    if amounts.is_empty() { "-".to_owned() } else { amounts.to_string() }
}

pub(super) async fn get(context: &CommandContext, name: &QueueName) -> anyhow::Result<CliExit> {
    let snapshot = snapshot(context).await?;
    let queue = snapshot.queue(name)?;
    let status = snapshot.statuses.get(name).cloned().unwrap_or_default();
    context.show(&shown(&snapshot, name), || {
        let below: Vec<String> = queue.children.iter().map(QueueName::to_string).collect();
        let mut text = fields([
            ("name", name.to_string()),
            ("state", format!("{} (wanted: {:?})", state(&snapshot, name), queue.spec.state)),
            ("why", status.message.clone()),
            ("parent", or_dash(queue.spec.parent())),
            ("below it", below.join(", ")),
            ("priority", queue.spec.priority.to_string()),
            ("weight", queue.spec.weight.to_string()),
            ("order", order(&snapshot, name).to_owned()),
            ("max passes", queue.spec.max_passes.to_string()),
            ("used", amounts(snapshot.usage.total(name))),
            ("capability", amounts(&queue.spec.capability)),
            ("guarantee", amounts(&queue.spec.guarantee.resource)),
            ("scheduler", queue.spec.scheduler.to_string()),
            ("ignored", queue.spec.ignored().join(", ")),
            ("invalid", queue.problems.iter().map(|bad| format!("{bad}\n")).collect()),
        ]);
        let admitted = snapshot.admitted(name);
        if !admitted.is_empty() {
            text.push('\n');
            text.push_str(&table(
                &admitted,
                &[
                    ("ADMITTED", &|(id, _)| id.to_string()),
                    ("PHASE", &|(_, status)| status.phase.to_string()),
                    ("REASON", &|(_, status)| status.reason.to_string()),
                    ("CHARGED", &|(_, status)| amounts(&status.charged)),
                ],
            ));
        }
        let waiting: Vec<_> =
            (1..).zip(snapshot.positions.get(name).into_iter().flatten()).collect();
        if !waiting.is_empty() {
            text.push('\n');
            text.push_str(&table(
                &waiting,
                &[
                    ("POSITION", &|(n, _): &(usize, _)| n.to_string()),
                    ("WAITING", &|(_, id)| id.to_string()),
                    ("PASSED", &|(_, id)| snapshot.passed(id).to_string()),
                    ("REASON", &|(_, id)| or_dash(snapshot.why(name, id).0)),
                    ("WHY", &|(_, id)| snapshot.why(name, id).1),
                ],
            ));
        }
        text
    })
}
