//! The report of a pod: its phase, health and processes.

use std::sync::Arc;

use super::{PodProcess, PodTask, RESTARTING_AFTER};
use crate::agent::driver::ProcessExit;
use crate::agent::plan::AgentPodState;
use crate::agent::proof::Proof;
use crate::agent::report::{PodReport, cut_texts};
use crate::spec::LaunchSpec;
use rcfarm_api::ids::NodeName;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{ExitReason, LastExit, NodePodPhase, PodStatus, ProcessStatus};

/// After this many failed starts in a row, the report says that the node cannot start the pod.
const CANNOT_START_AFTER: u32 = 3;

/// Note in the status of a pod whose intent Consul has lost.
const LOST: &str = "the pod is not intended, but Consul has neither the intent nor a report of it: it was wiped or \
                    restored, so the pod goes on running";

impl PodTask {
    /// The pod's report. Phase and health are the worst of its processes.
    pub(in crate::agent) fn report(&self) -> PodReport {
        let mut statuses = Vec::new();
        let (mut phase, mut health, mut messages) = (None, None, Vec::new());
        for (name, process) in &self.processes {
            let one = self.process_status(name, process);
            let process_health = self.health_of(process);
            let is_well = one.phase == NodePodPhase::Running && process_health == Health::Passing;
            if !is_well && !one.message.is_empty() {
                messages.push(format!("{name}: {}", one.message));
            }
            phase = phase.min(Some(one.phase)).or(Some(one.phase));
            health = health.min(Some(process_health)).or(Some(process_health));
            statuses.push(one);
        }
        if let Err(why) = &self.spec {
            phase = Some(NodePodPhase::Unfit);
            messages.push(why.clone());
        } else if self.processes.is_empty() {
            phase = Some(NodePodPhase::Unfit);
            messages.push("the manifest has no launchables, so there is nothing to run".to_owned());
        }
        let has_run = |status: &ProcessStatus| {
            let exit = status.last_exit.as_ref();
            let has_exited = exit.is_some_and(|exit| exit.reason != Some(ExitReason::StartError));
            status.started_at.is_some() || has_exited || status.phase == NodePodPhase::Stopping
        };
        let launched = !statuses.is_empty() && statuses.iter().all(has_run);
        // A process that could not be started and is not started again has ended, too: the owner must see that. The owner
        // of a job sees every failed start, because its policies act on them.
        let was_tried = |status: &ProcessStatus| has_run(status) || status.last_exit.is_some();
        let is_over = phase == Some(NodePodPhase::Ended)
            || self.intended.job.is_some()
                && !statuses.is_empty()
                && statuses.iter().all(was_tried);
        let (cannot_start, start_error) = self.cannot_start().unzip();
        let mut status = PodStatus {
            status: if launched && self.spec.is_ok() { "launched" } else { "failed" }.to_owned(),
            phase: phase.unwrap_or(NodePodPhase::Unfit),
            message: messages.join("; "),
            owner: self.intended.owner,
            health: health.unwrap_or(Health::Critical),
            cannot_start,
            start_error: start_error.unwrap_or_default(),
            restarting: self.restarting(),
            processes: statuses,
            notes: self.all_notes(),
            devices: self.devices(),
            ports: self.ports(),
            intent_index: None,
        };
        if self.proof == Proof::Lost {
            status.notes.push(LOST.to_owned());
        }
        cut_texts(&mut status);
        let reality = (launched || is_over).then(|| Arc::clone(&self.intended.manifest));
        PodReport { reality, status }
    }

    /// The notes of all launchables, each once.
    fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        let of_services = self.service_notes.iter().chain(&self.service_problem);
        let of_peers = self.peers.iter().filter_map(|peers| peers.problem.as_ref());
        for note in self.notes.values().flatten().chain(of_services).chain(of_peers) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        notes.extend(self.peer_notes());
        notes
    }

    /// Why this node cannot start the pod, and whether that is because of a program. Errors of the manifest do not count:
    /// they are the same on every node.
    fn cannot_start(&self) -> Option<(String, bool)> {
        let mut failing =
            self.processes.iter().filter(|(_, one)| one.failed_starts >= CANNOT_START_AFTER);
        let reason = |exit: &ProcessExit| exit.reason == Some(ExitReason::StartError);
        let is_of_program = |one: &PodProcess| one.last_exit.as_ref().is_some_and(reason);
        let start_error = failing.clone().any(|(_, one)| is_of_program(one));
        let (name, one) = failing.next()?;
        let why = one.last_exit.as_ref().map(ProcessExit::in_words).unwrap_or_default();
        Some((format!("{name}: {why}"), start_error))
    }

    fn health_of(&self, process: &PodProcess) -> Health {
        match process.state {
            AgentPodState::Running => {
                process.verdict.map_or(Health::Passing, |verdict| verdict.health())
            }
            AgentPodState::Starting => Health::Unknown,
            AgentPodState::Waiting(_) if process.last_exit.is_none() => Health::Unknown,
            _ => Health::Critical,
        }
    }

    /// The end of a failed process's output. A job keeps it in its status; controllers do not read it.
    fn output_of(&self, process: &PodProcess, phase: NodePodPhase) -> String {
        let is_down = matches!(phase, NodePodPhase::Backoff | NodePodPhase::Ended);
        let exit = process.last_exit.as_ref().filter(|_| is_down && self.intended.job.is_some());
        exit.map(|exit| exit.output.clone()).unwrap_or_default()
    }

    fn process_status(&self, name: &str, process: &PodProcess) -> ProcessStatus {
        let ended = process.last_exit.as_ref().map(ProcessExit::in_words);
        let phase = match process.state {
            // For its owner it runs: it has not ended.
            AgentPodState::Waiting(_) | AgentPodState::Starting if process.peers.is_restarting => {
                NodePodPhase::Stopping
            }
            AgentPodState::Waiting(_) if process.last_exit.is_some() => NodePodPhase::Backoff,
            AgentPodState::Waiting(_) | AgentPodState::Starting => NodePodPhase::Starting,
            AgentPodState::Running => NodePodPhase::Running,
            AgentPodState::Stopping => NodePodPhase::Stopping,
            AgentPodState::Ended => NodePodPhase::Ended,
            AgentPodState::Unfit => NodePodPhase::Unfit,
        };
        let unfit = match self.spec.as_ref().ok().and_then(|spec| spec.launchables.get(name)) {
            Some(LaunchSpec::Unfit(why)) => Some(why.clone()),
            _ => None,
        };
        let message = match phase {
            NodePodPhase::Unfit => unfit.unwrap_or_default(),
            NodePodPhase::Running => process.health_message.clone(),
            NodePodPhase::Backoff | NodePodPhase::Ended => ended.unwrap_or_default(),
            NodePodPhase::Starting if !self.waits_for.is_empty() => {
                let nodes: Vec<&str> = self.waits_for.iter().map(NodeName::as_str).collect();
                format!("single instance: waits until the pod has ended on {}", nodes.join(", "))
            }
            NodePodPhase::Starting => "starting".to_owned(),
            NodePodPhase::Stopping if process.peers.is_restarting => {
                "restarting: one of its peers has moved".to_owned()
            }
            NodePodPhase::Stopping => "stopping".to_owned(),
        };
        let last_exit = process.last_exit.as_ref().filter(|exit| !exit.is_of_node());
        ProcessStatus {
            launchable_id: name.to_owned(),
            entry_point: self.process_spec(name).map(|s| s.command[0].clone()).unwrap_or_default(),
            phase,
            pid: process.running.as_ref().map(|running| running.pid),
            started_at: process.running.as_ref().map(|running| running.started_at),
            restarts: process.restarts,
            last_exit: last_exit.map(|exit| LastExit {
                time: exit.at,
                exit_code: exit.code.unwrap_or(-1),
                exit_status: exit.signal.unwrap_or(0),
                reason: exit.reason,
            }),
            output: self.output_of(process, phase),
            message,
        }
    }

    /// How a process ends that is restarted again and again.
    fn restarting(&self) -> Option<String> {
        let is_restarting = |process: &PodProcess| {
            process.failures >= RESTARTING_AFTER
                && !matches!(process.state, AgentPodState::Ended | AgentPodState::Unfit)
        };
        let (name, process) = self.processes.iter().find(|(_, process)| is_restarting(process))?;
        let how = process.last_exit.as_ref().map(ProcessExit::in_words).unwrap_or_default();
        Some(format!("{name}: {how}"))
    }
}
