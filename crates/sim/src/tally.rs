//! Occasions that several worlds have met.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::mix::Scenario;
use crate::reached::{Occasion, ReachedRow, TABLE};
use crate::report::SimReport;

/// Occasions that several worlds have met.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    worlds: u64,
    /// By occasion: number of worlds with it, and number in all.
    met: BTreeMap<Occasion, (u64, u64)>,
}

impl Tally {
    /// Adds a world.
    pub fn add(&mut self, report: &SimReport) {
        self.worlds += 1;
        for (occasion, times) in &report.met {
            let (worlds, all) = self.met.entry(*occasion).or_default();
            (*worlds, *all) = (*worlds + 1, *all + times);
        }
    }

    /// Occasions of a scenario that occurred in too few of the worlds, as measured by a thousand.
    #[must_use]
    pub fn lacking(&self, scenario: Scenario) -> Vec<&'static ReachedRow> {
        let rows = TABLE.iter().filter(|row| row.scenario == scenario);
        rows.filter(|row| self.worlds_with(row) * 1_000 < row.least * self.worlds).collect()
    }

    fn worlds_with(&self, row: &ReachedRow) -> u64 {
        self.met.get(&row.occasion).map_or(0, |(worlds, _)| *worlds)
    }

    /// As a table, for people.
    #[must_use]
    pub fn in_words(&self, scenario: Scenario) -> String {
        let mut text = format!("{:>9} {:>7} {:>9}\n", "invariant", "worlds", "in all");
        let mut rows: Vec<&ReachedRow> =
            TABLE.iter().filter(|row| row.scenario == scenario).collect();
        rows.sort_by_key(|row| row.invariant);
        for row in rows {
            let (worlds, all) = self.met.get(&row.occasion).copied().unwrap_or_default();
            let _ = writeln!(text, "{:>9} {worlds:>7} {all:>9}  {}", row.invariant, row.what);
        }
        text
    }
}
