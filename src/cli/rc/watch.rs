//! `rcfarm rc watch`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::find::{find, title};
use super::list::status_of;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Index, StoreError};

#[derive(clap::Args)]
pub struct WatchArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id; all when left out
    #[arg(value_name = "RC")]
    rc: Option<String>,
}

const FULL_EVERY: Duration = Duration::from_secs(300);

pub(super) async fn run(context: &CommandContext, args: &WatchArgs) -> anyhow::Result<CliExit> {
    let only = match &args.rc {
        Some(rc) => Some(find(context, rc).await?.id),
        None => None,
    };
    let names: BTreeMap<RcId, PodId> = super::find::all(context)
        .await?
        .0
        .iter()
        .filter_map(|found| Some((found.id, found.pod_id()?)))
        .collect();
    let mut watch = TreeWatch::new(context.store.clone(), key::rc_statuses(), FULL_EVERY);
    let mut known: BTreeMap<RcId, Index> = BTreeMap::new();
    let mut failures = 0;
    loop {
        let answer = match watch.next().await {
            Ok(answer) => answer,
            Err(error) if error.is_retryable() && !is_first(&known, &error) => {
                context.pause_after(&error, failures).await;
                failures += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        failures = 0;
        for entry in &answer.value {
            let Some((id, status)) = status_of(entry) else { continue };
            if only.is_some_and(|only| only != id)
                || known.insert(id, entry.modify_index) == Some(entry.modify_index)
            {
                continue;
            }
            print(context, id, names.get(&id), &status)?;
        }
    }
}

/// Whether the agent was never reached: its address is then more likely wrong than the agent down.
fn is_first(known: &BTreeMap<RcId, Index>, error: &StoreError) -> bool {
    known.is_empty() && matches!(error, StoreError::Unreachable { .. })
}

fn print(
    context: &CommandContext,
    id: RcId,
    pod: Option<&PodId>,
    status: &RcStatus,
) -> anyhow::Result<()> {
    let now = context.now();
    let owner = status.owner.as_ref().map(|owner| &owner.farm);
    let shown = json!({
        "time": now, "id": id, "pod_id": pod, "state": status.state(), "status": status,
    });
    context.out.show_next(&shown, || {
        let replicas = status.replicas;
        let mut text = format!(
            "{:.0}  {}  {}/{} pods, {} healthy  {}",
            now,
            title(pod, id),
            replicas.current,
            replicas.desired,
            replicas.healthy,
            status.state(),
        );
        if let Some(owner) = owner {
            text.push_str(&format!("  by {owner}"));
        }
        let failed = status.conditions.iter().find(|condition| !condition.status);
        if let Some(message) = failed.map(|condition| &condition.message).filter(|m| !m.is_empty())
        {
            text.push_str(&format!("  ({message})"));
        }
        text
    })
}
