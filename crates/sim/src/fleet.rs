//! The machines: their labels, their records, and the health of the pods that are intended for them.
//!
//! Agents are honest and prompt: a moment after an intent appears the pod is healthy, unless its node is ill.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::checker::{Checker, SimActor};
use super::invariant::Picture;
use rcfarm_api::Stored;
use rcfarm_api::ids::PodRef;
use rcfarm_api::ids::{NodeName, SessionId};
use rcfarm_api::key;
use rcfarm_api::manifest::Resources;
use rcfarm_api::node::Health;
use rcfarm_api::node::record::{NodeRecord, NodeState};
use rcfarm_emulator::Embedded;
use rcfarm_store::{Behavior, DeleteMode, NewSession, PutMode, Reader, Store};

/// See the module.
pub struct SimFleet {
    consul: Embedded,
    checker: Arc<Checker>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ill: BTreeSet<NodeName>,
    agents: BTreeMap<NodeName, SessionId>,
}

/// Agents look at their intents this often.
const MOMENT: Duration = Duration::from_millis(400);

/// The name of a machine.
#[must_use]
pub fn node(n: usize) -> NodeName {
    format!("n{n}").parse().expect("a node's name")
}

/// What a machine's agent says that it has.
fn capacity(node: &NodeName) -> Resources {
    let large = ["n4", "n6"].contains(&node.as_str());
    let cpu_milli = if large { 3_000 } else { 2_000 };
    Resources { cpu_milli, ..Resources::default() }
}

impl SimFleet {
    /// No machines yet.
    #[must_use]
    pub fn new(consul: Embedded, checker: Arc<Checker>) -> Arc<SimFleet> {
        Arc::new(SimFleet { consul, checker, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: &rcfarm_store::Key, value: String, mode: PutMode) {
        let put = self.consul.put(key, value.into(), 0, mode);
        let _ = self.checker.now(SimActor::Node, put);
    }

    /// Labels a machine; `None`: the value is malformed.
    pub fn label(&self, node: &NodeName, pool: Option<&str>) {
        let value = pool.map_or("{".to_owned(), |pool| json!({"pool": pool}).to_string());
        self.put(&key::node_labels(node), value, PutMode::Set);
    }

    /// Starts a machine's agent, again if it runs: its session holds its record.
    pub fn start_agent(&self, node: &NodeName, state: NodeState) {
        self.kill_agent(node);
        let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
        let session = self.checker.now(SimActor::Node, self.consul.create_session(&new));
        let Ok(session) = session else { return };
        let (session_of, capacity) = (Some(session.clone()), capacity(node));
        let record = NodeRecord { state, session: session_of, capacity, ..NodeRecord::default() };
        let value = String::from_utf8_lossy(&record.encode()).into_owned();
        self.put(&key::node(node), value, PutMode::Acquire(session.clone()));
        self.lock().agents.insert(node.clone(), session);
    }

    /// Sees to it that a machine's agent holds its record, as it does if nothing happened to it.
    pub fn keep_agent(&self, node: &NodeName) {
        let key = key::node(node);
        let read = self.consul.get(&key, rcfarm_store::Query::PLAIN);
        let holder = self.checker.now(SimActor::Node, read).ok().and_then(|answer| answer.value);
        let holder = holder.and_then(|entry| entry.session.clone());
        let agent = self.lock().agents.get(node).cloned();
        match agent.is_some() && agent == holder {
            true => self.drain(node, NodeState::Ready),
            false => self.start_agent(node, NodeState::Ready),
        }
    }

    /// A machine's agent dies.
    pub fn kill_agent(&self, node: &NodeName) {
        let session = self.lock().agents.remove(node);
        if let Some(session) = session {
            let _ = self.checker.now(SimActor::Node, self.consul.destroy_session(&session));
        }
    }

    /// Whether a machine has an agent.
    #[must_use]
    pub fn has_agent(&self, node: &NodeName) -> bool {
        self.lock().agents.contains_key(node)
    }

    /// An operator drains a machine, or ends that.
    pub fn drain(&self, node: &NodeName, state: NodeState) {
        let key = key::node(node);
        let read = self.consul.get(&key, rcfarm_store::Query::PLAIN);
        let Ok(answer) = self.checker.now(SimActor::User, read) else { return };
        let entry = answer.value.as_ref();
        let mut record =
            entry.and_then(|entry| NodeRecord::decode(&entry.value).ok()).unwrap_or_default();
        if entry.is_some() && record.state == state {
            return;
        }
        record.state = state;
        let value = String::from_utf8_lossy(&record.encode()).into_owned();
        self.put(&key, value, PutMode::Set);
    }

    /// A machine's pods fail their checks, or pass again.
    pub fn set_ill(&self, node: &NodeName, ill: bool) {
        let set = &mut self.lock().ill;
        if ill {
            set.insert(node.clone())
        } else {
            set.remove(node)
        };
    }

    /// Everything is well.
    pub fn heal(&self) {
        self.lock().ill.clear();
    }

    /// Runs the agents, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(MOMENT).await;
            self.report();
        }
    }

    fn report(&self) {
        let said = |picture: &Picture, place: &PodRef| {
            picture.health.get(place).and_then(|t| t.now().copied()).unwrap_or_default()
        };
        let ill = self.lock().ill.clone();
        let wanted = |picture: &Picture, place: &PodRef| match picture.intents.contains(place) {
            true if ill.contains(&place.node) => Health::Critical,
            true => Health::Passing,
            false => Health::Absent,
        };
        let news: Vec<(PodRef, Health)> = self.checker.look(|picture, _| {
            let places = picture.intents.iter().chain(picture.health.keys());
            let places: BTreeSet<&PodRef> = places.collect();
            let news = places.into_iter().filter_map(|place| {
                let wanted = wanted(picture, place);
                (wanted != said(picture, place)).then(|| (place.clone(), wanted))
            });
            news.collect()
        });
        for (PodRef { node, pod }, health) in news {
            let key = key::health(&pod, &node);
            if health == Health::Absent {
                let delete = self.consul.delete(&key, DeleteMode::Always);
                let _ = self.checker.now(SimActor::Node, delete);
            } else {
                let status = health.to_string();
                let value = json!({"Id": pod, "Node": node, "Service": pod, "Status": status});
                self.put(&key, value.to_string(), PutMode::Set);
            }
        }
    }
}
