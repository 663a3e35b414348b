//! Sessions of a farm: heartbeats beside blocked work, sessions without a check, pauses between short sessions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use rcfarm::farm::{Farm, FarmError, FarmReport};
use rcfarm::placement::{
    EligibleNodes, NoDiscovery, ScheduleError, ScheduleRequest, Scheduler, WantedNodes,
};
use rcfarm_api::ids::NodeName;
use rcfarm_consul::{Consul, ConsulConfig};
use rcfarm_emulator::serve::serve;
use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::session::{Heartbeats, KeeperRuntime};
use rcfarm_store::{Reader, StoreError};
use rcfarm_testing::wait::{eventually, within};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::harness::{Cluster, SECOND};

/// Blocks the thread that asks it until the test allows it to go on.
struct Blocking {
    is_asked: Arc<AtomicBool>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

#[async_trait]
impl Scheduler for Blocking {
    async fn eligible_nodes(&self, _: ScheduleRequest<'_>) -> Result<EligibleNodes, ScheduleError> {
        self.is_asked.store(true, Ordering::SeqCst);
        let _ = self.go_on.lock().unwrap().recv();
        Ok(EligibleNodes::default())
    }

    async fn allocate_nodes(&self, _: WantedNodes<'_>) -> Result<Vec<NodeName>, ScheduleError> {
        Ok(Vec::new())
    }
}

/// A farm one of whose workers is blocked by its scheduler, and whose keeper has a thread of its own.
struct BlockedFarm {
    cluster: Cluster,
    runtime: Runtime,
    running: JoinHandle<Result<(), FarmError>>,
    heartbeats: Arc<Heartbeats>,
    report: Arc<Mutex<FarmReport>>,
    shutdown: CancellationToken,
    release: mpsc::Sender<()>,
}

impl BlockedFarm {
    /// With one worker, which its scheduler blocks.
    async fn start(hung_after: Duration) -> BlockedFarm {
        Self::start_with(hung_after, 1).await
    }

    async fn start_with(hung_after: Duration, workers: usize) -> BlockedFarm {
        let cluster = Cluster::new(1).await;
        cluster.create_rc(1, 1).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Some(listener.local_addr().unwrap().to_string());
        tokio::spawn(serve(listener, cluster.store.clone(), 100));
        let config = ConsulConfig { address, ..ConsulConfig::default() };
        let client = || Arc::new(Consul::new(&config).unwrap());

        let (is_asked, (release, go_on)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let scheduler = Blocking { is_asked: is_asked.clone(), go_on: Mutex::new(go_on) };
        let (settings, env) = cluster.settings("a", "", client());
        let keeper = KeeperRuntime::own_thread(client()).unwrap().hung_after(hung_after);
        let env = env.with_keeper(keeper);
        let heartbeats = env.keeper.heartbeats();
        let farm = Farm::of_all_kinds(
            settings,
            env,
            Box::new(move |_| Arc::new(scheduler)),
            Arc::new(NoDiscovery),
        );
        let (report, shutdown) = (farm.report(), CancellationToken::new());
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(workers).enable_all().build().unwrap();
        let running = runtime.spawn(farm.run(shutdown.clone()));
        eventually("a worker is blocked", || is_asked.load(Ordering::SeqCst)).await;
        BlockedFarm { cluster, runtime, running, heartbeats, report, shutdown, release }
    }

    async fn sessions(&self) -> Vec<String> {
        let sessions = self.cluster.store.sessions().await.unwrap().value;
        sessions.into_iter().map(|session| session.id.to_string()).collect()
    }

    fn heartbeats(&self) -> u64 {
        self.heartbeats.buckets().into_iter().map(|(_, count)| count).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_outlives_blocked_workers() {
    let farm = BlockedFarm::start(60 * SECOND).await;
    let (before, answered) = (farm.sessions().await, farm.heartbeats());
    // The check's TTL is 2 s.
    tokio::time::sleep(5 * SECOND).await;
    assert!(farm.heartbeats() > answered, "no heartbeat while the worker was blocked");
    assert_eq!((before.len(), farm.sessions().await), (1, before.clone()));
    drop(farm.release);
    let report = farm.report;
    eventually("the farm goes on", || report.lock().unwrap().claims.get("rc") == Some(&1)).await;
    assert_eq!(report.lock().unwrap().session.as_ref(), before.first());
    assert_eq!(report.lock().unwrap().epochs_lost, 0);
    farm.shutdown.cancel();
    farm.running.await.unwrap().unwrap();
    farm.runtime.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_of_a_hung_farm_ends() {
    let farm = BlockedFarm::start(SECOND).await;
    within(60 * SECOND, "the session has expired", || async { farm.sessions().await.is_empty() })
        .await;
    drop(farm.release);
    farm.shutdown.cancel();
    farm.running.await.unwrap().unwrap();
    farm.runtime.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn farm_whose_tasks_do_not_stop_says_that_it_leaves() {
    let farm = BlockedFarm::start_with(60 * SECOND, 2).await;
    let leaves = || async { farm.cluster.presence("a").await.is_some_and(|one| one.leaving) };
    assert!(!leaves().await);
    farm.shutdown.cancel();
    // Its task waits for the scheduler, and is aborted after 5 s.
    within(4 * SECOND, "said", leaves).await;
    drop(farm.release);
    farm.running.await.unwrap().unwrap();
    assert!(farm.cluster.presence("a").await.is_none());
    farm.runtime.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn unsynced_check_means_a_plain_session_until_it_works() {
    let cluster = Cluster::new(1).await;
    cluster.create_rc(1, 1).await;
    let is_synced = Arc::new(AtomicBool::new(false));
    let synced = is_synced.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| match request {
        Request::CreateSession(new)
            if !new.service_checks.is_empty() && !synced.load(Ordering::SeqCst) =>
        {
            let body = "Missing check 'service:rcfarm-farm-a' registration".to_owned();
            Fate::of(FaultOutcome::Fail(StoreError::Rejected { status: 500, body }))
        }
        _ => Fate::DELIVER,
    });
    let problem = || farm.report.lock().unwrap().check_problem.clone().unwrap_or_default();
    within(30 * SECOND, "claimed", || async { farm.claims() == 1 }).await;
    assert!(problem().contains("Missing check"), "{}", problem());
    within(30 * SECOND, "reported to others", || async {
        let presence = cluster.get("rcfarm/farms/a").await;
        presence.is_some_and(|presence| presence.contains("Missing check"))
    })
    .await;
    is_synced.store(true, Ordering::SeqCst);
    within(120 * SECOND, "back to the check", || async {
        farm.claims() == 1 && problem().is_empty()
    })
    .await;
    assert_eq!(farm.report.lock().unwrap().epochs_lost, 0, "it was given up, not lost");
    let sessions = cluster.store.sessions().await.unwrap().value;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    farm.stop().await;
}

#[tokio::test(start_paused = true)]
async fn short_sessions_are_followed_by_growing_pauses() {
    let cluster = Cluster::new(1).await;
    let (is_open, opened) = (AtomicBool::new(false), Arc::new(AtomicUsize::new(0)));
    let count = opened.clone();
    let farm = cluster.start_faulty("a", move |request: &Request<'_>| {
        match request {
            Request::CreateSession(_) => {
                is_open.store(true, Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
            }
            Request::DestroySession(_) => is_open.store(false, Ordering::SeqCst),
            Request::BeatCheck(_) if is_open.load(Ordering::SeqCst) => {
                return Fate::of(FaultOutcome::Fail(StoreError::Overloaded { status: 503 }));
            }
            _ => {}
        }
        Fate::DELIVER
    });
    tokio::time::sleep(120 * SECOND).await;
    // Each session lives for 2 s: without pauses there are 60.
    let opened = opened.load(Ordering::SeqCst);
    assert!((6..=20).contains(&opened), "{opened} sessions in two minutes");
    farm.stop().await;
}
