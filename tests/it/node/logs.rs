//! Logs of pods, as agents serve them.

use std::os::unix::fs::PermissionsExt;

use axum::body::to_bytes;
use rcfarm_api::ids::NodeName;
use rcfarm_api::key;
use rcfarm_api::node::record::NodeRecord;
use rcfarm_api::node::status::{NodePodPhase, PodStatus};
use rcfarm_node::http;
use rcfarm_testing::process::free_ports;
use rcfarm_testing::wait::{in_time, until};
use tokio::net::{TcpStream, UnixStream};

use crate::harness::{Host, HttpCluster, id, manifest};

/// Status and text of an answer.
async fn ask(host: &Host, path: &str) -> (u16, String) {
    let stream = UnixStream::connect(host.settings.data_dir.join("agent.sock")).await.unwrap();
    let answer = in_time("an answer", http::get(stream, "localhost", path, None)).await.unwrap();
    let status = answer.status().as_u16();
    let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_serves_logs_of_its_pods_and_no_other_file() {
    let mut host = Host::new();
    host.start();
    host.intend_script("web", "seq 1 5; exec sleep 600", "").await;
    host.until("web", |status| status.phase == NodePodPhase::Running).await;
    until("five lines", async || ask(&host, "/pods/web/log").await.1 == "1\n2\n3\n4\n5\n").await;
    let (record, _) = host.node_record().await.unwrap();
    let socket = host.settings.data_dir.join("agent.sock");
    assert_eq!(record.log_socket.as_deref(), socket.to_str());
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for the agent's user alone");

    let pods = host.settings.data_dir.join("pods/web");
    // As right after a rotation.
    std::fs::write(pods.join("main.log.1"), "-1\n0\n").unwrap();
    assert_eq!(ask(&host, "/pods/web/log").await.1, "-1\n0\n1\n2\n3\n4\n5\n");
    assert_eq!(ask(&host, "/pods/web/log?lines=6").await.1, "0\n1\n2\n3\n4\n5\n");
    std::fs::remove_file(pods.join("main.log.1")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", pods.join("link.log")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(pods.join("pipe.log")).status().unwrap();
    assert!(fifo.success());
    for (path, status, words) in [
        ("/pods/web/log?launchable=main&lines=2", 200, "4\n5\n"),
        ("/pods/web/log?launchable=main&lines=100000000", 200, "1\n2\n"),
        ("/pods/web/log?launchable=main&node=n1", 200, "1\n"),
        ("/pods/web/log?launchable=main&node=n2", 421, "this is the agent of n1"),
        ("/pods/web/log?launchable=link", 404, "cannot be read"),
        ("/pods/web/log?launchable=pipe", 404, "no regular file"),
        ("/pods/web/log?launchable=pipe&follow=true", 404, "no regular file"),
        ("/pods/web/log?launchable=..%2Fx", 400, "no launchable name"),
        ("/pods/web/log", 400, "choose one: link, main, pipe"),
        ("/healthz", 200, "ok"),
        ("/pods/web/log?previous=true", 400, "choose one"),
        ("/pods/web/log?launchable=main&previous=true", 404, "no start before the present one"),
        ("/pods/web/log?launchable=main&previous=true&follow=true", 400, "neither follow nor at"),
    ] {
        let (found, text) = ask(&host, path).await;
        assert!(
            found == status && text.starts_with(words) || text.contains(words),
            "{path}: {text}"
        );
        assert_eq!(found, status, "{path}: {text}");
    }
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_on_the_network_need_the_token_and_those_of_this_machine_none() {
    let cluster = HttpCluster::new().await;
    let token = cluster.dir.path().join("log-token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let [port, other] = free_ports();
    let (address, closed) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{other}"));
    let file = token.to_str().unwrap();
    let agent = cluster.agent_process("n1", &["--http", &address, "--http-token-file", file]);
    let without = cluster.agent_process("n2", &["--http", &closed]);
    for name in ["n1", "n2"] {
        let node: NodeName = name.parse().unwrap();
        let script = format!("echo from {name}; exec sleep 600");
        cluster.put(key::intent(&node, &id("web")), manifest("web", &script, "")).await;
        until("it runs", async || {
            let status: Option<PodStatus> = cluster.read(key::pod_status(&id("web"), &node)).await;
            status.is_some_and(|status| status.phase == NodePodPhase::Running)
        })
        .await;
        // Over the socket of the right node.
        let logs = ["pod", "logs", "web", "--node", name];
        until("its log", async || cluster.run(&logs).await.ok() == format!("from {name}\n")).await;
    }
    for (address, token, status) in [
        (&address, None, 401),
        (&address, Some("0123456789abcdeF"), 401),
        (&address, Some("0123456789abcdef"), 200),
        (&closed, None, 401),
        (&closed, Some(""), 401),
    ] {
        let stream = TcpStream::connect(address).await.unwrap();
        let answer = http::get(stream, "n1", "/pods/web/log", token).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{address} {token:?}");
    }

    // As from another machine: the socket is not there.
    let node: NodeName = "n1".parse().unwrap();
    let mut record: NodeRecord = cluster.read(key::node(&node)).await.unwrap();
    assert_eq!(record.http.as_deref(), Some(address.as_str()));
    std::fs::remove_file(record.log_socket.take().unwrap()).unwrap();
    let logs = ["pod", "logs", "web", "--node", "n1"];
    let refused = cluster.run(&logs).await.failed();
    assert!(refused.contains("--log-token-file"), "{refused}");
    let log = cluster.run(&[&logs[..], &["--log-token-file", file]].concat()).await.ok();
    assert_eq!(log, "from n1\n");
    let record: NodeRecord = cluster.read(key::node(&"n2".parse().unwrap())).await.unwrap();
    assert_eq!(record.http, None, "there is nothing to be had");
    std::fs::remove_file(record.log_socket.unwrap()).unwrap();
    let refused = cluster.run(&["pod", "logs", "web", "--node", "n2"]).await.failed();
    assert!(refused.contains("on its own machine") && refused.contains("--http"), "{refused}");
    agent.stop().await;
    without.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn previous_prints_what_the_start_before_the_present_one_wrote() {
    let cluster = HttpCluster::new().await;
    let agent = cluster.agent_process("n1", &["--log-size", "1Mi"]);
    let node: NodeName = "n1".parse().unwrap();
    let logs = async |more: &[&str]| cluster.run(&[&["pod", "logs", "web"], more].concat()).await;
    // Ends twice, then goes on. The second start writes lines that come after a rotation, too.
    let script = "n=$(cat n 2>/dev/null || echo 1); echo $((n + 1)) > n; echo start $n; echo more; \
                  while [ $n = 2 ] && ! [ -e go ]; do sleep 0.1; done; echo end of $n; \
                  [ $n -le 2 ] && exit 1; exec sleep 600";
    let restart = "    restart: {policy: on_failure, backoff: 100ms, max_backoff: 100ms}\n";
    cluster.put(key::intent(&node, &id("web")), manifest("web", script, restart)).await;
    until("the second start", async || logs(&[]).await.stdout.ends_with("start 2\nmore\n")).await;
    assert_eq!(logs(&["--previous"]).await.ok(), "start 1\nmore\nend of 1\n");
    assert_eq!(logs(&["--previous", "--lines", "1"]).await.ok(), "end of 1\n");
    // As a rotation does it, at any moment.
    let home = cluster.dir.path().join("nodes/n1/pods/web");
    std::fs::copy(home.join("main.log"), home.join("main.log.1")).unwrap();
    std::fs::File::options().write(true).open(home.join("main.log")).unwrap().set_len(0).unwrap();
    assert_eq!(logs(&["--previous"]).await.ok(), "start 1\nmore\nend of 1\n");
    std::fs::write(home.join("go"), "").unwrap();
    until("the third start", async || logs(&[]).await.stdout.ends_with("end of 3\n")).await;
    assert_eq!(logs(&["-p", "--lines", "0"]).await.ok(), "start 2\nmore\nend of 2\n");
    let refused = logs(&["--previous", "--follow"]).await;
    assert!(refused.stderr.contains("cannot be used with"), "{refused:?}");
    // The agent's next run knows it, too.
    agent.stop().await;
    let agent = cluster.agent_process("n1", &[]);
    until("the agent answers", async || {
        let said = logs(&["--previous"]).await;
        said.code == 0 && said.stdout == "start 2\nmore\nend of 2\n"
    })
    .await;
    agent.stop().await;
}
