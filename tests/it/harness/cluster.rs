//! A store, farms that run in the test's process, and reads and writes that must succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rcfarm::daemon::{MakeScheduler, by_labels};
use rcfarm::farm::metrics::FarmMetrics;
use rcfarm::farm::records::FarmPresence;
use rcfarm::farm::{Farm, FarmError, FarmReport, FarmSettings};
use rcfarm::placement::{Discovery, NoDiscovery, Scheduler};
use rcfarm_api::Stored;
use rcfarm_api::audit::AuditRecord;
use rcfarm_api::ids::{FarmName, NodeName, PodId, RcId, SessionId};
use rcfarm_api::key;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Request, Settings};
use rcfarm_store::sealing::KeySealing;
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{Clock, IdSource, SystemClock, monotonic};
use rcfarm_store::{
    DeleteMode, Entry, Env, Key, NewSession, Prefix, PutMode, Query, Store, TxnLimits,
};
use rcfarm_testing::clock::VirtualClock;
use rcfarm_testing::requests::RequestCounter;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::MANIFEST;

pub struct RunningFarm {
    pub report: Arc<Mutex<FarmReport>>,
    pub metrics: Arc<FarmMetrics>,
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

pub struct Cluster<S = Emulator> {
    pub store: S,
    pub ids: Arc<IdSource>,
    pub clock: Arc<dyn Clock>,
    pub scheduler: Option<Arc<dyn Scheduler>>,
    pub discovery: Arc<dyn Discovery>,
    /// Transaction limits of new farms.
    pub limits: TxnLimits,
    /// How new farms store private keys.
    pub ssh_keys: KeySealing,
}

impl Cluster {
    /// In memory and in virtual time, with nodes that are labelled `pool=web`. Tokio's paused time makes hours pass in
    /// milliseconds.
    pub async fn new(nodes: usize) -> Cluster {
        let ids = Arc::new(IdSource::from_seed(1));
        let store = Emulator::new(&Settings::default(), &ids);
        let cluster = Cluster { ids, clock: VirtualClock::new(monotonic()), ..Cluster::on(store) };
        for n in 0..nodes {
            cluster.label_node(&node(n), json!({"pool": "web"})).await;
        }
        // Otherwise the first farm creates it and writes an audit record.
        cluster.put(key::queue(&"default".parse().unwrap()), "{}").await;
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

    /// Starts a farm that dies at its `nth` transaction, counted from 0, for a key under one of the prefixes: that one has
    /// the outcome `fate`, all later ones are lost. Returns how many of them were sent, too.
    pub fn start_dying(
        &self,
        prefixes: &'static [&'static str],
        nth: usize,
        fate: FaultOutcome,
    ) -> (RunningFarm, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let sent = count.clone();
        let farm = self.start_faulty("dies", move |request: &Request<'_>| {
            let Request::Txn(ops) = request else { return Fate::DELIVER };
            let is_counted = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix));
            if !ops.iter().any(|op| is_counted(&op.key)) {
                return Fate::DELIVER;
            }
            match sent.fetch_add(1, Ordering::SeqCst) {
                n if n < nth => Fate::DELIVER,
                n if n == nth => Fate::of(fate.clone()),
                _ => Fate::of(FaultOutcome::Lose),
            }
        });
        (farm, count)
    }

    pub fn start_on(&self, name: &str, selector: &str, store: Arc<dyn Store>) -> RunningFarm {
        let (settings, env) = self.settings(name, selector, store);
        let scheduler: MakeScheduler = match self.scheduler.clone() {
            Some(scheduler) => Box::new(move |_| scheduler),
            None => by_labels(),
        };
        run(Farm::of_all_kinds(settings, env, scheduler, self.discovery.clone()))
    }

    /// All entries of the store, with their versions.
    pub fn everything(&self) -> Vec<String> {
        let line =
            |entry: &Arc<Entry>| format!("{}@{}={:?}", entry.key, entry.modify_index, entry.value);
        self.store.inspect(|tables| tables.kv.list("").map(line).collect())
    }
}

impl<S: Store> Cluster<S> {
    /// On a store, in real time.
    pub fn on(store: S) -> Cluster<S> {
        Cluster {
            store,
            ids: Arc::new(IdSource::from_entropy()),
            clock: Arc::new(SystemClock),
            scheduler: None,
            discovery: Arc::new(NoDiscovery),
            limits: TxnLimits::default(),
            ssh_keys: KeySealing::Refused,
        }
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
            job_ttl: None,
            ssh_keys: self.ssh_keys.clone(),
            finds_leftovers: true,
        };
        (settings, self.env(store))
    }

    /// For a farm or an agent that uses `store`.
    pub fn env(&self, store: Arc<dyn Store>) -> Env {
        Env::new(store, self.clock.clone(), Arc::new(self.ids.fork()))
    }

    pub async fn put(&self, key: impl Display, value: impl AsRef<[u8]>) {
        let value = Bytes::copy_from_slice(value.as_ref());
        assert!(self.store.put(&parsed(key), value, 0, PutMode::Set).await.unwrap());
    }

    /// Writes a key and locks it by the session.
    pub async fn put_locked(&self, key: impl Display, value: &str, session: &SessionId) {
        let (value, mode) = (value.to_owned().into(), PutMode::Acquire(session.clone()));
        assert!(self.store.put(&parsed(key), value, 0, mode).await.unwrap());
    }

    pub async fn delete(&self, key: impl Display) {
        assert!(self.store.delete(&parsed(key), DeleteMode::Always).await.unwrap());
    }

    pub async fn entry(&self, key: impl Display) -> Option<Entry> {
        self.store.get(&parsed(key), Query::CONSISTENT).await.unwrap().value
    }

    /// Value of a key as text.
    pub async fn get(&self, key: impl Display) -> Option<String> {
        let entry = self.entry(key).await?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    /// Value of a key as JSON; the key must exist.
    pub async fn value(&self, key: impl Display) -> Value {
        let key = key.to_string();
        serde_json::from_str(&self.get(&key).await.unwrap_or_else(|| panic!("no {key}"))).unwrap()
    }

    /// A decoded record.
    pub async fn read<T: Stored>(&self, key: impl Display) -> Option<T> {
        Some(T::decode(&self.entry(key).await?.value).unwrap())
    }

    pub async fn list(&self, prefix: &Prefix) -> Vec<Entry> {
        self.store.list(prefix, Query::CONSISTENT).await.unwrap().value
    }

    pub async fn keys(&self, prefix: &Prefix) -> Vec<String> {
        self.store.keys(prefix, None, Query::CONSISTENT).await.unwrap().value
    }

    pub async fn label_node(&self, node: &NodeName, labels: Value) {
        self.put(key::node_labels(node), labels.to_string()).await;
    }

    /// A record as a user writes it.
    pub fn record(&self, n: u128, replicas: i64) -> Value {
        json!({
            "id": rc_id(n), "manifest": format!("id: pod-{n}\n"), "node_selector": "pool=web",
            "pod_labels": {"availability_zone": "az1", "cluster_name": "test"},
            "replicas_desired": replicas, "disabled": false,
            "allocation_strategy": "static_strategy",
        })
    }

    pub async fn write_rc(&self, n: u128, record: &Value) {
        self.put(key::rc(rc_id(n)), record.to_string()).await;
    }

    pub async fn create_rc(&self, n: u128, replicas: i64) {
        self.write_rc(n, &self.record(n, replicas)).await;
    }

    /// Nodes with pods of the controller. Checks that each pod has labels and intent.
    pub async fn nodes_of(&self, n: u128) -> BTreeSet<String> {
        let prefix = key::labels(key::LabelKind::Pod);
        let mut nodes = BTreeSet::new();
        for entry in self.list(&prefix).await {
            let labels: BTreeMap<String, String> =
                serde_json::from_slice(&entry.value).unwrap_or_default();
            if labels.get("replication_controller_id") != Some(&rc_id(n).to_string()) {
                continue;
            }
            let (node, pod) = key::node_and_pod(&prefix, &entry.key).unwrap();
            let intent = self.entry(key::intent(&node, &pod)).await;
            assert!(intent.is_some(), "{} has no intent", entry.key);
            nodes.insert(node.to_string());
        }
        nodes
    }

    pub async fn intent(&self, node: &NodeName, n: u128) -> Option<String> {
        self.get(key::intent(node, &pod_id(n))).await
    }

    pub async fn status(&self, n: u128) -> Option<RcStatus> {
        self.read(key::rc_status(rc_id(n))).await
    }

    pub async fn owner(&self, n: u128) -> Option<String> {
        self.entry(key::rc_lock(rc_id(n))).await?.session.map(|session| session.to_string())
    }

    pub async fn set_health(&self, node: &NodeName, n: u128, status: &str) {
        let key = key::health(&pod_id(n), node);
        let value = json!({"Id": pod_id(n), "Node": node, "Service": pod_id(n), "Status": status});
        self.put(key, value.to_string()).await;
    }

    pub async fn presence(&self, farm: &str) -> Option<FarmPresence> {
        let value = self.get(key::farm(&farm.parse().unwrap())).await?;
        Some(serde_json::from_str(&value).unwrap())
    }

    /// Labels `n1` to `n<count>` with `role=web`.
    pub async fn nodes(&self, count: usize) {
        for n in 1..=count {
            self.put(format!("labels/node/n{n}"), r#"{"role":"web"}"#).await;
        }
    }

    /// Nodes and pod ids of all labelled pods, as `<node>/<pod>`.
    pub async fn pods(&self) -> Vec<String> {
        let prefix = key::labels(key::LabelKind::Pod);
        let keys = self.keys(&prefix).await;
        keys.iter().map(|key| prefix.tail(key).unwrap().to_owned()).collect()
    }

    /// Writes a pod of a controller as a farm does.
    pub async fn pod(&self, node: &str, rc: &str) {
        let labels = format!(r#"{{"pod_id":"web","replication_controller_id":"{rc}"}}"#);
        self.put(format!("labels/pod/{node}/web"), labels).await;
        self.put(format!("intent/{node}/web"), MANIFEST).await;
    }

    /// Makes the inactive farm `f1` the owner; its presence has the fields `more`.
    pub async fn owned(&self, rc: &str, more: Value) {
        let session = self.store.create_session(&NewSession::default()).await.unwrap();
        let mut presence = json!({
            "session": session, "selector": "", "version": "1", "since": "2026-01-01T00:00:00Z",
        });
        presence.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let farm = key::farm(&"f1".parse().unwrap());
        self.put_locked(farm, &presence.to_string(), &session).await;
        self.put_locked(key::rc_lock(rc.parse().unwrap()), "f1", &session).await;
    }

    pub async fn audit(&self) -> Vec<AuditRecord> {
        let mut listed = self.list(&key::audit_logs()).await;
        listed.extend(self.list(&key::namespaced_audit_logs()).await);
        listed.sort_by_key(|entry| entry.create_index);
        listed.iter().map(|e| AuditRecord::decode(&e.value).unwrap()).collect()
    }
}

fn parsed(key: impl Display) -> Key {
    Key::parse(&key.to_string()).unwrap()
}

pub fn run(farm: Farm) -> RunningFarm {
    let (report, metrics) = (farm.report(), farm.metrics());
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(farm.run(shutdown.clone()));
    RunningFarm { report, metrics, shutdown, task }
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
