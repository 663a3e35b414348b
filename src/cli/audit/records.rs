//! Other records that users write, such as CronJobs and drains, in `rcfarm audit verify` and `acknowledge`.

use std::collections::{BTreeMap, BTreeSet};

use rcfarm_api::audit::{FoldedRecords, LoggedRecord, RecordDifference, compare_logged_records};
use rcfarm_store::{Entry, Op};

use super::accept::{accept, unchanged};
use crate::cli::context::CommandContext;

/// Records whose stored value is not that of the log. Entries of other prefixes are ignored.
pub(super) fn differing(folded: &FoldedRecords, entries: &[Entry]) -> BTreeSet<RecordDifference> {
    let stored: BTreeMap<LoggedRecord, String> = entries
        .iter()
        .filter_map(|entry| {
            let record = LoggedRecord::of_key(&entry.key)?;
            let hash = record.hash(&entry.value)?;
            Some((record, hash))
        })
        .collect();
    compare_logged_records(folded, &stored)
}

/// Writes a record for each, by which the log has what is stored.
pub(super) async fn acknowledge(
    context: &CommandContext,
    differences: &BTreeSet<RecordDifference>,
    entries: &[Entry],
) -> anyhow::Result<()> {
    for RecordDifference { record, .. } in differences {
        let key = record.key();
        let stored = entries.iter().find(|entry| entry.key == key.as_str());
        let details = record.accepted(stored.map(|entry| &*entry.value), context.actor());
        let guards: [Op; 1] = [unchanged(key, entries)];
        accept(context, record.to_string(), guards, &details).await?;
    }
    Ok(())
}
