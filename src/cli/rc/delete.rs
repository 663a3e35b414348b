//! `rcfarm rc delete`
//!
//! The command sets the count to 0, waits until the owner farm has removed all pods, and deletes record, labels, status
//! and doorbell in one transaction. A crash in between leaves a controller with count 0; `rc delete` again completes it.

use std::time::Duration;

use serde_json::json;

use super::change::{about, set_count};
use super::find::{FoundRc, find, find_to_change};
use crate::cli::context::CommandContext;
use crate::cli::failure::{CliExit, failure};
use crate::cli::output::{Progress, duration};
use crate::cluster::pods::PodLabels;
use rcfarm_api::audit::{ControllerChange, Details};
use rcfarm_api::ids::{NodeName, PodRef, RcId};
use rcfarm_api::key::{self, LabelKind};
use rcfarm_store::cache::read_once;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Op, Query, StoreError};

#[derive(clap::Args)]
pub struct RcDeleteArgs {
    /// The controller: its id, an unambiguous beginning of it, or its pod's id
    #[arg(value_name = "RC")]
    rc: String,
    /// Delete the record and leave its pods running, as orphans
    #[arg(long)]
    force: bool,
    /// Give up waiting for the pods' removal after this long
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

/// Interval of reads of the pods while the status does not change.
const READ_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(context: &CommandContext, args: &RcDeleteArgs) -> anyhow::Result<CliExit> {
    let found = find_to_change(context, &args.rc).await?;
    let pods = pods_of(context, found.id).await?;
    let (found, orphans) = if pods.is_empty() || args.force {
        (found, pods)
    } else {
        (remove_pods(context, found, pods.len(), args.timeout).await?, Vec::new())
    };
    delete_record(context, &found, &orphans).await?;
    let nodes: Vec<&NodeName> = orphans.iter().map(|place| &place.node).collect();
    let shown =
        json!({"id": found.id, "pod_id": found.pod_id(), "deleted": true, "orphans": nodes});
    context.show(&shown, || {
        let mut text = format!("{}: deleted", found.title());
        for place in &orphans {
            text.push_str(&format!("\norphan: pod {} on {}", place.pod, place.node));
        }
        text
    })?;
    if !orphans.is_empty() {
        context.note("the orphans keep running; to remove them: rcfarm rc orphans --remove");
    }
    Ok(CliExit::Ok)
}

async fn pods_of(context: &CommandContext, id: RcId) -> anyhow::Result<Vec<PodRef>> {
    let pods: PodLabels = read_once(context.store.as_ref(), &key::labels(LabelKind::Pod)).await?;
    Ok(pods.of_rc(id).map(|(place, _)| place.clone()).collect())
}

/// Makes the owner farm remove all pods. Returns the record as it is then.
async fn remove_pods(
    context: &CommandContext,
    found: FoundRc,
    count: usize,
    timeout: Duration,
) -> anyhow::Result<FoundRc> {
    let title = found.title();
    let refuse = |why: &str, hint: String| {
        Err(failure(format!("{title} has {count} pods, and {why}; nothing was changed"), hint))
    };
    let id = found.id;
    let force = format!("or leave them running: rcfarm rc delete --force {id}");
    if found.spec().is_err() {
        return refuse("no farm can work on its record", format!("correct the record, {force}"));
    }
    if found.record.as_ref().is_ok_and(|record| record.disabled) {
        let hint = format!("let its pods be changed: rcfarm rc enable {id}; {force}");
        return refuse("it is disabled, so no farm removes them", hint);
    }
    if context.get(&key::rc_lock(id)).await?.is_none_or(|entry| entry.session.is_none()) {
        let hint = format!("see which farms there are: rcfarm farm list; {force}");
        return refuse("no farm owns it, so nobody removes them", hint);
    }
    let rc = id.to_string();
    set_count(context, &rc, 0).await?;
    none_left(context, id, timeout).await?;
    let found = find(context, &rc).await?;
    if found.desired() != Some(0) {
        return Err(failure(
            format!("{title} was scaled by somebody else while its pods were being removed"),
            "see by whom: rcfarm audit list --since 10m",
        ));
    }
    Ok(found)
}

/// Waits until no pod is left. Pods are counted by their labels, because an owner of p2 writes no status.
async fn none_left(context: &CommandContext, id: RcId, timeout: Duration) -> anyhow::Result<()> {
    let give_up = monotonic() + timeout;
    let mut progress = Progress::default();
    let mut query = Query::PLAIN;
    loop {
        let left = pods_of(context, id).await?.len();
        if left == 0 {
            return Ok(());
        }
        progress.say(&format!("{left} pods left"));
        if monotonic() >= give_up {
            return Err(failure(
                format!(
                    "gave up waiting after {}: {left} pods left",
                    humantime::format_duration(timeout)
                ),
                format!("its count is 0 now; what holds it up: rcfarm rc explain {id}"),
            ));
        }
        // A farm of rcfarm writes the status after each change. For others the pods are read at intervals.
        let answer = context.store.get(&key::rc_status(id), query).await?;
        query = Query::after(answer.index, READ_EVERY);
    }
}

/// Deletes the record (if unchanged), its labels, doorbell and status in one transaction.
///
/// Only farms need the right to write statuses. If the user's token lacks it, the status stays.
async fn delete_record(
    context: &CommandContext,
    found: &FoundRc,
    orphans: &[PodRef],
) -> anyhow::Result<()> {
    let orphans = orphans.iter().map(|place| place.node.clone()).collect();
    let change = ControllerChange { orphans, ..about(context, found, None) };
    let details = Details::ControllerDeleted(change);
    let mut ops = vec![
        Op::DeleteCas { key: key::rc(found.id), index: found.entry.modify_index },
        Op::Delete { key: key::rc_labels(found.id) },
        Op::Delete { key: key::rc_bell(found.id) },
        Op::Delete { key: key::rc_status(found.id) },
    ];
    let committed = match context.commit(ops.clone(), &details, None).await {
        Err(error) if is_forbidden(&error) => {
            ops.pop();
            let committed = context.commit(ops, &details, None).await?;
            let status = key::rc_status(found.id);
            context.note(format!("{status} stays: the token may not delete it"));
            committed
        }
        committed => committed?,
    };
    committed.map_err(|_| {
        let title = found.title();
        let why = format!("{title}: somebody changed the record meanwhile; it is not deleted");
        failure(why, "look at it, then try again")
    })?;
    Ok(())
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Forbidden { .. }))
}
