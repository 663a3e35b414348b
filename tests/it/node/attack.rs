//! Clients that open hundreds of connections and send next to nothing, to daemons that may open few files.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_api::node::status::PodStatus;
use rcfarm_node::http;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::{Process, free_ports};
use rcfarm_testing::wait::{eventually, until};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::{HttpCluster, id, manifest};

/// Descriptors that a daemon may have: fewer than there are attackers.
const DESCRIPTORS: usize = 256;
const ATTACKERS: usize = 300;

/// TTLs that a machine which is busy with other tests does not miss.
const TTLS: [&str; 4] = ["--check-ttl", "30s", "--session-ttl", "60s"];

/// The command with a limit of its descriptors, hard and soft.
fn limited(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

/// Where an attack goes.
#[derive(Clone)]
enum Target {
    Port(u16),
    Socket(String),
}

/// Connections with half a head, which are opened again when they are closed. They end with this.
struct Attack {
    opened: Arc<AtomicUsize>,
    _attackers: JoinSet<()>,
}

impl Attack {
    /// Begins, and waits until as many connections were open as there are attackers.
    async fn begin(target: &Target) -> Attack {
        let opened = Arc::new(AtomicUsize::new(0));
        let mut attackers = JoinSet::new();
        for _ in 0..ATTACKERS {
            attackers.spawn(attack(target.clone(), opened.clone()));
        }
        let count = opened.clone();
        eventually("connections", || count.load(Ordering::SeqCst) >= ATTACKERS).await;
        Attack { opened, _attackers: attackers }
    }

    /// Connections that were opened so far.
    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

async fn attack(target: Target, opened: Arc<AtomicUsize>) {
    loop {
        match &target {
            Target::Port(port) => {
                if let Ok(stream) = TcpStream::connect(("127.0.0.1", *port)).await {
                    dribble(stream, &opened).await;
                }
            }
            Target::Socket(path) => {
                if let Ok(stream) = UnixStream::connect(path).await {
                    dribble(stream, &opened).await;
                }
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Sends a head without an end, a byte now and then, until the server closes the connection.
async fn dribble(mut stream: impl AsyncRead + AsyncWrite + Unpin, opened: &AtomicUsize) {
    opened.fetch_add(1, Ordering::SeqCst);
    let mut sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ").await;
    while sent.is_ok() {
        let answer = timeout(Duration::from_secs(1), stream.read(&mut [0; 256])).await;
        sent = match answer {
            Err(_) => stream.write_all(b"a").await,
            Ok(_) => return,
        };
    }
}

/// Whether `/healthz` answers with 200.
async fn is_healthy(port: u16) -> bool {
    let Ok(stream) = TcpStream::connect(("127.0.0.1", port)).await else { return false };
    let asked = timeout(Duration::from_secs(10), http::get(stream, "localhost", "/healthz", None));
    asked.await.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status().as_u16() == 200))
}

fn n1() -> NodeName {
    "n1".parse().unwrap()
}

/// Process of a pod that is reported as running.
async fn pid(cluster: &HttpCluster, pod: &str) -> Option<i32> {
    let at = key::pod_status(&id(pod), &n1());
    let status = cluster.read::<PodStatus>(at).await?;
    (status.status == "launched").then(|| status.processes.first()?.pid).flatten()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_stop_neither_pods_nor_the_agent() {
    let cluster = HttpCluster::new().await;
    let [port] = free_ports();
    let data = cluster.dir.path().join("n1");
    let token = cluster.dir.path().join("log-token");
    std::fs::write(&token, "a token of the logs").unwrap();
    let listen = format!("127.0.0.1:{port}");
    let words = ["node", "run", "--name", "n1", "--http", &listen, "--http-token-file"];
    let mut command = cluster.program.command(&words);
    command.arg(&token).arg("--data-dir").arg(&data).args(TTLS);
    let process = Process::start_logging_here(&mut limited(&command));
    let mut agent = Daemon::new(process, Some(data.clone()));
    let intent = |pod: &str| key::intent(&n1(), &id(pod));
    let single = manifest("single", "exec sleep 600", "") + "single_instance: true\n";
    cluster.put(intent("single"), &single).await;
    until("it runs", async || pid(&cluster, "single").await.is_some()).await;
    let before = pid(&cluster, "single").await;
    // Milliseconds since the machine's start, until which single instances may run.
    let lease = || {
        let text = std::fs::read_to_string(data.join("lease")).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };

    let socket = data.join("agent.sock").display().to_string();
    for (pod, target) in [("p1", Target::Port(port)), ("p2", Target::Socket(socket))] {
        let attack = Attack::begin(&target).await;
        let (opened, began) = (attack.opened(), lease());
        cluster.put(intent(pod), &manifest(pod, "exec sleep 600", "")).await;
        until("a new pod runs", async || pid(&cluster, pod).await.is_some()).await;
        until("/healthz answers", async || is_healthy(port).await).await;
        // At least twice since the attack began: every 10 s.
        eventually("the lease is renewed", || lease() > began + 15_000).await;
        eventually("the attack goes on", || attack.opened() > opened).await;
        until("/healthz answers again", async || is_healthy(port).await).await;
        assert_eq!(pid(&cluster, "single").await, before, "{pod}: it was not restarted");
    }
    assert!(agent.runs());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_do_not_stop_a_farm() {
    let cluster = HttpCluster::new().await;
    let [port] = free_ports();
    let listen = format!("127.0.0.1:{port}");
    let mut command = cluster.program.command(&["farm", "run", "--name", "f1", "--http", &listen]);
    command.args(TTLS);
    let process = Process::start_logging_here(&mut limited(&command));
    let mut farm = Daemon::new(process, None);
    cluster.run(&["label", "set", "node", "n1", "role=web"]).await.ok();
    let presence = key::farm(&"f1".parse().unwrap());
    let session = async || cluster.entry(&presence).await.and_then(|entry| entry.session);
    until("the farm is there", async || session().await.is_some()).await;
    let before = session().await;

    let attack = Attack::begin(&Target::Port(port)).await;
    let opened = attack.opened();
    for pod in ["p1", "p2", "p3"] {
        let manifest = format!("id: {pod}\nlaunchables:\n  main:\n    launchable_type: hoist\n");
        cluster.create_of(&manifest, &["--replicas", "1"]).await;
        let at = key::intent(&n1(), &id(pod));
        until("its intent", async || cluster.entry(&at).await.is_some()).await;
        until("/healthz answers", async || is_healthy(port).await).await;
    }
    eventually("the attack goes on", || attack.opened() > opened).await;
    until("/healthz answers again", async || is_healthy(port).await).await;
    assert_eq!(session().await, before, "the farm's session was not lost");
    assert!(farm.runs());
    farm.stop().await;
}
