//! The stored cells, with nodes and groups as they are now.

use std::sync::Arc;

use crate::cli::context::CommandContext;
use crate::cli::failure::failure;
use crate::cluster::queues::GroupStatusIndex;
use crate::cluster::snapshot::ClusterSnapshot;
use crate::placement::cells::{self, Holders};
use rcfarm_api::FieldError;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_cells::{CellModel, CellScheduler, RebuildNote};
use rcfarm_store::Entry;
use rcfarm_store::cache::read_once;

/// The stored configuration.
///
/// # Errors
/// There is none.
pub(super) async fn stored(context: &CommandContext) -> anyhow::Result<Entry> {
    context.get(&key::cell_config()).await?.ok_or_else(|| {
        failure("there are no cells", "describe them: rcfarm cell config apply FILE")
    })
}

/// The cells with the nodes as they are now.
///
/// # Errors
/// There are no cells, or their configuration is not valid.
pub(super) async fn scheduler(context: &CommandContext) -> anyhow::Result<CellScheduler> {
    let entry = stored(context).await?;
    let (_, model) = cells::decode(&entry.value).map_err(|bad| {
        let why = format!("{}: {}", key::cell_config(), FieldError::list(&bad));
        failure(why, "correct it: rcfarm cell config apply FILE")
    })?;
    Ok(rebuilt(context, Arc::new(model)).await?.0)
}

/// Cells with the nodes and groups as they are now, and what is different for groups that were placed on other cells.
pub(super) async fn rebuilt(
    context: &CommandContext,
    model: Arc<CellModel>,
) -> anyhow::Result<(CellScheduler, Vec<RebuildNote>)> {
    let store = context.store.as_ref();
    let prefixes = [key::labels(LabelKind::Node), key::nodes(), key::allocations()];
    let cluster = ClusterSnapshot::read_once(store, prefixes).await?;
    let statuses: GroupStatusIndex = read_once(store, &key::pod_group_statuses()).await?;
    let held = statuses
        .0
        .iter()
        .filter_map(|(id, stored)| Some((id, cells::held(stored.value.as_ref()?)?)));
    let holders: Holders<'_> = held.collect();
    let health = cells::node_health(&model, &cluster.fleet(), &holders);
    Ok(cells::rebuild(&model, &health, &holders, context.now()))
}
