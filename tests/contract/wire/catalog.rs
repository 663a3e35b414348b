//! Services, checks and their health, as far as the farm uses them: `consul-semantics.md` §8.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::cases;
use super::Case;
use super::client::{Reply, Wire};

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
    C04 Shared "registering a node needs its name and its address" => c04;
    C40 Shared "a registered node has its metadata, and is found by it" => c40;
    C41 Shared "registering a node again as it is changes no index and wakes nobody" => c41;
    C42 Shared "a node's check is part of the health of each service on the node" => c42;
    C43 Shared "a check of a service that the node does not have registers nothing" => c43;
    C44 Shared "SkipNodeUpdate keeps the address of a node that exists" => c44;
    C45 Shared "a deregistered node takes services, checks and sessions with it" => c45;
    C46 Shared "deregistering a service or a check leaves the node" => c46;
    C47 Shared "deregistering what the catalog does not know is true" => c47;
    C48 Shared "an external node has no serfHealth; its sessions end with their own checks" => c48;
    C49 Shared "the catalog refuses what it cannot decode, and wrong nodes, ids and addresses" => c49;
    C50 Shared "an unknown node is null, its health is empty" => c50;
    C51 Shared "an alias check follows the worst check of its service" => c51;
    C52 Shared "an alias check of a service that was never there is critical" => c52;
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

impl Wire {
    async fn register(&self, body: &Value) -> Reply {
        self.put_json("/v1/catalog/register", body).await
    }

    async fn deregister(&self, body: &Value) {
        let reply = self.put_json("/v1/catalog/deregister", body).await;
        reply.is(200, "true");
    }

    /// An external node with a service of the same name, which is passing.
    async fn external(&self, node: &str) {
        let check = json!({ "CheckID": "up", "Name": "up", "Status": "passing" });
        let service = json!({ "Service": node, "Port": 80, "Tags": ["t"] });
        let body =
            json!({ "Node": node, "Address": "10.0.0.1", "Service": service, "Check": check });
        self.register(&body).await.is(200, "true");
    }
}

async fn c04(w: Wire) {
    let node = w.name("node");
    w.register(&json!({ "Address": "10.0.0.1" })).await.is(500, "Must provide node");
    w.register(&json!({ "Node": node })).await.is(500, "Must provide address");
    w.register(&json!({ "Node": node, "SkipNodeUpdate": true })).await.is(200, "true");
    assert_eq!(w.get(&format!("/v1/catalog/node/{node}")).await.json()["Node"]["Address"], "");
}

async fn c40(w: Wire) {
    let (one, other) = (w.name("one"), w.name("other"));
    for (node, rack) in [(&one, w.name("r1")), (&other, w.name("r2"))] {
        let meta = json!({ "rack": rack });
        let service = json!({ "Service": w.name("svc"), "ID": "i", "Meta": { "a": "b" } });
        let body =
            json!({ "Node": node, "Address": "10.0.0.1", "NodeMeta": meta, "Service": service });
        w.register(&body).await.is(200, "true");
    }
    let shown = w.get(&format!("/v1/catalog/node/{one}")).await.json();
    assert_eq!(shown["Node"]["Meta"], json!({ "rack": w.name("r1") }));
    assert_eq!(shown["Node"]["TaggedAddresses"], json!(null));
    assert_eq!(shown["Services"]["i"]["Service"], w.name("svc"));
    let names = |reply: &Reply| -> Vec<String> {
        let found = reply.json();
        let node = |entry: &Value| match &entry["Node"] {
            Value::String(name) => name.clone(),
            node => node["Node"].as_str().unwrap().to_owned(),
        };
        found.as_array().unwrap().iter().map(node).collect()
    };
    let meta = format!("node-meta=rack:{}", w.name("r1"));
    let of_service =
        ["catalog/service", "health/service"].map(|path| format!("{path}/{}", w.name("svc")));
    for path in of_service.into_iter().chain(["catalog/nodes".to_owned()]) {
        let found = w.get(&format!("/v1/{path}?{meta}")).await;
        assert_eq!(names(&found), [one.as_str()], "{path}");
    }
    assert_eq!(names(&w.get(&format!("/v1/catalog/nodes?{meta}x")).await), [""; 0]);
    let instance = w.get(&format!("/v1/catalog/service/{}", w.name("svc"))).await.json();
    assert_eq!(instance[0]["Address"], "10.0.0.1");
    assert_eq!(instance[0]["ServiceMeta"], json!({ "a": "b" }));
}

async fn c41(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    let path = format!("/v1/health/service/{node}");
    let before = w.get(&path).await;
    let watch = w.watch(&path, before.index());
    tokio::time::sleep(Duration::from_millis(100)).await;
    w.external(&node).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!watch.is_finished());
    assert_eq!(w.get(&path).await.json(), before.json());
    let check = json!({ "CheckID": "up", "Name": "up", "Status": "warning" });
    let body = json!({ "Node": node, "SkipNodeUpdate": true, "Check": check });
    w.register(&body).await.is(200, "true");
    let after = watch.await.unwrap();
    assert!(after.index() > before.index());
    assert_eq!(after.json()[0]["Checks"][0]["Status"], "warning");
}

async fn c42(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    let service = json!({ "Service": w.name("second") });
    let check = json!({
        "Name": "own", "ServiceID": w.name("second"), "Notes": "n", "Output": "o"
    });
    let body =
        json!({ "Node": node, "Address": "10.0.0.1", "Service": service, "Checks": [check] });
    w.register(&body).await.is(200, "true");
    let checks = w.get(&format!("/v1/health/node/{node}")).await.json();
    let found: Vec<(&Value, &Value, &Value)> = checks
        .as_array()
        .unwrap()
        .iter()
        .map(|check| (&check["CheckID"], &check["Status"], &check["ServiceName"]))
        .collect();
    let second = json!(w.name("second"));
    let (own, up) = (
        (&json!("own"), &json!("critical"), &second),
        (&json!("up"), &json!("passing"), &json!("")),
    );
    assert!(found.len() == 2 && found.contains(&own) && found.contains(&up), "{found:?}");
    let path = |service: &str| format!("/v1/health/service/{service}");
    let both = w.get(&path(&w.name("second"))).await;
    assert_eq!(both.json()[0]["Checks"].as_array().unwrap().len(), 2);
    // The check of the node concerns both services, that of a service only its own.
    let (first, index) = (w.get(&path(&node)).await, both.index());
    let check = json!({ "CheckID": "up", "Name": "up", "Status": "critical" });
    let body = json!({ "Node": node, "SkipNodeUpdate": true, "Check": check });
    w.register(&body).await.is(200, "true");
    let after = w.get(&path(&node)).await.index();
    assert!(after > first.index() && w.get(&path(&w.name("second"))).await.index() > index);
    w.deregister(&json!({ "Node": node, "CheckID": "own" })).await;
    assert_eq!(w.get(&path(&node)).await.index(), after);
}

async fn c43(w: Wire) {
    let node = w.name("node");
    let check = json!({ "Name": "c", "ServiceID": "absent" });
    let body = json!({ "Node": node, "Address": "10.0.0.1", "Check": check });
    w.register(&body).await.is(500, "Missing service registration");
    assert_eq!(w.get(&format!("/v1/catalog/node/{node}")).await.json(), json!(null));
}

async fn c44(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    let path = format!("/v1/catalog/node/{node}");
    let address = async || w.get(&path).await.json()["Node"]["Address"].clone();
    let mut body = json!({ "Node": node, "Address": "10.0.0.2", "SkipNodeUpdate": true });
    w.register(&body).await.is(200, "true");
    assert_eq!(address().await, "10.0.0.1");
    body["SkipNodeUpdate"] = json!(false);
    let health = format!("/v1/health/service/{node}");
    let before = w.get(&health).await.index();
    w.register(&body).await.is(200, "true");
    assert_eq!(address().await, "10.0.0.2");
    assert!(w.get(&health).await.index() > before, "health shows the node's address");
}

async fn c45(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    let session = json!({ "Node": node, "NodeChecks": [], "LockDelay": "0s", "TTL": "3600s" });
    let created = w.put_json("/v1/session/create", &session).await;
    created.is(200, "ID");
    let id = created.json()["ID"].as_str().unwrap().to_owned();
    let key = w.kv("lock");
    w.put(&format!("{key}?acquire={id}"), "x").await.is(200, "true");
    let path = format!("/v1/health/service/{node}");
    let watch = w.watch(&path, w.get(&path).await.index());
    w.deregister(&json!({ "Node": node })).await;
    assert_eq!(watch.await.unwrap().json(), json!([]));
    assert_eq!(w.get(&format!("/v1/session/info/{id}")).await.json(), json!([]));
    assert_eq!(w.get(&key).await.json()[0]["Session"], json!(null));
    assert_eq!(w.get(&format!("/v1/health/node/{node}")).await.json(), json!([]));
    assert_eq!(w.get(&format!("/v1/catalog/node/{node}")).await.json(), json!(null));
    let services = w.get("/v1/catalog/services").await.json();
    assert!(services.get(&node).is_none());
}

async fn c46(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    w.deregister(&json!({ "Node": node, "CheckID": "up" })).await;
    let instance = w.get(&format!("/v1/health/service/{node}")).await.json();
    assert_eq!(instance[0]["Checks"], json!([]));
    let nodes = w.get("/v1/catalog/nodes").await.index();
    // With both ids the service goes.
    w.deregister(&json!({ "Node": node, "ServiceID": node, "CheckID": "up" })).await;
    let shown = w.get(&format!("/v1/catalog/node/{node}")).await.json();
    assert_eq!((&shown["Node"]["Node"], &shown["Services"]), (&json!(node), &json!({})));
    assert!(nodes > 0);
}

async fn c47(w: Wire) {
    let node = w.name("node");
    w.deregister(&json!({ "Node": node })).await;
    w.external(&node).await;
    let path = format!("/v1/health/service/{node}");
    let before = w.get(&path).await.index();
    w.deregister(&json!({ "Node": node, "ServiceID": "absent" })).await;
    w.deregister(&json!({ "Node": node, "CheckID": "absent" })).await;
    assert_eq!(w.get(&path).await.index(), before);
}

async fn c48(w: Wire) {
    let node = w.name("node");
    w.external(&node).await;
    let create = async |checks: Value| {
        let mut body = json!({ "Node": node, "LockDelay": "0s", "TTL": "3600s" });
        if !checks.is_null() {
            body["NodeChecks"] = checks;
        }
        w.put_json("/v1/session/create", &body).await
    };
    create(json!(null)).await.is(500, "Missing check 'serfHealth' registration");
    let created = create(json!(["up"])).await;
    created.is(200, "ID");
    let id = created.json()["ID"].as_str().unwrap().to_owned();
    let check = json!({ "CheckID": "up", "Name": "up", "Status": "critical" });
    let body = json!({ "Node": node, "SkipNodeUpdate": true, "Check": check });
    w.register(&body).await.is(200, "true");
    assert_eq!(w.get(&format!("/v1/session/info/{id}")).await.json(), json!([]));
    create(json!(["up"])).await.is(500, "Check 'up' is in critical state");
    let mut body = body;
    body["Check"]["Status"] = json!("passing");
    w.register(&body).await.is(200, "true");
    let created = create(json!(["up"])).await;
    let id = created.json()["ID"].as_str().unwrap().to_owned();
    w.deregister(&json!({ "Node": node, "CheckID": "up" })).await;
    assert_eq!(w.get(&format!("/v1/session/info/{id}")).await.json(), json!([]));
}

async fn c49(w: Wire) {
    let at = |more: Value| {
        let mut body = json!({ "Node": w.name("node"), "Address": "10.0.0.1" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, status, why) in [
        (json!({ "Bogus": 1 }), 400, "Request decode failed"),
        (json!({ "ID": "no uuid" }), 500, "Bad node ID"),
        (json!({ "Datacenter": "absent" }), 500, "No path to datacenter"),
        (json!({ "Service": { "ID": "i" } }), 500, "Must provide service name with ID"),
        (
            json!({ "Service": { "Service": "s", "Address": "0.0.0.0" } }),
            500,
            "Invalid service address",
        ),
        (json!({ "Check": { "Node": "other", "Name": "c" } }), 500, "does not match node"),
        (json!({ "Check": { "Status": "passing" } }), 500, "object missing primary index"),
    ] {
        w.register(&at(more)).await.is(status, why);
    }
    for (body, status, why) in [
        ("", 400, "Request decode failed: EOF"),
        ("{}", 500, "Must provide node"),
        (r#"{"Node":"n","Bogus":1}"#, 400, "Request decode failed"),
    ] {
        w.put("/v1/catalog/deregister", body).await.is(status, why);
    }
    let node = w.get(&format!("/v1/catalog/node/{}", w.name("node"))).await;
    assert_eq!(node.json(), json!(null));
}

async fn c50(w: Wire) {
    let absent = w.name("absent");
    let node = w.get(&format!("/v1/catalog/node/{absent}")).await;
    assert_eq!((node.status, node.json()), (200, json!(null)));
    for path in ["health/node", "health/checks", "health/state", "catalog/service"] {
        assert_eq!(w.get(&format!("/v1/{path}/{absent}")).await.json(), json!([]), "{path}");
    }
}

impl Wire {
    /// Waits until the agent shows this status and type of a check.
    async fn until_check(&self, check: &str, status: &str, kind: &str) {
        loop {
            let checks = self.get("/v1/agent/checks").await.json();
            if (&checks[check]["Status"], &checks[check]["Type"]) == (&json!(status), &json!(kind))
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Registers a service with an alias check of the service `svc`. Returns the check's id.
    async fn alias(&self) -> String {
        let (id, check) = (self.name("alias"), self.name("follows"));
        let alias =
            json!({ "CheckID": check, "Name": "follows", "AliasService": self.name("svc") });
        let body = json!({ "Name": id, "ID": id, "Checks": [alias] });
        self.put_json("/v1/agent/service/register", &body).await.is(200, "");
        check
    }
}

async fn c51(w: Wire) {
    let followed = w.passing_service("svc", "60s").await;
    let check = w.alias().await;
    w.until_check(&check, "passing", "alias").await;
    for (verb, status) in [("warn", "warning"), ("fail", "critical"), ("pass", "passing")] {
        w.put(&format!("/v1/agent/check/{verb}/{followed}"), "").await.is(200, "");
        w.until_check(&check, status, "alias").await;
    }
    let pass = w.put(&format!("/v1/agent/check/pass/{check}"), "").await;
    pass.is(500, "does not have associated TTL");
}

async fn c52(w: Wire) {
    let check = w.alias().await;
    let missing = async || {
        let output = w.get("/v1/agent/checks").await.json()[&check]["Output"].clone();
        output.as_str().is_some_and(|output| output.contains("could not be found on node"))
    };
    while !missing().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    w.until_check(&check, "critical", "alias").await;
    w.passing_service("svc", "60s").await;
    w.until_check(&check, "passing", "alias").await;
}
