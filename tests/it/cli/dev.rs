//! `rcfarm dev`: agents with real processes.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::program;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::program::Ran;
use rcfarm_testing::wait::{eventually, in_time, until};

/// `rcfarm dev`, killed when dropped.
pub struct DevProcess {
    pub child: Child,
    pub address: String,
    /// Standard error so far.
    log: Arc<Mutex<String>>,
}

impl DevProcess {
    /// Starts it and waits until it prints the store's address.
    pub async fn start(mut command: Command) -> DevProcess {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let noted = log.clone();
        let noting = tokio::spawn(async move {
            while let Ok(Some(line)) = said.next_line().await {
                noted.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once("http://") {
                    return Some(rest.split(',').next().unwrap().to_owned());
                }
            }
            None
        };
        let Some(address) = in_time("it says where its store is", address).await else {
            in_time("the end of its log", noting).await.unwrap();
            panic!("it ended: {}", log.lock().unwrap());
        };
        // Keeps the pipe open; the output is not needed.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        DevProcess { child, address, log }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

/// All components in one process, and the ports of its pods.
struct Dev {
    process: DevProcess,
    ports: [u16; 3],
    dir: tempfile::TempDir,
}

impl Dev {
    async fn start() -> Dev {
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports();
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/web.yaml");
        let (first, data) = (ports[0].to_string(), dir.path().join("nodes"));
        // Standard input can be read once.
        let arguments = ["dev", "--apply", "-", "--first-port", &first, "--data-dir"];
        let mut command = program("127.0.0.1:0", dir.path()).command(&arguments);
        command.arg(data).stdin(std::fs::File::open(web).unwrap());
        Dev { process: DevProcess::start(command.into()).await, ports, dir }
    }

    async fn run(&self, arguments: &[&str]) -> Ran {
        program(&self.process.address, self.dir.path()).run(arguments).await
    }

    async fn running(&self) -> usize {
        let pods = self.run(&["pod", "list", "-o", "json"]).await;
        let pods: Value = pods.json();
        let well = |pod: &&Value| pod["phase"] == "Running" && pod["health"] == "passing";
        pods.as_array().unwrap().iter().filter(well).count()
    }

    async fn until_running(&self, count: usize) {
        until("so many run", async || self.running().await == count).await;
    }

    /// Waits until the pods' ports are free.
    async fn until_silent(&self) {
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        eventually("nothing listens any more", || self.ports.iter().all(is_free)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_serves_pages_on_three_nodes_until_program_ends() {
    let mut dev = Dev::start().await;
    dev.until_running(3).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (n, port) in (1..).zip(dev.ports) {
        let page = client.get(format!("http://127.0.0.1:{port}/page")).send().await.unwrap();
        let page = page.text().await.unwrap();
        assert!(page.starts_with(&format!("Hello from pod web on node-{n}, process ")), "{page}");
        let node = format!("node-{n}");
        let log = dev.run(&["pod", "logs", "web", "--node", &node, "--lines", "0"]).await.ok();
        assert!(log.starts_with("listening on http://127.0.0.1:"), "{log}");
        assert!(log.contains("GET /page\n"), "{log}");
    }
    let log = dev.process.log();
    for node in ["node-1", "node-2", "node-3"] {
        let of_node = |line: &&str| line.contains(node) && line.contains("process started");
        assert!(log.lines().any(|line| of_node(&line)), "no process of {node} in the log: {log}");
    }
    let status = dev.run(&["rc", "status", "web"]).await.ok();
    assert!(status.contains("3 of 3 scheduled"), "{status}");
    assert!(!status.contains("NOT HEALTHY"), "{status}");
    let stderr = dev.run(&["pod", "logs", "web"]).await.failed();
    assert!(stderr.contains("web runs on node-1, node-2, node-3"), "{stderr}");
    let broken = dev.dir.path().join("nodes/node-1/pods/web/server.log");
    std::fs::rename(&broken, broken.with_extension("away")).unwrap();
    std::fs::create_dir(&broken).unwrap();
    let stderr = dev.run(&["pod", "logs", "web", "--node", "node-1"]).await.failed();
    assert!(stderr.contains("the log of web/server cannot be read"), "{stderr}");

    dev.process.signal("TERM");
    assert!(in_time("its end", dev.process.child.wait()).await.unwrap().success());
    dev.until_silent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_end_with_the_program_even_if_it_is_killed() {
    let mut dev = Dev::start().await;
    dev.until_running(3).await;
    dev.process.signal("KILL");
    in_time("its end", dev.process.child.wait()).await.unwrap();
    dev.until_silent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_explain_say_why_a_pod_is_not_healthy() {
    let dev = Dev::start().await;
    let manifest = "id: ghost\nlaunchables:\n  main:\n    launchable_type: process\n    \
                    command: /no/such\n    restart: {policy: always, backoff: 50ms}\n";
    std::fs::write(dev.dir.path().join("ghost.yaml"), manifest).unwrap();
    let create = ["rc", "create", "-f", "ghost.yaml", "--node-selector", "pool=dev"];
    dev.run(&[&create[..], &["--replicas", "1", "--strategy", "dynamic"]].concat()).await.ok();
    let mut text = String::new();
    // All nodes have failed, so no further one is tried.
    until("all nodes are passed over", async || {
        text = dev.run(&["rc", "status", "ghost"]).await.ok();
        text.contains("CannotStart") && text.contains("NOT HEALTHY ON")
    })
    .await;
    assert!(text.contains("/no/such cannot be started"), "{text}");
    let text = dev.run(&["rc", "explain", "ghost"]).await.ok();
    assert!(text.contains("CannotStart"), "{text}");
    assert!(text.contains("matches, but cannot start it: main: /no/such"), "{text}");
    assert!(text.contains("matches, but is passed over until 20"), "{text}");
    let why = dev.run(&["rc", "explain", "ghost", "-o", "json"]).await.json();
    let unfit = why["unfit_nodes"].as_array().unwrap();
    assert_eq!(unfit.iter().filter(|unfit| unfit["reason"] == "Quarantined").count(), 3);
}

#[tokio::test]
async fn a_port_that_is_taken_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let arguments = ["dev", "--nodes", "1", "--first-port", &port];
    let ran = program("127.0.0.1:0", dir.path()).run(&arguments).await;
    assert!(ran.failed().contains("--first-port"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_sites_other_machines_and_writers_without_token_are_refused() {
    let dev = Dev::start().await;
    let address = &dev.process.address;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{address}/v1/kv/intent/node-1/x");
    let put = async |host: &str, token: &str| {
        let request = client.put(&url).header("host", host).header("x-consul-token", token);
        request.body("id: x").send().await.unwrap().status().as_u16()
    };
    assert_eq!(put(address, "").await, 403, "no token");
    assert_eq!(put("evil.example", "").await, 403);
    let read = client.get(format!("http://{address}/v1/kv/?keys"));
    assert_eq!(read.send().await.unwrap().status().as_u16(), 200);
    let read = client.get(format!("http://{address}/v1/kv/?keys")).header("host", "evil.example");
    assert_eq!(read.send().await.unwrap().status().as_u16(), 403, "a page of another site");

    // The program finds the token by itself, and other tools in the file.
    dev.run(&["label", "set", "node", "node-1", "rack=7"]).await.ok();
    let port = address.rsplit_once(':').unwrap().1;
    let mut files = std::fs::read_dir(dev.dir.path().join("rcfarm-dev")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("127.0.0.1-{port}-")) && files.next().is_none(), "{name}");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap();
    assert_eq!(put(address, &token).await, 200);
    assert_eq!(put("evil.example", &token).await, 403);

    let open = program("0.0.0.0:0", dev.dir.path()).run(&["dev", "--nodes", "1"]).await.failed();
    assert!(open.contains("--insecure-listen"), "{open}");
    let mut dev = dev;
    dev.process.signal("TERM");
    assert!(in_time("its end", dev.process.child.wait()).await.unwrap().success());
    assert!(!file.exists(), "the token goes with its server");
}
