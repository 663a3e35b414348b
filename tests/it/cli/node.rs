//! `rcfarm node …`, with and without a farm.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rcfarm_api::ids::SessionId;
use rcfarm_node::simulated;
use rcfarm_store::time::SystemClock;
use rcfarm_store::{Behavior, NewSession, Store};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{HttpCluster, manifest};
use rcfarm_testing::process::free_ports;
use rcfarm_testing::wait::{eventually, in_time, until};

/// A node with an agent: its record, locked by a session.
async fn agent(cluster: &HttpCluster, name: &str) -> SessionId {
    let new = NewSession { behavior: Behavior::Release, ..NewSession::default() };
    let session = cluster.store.create_session(&new).await.unwrap();
    let record = json!({
        "address": "10.0.0.1", "agent_version": "1.2.3", "session": session, "rack": 7,
        "capacity": {"cpu_milli": 4000, "memory_bytes": 8u64 << 30, "devices": {"gpu": 2}},
    });
    cluster.put_locked(format!("rcfarm/nodes/{name}"), &record.to_string(), &session).await;
    session
}

/// Makes all intents real and healthy until the guard is dropped.
fn simulated_nodes(cluster: &HttpCluster) -> DropGuard {
    let (store, shutdown) = (Arc::new(cluster.store.clone()), CancellationToken::new());
    tokio::spawn(simulated::run(store, Arc::new(SystemClock), |_| true, shutdown.clone()));
    shutdown.drop_guard()
}

async fn session_of(cluster: &HttpCluster, key: &str) -> Option<SessionId> {
    cluster.entry(key).await.unwrap().session
}

fn row<'v>(list: &'v Value, name: &str) -> &'v Value {
    let rows = list.as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[tokio::test]
async fn list_tells_what_each_node_is_fit_for() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await; // as p2's: known by their labels alone
    let held = agent(&cluster, "n2").await;
    let gone = agent(&cluster, "n3").await;
    cluster.store.kill_session(&gone);
    cluster.put("rcfarm/nodes/n4", r#"{"state":"draining"}"#).await;
    cluster.put("rcfarm/nodes/n5", r#"{"state":"sleepy"}"#).await;
    cluster.put("intent/n6/web", "id: web").await;
    let health = r#"{"Status":"passing","Time":"2020-01-01T00:00:00Z"}"#;
    cluster.put("health/web/n1", health).await;

    let list = cluster.json(&["node", "list"]).await;
    let states: BTreeMap<&str, &str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), row["state"].as_str().unwrap()))
        .collect();
    let expected = [
        ("n1", "no_agent"),
        ("n2", "ready"),
        ("n3", "down"),
        ("n4", "draining"),
        ("n5", "unreadable"),
        ("n6", "no_agent"),
    ];
    assert_eq!(states, BTreeMap::from(expected));
    assert_eq!(
        *row(&list, "n2"),
        json!({
            "name": "n2", "state": "ready", "draining": false, "drain_deadline": null, "pods": 0, "ended_pods": 0,
            "labels": {"role": "web"}, "address": "10.0.0.1", "agent_version": "1.2.3",
            "agent_session": held, "last_heard": null, "problem": null,
            "invalid": [],
            "capacity": {"cpu_milli": 4000, "memory_bytes": 8u64 << 30, "devices": {"gpu": 2}},
        })
    );
    assert_eq!(row(&list, "n1")["last_heard"], "2020-01-01T00:00:00Z");
    assert_eq!(row(&list, "n6")["pods"], 1);
    let ran = cluster.run(&["node", "ls"]).await;
    assert!(ran.stderr.contains("rcfarm/nodes/n5: field state: unknown variant"), "{ran:?}");
    let text = ran.ok();
    assert!(text.contains("cpu=4,memory=8Gi,gpu=2") && text.contains("no agent"), "{text}");
    let some = cluster.json(&["node", "list", "-l", "role=web"]).await;
    assert_eq!(some.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn drain_empties_node_and_keeps_min_health() {
    const PODS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let cluster = HttpCluster::new().await;
    cluster.nodes(8).await;
    let (_farm, _nodes) = (cluster.start("f1"), simulated_nodes(&cluster));
    let session = agent(&cluster, "n1").await;
    for pod in PODS {
        std::fs::write(cluster.dir.path().join(pod), format!("id: {pod}\n")).unwrap();
        let which = ["rc", "create", "-f", pod, "--node-selector", "role=web"];
        // 60 % of four are three: percentages round up.
        let least = if pod < "c" { "rcfarm/min_health=60%" } else { "rcfarm/min_health=3" };
        let how = ["--replicas", "4", "--rc-label", least];
        cluster.run(&[&which[..], &how[..]].concat()).await.ok();
    }
    let healthy = |pod: &str| {
        let under = format!("health/{pod}/");
        cluster.store.inspect(|tables| tables.kv.list(&under).count())
    };
    eventually("all are healthy", || PODS.iter().all(|pod| healthy(pod) >= 4)).await;
    assert_eq!(row(&cluster.json(&["node", "list"]).await, "n1")["pods"], 5);

    let mut drain = Box::pin(cluster.run(&["node", "drain", "n1", "-o", "json"]));
    let ran = loop {
        tokio::select! {
            biased;
            ran = &mut drain => break ran,
            () = tokio::time::sleep(Duration::from_millis(5)) => {
                for pod in PODS {
                    assert!(healthy(pod) >= 3, "{pod} has {} healthy pods", healthy(pod));
                }
            }
        }
    };
    assert!(!ran.stderr.contains("NoController"), "a pod that moves is somebody's: {ran:?}");
    let rows = ran.json();
    assert_eq!((&rows[0]["state"], &rows[0]["pods"]), (&json!("draining"), &json!([])));
    assert_eq!(cluster.value("rcfarm/nodes/n1").await["rack"], 7, "what we do not know stays");
    assert_eq!(session_of(&cluster, "rcfarm/nodes/n1").await, Some(session), "the agent's lock");
    for under in ["intent/n1/", "labels/pod/n1/", "reality/n1/"] {
        assert_eq!(cluster.store.inspect(|tables| tables.kv.list(under).count()), 0, "{under}");
    }
    assert!(cluster.run(&["audit", "verify"]).await.ok().contains("agree"));

    let text = cluster.run(&["node", "undrain", "n1"]).await.ok();
    assert_eq!(text, "n1: no longer draining (ready)\n");
    let record = cluster.value("rcfarm/nodes/n1").await;
    assert_eq!((&record["state"], &record["drain_deadline"]), (&json!("ready"), &Value::Null));
    let log = cluster.run(&["audit", "list"]).await.ok();
    assert!(log.contains("NODE_DRAINED") && log.contains("node n1 of 5 pods until "), "{log}");
    assert!(log.contains("NODE_UNDRAINED") && log.contains("user:alice"), "{log}");
}

#[tokio::test]
async fn drain_deadline_lists_remaining_pods_with_reasons() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let (farm, _nodes) = (cluster.start("f1"), simulated_nodes(&cluster));
    let id = cluster.create(&["--replicas", "2", "--wait"]).await;
    cluster.run(&["rc", "disable", "web"]).await.ok();
    cluster.put("intent/n1/by-hand", "id: by-hand").await;
    cluster.pod("n1", "00000000-0000-4000-8000-000000000000").await;
    let labels = json!({"pod_id": "web", "replication_controller_id": id}).to_string();
    cluster.put("labels/pod/n1/web", &labels).await;

    let ran = cluster.run(&["node", "drain", "n1", "--deadline", "1s", "-o", "json"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("2 pods left (1 "), "it says so while it waits: {ran:?}");
    assert!(ran.stderr.contains("2 pods left on n1 (1 Disabled, 1 NoController)"), "{ran:?}");
    for words in [
        "pod by-hand stays on n1 (NoController): ",
        "consul kv delete intent/n1/by-hand",
        "pod web stays on n1 (Disabled): ",
        "rcfarm rc enable",
    ] {
        assert_eq!(ran.stderr.matches(words).count(), 1, "{words} is said once: {ran:?}");
    }
    assert!(ran.stderr.contains("rcfarm node undrain n1"), "{ran:?}");
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    let reasons: Vec<&str> = rows[0]["pods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pod| pod["stays"]["reason"].as_str().unwrap())
        .collect();
    assert_eq!(
        (reasons, &rows[0]["state"]),
        (vec!["NoController", "Disabled"], &json!("draining"))
    );

    let shown = cluster.json(&["node", "get", "n1"]).await;
    assert_eq!((&shown["state"], &shown["pods"][1]["pod_id"]), (&json!("draining"), &json!("web")));
    assert_eq!(shown["pods"][1]["replication_controller_id"], json!(id));
    assert_eq!(shown["pods"][1]["stays"]["reason"], "Disabled");
    assert_eq!(shown["record"]["state"], "draining");
    assert!(cluster.value("rcfarm/nodes/n1").await["drain_deadline"].is_string());
    farm.stop().await;
    cluster.run(&["rc", "enable", "web"]).await.ok();
    let mut text = String::new();
    until("nobody owns it", async || {
        text = cluster.run(&["node", "get", "n1"]).await.ok();
        text.contains("NoOwner")
    })
    .await;
    assert!(text.contains("drain until") && text.contains("over for"), "{text}");
}

/// As of a member of a job that has succeeded: its agent reports it as critical, because it does not run.
#[tokio::test]
async fn ended_member_is_not_unhealthy_and_does_not_keep_its_node() {
    let cluster = HttpCluster::new().await;
    cluster.put("rcfarm/nodes/n1", "{}").await;
    let labels = json!({
        "volcano.sh/job-namespace": "default", "volcano.sh/job-name": "mnist",
        "volcano.sh/task-spec": "w", "volcano.sh/task-index": "0",
    });
    cluster.put("labels/pod/n1/mnist-w-0", labels.to_string()).await;
    cluster.put("intent/n1/mnist-w-0", "id: mnist-w-0").await;
    cluster
        .put(
            "health/mnist-w-0/n1",
            r#"{"id":"mnist-w-0","node":"n1","service":"mnist-w-0","status":"critical"}"#,
        )
        .await;
    cluster.put("status/pods/mnist-w-0/n1", r#"{"phase":"Running"}"#).await;
    let refused = cluster.run(&["node", "remove", "n1"]).await.failed();
    assert!(refused.contains("n1 has 1 pod (mnist-w-0)"), "{refused}");
    cluster.put("status/pods/mnist-w-0/n1", r#"{"phase":"Ended"}"#).await;
    let text = cluster.run(&["node", "get", "n1"]).await.ok();
    assert!(text.contains("mnist-w-0") && !text.contains("critical"), "{text}");
    // It is to start again: the status is that of an earlier intent.
    let of = |index: u64| {
        let about = json!({"create_index": 1, "modify_index": index});
        json!({"phase": "Ended", "intent_index": about}).to_string()
    };
    cluster.put("status/pods/mnist-w-0/n1", of(1)).await;
    let refused = cluster.run(&["node", "remove", "n1"]).await.failed();
    assert!(refused.contains("n1 has 1 pod (mnist-w-0)"), "{refused}");
    let intent = cluster.entry("intent/n1/mnist-w-0").await.unwrap().modify_index;
    cluster.put("status/pods/mnist-w-0/n1", of(intent.0)).await;
    cluster.run(&["node", "remove", "n1"]).await.ok();
    assert!(cluster.get("rcfarm/nodes/n1").await.is_none());
}

#[tokio::test]
async fn agent_serves_metrics_of_its_pods() {
    let cluster = HttpCluster::new().await;
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let _agent = cluster.agent_process("n1", &["--http", &address]);
    cluster.put("intent/n1/web", manifest("web", "exec sleep 600", "")).await;
    let broken = "id: broken\nlaunchables: {a: {launchable_type: process, command: /no/such}}";
    cluster.put("intent/n1/broken", broken).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let scrape = async || {
        let answer = client.get(format!("http://{address}/metrics")).send().await.ok()?;
        answer.text().await.ok()
    };
    let expected = [
        "rcfarm_node_session_open 1",
        "rcfarm_node_pods{phase=\"Running\"} 1",
        "rcfarm_node_pods{phase=\"Backoff\"} 1",
        "rcfarm_node_starts_total{outcome=\"started\"} 1",
    ];
    until("it says how the pods are", async || {
        let text = scrape().await.unwrap_or_default();
        expected.iter().all(|line| text.lines().any(|l| l == *line))
    })
    .await;
    let text = scrape().await.unwrap();
    let count = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(count("rcfarm_node_starts_total{outcome=\"failed\"}") >= 1, "{text}");
    assert!(count("rcfarm_node_reports_total{outcome=\"applied\"}") >= 1, "{text}");
    assert!(count("rcfarm_consul_requests_total{kind=\"transaction\"}") >= 1, "{text}");
    assert!(!text.contains("rcfarm_session_open"), "that is the farms'");
}

/// The remedies can be pasted: they name the node, and the key as Consul has it.
#[tokio::test]
async fn drain_names_remedies_that_work_as_they_are_printed() {
    let cluster = HttpCluster::new().await;
    cluster.put("team/a/rcfarm/nodes/n1", "{}").await;
    cluster.put("team/a/intent/n1/byhand", "id: byhand").await;
    let labels = json!({
        "volcano.sh/job-namespace": "default", "volcano.sh/job-name": "mnist",
        "volcano.sh/task-spec": "w", "volcano.sh/task-index": "0",
    });
    cluster.put("team/a/labels/pod/n1/mnist-w-0", labels.to_string()).await;
    let drain = ["--root", "team/a", "node", "drain", "n1", "--jobs", "wait", "--deadline", "1s"];
    let ran = cluster.run(&drain).await;
    for words in ["consul kv delete team/a/intent/n1/byhand", "rcfarm node drain n1 --jobs evict"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
}

/// A drain with nowhere for the pod to go says so long before its deadline, with what to do.
#[tokio::test]
async fn drain_that_cannot_end_says_at_once_which_pod_and_what_to_do() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let (_farm, _nodes) = (cluster.start("f1"), simulated_nodes(&cluster));
    let id = cluster.create(&["--replicas", "2", "--wait"]).await;
    let mut command = cluster.command(&["node", "drain", "n1"]);
    let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut heard = Vec::new();
    in_time("it says what holds it up", async {
        while !heard.iter().any(|line: &String| line.contains("pod web stays on n1")) {
            heard.push(lines.next_line().await.unwrap().unwrap_or_else(|| panic!("{heard:?}")));
        }
    })
    .await;
    let said = heard.last().unwrap();
    for words in
        ["InsufficientNodes", "add a node", "rcfarm rc scale", &format!("rcfarm rc explain {id}")]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(child.try_wait().unwrap().is_none(), "it goes on waiting");
}

#[tokio::test]
async fn nodes_are_drained_by_label_and_no_wait_only_says_so() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    cluster.put("labels/node/n3", r#"{"role":"db"}"#).await;
    cluster.put("intent/n2/web", "id: web").await;
    let which = ["node", "drain", "-l", "role=web", "--no-wait", "--deadline", "1h"];
    let text = cluster.run(&which).await.ok();
    assert!(text.contains("n1: empty") && text.contains("n2: draining until 20"), "{text}");
    assert_eq!(cluster.value("rcfarm/nodes/n1").await["state"], "draining");
    assert!(cluster.get("rcfarm/nodes/n3").await.is_none());
    assert_eq!(cluster.events().await, ["NODE_DRAINED", "NODE_DRAINED"]);

    cluster.run(&["node", "undrain", "n1", "n2"]).await.ok();
    let before = cluster.everything();
    let text = cluster.run(&["node", "undrain", "n1", "n3"]).await.ok();
    assert!(text.contains("n3: not draining, as before (no agent)"), "{text}");
    assert_eq!(cluster.everything(), before, "what is so already is not written");
}

#[tokio::test]
async fn a_wait_ends_when_somebody_ends_the_drain() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    cluster.put("intent/n1/web", "id: web").await;
    let mut drain = Box::pin(cluster.run(&["node", "drain", "n1"]));
    let ended = async {
        loop {
            tokio::select! {
                biased;
                ran = &mut drain => break ran,
                () = tokio::time::sleep(Duration::from_millis(50)) => {
                    if cluster.get("rcfarm/nodes/n1").await.is_some_and(|r| r.contains("draining")) {
                        cluster.put("rcfarm/nodes/n1", r#"{"state":"ready"}"#).await;
                    }
                }
            }
        }
    };
    let ran = in_time("the end of the wait", ended).await;
    assert!(ran.failed().contains("somebody has ended the drain of n1"));
}

#[tokio::test]
async fn remove_refuses_while_pods_or_an_agent_are_there() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let session = agent(&cluster, "n1").await;
    cluster.put("intent/n2/web", "id: web").await;
    let before = cluster.everything();
    for (node, words) in [("n1", "the agent of n1 is running"), ("n2", "n2 has 1 pod (web)")] {
        let stderr = cluster.run(&["node", "remove", node]).await.failed();
        assert!(stderr.contains(words) && stderr.contains("--force"), "{stderr}");
    }
    assert_eq!(cluster.everything(), before);

    // Leftovers of a dead agent, and of a pod that has moved.
    cluster.put("reality/n3/web", "id: web").await;
    let status = r#"{"phase":"Running","intent_index":{"create_index":3,"modify_index":3}}"#;
    cluster.put("status/pods/web/n3", status).await;
    cluster.put("status/pods/web/n1", r#"{"phase":"Running"}"#).await;
    cluster.put("health/web/n3", r#"{"Status":"passing"}"#).await;
    let stderr = cluster.run(&["node", "remove", "n3"]).await.failed();
    assert!(stderr.contains("n3 has 1 pod"), "its agent may be p2's, and still run: {stderr}");
    cluster.put("rcfarm/nodes/n3", r#"{"session":"00000000-0000-4000-8000-000000000003"}"#).await;
    let list = cluster.run(&["pod", "list"]).await.ok();
    assert!(list.contains("Lost") && list.contains("its node is down"), "{list}");
    let removed = cluster.json(&["node", "rm", "n3"]).await;
    assert_eq!(removed["removed"], json!({"record": true, "labels": true, "leftovers": 1}));
    for gone in ["reality/n3/web", "health/web/n3"] {
        assert!(cluster.get(gone).await.is_none(), "{gone}");
    }
    assert!(cluster.get("status/pods/web/n1").await.is_some());
    assert_eq!(removed["left"], json!({"pods": [], "agent_session": null, "statuses": 1}));
    assert!(cluster.get("status/pods/web/n3").await.is_some(), "its agent may come back");
    let list = cluster.run(&["pod", "list"]).await.ok();
    assert!(list.contains("its node was removed; it said last: Running"), "{list}");
    let stderr = cluster.run(&["node", "remove", "n3"]).await.failed();
    assert!(stderr.contains("there is no node n3"), "{stderr}");
    let forgotten = cluster.json(&["node", "remove", "n3", "--forget"]).await;
    assert_eq!(forgotten["removed"], json!({"record": false, "labels": false, "leftovers": 1}));
    assert!(cluster.get("status/pods/web/n3").await.is_none());
    let stderr = cluster.run(&["node", "remove", "n3", "--forget"]).await.failed();
    assert!(stderr.contains("nothing to remove"), "{stderr}");
    let removed = cluster.json(&["node", "remove", "n1", "--force"]).await;
    assert_eq!(removed["left"]["agent_session"], json!(session));
    let ran = cluster.run(&["node", "remove", "n2", "--force"]).await;
    assert!(ran.stdout.contains("left: 1 pod"), "{ran:?}");
    assert!(cluster.get("rcfarm/nodes/n1").await.is_none());
    assert!(cluster.get("labels/node/n2").await.is_none());
    assert!(cluster.get("intent/n2/web").await.is_some());
    assert_eq!(cluster.events().await, ["NODE_REMOVED"; 4]);
    let stderr = cluster.run(&["node", "remove", "n2", "--force"]).await.failed();
    assert!(stderr.contains("neither a record nor labels"), "{stderr}");
}

#[tokio::test]
async fn remove_deletes_many_leftovers_in_audited_transactions() {
    let cluster = HttpCluster::new().await;
    cluster.put("rcfarm/nodes/n9", r#"{"session":"00000000-0000-4000-8000-000000000003"}"#).await;
    for n in 0..45 {
        cluster.put(&format!("reality/n9/p{n}"), "id: p").await;
        cluster.put(&format!("status/pods/p{n}/n9"), "{}").await;
    }
    let removed = cluster.json(&["node", "rm", "n9"]).await;
    assert_eq!(removed["removed"], json!({"record": true, "labels": false, "leftovers": 45}));
    for n in 0..45 {
        assert!(cluster.get(&format!("reality/n9/p{n}")).await.is_none(), "p{n}");
    }
    // Of the emulator's 64 operations per transaction, 20 pods with 3 each.
    assert_eq!(cluster.events().await, ["NODE_REMOVED"; 3]);
}

#[tokio::test]
async fn mistakes_are_named_and_change_nothing() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    cluster.put("rcfarm/nodes/n2", r#"{"state":"sleepy"}"#).await;
    let before = cluster.everything();
    for (arguments, words) in [
        (&["node", "drain"][..], "<NODE>"),
        (&["node", "drain", "n1", "-l", "role=web"], "cannot be used with"),
        (&["node", "drain", "n7"], "no node n7"),
        (&["node", "drain", "n1", "n7"], "no node n7"),
        (&["node", "drain", "a/b"], "not a legal name"),
        (&["node", "drain", "n1", "--deadline", "soon"], "15m"),
        (&["node", "drain", "n1", "--deadline", "99999y"], "too long"),
        (&["node", "drain", "n1", "n2"], "rcfarm/nodes/n2: field state"),
        (&["node", "undrain", "n2"], "consul kv get rcfarm/nodes/n2"),
        (&["node", "drain", "-l", "role=none"], "no node matches role=none"),
        (&["node", "get", "n7"], "rcfarm node list"),
        (&["node", "remove", "n7"], "no node n7"),
    ] {
        let stderr = cluster.run(arguments).await.failed();
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    assert_eq!(cluster.everything(), before);
}

#[tokio::test]
async fn explain_and_plan_tell_of_nodes_that_drain_or_are_down() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(3).await;
    let id = cluster.create(&["--replicas", "3", "--strategy", "dynamic"]).await;
    cluster.pod("n1", &id).await;
    cluster.put("rcfarm/nodes/n1", r#"{"state":"draining"}"#).await;
    let session = agent(&cluster, "n2").await;
    cluster.store.kill_session(&session);
    cluster.put("labels/node/n4", r#"{"role":"db"}"#).await;

    let why = cluster.json(&["rc", "explain", "web"]).await;
    let reasons: BTreeSet<(&str, &str)> = why["unfit_nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|unfit| (unfit["node"].as_str().unwrap(), unfit["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(
        reasons,
        BTreeSet::from([("n1", "Draining"), ("n2", "Down"), ("n4", "NotMatching")])
    );
    let text = cluster.run(&["rc", "explain", "web"]).await.ok();
    assert!(text.contains("n1: matches, but is draining; a pod is still there"), "{text}");
    assert!(text.contains("3 nodes match role=web, 2 of them draining or down"), "{text}");
    assert!(text.contains("3 of 4 eligible") && text.contains("2 of them not ready"), "{text}");

    let plan = cluster.run(&["rc", "plan", "web", "--replicas", "0"]).await;
    assert!(plan.stdout.contains("- n1  remove: its node is draining"), "{plan:?}");
    let plan = cluster.run(&["rc", "plan", "web"]).await;
    assert!(plan.stdout.contains("+ n3  add"), "{plan:?}");
    assert!(plan.stdout.contains("unfit: n2: matches, but is down"), "{plan:?}");
    assert!(!plan.stdout.contains("n4"), "{plan:?}");
}

#[tokio::test]
async fn explain_and_farm_list_name_avoided_nodes() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(2).await;
    let id = cluster.create(&["--replicas", "2", "--strategy", "dynamic"]).await;
    cluster.owned(&id, json!({"suspect_nodes": ["n1"]})).await;
    let why = cluster.json(&["rc", "explain", "web"]).await;
    assert_eq!(why["unfit_nodes"][0]["node"], "n1");
    assert_eq!(why["unfit_nodes"][0]["reason"], "Quarantined");
    let text = cluster.run(&["rc", "explain", "web"]).await.ok();
    assert!(text.contains("n1: matches, but is passed over for a while"), "{text}");
    let plan = cluster.run(&["rc", "plan", "web"]).await;
    assert!(plan.stdout.contains("+ n2") && !plan.stdout.contains("+ n1"), "{plan:?}");
    let farms = cluster.run(&["farm", "list"]).await.ok();
    assert!(farms.contains("f1 passes over n1"), "{farms}");
}

#[tokio::test]
async fn plan_keeps_the_minimum_that_the_controllers_labels_declare() {
    let cluster = HttpCluster::new().await;
    cluster.nodes(1).await;
    let id = cluster.create(&["--replicas", "1", "--rc-label", "rcfarm/min_health=most"]).await;
    cluster.pod("n1", &id).await;
    let stderr = cluster.run(&["rc", "plan", "web"]).await.plan_failed();
    assert!(stderr.contains("rcfarm/min_health") && stderr.contains("\"most\""), "{stderr}");
    let why = cluster.run(&["rc", "explain", "web"]).await.ok();
    assert!(why.contains("rcfarm/min_health"), "{why}");
}
