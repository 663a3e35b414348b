//! Sessions: `consul-semantics.md` §3.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::cases;
use super::Case;
use super::client::Wire;

pub const CASES: &[Case<Wire>] = cases! {
    S01 Shared "defaults: 15 s lock-delay, release, no TTL, the node's own check, the agent's node" => s01;
    S02 Shared "TTL: 10 s to 24 h in any unit, 0 and none" => s02;
    S04 Shared "behaviour, node and checks must exist; unknown fields and an id are ignored" => s04;
    S05 Shared "info: unknown is [], malformed is 500; an unknown node has []" => s05;
    S07 Shared "destroy is true twice; malformed is 500, DELETE is 405" => s07;
    S08 Shared "a TTL of 10 s ends after 20 s, and its lock with it" => s08;
    S09 Shared "a renewal starts the TTL anew" => s09;
    S10 Shared "a warning check keeps a session, a critical one ends it" => s10;
    S12 Shared "a session ends with its check's service" => s12;
    S30 Shared "renew: 200 with the session, 404 when it is gone, 500 when malformed" => s30;
    S31 Shared "renew of a session without TTL is 200" => s31;
    S32 Shared "renew advances no index" => s32;
    S33 Shared "lock-delay: numbers below 1000 are seconds, from 1000 nanoseconds; bare text is 400" => s33;
    S34 Shared "info and list show the session as made" => s34;
    S35 Shared "a body that is no JSON is 400" => s35;
    S36 Shared "a critical check cannot be attached" => s36;
    S37 Shared "the lock of a session that lost its check can be taken at once without lock-delay" => s37;
    S39 Shared "legacy Checks end a session, too, but are ignored beside NodeChecks" => s39;
    S38 Shared "a silent TTL check ends the session at its TTL" => s38;
};

impl Wire {
    async fn create(&self, body: Value) -> super::client::Reply {
        self.put_json("/v1/session/create", &body).await
    }

    pub async fn info(&self, id: &str) -> Value {
        let reply = self.get(&format!("/v1/session/info/{id}")).await;
        reply.is(200, "");
        reply.json()
    }

    pub async fn is_alive(&self, id: &str) -> bool {
        self.info(id).await.as_array().is_some_and(|list| !list.is_empty())
    }

    /// Registers a service with a passing TTL check; returns the check's id once the catalog has it.
    pub async fn passing_service(&self, name: &str, ttl: &str) -> String {
        let id = self.name(name);
        let body = json!({ "Name": id, "ID": id, "Check": { "TTL": ttl } });
        self.put_json("/v1/agent/service/register", &body).await.is(200, "");
        let check = format!("service:{id}");
        self.put(&format!("/v1/agent/check/pass/{check}"), "").await.is(200, "");
        self.until_status(&id, "passing").await;
        check
    }

    /// Waits for this status of the service's check; the agent syncs to the servers with a delay.
    pub async fn until_status(&self, service: &str, status: &str) {
        loop {
            let checks = self.get(&format!("/v1/health/checks/{service}")).await.json();
            if checks.as_array().is_some_and(|c| c.iter().any(|c| c["Status"] == status)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the session is gone; returns the time.
    async fn until_gone(&self, id: &str) -> Duration {
        let from = Instant::now();
        while self.is_alive(id).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        from.elapsed()
    }
}

async fn s01(w: Wire) {
    let reply = w.put("/v1/session/create", "").await;
    reply.is(200, "ID");
    let id = reply.json()["ID"].as_str().unwrap().to_owned();
    let session = w.info(&id).await[0].clone();
    assert_eq!(session["LockDelay"], 15_000_000_000_u64);
    assert_eq!((&session["Behavior"], &session["TTL"]), (&json!("release"), &json!("")));
    assert_eq!(session["NodeChecks"], json!(["serfHealth"]));
    assert_eq!(session["CreateIndex"], session["ModifyIndex"]);
    let on_node = format!("/v1/session/node/{}", session["Node"].as_str().unwrap());
    let there = w.get(&on_node).await.json();
    assert!(there.as_array().unwrap().contains(&session), "{there}");
}

async fn s02(w: Wire) {
    for bad in ["9s", "9.999s", "24h0m1s", "-10s", "abc", "10"] {
        assert_eq!(w.create(json!({ "TTL": bad })).await.status, 500, "{bad}");
    }
    for good in ["10s", "10000ms", "10.5s", "24h", "0s", ""] {
        w.create(json!({ "TTL": good })).await.is(200, "ID");
    }
    w.create(json!({ "TTL": null })).await.is(200, "ID");
    w.create(json!({ "TTL": 10 })).await.is(400, "");
}

async fn s04(w: Wire) {
    w.create(json!({ "Behavior": "Delete" })).await.is(500, "Invalid Behavior");
    w.create(json!({ "Node": w.name("absent") })).await.is(500, "Missing node registration");
    let check = json!([w.name("absent")]);
    w.create(json!({ "NodeChecks": check })).await.is(500, "Missing check");
    w.create(json!({ "Checks": check })).await.is(500, "Missing check");
    let own = uuid::Uuid::new_v4().to_string();
    let reply = w.create(json!({ "ID": own, "Colour": "red", "name": "lower" })).await;
    reply.is(200, "ID");
    assert_ne!(reply.json()["ID"], own);
    let id = reply.json()["ID"].as_str().unwrap().to_owned();
    assert_eq!(w.info(&id).await[0]["Name"], "lower");
}

async fn s05(w: Wire) {
    assert_eq!(w.info(&uuid::Uuid::new_v4().to_string()).await, json!([]));
    w.get("/v1/session/info/abc").await.is(500, "UUID must be 36 characters");
    let elsewhere = w.get(&format!("/v1/session/node/{}", w.name("absent"))).await;
    assert_eq!((elsewhere.status, elsewhere.json()), (200, json!([])));
}

async fn s07(w: Wire) {
    let id = w.session(json!({})).await;
    let path = format!("/v1/session/destroy/{id}");
    assert_eq!(w.delete(&path).await.status, 405);
    for _ in 0..2 {
        w.put(&path, "").await.is(200, "true");
    }
    assert_eq!(w.info(&id).await, json!([]));
    assert_eq!(w.put("/v1/session/destroy/abc", "").await.status, 500);
}

async fn s08(w: Wire) {
    let from = Instant::now();
    let id = w.session(json!({ "TTL": "10s", "Behavior": "delete" })).await;
    w.put(&w.kv(&format!("a?acquire={id}")), "x").await.is(200, "true");
    let index = w.get(&w.kv("a")).await.index();
    let gone = w.watch(&w.kv("a"), index).await.unwrap();
    assert_eq!(gone.status, 404);
    // Only a lower bound: the upper one depends on the machine's load.
    assert!(from.elapsed() >= Duration::from_millis(19_900), "{:?}", from.elapsed());
    assert!(!w.is_alive(&id).await);
}

async fn s09(w: Wire) {
    let id = w.session(json!({ "TTL": "10s" })).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let from = Instant::now();
    w.put(&format!("/v1/session/renew/{id}"), "").await.is(200, &id);
    w.until_gone(&id).await;
    assert!(from.elapsed() >= Duration::from_millis(19_900), "{:?}", from.elapsed());
}

async fn s10(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let id = w.session(json!({ "NodeChecks": [check] })).await;
    w.put(&format!("/v1/agent/check/warn/{check}"), "").await.is(200, "");
    w.until_status(&w.name("svc"), "warning").await;
    assert!(w.is_alive(&id).await);
    w.put(&format!("/v1/agent/check/fail/{check}"), "").await.is(200, "");
    w.until_gone(&id).await;
}

async fn s12(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let by_node = w.session(json!({ "NodeChecks": [check] })).await;
    let by_service = w.session(json!({ "ServiceChecks": [{ "ID": check }] })).await;
    let legacy = w.create(json!({ "Checks": [check] })).await.json();
    let legacy = legacy["ID"].as_str().unwrap().to_owned();
    w.put(&format!("/v1/agent/service/deregister/{}", w.name("svc")), "").await.is(200, "");
    for id in [by_node, by_service, legacy] {
        w.until_gone(&id).await;
    }
}

async fn s30(w: Wire) {
    let id = w.session(json!({ "TTL": "30s" })).await;
    let path = format!("/v1/session/renew/{id}");
    let reply = w.put(&path, "").await;
    reply.is(200, "");
    assert_eq!((&reply.json()[0]["ID"], &reply.json()[0]["TTL"]), (&json!(id), &json!("30s")));
    w.put(&format!("/v1/session/destroy/{id}"), "").await;
    w.put(&path, "").await.is(404, "not found");
    assert_eq!(w.put("/v1/session/renew/abc", "").await.status, 500);
}

async fn s31(w: Wire) {
    let id = w.session(json!({})).await;
    w.put(&format!("/v1/session/renew/{id}"), "").await.is(200, &id);
}

async fn s32(w: Wire) {
    let id = w.session(json!({ "TTL": "30s" })).await;
    let before = w.info(&id).await;
    w.put(&format!("/v1/session/renew/{id}"), "").await.is(200, "");
    assert_eq!(w.info(&id).await, before);
}

async fn s33(w: Wire) {
    for (given, nanos) in [
        (json!(5), 5_000_000_000_u64),
        (json!(999), 999_000_000_000),
        (json!(1000), 1000),
        (json!(2_000_000_000), 2_000_000_000),
        (json!("1m30s"), 90_000_000_000),
        (json!(null), 15_000_000_000),
    ] {
        let id = w.session(json!({ "LockDelay": given })).await;
        assert_eq!(w.info(&id).await[0]["LockDelay"], nanos, "{given}");
    }
    for bad in ["15", "abc"] {
        w.create(json!({ "LockDelay": bad })).await.is(400, "");
    }
}

async fn s34(w: Wire) {
    let made =
        json!({ "Name": w.name("s"), "TTL": "15s", "LockDelay": "2s", "Behavior": "delete" });
    let id = w.session(made).await;
    let session = w.info(&id).await[0].clone();
    assert_eq!(session["ID"], id);
    assert_eq!(session["Name"], w.name("s"));
    assert_eq!((&session["TTL"], &session["Behavior"]), (&json!("15s"), &json!("delete")));
    assert_eq!(session["LockDelay"], 2_000_000_000_u64);
    let list = w.get("/v1/session/list").await;
    assert!(list.json().as_array().unwrap().contains(&session), "{}", list.text());
    assert!(list.index() >= session["CreateIndex"].as_u64().unwrap());
}

async fn s35(w: Wire) {
    w.put("/v1/session/create", "garbage").await.is(400, "decode failed");
}

async fn s36(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    w.put(&format!("/v1/agent/check/fail/{check}"), "").await.is(200, "");
    w.until_status(&w.name("svc"), "critical").await;
    w.create(json!({ "NodeChecks": [check] })).await.is(500, "critical");
}

async fn s37(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let id = w.session(json!({ "NodeChecks": [check], "Behavior": "delete" })).await;
    let next = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={id}")), "x").await.is(200, "true");
    let index = w.get(&w.kv("a")).await.index();
    let freed = w.watch(&w.kv("a"), index);
    w.put(&format!("/v1/agent/check/fail/{check}"), "").await.is(200, "");
    assert_eq!(freed.await.unwrap().status, 404);
    w.put(&w.kv(&format!("a?acquire={next}")), "y").await.is(200, "true");
}

async fn s39(w: Wire) {
    let check = w.passing_service("svc", "60s").await;
    let create = async |body: Value| w.create(body).await.json()["ID"].as_str().unwrap().to_owned();
    let added = create(json!({ "Checks": [check] })).await;
    let ignored = create(json!({ "Checks": [check], "NodeChecks": [] })).await;
    w.put(&format!("/v1/agent/check/fail/{check}"), "").await.is(200, "");
    w.until_gone(&added).await;
    assert!(w.is_alive(&ignored).await);
}

async fn s38(w: Wire) {
    let check = w.passing_service("svc", "2s").await;
    let from = Instant::now();
    w.put(&format!("/v1/agent/check/pass/{check}"), "").await.is(200, "");
    let id = w.session(json!({ "NodeChecks": [check], "TTL": "30s" })).await;
    w.until_gone(&id).await;
    // TTL of the check without a factor, long before the session's TTL.
    assert!(from.elapsed() >= Duration::from_millis(1_900), "{:?}", from.elapsed());
    assert!(from.elapsed() < Duration::from_secs(30), "{:?}", from.elapsed());
}
