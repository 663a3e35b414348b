//! Liveness after the faults have ended (16, 22, 27 to 29, 36, 37, 39, 40, 45, 46).

mod agents;
mod cells;
mod flows;
mod jobs;
mod names;
mod services;

use std::collections::BTreeSet;

use crate::facts::CheckFacts;
use crate::model::SimModel;
use rcfarm_api::ids::RcId;

/// Describes what is not settled, with the invariant that it violates; `None`: everything is. `live` are the running
/// processes, `records` the RCs that must exist.
#[must_use]
pub fn unsettled(
    model: &SimModel,
    facts: &CheckFacts,
    live: &BTreeSet<u32>,
    records: &[RcId],
) -> Option<(u32, String)> {
    let services = model.mix().services.then_some(&model.services);
    let jobs = model.mix().jobs.then_some(&model.jobs);
    let services = services.and_then(|model| services::unsettled(model, facts, live, records));
    let services = services.map(|what| (27, what));
    let kept = model.agents.kept();
    let jobs = || jobs.and_then(|model| jobs::unsettled(model, facts, live, &kept));
    // Flows wait for the jobs that wait for such pods.
    let waits = kept.iter().any(|place| model.jobs.realities.contains_key(place));
    let flows = || {
        let looked_at = model.mix().flows && !waits;
        looked_at.then(|| flows::unsettled(&model.flows, facts, live)).flatten()
    };
    let cells = || model.mix().cells.then(|| cells::unsettled(&model.jobs)).flatten();
    services
        .or_else(cells)
        .or_else(jobs)
        .or_else(flows)
        .or_else(|| agents::unsettled(&model.agents, facts))
}
