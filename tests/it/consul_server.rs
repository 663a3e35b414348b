//! A real Consul for tests: on loopback, on free ports, gone when the test is, however the test ends.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

/// Name of every test agent's node.
pub const NODE: &str = "test-agent";

/// How often a start is tried: another process may take a port between our look and Consul's.
const STARTS: usize = 5;

/// A start that takes longer hangs. (A `-dev` agent is ready in about a second on an idle machine.)
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running `consul agent -dev`.
pub struct ConsulServer {
    http: SocketAddr,
    child: Child,
    guard: Child,
    _leash: ChildStdin,
    dir: TempDir,
}

impl ConsulServer {
    /// A `-dev` agent with default settings.
    pub async fn dev() -> Self {
        Self::with_config("").await
    }

    /// A `-dev` agent with more configuration, in HCL or JSON.
    pub async fn with_config(config: &str) -> Self {
        let program = program();
        let mut last = String::new();
        for _ in 0..STARTS {
            match Self::start(&program, config).await {
                Ok(server) => return server,
                Err(log) => last = log,
            }
        }
        panic!(
            "{} did not start in {STARTS} attempts; the last one said:\n{last}",
            program.display()
        );
    }

    /// Where its HTTP API listens.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    async fn start(program: &Path, config: &str) -> Result<Self, String> {
        let dir = TempDir::with_prefix_in("consul-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ports = free_ports();
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]));
        let own = json!({
            "bind_addr": "127.0.0.1",
            "node_name": NODE,
            "disable_update_check": true,
            "ports": {
                "http": ports[0], "server": ports[1], "serf_lan": ports[2],
                "serf_wan": -1, "dns": -1, "grpc": -1
            }
        });
        std::fs::write(dir.path().join("1.json"), own.to_string()).unwrap();
        std::fs::write(dir.path().join("2.hcl"), config).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = Command::new(program)
            .args(["agent", "-dev", "-log-level=info", "-config-dir"])
            .arg(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
        let (guard, leash) = guard(child.id(), dir.path());
        let mut server = ConsulServer { http, child, guard, _leash: leash, dir };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// Waits for a leader, and for the agent's own node: sessions need it registered and healthy.
    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let health = format!("http://{}/v1/health/node/{NODE}", self.http);
        let give_up = Instant::now() + START_LIMIT;
        loop {
            if self.child.try_wait().unwrap().is_some() || Instant::now() > give_up {
                return Err(self.log());
            }
            let answer = client.get(&health).timeout(Duration::from_secs(10)).send().await;
            if let Ok(answer) = answer
                && answer.text().await.is_ok_and(|body| body.contains("passing"))
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for ConsulServer {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.guard] {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!("Consul's log is kept: {}", self.dir.path().join("log").display());
        }
    }
}

/// Ends Consul when our end of the pipe closes: also after a kill of the tests, and for an agent in a static. It is in
/// a process group of its own, so that an interrupt from the terminal leaves it alive to do so.
fn guard(consul: u32, dir: &Path) -> (Child, ChildStdin) {
    let mut guard = Command::new("sh")
        .args(["-c", r#"read -r _; kill -9 "$1"; rm -rf "$2""#, "guard", &consul.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("cannot run sh");
    let leash = guard.stdin.take().expect("was piped");
    (guard, leash)
}

/// Three ports that are free for TCP and UDP at this moment.
fn free_ports() -> [u16; 3] {
    let mut held = Vec::new();
    while held.len() < 3 {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        if let Ok(udp) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, tcp, udp));
        }
    }
    [held[0].0, held[1].0, held[2].0]
}

/// The Consul program: `CONSUL_BIN`, or the PATH's, or what `.ci/get-consul` has put into the project.
///
/// There is no skip: a suite that passes without the real thing proves nothing.
fn program() -> PathBuf {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let candidates: Vec<PathBuf> = match std::env::var_os("CONSUL_BIN") {
        Some(named) => vec![named.into()],
        None => std::env::split_paths(&on_path)
            .map(|dir| dir.join("consul"))
            .chain([Path::new(env!("CARGO_MANIFEST_DIR")).join(".consul/consul")])
            .collect(),
    };
    candidates.iter().find(|path| path.is_file()).cloned().unwrap_or_else(|| {
        panic!(
            "this test needs a real Consul: run .ci/get-consul, or set CONSUL_BIN to a Consul program. \
             Looked at {candidates:?}"
        )
    })
}
