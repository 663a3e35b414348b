//! Signals and restarts in place of members whose peers have moved, with real processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_node::agent::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started,
};
use rcfarm_node::agent::health_check::HealthCheck;
use rcfarm_node::agent::process::ProcessDriver;
use rcfarm_testing::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::peers::member;
use crate::harness::Host;

/// What a driver never completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Signal,
    Stop,
    Restart,
}

/// Holds one call for ever, before anything is done: an agent that is killed then has got so far.
struct HoldingDriver {
    inner: ProcessDriver,
    held: Held,
    is_reached: Arc<AtomicBool>,
}

impl HoldingDriver {
    async fn hold(&self, held: Held) {
        if self.held == held {
            self.is_reached.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait::async_trait]
impl Driver for HoldingDriver {
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        if launch.attempt > 1 {
            self.hold(Held::Restart).await;
        }
        self.inner.start(dir, launch).await
    }

    async fn adopt(&self, dir: &Path) -> FoundProcess {
        self.inner.adopt(dir).await
    }

    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit {
        self.inner.exited(dir, running).await
    }

    async fn stop(&self, running: &Started, signal: &str, grace: Duration) {
        self.hold(Held::Stop).await;
        self.inner.stop(running, signal, grace).await;
    }

    async fn signal(&self, running: &Started, signal: &str) -> Signalled {
        self.hold(Held::Signal).await;
        self.inner.signal(running, signal).await
    }

    async fn check_health(&self, health_check: &HealthCheck, launch: &Launch) -> (Health, String) {
        self.inner.check_health(health_check, launch).await
    }
}

/// A member whose process is told of moves.
fn told(script: &str, on_change: Value) -> Value {
    let mut manifest = member("m", script, 7);
    manifest["peers"]["on_change"] = on_change;
    manifest["launchables"]["main"]["env"] = json!({"MASTER_ADDR": "a"});
    manifest
}

/// It says what its file has at the start, and at each signal.
const LISTENS: &str = "trap 'cat $RCFARM_PEERS/etc/volcano/w.host' USR1; echo ready; \
                       while :; do sleep 0.02; done";
/// It says what its environment has at the start.
const SAYS_MASTER: &str = "echo $$ $MASTER_ADDR; exec sleep 600";

impl Host {
    /// Starts an agent that gets as far as `held`; the flag says when it has.
    fn start_holding(&mut self, held: Held) -> Arc<AtomicBool> {
        let inner = ProcessDriver::new(PathBuf::from(env!("CARGO_BIN_EXE_rcfarm")));
        let is_reached = Arc::<AtomicBool>::default();
        let driver = HoldingDriver { inner, held, is_reached: is_reached.clone() };
        self.start_with(self.store.clone(), Arc::new(driver));
        is_reached
    }

    fn hosts_file(&self) -> String {
        let file = self.settings.data_dir.join("pods/m/etc/volcano/w.host");
        std::fs::read_to_string(file).unwrap_or_default()
    }

    /// What its starts found in the environment.
    fn masters(&self) -> Vec<String> {
        let log = self.log("m");
        log.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect()
    }

    /// The process id that the last start said.
    fn pid(&self) -> Pid {
        let log = self.log("m");
        let line = log.lines().next_back().unwrap();
        Pid::from_raw(line.split(' ').next().unwrap().parse().unwrap()).unwrap()
    }
}

/// It runs, and neither a restart nor an end was counted.
fn is_as_before(status: &PodStatus) -> bool {
    let process = &status.processes[0];
    status.phase == NodePodPhase::Running && process.restarts == 0 && process.last_exit.is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_follows_a_change_of_the_files_alone() {
    let mut host = Host::new();
    host.start();
    host.tell(7, &["a"]).await;
    host.intend("m", &told(LISTENS, json!({"signal": "USR1"})).to_string()).await;
    eventually("it runs", || host.log("m") == "ready\n").await;
    // The same addresses, in a record that was written anew.
    host.tell(7, &["a"]).await;
    host.tell(7, &["b"]).await;
    eventually("the signal", || host.log("m") == "ready\nb\n").await;
    host.tell(7, &["b", "c"]).await;
    eventually("the signal", || host.log("m") == "ready\nb\nb\nc\n").await;
    assert!(is_as_before(&host.pod_status("m").await.unwrap()));
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_survives_an_agent_that_is_killed_before_it() {
    let mut host = Host::new();
    let is_reached = host.start_holding(Held::Signal);
    host.tell(7, &["a"]).await;
    host.intend("m", &told(LISTENS, json!({"signal": "USR1"})).to_string()).await;
    eventually("it runs", || host.log("m") == "ready\n").await;
    host.tell(7, &["b"]).await;
    eventually("the signal is due", || is_reached.load(Ordering::SeqCst)).await;
    assert_eq!(host.hosts_file(), "b\n");
    host.kill().await;
    assert_eq!(host.log("m"), "ready\n");
    host.start();
    eventually("the signal", || host.log("m") == "ready\nb\n").await;
    host.tell(7, &["c"]).await;
    eventually("the next", || host.log("m") == "ready\nb\nc\n").await;
    // The agent after it knows that both came.
    host.kill().await;
    host.start();
    host.tell(7, &["d"]).await;
    eventually("the last", || host.log("m") == "ready\nb\nc\nd\n").await;
    host.end().await;
}

/// It has read the files that the signal would tell of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_started_after_the_rewrite_gets_no_signal() {
    let mut host = Host::new();
    let is_reached = host.start_holding(Held::Signal);
    host.tell(7, &["a"]).await;
    let script = "trap 'echo told' USR1; echo $$ $(cat $RCFARM_PEERS/etc/volcano/w.host); \
                  while :; do sleep 0.02; done";
    let mut manifest = told(script, json!({"signal": "USR1"}));
    manifest["launchables"]["main"]["restart"] = json!({"policy": "always", "backoff": "100ms"});
    host.intend("m", &manifest.to_string()).await;
    eventually("it runs", || host.masters() == ["a"]).await;
    host.tell(7, &["b"]).await;
    eventually("the signal is due", || is_reached.load(Ordering::SeqCst)).await;
    host.kill().await;
    kill_process(host.pid(), Signal::KILL).unwrap();
    host.start();
    eventually("it runs again", || host.masters() == ["a", "b"]).await;
    let signals = |host: &Host| host.log("m").lines().filter(|line| *line == "told").count();
    for (host_name, n) in [("c", 1), ("d", 2)] {
        host.tell(7, &[host_name]).await;
        eventually("the signal", || signals(&host) >= n).await;
        assert_eq!(signals(&host), n, "{}", host.log("m"));
    }
    host.end().await;
}

/// The signal would end it. It may have just begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_waits_until_the_process_handles_it() {
    let mut host = Host::new();
    host.start();
    host.tell(7, &["a"]).await;
    let script = "echo ready; until [ -e go ]; do sleep 0.02; done; \
                  trap 'echo told' HUP; while :; do sleep 0.02; done";
    host.intend("m", &told(script, json!({"signal": "HUP"})).to_string()).await;
    eventually("it runs", || host.log("m") == "ready\n").await;
    host.tell(7, &["b"]).await;
    let has_note = |status: &PodStatus| {
        status.notes.iter().any(|note| note.contains("does not handle SIGHUP"))
    };
    let status = host.until("m", has_note).await;
    assert!(is_as_before(&status), "{status:?}");
    std::fs::write(host.settings.data_dir.join("pods/m/go"), "").unwrap();
    eventually("the signal", || host.log("m") == "ready\ntold\n").await;
    host.until("m", |status| !has_note(status)).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_is_restarted_in_place_when_a_peer_has_moved() {
    let mut host = Host::new();
    host.start();
    host.tell(7, &["a"]).await;
    host.intend("m", &told(SAYS_MASTER, json!("restart")).to_string()).await;
    eventually("it runs", || host.masters() == ["a"]).await;
    // A new member, and one that is elsewhere, of whom only files tell.
    host.tell(7, &["a", "x"]).await;
    eventually("the file follows", || host.hosts_file() == "a\nx\n").await;
    for (n, address) in ["b", "c"].into_iter().enumerate() {
        host.tell(7, &[address, "x"]).await;
        eventually("it is restarted", || host.masters().len() == n + 2).await;
        assert_eq!(host.masters().last().unwrap(), address);
        host.until("m", is_as_before).await;
    }
    assert_eq!(host.masters(), ["a", "b", "c"]);
    // It has not learned to survive its own end.
    kill_process(host.pid(), Signal::KILL).unwrap();
    let status = host.until("m", |status| status.phase == NodePodPhase::Ended).await;
    assert_eq!(status.processes[0].last_exit.as_ref().unwrap().exit_status, 9);
    host.end().await;
}

/// Otherwise the member, which is never restarted by its node, would have failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_in_place_survives_an_agent_that_is_killed() {
    for held in [Held::Stop, Held::Restart] {
        let mut host = Host::new();
        let is_reached = host.start_holding(held);
        host.tell(7, &["a"]).await;
        host.intend("m", &told(SAYS_MASTER, json!("restart")).to_string()).await;
        eventually("it runs", || host.masters() == ["a"]).await;
        host.tell(7, &["b"]).await;
        eventually("the agent got so far", || is_reached.load(Ordering::SeqCst)).await;
        host.kill().await;
        host.start();
        eventually("it runs again", || host.masters() == ["a", "b"]).await;
        let status = host.until("m", |status| status.phase == NodePodPhase::Running).await;
        assert!(is_as_before(&status), "{held:?} {status:?}");
        host.tell(7, &["c"]).await;
        eventually("the next restart", || host.masters() == ["a", "b", "c"]).await;
        host.end().await;
    }
}

/// The member's own work is over: it is not done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_ended_before_its_restart_stays_ended() {
    let mut host = Host::new();
    host.start();
    host.tell(7, &["a"]).await;
    let script = "echo $$ $MASTER_ADDR; until [ -e done ]; do sleep 0.02; done";
    host.intend("m", &told(script, json!("restart")).to_string()).await;
    eventually("it runs", || host.masters() == ["a"]).await;
    std::fs::write(host.settings.data_dir.join("pods/m/done"), "").unwrap();
    host.until("m", |status| status.phase == NodePodPhase::Ended).await;
    host.tell(7, &["b"]).await;
    host.kill().await;
    host.start();
    // The file of a member that has ended does not follow. Another pod shows that the record was read.
    let mut other = told("exec sleep 600", json!("restart"));
    other["id"] = json!("o");
    host.intend("o", &other.to_string()).await;
    host.until("o", |status| status.phase == NodePodPhase::Running).await;
    let status = host.until("m", |status| status.phase == NodePodPhase::Ended).await;
    assert_eq!((host.masters().len(), status.processes[0].restarts), (1, 0));
    host.end().await;
}
