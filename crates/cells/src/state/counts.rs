//! How many leaves of a cell are used at which priority.

use crate::model::{CellPriority, FREE_PRIORITY};

/// Used leaves by priority, highest priority first. Few priorities occur in one cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LeafCounts(Vec<(CellPriority, u32)>);

impl LeafCounts {
    pub fn add(&mut self, priority: CellPriority) {
        match self.0.iter().position(|&(at, _)| at <= priority) {
            Some(n) if self.0[n].0 == priority => self.0[n].1 += 1,
            Some(n) => self.0.insert(n, (priority, 1)),
            None => self.0.push((priority, 1)),
        }
    }

    pub fn remove(&mut self, priority: CellPriority) {
        if let Some(n) = self.0.iter().position(|&(at, _)| at == priority) {
            self.0[n].1 -= 1;
            if self.0[n].1 == 0 {
                self.0.remove(n);
            }
        }
    }

    /// The highest priority: that of the cell.
    pub fn top(&self) -> CellPriority {
        self.0.first().map_or(FREE_PRIORITY, |&(priority, _)| priority)
    }

    /// Leaves used at `priority`.
    pub fn at(&self, priority: CellPriority) -> u32 {
        self.0.iter().find(|&&(at, _)| at == priority).map_or(0, |&(_, count)| count)
    }

    /// Leaves used at `priority` or a higher one.
    pub fn from(&self, priority: CellPriority) -> u32 {
        self.0.iter().take_while(|&&(at, _)| at >= priority).map(|&(_, count)| count).sum()
    }

    /// Leaves used.
    pub fn total(&self) -> u32 {
        self.0.iter().map(|&(_, count)| count).sum()
    }
}
