//! `rcfarm node get`.

use serde_json::json;

use super::list::{NodeRow, label_words, last_heard_of};
use super::pods::{pods, pods_table};
use super::snapshot::find;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::{age, fields, or_dash};
use rcfarm_api::Timestamp;
use rcfarm_api::ids::NodeName;

#[derive(clap::Args)]
pub struct NodeGetArgs {
    /// The node
    #[arg(value_name = "NODE")]
    node: NodeName,
}

pub(super) async fn run(context: &CommandContext, args: &NodeGetArgs) -> anyhow::Result<CliExit> {
    let node = find(context, &args.node).await?;
    let pods = pods(context, &node).await?;
    let heard = last_heard_of(context, &node.name, pods.iter().map(|pod| &pod.pod_id)).await?;
    let intended = || pods.iter().filter(|pod| pod.intended);
    let count = (intended().count(), intended().filter(|pod| pod.ended).count());
    let row = NodeRow::of(&node, count, heard);
    let record = node.entry.as_ref().map(|entry| {
        serde_json::from_slice(&entry.value)
            .unwrap_or_else(|_| json!(String::from_utf8_lossy(&entry.value)))
    });
    let mut shown = serde_json::to_value(&row)?;
    shown["record"] = json!(record);
    shown["pods"] = json!(pods);
    context.show(&shown, || {
        let now = context.now();
        let mut rows = vec![
            ("node", row.name.to_string()),
            ("state", node.state_words()),
            ("address", or_dash(row.address.as_ref())),
            ("capacity", or_dash(row.capacity.as_ref())),
            ("agent", or_dash(row.agent_version.as_ref())),
            ("session", or_dash(row.agent_session.as_ref())),
            ("heard", row.heard(now)),
            ("labels", label_words(&row.labels)),
        ];
        rows.extend(row.drain_deadline.map(|at| ("drain until", deadline_words(at, now))));
        rows.extend(row.invalid.iter().map(|why| ("invalid", why.clone())));
        if pods.is_empty() {
            rows.push(("pods", "none".to_owned()));
            return fields(rows);
        }
        format!("{}\n{}", fields(rows), pods_table(&pods))
    })
}

fn deadline_words(at: Timestamp, now: Timestamp) -> String {
    if at < now { format!("{at:.0}, over for {}", age(at, now)) } else { format!("{at:.0}") }
}
