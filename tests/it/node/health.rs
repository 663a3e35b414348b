//! Health checks of running pods.

use rcfarm_api::node::Health;
use rcfarm_api::node::status::NodePodPhase;

use crate::harness::Host;

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
