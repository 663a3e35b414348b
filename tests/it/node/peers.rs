//! Files that tell members of jobs where their peers are.

use rcfarm_api::ids::Namespaced;
use rcfarm_api::job::peers::{PeerAddress, PeersRecord};
use rcfarm_api::job::spec::JobUid;
use rcfarm_api::node::status::NodePodPhase;
use rcfarm_api::{Index, Stored, key};
use rcfarm_testing::process::may_change_users;
use rcfarm_testing::wait::{eventually, until};
use serde_json::{Value, json};

use crate::harness::Host;

pub(super) fn job() -> Namespaced {
    "team-a/train".parse().unwrap()
}

/// The manifest of a member with a file of the hosts of task w.
pub(super) fn member(pod: &str, script: &str, uid: u64) -> Value {
    let files = json!({"etc/volcano/w.host": [{"all": "w", "form": "lines"}]});
    let variables = json!({"MASTER_ADDR": [{"one": "w", "index": 0, "form": "host"}]});
    json!({
        "id": pod,
        "job": {"id": job(), "uid": uid, "task": "w", "index": 0, "version": 0, "attempt": 0},
        "peers": {"files": files, "variables": variables},
        "launchables": {"main": {"launchable_type": "process", "command": ["sh", "-c", script],
            "restart": "never"}},
    })
}

impl Host {
    pub(super) async fn tell(&self, uid: u64, hosts: &[&str]) {
        let peer = |host: &&str| Some(PeerAddress { host: (*host).to_owned(), port: Some(7) });
        let tasks = [("w".to_owned(), hosts.iter().map(peer).collect())].into();
        let uid = JobUid(Index(uid));
        let record = PeersRecord { uid, revision: 1, tasks, ..PeersRecord::default() };
        self.put(key::peers(&self.node(), &job()), record.encode()).await;
    }
}

/// The file is there before the first start, and follows while the process runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_peers_are_there_at_the_start_and_follow() {
    let mut host = Host::new();
    host.start();
    // A record of an older job of the name tells this one nothing.
    host.tell(6, &["old"]).await;
    let script = "cat $RCFARM_PEERS/etc/volcano/w.host; . $RCFARM_PEERS/peers.env; echo $MASTER_ADDR; \
                  exec sleep 600";
    host.intend("m", &member("m", script, 7).to_string()).await;
    until("the pod is known", async || host.settings.data_dir.join("pods/m/pod.json").exists())
        .await;
    assert_eq!(host.log("m"), "", "it waits for the record");
    host.tell(7, &["a", "b"]).await;
    host.until("m", |status| status.phase == NodePodPhase::Running).await;
    eventually("its output", || host.log("m") == "a\nb\na\n").await;
    let file = host.settings.data_dir.join("pods/m/etc/volcano/w.host");
    host.tell(7, &["a", "c"]).await;
    eventually("the file follows", || std::fs::read_to_string(&file).unwrap() == "a\nc\n").await;
    host.tell(8, &["z"]).await;
    host.tell(7, &["a", "d"]).await;
    eventually("the file follows", || std::fs::read_to_string(&file).unwrap() == "a\nd\n").await;
    // The agent after a kill knows them, too.
    host.kill().await;
    host.tell(7, &["e"]).await;
    host.start();
    eventually("the file follows", || std::fs::read_to_string(&file).unwrap() == "e\n").await;
    host.unintend("m").await;
    host.until_gone("m").await;
    host.end().await;
}

/// A pod whose files cannot be written runs, and its status says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_peers_do_not_leave_the_home_of_another_user() {
    if !may_change_users() {
        return;
    }
    let mut host = Host::new();
    let above = host.settings.data_dir.parent().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(above, mode).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    host.start();
    host.tell(7, &["a"]).await;
    let script = format!(
        "stat -c %u etc/volcano/w.host; rm -r etc; ln -s {} etc; echo linked; exec sleep 600",
        elsewhere.path().display()
    );
    let mut manifest = member("m", &script, 7);
    manifest["run_as"] = json!("nobody");
    host.intend("m", &manifest.to_string()).await;
    eventually("its link", || host.log("m") == "65534\nlinked\n").await;
    host.tell(7, &["b"]).await;
    let status = host.until("m", |status| !status.notes.is_empty()).await;
    assert!(status.notes[0].contains("etc/volcano/w.host: "), "{:?}", status.notes);
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    host.end().await;
}
