//! Machines that pretend to run what is intended there: processes start, end as the seed says, are stopped when they are
//! wanted no more, and die with their machine.
//!
//! An agent that dies leaves its processes running, and the next one finds them. A machine that dies takes them with it;
//! what was wanted of them has then ended in a way that nobody knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use crate::checker::{Checker, SimActor};
use crate::rng::SimRng;
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Stored;
use rcfarm_api::Timestamp;
use rcfarm_api::ids::{NodeName, PodId, SessionId};
use rcfarm_api::key;
use rcfarm_api::manifest::Resources;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::node::status::{LastExit, NodePodPhase, PodStatus, ProcessStatus};
use rcfarm_emulator::Embedded;
use rcfarm_store::{Behavior, DeleteMode, Key, NewSession, Op, PutMode, Query, Reader, Store};

/// Agents look this often.
const MOMENT: Duration = Duration::from_millis(200);
/// A process takes at most so long to stop.
const SLOWEST_STOP: Duration = Duration::from_secs(4);

/// What every machine has.
#[must_use]
pub fn capacity() -> Resources {
    Resources { cpu_milli: 3_000, memory_bytes: 0, devices: BTreeMap::new() }
}

/// The name of a machine.
#[must_use]
pub fn node(n: usize) -> NodeName {
    format!("m{n}").parse().expect("a node's name")
}

/// See the module.
pub struct Machines {
    consul: Embedded,
    checker: Arc<Checker>,
    seed: u64,
    state: Mutex<State>,
}

struct State {
    machines: BTreeMap<NodeName, Machine>,
    rng: SimRng,
    /// Nothing fails by itself any more.
    calm: bool,
}

#[derive(Default)]
struct Machine {
    /// Its agent's session, while that runs.
    agent: Option<SessionId>,
    processes: BTreeMap<PodId, Process>,
}

/// A pod's process.
struct Process {
    manifest: Bytes,
    state: Run,
    restarts: u64,
    /// Whether the store shows it as it is.
    told: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Run {
    Running { until: Option<Instant>, then: i32 },
    Ended(Option<i32>),
    Stopping(Instant),
}

/// What becomes of one try: how long it runs, and its exit code.
struct Fate {
    runs: Option<Duration>,
    code: i32,
}

impl Machines {
    /// So many machines, none of which runs yet; `seed` decides what becomes of their processes.
    #[must_use]
    pub fn new(
        consul: Embedded,
        checker: Arc<Checker>,
        count: usize,
        mut rng: SimRng,
    ) -> Arc<Self> {
        let machines = (0..count).map(|n| (node(n), Machine::default())).collect();
        let seed = rng.seed();
        let state = Mutex::new(State { machines, rng, calm: false });
        Arc::new(Machines { consul, checker, seed, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: &Key, value: Bytes, mode: PutMode) {
        let put = self.consul.put(key, value, 0, mode);
        let _ = self.checker.now(SimActor::Node, put);
    }

    fn delete(&self, key: &Key) {
        let delete = self.consul.delete(key, DeleteMode::Always);
        let _ = self.checker.now(SimActor::Node, delete);
    }

    fn write_record(&self, node: &NodeName, state: NodeState, session: SessionId) {
        let record = NodeRecord {
            address: format!("{node}.sim"),
            state,
            session: Some(session.clone()),
            capacity: capacity(),
            ..NodeRecord::default()
        };
        self.put(&key::node(node), record.encode(), PutMode::Acquire(session));
    }

    /// Starts a machine's agent, again if it runs: its session holds its record.
    pub fn start_agent(&self, node: &NodeName) {
        self.kill_agent(node);
        let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
        let session = self.checker.now(SimActor::Node, self.consul.create_session(&new));
        let Ok(session) = session else { return };
        self.put(&key::node_labels(node), r#"{"pool":"batch"}"#.into(), PutMode::Set);
        self.write_record(node, NodeState::Ready, session.clone());
        if let Some(machine) = self.lock().machines.get_mut(node) {
            machine.agent = Some(session);
            machine.processes.values_mut().for_each(|process| process.told = false);
        }
    }

    /// A machine's agent dies; its processes go on.
    pub fn kill_agent(&self, node: &NodeName) {
        let session = self.lock().machines.get_mut(node).and_then(|machine| machine.agent.take());
        if let Some(session) = session {
            let _ = self.checker.now(SimActor::Node, self.consul.destroy_session(&session));
        }
    }

    /// The whole machine dies: nobody knows how its processes ended.
    pub fn crash(&self, node: &NodeName) {
        self.kill_agent(node);
        let mut state = self.lock();
        let Some(machine) = state.machines.get_mut(node) else { return };
        machine.processes.retain(|_, process| !matches!(process.state, Run::Stopping(_)));
        for process in machine.processes.values_mut() {
            if let Run::Running { .. } = process.state {
                process.state = Run::Ended(None);
            }
        }
    }

    /// An operator drains a machine, or ends that.
    pub fn drain(&self, node: &NodeName, state: NodeState) {
        let key = key::node(node);
        let read = self.checker.now(SimActor::User, self.consul.get(&key, Query::PLAIN));
        let entry = read.ok().and_then(|answer| answer.value);
        let Some(entry) = entry else { return };
        let mut record = NodeRecord::decode(&entry.value).unwrap_or_default();
        record.state = state;
        let put = self.consul.put(&key, record.encode(), 0, PutMode::Set);
        let _ = self.checker.now(SimActor::User, put);
    }

    /// From now on everything that runs ends well.
    pub fn calm(&self) {
        self.lock().calm = true;
    }

    /// Runs the agents, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(MOMENT).await;
            let nodes: Vec<NodeName> = self.lock().machines.keys().cloned().collect();
            for node in nodes {
                self.turn(&node);
            }
        }
    }

    /// One look of one agent.
    fn turn(&self, node: &NodeName) {
        let now = Instant::now();
        {
            // Processes end whether their agent runs or not.
            let mut state = self.lock();
            let Some(machine) = state.machines.get_mut(node) else { return };
            for process in machine.processes.values_mut() {
                if let Run::Running { until: Some(until), then } = process.state
                    && until <= now
                {
                    process.end(then, now);
                }
            }
            if machine.agent.is_none() {
                return;
            }
        }
        let intended: BTreeMap<PodId, (Arc<PodIdentity>, Bytes)> =
            self.checker.model(|model, _| {
                let all = model.intended(node);
                all.map(|(pod, identity, entry)| {
                    (pod.clone(), (identity.clone(), entry.value.clone()))
                })
                .collect()
            });
        let real: BTreeSet<PodId> = self.checker.model(|model, _| {
            let here = model.realities.keys().filter(|place| place.node == *node);
            here.map(|place| place.pod.clone()).collect()
        });
        self.stop(node, &intended, now);
        self.start(node, &intended, now);
        // What a restored snapshot shows and nobody runs.
        for pod in real {
            if !self.lock().machines[node].processes.contains_key(&pod) {
                self.delete(&key::reality(node, &pod));
                self.delete(&key::pod_status(&pod, node));
            }
        }
        self.tell(node);
    }

    fn stop(
        &self,
        node: &NodeName,
        intended: &BTreeMap<PodId, (Arc<PodIdentity>, Bytes)>,
        now: Instant,
    ) {
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            let State { machines, rng, .. } = &mut *state;
            let Some(machine) = machines.get_mut(node) else { return };
            for (pod, process) in &mut machine.processes {
                let wanted = intended.get(pod).is_some_and(|(_, text)| *text == process.manifest);
                match process.state {
                    Run::Stopping(until) if until <= now => gone.push(pod.clone()),
                    Run::Running { .. } if !wanted => {
                        process.state = Run::Stopping(now + rng.between(MOMENT, SLOWEST_STOP));
                    }
                    Run::Ended(_) if !wanted => gone.push(pod.clone()),
                    _ => {}
                }
            }
            machine.processes.retain(|pod, _| !gone.contains(pod));
        }
        for pod in gone {
            self.delete(&key::reality(node, &pod));
            self.delete(&key::pod_status(&pod, node));
        }
    }

    fn start(
        &self,
        node: &NodeName,
        intended: &BTreeMap<PodId, (Arc<PodIdentity>, Bytes)>,
        now: Instant,
    ) {
        let mut state = self.lock();
        let calm = state.calm;
        let Some(machine) = state.machines.get_mut(node) else { return };
        for (pod, (identity, manifest)) in intended {
            if machine.processes.contains_key(pod) {
                continue;
            }
            let fate = self.fate(identity, calm);
            let process = Process {
                manifest: manifest.clone(),
                state: Run::Running { until: fate.runs.map(|runs| now + runs), then: fate.code },
                restarts: 0,
                told: false,
            };
            machine.processes.insert(pod.clone(), process);
        }
    }

    /// Writes what the store does not show yet.
    fn tell(&self, node: &NodeName) {
        let mut news = Vec::new();
        {
            let mut state = self.lock();
            let Some(machine) = state.machines.get_mut(node) else { return };
            for (pod, process) in &mut machine.processes {
                if !std::mem::replace(&mut process.told, true) {
                    news.push((pod.clone(), process.manifest.clone(), process.status()));
                }
            }
        }
        for (pod, manifest, status) in news {
            let (reality, told) = (key::reality(node, &pod), key::pod_status(&pod, node));
            let ops = [
                Op::Set { key: reality, value: manifest, flags: 0 },
                Op::Set { key: told, value: status.encode(), flags: 0 },
            ];
            let _ = self.checker.now(SimActor::Node, self.consul.txn(&ops));
        }
    }

    /// What becomes of a try: always the same of the same one.
    fn fate(&self, identity: &PodIdentity, calm: bool) -> Fate {
        let text =
            format!("{}/{}/{}/{}", identity.job, identity.slot, identity.version, identity.attempt);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut rng = SimRng::new(self.seed ^ hash);
        let runs = rng.between(Duration::from_millis(300), Duration::from_secs(6));
        let name = identity.job.name.as_str();
        let (doomed, endless) = (name.starts_with("doomed"), name.starts_with("endless"));
        if endless || name.starts_with("mpi") && identity.slot.task == "Worker" {
            return Fate { runs: None, code: 0 };
        }
        let fails =
            rng.permille(if identity.version + u64::from(identity.attempt) < 3 { 300 } else { 50 });
        let code = if rng.permille(500) { 1 + rng.below(3) } else { 137 };
        let code = i32::try_from(code).unwrap_or(1);
        match doomed || fails && !calm {
            true => Fate { runs: Some(runs), code },
            false => Fate { runs: Some(runs), code: 0 },
        }
    }
}

impl Process {
    /// Its process ended; what its manifest says of restarts is the agent's business.
    fn end(&mut self, code: i32, now: Instant) {
        let manifest: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        let launchables = manifest["launchables"].as_object();
        let word = launchables.and_then(|all| all.values().next()?.get("restart")?.as_str());
        let again = match word {
            Some("on_failure") => code != 0 && self.restarts == 0,
            Some("always") => self.restarts == 0,
            _ => false,
        };
        if again {
            self.restarts += 1;
            let until = Some(now + Duration::from_secs(1));
            self.state = Run::Running { until, then: 0 };
        } else {
            self.state = Run::Ended(Some(code));
        }
        self.told = false;
    }

    fn status(&self) -> PodStatus {
        let (phase, exit) = match self.state {
            Run::Running { .. } => (NodePodPhase::Running, None),
            Run::Stopping(_) => (NodePodPhase::Stopping, None),
            Run::Ended(code) => (NodePodPhase::Ended, Some(code.unwrap_or(-1))),
        };
        let last_exit = exit.map(|exit_code| LastExit {
            time: Timestamp::UNIX_EPOCH,
            exit_code,
            exit_status: 0,
        });
        let processes =
            vec![ProcessStatus { phase, last_exit, restarts: self.restarts, ..Default::default() }];
        let health = if phase == NodePodPhase::Running { Health::Passing } else { Health::Absent };
        PodStatus { phase, health, processes, ..PodStatus::default() }
    }
}
