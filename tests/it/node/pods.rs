//! Pods start, run, fail and stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcfarm_api::Stored;
use rcfarm_api::allocation::{Allocation, Allocations};
use rcfarm_api::ids::RcId;
use rcfarm_api::key;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::node::{Health, HealthReport};
use rcfarm_emulator::{Fate, Request};
use rcfarm_node::agent::driver::Started;
use uuid::Uuid;

use crate::harness::{Host, id, is_alive, manifest};
use rcfarm_testing::wait::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_is_told_with_a_bell_and_goes_with_its_intent() {
    let mut host = Host::new();
    host.start();
    let rc = RcId(Uuid::from_u128(7));
    host.own("web", rc).await;
    host.intend_script("web", "echo port $NODE_PORT pod $RCFARM_POD; exec sleep 600", "").await;
    let status = host.until("web", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!((status.owner, status.health), (Some(rc), Health::Passing));
    let pid = status.processes[0].pid.unwrap();
    assert!(is_alive(pid));
    eventually("the first line", || host.log("web") == "port 12345 pod web\n").await;

    let node = host.node();
    let reality = host.entry(key::reality(&node, &id("web"))).await.unwrap();
    let intent = host.entry(key::intent(&node, &id("web"))).await.unwrap();
    let bell = host.entry(key::rc_bell(rc)).await.unwrap();
    let health = host.entry(key::health(&id("web"), &node)).await.unwrap();
    assert_eq!(reality.value, intent.value);
    assert_eq!(bell.modify_index, reality.modify_index, "one transaction");
    assert_eq!(health.modify_index, reality.modify_index, "one transaction");
    assert!(health.session.is_some(), "health goes with the agent");
    let (record, entry) = host.node_record().await.unwrap();
    assert_eq!(record.session, entry.session);
    assert_eq!(record.capacity.to_string(), "cpu=4,gpu=2");
    let labels = host.entry(key::node_labels(&node)).await.unwrap();
    assert_eq!(labels.value, r#"{"pool":"test"}"#);

    host.unintend("web").await;
    host.until_gone("web").await;
    assert!(!is_alive(pid));
    eventually("the directory's end", || !host.settings.data_dir.join("pods/web").exists()).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_labels_is_known_to_farms_all_the_same() {
    let mut host = Host::new();
    host.settings.labels.clear();
    host.start();
    host.intend_script("web", "exec sleep 600", "").await;
    host.until("web", |status| status.phase == NodePodPhase::Running).await;
    let labels = host.entry(key::node_labels(&host.node())).await.unwrap();
    assert_eq!(labels.value, "{}");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_pod_is_reported_seldom_and_failed_start_with_reason() {
    let mut host = Host::new();
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = writes.clone();
    let count = move |request: &Request<'_>| {
        if request.writes() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Fate::DELIVER
    };
    host.start_on(host.store.with_faults(Arc::new(count)));
    let often = "    restart: {policy: always, backoff: 10ms, max_backoff: 10ms}\n";
    host.intend_script("flaps", "echo again", often).await;
    let begun = std::time::Instant::now();
    eventually("a hundred starts", || host.log("flaps").lines().count() > 100).await;
    let writes = writes.load(Ordering::SeqCst);
    // Reports are limited by time: on a busy machine the starts take longer.
    let most = 40 + usize::try_from(begun.elapsed().as_secs()).unwrap() / 2;
    assert!(writes < most, "{writes} writes for a hundred starts");
    let status = host.pod_status("flaps").await.unwrap();
    assert!(status.message.contains("too often"), "{}", status.message);
    assert_eq!((status.health, &status.cannot_start), (Health::Unknown, &None), "it starts");

    let missing = "id: missing\nlaunchables:\n  main:\n    launchable_type: process\n    \
                   command: /no/such\n    restart: {policy: always, backoff: 10ms}\n";
    host.intend("missing", missing).await;
    let status = host.until("missing", |status| status.cannot_start.is_some()).await;
    let why = status.cannot_start.unwrap();
    assert!(why.contains("main: /no/such cannot be started"), "{why}");
    let health = host.entry(key::health(&id("missing"), &host.node())).await.unwrap();
    let report = HealthReport::decode(&health.value);
    assert_eq!(report.cannot_start.as_deref(), Some(why.as_str()));
    assert!(report.is_of_program, "the node is not at fault");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritable_log_is_reported_and_lost_record_rewritten() {
    let mut host = Host::new();
    host.start();
    let log = host.settings.data_dir.join("pods/web/main.log");
    std::fs::create_dir_all(&log).unwrap();
    host.intend_script("web", "exec sleep 600", "").await;
    let status = host.until("web", |status| status.phase == NodePodPhase::Backoff).await;
    assert!(status.message.contains("the log file"), "{}", status.message);
    std::fs::remove_dir(&log).unwrap();
    host.until("web", |status| status.phase == NodePodPhase::Running).await;

    // As with a full disk during the start: the shim cannot write its record for the next agent.
    let record = host.settings.data_dir.join("pods/late/main/running.json");
    std::fs::create_dir_all(&record).unwrap();
    std::fs::write(record.join("full"), "").unwrap();
    host.intend_script("late", "exec sleep 600", "").await;
    let first = host.until("late", |status| status.phase == NodePodPhase::Running).await;
    std::fs::remove_dir_all(&record).unwrap();
    eventually("the record", || record.is_file()).await;
    host.kill().await;
    host.start();
    let again = host.until("late", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!(again.processes[0].pid, first.processes[0].pid);
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_pods_say_what_is_wrong_and_hurt_no_other() {
    let mut host = Host::new();
    host.start();
    host.intend("yaml", "id: [").await;
    host.intend("other", "id: another\n").await;
    host.intend("empty", "id: empty\n").await;
    host.intend("docker", "id: docker\nlaunchables: {a: {launchable_type: docker}}\n").await;
    let missing =
        "id: missing\nlaunchables:\n  main: {launchable_type: process, command: /no/such}\n";
    host.intend("missing", missing).await;
    host.intend("user", &(manifest("user", "true", "") + "run_as: nobody-at-all\n")).await;
    host.intend_script("cwd", "true", "    cwd: /no/such/dir\n").await;
    host.intend_script("good", "exec sleep 600", "").await;
    for (pod, phase, words) in [
        ("yaml", NodePodPhase::Unfit, "manifest is not valid"),
        ("other", NodePodPhase::Unfit, "the intent is for other"),
        ("empty", NodePodPhase::Unfit, "no launchables"),
        ("docker", NodePodPhase::Unfit, "\"docker\" cannot be run"),
        ("missing", NodePodPhase::Backoff, "/no/such cannot be started"),
        ("user", NodePodPhase::Backoff, "nobody-at-all"),
        ("cwd", NodePodPhase::Backoff, "/no/such/dir does not exist"),
    ] {
        let status = host.until(pod, |status| status.message.contains(words)).await;
        assert_eq!((status.phase, status.status.as_str()), (phase, "failed"), "{pod}");
        assert_eq!(host.entry(key::reality(&host.node(), &id(pod))).await, None, "{pod}");
    }
    host.until("good", |status| status.phase == NodePodPhase::Running).await;
    host.unintend("yaml").await;
    host.until_gone("yaml").await;
    host.intend_script("docker", "exec sleep 600", "").await;
    host.until("docker", |status| status.phase == NodePodPhase::Running).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ends_is_started_again_as_its_policy_says() {
    let mut host = Host::new();
    host.start();
    host.intend_script("always", "exit 3", "    restart: {policy: always, backoff: 10ms}\n").await;
    host.intend_script("once", "exit 0", "    restart: on_failure\n").await;
    let status = host.until("always", |s| s.processes[0].restarts >= 2).await;
    assert_eq!(status.processes[0].last_exit.as_ref().unwrap().exit_code, 3);
    let status = host.until("once", |status| status.phase == NodePodPhase::Ended).await;
    assert_eq!(status.message, "main: exited with 0");
    assert_eq!((status.health, status.processes[0].restarts), (Health::Critical, 0));
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_manifest_replaces_process_and_kills_its_children() {
    let mut host = Host::new();
    host.start();
    let stubborn = "trap '' TERM; sleep 600 & echo $!; while :; do sleep 0.1; done";
    host.intend_script("web", stubborn, "    grace: 200ms\n").await;
    let first = host.until("web", |status| status.phase == NodePodPhase::Running).await;
    eventually("the child", || host.log("web").ends_with('\n')).await;
    let child: i32 = host.log("web").trim().parse().unwrap();
    host.intend_script("web", "exec sleep 601", "").await;
    let pid = first.processes[0].pid;
    let second =
        host.until("web", |s| s.phase == NodePodPhase::Running && s.processes[0].pid != pid).await;
    assert!(!is_alive(pid.unwrap()) && !is_alive(child));
    assert!(is_alive(second.processes[0].pid.unwrap()));
    host.end().await;
}

/// A process that shares the agent's session can write input to the agent's terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_and_checks_are_not_in_the_agents_session() {
    let session = |stat: &str| -> i32 {
        let fields = stat.rsplit_once(')').unwrap().1;
        fields.split_ascii_whitespace().nth(3).unwrap().parse().unwrap()
    };
    let own = session(&std::fs::read_to_string("/proc/self/stat").unwrap());
    let mut host = Host::new();
    host.start();
    let check = "    health: {exec: [sh, -c, 'cat /proc/$$/stat > check']}\n";
    host.intend_script("web", "cat /proc/$$/stat; exec sleep 600", check).await;
    let running = |status: &PodStatus| status.health == Health::Passing;
    let pid = host.until("web", running).await.processes[0].pid.unwrap();
    eventually("its session", || host.log("web").ends_with('\n')).await;
    let record = host.settings.data_dir.join("pods/web/main/running.json");
    let started: Started = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!((started.pid, session(&host.log("web"))), (pid, started.shim));
    let check = std::fs::read_to_string(host.settings.data_dir.join("pods/web/check")).unwrap();
    assert!(![own, started.shim].contains(&session(&check)), "{check}");
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_environment_has_config_and_devices_only() {
    let mut host = Host::new();
    let gpus =
        Allocation { devices: [("gpu".to_owned(), [0, 1].into())].into(), ..Default::default() };
    let allocations = Allocations { pods: [(id("train"), gpus)].into(), ..Default::default() };
    let text = String::from_utf8(allocations.encode().to_vec()).unwrap();
    host.put(key::allocation(&host.node()), &text).await;
    host.start();
    let script = "cat $CONFIG_PATH; echo $RCFARM_DEVICES $CUDA_VISIBLE_DEVICES $RCFARM_ISOLATION \
                  ${CARGO_MANIFEST_DIR-none}; exec sleep 600";
    let more = "config: {greeting: hello}\nresources: {gpu: 2}\n";
    host.intend("train", &manifest("train", script, more)).await;
    let status = host.until("train", |status| status.phase == NodePodPhase::Running).await;
    assert_eq!(status.devices, ["gpu:0", "gpu:1"]);
    let wanted = "greeting: hello\ngpu:0,gpu:1 0,1 0,1 none\n";
    eventually(&format!("{wanted:?}"), || host.log("train") == wanted).await;
    host.end().await;
}
