//! One pod in the agent's memory: its processes, its launches, and its report.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::PodPermits;
use super::driver::{FoundProcess, Launch, ProcessExit, Started};
use super::health_check::HealthVerdict;
use super::intended::Intended;
use super::peer_change::{KnownPeers, ProcessPeers};
use super::peers::PodPeers;
use super::plan::{AgentPod, AgentPodState, SingleInstance};
use super::proof::{Expected, Proof};
use super::state::{DataDir, StoredPod, read};
use super::users::UserError;
use crate::spec::{LaunchSpec, PodSpec, ProcessSpec};
use rcfarm_api::backoff;
use rcfarm_api::ids::{NodeName, PodId};
use rcfarm_api::manifest::Manifest;
use rcfarm_api::node::status::{ExitReason, IntentIndex};
use rcfarm_store::PodService;

pub(super) struct PodTask {
    pub(super) id: PodId,
    pub(super) intended: Intended,
    /// The parsed manifest, or why it cannot be run.
    pub(super) spec: Result<PodSpec, String>,
    /// By launchable.
    pub(super) processes: BTreeMap<String, PodProcess>,
    /// By launchable, remarks of its last launch for the pod's status, such as limits that are not enforced.
    pub(super) notes: BTreeMap<String, Vec<String>>,
    pub(super) single_instance: SingleInstance,
    /// Nodes that must have stopped this single instance before it is started here.
    pub(super) waits_for: Vec<NodeName>,
    /// The task that checks those nodes.
    pub(super) single_instance_check: Option<AbortHandle>,
    /// Whether a process of it was ever started for this intent, by this agent or one before it.
    pub(super) was_started: bool,
    /// What is known of its intent while the list of intents lacks it.
    pub(super) proof: Proof,
    /// Unclear proofs in a row.
    unclear: u32,
    /// The intent that the last report names, if that may be another one.
    reported: Option<IntentIndex>,
    /// When its end is stored again, after that failed.
    pub(super) forget_at: Option<Duration>,
    /// The files of an earlier pod of this id are still there: nothing is started beside them.
    pub(super) has_foreign_files: bool,
    /// Its services on this node.
    pub(super) services: Vec<PodService>,
    /// Why services of its manifest cannot be registered on this node.
    pub(super) service_notes: Vec<String>,
    /// Why Consul does not have its services.
    pub(super) service_problem: Option<String>,
    /// Its files that tell where its peers are.
    pub(super) peers: Option<PodPeers>,
}

pub(super) struct PodProcess {
    pub(super) state: AgentPodState,
    pub(super) running: Option<Started>,
    /// Number of the last start, from 1; 0 before the first.
    pub(super) attempt: u64,
    /// Exits in a row after short runs ([`crate::agent::restart`]).
    failures: u32,
    /// When the present run is so long that `failures` restart at 0.
    settles_at: Option<Duration>,
    /// Starts in a row that failed before the process ran.
    failed_starts: u32,
    /// Starts that count as restarts.
    restarts: u64,
    /// Whether the next start is a restart: the process has ended, and neither the node's lease nor a start that failed
    /// because of the node was the reason.
    is_restart: bool,
    last_exit: Option<ProcessExit>,
    /// What it was last started with.
    pub(super) launch: Option<Box<Launch>>,
    /// Failed health checks in a row for which it is being stopped.
    pub(super) failed_checks: Option<u32>,
    /// `None` without a health check.
    pub(super) verdict: Option<HealthVerdict>,
    /// Result of the check that last changed the verdict.
    pub(super) health_message: String,
    /// The task that checks the process's health.
    pub(super) checker: Option<AbortHandle>,
    /// What it knows of its peers.
    pub(super) peers: ProcessPeers,
}

impl PodProcess {
    /// `last`: the last start, by this agent or one before it.
    fn new(state: AgentPodState, last: Option<Launch>, known: KnownPeers) -> PodProcess {
        let attempt = last.as_ref().map_or(0, |last| last.attempt);
        // Older agents counted every start but the first.
        let restarts = last.as_ref().and_then(|last| last.restarts);
        PodProcess {
            state,
            running: None,
            attempt,
            failures: 0,
            settles_at: None,
            failed_starts: 0,
            restarts: restarts.unwrap_or_else(|| attempt.saturating_sub(1)),
            is_restart: false,
            last_exit: None,
            launch: last.map(Box::new),
            failed_checks: None,
            verdict: None,
            health_message: String::new(),
            checker: None,
            peers: ProcessPeers::new(known),
        }
    }

    /// A process is about to be started: counts the attempt.
    pub(super) fn starting(&mut self, launch: Option<&Launch>) {
        self.state = AgentPodState::Starting;
        self.attempt += 1;
        self.restarts += u64::from(self.is_restart);
        self.is_restart = false;
        self.launch = launch.cloned().map(Box::new);
    }

    fn stop_checking(&mut self) {
        self.verdict = None;
        self.health_message.clear();
        if let Some(checker) = self.checker.take() {
            checker.abort();
        }
    }
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        self.stop_checking();
    }
}

impl Drop for PodTask {
    fn drop(&mut self) {
        self.reset_single_instance();
    }
}

/// After this many ends in a row soon after the start, the report says that the process is restarted again and again.
const RESTARTING_AFTER: u32 = 2;

/// Pause before a proof that was unclear is asked for again. It doubles with each in a row.
const PROVE_AGAIN: Duration = Duration::from_secs(1);
/// Upper bound of that pause.
const LONGEST_PROVE_AGAIN: Duration = Duration::from_secs(60);

impl PodTask {
    /// An intended pod whose processes wait for their start.
    pub(super) fn new(
        id: PodId,
        intended: Intended,
        data: &DataDir,
        permits: &PodPermits,
        now: Duration,
    ) -> PodTask {
        let spec = match Manifest::parse(&intended.manifest) {
            Ok(manifest) if *manifest.id() != id => {
                Err(format!("the manifest says id {}, but the intent is for {id}", manifest.id()))
            }
            Ok(manifest) => PodSpec::read(&manifest)
                .map_err(|error| error.to_string())
                .and_then(|spec| permitted(spec, permits)),
            Err(error) => Err(error.to_string()),
        };
        // Without a job nobody writes them.
        let stanza = spec.as_ref().ok().and_then(|spec| spec.peers.clone());
        let stanza = stanza.filter(|_| intended.job.is_some());
        let is_told = stanza.as_ref().is_some_and(|stanza| stanza.on_change.is_some());
        let launchables = spec.iter().flat_map(|spec| &spec.launchables);
        let process = |(name, launchable): (&String, &LaunchSpec)| {
            let state = match launchable {
                LaunchSpec::Process(_) => AgentPodState::Waiting(now),
                LaunchSpec::Unfit(_) => AgentPodState::Unfit,
            };
            let dir = data.launchable(&id, name);
            let last = read::<Launch>(&dir.join("launch.json"));
            let attempt = last.as_ref().map_or(0, |last| last.attempt);
            let known = match is_told {
                true => KnownPeers::read(&dir, attempt),
                false => KnownPeers::default(),
            };
            (name.clone(), PodProcess::new(state, last, known))
        };
        let processes = launchables.map(process).collect();
        let single_instance = match spec.as_ref().is_ok_and(|spec| spec.single_instance) {
            true => SingleInstance::Unchecked,
            false => SingleInstance::NotNeeded,
        };
        let mut pod = PodTask::idle(id, intended, spec);
        (pod.processes, pod.single_instance) = (processes, single_instance);
        pod.peers = stanza.map(|stanza| PodPeers::new(stanza, now));
        pod
    }

    /// A pod that cannot be run, without processes.
    pub(super) fn unfit(id: PodId, intended: Intended, why: String) -> PodTask {
        PodTask::idle(id, intended, Err(why))
    }

    fn idle(id: PodId, intended: Intended, spec: Result<PodSpec, String>) -> PodTask {
        PodTask {
            id,
            intended,
            spec,
            processes: BTreeMap::new(),
            notes: BTreeMap::new(),
            single_instance: SingleInstance::NotNeeded,
            waits_for: Vec::new(),
            single_instance_check: None,
            was_started: false,
            proof: Proof::default(),
            unclear: 0,
            reported: None,
            forget_at: None,
            has_foreign_files: false,
            services: Vec::new(),
            service_notes: Vec::new(),
            service_problem: None,
            peers: None,
        }
    }

    /// Names of its launchables. Those of a manifest that cannot be run come from the disk: the previous agent may have
    /// started them.
    pub(super) fn launchables(&mut self, data: &DataDir) -> Vec<String> {
        if self.spec.is_err() {
            for name in data.launchables(&self.id) {
                let process = || PodProcess::new(AgentPodState::Unfit, None, KnownPeers::default());
                self.processes.entry(name).or_insert_with(process);
            }
        }
        self.processes.keys().cloned().collect()
    }

    /// Makes the pod unfit for a reason. Returns the processes that are to be stopped.
    pub(super) fn fail(&mut self, why: String) -> Vec<String> {
        self.spec = Err(why);
        self.reset_single_instance();
        let mut running = Vec::new();
        for (name, process) in &mut self.processes {
            process.stop_checking();
            match process.state {
                AgentPodState::Running => running.push(name.clone()),
                AgentPodState::Starting | AgentPodState::Stopping => {}
                _ => process.state = AgentPodState::Unfit,
            }
        }
        running
    }

    /// Notes that nothing more will be known of a process.
    pub(super) fn lost(&mut self, name: &str) {
        let Some(process) = self.processes.get_mut(name) else { return };
        process.running = None;
        process.state = AgentPodState::Unfit;
    }

    /// Discards what is known of other nodes: a single instance is checked again before its next start.
    pub(super) fn reset_single_instance(&mut self) {
        if let Some(check) = self.single_instance_check.take() {
            check.abort();
        }
        self.waits_for.clear();
        if self.single_instance != SingleInstance::NotNeeded {
            self.single_instance = SingleInstance::Unchecked;
        }
    }

    pub(super) fn stored(&self) -> StoredPod {
        StoredPod {
            manifest: self.intended.manifest.to_string(),
            owner: self.intended.owner,
            devices: self.intended.devices.clone(),
            ports: self.intended.ports.clone(),
            intent_index: self.intended.index,
            reported: self.reported,
            forgotten: false,
        }
    }

    /// Notes that the list has the pod, with the same manifest, devices and ports. `reported`: the intent that its last
    /// report names. Returns whether the pod must be stored: its intent is another one.
    #[must_use]
    pub(super) fn intended_again(
        &mut self,
        intended: Intended,
        reported: Option<IntentIndex>,
    ) -> bool {
        let is_new = self.intended.index != intended.index;
        if is_new {
            // Until a report names the new one, Consul has the other.
            self.reported = reported.or(self.reported);
            // A check may be under way for the other one, and another node may have had the pod in between.
            self.reset_single_instance();
        }
        self.intended = intended;
        is_new
    }

    /// Notes the intent that the pod's last report names. Returns whether the pod must be stored: now the report of the
    /// intent before proves nothing. A snapshot may have it, and lack the present intent.
    #[must_use]
    pub(super) fn report_written(&mut self, named: Option<IntentIndex>) -> bool {
        named.is_some() && named == self.intended.index && self.reported.take().is_some()
    }

    /// Notes that the pod is not to be forgotten.
    pub(super) fn listed(&mut self) {
        (self.proof, self.unclear, self.forget_at) = (Proof::Unasked, 0, None);
    }

    /// Notes an unclear proof. Returns how many there were in a row.
    pub(super) fn unclear(&mut self, now: Duration) -> u32 {
        let pause = backoff(PROVE_AGAIN, LONGEST_PROVE_AGAIN, self.unclear);
        self.unclear = self.unclear.saturating_add(1);
        self.proof = Proof::Unclear(now.saturating_add(pause));
        self.unclear
    }

    /// Sets the intent that the last report of the agent before names.
    pub(super) fn set_reported(&mut self, reported: Option<IntentIndex>) {
        self.reported = reported;
    }

    /// What a report must say to prove that Consul has had the pod's intent.
    pub(super) fn expected(&self, reported: Option<IntentIndex>) -> Expected {
        let running = self.processes.values().filter_map(|process| process.running.as_ref());
        let intents = self.intended.index.into_iter().chain(reported).chain(self.reported);
        Expected {
            intents: intents.filter(|intent| *intent != IntentIndex::NONE).collect(),
            processes: running.map(|running| (running.pid, running.started_at)).collect(),
        }
    }

    pub(super) fn observed(&self) -> AgentPod {
        let not_before = self.peers.as_ref().map(PodPeers::waits_until).unwrap_or_default();
        let state = |process: &PodProcess| process.state.not_before(not_before);
        let processes = self.processes.iter();
        AgentPod {
            hash: self.intended.hash,
            single_instance: self.single_instance,
            may_start: self.was_started,
            was_started: self.was_started,
            proof: self.proof,
            forget_at: self.forget_at,
            processes: processes.map(|(name, process)| (name.clone(), state(process))).collect(),
        }
    }

    pub(super) fn process_spec(&self, name: &str) -> Option<&ProcessSpec> {
        match self.spec.as_ref().ok()?.launchables.get(name)? {
            LaunchSpec::Process(process) => Some(process),
            LaunchSpec::Unfit(_) => None,
        }
    }

    /// Adopts what the previous agent left of a process.
    pub(super) fn adopt(&mut self, name: &str, found: FoundProcess, now: Duration) {
        let is_found = !matches!(found, FoundProcess::Nothing);
        self.was_started |= is_found || self.processes.get(name).is_some_and(|p| p.attempt > 0);
        match found {
            FoundProcess::Running(running) => self.started(name, running),
            FoundProcess::Exited(exit) => {
                let attempt = exit.attempt;
                self.ended(name, exit, now);
                // A start after it was already counted.
                if let Some(process) = self.processes.get_mut(name) {
                    process.is_restart &= attempt >= process.attempt;
                }
            }
            FoundProcess::Nothing => {}
        }
    }

    /// Number of the next start of a process, and the restarts it then has.
    pub(super) fn next_start(&self, name: &str) -> (u64, u64) {
        let next = |process: &PodProcess| {
            (process.attempt + 1, process.restarts + u64::from(process.is_restart))
        };
        self.processes.get(name).map_or((1, 0), next)
    }

    pub(super) fn started(&mut self, name: &str, running: Started) {
        let check = self.process_spec(name).and_then(|spec| spec.health.clone());
        let Some(process) = self.processes.get_mut(name) else { return };
        process.state = AgentPodState::Running;
        process.failed_starts = 0;
        process.peers.started();
        process.attempt = process.attempt.max(running.attempt);
        process.verdict = check.map(|check| HealthVerdict::new(check.thresholds));
        process.running = Some(running);
    }

    /// Notes that a process ended or could not be started, and when it is started again.
    pub(super) fn ended(&mut self, name: &str, exit: ProcessExit, now: Duration) {
        // Without a spec it was started by an agent that could run it, and cannot be started again.
        let policy = self.process_spec(name).map(|spec| spec.restart);
        let Some(process) = self.processes.get_mut(name) else { return };
        process.stop_checking();
        process.settles_at = None;
        let ran = process.running.take().map_or(Duration::ZERO, |running| {
            exit.at.duration_since(running.started_at).try_into().unwrap_or_default()
        });
        let failed_checks = process.failed_checks.take();
        if process.peers.ended(&exit) && policy.is_some() {
            // Neither a failure nor a restart: it goes on where it was, with other addresses.
            process.state = AgentPodState::Waiting(now);
            return;
        }
        let was_stopped = process.state == AgentPodState::Stopping && failed_checks.is_none();
        let exit = match failed_checks {
            Some(count) => unhealthy(exit, count),
            None => exit,
        };
        process.failed_starts = process
            .failed_starts
            .saturating_add(u32::from(process.state == AgentPodState::Starting));
        process.is_restart = !exit.is_of_node() && exit.reason != Some(ExitReason::LeaseEnded);
        process.last_exit = Some(exit);
        let (Some(policy), Some(exit)) = (policy, &process.last_exit) else {
            process.state = AgentPodState::Unfit;
            return;
        };
        if exit.is_of_node() {
            let pause = policy.pause_after_failed_start(process.failed_starts.saturating_sub(1));
            process.state = AgentPodState::Waiting(now.saturating_add(pause));
            return;
        }
        process.failures = policy.failures(process.failures, ran);
        let pause = policy.pause(exit, process.failures.saturating_sub(1));
        process.state = match pause {
            Some(_) if was_stopped => AgentPodState::Waiting(now),
            Some(pause) => AgentPodState::Waiting(now.saturating_add(pause)),
            None => AgentPodState::Ended,
        };
    }

    /// Forgets the failures of processes whose present run is long enough. Returns when that of the next one is.
    pub(super) fn settle(&mut self, now: Duration) -> Option<Duration> {
        let PodTask { spec, processes, .. } = self;
        let launchables = &spec.as_ref().ok()?.launchables;
        let mut next = None;
        for (name, process) in processes {
            let Some(LaunchSpec::Process(spec)) = launchables.get(name) else { continue };
            if process.state != AgentPodState::Running || process.failures < RESTARTING_AFTER {
                continue;
            }
            let at = now.saturating_add(spec.restart.reset_after());
            let at = *process.settles_at.get_or_insert(at);
            if at <= now {
                (process.failures, process.settles_at) = (0, None);
            } else {
                next = next.min(Some(at)).or(Some(at));
            }
        }
        next
    }

    /// Whether a process is in its first start, and waits neither for another node nor for keys that cannot be written.
    /// Such a pod is not reported yet.
    pub(super) fn is_first_start(&self) -> bool {
        self.waits_for.is_empty()
            && !self.peers.as_ref().is_some_and(PodPeers::lacks_keys)
            && self.processes.values().any(|process| match process.state {
                AgentPodState::Starting => true,
                AgentPodState::Waiting(_) => {
                    process.last_exit.is_none() && !process.peers.is_restarting
                }
                _ => false,
            })
    }
}

/// The end of a process that was stopped because of its health. It counts as a failure, whatever its code.
fn unhealthy(exit: ProcessExit, failed_checks: u32) -> ProcessExit {
    let why = format!("stopped because its health check failed {failed_checks} times in a row");
    ProcessExit { code: exit.code.filter(|code| *code != 0), why: Some(why), ..exit }
}

/// The spec of a pod whose user this node allows. A user that the node does not know is reported at the start: another
/// node may know it.
fn permitted(spec: PodSpec, permits: &PodPermits) -> Result<PodSpec, String> {
    match permits.user(spec.run_as.as_deref()) {
        Err(refused @ UserError::Refused(_)) => Err(refused.into_text()),
        _ => Ok(spec),
    }
}

mod status;
#[cfg(test)]
mod tests;
