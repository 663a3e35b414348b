//! `rcfarm queue list`, `get`

use serde_json::{Value, json};

use super::snapshot::{QueueSnapshot, look};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{fields, or_dash, table};
use crate::ids::QueueName;
use crate::queue::amounts::Amounts;
use crate::queue::spec::BadField;
use crate::queue::status::QueueStatus;

pub(super) async fn list(console: &CommandContext) -> anyhow::Result<CliExit> {
    let look = look(console).await?;
    let all: Vec<Value> = look.queues.0.keys().map(|name| shown(&look, name)).collect();
    console.out.show(&all, || {
        if all.is_empty() {
            return "there are no queues; a farm makes the default one".to_owned();
        }
        let header = [
            "NAME",
            "STATE",
            "PARENT",
            "PRIORITY",
            "ORDER",
            "WAITING",
            "ADMITTED",
            "USED",
            "CAPABILITY",
        ];
        table(&header, look.queues.0.keys().map(|name| row(&look, name)))
    })?;
    Ok(CliExit::Ok)
}

/// What stands there, what is so, and what waits; the same in a list and alone.
fn shown(look: &QueueSnapshot, name: &QueueName) -> Value {
    let queue = &look.queues.0[name];
    let problems: Vec<String> = queue.problems.iter().map(BadField::to_string).collect();
    let waiting: Vec<Value> = look
        .positions
        .get(name)
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(n, id)| {
            let (reason, message) = look.why(name, id);
            json!({"position": n + 1, "group": id, "reason": reason, "message": message})
        })
        .collect();
    let admitted: Vec<Value> = look
        .admitted(name)
        .into_iter()
        .map(|(id, s)| json!({"group": id, "phase": s.phase, "reason": s.reason, "charged": s.charged}))
        .collect();
    json!({
        "name": name,
        "state": state(look, name),
        "spec": queue.spec,
        "invalid": problems,
        "ignored": queue.spec.ignored(),
        "used": look.usage.total(name),
        "status": look.statuses.get(name),
        "admitted": admitted,
        "waiting": waiting,
    })
}

fn state(look: &QueueSnapshot, name: &QueueName) -> String {
    let state = look.statuses.get(name).and_then(|status: &QueueStatus| status.state);
    state.map_or_else(|| "Pending".to_owned(), |state| state.to_string())
}

fn row(look: &QueueSnapshot, name: &QueueName) -> Vec<String> {
    let queue = &look.queues.0[name];
    vec![
        name.to_string(),
        state(look, name),
        or_dash(queue.spec.parent()),
        queue.spec.priority.to_string(),
        order(look, name).to_owned(),
        look.positions.get(name).map_or(0, Vec::len).to_string(),
        look.admitted(name).len().to_string(),
        amounts(look.usage.total(name)),
        amounts(&queue.spec.capability),
    ]
}

fn order(look: &QueueSnapshot, name: &QueueName) -> &'static str {
    match look.queues.0[name].spec.dequeue_strategy {
        crate::queue::spec::QueueStrategy::Fifo => "fifo",
        crate::queue::spec::QueueStrategy::Traverse => "traverse",
    }
}

fn amounts(amounts: &Amounts) -> String {
    if amounts.is_empty() { "-".to_owned() } else { amounts.to_string() }
}

pub(super) async fn get(console: &CommandContext, name: &QueueName) -> anyhow::Result<CliExit> {
    let look = look(console).await?;
    let queue = look.queue(name)?;
    let status = look.statuses.get(name).cloned().unwrap_or_default();
    console.out.show(&shown(&look, name), || {
        let below: Vec<String> = queue.children.iter().map(QueueName::to_string).collect();
        let mut text = fields([
            ("name", name.to_string()),
            ("state", format!("{} (wanted: {:?})", state(&look, name), queue.spec.state)),
            ("why", status.message.clone()),
            ("parent", or_dash(queue.spec.parent())),
            ("below it", below.join(", ")),
            ("priority", queue.spec.priority.to_string()),
            ("weight", queue.spec.weight.to_string()),
            ("order", order(&look, name).to_owned()),
            ("used", amounts(look.usage.total(name))),
            ("capability", amounts(&queue.spec.capability)),
            ("guarantee", amounts(&queue.spec.guarantee.resource)),
            ("scheduler", queue.spec.scheduler.to_string()),
            ("ignored", queue.spec.ignored().join(", ")),
            ("invalid", queue.problems.iter().map(|bad| format!("{bad}\n")).collect()),
        ]);
        let admitted = look.admitted(name);
        if !admitted.is_empty() {
            let rows = admitted.iter().map(|(id, s)| {
                vec![id.to_string(), s.phase.to_string(), s.reason.to_string(), amounts(&s.charged)]
            });
            text.push('\n');
            text.push_str(&table(&["ADMITTED", "PHASE", "REASON", "CHARGED"], rows));
        }
        let waiting = look.positions.get(name).map_or(&[][..], Vec::as_slice);
        if !waiting.is_empty() {
            let rows = waiting.iter().enumerate().map(|(n, id)| {
                let (reason, message) = look.why(name, id);
                vec![(n + 1).to_string(), id.to_string(), or_dash(reason), message]
            });
            text.push('\n');
            text.push_str(&table(&["POSITION", "WAITING", "REASON", "WHY"], rows));
        }
        text
    })?;
    Ok(CliExit::Ok)
}
