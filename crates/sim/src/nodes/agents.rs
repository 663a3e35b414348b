//! The real node agents of a world, each over the machine of its node and a network of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::capacity;
use super::machine::SimMachine;
use crate::checker::Checker;
use crate::facts::SimActor;
use crate::faults::NetworkFaults;
use crate::fleet::node;
use crate::mix::Mix;
use crate::network::{Link, Network};
use crate::rng::SimRng;
use crate::schedule::Setup;
use crate::schedule::action::Fault;
use rcfarm_api::ids::{NodeName, PodRef};
use rcfarm_api::resource_list::ResourceList;
use rcfarm_emulator::Emulator;
use rcfarm_node::agent::{Agent, AgentError, AgentSettings};
use rcfarm_store::Env;
use rcfarm_store::failpoints::Freezer;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_testing::clock::VirtualClock;

/// An agent that ended by itself is started again after this long, as a supervisor would.
const RESTART: Duration = Duration::from_secs(2);

/// The nodes that the real agent runs.
pub struct Agents {
    consul: Emulator,
    checker: Arc<Checker>,
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
}

struct State {
    hosts: BTreeMap<NodeName, Host>,
    network: NetworkFaults,
    rng: SimRng,
}

/// A node: its machine, its disk, and its agent while that runs.
struct Host {
    number: u32,
    machine: Arc<SimMachine>,
    disk: TempDir,
    capacity: ResourceList,
    running: Option<RunningAgent>,
    /// When a supervisor starts the agent again.
    restart_at: Option<Instant>,
}

struct RunningAgent {
    link: Arc<Link>,
    freezer: Freezer,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Agents {
    /// The nodes of these numbers. None of their agents runs yet.
    ///
    /// # Panics
    /// If a temporary directory cannot be made.
    #[must_use]
    pub fn new(
        consul: &Emulator,
        checker: &Arc<Checker>,
        setup: &Setup,
        mix: Mix,
        start: Instant,
        mut rng: SimRng,
    ) -> Agents {
        let clock = VirtualClock::later(start, setup.begins);
        let host = |n: &usize| {
            let name = node(*n);
            let (checker, clock, rng) = (checker.clone(), clock.clone(), rng.fork());
            let machine = SimMachine::new(name.clone(), checker.clone(), clock, start, rng);
            checker.add_machine(name.clone(), machine.clone());
            let host = Host {
                number: u32::try_from(*n).unwrap_or(u32::MAX),
                machine,
                disk: tempfile::tempdir().expect("a temporary directory"),
                capacity: capacity(mix, &name),
                running: None,
                restart_at: None,
            };
            (name, host)
        };
        let hosts = setup.agents.iter().map(host).collect();
        let state = State { hosts, network: setup.network.clone(), rng };
        let (consul, checker, state) = (consul.clone(), checker.clone(), Mutex::new(state));
        Agents { consul, checker, clock, state }
    }

    /// Sets the machines' clock forward.
    pub fn set_forward(&self, seconds: i64) {
        self.clock.jump(seconds);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host<T>(&self, node: &NodeName, change: impl FnOnce(&mut Host) -> T) -> Option<T> {
        self.lock().hosts.get_mut(node).map(change)
    }

    /// Whether the real agent runs this node.
    #[must_use]
    pub fn has(&self, node: &NodeName) -> bool {
        self.lock().hosts.contains_key(node)
    }

    /// Starts a node's agent, unless it runs.
    pub fn start(&self, node: &NodeName) {
        let mut state = self.lock();
        let State { hosts, network, rng } = &mut *state;
        let Some(host) = hosts.get_mut(node).filter(|host| host.running.is_none()) else { return };
        host.restart_at = None;
        host.machine.turn_on();
        let actor = SimActor::Agent(host.number);
        let link = Link::new(actor, false, rng.fork());
        link.weather(|weather| *weather = network.clone());
        let consul = self.consul.at_node(&format!("consul-{node}"));
        let store = Network::new(consul, link.clone(), self.checker.clone());
        let ids = Arc::new(IdSource::from_seed(rng.seed()));
        let env = Env::new(store, self.clock.clone(), ids);
        let data_dir = host.disk.path().to_owned();
        let settings = AgentSettings {
            capacity: host.capacity.clone(),
            ..AgentSettings::new(node.clone(), format!("{node}.sim"), data_dir)
        };
        let agent = Agent::new(settings, env, host.machine.clone());
        let freezer = Freezer::default();
        let task = tokio::spawn(freezer.process(agent.run(CancellationToken::new())));
        host.running = Some(RunningAgent { link, freezer, task });
    }

    /// SIGKILL. The processes go on.
    pub fn kill(&self, node: &NodeName) {
        self.host(node, |host| {
            host.restart_at = None;
            if let Some(running) = host.running.take() {
                running.task.abort();
            }
        });
    }

    /// The machine loses power.
    pub fn crash(&self, node: &NodeName) {
        self.kill(node);
        self.host(node, |host| host.machine.crash());
    }

    /// The agent is frozen, as by SIGSTOP, or goes on.
    pub fn freeze(&self, node: &NodeName, frozen: bool) {
        self.host(node, |host| match &host.running {
            Some(running) if frozen => running.freezer.freeze(),
            Some(running) => running.freezer.thaw(),
            None => {}
        });
    }

    /// The services of a node fail their checks, or pass again.
    pub fn set_ill(&self, node: &NodeName, ill: bool) {
        self.host(node, |host| host.machine.set_ill(ill));
    }

    pub fn weather(&self, node: &NodeName, change: impl FnOnce(&mut NetworkFaults)) {
        self.host(node, |host| {
            if let Some(running) = &host.running {
                running.link.weather(change);
            }
        });
    }

    fn every_wire(&self, change: impl Fn(&mut NetworkFaults)) {
        let state = self.lock();
        let running = state.hosts.values().filter_map(|host| host.running.as_ref());
        running.for_each(|running| running.link.weather(&change));
    }

    /// The network of an agent is at fault; the default ends that.
    pub fn storm(&self, node: &NodeName, storm: &NetworkFaults) {
        let calm = self.lock().network.clone();
        let is_over = *storm == NetworkFaults::default();
        self.weather(node, |w| *w = if is_over { calm } else { storm.clone() });
    }

    /// What a fault of Consul means for the agents.
    pub fn inject(&self, fault: &Fault) {
        match fault {
            Fault::Leaderless(leaderless) => self.every_wire(|w| w.leaderless = *leaderless),
            Fault::SlowLists(by) => self.every_wire(|w| w.slow_lists = *by),
            Fault::Stall(length) => {
                let until = Some(monotonic() + *length);
                self.every_wire(|w| w.stalled_until = until);
            }
            _ => {}
        }
    }

    /// Whether a process runs that is not intended.
    #[must_use]
    pub fn run_unwanted(&self) -> bool {
        self.checker.look(|model, facts| {
            facts.machines.iter().any(|(node, machine)| {
                machine.runs(|runs| {
                    runs.iter().any(|(pod, runs)| {
                        let place = PodRef { node: node.clone(), pod: pod.clone() };
                        let is_alive = runs.iter().any(|run| run.exit_code.is_none());
                        is_alive && model.agents.intended(&place).is_none()
                    })
                })
            })
        })
    }

    /// Every fault ends, and nothing fails by itself any more.
    pub fn heal(&self) {
        let calm = NetworkFaults { latency: Duration::from_millis(5), ..NetworkFaults::default() };
        self.every_wire(|weather| *weather = calm.clone());
        let mut state = self.lock();
        state.network = calm;
        for host in state.hosts.values() {
            host.machine.calm();
            if let Some(running) = &host.running {
                running.freezer.thaw();
            }
        }
    }

    /// Starts again what ended by itself. 30: an agent does not panic.
    pub fn supervise(&self) {
        let now = monotonic();
        let mut due = Vec::new();
        for (name, host) in &mut self.lock().hosts {
            if host.running.as_ref().is_some_and(|running| running.task.is_finished()) {
                host.running = None;
                host.restart_at = Some(now + RESTART);
            }
            if host.restart_at.is_some_and(|at| at <= now) {
                due.push(name.clone());
            }
        }
        due.iter().for_each(|node| self.start(node));
    }

    /// Requests of each agent that runs, so far.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<NodeName, u64> {
        let state = self.lock();
        let running = state.hosts.iter().filter_map(|(name, host)| {
            Some((name.clone(), host.running.as_ref()?.link.requests()))
        });
        running.collect()
    }
}
