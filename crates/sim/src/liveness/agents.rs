//! What must have come about on nodes that the real agent runs (27, 36, 37).

use crate::facts::{CheckFacts, MachineRuns, ProcessRun};
use crate::model::AgentModel;
use crate::reached::{Occasion, met_if};
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::node::status::NodePodPhase;

/// What is not yet as it shall be, and the invariant that this would break; `None`: everything is.
#[must_use]
pub fn unsettled(model: &AgentModel, facts: &CheckFacts) -> Option<(u32, String)> {
    // A machine without power reports nothing.
    let mut machines = facts.machines.iter().filter(|(_, machine)| machine.is_on());
    machines.find_map(|(node, machine)| {
        let machine_runs = machine.runs(|runs| {
            let places = runs.iter().map(|(pod, runs)| {
                (PodRef { node: node.clone(), pod: pod.clone() }, runs.as_slice())
            });
            let mut places = places.map(|(place, runs)| of_pod(model, &place, runs));
            places.find_map(|wrong| wrong)
        });
        machine_runs.or_else(|| not_started(model, machine.as_ref(), node))
    })
}

fn of_pod(model: &AgentModel, place: &PodRef, runs: &[ProcessRun]) -> Option<(u32, String)> {
    let PodRef { node, pod } = place;
    let intended = model.intended(place);
    // What only a restored snapshot lacks goes on running, and its status says so.
    let is_lost = intended.is_none() && model.is_lost(place);
    let status = model.statuses.get(place);
    let mut alive = runs.iter().filter(|run| run.exit_code.is_none());
    let run = alive.next();
    met_if(is_lost && run.is_some(), Occasion::KeptLost);
    let Some(run) = run else {
        let pid = status.and_then(|status| status.processes.iter().find_map(|p| p.pid));
        let runs =
            pid.map(|pid| format!("{pod} on {node} ended, and its status says process {pid}"));
        let left = status.filter(|_| intended.is_none() && !is_lost);
        let left = left.map(|_| format!("{pod} on {node} is gone, and its status is still there"));
        return runs.or(left).map(|what| (37, what));
    };
    if !is_lost && intended.map(|manifest| &manifest[..]) != Some(run.manifest.as_bytes()) {
        return Some((36, format!("{pod} runs on {node} as process {}, unwanted", run.pid)));
    }
    let of_run = status.and_then(|status| {
        status.processes.iter().find(|process| process.launchable_id == run.launchable)
    });
    let says = of_run.map(|process| (process.phase, process.pid));
    let reality = model.realities.get(place).map(|reality| &reality[..]);
    let is_real = reality == Some(run.manifest.as_bytes());
    (says != Some((NodePodPhase::Running, Some(run.pid))) || !is_real).then(|| {
        (37, format!("{pod} runs on {node} as process {}, and its status says {says:?}", run.pid))
    })
}

/// 27: whatever is intended was started. A pod that could not be started, and is not restarted, has ended.
fn not_started(
    model: &AgentModel,
    machine: &dyn MachineRuns,
    node: &NodeName,
) -> Option<(u32, String)> {
    let here = model.intents.keys().filter(|place| place.node == *node);
    let mut intended = here.filter_map(|place| Some((place, model.intended(place)?)));
    intended.find_map(|(place, manifest)| {
        let was_started = machine.runs(|runs| {
            let runs = runs.get(&place.pod).into_iter().flatten();
            let has_ended = || {
                let status = model.statuses.get(place);
                status.is_some_and(|status| status.phase == NodePodPhase::Ended)
            };
            let mut runs = runs.into_iter().filter(|run| run.manifest.as_bytes() == *manifest);
            runs.any(|run| run.pid > 0 || has_ended())
        });
        let what = || format!("{} is intended on {node}, and was not started", place.pod);
        (!was_started).then(|| (27, what()))
    })
}
