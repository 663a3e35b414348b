//! Services, checks and their health, as far as the farm uses them: `consul-semantics.md` §8.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::cases;
use super::Case;
use super::client::Wire;

pub const CASES: &[Case<Wire>] = cases! {
    C01 Shared "a TTL service: critical at first, listed when it passes, gone when silent for its TTL" => c01;
    C02 Shared "an unknown check is 500, a bad status 400" => c02;
    C05 Shared "an unknown service has no health" => c05;
    C30 Shared "a check may be registered as passing" => c30;
    C31 Shared "health of a service shows node, service and check" => c31;
    C32 Shared "a deregistered service is gone, and its watch wakes" => c32;
    C33 Shared "beating a passing check wakes nobody" => c33;
    C34 Shared "check/update sets status and output" => c34;
    C35 Shared "registering again keeps one instance and takes the new metadata" => c35;
    C36 Shared "deregistering what the agent does not know is 200" => c36;
    C37 Shared "status/leader is an address as JSON text" => c37;
    C38 Shared "agent/self names the node and its version" => c38;
    C39 Shared "catalog/nodes lists the agent's node" => c39;
};

async fn c01(w: Wire) {
    let id = w.name("svc");
    let body = json!({ "Name": id, "ID": id, "Check": { "TTL": "2s" } });
    w.put_json("/v1/agent/service/register", &body).await.is(200, "");
    w.until_status(&id, "critical").await;
    let passing = format!("/v1/health/service/{id}?passing");
    assert_eq!(w.get(&passing).await.json(), json!([]));
    let from = Instant::now();
    w.put(&format!("/v1/agent/check/pass/service:{id}"), "").await.is(200, "");
    w.until_status(&id, "passing").await;
    let listed = w.get(&passing).await;
    assert_eq!(listed.json().as_array().unwrap().len(), 1);
    let silent = w.watch(&passing, listed.index()).await.unwrap();
    assert_eq!(silent.json(), json!([]));
    assert!(from.elapsed() >= Duration::from_millis(1_900), "{:?}", from.elapsed());
}

async fn c02(w: Wire) {
    let absent = w.name("absent");
    let pass = w.put(&format!("/v1/agent/check/pass/service:{absent}"), "").await;
    pass.is(500, "does not have associated TTL");
    let check = w.passing_service("svc", "60s").await;
    let (update, status) = (format!("/v1/agent/check/update/{check}"), json!({ "Status": "fine" }));
    assert_eq!(w.put_json(&update, &status).await.status, 400);
}

async fn c05(w: Wire) {
    let reply = w.get(&format!("/v1/health/service/{}", w.name("absent"))).await;
    assert_eq!((reply.status, reply.json()), (200, json!([])));
    assert!(reply.index() >= 1);
}

async fn c30(w: Wire) {
    let id = w.name("svc");
    let body = json!({ "Name": id, "ID": id, "Check": { "TTL": "60s", "Status": "passing" } });
    w.put_json("/v1/agent/service/register", &body).await.is(200, "");
    w.until_status(&id, "passing").await;
}

async fn c31(w: Wire) {
    let id = w.name("svc");
    let body = json!({
        "Name": id, "ID": format!("{id}-1"), "Meta": { "farm": "a" },
        "Check": { "TTL": "60s", "Status": "passing" }
    });
    w.put_json("/v1/agent/service/register", &body).await.is(200, "");
    w.until_status(&id, "passing").await;
    let instance = w.get(&format!("/v1/health/service/{id}")).await.json()[0].clone();
    assert!(!instance["Node"]["Node"].as_str().unwrap().is_empty());
    assert_eq!(instance["Service"]["Service"], id);
    assert_eq!(instance["Service"]["ID"], format!("{id}-1"));
    assert_eq!(instance["Service"]["Meta"]["farm"], "a");
    let checks = instance["Checks"].as_array().unwrap();
    let own = checks.iter().find(|c| c["CheckID"] == format!("service:{id}-1")).unwrap();
    assert_eq!((&own["Status"], &own["ServiceName"]), (&json!("passing"), &json!(id)));
}

async fn c32(w: Wire) {
    let id = w.name("svc");
    w.passing_service("svc", "60s").await;
    let path = format!("/v1/health/service/{id}");
    let mut reply = w.get(&path).await;
    w.put(&format!("/v1/agent/service/deregister/{id}"), "").await.is(200, "");
    while reply.json() != json!([]) {
        reply = w.watch(&path, reply.index()).await.unwrap();
    }
}

async fn c33(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let path = format!("/v1/health/service/{}", w.name("svc"));
    let index = w.get(&path).await.index();
    let watch = w.watch(&path, index);
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..3 {
        w.put(&format!("/v1/agent/check/pass/{check}"), "").await.is(200, "");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!watch.is_finished());
    w.put(&format!("/v1/agent/check/fail/{check}"), "").await.is(200, "");
    assert!(watch.await.unwrap().index() > index);
}

async fn c34(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let body = json!({ "Status": "warning", "Output": "so so" });
    w.put_json(&format!("/v1/agent/check/update/{check}"), &body).await.is(200, "");
    w.until_status(&w.name("svc"), "warning").await;
    let seen = w.get(&format!("/v1/health/checks/{}", w.name("svc"))).await.json();
    assert_eq!(seen[0]["Output"], "so so");
}

async fn c35(w: Wire) {
    let id = w.name("svc");
    for farm in ["a", "b"] {
        let check = json!({ "TTL": "60s", "Status": "passing" });
        let body = json!({ "Name": id, "ID": id, "Meta": { "farm": farm }, "Check": check });
        w.put_json("/v1/agent/service/register", &body).await.is(200, "");
    }
    let path = format!("/v1/health/service/{id}");
    let mut reply = w.get(&path).await;
    while reply.json()[0]["Service"]["Meta"]["farm"] != "b" {
        reply = w.watch(&path, reply.index()).await.unwrap();
    }
    assert_eq!(reply.json().as_array().unwrap().len(), 1);
}

async fn c36(w: Wire) {
    let reply = w.put(&format!("/v1/agent/service/deregister/{}", w.name("absent")), "").await;
    reply.is(200, "");
}

async fn c37(w: Wire) {
    let reply = w.get("/v1/status/leader").await;
    reply.is(200, "");
    let leader = reply.json().as_str().unwrap().to_owned();
    assert!(leader.parse::<std::net::SocketAddr>().is_ok(), "{leader}");
}

async fn c38(w: Wire) {
    let config = w.get("/v1/agent/self").await.json()["Config"].clone();
    assert!(!config["NodeName"].as_str().unwrap().is_empty());
    assert!(config["Version"].as_str().unwrap().starts_with(|c: char| c.is_ascii_digit()));
}

async fn c39(w: Wire) {
    let node = w.get("/v1/agent/self").await.json()["Config"]["NodeName"].clone();
    let reply = w.get("/v1/catalog/nodes").await;
    assert!(reply.json().as_array().unwrap().iter().any(|n| n["Node"] == node));
    assert!(reply.index() >= 1);
}
