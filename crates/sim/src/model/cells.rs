//! The configuration of cells as the store has it, read without the program, and since when groups hold cells.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::jobs::Pair;
use crate::facts::VIEW;
use rcfarm_api::cells::{AffinityGroupRecord, numbers};
use rcfarm_api::pod_group::spec::GroupId;
use rcfarm_api::pod_group::status::PodGroupStatus;

/// A device: its node and its number there.
pub type Leaf = (String, i32);

/// The devices of a group's places.
pub fn leaves(record: &AffinityGroupRecord) -> impl Iterator<Item = Leaf> + '_ {
    record.pods.iter().flat_map(|pod| {
        numbers(&pod.devices).into_iter().map(move |device| (pod.node.clone(), device))
    })
}

/// The cells, and since when groups hold some.
#[derive(Default)]
pub struct CellHistory {
    config: Option<Value>,
    /// When the configuration last changed; `None`: it is that of the beginning.
    changed: Option<Duration>,
    /// Since when groups hold or reserve what they do.
    since: BTreeMap<GroupId, Duration>,
}

/// What a group holds, or reserves.
fn held(status: &PodGroupStatus) -> Option<&AffinityGroupRecord> {
    let held = status.placement.as_ref().and_then(|place| place.cells.as_deref());
    held.or(status.reservation.as_deref())
}

impl CellHistory {
    /// Takes over a configuration.
    pub fn configure(&mut self, at: Duration, value: Option<&[u8]>) {
        let config = value.and_then(|value| serde_json::from_slice(value).ok());
        if self.config.is_some() && self.config != config {
            self.changed = Some(at);
        }
        self.config = config;
    }

    /// Notes since when a group holds what it does.
    pub fn note(&mut self, at: Duration, id: &GroupId, (before, after): &Pair<PodGroupStatus>) {
        let places = |status: &PodGroupStatus| -> Option<Vec<Leaf>> {
            held(status).map(|record| leaves(record).collect())
        };
        let before = before.as_ref().and_then(|status| places(status));
        let after = after.as_ref().and_then(|status| places(status));
        match after {
            None => drop(self.since.remove(id)),
            Some(_) if after == before => {}
            Some(_) => drop(self.since.insert(id.clone(), at)),
        }
    }

    /// Whether the configuration has changed since the beginning.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed.is_some()
    }

    /// Whether a group certainly got what it holds under the present configuration.
    #[must_use]
    pub fn is_of_present(&self, id: &GroupId) -> bool {
        let since = self.since.get(id).copied().unwrap_or_default();
        self.changed.is_none_or(|changed| since > changed + VIEW)
    }

    /// Number of devices of a cell of a type. `None`: there is no such type.
    fn devices(&self, of: &str) -> Option<u64> {
        let types = self.config.as_ref()?["physicalCluster"]["cellTypes"].as_object()?;
        let (mut count, mut of) = (1, of);
        while let Some(cell) = types.get(of) {
            count *= cell["childCellNumber"].as_u64()?;
            of = cell["childCellType"].as_str()?;
        }
        Some(count)
    }

    /// Devices that a virtual cluster was promised: in its virtual cells, and in its pinned ones.
    #[must_use]
    pub fn promised(&self, cluster: &str) -> Option<u64> {
        let cluster = self.config.as_ref()?["virtualClusters"].get(cluster)?;
        let virtuals = cluster["virtualCells"].as_array().into_iter().flatten();
        let mut sum = 0;
        for cell in virtuals {
            let of = cell["cellType"].as_str()?.rsplit('.').next()?;
            sum += cell["cellNumber"].as_u64()? * self.devices(of)?;
        }
        // Each pinned cell is a node.
        let pinned = cluster["pinnedCells"].as_array().map_or(0, Vec::len) as u64;
        Some(sum + pinned * self.devices("NODE")?)
    }

    /// The physical cell of a type above a node: its number. `None`: that is not known.
    #[must_use]
    pub fn above(&self, node: &str, of: &str) -> Option<usize> {
        let racks = self.config.as_ref()?["physicalCluster"]["physicalCells"].as_array()?;
        let has = |cell: &Value| cell["cellAddress"] == *node;
        let in_rack =
            |rack: &Value| rack["cellChildren"].as_array().is_some_and(|all| all.iter().any(has));
        match of {
            "RACK" => racks.iter().position(in_rack),
            "NODE" => {
                let nodes = racks
                    .iter()
                    .flat_map(|rack| rack["cellChildren"].as_array().into_iter().flatten());
                nodes.into_iter().position(has)
            }
            _ => None,
        }
    }
}
