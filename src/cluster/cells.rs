//! `rcfarm/cells/`: the configuration of cells.

use std::sync::Arc;

use super::queues::GroupStatusIndex;
use super::snapshot::ClusterSnapshot;
use crate::placement::capacity::Fleet;
use crate::placement::cells::{self, Holders};
use rcfarm_api::cells::{AffinityGroupRecord, GroupKey};
use rcfarm_api::ids::ObjectName;
use rcfarm_api::key::LabelKind;
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::{FieldError, Timestamp, key};
use rcfarm_cells::{CellModel, CellScheduler, RebuildNote};
use rcfarm_store::cache::read_once;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Decoder, Entry, Prefix, Query, Reader, StoreError, Versioned, VersionedIndex};

/// The configured cells, or all that is wrong with their record.
pub type StoredCells = Versioned<Result<Arc<CellModel>, Vec<FieldError>>>;

/// Decodes `rcfarm/cells/config`.
pub struct CellConfigDecoder;

impl Decoder for CellConfigDecoder {
    type Key = ObjectName;
    type Value = Result<Arc<CellModel>, Vec<FieldError>>;

    fn key(prefix: &Prefix, key: &str) -> Option<ObjectName> {
        (key == key::cell_config().as_str()).then_some(prefix.tail(key)?.parse().ok()?)
    }

    fn decode(_: &ObjectName, entry: &Entry) -> Option<Self::Value> {
        let decoded = match enabled(Failpoint::QuotaIgnored) {
            true => cells::decode(&unbounded(&entry.value)),
            false => cells::decode(&entry.value),
        };
        Some(decoded.map(|(_, model)| Arc::new(model)))
    }
}

/// For [`Failpoint::QuotaIgnored`]: a configuration whose first virtual cluster has twice as many cells, and whose others
/// have none.
fn unbounded(value: &[u8]) -> Vec<u8> {
    let mut config: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    let clusters = config.get_mut("virtualClusters").and_then(|all| all.as_object_mut());
    for (n, cluster) in clusters.into_iter().flat_map(|all| all.values_mut()).enumerate() {
        if n > 0 {
            *cluster = serde_json::json!({});
        } else if let Some(number) = cluster.pointer_mut("/virtualCells/0/cellNumber") {
            *number = serde_json::json!(2 * number.as_u64().unwrap_or(1));
        }
    }
    config.to_string().into_bytes()
}

/// `rcfarm/cells/`
pub type CellConfigIndex = VersionedIndex<CellConfigDecoder>;

/// The configuration; `None`: there are no cells.
#[must_use]
pub fn stored(index: &CellConfigIndex) -> Option<&Arc<StoredCells>> {
    index.0.values().next()
}

/// Cells with nodes and groups as they are stored at one time, from one-shot reads.
pub struct CellsSnapshot {
    /// Who has what.
    pub scheduler: CellScheduler,
    /// What is different for groups that were placed on other cells.
    pub notes: Vec<RebuildNote>,
    /// The nodes.
    pub fleet: Fleet,
    /// Statuses of all groups.
    pub statuses: GroupStatusIndex,
}

impl CellsSnapshot {
    /// The cells of the stored configuration. `Ok(Ok(None))`: there are none; `Ok(Err(_))`: the configuration is wrong.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn read(
        reader: &dyn Reader,
        now: Timestamp,
    ) -> Result<Result<Option<CellsSnapshot>, Vec<FieldError>>, StoreError> {
        let Some(entry) = reader.get(&key::cell_config(), Query::PLAIN).await?.value else {
            return Ok(Ok(None));
        };
        match cells::decode(&entry.value) {
            Ok((_, model)) => Ok(Ok(Some(CellsSnapshot::of(reader, Arc::new(model), now).await?))),
            Err(bad) => Ok(Err(bad)),
        }
    }

    /// Another configuration, with the nodes and groups as they are now.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub async fn of(
        reader: &dyn Reader,
        model: Arc<CellModel>,
        now: Timestamp,
    ) -> Result<CellsSnapshot, StoreError> {
        let prefixes = [key::labels(LabelKind::Node), key::nodes(), key::allocations()];
        let cluster = ClusterSnapshot::read_once(reader, prefixes).await?;
        let statuses: GroupStatusIndex = read_once(reader, &key::pod_group_statuses()).await?;
        let fleet = cluster.fleet();
        let (scheduler, notes) = {
            let holders: Holders<'_> = holders(&statuses).collect();
            let health = cells::node_health(&model, &fleet, &holders);
            cells::rebuild(&model, &health, &holders, now)
        };
        Ok(CellsSnapshot { scheduler, notes, fleet, statuses })
    }

    /// The PodGroup that holds or reserves cells as a group, and what it has.
    #[must_use]
    pub fn holder(&self, key: &GroupKey) -> Option<(&GroupId, &AffinityGroupRecord)> {
        holders(&self.statuses).find(|(_, record)| record.request.key == *key)
    }
}

/// Groups that hold or reserve cells.
pub fn holders(
    statuses: &GroupStatusIndex,
) -> impl Iterator<Item = (&GroupId, &AffinityGroupRecord)> {
    statuses.0.iter().filter_map(|(id, stored)| Some((id, cells::held(stored.value.as_ref()?)?)))
}
