//! Pods that are made to hurt the agent or other pods.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_emulator::{Fate, Request};
use rcfarm_node::agent::driver::{
    Driver, FoundProcess, Launch, ProcessExit, Signalled, StartFailure, Started,
};
use rcfarm_node::agent::health_check::HealthCheck;
use rcfarm_node::agent::process::ProcessDriver;
use tokio::time::sleep;

use crate::harness::{Host, id, is_alive, manifest};
use rcfarm_testing::wait::eventually;

/// The fields `env` of a launchable with 34 variables, each twice as long as the one before.
fn bomb() -> String {
    let doubled = |n: usize| format!("A{n:02}: '${{A{0:02}}}${{A{0:02}}}'", n - 1);
    let doubled: Vec<String> = (1..34).map(doubled).collect();
    format!("    env: {{A00: 0123456789abcdef, {}}}\n", doubled.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durations_and_environments_out_of_range_make_only_their_pod_unfit() {
    let mut host = Host::new();
    let value = "x".repeat(100_000);
    host.settings.env.insert("LARGE".to_owned(), value);
    host.start();
    let endless =
        "    restart: {policy: always, backoff: 1s, max_backoff: 10000000000000000000s}\n";
    host.intend_script("endless", "exit 1", endless).await;
    host.intend_script("bomb", "exit 1", &bomb()).await;
    // Only the node knows how long its own variable is.
    host.intend_script("large", "exit 1", "    env: {TWO: '${LARGE}${LARGE}'}\n").await;
    host.intend_script("good", "exec sleep 600", "").await;
    let longest = "    restart: {policy: always, backoff: 1s, max_backoff: 7days}\n";
    host.intend_script("longest", "exit 1", longest).await;
    for restarts in 0..2 {
        for (pod, phase, words) in [
            ("endless", NodePodPhase::Unfit, "launchables.main: restart.max_backoff"),
            ("bomb", NodePodPhase::Unfit, "launchables.main: env.A13"),
            ("large", NodePodPhase::Backoff, "env.TWO: it is longer than"),
        ] {
            let status = host.until(pod, |status| status.message.contains(words)).await;
            assert_eq!((status.phase, status.status.as_str()), (phase, "failed"), "{pod}");
        }
        host.until("good", |status| status.phase == NodePodPhase::Running).await;
        host.until("longest", |status| status.phase == NodePodPhase::Backoff).await;
        if restarts == 0 {
            host.kill().await;
            host.start();
        }
    }
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_without_a_pause_are_ten_a_second_at_most() {
    let mut host = Host::new();
    host.start();
    let fast = "    restart: {policy: always, backoff: 0s, max_backoff: 0s}\n";
    host.intend_script("fast", "echo again", fast).await;
    let starts = || host.log("fast").lines().count();
    eventually("the second start", || starts() >= 2).await;
    let (before, begun) = (starts(), std::time::Instant::now());
    sleep(Duration::from_secs(2)).await;
    let most = begun.elapsed().as_millis() / 100 + 2;
    assert!((starts() - before) as u128 <= most, "{} starts, at most {most}", starts() - before);
    host.end().await;
}

/// Panics when it starts, or watches, a process of certain pods.
struct PanickingDriver(ProcessDriver);

#[async_trait::async_trait]
impl Driver for PanickingDriver {
    async fn start(&self, dir: &Path, launch: &Launch) -> Result<Started, StartFailure> {
        assert!(!dir.ends_with("start/main"), "boom at the start");
        self.0.start(dir, launch).await
    }

    async fn adopt(&self, dir: &Path) -> FoundProcess {
        self.0.adopt(dir).await
    }

    async fn exited(&self, dir: &Path, running: &Started) -> ProcessExit {
        assert!(!dir.ends_with("watch/main"), "boom at the watch");
        self.0.exited(dir, running).await
    }

    async fn stop(&self, running: &Started, signal: &str, grace: Duration) {
        self.0.stop(running, signal, grace).await;
    }

    async fn signal(&self, running: &Started, signal: &str) -> Signalled {
        self.0.signal(running, signal).await
    }

    async fn check_health(&self, health_check: &HealthCheck, launch: &Launch) -> (Health, String) {
        self.0.check_health(health_check, launch).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_while_a_pod_is_handled_ends_that_pod_alone() {
    let mut host = Host::new();
    let driver = ProcessDriver::new(PathBuf::from(env!("CARGO_BIN_EXE_rcfarm")));
    host.start_with(host.store.clone(), Arc::new(PanickingDriver(driver)));
    for pod in ["start", "watch", "good"] {
        host.intend_script(pod, "echo $$; exec sleep 600", "").await;
    }
    for (pod, words) in [("start", "boom at the start"), ("watch", "boom at the watch")] {
        let status = host.until(pod, |status| status.message.contains(words)).await;
        assert_eq!((status.phase, status.status.as_str()), (NodePodPhase::Unfit, "failed"));
        assert!(status.message.contains("the agent panicked"), "{}", status.message);
    }
    host.until("good", |status| status.phase == NodePodPhase::Running).await;
    let pid = || host.log("watch").trim().parse();
    eventually("the end of the process", || pid().is_ok_and(|pid| !is_alive(pid))).await;
    // Another manifest, or the end of the intent, is obeyed as ever.
    host.unintend("start").await;
    host.until_gone("start").await;
    host.unintend("watch").await;
    host.until_gone("watch").await;
    host.stop().await.unwrap();
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_too_large_for_a_transaction_silences_no_other_pod() {
    let mut host = Host::new();
    host.start();
    let text = "x".repeat(240_000);
    let long = format!("id: aaa\nlaunchables: {{a: {{launchable_type: {text}}}}}\n");
    host.intend("aaa", &long).await;
    let large = format!("{}# {}\n", manifest("bbb", "exec sleep 600", ""), "x".repeat(420_000));
    host.intend("bbb", &large).await;
    let many: Vec<String> =
        (0..6_000).map(|n| format!("  {n}: {{launchable_type: docker}}\n")).collect();
    host.intend("ccc", &format!("id: ccc\nlaunchables:\n{}", many.concat())).await;
    host.intend_script("zzz", "exec sleep 600", "").await;
    let status = host.until("aaa", |status| status.phase == NodePodPhase::Unfit).await;
    assert!(status.message.contains("launchable_type") && status.message.ends_with('…'));
    assert!(status.message.len() < 1_100 && status.processes[0].message.len() < 1_100);
    let status = host.until("bbb", |status| status.phase == NodePodPhase::Running).await;
    assert!(status.message.contains("too large for a transaction"), "{}", status.message);
    assert_eq!(host.entry(key::reality(&host.node(), &id("bbb"))).await, None);
    let status = host.until("ccc", |status| status.message.contains("not listed")).await;
    assert!(status.processes.is_empty());
    host.until("zzz", |status| status.phase == NodePodPhase::Running).await;
    // What was left out is not written again and again.
    let key = key::pod_status(&id("bbb"), &host.node());
    let before = host.entry(key.clone()).await.unwrap().modify_index;
    host.intend_script("later", "exec sleep 600", "").await;
    host.until("later", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!(host.entry(key).await.unwrap().modify_index, before);
    for pod in ["aaa", "bbb", "ccc"] {
        host.unintend(pod).await;
        host.until_gone(pod).await;
    }
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_node_reads_its_intents_once_a_second_beside_foreign_writes() {
    let mut host = Host::new();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let count = move |request: &Request<'_>| {
        if matches!(request, Request::List("intent/n1/") | Request::Keys("intent/n1/")) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Fate::DELIVER
    };
    host.start_on(host.store.with_faults(Arc::new(count)));
    eventually("the first read", || reads.load(Ordering::SeqCst) > 0).await;
    let (before, begun) = (reads.load(Ordering::SeqCst), std::time::Instant::now());
    let other = "n2".parse().unwrap();
    for n in 0..200 {
        host.put(key::intent(&other, &id(&format!("p{n}"))), "id: p\n").await;
        // Consul does so at each such write; the model only when it is told to.
        host.store.wake_all();
        sleep(Duration::from_millis(15)).await;
    }
    let (found, most) = (reads.load(Ordering::SeqCst) - before, begun.elapsed().as_secs() + 3);
    assert!(found as u64 <= most, "{found} reads, at most {most}");
    assert!(found >= 2, "the watch was woken: {found} reads");

    // On a quiet cluster an intent is seen at once, and soon beside other writes.
    sleep(Duration::from_secs(2)).await;
    host.intend_script("web", "exec sleep 600", "").await;
    host.until("web", |status| status.phase == NodePodPhase::Running).await;
    host.end().await;
}
