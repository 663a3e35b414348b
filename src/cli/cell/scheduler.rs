//! The stored cells, with nodes and groups as they are now.

use std::sync::Arc;

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cluster::cells::CellsSnapshot;
use crate::placement::cells;
use rcfarm_api::FieldError;
use rcfarm_api::key;
use rcfarm_cells::{AffinityGroup, CellModel, GroupKey, LazyPreemptionStatus};
use rcfarm_store::Entry;

fn no_cells() -> anyhow::Error {
    failure("there are no cells", "describe them: rcfarm cell config apply FILE")
}

/// The stored configuration.
///
/// # Errors
/// There is none.
pub(super) async fn stored(context: &CommandContext) -> anyhow::Result<Entry> {
    context.get(&key::cell_config()).await?.ok_or_else(no_cells)
}

fn invalid(bad: &[FieldError]) -> anyhow::Error {
    let why = format!("{}: {}", key::cell_config(), FieldError::list(bad));
    failure(why, "correct it: rcfarm cell config apply FILE")
}

/// What the stored configuration describes, without nodes and groups.
///
/// # Errors
/// As [`read`].
pub(in crate::cli) async fn model(context: &CommandContext) -> anyhow::Result<CellModel> {
    let entry = stored(context).await?;
    let (_, model) = cells::decode(&entry.value).map_err(|bad| invalid(&bad))?;
    Ok(model)
}

/// The cells of the stored configuration.
///
/// # Errors
/// There are none, or their configuration is not valid.
pub(super) async fn read(context: &CommandContext) -> anyhow::Result<CellsSnapshot> {
    let read = CellsSnapshot::read(context.store.as_ref(), context.now()).await?;
    read.map_err(|bad| invalid(&bad))?.ok_or_else(no_cells)
}

/// Another configuration, with the nodes and groups as they are now.
pub(super) async fn with_model(
    context: &CommandContext,
    model: CellModel,
) -> anyhow::Result<CellsSnapshot> {
    Ok(CellsSnapshot::of(context.store.as_ref(), Arc::new(model), context.now()).await?)
}

/// What groups of the virtual clusters should know: that they are not as they were placed, or run as opportunistic.
pub(super) fn notes_of(cells: &CellsSnapshot, is_shown: impl Fn(&GroupKey) -> bool) -> Vec<String> {
    let rebuilt = cells.notes.iter().filter(|note| is_shown(&note.group));
    let rebuilt = rebuilt.map(|note| format!("group {}: {}", note.group, note.note));
    let lazy = |group: &AffinityGroup| {
        let LazyPreemptionStatus { preemptor, preemption_time } = group.lazy_preemption.as_ref()?;
        let by = GroupKey::new(group.key.virtual_cluster.clone(), preemptor);
        // With its own name: that is among the notes.
        let is_noted = is_shown(&group.key) && by != group.key;
        is_noted.then(|| {
            let key = &group.key;
            format!("group {key} runs on as opportunistic since {preemption_time:.0}: {by} has its cells")
        })
    };
    rebuilt.chain(cells.scheduler.groups().filter_map(lazy)).collect()
}
