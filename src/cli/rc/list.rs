//! `rcfarm rc list`

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::find::{FoundRc, all, short};
use super::foreign::{CountedPods, OTHER_FARM, count_pods, owned_elsewhere};
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use crate::cli::output::or_dash;
use rcfarm_api::Stored;
use rcfarm_api::ids::{PodId, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::{Labels, Selector, decode_labels};
use rcfarm_api::rc::status::{RcStatus, Replicas};
use rcfarm_store::Entry;

#[derive(clap::Args)]
pub struct RcListArgs {
    /// Only controllers whose own labels match
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
}

#[derive(Serialize)]
pub(super) struct RcRow {
    pub(super) id: RcId,
    pub(super) pod_id: Option<PodId>,
    pub(super) replicas_desired: Option<i64>,
    pub(super) disabled: bool,
    pub(super) node_selector: Option<String>,
    /// Counts of pods in the status. `None`: there is no status yet.
    pub(super) replicas: Option<Replicas>,
    /// `AsDesired`, `Pending`, or the reason of the first condition that does not hold.
    pub(super) state: String,
    pub(super) owner: Option<String>,
    /// Why the record is invalid.
    pub(super) invalid: Option<String>,
}

pub(super) async fn run(context: &CommandContext, args: &RcListArgs) -> anyhow::Result<CliExit> {
    let (found, strange) = all(context).await?;
    let statuses = statuses(context).await?;
    let wanted = match &args.selector {
        Some(selector) => Some(matching(context, selector).await?),
        None => None,
    };
    let rows: Vec<RcRow> = found
        .iter()
        .filter(|found| wanted.as_ref().is_none_or(|ids| ids.contains_key(&found.id)))
        .map(|found| row(found, statuses.get(&found.id)))
        .collect();
    let rows = with_other_farms(context, rows).await?;
    for key in strange {
        context.note(format!("{key} stands among the records and is none: its name is no UUID"));
    }
    let replicas =
        |row: &RcRow, count: fn(&Replicas) -> u32| or_dash(row.replicas.as_ref().map(count));
    context.show_rows(
        &rows,
        "there are no replication controllers",
        &[
            ("ID", &|row| short(row.id)),
            ("POD", &|row| or_dash(row.pod_id.as_ref())),
            ("PODS", &|row| {
                format!("{}/{}", replicas(row, |r| r.current), or_dash(row.replicas_desired))
            }),
            ("HEALTHY", &|row| replicas(row, |r| r.healthy)),
            ("STATE", &|row| row.state.clone()),
            ("OWNER", &|row| or_dash(row.owner.as_ref())),
            ("NODES", &|row| match row.node_selector.as_deref() {
                Some("") => "(all)".to_owned(),
                selector => or_dash(selector),
            }),
        ],
    )
}

/// Fills in what farms of other programs do not write: rows whose record nobody of ours has seen, and another session
/// owns.
async fn with_other_farms(
    context: &CommandContext,
    mut rows: Vec<RcRow>,
) -> anyhow::Result<Vec<RcRow>> {
    let is_unseen = |row: &&RcRow| row.state == "Pending" && row.invalid.is_none();
    if !rows.iter().any(|row| is_unseen(&row)) {
        return Ok(rows);
    }
    let mut elsewhere = owned_elsewhere(context).await?;
    let unseen: BTreeSet<RcId> = rows.iter().filter(is_unseen).map(|row| row.id).collect();
    elsewhere.retain(|id| unseen.contains(id));
    let counted = count_pods(context, &elsewhere).await?;
    for row in &mut rows {
        let (Some(pods), Some(desired)) = (counted.get(&row.id), row.replicas_desired) else {
            continue;
        };
        let CountedPods { current, healthy } = *pods;
        let desired = u32::try_from(desired).unwrap_or_default();
        row.replicas = Some(Replicas { desired, current, healthy, eligible: 0 });
        row.owner = Some(OTHER_FARM.to_owned());
        if current == desired {
            row.state = "AsDesired".to_owned();
        }
    }
    Ok(rows)
}

pub(super) async fn statuses(context: &CommandContext) -> anyhow::Result<BTreeMap<RcId, RcStatus>> {
    let entries = context.list(&key::rc_statuses()).await?;
    Ok(entries.iter().filter_map(status_of).collect())
}

/// The controller and status of an entry under `status/replication_controllers/`. `None` for keys of other programs.
pub(super) fn status_of(entry: &Entry) -> Option<(RcId, RcStatus)> {
    let id = key::rc_statuses().tail(&entry.key)?.strip_suffix("/rcfarm")?.parse().ok()?;
    Some((id, RcStatus::decode(&entry.value).ok()?))
}

async fn matching(
    context: &CommandContext,
    selector: &Selector,
) -> anyhow::Result<BTreeMap<RcId, Labels>> {
    let prefix = key::labels(LabelKind::ReplicationController);
    let entries = context.list(&prefix).await?;
    let labelled = entries.iter().filter_map(|entry| {
        let id = prefix.tail(&entry.key)?.parse().ok()?;
        Some((id, decode_labels(&entry.value).ok()?))
    });
    Ok(labelled.filter(|(_, labels)| selector.matches(labels)).collect())
}

pub(super) fn row(found: &FoundRc, status: Option<&RcStatus>) -> RcRow {
    let spec = found.spec();
    let record = found.record.as_ref().ok();
    let current = status.filter(|status| status.observed_index >= found.entry.modify_index);
    let state = match (&spec, current) {
        (Err(_), _) => "Invalid".to_owned(),
        (Ok(spec), _) if spec.disabled => "Disabled".to_owned(),
        (Ok(_), None) => "Pending".to_owned(),
        (Ok(_), Some(status)) => status.state(),
    };
    RcRow {
        id: found.id,
        pod_id: found.pod_id(),
        replicas_desired: found.desired(),
        disabled: record.is_some_and(|record| record.disabled),
        node_selector: record.map(|record| record.node_selector.clone()),
        replicas: status.map(|status| status.replicas),
        state,
        owner: status.and_then(|status| Some(status.owner.as_ref()?.farm.to_string())),
        invalid: spec.err().map(|bad| bad.to_string()),
    }
}
