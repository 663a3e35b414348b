//! What the agent says of itself: the node's record and its alerts, in virtual time and without processes.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rcfarm_emulator::{Fate, FaultOutcome, Request};
use rcfarm_store::StoreError;
use rcfarm_testing::fake_driver::FakeDriver;
use rcfarm_testing::wait::within;
use tracing::subscriber::DefaultGuard;

use crate::harness::{Host, SECOND};

/// What is logged in this thread while the guard lives.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    fn start() -> (CapturedLog, DefaultGuard) {
        let log = CapturedLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    fn lines(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn problem(host: &Host) -> Option<String> {
    host.node_record().await.and_then(|(record, _)| record.problem)
}

async fn until_registered(host: &Host) {
    within(30 * SECOND, "registered", || async { host.node_record().await.is_some() }).await;
}

#[tokio::test(start_paused = true)]
async fn full_disk_is_one_alert_and_a_problem_of_the_node() {
    let (log, _guard) = CapturedLog::start();
    let mut host = Host::new();
    host.start_with(host.store.clone(), Arc::new(FakeDriver));
    until_registered(&host).await;
    assert_eq!(problem(&host).await, None);
    let lease = host.settings.data_dir.join("lease");
    // The file cannot be replaced.
    for time in 1..=2 {
        std::fs::remove_file(&lease).unwrap();
        std::fs::create_dir(&lease).unwrap();
        within(30 * SECOND, "a problem", || async { problem(&host).await.is_some() }).await;
        let said = problem(&host).await.unwrap();
        assert!(said.contains("the data directory cannot be written"), "{said}");
        tokio::time::sleep(600 * SECOND).await;
        let alerts = log.lines("the lease cannot be written");
        assert_eq!(alerts.len(), time, "one for each time: {alerts:#?}");
        assert!(alerts.iter().all(|line| line.contains("alert=true")), "{alerts:#?}");
        std::fs::remove_dir(&lease).unwrap();
        within(60 * SECOND, "mended", || async { problem(&host).await.is_none() }).await;
        assert_eq!(log.lines("the lease can be written again").len(), time);
    }
    host.stop().await.unwrap();
}

/// As of a Consul agent that was rebuilt, while the servers know another node of its name.
#[tokio::test(start_paused = true)]
async fn unsynced_check_is_a_problem_of_the_node_until_it_works() {
    let (log, _guard) = CapturedLog::start();
    let mut host = Host::new();
    let is_synced = Arc::new(AtomicBool::new(false));
    let synced = is_synced.clone();
    let store = host.store.with_faults(Arc::new(move |request: &Request<'_>| match request {
        Request::CreateSession(new)
            if !new.service_checks.is_empty() && !synced.load(Ordering::SeqCst) =>
        {
            let body = "Missing check 'service:rcfarm-node-n1' registration".to_owned();
            Fate::of(FaultOutcome::Fail(StoreError::Rejected { status: 500, body }))
        }
        _ => Fate::DELIVER,
    }));
    host.start_with(store, Arc::new(FakeDriver));
    until_registered(&host).await;
    let said = problem(&host).await.expect("the record says so from the beginning");
    assert!(said.contains("Missing check") && said.contains("cannot sync"), "{said}");
    tokio::time::sleep(50 * SECOND).await;
    let alerts = log.lines("the Consul agent refuses the check");
    assert_eq!(alerts.len(), 1, "{alerts:#?}");
    assert!(alerts[0].contains("alert=true") && !alerts[0].contains("grant"), "{alerts:#?}");
    is_synced.store(true, Ordering::SeqCst);
    within(600 * SECOND, "mended", || async { problem(&host).await.is_none() }).await;
    host.stop().await.unwrap();
}
