//! A cluster whose Consul is reached over HTTP, by the command line and by farms and agents in processes of their own.

use std::ops::Deref;
use std::path::Path;
use std::process::Stdio;

use rcfarm_consul::Consul;
use rcfarm_emulator::Emulator;
use rcfarm_emulator::serve::{CONSULS_CONNECTIONS, serve};
use rcfarm_store::Store;
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::Process;
use rcfarm_testing::program::{Program, Ran};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::{Cluster, MANIFEST};

/// Master token of servers with ACLs.
pub const MASTER: &str = "9b4b1b76-5b3c-4cf8-9c23-8a2fb8d0c5d1";

/// The built program in `dir`, connected to a Consul. The token of `rcfarm dev` is in `dir` too.
pub fn program(consul: &str, dir: &Path) -> Program {
    let program = Program::new(env!("CARGO_BIN_EXE_rcfarm"), consul, dir);
    program.with_env("XDG_RUNTIME_DIR", dir.to_str().expect("a path of text"))
}

/// A cluster with the program. `C` is the server.
pub struct HttpCluster<S = Emulator, C = ()> {
    cluster: Cluster<S>,
    pub server: C,
    pub address: String,
    pub program: Program,
    /// Working directory of the program. `web.yaml` is [`MANIFEST`].
    pub dir: TempDir,
}

pub type RealCluster = HttpCluster<Consul, ConsulServer>;

impl HttpCluster {
    /// On the emulator, which ends with the test's runtime.
    pub async fn new() -> Self {
        let store = Emulator::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, store.clone(), CONSULS_CONNECTIONS));
        Self::of(store, (), address)
    }
}

impl RealCluster {
    pub async fn real() -> Self {
        Self::on_server(ConsulServer::dev().await)
    }

    pub fn on_server(server: ConsulServer) -> Self {
        let address = server.http().to_string();
        Self::of(server.client(), server, address)
    }

    /// Creates a token with these rules. The server must have ACLs with the master token [`MASTER`].
    pub async fn token(&self, rules: &str) -> String {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let name = format!("p{}", rules.len());
        let put = async |what: &str, body: Value| -> Value {
            let request = client.put(format!("http://{}/v1/acl/{what}", self.address));
            let answer = request.header("X-Consul-Token", MASTER).json(&body).send().await;
            let text = answer.unwrap().text().await.unwrap();
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{what}: {text}"))
        };
        put("policy", json!({"Name": name, "Rules": rules})).await;
        let token = put("token", json!({"Policies": [{"Name": name}]})).await;
        token["SecretID"].as_str().unwrap().to_owned()
    }

    /// Deletes a token.
    pub async fn delete_token(&self, token: &str) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}/v1/acl/token", self.address);
        let own = client.get(format!("{url}/self")).header("X-Consul-Token", token);
        let own: Value = own.send().await.unwrap().json().await.unwrap();
        let own = client.delete(format!("{url}/{}", own["AccessorID"].as_str().unwrap()));
        let answer = own.header("X-Consul-Token", MASTER).send().await.unwrap();
        answer.error_for_status().unwrap();
    }
}

impl<S: Store, C> HttpCluster<S, C> {
    fn of(store: S, server: C, address: String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("web.yaml"), MANIFEST).unwrap();
        let program = program(&address, dir.path());
        HttpCluster { cluster: Cluster::on(store), server, address, program, dir }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        self.program.command(arguments).into()
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.program.run(arguments).await
    }

    /// Runs with `-o json` and decodes the output.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["-o", "json"]].concat()).await.json()
    }

    /// Starts a command that runs until it is killed.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    }

    /// Creates a controller of [`MANIFEST`] on nodes with `role=web`; returns its id.
    pub async fn create(&self, more: &[&str]) -> String {
        self.create_of(MANIFEST, more).await
    }

    /// As [`HttpCluster::create`], with another manifest.
    pub async fn create_of(&self, manifest: &str, more: &[&str]) -> String {
        std::fs::write(self.dir.path().join("created.yaml"), manifest).unwrap();
        let basic = ["rc", "create", "-f", "created.yaml", "--node-selector", "role=web"];
        self.run(&[&basic, more].concat()).await.ok().trim().to_owned()
    }

    /// Types of audit records, oldest first.
    pub async fn events(&self) -> Vec<String> {
        let log = self.json(&["audit", "list"]).await;
        let records = log.as_array().unwrap().iter();
        records.map(|r| r["record"]["event_type"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a farm as a process.
    pub fn farm_process(&self, name: &str, more: &[&str]) -> Daemon {
        let run = ["farm", "run", "--name", name, "--log", "warn"];
        let mut command = self.program.command(&[&run, more].concat());
        Daemon::new(Process::start_logging_here(&mut command), None)
    }

    /// Starts the agent of a node as a process, with its data in `dir`.
    pub fn agent_process(&self, name: &str, more: &[&str]) -> Daemon {
        let data = self.dir.path().join("nodes").join(name);
        let run = ["node", "run", "--name", name, "--log", "warn"];
        let mut command = self.program.command(&[&run, more].concat());
        command.arg("--data-dir").arg(&data);
        Daemon::new(Process::start_logging_here(&mut command), Some(data))
    }
}

impl<S, C> Deref for HttpCluster<S, C> {
    type Target = Cluster<S>;

    fn deref(&self) -> &Cluster<S> {
        &self.cluster
    }
}
