//! A server, the binary, and optionally a farm.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use rcfarm::daemon::by_labels;
use rcfarm::farm::{Farm, FarmSettings};
use rcfarm::placement::NoDiscovery;
use rcfarm_api::key::{self, LabelKind};
use rcfarm_api::labels::Selector;
use rcfarm_emulator::Emulator;
use rcfarm_emulator::serve::{CONSULS_CONNECTIONS, serve};
use rcfarm_store::Env;
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{IdSource, SystemClock};
use rcfarm_store::{Key, NewSession, PutMode, Query, Reader, Store, TxnLimits};
use rcfarm_testing::program::Program;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Manifest of new controllers.
pub const MANIFEST: &str = "id: web\nlaunchables:\n  web:\n    launchable_type: hoist\n";

pub use rcfarm_testing::program::Ran;

/// A server on loopback, stopped when dropped.
pub struct World {
    pub consul: Emulator,
    pub address: SocketAddr,
    pub dir: TempDir,
    server: JoinHandle<()>,
}

impl World {
    pub async fn new() -> Self {
        let consul = Emulator::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = consul.clone();
        let server = tokio::spawn(async move {
            serve(listener, served, CONSULS_CONNECTIONS).await;
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("web.yaml"), MANIFEST).unwrap();
        World { consul, address, dir, server }
    }

    /// The binary with an empty environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        command(&self.address.to_string(), self.dir.path(), arguments)
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        run(self.command(arguments)).await
    }

    /// Runs with `-o json` and decodes the output.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["-o", "json"]].concat()).await.json()
    }

    /// Starts a command that runs until it is killed.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }

    /// Creates a controller of [`MANIFEST`]; returns its id.
    pub async fn create(&self, more: &[&str]) -> String {
        let basic = ["rc", "create", "-f", "web.yaml", "--node-selector", "role=web"];
        self.run(&[&basic, more].concat()).await.ok().trim().to_owned()
    }

    /// Labels `n1` to `n<count>` with `role=web`.
    pub async fn nodes(&self, count: usize) {
        for n in 1..=count {
            self.put(&format!("labels/node/n{n}"), r#"{"role":"web"}"#).await;
        }
    }

    /// Writes a key directly.
    pub async fn put(&self, key: &str, value: &str) {
        let key = Key::parse(key).unwrap();
        let value = value.to_owned().into();
        assert!(self.consul.put(&key, value, 0, PutMode::Set).await.unwrap());
    }

    /// Writes a pod of a controller as a farm does.
    pub async fn pod(&self, node: &str, rc: &str) {
        let labels = format!(r#"{{"pod_id":"web","replication_controller_id":"{rc}"}}"#);
        self.put(&format!("labels/pod/{node}/web"), &labels).await;
        self.put(&format!("intent/{node}/web"), MANIFEST).await;
    }

    /// Writes a status by the inactive farm `f1`, with the fields `more`.
    pub async fn owned(&self, rc: &str, more: Value) {
        let session = self.consul.create_session(&NewSession::default()).await.unwrap();
        let mut presence = json!({
            "session": session, "selector": "", "version": "1", "since": "2026-01-01T00:00:00Z",
        });
        presence.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let farm = key::farm(&"f1".parse().unwrap());
        let lock = key::rc_lock(rc.parse().unwrap());
        for (key, value) in [(farm, presence.to_string()), (lock, "f1".to_owned())] {
            let mode = PutMode::Acquire(session.clone());
            assert!(self.consul.put(&key, value.into(), 0, mode).await.unwrap());
        }
    }

    pub async fn get(&self, key: &str) -> Option<String> {
        let key = Key::parse(key).unwrap();
        let entry = self.consul.get(&key, Query::PLAIN).await.unwrap().value?;
        Some(String::from_utf8(entry.value.to_vec()).unwrap())
    }

    pub async fn value(&self, key: &str) -> Value {
        serde_json::from_str(&self.get(key).await.unwrap_or_else(|| panic!("no {key}"))).unwrap()
    }

    /// All entries of the store.
    pub fn everything(&self) -> Vec<String> {
        let line = |entry: &Arc<rcfarm_store::Entry>| {
            format!("{}@{}={:?}", entry.key, entry.modify_index, entry.value)
        };
        self.consul.inspect(|tables| tables.kv.list("").map(line).collect())
    }

    /// Types of audit records, oldest first.
    pub async fn events(&self) -> Vec<String> {
        let log = self.json(&["audit", "list"]).await;
        let records = log.as_array().unwrap().iter();
        records.map(|r| r["record"]["event_type"].as_str().unwrap().to_owned()).collect()
    }

    /// Nodes with pods of any controller.
    pub async fn pods(&self) -> Vec<String> {
        let prefix = key::labels(LabelKind::Pod);
        let keys = self.consul.keys(&prefix, None, Query::PLAIN).await.unwrap().value;
        keys.iter().map(|key| prefix.tail(key).unwrap().to_owned()).collect()
    }

    /// Starts a farm, stopped when the guard is dropped.
    pub fn farm(&self, name: &str, selector: &str) -> FarmGuard {
        let settings = FarmSettings {
            name: name.parse().unwrap(),
            selector: selector.parse::<Selector>().unwrap(),
            session: SessionSettings::default(),
            limits: TxnLimits::default(),
            node_grace: rcfarm::farm::NODE_GRACE,
        };
        let ids = Arc::new(IdSource::from_entropy());
        let env = Env::new(Arc::new(self.consul.clone()), Arc::new(SystemClock), ids);
        let farm = Farm::of_all_kinds(settings, env, by_labels(), Arc::new(NoDiscovery));
        let shutdown = CancellationToken::new();
        tokio::spawn(farm.run(shutdown.clone()));
        FarmGuard(shutdown)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Stops its farm when dropped.
pub struct FarmGuard(CancellationToken);

impl Drop for FarmGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The program in `directory`, connected to a Consul.
pub fn command(address: &str, directory: &std::path::Path, arguments: &[&str]) -> Command {
    Program::new(env!("CARGO_BIN_EXE_rcfarm"), address, directory).command(arguments).into()
}

pub async fn run(mut command: Command) -> Ran {
    command.output().await.unwrap().into()
}
