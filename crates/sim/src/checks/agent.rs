//! What node agents do to processes, and what they report of them (32, 37).

use crate::facts::{CheckFacts, ProcessRun, Report, SimActor};
use crate::model::{AgentModel, AppliedWrite, IntendedPod, NodeEvent};
use crate::reached::{Occasion, met, met_if};
use rcfarm_api::ids::PodRef;
use rcfarm_api::node::status::{NodePodPhase, PodStatus, ProcessStatus};

/// 32: an agent stops a process. What is wrong with that: its intent was there, unchanged, all the time since it was
/// started, or only a restored snapshot took it away. A snapshot that has another intent for the pod replaces it.
#[must_use]
pub fn check_stop(model: &AgentModel, place: &PodRef, run: &ProcessRun) -> Option<String> {
    met(Occasion::StoppedByAgent);
    let intents = model.intents.get(place);
    let proof = |intended: &IntendedPod| {
        let is_same = intended.manifest.as_deref() == Some(run.manifest.as_bytes());
        !is_same && (!intended.by_restore || intended.manifest.is_some())
    };
    let is_proven = intents.is_none_or(|intents| intents.ever(run.since, true, proof));
    let PodRef { node, pod } = place;
    (!is_proven).then(|| {
        let now = intents.and_then(|intents| intents.now());
        let by_restore = now.is_some_and(|now| now.by_restore);
        let why = if by_restore { "only a restored snapshot lacks it" } else { "it is intended" };
        format!("the agent stops {pod} on {node} (process {}), although {why}", run.pid)
    })
}

/// After one write: an agent reports what happened. Reports may be late, so each part is compared with all runs.
pub fn check(applied_write: &AppliedWrite<'_>, facts: &CheckFacts, report: Report<'_>) {
    let SimActor::Agent(_) = applied_write.actor else { return };
    for event in &applied_write.of_nodes {
        let (NodeEvent::Status(place, _) | NodeEvent::Reality(place, _)) = event;
        let Some(machine) = facts.machines.get(&place.node) else { continue };
        let wrong = machine.runs(|runs| {
            let runs = runs.get(&place.pod).map_or(&[][..], Vec::as_slice);
            match event {
                NodeEvent::Status(_, status) => invented(status, runs),
                NodeEvent::Reality(_, manifest) => {
                    let is_known = runs.iter().any(|run| run.manifest.as_bytes() == *manifest);
                    (!is_known).then(|| "no process had this manifest".to_owned())
                }
            }
        });
        if let Some(what) = wrong {
            report(37, format!("{} reports of {}: {what}", place.node, place.pod));
        }
    }
}

/// What a status says that no process did.
fn invented(status: &PodStatus, runs: &[ProcessRun]) -> Option<String> {
    status.processes.iter().find_map(|process| {
        let of_process = runs.iter().filter(|run| run.launchable == process.launchable_id);
        let runs: Vec<&ProcessRun> = of_process.collect();
        pid(process, &runs).or_else(|| last_exit(process, &runs))
    })
}

fn pid(process: &ProcessStatus, runs: &[&ProcessRun]) -> Option<String> {
    match process.pid {
        Some(pid) if !runs.iter().any(|run| run.pid == pid) => {
            Some(format!("process {pid}, which was never started"))
        }
        None if process.phase == NodePodPhase::Running => Some("it runs as no process".to_owned()),
        _ => None,
    }
}

fn last_exit(process: &ProcessStatus, runs: &[&ProcessRun]) -> Option<String> {
    let code = process.last_exit.as_ref()?.exit_code;
    met_if(process.phase == NodePodPhase::Ended, Occasion::ExitReported);
    let is_known = runs.iter().any(|run| run.exit_code == Some(code));
    (!is_known)
        .then(|| format!("{} exited with {code}, which no process did", process.launchable_id))
}
