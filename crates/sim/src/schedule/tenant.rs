//! What a hostile tenant writes.

use std::time::Duration;

use super::builder::ScheduleBuilder;
use crate::mix::Mix;
use crate::workload::hostile::{Hostile, HostileKind, KINDS, NATURES, OWNER_KINDS};

impl ScheduleBuilder {
    /// Adds a few hostile records of the kinds that the world's farms read.
    pub fn hostile(&mut self, mix: Mix) {
        for _ in 0..2 + self.rng.below(4) {
            let kind = *self.rng.pick(&KINDS);
            let read = match kind {
                HostileKind::Rc | HostileKind::RcLabels | HostileKind::Bell => mix.services,
                _ => mix.jobs,
            };
            let (nature, of) = (*self.rng.pick(&NATURES), self.rng.below(8));
            let at = self.rng.between(Duration::from_secs(1), self.healed_at);
            if read {
                self.at(at, Hostile { kind, nature, of });
            }
        }
    }

    /// Adds a few hostile records that make or order others, of the kinds that the world's farms read.
    pub fn hostile_owners(&mut self, mix: Mix) {
        for _ in 0..2 + self.rng.below(4) {
            let kind = *self.rng.pick(&OWNER_KINDS);
            let read = match kind {
                HostileKind::Cron | HostileKind::Flow | HostileKind::Template => mix.flows,
                HostileKind::Cells => mix.cells,
                _ => mix.jobs,
            };
            let (nature, of) = (*self.rng.pick(&NATURES), self.rng.below(8));
            let at = self.rng.between(Duration::from_secs(1), self.healed_at);
            if read {
                self.at(at, Hostile { kind, nature, of });
            }
        }
    }
}
