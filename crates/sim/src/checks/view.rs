//! What a decision may have been based on: views and clocks are a moment old when a write is applied.

use crate::facts::{CheckFacts, VIEW};
use crate::model::{AppliedWrite, Pair};
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Timestamp;

/// The identities before and after.
pub fn identities(pair: &Pair<PodIdentity>) -> impl Iterator<Item = &PodIdentity> {
    pair.0.iter().chain(&pair.1).map(|identity| &**identity)
}

/// The latest time that the writing process's clock showed within [`VIEW`]. A write is decided first and written then;
/// the clock may have jumped back in between.
pub fn clock(applied_write: &AppliedWrite<'_>, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().max()
}

/// The earliest time that it showed: it may have jumped ahead.
pub fn clock_before(applied_write: &AppliedWrite<'_>, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().min()
}
