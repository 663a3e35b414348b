//! Nodes: their labels and records, and the pods on them.
//!
//! The real agent runs some nodes, over a machine in virtual time (`agents.rs`, `machine.rs`). A stand-in runs the
//! others. It is faster than the agent, and its writes are neither delayed nor lost.
//!
//! The stand-in is correct and prompt. The pod of a replication controller is healthy shortly after its intent
//! appears, unless its node is ill. The process of a job's pod starts, ends as drawn from the seed, and is stopped when it
//! is no longer intended. An agent that dies leaves its processes running, and the next one adopts them. A machine that
//! crashes ends them, and how they ended is unknown.

mod agents;
mod machine;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::time::Instant;

use crate::checker::Checker;
use crate::facts::SimActor;
use crate::fleet::{DEVICES, node};
use crate::mix::Mix;
use crate::rng::SimRng;
use crate::schedule::Setup;
pub use agents::Agents;
use process::{NodeProcess, ProcessFate, Run};
use rcfarm::job::manifest::PodIdentity;
use rcfarm_api::Stored;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{NodeName, PodId, SessionId};
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_api::resource_list::{CPU, ResourceList};
use rcfarm_emulator::Emulator;
use rcfarm_store::time::monotonic;
use rcfarm_store::{Behavior, DeleteMode, Key, NewSession, Op, PutMode, Query, Reader, Store};

/// Interval at which agents read their intents; health of services every second time.
const MOMENT: Duration = Duration::from_millis(200);
/// Longest time that a process takes to stop.
const SLOWEST_STOP: Duration = Duration::from_secs(4);

/// What a node's agent says that it has.
fn capacity(mix: Mix, node: &NodeName) -> ResourceList {
    let large = ["n4", "n6"].contains(&node.as_str());
    let cpu_milli = match (mix.is_both(), large) {
        (true, true) => 5_000,
        (false, false) if mix.services => 2_000,
        _ => 3_000,
    };
    let capacity = ResourceList::default().with(CPU, cpu_milli);
    if mix.cells { capacity.with("gpu", u64::from(DEVICES)) } else { capacity }
}

/// Every node of a world.
pub struct Nodes {
    consul: Emulator,
    checker: Arc<Checker>,
    mix: Mix,
    seed: u64,
    count: usize,
    /// The nodes that the real agent runs.
    pub agents: Agents,
    state: Mutex<State>,
}

struct State {
    nodes: BTreeMap<NodeName, Node>,
    rng: SimRng,
    /// Pods of replication controllers that are being restarted, since their intents were replaced.
    restarting: BTreeSet<PodRef>,
    /// Nothing fails by itself from now on.
    calm: bool,
}

#[derive(Default)]
struct Node {
    /// Session of its agent, while it runs.
    agent: Option<SessionId>,
    /// Its services fail their checks.
    ill: bool,
    processes: BTreeMap<PodId, NodeProcess>,
}

type JobPods = BTreeMap<PodId, (Arc<PodIdentity>, Bytes)>;

impl Nodes {
    /// Nodes without agents. `rng` decides the fate of their processes.
    #[must_use]
    pub fn new(
        consul: Emulator,
        checker: Arc<Checker>,
        mix: Mix,
        setup: &Setup,
        start: Instant,
        mut rng: SimRng,
    ) -> Arc<Self> {
        let stand_ins = (0..setup.nodes).filter(|n| !setup.agents.contains(n));
        let nodes = stand_ins.map(|n| (node(n), Node::default())).collect();
        let seed = rng.seed();
        let machines = SimRng::new(seed);
        let agents = Agents::new(&consul, &checker, setup, mix, start, machines);
        let state = Mutex::new(State { nodes, rng, restarting: BTreeSet::new(), calm: false });
        Arc::new(Nodes { consul, checker, mix, seed, count: setup.nodes, agents, state })
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, actor: SimActor, key: &Key, value: impl Into<Bytes>, mode: PutMode) {
        let put = self.consul.put(key, value.into(), 0, mode);
        let _ = self.checker.now(actor, put);
    }

    fn delete(&self, key: &Key) {
        let delete = self.consul.delete(key, DeleteMode::Always);
        let _ = self.checker.now(SimActor::Node, delete);
    }

    /// Whether a node has a record. In a world with replication controllers some have none, like p2's.
    #[must_use]
    pub fn has_own_agent(&self, n: usize) -> bool {
        !self.mix.services || n % 3 != 2
    }

    /// Labels a node. `None`: the value is malformed.
    pub fn label(&self, node: &NodeName, pool: Option<&str>) {
        let value = pool.map_or("{".to_owned(), |pool| json!({"pool": pool}).to_string());
        self.put(SimActor::Node, &key::node_labels(node), value, PutMode::Set);
    }

    /// Starts a node's agent. The stand-in starts again if it runs: its session then holds its record.
    pub fn start_agent(&self, node: &NodeName) {
        if self.agents.has(node) {
            self.agents.start(node);
            return;
        }
        self.kill_agent(node);
        let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
        let session = self.checker.now(SimActor::Node, self.consul.create_session(&new));
        let Ok(session) = session else { return };
        let record = NodeRecord {
            address: format!("{node}.sim"),
            state: NodeState::Ready,
            session: Some(session.clone()),
            capacity: capacity(self.mix, node),
            ..NodeRecord::default()
        };
        let acquire = PutMode::Acquire(session.clone());
        self.put(SimActor::Node, &key::node(node), record.encode(), acquire);
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.agent = Some(session);
            node.processes.values_mut().for_each(|process| process.told = false);
        }
    }

    /// Makes sure that a node's agent holds its record, and that it is not drained.
    pub fn keep_agent(&self, node: &NodeName) {
        if self.agents.has(node) {
            self.agents.start(node);
            self.drain(node, NodeState::Ready);
            return;
        }
        let key = key::node(node);
        let read = self.consul.get(&key, Query::PLAIN);
        let holder = self.checker.now(SimActor::Node, read).ok().and_then(|answer| answer.value);
        let holder = holder.and_then(|entry| entry.session.clone());
        let agent = self.lock().nodes.get(node).and_then(|node| node.agent.clone());
        match agent.is_some() && agent == holder {
            true => self.drain(node, NodeState::Ready),
            false => self.start_agent(node),
        }
    }

    /// Kills a node's agent. Its processes keep running.
    pub fn kill_agent(&self, node: &NodeName) {
        self.agents.kill(node);
        let session = self.lock().nodes.get_mut(node).and_then(|node| node.agent.take());
        if let Some(session) = session {
            let _ = self.checker.now(SimActor::Node, self.consul.destroy_session(&session));
        }
    }

    /// Crashes the machine: how its processes ended is unknown.
    pub fn crash(&self, node: &NodeName) {
        self.kill_agent(node);
        self.agents.crash(node);
        let mut state = self.lock();
        let Some(node) = state.nodes.get_mut(node) else { return };
        node.processes.retain(|_, process| !matches!(process.state, Run::Stopping(_)));
        for process in node.processes.values_mut() {
            if let Run::Running { .. } = process.state {
                process.state = Run::Ended(None);
            }
        }
    }

    /// Makes every agent report all of its processes again, as after it has found other reports than its own.
    pub fn report_again(&self) {
        for node in self.lock().nodes.values_mut() {
            node.processes.values_mut().for_each(|process| process.told = false);
        }
    }

    /// Whether a node has an agent.
    #[must_use]
    pub fn has_agent(&self, node: &NodeName) -> bool {
        self.agents.has(node)
            || self.lock().nodes.get(node).is_some_and(|node| node.agent.is_some())
    }

    /// Drains a node, or ends the drain.
    pub fn drain(&self, node: &NodeName, state: NodeState) {
        let key = key::node(node);
        let read = self.consul.get(&key, Query::PLAIN);
        let Ok(answer) = self.checker.now(SimActor::User, read) else { return };
        let entry = answer.value.as_ref();
        let record = entry.and_then(|entry| NodeRecord::decode(&entry.value).ok());
        let mut record = record.unwrap_or_default();
        if entry.is_some() && record.state == state {
            return;
        }
        record.state = state;
        self.put(SimActor::User, &key, record.encode(), PutMode::Set);
    }

    /// An operator ends the session that holds a node's record.
    pub fn end_session(&self, node: &NodeName) {
        let read =
            self.checker.now(SimActor::User, self.consul.get(&key::node(node), Query::PLAIN));
        let entry = read.ok().and_then(|answer| answer.value);
        if let Some(session) = entry.and_then(|entry| entry.session) {
            let _ = self.checker.now(SimActor::User, self.consul.destroy_session(&session));
        }
    }

    /// Makes a node's services fail their checks, or pass again.
    pub fn set_ill(&self, node: &NodeName, ill: bool) {
        self.agents.set_ill(node, ill);
        if let Some(node) = self.lock().nodes.get_mut(node) {
            node.ill = ill;
        }
    }

    /// From now on every service passes, every process that is not doomed succeeds, and no network is at fault.
    pub fn calm(&self) {
        self.agents.heal();
        let mut state = self.lock();
        state.calm = true;
        state.nodes.values_mut().for_each(|node| node.ill = false);
    }

    /// Runs the agents without end.
    pub async fn run(self: Arc<Self>) {
        let nodes: Vec<NodeName> = self.lock().nodes.keys().cloned().collect();
        loop {
            for is_second in [false, true] {
                tokio::time::sleep(MOMENT).await;
                self.agents.supervise();
                if self.mix.jobs {
                    nodes.iter().for_each(|node| self.turn(node));
                }
                if is_second && self.mix.services {
                    self.report_services();
                }
            }
        }
    }

    // ---- services ----------------------------------------------------------------------------------------

    /// Restarts pods whose intents were replaced, unless their agent is gone. A restart begins in one turn, with a failing
    /// check, and ends in the next: the node then reports the manifest that it runs.
    fn restart_services(&self) -> BTreeSet<PodRef> {
        let mut state = self.lock();
        let acts = |(n, name): (usize, &NodeName)| {
            let node = state.nodes.get(name)?;
            (node.agent.is_some() || !self.has_own_agent(n)).then(|| name.clone())
        };
        let names: Vec<NodeName> = (0..self.count).map(node).collect();
        let nodes: BTreeSet<NodeName> = names.iter().enumerate().filter_map(acts).collect();
        let replaced: BTreeMap<PodRef, Bytes> = self.checker.look(|model, _| {
            let services = &model.services;
            let is_service = |place: &&PodRef| {
                nodes.contains(&place.node) && !model.jobs.intents.contains_key(*place)
            };
            let places = services.unproved.keys().filter(is_service);
            let intent =
                |place: &PodRef| Some((place.clone(), services.intent(place)?.value.clone()));
            places.filter_map(intent).collect()
        });
        let were = std::mem::take(&mut state.restarting);
        let begun = replaced.keys().filter(|place| !were.contains(*place)).cloned().collect();
        state.restarting.clone_from(&begun);
        drop(state);
        for (place, manifest) in replaced.into_iter().filter(|(place, _)| were.contains(place)) {
            let key = key::reality(&place.node, &place.pod);
            self.put(SimActor::Node, &key, manifest, PutMode::Set);
        }
        begun
    }

    /// Writes the health of services where it has changed.
    fn report_services(&self) {
        let restarting = self.restart_services();
        let (ill, nodes): (BTreeSet<NodeName>, BTreeSet<NodeName>) = {
            let state = self.lock();
            let ill = state.nodes.iter().filter(|(_, node)| node.ill);
            (ill.map(|(name, _)| name.clone()).collect(), state.nodes.keys().cloned().collect())
        };
        let news: Vec<(PodRef, Health)> = self.checker.look(|model, _| {
            let (services, jobs) = (&model.services, &model.jobs);
            let wanted = |place: &PodRef| match services.intents.contains(place) {
                true if ill.contains(&place.node) || restarting.contains(place) => Health::Critical,
                true => Health::Passing,
                false => Health::Absent,
            };
            let said = |place: &PodRef| {
                services.health.get(place).and_then(|t| t.now().copied()).unwrap_or_default()
            };
            let places = services.intents.iter().chain(services.health.keys());
            let is_ours =
                |place: &&PodRef| nodes.contains(&place.node) && !jobs.intents.contains_key(*place);
            let places = places.filter(is_ours);
            let places: BTreeSet<&PodRef> = places.collect();
            let news = places.into_iter().filter_map(|place| {
                let wanted = wanted(place);
                (wanted != said(place)).then(|| (place.clone(), wanted))
            });
            news.collect()
        });
        for (PodRef { node, pod }, health) in news {
            let key = key::health(&pod, &node);
            if health == Health::Absent {
                self.delete(&key);
            } else {
                let status = health.to_string();
                let value = json!({"Id": pod, "Node": node, "Service": pod, "Status": status});
                self.put(SimActor::Node, &key, value.to_string(), PutMode::Set);
            }
        }
    }

    // ---- jobs --------------------------------------------------------------------------------------------

    /// One reconciliation of jobs' pods by one agent.
    fn turn(&self, node: &NodeName) {
        let now = monotonic();
        if !self.end_processes(node, now) {
            return;
        }
        let (intended, real): (JobPods, BTreeSet<PodId>) = self.checker.look(|model, _| {
            let pods = model.jobs.intended(node).map(|(pod, identity, entry)| {
                (pod.clone(), (identity.clone(), entry.value.clone()))
            });
            let real = model.jobs.realities.keys().filter(|place| place.node == *node);
            (pods.collect(), real.map(|place| place.pod.clone()).collect())
        });
        self.stop(node, &intended, now);
        self.start(node, &intended, now);
        // Realities from a restored snapshot that no process has.
        for pod in real {
            if !self.lock().nodes[node].processes.contains_key(&pod) {
                self.delete(&key::reality(node, &pod));
                self.delete(&key::pod_status(&pod, node));
            }
        }
        self.tell(node);
    }

    /// Ends processes whose time has come, also without an agent. Returns whether the agent runs.
    fn end_processes(&self, node: &NodeName, now: Instant) -> bool {
        let mut state = self.lock();
        let Some(node) = state.nodes.get_mut(node) else { return false };
        for process in node.processes.values_mut() {
            if let Run::Running { until: Some(until), then } = process.state
                && until <= now
            {
                process.end(then, now);
            }
        }
        node.agent.is_some()
    }

    fn stop(&self, node: &NodeName, intended: &JobPods, now: Instant) {
        let mut gone = Vec::new();
        {
            let mut state = self.lock();
            let State { nodes, rng, .. } = &mut *state;
            let Some(node) = nodes.get_mut(node) else { return };
            for (pod, process) in &mut node.processes {
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
            node.processes.retain(|pod, _| !gone.contains(pod));
        }
        for pod in gone {
            self.delete(&key::reality(node, &pod));
            self.delete(&key::pod_status(&pod, node));
        }
    }

    fn start(&self, node: &NodeName, intended: &JobPods, now: Instant) {
        let mut state = self.lock();
        let calm = state.calm;
        let Some(node) = state.nodes.get_mut(node) else { return };
        for (pod, (identity, manifest)) in intended {
            if node.processes.contains_key(pod) {
                continue;
            }
            let fate = ProcessFate::of(self.seed, identity, calm);
            let until = fate.runs.map(|runs| now + runs);
            let state = Run::Running { until, then: fate.code };
            let manifest = manifest.clone();
            node.processes
                .insert(pod.clone(), NodeProcess { manifest, state, restarts: 0, told: false });
        }
    }

    /// Writes states that the store does not show yet.
    fn tell(&self, node: &NodeName) {
        let mut news = Vec::new();
        {
            let mut state = self.lock();
            let Some(node) = state.nodes.get_mut(node) else { return };
            for (pod, process) in &mut node.processes {
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
}
