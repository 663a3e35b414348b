//! Possible inputs of a decision: views and clocks are older than the write.

use crate::facts::{CheckFacts, VIEW};
use crate::model::{AppliedWrite, Pair};
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Timestamp;

/// Identities before and after.
pub fn identities(pair: &Pair<PodIdentity>) -> impl Iterator<Item = &PodIdentity> {
    pair.0.iter().chain(&pair.1).map(|identity| &**identity)
}

/// The latest time that the writing process's clock showed within [`VIEW`]: the clock may have jumped back between
/// decision and write.
pub fn clock(applied_write: &AppliedWrite<'_>, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().max()
}

/// The earliest time that it showed: it may have jumped forward.
pub fn clock_before(applied_write: &AppliedWrite<'_>, facts: &CheckFacts) -> Option<Timestamp> {
    facts.clocks.get(&applied_write.process()?)?.lately(VIEW).into_iter().min()
}
