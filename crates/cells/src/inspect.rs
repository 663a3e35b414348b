//! What can be seen from outside.

use crate::machine::CellState;
use crate::scheduler::CellScheduler;

impl CellScheduler {
    /// State ([`CellState`]) and priority of a device.
    pub fn leaf(&self, node: &str, device: i32) -> Option<(&'static str, i32)> {
        let model = self.model();
        let &node = model.nodes.get(node)?;
        let &leaf = model.devices.get(&(node, device))?;
        let (user, reserver) = self.state.occupants(leaf);
        let state = CellState::of(user.is_some(), reserver.is_some());
        Some((state.as_str(), self.state.physical[leaf as usize].top()))
    }

    /// Preassigned cells of a virtual cluster that are doomed to be bad, with the physical cell that each stands for.
    pub fn doomed(&self) -> Vec<(String, String)> {
        let model = self.model();
        let pairs = self.state.doomed.iter();
        pairs
            .map(|(&v, &p)| {
                (model.virtuals.address(v).to_owned(), model.physical.address(p).to_owned())
            })
            .collect()
    }

    /// Whether each unused preassigned cell of a virtual cluster in a chain is healthy.
    pub fn free_preassigned(&self, vc: &str, chain: &str) -> Vec<bool> {
        let model = self.model();
        let cells = model.vcs.get(vc).into_iter().flat_map(|vc| vc.preassigned.values().flatten());
        cells
            .copied()
            .filter(|&cell| model.chain_of(&model.virtuals, cell).name == chain)
            .filter(|&cell| self.state.virtuals[cell as usize].total() == 0)
            .map(|cell| self.state.virtual_healthy(cell))
            .collect()
    }
}
