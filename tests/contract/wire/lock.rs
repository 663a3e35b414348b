//! Locks on single keys: `consul-semantics.md` §1.4 and §3.3.

use std::time::Duration;

use serde_json::json;

use super::super::cases;
use super::Case;
use super::client::{Wire, number, value};

pub const CASES: &[Case<Wire>] = cases! {
    L01 Shared "acquiring a free key sets Session, LockIndex 1 and the body" => l01;
    L02 Shared "acquiring again: the same value changes nothing, another one only ModifyIndex" => l02;
    L04 Shared "release: only the holder, once, and the body is stored" => l04;
    L05 Shared "release with an empty body clears the value" => l05;
    L07 Shared "plain and cas writes on a locked key keep Session and reset LockIndex" => l07;
    L08 Shared "anybody may delete a locked key, and it can be locked again at once" => l08;
    L10 Shared "destroy, release: all keys unlocked at one index, value and LockIndex kept" => l10;
    L11 Shared "destroy, delete: locked keys vanish, written ones stay" => l11;
    L13 Shared "no delay after a clean release, nor with LockDelay 0" => l13;
    L14 Shared "behaviour delete with a delay: the key is gone, acquire refused, a cas=0 PUT not" => l14;
    L17 Shared "a negative LockDelay is none" => l17;
    L30 Shared "acquire of a key that another session holds is refused and changes nothing" => l30;
    L31 Shared "acquire with an unknown, malformed or empty session is 500 with its reason" => l31;
    L32 Shared "release with a session that does not exist is false, without one 500" => l32;
    L33 Shared "LockIndex counts the acquisitions" => l33;
    L34 Shared "lock-delay holds after destroy and ends by itself" => l34;
    L35 Shared "a deleted locked key has no lock-delay" => l35;
};

async fn l01(w: Wire) {
    let s = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "mine").await.is(200, "true");
    let entry = w.entry("a").await;
    assert_eq!(entry["Session"], s);
    assert_eq!((number(&entry, "LockIndex"), value(&entry).as_str()), (1, "mine"));
}

async fn l02(w: Wire) {
    let s = w.session(json!({})).await;
    let acquire = w.kv(&format!("a?acquire={s}"));
    w.put(&acquire, "x").await;
    let first = w.entry("a").await;
    w.put(&acquire, "x").await.is(200, "true");
    assert_eq!(w.entry("a").await, first);
    w.put(&acquire, "y").await.is(200, "true");
    let third = w.entry("a").await;
    assert!(number(&third, "ModifyIndex") > number(&first, "ModifyIndex"));
    assert_eq!(number(&third, "LockIndex"), 1);
}

async fn l04(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.put(&w.kv(&format!("a?release={other}")), "y").await.is(200, "false");
    w.put(&w.kv(&format!("a?release={s}")), "z").await.is(200, "true");
    let entry = w.entry("a").await;
    assert!(entry.get("Session").is_none(), "{entry}");
    assert_eq!((number(&entry, "LockIndex"), value(&entry).as_str()), (1, "z"));
    w.put(&w.kv(&format!("a?release={s}")), "z").await.is(200, "false");
    w.put(&w.kv(&format!("absent?release={s}")), "z").await.is(200, "false");
}

async fn l05(w: Wire) {
    let s = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.put(&w.kv(&format!("a?release={s}")), "").await.is(200, "true");
    assert!(w.entry("a").await["Value"].is_null());
}

async fn l07(w: Wire) {
    let s = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.put(&w.kv("a"), "y").await.is(200, "true");
    let plain = w.entry("a").await;
    assert_eq!((plain["Session"].as_str(), number(&plain, "LockIndex")), (Some(&*s), 0));
    w.put(&w.kv(&format!("b?acquire={s}")), "x").await;
    let index = number(&w.entry("b").await, "ModifyIndex");
    w.put(&w.kv(&format!("b?cas={index}")), "y").await.is(200, "true");
    let cas = w.entry("b").await;
    assert_eq!((cas["Session"].as_str(), number(&cas, "LockIndex")), (Some(&*s), 0));
}

async fn l08(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.delete(&w.kv("a")).await.is(200, "true");
    w.put(&w.kv(&format!("a?acquire={other}")), "y").await.is(200, "true");
    let entry = w.entry("a").await;
    assert_eq!((entry["Session"].as_str(), number(&entry, "LockIndex")), (Some(&*other), 1));
}

async fn l10(w: Wire) {
    let s = w.session(json!({})).await;
    for tail in ["a", "b"] {
        w.put(&w.kv(&format!("{tail}?acquire={s}")), tail).await;
    }
    w.put(&format!("/v1/session/destroy/{s}"), "").await.is(200, "true");
    let (a, b) = (w.entry("a").await, w.entry("b").await);
    assert!(a.get("Session").is_none() && b.get("Session").is_none());
    assert_eq!(a["ModifyIndex"], b["ModifyIndex"]);
    assert_eq!((value(&a).as_str(), number(&a, "LockIndex")), ("a", 1));
}

async fn l11(w: Wire) {
    let s = w.session(json!({ "Behavior": "delete" })).await;
    w.put(&w.kv(&format!("locked?acquire={s}")), "x").await;
    w.put(&w.kv("written"), "x").await;
    w.put(&w.kv(&format!("released?acquire={s}")), "x").await;
    w.put(&w.kv(&format!("released?release={s}")), "x").await;
    w.put(&format!("/v1/session/destroy/{s}"), "").await.is(200, "true");
    let left = w.get(&w.kv("?keys")).await.json();
    assert_eq!(left, json!([w.key("released"), w.key("written")]));
}

async fn l13(w: Wire) {
    let delayed = w.session(json!({ "LockDelay": "15s" })).await;
    let prompt = w.session(json!({ "LockDelay": "0s" })).await;
    let next = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={delayed}")), "x").await;
    w.put(&w.kv(&format!("a?release={delayed}")), "x").await;
    w.put(&w.kv(&format!("a?acquire={next}")), "x").await.is(200, "true");
    w.put(&w.kv(&format!("b?acquire={prompt}")), "x").await;
    w.put(&format!("/v1/session/destroy/{prompt}"), "").await;
    w.put(&w.kv(&format!("b?acquire={next}")), "x").await.is(200, "true");
}

async fn l14(w: Wire) {
    let s = w.session(json!({ "Behavior": "delete", "LockDelay": "30s" })).await;
    let next = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.put(&format!("/v1/session/destroy/{s}"), "").await;
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
    w.put(&w.kv(&format!("a?acquire={next}")), "x").await.is(200, "false");
    w.put(&w.kv("a?cas=0"), "x").await.is(200, "true");
}

async fn l17(w: Wire) {
    let s = w.session(json!({ "LockDelay": "-5s" })).await;
    let next = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.put(&format!("/v1/session/destroy/{s}"), "").await;
    w.put(&w.kv(&format!("a?acquire={next}")), "x").await.is(200, "true");
}

async fn l30(w: Wire) {
    let (s, other) = (w.session(json!({})).await, w.session(json!({})).await);
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    let before = w.entry("a").await;
    w.put(&w.kv(&format!("a?acquire={other}")), "y").await.is(200, "false");
    assert_eq!(w.entry("a").await, before);
}

async fn l31(w: Wire) {
    let unknown = uuid::Uuid::new_v4();
    w.put(&w.kv(&format!("a?acquire={unknown}")), "x").await.is(500, "invalid session");
    w.put(&w.kv("a?acquire=abc"), "x").await.is(500, "UUID must be 36 characters");
    w.put(&w.kv("a?acquire="), "x").await.is(500, "missing session");
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
}

async fn l32(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let unknown = uuid::Uuid::new_v4();
    w.put(&w.kv(&format!("a?release={unknown}")), "y").await.is(200, "false");
    w.put(&w.kv("a?release=abc"), "y").await.is(200, "false");
    w.put(&w.kv("a?release="), "y").await.is(500, "missing session");
    assert_eq!(value(&w.entry("a").await), "x");
}

async fn l33(w: Wire) {
    let s = w.session(json!({})).await;
    for n in 1..=3 {
        w.put(&w.kv(&format!("a?acquire={s}")), "x").await.is(200, "true");
        assert_eq!(number(&w.entry("a").await, "LockIndex"), n);
        w.put(&w.kv(&format!("a?release={s}")), "x").await.is(200, "true");
    }
}

async fn l34(w: Wire) {
    let s = w.session(json!({ "LockDelay": "3s" })).await;
    let next = w.session(json!({})).await;
    let acquire = w.kv(&format!("a?acquire={next}"));
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    let destroyed = std::time::Instant::now();
    w.put(&format!("/v1/session/destroy/{s}"), "").await;
    w.put(&acquire, "x").await.is(200, "false");
    while w.put(&acquire, "x").await.text() == "false" {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Only a lower bound: the upper one depends on the machine's load.
    assert!(destroyed.elapsed() >= Duration::from_millis(2_900), "{:?}", destroyed.elapsed());
}

async fn l35(w: Wire) {
    let s = w.session(json!({ "LockDelay": "30s" })).await;
    let next = w.session(json!({})).await;
    w.put(&w.kv(&format!("a?acquire={s}")), "x").await;
    w.delete(&w.kv("a")).await.is(200, "true");
    w.put(&w.kv(&format!("a?acquire={next}")), "x").await.is(200, "true");
}
