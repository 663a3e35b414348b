//! Users and privileges of pods (invariant 34). A pod gets another user only from an agent that is root.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rcfarm_api::ids::PodId;
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_api::pod_group::pod_ids::PodIdFormat;
use rcfarm_testing::daemon::Daemon;
use rcfarm_testing::process::{Process, may_change_users};
use rcfarm_testing::wait::{eventually, until};
use serde_json::json;

use crate::harness::{Cluster, Host, HttpCluster, id, is_alive, manifest};

/// A host whose pods may run as another user; `None`: the test is left out.
fn host_of_root() -> Option<Host> {
    may_change_users().then_some(())?;
    let host = Host::new();
    // Users pass through the directories above the data directory.
    let above = host.settings.data_dir.parent().unwrap();
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o711)).unwrap();
    Some(host)
}

/// A manifest with a user.
fn of_user(pod: &str, script: &str, more: &str, user: &str) -> String {
    format!("{}run_as: {user}\n", manifest(pod, script, more))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_pod_of_another_user_has_a_home_and_its_config() {
    let Some(mut host) = host_of_root() else { return };
    host.start();
    let data = host.settings.data_dir.display().to_string();
    let script = format!(
        "id -u; id -g; id -G; cat $CONFIG_PATH; pwd | grep -c \"^$POD_HOME$\"; touch mine && echo wrote; \
         echo again >> /dev/stdout; \
         for f in {data}/pods/web/pod.json {data}/agent.json {data}/pods/web/main/launch.json; do \
           cat $f >/dev/null 2>&1 && echo read $f; done; \
         ls {data} {data}/work {data}/pods >/dev/null 2>&1 && echo listed; \
         echo x > $CONFIG_PATH || echo kept; exec sleep 600"
    );
    let text = of_user("web", &script, "config: {greeting: hello}\n", "nobody");
    host.intend("web", &text).await;
    host.until("web", |status| status.phase == NodePodPhase::Running).await;
    let wanted = "65534\n65534\n65534\ngreeting: hello\n1\nwrote\nagain\n";
    eventually("its output", || host.log("web").ends_with("kept\n")).await;
    let log = host.log("web");
    assert!(log.starts_with(wanted) && !log.contains("read ") && !log.contains("listed"), "{log}");
    host.unintend("web").await;
    host.until_gone("web").await;
    eventually("the home's end", || !host.settings.data_dir.join("work/web").exists()).await;
    host.end().await;
}

/// The file is the user's to read, and not to change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_pod_of_another_user_reads_its_payload() {
    let Some(mut host) = host_of_root() else { return };
    host.start();
    let data = host.settings.data_dir.display().to_string();
    let script = format!(
        "id -u; cat $RCFARM_PAYLOAD; echo $RCFARM_PAYLOAD | grep -c '/work/web/payload.data$'; \
         ls {data}/pods/web >/dev/null 2>&1 && echo listed; \
         echo x > $RCFARM_PAYLOAD || echo kept; exec sleep 600"
    );
    // `first` and `second` with a line feed each.
    host.intend("web", &of_user("web", &script, "payload: Zmlyc3QK\n", "nobody")).await;
    eventually("its output", || host.log("web").ends_with("kept\n")).await;
    let log = host.log("web");
    assert!(log.starts_with("65534\nfirst\n1\n") && !log.contains("listed"), "{log}");
    host.intend("web", &of_user("web", &script, "payload: c2Vjb25kCg==\n", "nobody")).await;
    eventually("the changed payload", || host.log("web").contains("65534\nsecond\n1\n")).await;
    host.unintend("web").await;
    host.until_gone("web").await;
    eventually("its end", || !host.settings.data_dir.join("work/web").exists()).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_job_runs_as_its_user() {
    let Some(mut host) = host_of_root() else { return };
    host.start();
    let farm = Cluster::start(&host, "a");
    let container = json!({"name": "main", "command": ["sh", "-c", "id -u; exec sleep 603"]});
    let spec = json!({"restartPolicy": "Never", "securityContext": {"runAsUser": 65534},
        "containers": [container]});
    let tasks = json!([{"name": "w", "replicas": 1, "template": {"spec": spec}}]);
    let job = "team-a/train".parse().unwrap();
    host.put(key::job(&job), json!({"spec": {"tasks": tasks}}).to_string()).await;
    let pod: PodId = PodIdFormat::Hashed.pod_id(&job, "w", 0).unwrap();
    host.until(pod.as_str(), |status| status.phase == NodePodPhase::Running).await;
    eventually("its user", || host.log(pod.as_str()) == "65534\n").await;
    farm.stop().await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_root_is_refused_unless_it_is_allowed() {
    let mut host = Host::new();
    host.start();
    for (pod, user) in [("name", "root"), ("number", "0"), ("group", "'65534:0'")] {
        host.intend(pod, &of_user(pod, "exec sleep 600", "", user)).await;
        let status = host.until(pod, |status| status.phase == NodePodPhase::Unfit).await;
        assert!(status.message.contains("--allow-user"), "{}", status.message);
        assert_eq!(status.cannot_start, None, "it is no fault of the node");
    }
    host.end().await;

    let Some(mut host) = host_of_root() else { return };
    host.settings.permits.users = vec!["root".to_owned()];
    host.start();
    host.intend("root", &of_user("root", "exec sleep 600", "", "root")).await;
    host.until("root", |status| status.phase == NodePodPhase::Running).await;
    host.intend("other", &of_user("other", "exec sleep 600", "", "nobody")).await;
    host.until("other", |status| status.phase == NodePodPhase::Unfit).await;
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_pod_without_a_user_has_the_default_one() {
    let Some(mut host) = host_of_root() else { return };
    host.settings.permits.default_user = Some("nobody".to_owned());
    // It is the operator's choice, so that manifests need not be allowed to name it.
    host.settings.permits.users = Vec::new();
    host.start();
    host.intend_script("web", "id -u; exec sleep 600", "").await;
    eventually("its user", || host.log("web") == "65534\n").await;
    host.end().await;
}

/// `CapEff`, `CapBnd` and `NoNewPrivs` of a pod's process.
const PRIVILEGES: &str = "grep -E '^(Cap(Eff|Bnd|Inh|Amb)|NoNewPrivs)' /proc/self/status | tr -d '\\n\\t'; \
                          echo; exec sleep 600";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_pod_has_no_privileges_unless_the_agent_says_so() {
    let Some(mut host) = host_of_root() else { return };
    host.start();
    let none = "0".repeat(16);
    let wanted = format!("CapInh:{none}CapEff:{none}CapBnd:{none}CapAmb:{none}NoNewPrivs:1\n");
    host.intend_script("own", PRIVILEGES, "").await;
    host.intend("other", &of_user("other", PRIVILEGES, "", "nobody")).await;
    for pod in ["own", "other"] {
        eventually("its privileges", || host.log(pod).ends_with('\n')).await;
        assert_eq!(host.log(pod), wanted, "{pod}");
    }
    // The agent can still stop both.
    for pod in ["own", "other"] {
        host.unintend(pod).await;
        host.until_gone(pod).await;
    }
    host.stop().await.unwrap();
    host.settings.permits.privileged = true;
    host.start();
    host.intend_script("as-before", PRIVILEGES, "").await;
    eventually("its privileges", || host.log("as-before").ends_with('\n')).await;
    assert!(host.log("as-before").ends_with("NoNewPrivs:0\n"), "{}", host.log("as-before"));
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_an_exec_check_runs_as_its_pod_and_leaves_nothing() {
    let Some(mut host) = host_of_root() else { return };
    host.start();
    let check = |script: &str, more: &str| {
        format!("    health: {{exec: [sh, -c, '{script}'], interval: 100ms, {more}}}\n")
    };
    let who = "id -u > who; sleep 600 & exit $(( $(id -u) != 65534 ))";
    host.intend("who", &of_user("who", "exec sleep 600", &check(who, ""), "nobody")).await;
    host.until("who", |status| status.health == Health::Passing).await;
    let hangs = check("echo $$ > leader; sleep 600 & echo $! > child; wait", "timeout: 1s");
    host.intend("hangs", &of_user("hangs", "exec sleep 600", &hangs, "nobody")).await;
    let home = host.settings.data_dir.join("work/hangs/home");
    let pid = |file: &str| {
        let text = std::fs::read_to_string(home.join(file)).unwrap_or_default();
        text.trim().parse::<i32>().ok()
    };
    eventually("a check", || pid("leader").is_some() && pid("child").is_some()).await;
    let first = [pid("leader").unwrap(), pid("child").unwrap()];
    eventually("the next check", || pid("leader").is_some_and(|pid| pid != first[0])).await;
    assert_eq!(first.map(is_alive), [false, false], "the group is killed at the time-out");
    let missing = check("", "").replace("sh, -c, ''", "/no/such");
    host.intend_script("missing", "exec sleep 600", &missing).await;
    let failed = host.until("missing", |status| status.health == Health::Critical).await;
    assert!(failed.message.contains("/no/such: it cannot be started"), "{}", failed.message);
    host.end().await;
}

/// A pod that prints what it finds of the agent's token and descriptors.
const SPY: &str = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c 'c0ffee-token'; \
                   { tr '\\0' '\\n' < /proc/$PPID/environ; } 2>/dev/null | grep -c =; \
                   ls /proc/self/fd | tr '\\n' ' '; echo end; exec sleep 600";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inv34_a_pod_gets_neither_token_nor_descriptors_of_its_agent() {
    let cluster = HttpCluster::new().await;
    let data = cluster.dir.path().join("data");
    // The agent's parent leaves a descriptor open.
    let agent =
        cluster.program.with_token("c0ffee-token").command(&["node", "run", "--name", "n1"]);
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7</etc/hostname; exec \"$@\"", "sh"]).arg(agent.get_program());
    command.args(agent.get_args()).arg("--data-dir").arg(&data).env_clear();
    command.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let agent = Daemon::new(Process::start_logging_here(&mut command), Some(data.clone()));
    let node = "n1".parse().unwrap();
    cluster.put(key::intent(&node, &id("spy")), manifest("spy", SPY, "")).await;
    until("the pod runs", async || {
        let status: Option<PodStatus> = cluster.read(key::pod_status(&id("spy"), &node)).await;
        status.is_some_and(|status| status.phase == NodePodPhase::Running)
    })
    .await;
    let log = || std::fs::read_to_string(data.join("pods/spy/main.log")).unwrap_or_default();
    eventually("what it found", || log().ends_with("end\n")).await;
    assert_eq!(log(), "0\n0\n0 1 2 3 end\n", "3 is the directory that ls reads");
    agent.stop().await;
}
