//! `rcfarm/cells/`: the configuration of cells.

use std::sync::Arc;

use crate::placement::cells;
use rcfarm_api::ids::ObjectName;
use rcfarm_api::{FieldError, key};
use rcfarm_cells::CellModel;
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
        Some(cells::decode(&entry.value).map(|(_, model)| Arc::new(model)))
    }
}

/// `rcfarm/cells/`
pub type CellConfigIndex = VersionedIndex<CellConfigDecoder>;

/// The configuration; `None`: there are no cells.
#[must_use]
pub fn stored(index: &CellConfigIndex) -> Option<&Arc<StoredCells>> {
    index.0.values().next()
}
