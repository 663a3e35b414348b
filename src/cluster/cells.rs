//! `rcfarm/cells/`: the configuration of cells.

use std::sync::Arc;

use crate::placement::cells;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::{FieldError, key};
use rcfarm_cells::CellModel;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::{Decoder, Entry, Prefix, Versioned, VersionedIndex};

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
