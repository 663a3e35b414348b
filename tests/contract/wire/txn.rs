//! Transactions: `consul-semantics.md` §2.

use serde_json::{Value, json};

use super::super::cases;
use super::Case;
use super::client::{Reply, Wire, base64, number, value};

pub const CASES: &[Case<Wire>] = cases! {
    T01 Shared "no operations: 200, no results, no errors" => t01;
    T02 Shared "two sets: results in order without values, one index, nothing else in the answer" => t02;
    T04 Shared "a body over 524288 bytes is 413" => t04;
    T05 Shared "what cannot be parsed is 400, other methods are 405" => t05;
    T07 Shared "every operation that fails is reported, and nothing is applied" => t07;
    T08 Shared "operations see those before them" => t08;
    T10 Shared "trees are flattened; deletes and check-not-exists return nothing" => t10;
    T11 Shared "cas: 0 or none creates, exists or stale or absent is 409" => t11;
    T13 Shared "lock: again by its holder, not by another" => t13;
    T14 Shared "lock with an unknown session, and with none" => t14;
    T16 Shared "unlock: only the holder, only once, only what exists" => t16;
    T17 Shared "the fence: applied only while the session holds the lock" => t17;
    T19 Shared "delete and delete-cas: absent is fine, stale and 0 are not" => t19;
    T20 Shared "set, delete and create one key: a new CreateIndex" => t20;
    T22 Shared "unknown verbs and an empty key are 409" => t22;
    T23 Shared "setting the same value returns the old index" => t23;
    T25 Shared "field names in any case; keys with empty segments pass here" => t25;
    T26 Shared "only a read-only transaction names the leader" => t26;
    T28 Real "a node that is absent refuses the KV write beside it" => t28;
    T30 Shared "64 operations pass, 65 are 413" => t30;
    T31 Shared "check-index: right, wrong, absent" => t31;
    T32 Shared "check-session: empty means unlocked; absent fails" => t32;
    T33 Shared "check-not-exists fails on what an earlier operation made" => t33;
    T34 Shared "get returns the value, and fails on an absent key" => t34;
    T35 Shared "delete-tree takes a string prefix" => t35;
    T36 Shared "set keeps a holder and resets LockIndex; lock counts on" => t36;
    T37 Shared "empty operations are dropped" => t37;
    T38 Shared "lock and unlock return the entry with its session" => t38;
    T39 Shared "a refused transaction changes no entry and no index" => t39;
    T40 Shared "flags are set, and 0 when left out" => t40;
    T41 Shared "lock is refused during a lock-delay" => t41;
    T42 Shared "a get-tree of nothing succeeds" => t42;
};

/// Entries of an applied transaction.
#[track_caller]
fn entries(reply: &Reply) -> Vec<Value> {
    reply.is(200, "");
    let body = reply.json();
    let results = body["Results"].as_array().cloned().unwrap_or_default();
    results.iter().map(|r| r["KV"].clone()).collect()
}

/// Asserts a refusal of these operations with these messages.
#[track_caller]
fn refused(reply: &Reply, wanted: &[(u64, &str)]) {
    reply.is(409, "");
    let body = reply.json();
    assert!(body["Results"].is_null(), "{body}");
    let errors = body["Errors"].as_array().unwrap();
    let matches = |e: &Value, (op, what): &(u64, &str)| {
        number(e, "OpIndex") == *op && e["What"].as_str().unwrap().contains(what)
    };
    let same =
        errors.len() == wanted.len() && errors.iter().zip(wanted).all(|(e, w)| matches(e, w));
    assert!(same, "wanted {wanted:?}, got {body}");
}

impl Wire {
    fn set(&self, tail: &str, text: &str) -> Value {
        json!({ "Verb": "set", "Key": self.key(tail), "Value": base64(text) })
    }

    fn op(&self, verb: &str, tail: &str) -> Value {
        json!({ "Verb": verb, "Key": self.key(tail) })
    }

    fn indexed(&self, verb: &str, tail: &str, index: u64) -> Value {
        json!({ "Verb": verb, "Key": self.key(tail), "Index": index, "Value": base64("indexed") })
    }

    fn held(&self, verb: &str, tail: &str, session: &str) -> Value {
        json!({ "Verb": verb, "Key": self.key(tail), "Session": session, "Value": base64("held") })
    }
}

async fn t01(w: Wire) {
    let body = w.put("/v1/txn", "[]").await.json();
    assert_eq!(body["Results"], json!([]));
    assert!(body["Errors"].is_null());
    assert_eq!(body["KnownLeader"], true);
}

async fn t02(w: Wire) {
    let reply = w.txn(&[w.set("b", "1"), w.set("a", "2")]).await;
    let body = reply.json();
    let fields: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["Errors", "Results"]);
    let entries = entries(&reply);
    assert_eq!(entries[0]["Key"], w.key("b"));
    assert_eq!(entries[1]["Key"], w.key("a"));
    assert!(entries.iter().all(|e| e["Value"].is_null()), "{body}");
    assert_eq!(entries[0]["ModifyIndex"], entries[1]["ModifyIndex"]);
    assert_eq!(entries[0]["ModifyIndex"], w.entry("a").await["ModifyIndex"]);
    assert_eq!(reply.header("x-consul-index"), None);
}

async fn t04(w: Wire) {
    let reply = w.txn(&[w.set("a", &"x".repeat(400_000))]).await;
    reply.is(413, "too large");
    w.txn(&[w.set("a", &"x".repeat(262_144))]).await.is(200, "");
}

async fn t05(w: Wire) {
    let key = w.key("a");
    for unparsable in [
        String::new(),
        "garbage".into(),
        "{}".into(),
        format!(r#"[{{"KV":{{"Verb":"set","Key":"{key}","Value":"***"}}}}]"#),
        format!(r#"[{{"KV":{{"Verb":"set","Key":"{key}","Value":"eA"}}}}]"#),
        format!(r#"[{{"KV":{{"Verb":"set","Key":"{key}","Colour":"red"}}}}]"#),
        r#"[{"Session":{"Verb":"delete"}}]"#.into(),
    ] {
        w.put("/v1/txn", &unparsable).await.is(400, "Failed to parse body");
    }
    for method in ["GET", "POST"] {
        let reply = w.send(method, "/v1/txn", b"[]").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some("OPTIONS,PUT")), "{method}");
    }
}

async fn t07(w: Wire) {
    w.put(&w.kv("there"), "x").await;
    let ops = [
        w.indexed("cas", "there", 1),
        w.op("check-not-exists", "there"),
        w.set("new", "x"),
        w.op("get", "absent"),
    ];
    let wanted = [(0, "index is stale"), (1, "exists"), (3, "doesn't exist")];
    refused(&w.txn(&ops).await, &wanted);
    assert_eq!(w.get(&w.kv("new")).await.status, 404);
}

async fn t08(w: Wire) {
    w.put(&w.kv("a"), "old").await;
    let ops = [w.op("get", "a"), w.set("a", "new"), w.op("get", "a")];
    let seen = entries(&w.txn(&ops).await);
    assert_eq!(value(&seen[0]), "old");
    assert!(seen[1]["Value"].is_null());
    assert_eq!(value(&seen[2]), "new");
}

async fn t10(w: Wire) {
    for tail in ["p/a", "p/b", "q"] {
        w.put(&w.kv(tail), tail).await;
    }
    let ops = [
        w.op("delete", "q"),
        w.op("check-not-exists", "absent"),
        w.op("get-tree", "p/"),
        w.op("delete-tree", "p/"),
        w.set("last", "x"),
    ];
    let seen = entries(&w.txn(&ops).await);
    let keys: Vec<&str> = seen.iter().map(|e| e["Key"].as_str().unwrap()).collect();
    assert_eq!(keys, [w.key("p/a"), w.key("p/b"), w.key("last")]);
    assert_eq!(value(&seen[1]), "p/b");
}

async fn t11(w: Wire) {
    w.txn(&[w.indexed("cas", "a", 0)]).await.is(200, "");
    let without = json!({ "Verb": "cas", "Key": w.key("b"), "Value": base64("x") });
    w.txn(std::slice::from_ref(&without)).await.is(200, "");
    for stale in [w.indexed("cas", "a", 0), without, w.indexed("cas", "absent", 5)] {
        refused(&w.txn(&[stale]).await, &[(0, "index is stale")]);
    }
    let index = number(&w.entry("a").await, "ModifyIndex");
    w.txn(&[w.indexed("cas", "a", index)]).await.is(200, "");
}

async fn t13(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    let first = entries(&w.txn(&[w.held("lock", "a", &s)]).await);
    let again = entries(&w.txn(&[w.held("lock", "a", &s)]).await);
    assert_eq!(first[0]["LockIndex"], again[0]["LockIndex"]);
    refused(&w.txn(&[w.held("lock", "a", &other)]).await, &[(0, "lock is already held")]);
}

async fn t14(w: Wire) {
    let unknown = uuid::Uuid::new_v4().to_string();
    refused(&w.txn(&[w.held("lock", "a", &unknown)]).await, &[(0, "invalid session")]);
    refused(&w.txn(&[w.op("lock", "a")]).await, &[(0, "missing session")]);
}

async fn t16(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    w.txn(&[w.held("lock", "a", &s)]).await.is(200, "");
    let not_held = [(0, "lock isn't held")];
    refused(&w.txn(&[w.held("unlock", "a", &other)]).await, &not_held);
    w.txn(&[w.held("unlock", "a", &s)]).await.is(200, "");
    refused(&w.txn(&[w.held("unlock", "a", &s)]).await, &not_held);
    refused(&w.txn(&[w.held("unlock", "absent", &s)]).await, &not_held);
}

async fn t17(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    let fenced = |text: &str| [w.held("check-session", "lock", &s), w.set("data", text)];
    refused(&w.txn(&fenced("0")).await, &[(0, "doesn't exist")]);
    w.put(&w.kv(&format!("lock?acquire={s}")), "").await;
    w.txn(&fenced("1")).await.is(200, "");
    w.put(&w.kv(&format!("lock?release={s}")), "").await;
    refused(&w.txn(&fenced("2")).await, &[(0, "current session")]);
    w.put(&w.kv(&format!("lock?acquire={other}")), "").await;
    refused(&w.txn(&fenced("3")).await, &[(0, "current session")]);
    w.put(&w.kv(&format!("lock?release={other}")), "").await;
    w.put(&w.kv(&format!("lock?acquire={s}")), "").await;
    w.txn(&fenced("4")).await.is(200, "");
    w.put(&format!("/v1/session/destroy/{s}"), "").await;
    refused(&w.txn(&fenced("5")).await, &[(0, "current session")]);
    w.delete(&w.kv("lock")).await;
    refused(&w.txn(&fenced("6")).await, &[(0, "doesn't exist")]);
    assert_eq!(value(&w.entry("data").await), "4");
}

async fn t19(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let index = number(&w.entry("a").await, "ModifyIndex");
    w.txn(&[w.op("delete", "absent")]).await.is(200, "");
    w.txn(&[w.indexed("delete-cas", "absent", 7)]).await.is(200, "");
    for stale in [index + 1, 0] {
        refused(&w.txn(&[w.indexed("delete-cas", "a", stale)]).await, &[(0, "index is stale")]);
    }
    w.txn(&[w.indexed("delete-cas", "a", index)]).await.is(200, "");
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
}

async fn t20(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let before = w.entry("a").await;
    let ops = [w.set("a", "y"), w.op("delete", "a"), w.indexed("cas", "a", 0)];
    w.txn(&ops).await.is(200, "");
    let after = w.entry("a").await;
    assert!(number(&after, "CreateIndex") > number(&before, "ModifyIndex"));
    assert_eq!(after["CreateIndex"], after["ModifyIndex"]);
}

async fn t22(w: Wire) {
    for verb in ["get-or-explode", "SET", ""] {
        refused(&w.txn(&[w.op(verb, "a")]).await, &[(0, "unknown KV verb")]);
    }
    let no_key = json!({ "Verb": "set", "Key": "" });
    refused(&w.txn(&[no_key]).await, &[(0, "Must provide key")]);
}

async fn t23(w: Wire) {
    let first = entries(&w.txn(&[w.set("a", "x")]).await);
    let second = entries(&w.txn(&[w.set("a", "x"), w.set("b", "x")]).await);
    assert_eq!(second[0]["ModifyIndex"], first[0]["ModifyIndex"]);
    assert!(number(&second[1], "ModifyIndex") > number(&first[0], "ModifyIndex"));
}

async fn t25(w: Wire) {
    let key = w.key("a//b");
    let ops = format!(r#"[{{"kv":{{"verb":"set","key":"/{key}","value":"eA=="}}}}]"#);
    w.put("/v1/txn", ops).await.is(200, "");
    let listed = w.txn(&[json!({ "Verb": "get-tree", "Key": format!("/{key}") })]).await;
    assert_eq!(entries(&listed)[0]["Key"], format!("/{key}"));
}

async fn t26(w: Wire) {
    let write = w.txn(&[w.set("a", "x")]).await;
    assert_eq!(write.header("x-consul-knownleader"), None);
    let read = w.txn(&[w.op("get", "a")]).await;
    assert_eq!(read.header("x-consul-knownleader"), Some("true"));
}

async fn t28(w: Wire) {
    let node = json!({ "Node": { "Verb": "get", "Node": { "Node": w.name("absent") } } });
    let ops = json!([node, { "KV": w.set("a", "x") }]);
    refused(&w.put_json("/v1/txn", &ops).await, &[(0, "doesn't exist")]);
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
}

async fn t30(w: Wire) {
    let sets = |n: usize| (0..n).map(|i| w.set(&format!("k{i}"), "x")).collect::<Vec<_>>();
    assert_eq!(entries(&w.txn(&sets(64)).await).len(), 64);
    w.txn(&sets(65)).await.is(413, "too many operations");
}

async fn t31(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let index = number(&w.entry("a").await, "ModifyIndex");
    let right = entries(&w.txn(&[w.indexed("check-index", "a", index)]).await);
    assert_eq!((right.len(), right[0]["Value"].is_null()), (1, true));
    for wrong in [index + 1, 0] {
        let reply = w.txn(&[w.indexed("check-index", "a", wrong)]).await;
        refused(&reply, &[(0, "failed index check")]);
    }
    let absent = w.txn(&[w.indexed("check-index", "absent", 0)]).await;
    refused(&absent, &[(0, "doesn't exist")]);
}

async fn t32(w: Wire) {
    let s = w.session(json!({})).await;
    w.put(&w.kv("a"), "x").await;
    w.txn(&[w.held("check-session", "a", "")]).await.is(200, "");
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    let locked = w.txn(&[w.held("check-session", "a", "")]).await;
    refused(&locked, &[(0, "failed session check")]);
    let absent = w.txn(&[w.held("check-session", "absent", "")]).await;
    refused(&absent, &[(0, "doesn't exist")]);
}

async fn t33(w: Wire) {
    let ops = [w.indexed("cas", "a", 0), w.op("check-not-exists", "a")];
    refused(&w.txn(&ops).await, &[(1, "exists")]);
    let ops = [w.set("a", "x"), w.op("delete", "a"), w.op("check-not-exists", "a")];
    w.txn(&ops).await.is(200, "");
}

async fn t34(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let seen = entries(&w.txn(&[w.op("get", "a")]).await);
    assert_eq!(seen[0], w.entry("a").await);
    refused(&w.txn(&[w.op("get", "absent")]).await, &[(0, "doesn't exist")]);
}

async fn t35(w: Wire) {
    for tail in ["p", "p/a", "pq", "q"] {
        w.put(&w.kv(tail), "x").await;
    }
    w.txn(&[w.op("delete-tree", "p")]).await.is(200, "");
    assert_eq!(w.get(&w.kv("?keys")).await.json(), json!([w.key("q")]));
    w.txn(&[w.op("delete-tree", "p")]).await.is(200, "");
}

async fn t36(w: Wire) {
    let s = w.session(json!({})).await;
    w.txn(&[w.held("lock", "a", &s)]).await.is(200, "");
    let set = entries(&w.txn(&[w.set("a", "x")]).await);
    assert_eq!((set[0]["Session"].as_str(), number(&set[0], "LockIndex")), (Some(&*s), 0));
    w.txn(&[w.held("unlock", "a", &s)]).await.is(200, "");
    let locked = entries(&w.txn(&[w.held("lock", "a", &s)]).await);
    assert_eq!(number(&locked[0], "LockIndex"), 1);
}

async fn t37(w: Wire) {
    let ops = json!([{}, { "KV": w.set("a", "x") }, {}]);
    assert_eq!(entries(&w.put_json("/v1/txn", &ops).await).len(), 1);
}

async fn t38(w: Wire) {
    let s = w.session(json!({})).await;
    let locked = entries(&w.txn(&[w.held("lock", "a", &s)]).await);
    assert_eq!((locked[0]["Session"].as_str(), number(&locked[0], "LockIndex")), (Some(&*s), 1));
    assert!(locked[0]["Value"].is_null());
    assert_eq!(value(&w.entry("a").await), "held");
    let unlocked = entries(&w.txn(&[w.held("unlock", "a", &s)]).await);
    assert!(unlocked[0].get("Session").is_none(), "{}", unlocked[0]);
}

async fn t39(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    let before = w.get(&w.kv("p/?recurse")).await;
    let ops = [w.set("p/a", "y"), w.set("p/b", "y"), w.op("delete", "p/a"), w.op("get", "absent")];
    refused(&w.txn(&ops).await, &[(3, "doesn't exist")]);
    let after = w.get(&w.kv("p/?recurse")).await;
    assert_eq!((after.json(), after.index()), (before.json(), before.index()));
}

async fn t40(w: Wire) {
    let mut flagged = w.set("a", "x");
    flagged["Flags"] = json!(42);
    assert_eq!(number(&entries(&w.txn(&[flagged]).await)[0], "Flags"), 42);
    assert_eq!(number(&entries(&w.txn(&[w.set("a", "x")]).await)[0], "Flags"), 0);
}

async fn t41(w: Wire) {
    let s = w.session(json!({ "LockDelay": "30s" })).await;
    let next = w.session(json!({})).await;
    w.txn(&[w.held("lock", "a", &s)]).await.is(200, "");
    w.put(&format!("/v1/session/destroy/{s}"), "").await;
    refused(&w.txn(&[w.held("lock", "a", &next)]).await, &[(0, "lock delay")]);
    w.txn(&[w.set("a", "x")]).await.is(200, "");
}

async fn t42(w: Wire) {
    let seen = entries(&w.txn(&[w.op("get-tree", "none/"), w.set("a", "x")]).await);
    assert_eq!(seen.len(), 1);
}
