//! `--watch` of `rcfarm job list` and `rcfarm job get`: one line per change.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::find::{FoundJob, with_statuses};
use super::show::shown_status;
use crate::cli::context::CommandContext;
use crate::cli::failure::CliExit;
use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::status::JobStatus;
use rcfarm_api::key;
use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{Index, StoreError};

/// Interval between full reads.
const FULL_EVERY: Duration = Duration::from_secs(300);

/// Prints the jobs that `is_wanted` selects, then each change, until the command is ended.
pub(super) async fn watch(
    context: &CommandContext,
    is_wanted: impl Fn(&FoundJob) -> bool,
) -> anyhow::Result<CliExit> {
    let mut watch = TreeWatch::new(context.store.clone(), key::job_statuses(), FULL_EVERY);
    let mut known: BTreeMap<Namespaced, (Index, Option<u64>)> = BTreeMap::new();
    let mut is_first = true;
    let mut failures = 0;
    loop {
        let statuses = match watch.next().await {
            Ok(answer) => answer.value,
            Err(error @ StoreError::Unreachable { .. }) if is_first => return Err(error.into()),
            Err(error) if error.is_retryable() => {
                context.pause_after(&error, failures).await;
                failures += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        (is_first, failures) = (false, 0);
        let all = context.persist(async || with_statuses(context, &statuses).await).await?;
        let mut gone = std::mem::take(&mut known);
        for found in all.iter().filter(|found| is_wanted(found)) {
            let version = (found.uid(), found.status.as_ref().map(|status| status.revision));
            if gone.remove(&found.id) != Some(version) {
                print(context, &found.id, found.status.as_ref(), false)?;
            }
            known.insert(found.id.clone(), version);
        }
        for id in gone.into_keys() {
            print(context, &id, None, true)?;
        }
    }
}

fn print(
    context: &CommandContext,
    id: &Namespaced,
    status: Option<&JobStatus>,
    is_deleted: bool,
) -> anyhow::Result<()> {
    let now = context.now();
    let shown =
        json!({"time": now, "job": id, "deleted": is_deleted, "status": status.map(shown_status)});
    context.out.show_next(&shown, || {
        let what = match status {
            _ if is_deleted => "deleted".to_owned(),
            None => "no farm has looked at it yet".to_owned(),
            Some(status) => super::wait::summary(status),
        };
        format!("{now:.0}  {id}  {what}")
    })
}
