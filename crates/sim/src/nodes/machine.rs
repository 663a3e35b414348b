//! The machine of a node that the real agent runs: its processes, which outlive the agent, in virtual time.
//!
//! The machine starts, ends and kills processes as the seed says. It records every run, so that what an agent reports
//! can be compared with what happened.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::process::ProcessFate;
use super::{MOMENT, SLOWEST_STOP};
use crate::checker::Checker;
use crate::facts::{MachineRuns, ProcessRun, Runs};
use crate::reached::{Occasion, met};
use crate::rng::SimRng;
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::ids::{NodeName, PodId, PodRef};
use rcfarm_api::node::Health;
use rcfarm_node::agent::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started,
};
use rcfarm_node::agent::health_check::HealthCheck;
use rcfarm_node::agent::state::{self, StoredPod};
use rcfarm_store::time::{Clock, monotonic};
use rcfarm_testing::clock::VirtualClock;

/// Why a start fails.
const NO_MEMORY: &str = "simulated: no memory is left";
/// Starts that fail, in a thousand.
const FAILED_STARTS: u32 = 20;
/// Processes that ignore the stop signal and are killed after their grace, in a thousand.
const STUBBORN: u32 = 100;
/// Processes of replication controllers that end by themselves, in a thousand.
const SHORT_LIVED: u32 = 150;

/// A node's machine. It is the driver of the node's agent.
pub struct SimMachine {
    node: NodeName,
    seed: u64,
    checker: Arc<Checker>,
    clock: Arc<VirtualClock>,
    start: Instant,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    rng: SimRng,
    /// It has power.
    is_on: bool,
    /// Nothing fails by itself any more.
    calm: bool,
    /// Services fail their checks.
    ill: bool,
    last_pid: i32,
    /// The last process of each launchable.
    processes: BTreeMap<(PodId, String), Process>,
    runs: Runs,
}

struct Process {
    started: Started,
    /// Until then its shim is starting it.
    begins: Instant,
    /// When it ends, and how. `None`: never by itself.
    end: Option<(Instant, ProcessExit)>,
}

impl Process {
    fn is_alive(&self, now: Instant) -> bool {
        self.end.as_ref().is_none_or(|(at, _)| *at > now)
    }

    /// Ends at `at`, unless it ends before.
    fn end_at(&mut self, at: Instant, exit: ProcessExit) {
        if self.is_alive(at) {
            self.end = Some((at, exit));
        }
    }
}

impl State {
    /// Notes in the runs which processes have ended by now.
    fn settle(&mut self) {
        let now = monotonic();
        for ((pod, _), process) in &self.processes {
            let Some((_, exit)) = process.end.as_ref().filter(|_| !process.is_alive(now)) else {
                continue;
            };
            let runs = self.runs.get_mut(pod).into_iter().flatten();
            for run in runs.filter(|run| run.pid == process.started.pid) {
                run.exit_code = Some(exit.code.unwrap_or(-1));
            }
        }
    }
}

impl SimMachine {
    /// A machine without processes.
    #[must_use]
    pub fn new(
        node: NodeName,
        checker: Arc<Checker>,
        clock: Arc<VirtualClock>,
        start: Instant,
        mut rng: SimRng,
    ) -> Arc<SimMachine> {
        let seed = rng.seed();
        let state = State {
            rng,
            is_on: false,
            calm: false,
            ill: false,
            last_pid: 0,
            processes: BTreeMap::new(),
            runs: BTreeMap::new(),
        };
        let (state, changed) = (Mutex::new(state), Notify::new());
        Arc::new(SimMachine { node, seed, checker, clock, start, state, changed })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle();
        state
    }

    /// It gets power, if it has none.
    pub fn turn_on(&self) {
        self.lock().is_on = true;
    }

    /// Services fail their checks, or pass again.
    pub fn set_ill(&self, ill: bool) {
        self.lock().ill = ill;
    }

    /// From now on every check passes, every start succeeds, and every process that is not doomed ends well.
    pub fn calm(&self) {
        let mut state = self.lock();
        (state.calm, state.ill) = (true, false);
    }

    /// The machine loses power: its processes end, and nobody knows how.
    pub fn crash(&self) {
        let (mut state, now) = (self.lock(), monotonic());
        state.is_on = false;
        for process in state.processes.values_mut() {
            let attempt = process.started.attempt;
            let why = "it ended while no shim was running, as in a restart of the machine";
            process.end_at(now, ProcessExit { attempt, ..ProcessExit::unknown(why) });
        }
        state.settle();
        self.changed.notify_waiters();
    }

    fn place(&self, pod: &PodId) -> PodRef {
        PodRef { node: self.node.clone(), pod: pod.clone() }
    }

    /// A signal ends a process after a while, unless it ends before.
    fn signalled(&self, state: &mut State, running: &Started, after: Duration, signal: i32) {
        let (at, attempt) = (self.clock.wall() + after, running.attempt);
        let exit = ProcessExit {
            attempt,
            at,
            code: None,
            signal: Some(signal),
            why: None,
            reason: None,
            output: String::new(),
        };
        let process = state.processes.values_mut().find(|process| process.started == *running);
        if let Some(process) = process {
            process.end_at(monotonic() + after, exit);
        }
        self.changed.notify_waiters();
    }

    /// Starts a process, and when it then runs. `None`: it cannot be started.
    fn spawn(
        &self,
        (pod, launchable): (PodId, String),
        manifest: &str,
        attempt: u64,
    ) -> (Option<Started>, Instant) {
        let (now, mut state) = (monotonic(), self.lock());
        let key = (pod.clone(), launchable.clone());
        let running = state.processes.get(&key).filter(|process| process.is_alive(now));
        if let Some(running) = running.map(|process| process.started.clone()) {
            drop(state);
            self.checker.started_twice(&self.place(&pod), running.pid);
            return (Some(running), now);
        }
        let begins = now + state.rng.between(Duration::from_millis(1), MOMENT);
        let fails = !state.calm && state.rng.permille(FAILED_STARTS);
        let started_at = self.clock.wall();
        let end = if fails {
            // As a shim does, it stores how the start failed. The next agent finds that.
            Some((now, ProcessExit { at: started_at, ..ProcessExit::unknown(NO_MEMORY) }))
        } else {
            state.last_pid += 1;
            self.fate(&mut state, manifest, attempt).map(|(runs, code)| {
                let (runs, code) = (begins - now + runs, Some(code));
                let at = started_at + runs;
                (
                    now + runs,
                    ProcessExit {
                        attempt,
                        at,
                        code,
                        signal: None,
                        why: None,
                        reason: None,
                        output: String::new(),
                    },
                )
            })
        };
        let pid = if fails { 0 } else { state.last_pid };
        let ticks = u64::from(pid.unsigned_abs());
        let (shim, start_ticks, shim_ticks) = (pid, ticks, ticks);
        let started =
            Started { attempt, pid, start_ticks, shim, shim_ticks, started_at, boot: None };
        let (manifest, since) = (manifest.into(), now - self.start);
        let exit_code = fails.then_some(-1);
        let run = ProcessRun { launchable, pid, manifest, since, exit_code };
        state.runs.entry(pod).or_default().push(run);
        state.processes.insert(key, Process { started: started.clone(), begins, end });
        ((!fails).then_some(started), begins)
    }

    /// How long a process runs by itself and with which code it then ends.
    fn fate(&self, state: &mut State, manifest: &str, attempt: u64) -> Option<(Duration, i32)> {
        let Ok(WithIdentity { job }) = serde_json::from_str::<WithIdentity>(manifest) else {
            let ends = !state.calm && state.rng.permille(SHORT_LIVED);
            let runs = state.rng.between(Duration::from_secs(1), Duration::from_secs(20));
            return ends.then_some((runs, i32::from(state.rng.permille(700))));
        };
        if attempt > 1 {
            return Some((Duration::from_secs(1), 0));
        }
        let fate = ProcessFate::of(self.seed, &job, state.calm);
        Some((fate.runs?, fate.code))
    }
}

#[derive(Deserialize)]
struct WithIdentity {
    job: PodIdentity,
}

/// The pod and the launchable of a process's directory.
fn owner(dir: &Path) -> Option<(PodId, String)> {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    Some((name(dir.parent()?)?.parse().ok()?, name(dir)?))
}

impl MachineRuns for SimMachine {
    fn is_on(&self) -> bool {
        self.lock().is_on
    }

    fn look(&self, look: &mut dyn FnMut(&Runs)) {
        look(&self.lock().runs);
    }
}

#[async_trait]
impl Driver for SimMachine {
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        let (pod, launchable) = owner(dir).ok_or("a directory of no pod")?;
        let stored = dir.parent().and_then(|pod| state::read::<StoredPod>(&pod.join("pod.json")));
        let manifest = stored.ok_or("the pod is not stored")?.manifest;
        state::make_dir(dir).map_err(|error| error.to_string())?;
        state::write(&dir.join("launch.json"), launch).map_err(|error| error.to_string())?;
        let (started, begins) = self.spawn((pod, launchable), &manifest, launch.attempt);
        // The shim goes on with it, whatever becomes of the agent meanwhile.
        sleep_until(begins).await;
        started.ok_or_else(|| NO_MEMORY.into())
    }

    async fn adopt(&self, dir: &Path) -> FoundProcess {
        let Some(key) = owner(dir).filter(|_| dir.join("launch.json").exists()) else {
            return FoundProcess::Nothing;
        };
        let begins = self.lock().processes.get(&key).map(|process| process.begins);
        if let Some(begins) = begins.filter(|begins| *begins > monotonic()) {
            sleep_until(begins).await;
        }
        let state = self.lock();
        match state.processes.get(&key) {
            None => FoundProcess::Nothing,
            Some(process) => match &process.end {
                Some((at, exit)) if *at <= monotonic() => FoundProcess::Exited(exit.clone()),
                _ => {
                    met(Occasion::Adopted);
                    FoundProcess::Running(process.started.clone())
                }
            },
        }
    }

    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit {
        let Some(key) = owner(dir) else { return ProcessExit::unknown("a directory of no pod") };
        loop {
            let changed = self.changed.notified();
            let ends = {
                let state = self.lock();
                let process = state.processes.get(&key);
                match process.filter(|process| process.started == *running) {
                    None => return ProcessExit::unknown("another process took its place"),
                    Some(Process { end: Some((at, exit)), .. }) if *at <= monotonic() => {
                        return exit.clone();
                    }
                    Some(process) => process.end.as_ref().map(|(at, _)| *at),
                }
            };
            match ends {
                None => changed.await,
                Some(at) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    async fn stop(&self, running: &Started, _signal: &str, grace: Duration) {
        let (now, pid) = (monotonic(), running.pid);
        let run = (self as &dyn MachineRuns).runs(|runs| {
            let mut all = runs.iter().flat_map(|(pod, runs)| runs.iter().map(move |r| (pod, r)));
            all.find(|(_, run)| run.pid == pid).map(|(pod, run)| (pod.clone(), run.clone()))
        });
        let Some((pod, run)) = run.filter(|(_, run)| run.exit_code.is_none()) else { return };
        self.checker.stopped(&self.place(&pod), &run);
        let obeys = {
            let mut state = self.lock();
            let takes = state.rng.between(Duration::from_millis(50), SLOWEST_STOP).min(grace);
            let obeys = !state.rng.permille(STUBBORN);
            if obeys {
                self.signalled(&mut state, running, takes, 15);
            }
            obeys
        };
        if !obeys {
            sleep_until(now + grace).await;
            self.signalled(&mut self.lock(), running, Duration::ZERO, 9);
        }
    }

    /// Programs of a world change nothing when they are told of their peers.
    async fn signal(&self, _: &Started, _: &str) -> Signalled {
        Signalled::Sent
    }

    async fn check_health(&self, _: &HealthCheck, _: &Launch) -> (Health, String) {
        match self.lock().ill {
            true => (Health::Critical, "simulated: ill".to_owned()),
            false => (Health::Passing, String::new()),
        }
    }
}
