//! An in-memory store with farms and a user. Tokio's paused time makes hours pass in milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rcfarm::daemon::{MakeScheduler, by_labels};
use rcfarm::farm::records::FarmPresence;
use rcfarm::farm::{Farm, FarmError, FarmReport, FarmSettings};
use rcfarm::placement::{Discovery, NoDiscovery, Scheduler};
use rcfarm_api::Stored;
use rcfarm_api::ids::{FarmName, NodeName, PodId, RcId};
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{Emulator, Settings};
use rcfarm_emulator::{Fate, Request};
use rcfarm_store::Env;
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{DeleteMode, PutMode, Query, Reader, Store, TxnLimits};
use rcfarm_testing::clock::VirtualClock;
use rcfarm_testing::requests::RequestCounter;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub struct RunningFarm {
    pub report: Arc<Mutex<FarmReport>>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), FarmError>>,
}

impl RunningFarm {
    /// As `kill -9`: sends nothing more to Consul.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// As SIGTERM: releases all claims and returns.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    pub async fn outcome(self) -> Result<(), FarmError> {
        self.task.await.unwrap()
    }

    pub fn claims(&self) -> usize {
        self.report.lock().unwrap().claims.get("rc").copied().unwrap_or(0)
    }
}

pub struct Cluster {
    pub store: Emulator,
    pub ids: Arc<IdSource>,
    pub clock: Arc<VirtualClock>,
    pub scheduler: Option<Arc<dyn Scheduler>>,
    pub discovery: Arc<dyn Discovery>,
    /// Transaction limits of new farms.
    pub limits: TxnLimits,
}

impl Cluster {
    pub async fn new(nodes: usize) -> Cluster {
        let ids = Arc::new(IdSource::from_seed(1));
        let cluster = Cluster {
            store: Emulator::new(&Settings::default(), &ids),
            ids,
            clock: VirtualClock::new(monotonic()),
            scheduler: None,
            discovery: Arc::new(NoDiscovery),
            limits: TxnLimits::default(),
        };
        for n in 0..nodes {
            cluster.label_node(&node(n), json!({"pool": "web"})).await;
        }
        // Otherwise the first farm creates it and writes an audit record.
        cluster.put(key::queue(&"default".parse().unwrap()).as_str(), "{}").await;
        cluster
    }

    pub fn start(&self, name: &str) -> RunningFarm {
        self.start_on(name, "", Arc::new(self.store.clone()))
    }

    pub fn start_selecting(&self, name: &str, selector: &str) -> RunningFarm {
        self.start_on(name, selector, Arc::new(self.store.clone()))
    }

    pub fn start_counted(&self, name: &str) -> (RunningFarm, Arc<RequestCounter>) {
        let (store, counter) = RequestCounter::on(&self.store);
        (self.start_on(name, "", Arc::new(store)), counter)
    }

    /// Starts a farm whose requests are subject to `faults`.
    pub fn start_faulty(
        &self,
        name: &str,
        faults: impl Fn(&Request<'_>) -> Fate + Send + Sync + 'static,
    ) -> RunningFarm {
        self.start_on(name, "", Arc::new(self.store.with_faults(Arc::new(faults))))
    }

    pub fn start_on(&self, name: &str, selector: &str, store: Arc<dyn Store>) -> RunningFarm {
        let (settings, env) = self.settings(name, selector, store);
        let scheduler = self.scheduler.clone();
        let scheduler: MakeScheduler = match scheduler {
            Some(scheduler) => Box::new(move |_| scheduler),
            None => by_labels(),
        };
        run(Farm::of_all_kinds(settings, env, scheduler, self.discovery.clone()))
    }

    /// Settings of a farm of any kinds.
    pub fn settings(
        &self,
        name: &str,
        selector: &str,
        store: Arc<dyn Store>,
    ) -> (FarmSettings, Env) {
        let settings = FarmSettings {
            name: name.parse::<FarmName>().unwrap(),
            selector: selector.parse().unwrap(),
            session: SessionSettings::default(),
            limits: self.limits,
            node_grace: rcfarm::farm::NODE_GRACE,
        };
        (settings, Env::new(store, self.clock.clone(), Arc::new(self.ids.fork())))
    }

    /// Value of a key; empty if absent.
    pub async fn text(&self, key: &str) -> String {
        let key = rcfarm_store::Key::parse(key).unwrap();
        let entry = self.store.get(&key, Query::PLAIN).await.unwrap().value;
        entry.map(|e| String::from_utf8_lossy(&e.value).into_owned()).unwrap_or_default()
    }

    pub async fn put(&self, key: &str, value: impl Into<Bytes>) {
        let key = rcfarm_store::Key::parse(key).unwrap();
        assert!(self.store.put(&key, value.into(), 0, PutMode::Set).await.unwrap());
    }

    pub async fn delete(&self, key: &str) {
        let key = rcfarm_store::Key::parse(key).unwrap();
        assert!(self.store.delete(&key, DeleteMode::Always).await.unwrap());
    }

    pub async fn label_node(&self, node: &NodeName, labels: serde_json::Value) {
        self.put(key::node_labels(node).as_str(), labels.to_string()).await;
    }

    /// A record as a user writes it.
    pub fn record(&self, n: u128, replicas: i64) -> serde_json::Value {
        json!({
            "id": rc_id(n), "manifest": format!("id: pod-{n}\n"), "node_selector": "pool=web",
            "pod_labels": {"availability_zone": "az1", "cluster_name": "test"},
            "replicas_desired": replicas, "disabled": false,
            "allocation_strategy": "static_strategy",
        })
    }

    pub async fn write_rc(&self, n: u128, record: &serde_json::Value) {
        self.put(key::rc(rc_id(n)).as_str(), record.to_string()).await;
    }

    pub async fn create_rc(&self, n: u128, replicas: i64) {
        self.write_rc(n, &self.record(n, replicas)).await;
    }

    /// Nodes with pods of the controller. Checks that each pod has labels and intent.
    pub async fn nodes_of(&self, n: u128) -> BTreeSet<String> {
        let prefix = key::labels(key::LabelKind::Pod);
        let labelled = self.store.list(&prefix, Query::PLAIN).await.unwrap().value;
        let mut nodes = BTreeSet::new();
        for entry in labelled {
            let labels: BTreeMap<String, String> =
                serde_json::from_slice(&entry.value).unwrap_or_default();
            if labels.get("replication_controller_id") != Some(&rc_id(n).to_string()) {
                continue;
            }
            let (node, pod) = key::node_and_pod(&prefix, &entry.key).unwrap();
            let intent = self.store.get(&key::intent(&node, &pod), Query::PLAIN).await.unwrap();
            assert!(intent.value.is_some(), "{} has no intent", entry.key);
            nodes.insert(node.to_string());
        }
        nodes
    }

    pub async fn intent(&self, node: &NodeName, n: u128) -> Option<String> {
        let key = key::intent(node, &pod_id(n));
        let entry = self.store.get(&key, Query::PLAIN).await.unwrap().value?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    pub async fn status(&self, n: u128) -> Option<RcStatus> {
        let entry = self.store.get(&key::rc_status(rc_id(n)), Query::PLAIN).await.unwrap().value?;
        Some(RcStatus::decode(&entry.value).unwrap())
    }

    pub async fn owner(&self, n: u128) -> Option<String> {
        let entry = self.store.get(&key::rc_lock(rc_id(n)), Query::PLAIN).await.unwrap().value?;
        entry.session.map(|session| session.to_string())
    }

    pub async fn set_health(&self, node: &NodeName, n: u128, status: &str) {
        let key = key::health(&pod_id(n), node);
        let value = json!({"Id": pod_id(n), "Node": node, "Service": pod_id(n), "Status": status});
        self.put(key.as_str(), value.to_string()).await;
    }

    pub async fn presence(&self, farm: &str) -> Option<FarmPresence> {
        let key = key::farm(&farm.parse().unwrap());
        let entry = self.store.get(&key, Query::PLAIN).await.unwrap().value?;
        Some(serde_json::from_slice(&entry.value).unwrap())
    }

    pub async fn audit(&self) -> Vec<rcfarm_api::audit::AuditRecord> {
        let listed = self.store.list(&key::audit_logs(), Query::PLAIN).await.unwrap().value;
        listed.iter().map(|e| rcfarm_api::audit::AuditRecord::decode(&e.value).unwrap()).collect()
    }
}

pub fn run(farm: Farm) -> RunningFarm {
    let report = farm.report();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(farm.run(shutdown.clone()));
    RunningFarm { report, shutdown, task }
}

pub fn rc_id(n: u128) -> RcId {
    RcId(uuid::Uuid::from_u128(0xabcd_0000_0000_4000_8000_0000_0000_0000 + n))
}

pub fn pod_id(n: u128) -> PodId {
    format!("pod-{n}").parse().unwrap()
}

pub fn node(n: usize) -> NodeName {
    format!("n{n:04}").parse().unwrap()
}
