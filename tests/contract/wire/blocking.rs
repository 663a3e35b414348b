//! Blocking reads: `consul-semantics.md` §4.
//!
//! To show that a write does not wake a watch, a second write that wakes it follows. A watch woken by the first would
//! answer with an earlier index.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::cases;
use super::Case;
use super::client::{Reply, Wire, number, value};

pub const CASES: &[Case<Wire>] = cases! {
    B01 Shared "no index, 0, 1 and an older one answer at once" => b01;
    B02 Shared "the current index waits; a change wakes with a higher one" => b02;
    B04 Shared "a delete wakes with 404" => b04;
    B05 Shared "the creation of an absent key wakes with 200" => b05;
    B07 Shared "the last delete under a prefix wakes with 404; its index then stays" => b07;
    B08 Shared "keys wakes on a change of a value alone" => b08;
    B10 Fresh "session info: renew does not wake, destroy does" => b10;
    B11 Shared "a wait that ends answers unchanged" => b11;
    B13 Shared "a bad index or wait is 400, an empty index answers at once" => b13;
    B14 Shared "stale with consistent is 400" => b14;
    B16 Shared "of many rapid writes the last one is always seen" => b16;
    B17 Shared "a transaction on two keys is one change" => b17;
    B30 Shared "writing the same value wakes nobody" => b30;
    B31 Shared "a refused cas and a refused transaction wake nobody" => b31;
    B32 Shared "siblings and keys below a key do not wake it" => b32;
    B33 Shared "a prefix wakes on create, update, delete and delete of a tree inside" => b33;
    B34 Shared "a prefix with keys does not wake on writes outside" => b34;
    B35 Shared "acquire, release and the end of the session wake the key's watch" => b35;
    B36 Shared "acquiring again with the same value wakes nobody" => b36;
    B37 Shared "an index beyond the present one waits, and the answer has the real one" => b37;
    B38 Shared "the session list wakes on a new session" => b38;
    B39 Shared "a wait of 0 is not: the default holds" => b39;
    B40 Shared "consistent reads wait, too" => b40;
    B41 Shared "keys folded by a separator wake on a change below the fold" => b41;
};

/// Time for a watch to start, or for a wrong wake-up to arrive. A test never fails because it is too short.
async fn moment() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

impl Wire {
    /// Watches `path` from its present index.
    async fn watch_now(&self, path: &str) -> (u64, tokio::task::JoinHandle<Reply>) {
        let index = self.get(path).await.index();
        let watch = self.watch(path, index);
        moment().await;
        (index, watch)
    }
}

async fn b01(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let index = w.get(&w.kv("a")).await.index();
    for old in ["", "?index=0", "?index=1", &format!("?index={}", index - 1)] {
        let reply = w
            .get(&w.kv(&format!("a{old}{}wait=60s", if old.is_empty() { '?' } else { '&' })))
            .await;
        assert_eq!((reply.status, reply.index()), (200, index), "{old}");
    }
}

async fn b02(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    assert!(!watch.is_finished());
    w.put(&w.kv("a"), "y").await;
    let woken = watch.await.unwrap();
    assert!(woken.index() > index);
    assert_eq!(value(&woken.json()[0]), "y");
}

async fn b04(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    w.delete(&w.kv("a")).await;
    let woken = watch.await.unwrap();
    assert_eq!((woken.status, woken.body.len()), (404, 0));
    assert!(woken.index() > index);
}

async fn b05(w: Wire) {
    // Writes nearby also wake a read of an absent key, so it reads again.
    let mut index = w.get(&w.kv("a")).await.index();
    let watcher = {
        let w = w.clone();
        tokio::spawn(async move {
            loop {
                let reply = w.watch(&w.kv("a"), index).await.unwrap();
                if reply.status == 200 {
                    return reply;
                }
                index = reply.index();
            }
        })
    };
    moment().await;
    w.put(&w.kv("a"), "x").await;
    let woken = watcher.await.unwrap();
    assert_eq!(woken.index(), number(&woken.json()[0], "CreateIndex"));
}

async fn b07(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("p/?recurse")).await;
    w.delete(&w.kv("p/a")).await;
    let woken = watch.await.unwrap();
    assert_eq!(woken.status, 404);
    assert!(woken.index() > index);
    w.put(&w.kv("q"), "x").await;
    assert_eq!(w.get(&w.kv("p/?recurse")).await.index(), woken.index());
}

async fn b08(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("p/?keys")).await;
    w.put(&w.kv("p/a"), "y").await;
    let woken = watch.await.unwrap();
    assert!(woken.index() > index);
    assert_eq!(woken.json(), json!([w.key("p/a")]));
}

async fn b10(w: Wire) {
    let id = w.session(json!({ "TTL": "60s" })).await;
    let (_, watch) = w.watch_now(&format!("/v1/session/info/{id}")).await;
    w.put(&format!("/v1/session/renew/{id}"), "").await;
    moment().await;
    assert!(!watch.is_finished());
    w.put(&format!("/v1/session/destroy/{id}"), "").await;
    assert_eq!(watch.await.unwrap().json(), json!([]));
}

async fn b11(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    for query in ["a", "?recurse", "?keys"] {
        let now = w.get(&w.kv(query)).await;
        let sep = if query.contains('?') { '&' } else { '?' };
        let from = Instant::now();
        let same = w.get(&w.kv(&format!("{query}{sep}index={}&wait=800ms", now.index()))).await;
        assert!(from.elapsed() >= Duration::from_millis(800), "{query}: {:?}", from.elapsed());
        assert_eq!((same.status, same.index(), same.body), (200, now.index(), now.body), "{query}");
    }
}

async fn b13(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    for bad in ["abc", "-1"] {
        w.get(&w.kv(&format!("a?index={bad}"))).await.is(400, "Invalid index");
    }
    for bad in ["abc", "2"] {
        w.get(&w.kv(&format!("a?index=1&wait={bad}"))).await.is(400, "Invalid wait time");
    }
    assert_eq!(w.get(&w.kv("a?index=&wait=60s")).await.status, 200);
}

async fn b14(w: Wire) {
    w.get(&w.kv("a?stale&consistent")).await.is(400, "Cannot specify ?stale with ?consistent");
}

async fn b16(w: Wire) {
    w.put(&w.kv("a"), "0").await;
    let watcher = {
        let w = w.clone();
        tokio::spawn(async move {
            let mut index = 1;
            loop {
                let reply = w.watch(&w.kv("a"), index).await.unwrap();
                assert!(reply.index() >= index);
                index = reply.index();
                if value(&reply.json()[0]) == "200" {
                    return;
                }
            }
        })
    };
    for n in 1..=200 {
        w.put(&w.kv("a"), n.to_string()).await;
    }
    watcher.await.unwrap();
}

async fn b17(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    w.put(&w.kv("p/b"), "x").await;
    let (_, watch) = w.watch_now(&w.kv("p/?recurse")).await;
    let set =
        |tail| json!({ "Verb": "set", "Key": w.key(tail), "Value": super::client::base64("y") });
    w.txn(&[set("p/a"), set("p/b")]).await.is(200, "");
    let woken = watch.await.unwrap();
    let list = woken.json();
    assert_eq!((value(&list[0]), value(&list[1])), ("y".into(), "y".into()));
    assert_eq!(list[0]["ModifyIndex"], list[1]["ModifyIndex"]);
}

async fn b30(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    w.put(&w.kv("a"), "x").await;
    moment().await;
    w.put(&w.kv("a"), "y").await;
    assert!(watch.await.unwrap().index() > index);
}

async fn b31(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    w.put(&w.kv("a?cas=1"), "y").await.is(200, "false");
    let set = json!({ "Verb": "set", "Key": w.key("a"), "Value": super::client::base64("y") });
    let get = json!({ "Verb": "get", "Key": w.key("absent") });
    w.txn(&[set, get]).await.is(409, "");
    moment().await;
    w.put(&w.kv("a"), "z").await;
    let woken = watch.await.unwrap();
    assert!(woken.index() > index);
    assert_eq!(value(&woken.json()[0]), "z");
}

async fn b32(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    for near in ["b", "a/b", "aa"] {
        w.put(&w.kv(near), "x").await;
    }
    moment().await;
    w.put(&w.kv("a"), "y").await;
    assert!(watch.await.unwrap().index() > index);
}

async fn b33(w: Wire) {
    w.put(&w.kv("p/sentinel"), "x").await;
    let prefix = w.kv("p/?recurse");
    for (step, keys) in [("create", 2), ("update", 2), ("delete", 1), ("tree", 0)] {
        let (index, watch) = w.watch_now(&prefix).await;
        match step {
            "delete" => w.delete(&w.kv("p/a")).await,
            "tree" => w.delete(&w.kv("p/?recurse")).await,
            _ => w.put(&w.kv("p/a"), step).await,
        };
        let woken = watch.await.unwrap();
        assert!(woken.index() > index, "{step}");
        let seen = if woken.status == 404 { 0 } else { woken.json().as_array().unwrap().len() };
        assert_eq!(seen, keys, "{step}");
    }
}

async fn b34(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("p/?recurse")).await;
    w.put(&w.kv("q/a"), "x").await;
    w.delete(&w.kv("q/a")).await;
    w.delete(&w.kv("p/absent")).await;
    w.put(&w.kv("p/a"), "x").await;
    moment().await;
    w.put(&w.kv("p/a"), "y").await;
    assert!(watch.await.unwrap().index() > index);
}

async fn b35(w: Wire) {
    let id = w.session(json!({})).await;
    w.put(&w.kv("a"), "x").await;
    for (path, holder) in [
        (w.kv(&format!("a?acquire={id}")), true),
        (w.kv(&format!("a?release={id}")), false),
        (w.kv(&format!("a?acquire={id}")), true),
        (format!("/v1/session/destroy/{id}"), false),
    ] {
        let (index, watch) = w.watch_now(&w.kv("a")).await;
        w.put(&path, "x").await.is(200, "true");
        let woken = watch.await.unwrap();
        assert!(woken.index() > index, "{path}");
        assert_eq!(woken.json()[0].get("Session").is_some(), holder, "{path}");
    }
}

async fn b36(w: Wire) {
    let id = w.session(json!({})).await;
    let acquire = w.kv(&format!("a?acquire={id}"));
    w.put(&acquire, "x").await;
    let (index, watch) = w.watch_now(&w.kv("a")).await;
    w.put(&acquire, "x").await.is(200, "true");
    moment().await;
    w.put(&acquire, "y").await.is(200, "true");
    assert!(watch.await.unwrap().index() > index);
}

async fn b37(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let now = w.get(&w.kv("a")).await.index();
    let from = Instant::now();
    let reply = w.get(&w.kv(&format!("a?index={}&wait=500ms", now + 1_000_000))).await;
    assert!(from.elapsed() >= Duration::from_millis(500), "{:?}", from.elapsed());
    assert_eq!((reply.status, reply.index()), (200, now));
}

async fn b38(w: Wire) {
    let mut index = w.get("/v1/session/list").await.index();
    let id = w.session(json!({})).await;
    loop {
        // Other cases create sessions, too.
        let reply = w.watch("/v1/session/list", index).await.unwrap();
        assert!(reply.index() > index);
        index = reply.index();
        if reply.json().as_array().unwrap().iter().any(|s| s["ID"] == id) {
            return;
        }
    }
}

async fn b39(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let index = w.get(&w.kv("a")).await.index();
    for zero in ["0s", "-1s"] {
        let waiting = {
            let (w, path) = (w.clone(), w.kv(&format!("a?index={index}&wait={zero}")));
            tokio::spawn(async move { w.get(&path).await })
        };
        moment().await;
        assert!(!waiting.is_finished(), "{zero}");
        waiting.abort();
    }
}

async fn b40(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("a?consistent")).await;
    w.put(&w.kv("a"), "y").await;
    assert!(watch.await.unwrap().index() > index);
}

async fn b41(w: Wire) {
    w.put(&w.kv("p/a/b"), "x").await;
    let (index, watch) = w.watch_now(&w.kv("p/?keys&separator=/")).await;
    w.put(&w.kv("p/a/b"), "y").await;
    let woken = watch.await.unwrap();
    assert!(woken.index() > index);
    assert_eq!(woken.json(), json!([w.key("p/a/")]));
}
