//! Manifests by anybody through the whole agent: taken, replaced and taken away. Nothing panics (libFuzzer's hook ends the
//! process even if the panic is caught), and the pod beside them runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcfarm_api::Stored as _;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_emulator::{Emulator, Settings};
use rcfarm_node::agent::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started,
};
use rcfarm_node::agent::health_check::HealthCheck;
use rcfarm_node::agent::{Agent, AgentSettings};
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{DeleteMode, Env, Key, PutMode, Query, Reader as _, Store as _};
use rcfarm_testing::clock::VirtualClock;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Processes that end when they are stopped.
#[derive(Default)]
struct Processes {
    stopped: Mutex<BTreeSet<i32>>,
    changed: Notify,
    last: AtomicI32,
}

#[async_trait::async_trait]
impl Driver for Processes {
    async fn start(&self, _: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        let pid = self.last.fetch_add(1, Ordering::SeqCst);
        let started_at = "2026-01-01T00:00:00Z".parse().expect("a time");
        let attempt = launch.attempt;
        Ok(Started { attempt, pid, start_ticks: 0, shim: 0, shim_ticks: 0, started_at, boot: None })
    }

    async fn adopt(&self, _: &Path) -> FoundProcess {
        FoundProcess::Nothing
    }

    async fn exited(&self, _: &Path, started: &Started) -> ProcessExit {
        loop {
            let changed = self.changed.notified();
            if self.stopped.lock().expect("no panic").contains(&started.pid) {
                return ProcessExit::unknown("stopped");
            }
            changed.await;
        }
    }

    async fn stop(&self, started: &Started, _: &str, _: Duration) {
        self.stopped.lock().expect("no panic").insert(started.pid);
        self.changed.notify_waiters();
    }

    async fn signal(&self, _: &Started, _: &str) -> Signalled {
        Signalled::Sent
    }

    async fn check_health(&self, _: &HealthCheck, _: &Launch) -> (Health, String) {
        (Health::Passing, String::new())
    }
}

fn key(text: &str) -> Key {
    Key::parse(text).expect("a legal key")
}

async fn put(consul: &Emulator, at: &str, value: &[u8]) {
    let value = value.to_vec().into();
    assert!(consul.put(&key(at), value, 0, PutMode::Set).await.expect("a write"));
}

async fn phase(consul: &Emulator, pod: &str) -> Option<NodePodPhase> {
    let at = key(&format!("status/pods/{pod}/n"));
    let entry = consul.get(&at, Query::PLAIN).await.expect("a read").value?;
    Some(PodStatus::decode(&entry.value).expect("a status").phase)
}

/// Plays one input, in virtual time.
pub async fn run(input: &[u8]) {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let directory = directory.expect("a directory");
    let ids = Arc::new(IdSource::from_seed(1));
    let consul = Emulator::new(&Settings::default(), &ids);
    let (name, data_dir) = ("n".parse().expect("a name"), directory.path().join("data"));
    let settings = AgentSettings {
        capacity: "cpu=4,gpu=2".parse().expect("a capacity"),
        env: BTreeMap::from([("NODE_PORT".to_owned(), "12345".to_owned())]),
        session: SessionSettings::default(),
        ..AgentSettings::new(name, "127.0.0.1", data_dir)
    };
    let env = Env::new(Arc::new(consul.clone()), VirtualClock::new(monotonic()), ids);
    let shutdown = CancellationToken::new();
    let agent = Agent::new(settings, env, Arc::new(Processes::default()));
    let agent = tokio::spawn(agent.run(shutdown.clone()));
    let calm = b"id: calm\nlaunchables: {a: {launchable_type: process, command: [sleep, '1']}}\n";
    put(&consul, "intent/n/calm", calm).await;
    // The id is `x` in the seeds. A manifest with another id is refused.
    for part in input.split(|byte| *byte == 0).take(3) {
        put(&consul, "intent/n/x", part).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let running = Some(NodePodPhase::Running);
    assert_eq!(phase(&consul, "calm").await, running);
    assert!(consul.delete(&key("intent/n/x"), DeleteMode::Always).await.expect("a write"));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((phase(&consul, "calm").await, phase(&consul, "x").await), (running, None));
    shutdown.cancel();
    agent.await.expect("no panic").expect("an orderly end");
}
