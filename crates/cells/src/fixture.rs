//! Cells for unit tests: a rack of the nodes n0 and n1 with two devices each.

use std::sync::Arc;

use crate::{CellConfig, CellHealthiness, CellScheduler};

/// The rack with the fields `more` of n1, and these virtual clusters; no group has cells yet.
pub(crate) fn rack(more: &str, clusters: &str, healthy: &[&str]) -> CellScheduler {
    let config = format!(
        "
physicalCluster:
  cellTypes:
    NODE: {{childCellType: GPU, childCellNumber: 2, isNodeLevel: true}}
    RACK: {{childCellType: NODE, childCellNumber: 2}}
  physicalCells:
  - {{cellType: RACK, cellChildren: [{{cellAddress: n0}}, {{cellAddress: n1{more}}}]}}
virtualClusters: {clusters}
"
    );
    let model = CellConfig::parse(&config).unwrap().validate().unwrap();
    let mut scheduler = CellScheduler::new(Arc::new(model));
    scheduler.set_nodes(healthy.iter().map(|&node| (node, CellHealthiness::Healthy)));
    scheduler
}
