//! Cells: HiveD's placement by topology, on the nodes of the cluster. Pure.
//!
//! `rcfarm/cells/config` is HiveD's configuration ([`CellConfig`]). A node of a cell can be used if farms may place pods
//! on it: it has labels, and is ready.
//!
//! Keys read and written: none; callers read `rcfarm/cells/config`, `labels/node/` and `rcfarm/nodes/`.

use rcfarm_api::ids::NodeName;
use rcfarm_api::{FieldError, Stored};
use rcfarm_cells::{CellConfig, CellHealthiness, CellModel};

use super::capacity::Fleet;

/// The configuration in a stored record, and the cells that it describes.
///
/// # Errors
/// One per wrong field.
pub fn decode(value: &[u8]) -> Result<(CellConfig, CellModel), Vec<FieldError>> {
    let config = CellConfig::decode(value).map_err(|bad| vec![bad])?;
    let model = config.validate()?;
    Ok((config, model))
}

/// Which nodes of the cells can be used.
pub fn node_health<'m>(
    model: &'m CellModel,
    fleet: &'m Fleet,
) -> impl Iterator<Item = (&'m str, CellHealthiness)> {
    model.nodes().map(|name| {
        let is_fit = name.parse::<NodeName>().is_ok_and(|node| {
            fleet.labels.nodes.contains_key(&node) && !fleet.unfit.contains(&node)
        });
        (name, if is_fit { CellHealthiness::Healthy } else { CellHealthiness::Bad })
    })
}
