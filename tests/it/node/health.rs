//! Health checks of running pods.

use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_testing::process::free_ports;
use rcfarm_testing::wait::until;

use crate::harness::{Host, HttpCluster, id, manifest};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_turns_a_running_pod_passing_and_critical() {
    let mut host = Host::new();
    host.start();
    let check = "    health: {exec: [sh, -c, 'test -e \"$POD_HOME/well\" || exit 2'], \
                 interval: 100ms, critical_after: 2}\n";
    host.intend_script("web", "touch well; exec sleep 600", check).await;
    let status = host.until("web", |status| status.health == Health::Passing).await;
    assert_eq!(status.phase, NodePodPhase::Running);
    std::fs::remove_file(host.settings.data_dir.join("pods/web/well")).unwrap();
    let status = host.until("web", |status| status.health == Health::Critical).await;
    assert_eq!(status.phase, NodePodPhase::Running, "a check restarts nothing");
    assert!(status.message.contains("exit status: 2"), "{}", status.message);
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_a_check_that_cannot_be_started_has_no_value_of_a_variable() {
    let mut host = Host::new();
    host.start();
    let check = "    health: {exec: ['${POD_HOME}/absent'], interval: 100ms, critical_after: 1}\n";
    host.intend_script("web", "exec sleep 600", check).await;
    let status = host.until("web", |status| status.health == Health::Critical).await;
    let message = &status.message;
    assert!(message.contains("${POD_HOME}/absent: it cannot be started: No such"), "{message}");
    host.end().await;
}

/// A check that fails always, ten times a second.
const FAILING: &str =
    "health: {exec: [sh, -c, exit 2], interval: 100ms, critical_after: 1, restart_after: 2}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_after_restarts_a_process_whose_check_fails() {
    let mut host = Host::new();
    host.start();
    // It ends with 0 when it is asked to stop, and has failed all the same.
    let script = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let policy = |policy: &str| {
        format!("    {FAILING}\n    restart: {{policy: {policy}, backoff: 100ms}}\n")
    };
    host.intend_script("again", script, &policy("on_failure")).await;
    host.intend_script("once", script, &policy("never")).await;
    let status = host.until("again", |status| status.processes[0].restarts > 0).await;
    let exit = status.processes[0].last_exit.as_ref().unwrap();
    assert_ne!(exit.exit_code, 0, "{status:?}");
    let status = host.until("once", |status| status.phase == NodePodPhase::Ended).await;
    assert!(status.message.contains("its health check failed 2 times"), "{}", status.message);
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_check_uses_no_proxy() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let at = format!("http://{}", proxy.local_addr().unwrap());
    let mut cluster = HttpCluster::new().await;
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        cluster.program = cluster.program.with_env(name, &at);
    }
    let agent = cluster.agent_process("n1", &[]);
    let [dead] = free_ports();
    let check = format!(
        "    health: {{http: 'http://127.0.0.1:{dead}/', interval: 100ms, critical_after: 1}}\n"
    );
    let node = "n1".parse().unwrap();
    cluster.put(key::intent(&node, &id("web")), manifest("web", "exec sleep 600", &check)).await;
    until("the check of the dead port fails", async || {
        let status: Option<PodStatus> = cluster.read(key::pod_status(&id("web"), &node)).await;
        status.is_some_and(|status| status.health == Health::Critical)
    })
    .await;
    let asked = proxy.accept().map(|_| ());
    assert_eq!(asked.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    agent.stop().await;
}
