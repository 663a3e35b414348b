//! `rcfarm doctor`.

use crate::harness::{HttpCluster, MASTER, RealCluster, program};
use rcfarm_api::Stored as _;
use rcfarm_api::rc::status::RcStatus;
use rcfarm_store::Prefix;
use rcfarm_testing::consul_server::ConsulServer;
use rcfarm_testing::wait::until;
use serde_json::json;

#[tokio::test]
async fn a_fresh_server_is_well_but_for_the_missing_farm() {
    let cluster = HttpCluster::new().await;
    let before = cluster.everything();
    let checks = cluster.json(&["doctor"]).await;
    assert_eq!(bad(&checks), ["farms"], "{checks}");
    assert_eq!(cluster.everything(), before, "it writes nothing");

    let _farm = cluster.start("f1");
    until("it shows itself", async || {
        !cluster.json(&["farm", "list"]).await.as_array().unwrap().is_empty()
    })
    .await;
    let text = cluster.run(&["doctor"]).await.ok();
    assert!(text.contains("version 1") && text.contains("1 running"), "{text}");
    until("it keeps the trees", async || cluster.get("rcfarm/commands/_/_/_").await.is_some())
        .await;
    let checks = cluster.json(&["doctor"]).await;
    assert!(bad(&checks).is_empty(), "what a farm keeps in the trees is no record: {checks}");
}

/// Checks with problems.
fn bad(checks: &serde_json::Value) -> Vec<&str> {
    let checks = checks.as_array().unwrap().iter();
    checks
        .filter(|check| check["result"] != "ok")
        .map(|check| check["check"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn what_is_wrong_comes_with_a_remedy() {
    let cluster = HttpCluster::new().await;
    cluster.put("rcfarm/layout", r#"{"version":99}"#).await;
    cluster.put("replication_controllers/README", "x").await;
    let ran = cluster.run(&["doctor"]).await;
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("version 99") && ran.stdout.contains("newer rcfarm"), "{ran:?}");
    assert!(ran.stdout.contains("replication_controllers/README"), "{ran:?}");

    let gone = program("127.0.0.1:1", cluster.dir.path()).run(&["doctor"]).await;
    assert_eq!(gone.code, 1);
    assert!(gone.stdout.contains("CONSUL_HTTP_ADDR"), "{gone:?}");
}

#[tokio::test]
async fn quarantined_records_are_named() {
    let cluster = HttpCluster::new().await;
    let until = "2100-01-01T00:00:00Z";
    let rc = cluster.create(&[]).await;
    let status = RcStatus {
        quarantined_until: Some(until.parse().unwrap()),
        last_error: Some("it panicked".to_owned()),
        ..RcStatus::default()
    };
    cluster.put(format!("status/replication_controllers/{rc}/rcfarm"), status.encode()).await;
    let status = json!({"quarantinedUntil": until, "lastError": "no such field"});
    cluster.put("rcfarm/job_status/default/mnist", status.to_string()).await;
    let over = json!({"quarantinedUntil": "2020-01-01T00:00:00Z"});
    cluster.put("rcfarm/job_status/default/over", over.to_string()).await;
    let checks = cluster.json(&["doctor"]).await;
    let mut all = checks.as_array().unwrap().iter();
    let found = all.find(|check| check["check"] == "quarantine").unwrap();
    let detail = found["detail"].as_str().unwrap();
    for words in [&rc, "it panicked", "rcfarm/job_status/default/mnist", "no such field", "2100"] {
        assert!(detail.contains(words), "{detail}");
    }
    assert!(found["result"] == "warn" && !detail.contains("default/over"), "{found}");
}

#[tokio::test]
async fn batch_records_that_nobody_can_work_on_are_named() {
    let cluster = HttpCluster::new().await;
    cluster.put("rcfarm/jobs/default/broken", r#"{"kind":"Job","spec":{"tasks":7}}"#).await;
    cluster.put("rcfarm/jobs/lonely", "{}").await;
    cluster.put("rcfarm/queues/research", r#"{"spec":{"weight":"heavy"}}"#).await;
    cluster.put("rcfarm/pod_groups/default/g", "[]").await;
    let late = r#"{"action":"AbortJob","target":{"kind":"Job","job":"default/gone"}}"#;
    cluster.put("rcfarm/commands/019aa8ae-9c2f-7d31-8a0e-5a3c8f1b7d42", late).await;
    let checks = cluster.json(&["doctor"]).await;
    let check = |name: &str| {
        let check = checks.as_array().unwrap().iter().find(|check| check["check"] == name);
        check.unwrap_or_else(|| panic!("{name}: {checks}")).clone()
    };
    for (name, count, key) in [
        ("jobs", 2, "rcfarm/jobs/default/broken"),
        ("queues", 1, "rcfarm/queues/research"),
        ("pod groups", 1, "rcfarm/pod_groups/default/g"),
        ("commands", 1, "there is no job default/gone"),
    ] {
        let check = check(name);
        let detail = check["detail"].as_str().unwrap();
        assert_eq!(check["result"], "warn", "{check}");
        assert!(detail.starts_with(&format!("{count} cannot")) && detail.contains(key), "{detail}");
        assert!(check["remedy"].is_string(), "{check}");
    }
    assert_eq!(check("controllers")["result"], "ok");
}

/// Requests without a token may do everything, so that the test can see when the server is ready.
const ACL: &str = r#"
acl {
  enabled = true
  default_policy = "allow"
  tokens { master = "9b4b1b76-5b3c-4cf8-9c23-8a2fb8d0c5d1" }
}
"#;
const VIEWER: &str = r#"key_prefix "" { policy = "read" } session_prefix "" { policy = "read" }"#;
/// Rights of a command-line user; only farms write pods and statuses.
const USER: &str = r#"
key_prefix "" { policy = "read" }
key_prefix "replication_controllers/" { policy = "write" }
key_prefix "labels/replication_controller/" { policy = "write" }
key_prefix "labels/node/" { policy = "write" }
key_prefix "audit_logs/" { policy = "write" }
key_prefix "rcfarm/bell/" { policy = "write" }
"#;
const BLIND: &str = r#"key_prefix "" { policy = "deny" } key_prefix "rcfarm/" { policy = "read" }"#;

/// With a real Consul's ACLs.
#[tokio::test]
async fn rights_are_told_apart_tree_by_tree() {
    let cluster = RealCluster::on_server(ConsulServer::with_config(ACL).await);
    let viewer = cluster.token(VIEWER).await;
    let blind = cluster.token(BLIND).await;
    let doctor = async |token: &str| {
        let ran = cluster.run(&["doctor", "-o", "json", "--token", token]).await;
        let checks: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let result = move |name: &str| {
            let checks = checks.as_array().unwrap();
            let check = checks.iter().find(|check| check["check"] == name).unwrap();
            (check["result"].as_str().unwrap().to_owned(), check["detail"].to_string())
        };
        (ran.code, result)
    };

    let (code, result) = doctor(MASTER).await;
    assert_eq!((code, result("intent/").1), (0, "\"read and write\"".to_owned()));

    let (code, result) = doctor(&viewer).await;
    assert_eq!(code, 0, "a viewer can look");
    assert_eq!(result("replication_controllers/").0, "warn");
    assert!(result("intent/").1.contains("read only"));
    assert_eq!(result("sessions").0, "warn");

    let (code, result) = doctor(&blind).await;
    assert_eq!(code, 1);
    let (verdict, detail) = result("replication_controllers/");
    assert!(verdict == "fail" && detail.contains("may not be read"), "{verdict} {detail}");
    assert_eq!(result("rcfarm/farms/").0, "ok");

    let keys = cluster.keys(&Prefix::parse("").unwrap()).await;
    assert!(keys.is_empty(), "it wrote {keys:?}");
    let arguments = ["label", "set", "node", "n1", "role=web", "--token", &viewer];
    let stderr = cluster.run(&arguments).await.failed();
    assert!(stderr.contains("ermission denied") && stderr.contains("rcfarm doctor"), "{stderr}");
}

/// With a user's token, which may write neither pods nor statuses.
#[tokio::test]
async fn a_users_rights_are_enough_for_a_controllers_life() {
    let cluster = RealCluster::on_server(ConsulServer::with_config(ACL).await);
    let user = cluster.token(USER).await;
    let rcfarm =
        async |arguments: &[&str]| cluster.run(&[arguments, &["--token", &user]].concat()).await;
    rcfarm(&["label", "set", "node", "n1", "role=web"]).await.ok();
    let created = rcfarm(&["rc", "create", "-f", "web.yaml", "--node-selector", "role=web"]).await;
    let id = created.ok().trim().to_owned();
    rcfarm(&["rc", "scale", "web", "2"]).await.ok();
    rcfarm(&["audit", "verify"]).await.ok();
    let ran = rcfarm(&["rc", "delete", "web"]).await;
    assert!(
        ran.stderr.contains(&format!("status/replication_controllers/{id}/rcfarm stays")),
        "{ran:?}"
    );
    assert!(ran.ok().contains("deleted"));
    assert_eq!(rcfarm(&["rc", "list"]).await.ok(), "there are no replication controllers\n");
}
