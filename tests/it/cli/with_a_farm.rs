//! Commands on a store with a running farm.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::HttpCluster;
use rcfarm_testing::wait::{in_time, until};

#[tokio::test]
async fn from_create_to_delete() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(4).await;
    let _farm = cluster.start("f1");
    let id = cluster.create(&["--replicas", "2", "--wait"]).await;
    assert_eq!(cluster.pods().await, ["n1/web", "n2/web"]);

    let ran = cluster.run(&["rc", "scale", "web", "4", "--wait"]).await;
    assert!(ran.stderr.contains("4 of 4 pods scheduled"), "{ran:?}");
    assert!(ran.ok().contains("2 -> 4"));
    assert_eq!(cluster.pods().await.len(), 4);

    let status = cluster.json(&["rc", "status", "web"]).await;
    assert_eq!(status["status"]["owner"]["farm"], "f1");
    assert_eq!(status["is_current"], true);
    let text = cluster.run(&["rc", "status", "web"]).await.ok();
    assert!(text.contains("4 of 4 scheduled") && text.contains("AsDesired"), "{text}");
    let list = cluster.run(&["rc", "list"]).await.ok();
    assert!(list.contains("4/4") && list.contains("AsDesired") && list.contains("f1"), "{list}");
    assert_eq!(cluster.run(&["rc", "plan", "web"]).await.code, 0);
    let why = cluster.run(&["rc", "explain", "web"]).await.ok();
    assert!(why.contains("as desired: 4 of 4") && why.contains("farm f1"), "{why}");
    let pods = cluster.json(&["rc", "pods", "web"]).await;
    assert_eq!(
        pods[0],
        json!({
            "node": "n1", "pod_id": "web", "health": "absent", "intent": "same", "eligible": true
        })
    );

    assert!(cluster.run(&["rc", "delete", "web"]).await.ok().contains("deleted"));
    assert_eq!(cluster.pods().await, Vec::<String>::new());
    assert!(cluster.get(&format!("replication_controllers/{id}")).await.is_none());
    assert!(cluster.get(&format!("status/replication_controllers/{id}/rcfarm")).await.is_none());
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
}

#[tokio::test]
async fn audit_verify_agrees_before_and_after_prune() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let _farm = cluster.start("f1");
    cluster.create(&["--replicas", "3", "--wait"]).await;
    cluster.run(&["rc", "scale", "web", "1", "--wait"]).await.ok();
    let text = cluster.run(&["audit", "list"]).await.ok();
    assert!(text.contains("+n1 +n2 +n3 3 of 3") && text.contains("f1"), "{text}");
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));
    // The checkpoint, and the last record of the queue `default`.
    cluster.run(&["audit", "prune", "--keep", "0s"]).await.ok();
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("2 records"));
}

#[tokio::test]
async fn waiting_says_what_holds_it_up_and_ends_when_it_is_gone() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    let _farm = cluster.start("f1");
    cluster.create(&["--wait"]).await;
    let mut command = cluster.command(&["rc", "scale", "web", "2", "--wait"]);
    let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut heard = Vec::new();
    in_time("it says what holds it up", async {
        while !heard.iter().any(|line: &String| line.contains("(InsufficientNodes)")) {
            heard.push(lines.next_line().await.unwrap().unwrap_or_else(|| panic!("{heard:?}")));
        }
    })
    .await;
    assert!(heard.last().unwrap().contains("1 of 2 pods scheduled"), "{heard:?}");
    cluster.run(&["label", "set", "node", "n2", "role=web"]).await.ok();
    assert!(in_time("its end", child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn farms_show_themselves_and_can_be_told() {
    let cluster = HttpCluster::new().await;
    let _farm = cluster.start_selecting("f1", "team=a");
    let id = cluster.create(&["--rc-label", "team=b"]).await;
    // The farm is listed once its session is open.
    let mut list = Value::Null;
    until("it shows itself", async || {
        list = cluster.json(&["farm", "list"]).await;
        !list.as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!((&list[0]["name"], &list[0]["selector"]), (&json!("f1"), &json!("team=a")));
    let why = cluster.run(&["rc", "explain", &id]).await.ok();
    assert!(why.contains("farm f1 does not want it: label team is \"b\""), "{why}");
    assert!(cluster.run(&["farm", "confirm", "f1"]).await.ok().contains("confirmed"));
    assert_eq!(cluster.events().await.last().unwrap(), "MASS_DELETION_CONFIRMED");
    let stderr = cluster.run(&["farm", "confirm", "f2"]).await.failed();
    assert!(stderr.contains("no farm f2 is running"), "{stderr}");
}

#[tokio::test]
async fn watch_prints_each_change_of_status() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let _farm = cluster.start("f1");
    let id = cluster.create(&["--wait"]).await;
    let mut child = cluster.spawn(&["rc", "watch", "web", "-o", "json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || -> Value {
        serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap()
    };
    let first = in_time("the first line", next()).await;
    assert_eq!((&first["id"], &first["state"]), (&json!(id), &json!("AsDesired")));
    cluster.run(&["rc", "scale", "web", "3"]).await.ok();
    in_time("three pods", async { while next().await["status"]["replicas"]["current"] != 3 {} })
        .await;
    child.kill().await.unwrap();
}

/// A pod that no node can run, or that its node cannot start, is an error of `--wait`, and the controller is not as
/// desired.
#[tokio::test]
async fn pod_that_cannot_start_is_named_with_its_reason() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    let _farm = cluster.start("f1");
    let _agent = cluster.agent_process("n1", &["--label", "role=web"]);
    let write = |launchable: &str| {
        let text =
            format!("id: web\nlaunchables: {{main: {{launchable_type: process, {launchable}}}}}\n");
        std::fs::write(cluster.dir.path().join("pod.yaml"), &text).unwrap();
        text
    };
    write("command: sleep 60");
    let create = ["rc", "create", "-f", "pod.yaml", "--node-selector", "role=web", "--wait"];
    let id = cluster.run(&create).await.ok().trim().to_owned();
    let state = async || {
        let list = cluster.json(&["rc", "list"]).await;
        list[0]["state"].as_str().unwrap_or_default().to_owned()
    };
    until("it runs", || async { state().await == "AsDesired" }).await;

    write("command: /no/such/program");
    let ran = cluster.run(&["rc", "update", "web", "-f", "pod.yaml", "--wait"]).await;
    let is_named = ran.stderr.contains("pod web cannot start on n1: ");
    assert!(ran.code == 1 && is_named && ran.stderr.contains("/no/such/program"), "{ran:?}");
    until("it is told", || async { state().await == "CannotStart" }).await;
    let failed = async |words: &str| {
        let ran = cluster.run(&["rc", "scale", "web", "1", "--wait"]).await;
        let is_named = ran.stderr.contains("pod web cannot start on n1: ");
        assert!(ran.code == 1 && is_named && ran.stderr.contains(words), "{ran:?}");
    };
    failed("/no/such/program").await;

    // A typo that no command has seen.
    let key = format!("replication_controllers/{id}");
    let mut record = cluster.value(&key).await;
    record["manifest"] = json!(write("comand: sleep 60"));
    cluster.put(&key, record.to_string()).await;
    until("the typo is told", || async {
        let status = cluster.json(&["rc", "status", "web"]).await.to_string();
        status.contains("cannot run, see to the manifest") && status.contains("comand")
    })
    .await;
    assert_eq!(state().await, "CannotStart");
    failed("comand").await;

    write("command: sleep 61");
    cluster.run(&["rc", "update", "web", "-f", "pod.yaml", "--wait"]).await.ok();
    until("it is mended", || async { state().await == "AsDesired" }).await;
    cluster.run(&["rc", "delete", "web"]).await.ok();
}
