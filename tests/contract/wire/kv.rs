//! Single keys, prefixes and key names: `consul-semantics.md` §1.

use super::super::cases;
use super::Case;
use super::client::{Wire, number, value};

pub const CASES: &[Case<Wire>] = cases! {
    K01 Shared "a new key's indexes are equal, and it has no session" => k01;
    K02 Shared "another value moves ModifyIndex alone" => k02;
    K04 Shared "flags count as a change, and a PUT without them sets 0" => k04;
    K05 Shared "an empty value is null, and empty when read raw" => k05;
    K07 Shared "an absent key is 404, empty, with an index and no content type" => k07;
    K08 Shared "524288 bytes are stored, one more is 413" => k08;
    K10 Shared "no key is 400, other methods are 405 with Allow" => k10;
    K11 Shared "unclean paths are 301 and write nothing" => k11;
    K13 Shared "control characters are 400" => k13;
    K14 Shared "cas=0 creates once" => k14;
    K16 Shared "cas with the same value keeps the index, which then still matches" => k16;
    K17 Shared "a bad cas is 500, two conditions are 400" => k17;
    K19 Shared "DELETE cas: 0 and wrong are refused, right and absent are not" => k19;
    K20 Shared "a key created again has a higher CreateIndex" => k20;
    K22 Shared "keys are folded after the separator" => k22;
    K23 Shared "recurse and keys without a match are 404; recurse=false recurses" => k23;
    K25 Shared "DELETE recurse takes a string prefix, and is true on nothing" => k25;
    K26 Shared "a key's index is not moved by its siblings" => k26;
    K28 Fresh "an empty store: keys of everything are [], recurse is 404" => k28;
    K29 Fresh "a virgin store: index 1, and waiting on it ends with the first write" => k29;
    K30 Shared "PUT answers true, without an index" => k30;
    K31 Shared "a raw value is bytes as text/plain" => k31;
    K32 Shared "?raw of an absent key is 404" => k32;
    K33 Shared "DELETE of a present or absent key is true" => k33;
    K34 Shared "/v1/kv without a slash is 301" => k34;
    K35 Shared "a slash may be written %2F; spaces, percent signs and UTF-8 are kept" => k35;
    K36 Shared "lists are in byte order, with values, under one index" => k36;
    K37 Shared "a prefix is a string prefix" => k37;
    K38 Shared "keys wins over recurse and raw" => k38;
    K39 Shared "flags beyond 64 bits are 500, the largest is kept" => k39;
    K40 Shared "cas=N on an absent key is refused" => k40;
    K41 Shared "the index of a prefix is the newest change under it" => k41;
    K42 Shared "an emptied prefix keeps the index of its last delete" => k42;
    K43 Shared "a body's bytes come back as they were" => k43;
    K44 Shared "reads name leader and contact" => k44;
};

async fn k01(w: Wire) {
    w.put(&w.kv("a"), "one").await.is(200, "true");
    let reply = w.get(&w.kv("a")).await;
    assert_eq!(reply.status, 200);
    let list = reply.json();
    assert_eq!(list.as_array().unwrap().len(), 1);
    let entry = &list[0];
    assert_eq!(entry["Key"], w.key("a"));
    assert_eq!(value(entry), "one");
    assert_eq!(number(entry, "CreateIndex"), number(entry, "ModifyIndex"));
    assert_eq!(reply.index(), number(entry, "ModifyIndex"));
    assert_eq!((number(entry, "LockIndex"), number(entry, "Flags")), (0, 0));
    assert!(entry.get("Session").is_none(), "{entry}");
}

async fn k02(w: Wire) {
    w.put(&w.kv("a"), "one").await;
    let before = w.entry("a").await;
    w.put(&w.kv("a"), "two").await.is(200, "true");
    let after = w.entry("a").await;
    assert_eq!(value(&after), "two");
    assert_eq!(after["CreateIndex"], before["CreateIndex"]);
    assert!(number(&after, "ModifyIndex") > number(&before, "ModifyIndex"));
}

async fn k04(w: Wire) {
    w.put(&w.kv("a"), "one").await;
    let plain = w.entry("a").await;
    w.put(&w.kv("a?flags=42"), "one").await;
    let flagged = w.entry("a").await;
    assert_eq!(number(&flagged, "Flags"), 42);
    assert!(number(&flagged, "ModifyIndex") > number(&plain, "ModifyIndex"));
    w.put(&w.kv("a"), "one").await;
    assert_eq!(number(&w.entry("a").await, "Flags"), 0);
}

async fn k05(w: Wire) {
    w.put(&w.kv("a"), "").await.is(200, "true");
    assert!(w.entry("a").await["Value"].is_null());
    let raw = w.get(&w.kv("a?raw")).await;
    assert_eq!((raw.status, raw.body.len()), (200, 0));
}

async fn k07(w: Wire) {
    let reply = w.get(&w.kv("absent")).await;
    assert_eq!((reply.status, reply.body.len()), (404, 0));
    assert!(reply.index() >= 1);
    assert_eq!(reply.header("content-type"), None);
}

async fn k08(w: Wire) {
    let largest = vec![b'x'; 524_288];
    w.put(&w.kv("a"), &largest).await.is(200, "true");
    assert_eq!(w.get(&w.kv("a?raw")).await.body.len(), largest.len());
    let refused = w.put(&w.kv("b"), [largest, vec![b'x']].concat()).await;
    refused.is(413, "too large");
    assert_eq!(w.get(&w.kv("b")).await.status, 404);
}

async fn k10(w: Wire) {
    for method in ["GET", "PUT", "DELETE"] {
        w.send(method, "/v1/kv/", b"").await.is(400, "Missing key name");
    }
    for method in ["POST", "PATCH", "HEAD"] {
        let reply = w.send(method, &w.kv("a"), b"").await;
        assert_eq!(reply.status, 405, "{method}");
        assert_eq!(reply.header("allow"), Some("OPTIONS,GET,PUT,DELETE"), "{method}");
    }
}

async fn k11(w: Wire) {
    for unclean in ["a//b", "a/./b", "a/../b", "a/%2E%2E/b", "a%2F/b"] {
        let reply = w.put(&w.kv(unclean), "x").await;
        assert_eq!(reply.status, 301, "{unclean}");
        assert!(reply.header("location").is_some(), "{unclean}");
    }
    assert_eq!(w.get(&w.kv("?recurse")).await.status, 404);
}

async fn k13(w: Wire) {
    for control in ["%00", "%01", "%0A", "%7F"] {
        assert_eq!(w.put(&w.kv(&format!("a{control}")), "x").await.status, 400, "{control}");
    }
}

async fn k14(w: Wire) {
    w.put(&w.kv("a?cas=0"), "one").await.is(200, "true");
    w.put(&w.kv("a?cas=0"), "two").await.is(200, "false");
    assert_eq!(value(&w.entry("a").await), "one");
}

async fn k16(w: Wire) {
    w.put(&w.kv("a"), "one").await;
    let index = number(&w.entry("a").await, "ModifyIndex");
    for _ in 0..2 {
        w.put(&w.kv(&format!("a?cas={index}")), "one").await.is(200, "true");
        assert_eq!(number(&w.entry("a").await, "ModifyIndex"), index);
    }
    w.put(&w.kv(&format!("a?cas={index}")), "two").await.is(200, "true");
    assert!(number(&w.entry("a").await, "ModifyIndex") > index);
    w.put(&w.kv(&format!("a?cas={index}")), "three").await.is(200, "false");
}

async fn k17(w: Wire) {
    for bad in ["", "abc", "-1"] {
        assert_eq!(w.put(&w.kv(&format!("a?cas={bad}")), "x").await.status, 500, "{bad:?}");
    }
    for two in ["cas=0&acquire=x", "cas=0&release=x", "acquire=x&release=x"] {
        w.put(&w.kv(&format!("a?{two}")), "x").await.is(400, "Conflicting flags");
    }
}

async fn k19(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let index = number(&w.entry("a").await, "ModifyIndex");
    w.delete(&w.kv("a?cas=0")).await.is(200, "false");
    w.delete(&w.kv(&format!("a?cas={}", index + 1))).await.is(200, "false");
    w.delete(&w.kv(&format!("a?cas={index}"))).await.is(200, "true");
    w.delete(&w.kv("a?cas=7")).await.is(200, "true");
    w.delete(&w.kv("a?cas=7&recurse")).await.is(400, "Conflicting flags");
}

async fn k20(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let first = number(&w.entry("a").await, "CreateIndex");
    w.delete(&w.kv("a")).await;
    w.put(&w.kv("a"), "x").await;
    assert!(number(&w.entry("a").await, "CreateIndex") > first);
}

async fn k22(w: Wire) {
    for tail in ["p/a", "p/a/x", "p/a/y", "p/b", "p/c--d--e"] {
        w.put(&w.kv(tail), "x").await;
    }
    let keys = async |tail: &str| w.get(&w.kv(tail)).await.json();
    let all = ["p/a", "p/a/x", "p/a/y", "p/b", "p/c--d--e"].map(|t| w.key(t));
    assert_eq!(keys("p/?keys").await, serde_json::json!(all));
    assert_eq!(keys("p/?keys&separator=").await, serde_json::json!(all));
    let folded = ["p/a", "p/a/", "p/b", "p/c--d--e"].map(|t| w.key(t));
    assert_eq!(keys("p/?keys&separator=/").await, serde_json::json!(folded));
    let dashes = ["p/a", "p/a/x", "p/a/y", "p/b", "p/c--"].map(|t| w.key(t));
    assert_eq!(keys("p/?keys&separator=--").await, serde_json::json!(dashes));
}

async fn k23(w: Wire) {
    for query in ["none/?recurse", "none/?keys", "none/?keys&separator=/"] {
        let reply = w.get(&w.kv(query)).await;
        assert_eq!((reply.status, reply.body.len()), (404, 0), "{query}");
        assert!(reply.index() >= 1, "{query}");
    }
    w.put(&w.kv("p/a"), "x").await;
    assert_eq!(w.get(&w.kv("p/?recurse=false")).await.json().as_array().unwrap().len(), 1);
}

async fn k25(w: Wire) {
    for tail in ["p", "p/a", "pq", "q"] {
        w.put(&w.kv(tail), "x").await;
    }
    w.delete(&w.kv("p?recurse")).await.is(200, "true");
    assert_eq!(w.get(&w.kv("?keys")).await.json(), serde_json::json!([w.key("q")]));
    w.delete(&w.kv("p?recurse")).await.is(200, "true");
}

async fn k26(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    let before = w.get(&w.kv("a")).await.index();
    for sibling in ["b", "aa", "a/b"] {
        w.put(&w.kv(sibling), "x").await;
    }
    assert_eq!(w.get(&w.kv("a")).await.index(), before);
}

async fn k28(w: Wire) {
    let keys = w.get("/v1/kv/?keys").await;
    assert_eq!((keys.status, keys.json()), (200, serde_json::json!([])));
    assert_eq!(w.get("/v1/kv/?recurse").await.status, 404);
}

async fn k29(w: Wire) {
    assert_eq!(w.get(&w.kv("a")).await.index(), 1);
    let watch = w.watch(&w.kv("a"), 1);
    w.put(&w.kv("a"), "x").await;
    let woken = watch.await.unwrap();
    assert_eq!(woken.status, 200);
    assert!(woken.index() > 1);
}

async fn k30(w: Wire) {
    let reply = w.put(&w.kv("a"), "x").await;
    reply.is(200, "true");
    assert_eq!(reply.header("x-consul-index"), None);
    assert!(reply.header("content-type").unwrap().starts_with("application/json"));
}

async fn k31(w: Wire) {
    w.put(&w.kv("a"), "{}").await;
    let reply = w.get(&w.kv("a?raw")).await;
    reply.is(200, "{}");
    assert!(reply.header("content-type").unwrap().starts_with("text/plain"));
    assert_eq!(reply.index(), number(&w.entry("a").await, "ModifyIndex"));
}

async fn k32(w: Wire) {
    assert_eq!(w.get(&w.kv("absent?raw")).await.status, 404);
}

async fn k33(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    for _ in 0..2 {
        w.delete(&w.kv("a")).await.is(200, "true");
    }
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
}

async fn k34(w: Wire) {
    let reply = w.get("/v1/kv").await;
    assert_eq!((reply.status, reply.header("location")), (301, Some("/v1/kv/")));
}

async fn k35(w: Wire) {
    w.put(&w.kv("a%2Fb"), "slash").await.is(200, "true");
    assert_eq!(value(&w.entry("a/b").await), "slash");
    for (path, key) in [("c%20d", "c d"), ("c%25d", "c%d"), ("c%C3%BC", "cü"), ("c+d", "c+d")] {
        w.put(&w.kv(path), "x").await.is(200, "true");
        assert_eq!(w.entry(path).await["Key"], w.key(key));
    }
}

async fn k36(w: Wire) {
    for (tail, text) in [("p/b", "1"), ("p/B", "2"), ("p/a-", "3"), ("p/a", "4"), ("p/a/b", "5")] {
        w.put(&w.kv(tail), text).await;
    }
    let reply = w.get(&w.kv("p/?recurse")).await;
    let list = reply.json();
    let list = list.as_array().unwrap();
    let seen: Vec<String> = list.iter().map(|e| e["Key"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen, ["p/B", "p/a", "p/a-", "p/a/b", "p/b"].map(|t| w.key(t)));
    let values: Vec<String> = list.iter().map(value).collect();
    assert_eq!(values, ["2", "4", "3", "5", "1"]);
    assert_eq!(Some(reply.index()), list.iter().map(|e| number(e, "ModifyIndex")).max());
}

async fn k37(w: Wire) {
    for tail in ["n1", "n1/a", "n10/a"] {
        w.put(&w.kv(tail), "x").await;
    }
    let keys = w.get(&w.kv("n1?keys")).await.json();
    assert_eq!(keys, serde_json::json!(["n1", "n1/a", "n10/a"].map(|t| w.key(t))));
    let keys = w.get(&w.kv("n1/?keys")).await.json();
    assert_eq!(keys, serde_json::json!([w.key("n1/a")]));
}

async fn k38(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    let keys = serde_json::json!([w.key("p/a")]);
    assert_eq!(w.get(&w.kv("p/?keys&recurse&raw")).await.json(), keys);
    let list = w.get(&w.kv("p/?recurse&raw")).await.json();
    assert_eq!(list[0]["Key"], w.key("p/a"));
}

async fn k39(w: Wire) {
    w.put(&w.kv("a?flags=18446744073709551615"), "x").await.is(200, "true");
    assert_eq!(number(&w.entry("a").await, "Flags"), u64::MAX);
    for bad in ["18446744073709551616", "abc", "-1"] {
        assert_eq!(w.put(&w.kv(&format!("b?flags={bad}")), "x").await.status, 500, "{bad}");
    }
    assert_eq!(w.get(&w.kv("b")).await.status, 404);
}

async fn k40(w: Wire) {
    w.put(&w.kv("a?cas=7"), "x").await.is(200, "false");
    assert_eq!(w.get(&w.kv("a")).await.status, 404);
}

async fn k41(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    w.put(&w.kv("p/b"), "x").await;
    w.put(&w.kv("q"), "x").await;
    let newest = number(&w.entry("p/b").await, "ModifyIndex");
    for query in ["p/?recurse", "p/?keys"] {
        assert_eq!(w.get(&w.kv(query)).await.index(), newest, "{query}");
    }
    w.delete(&w.kv("p/a")).await;
    let after_delete = w.get(&w.kv("p/?recurse")).await.index();
    assert!(after_delete > number(&w.entry("q").await, "ModifyIndex"));
}

async fn k42(w: Wire) {
    w.put(&w.kv("p/a"), "x").await;
    w.delete(&w.kv("p/a")).await;
    let emptied = w.get(&w.kv("p/?recurse")).await;
    assert_eq!(emptied.status, 404);
    w.put(&w.kv("q"), "x").await;
    assert!(emptied.index() < number(&w.entry("q").await, "ModifyIndex"));
    assert_eq!(w.get(&w.kv("p/?recurse")).await.index(), emptied.index());
}

async fn k43(w: Wire) {
    let bytes: Vec<u8> = (0..=255).collect();
    w.put(&w.kv("a"), &bytes).await;
    assert_eq!(w.get(&w.kv("a?raw")).await.body, bytes);
}

async fn k44(w: Wire) {
    w.put(&w.kv("a"), "x").await;
    for query in ["a", "absent", "?recurse", "?keys", "a?stale", "a?consistent"] {
        let reply = w.get(&w.kv(query)).await;
        assert_eq!(reply.header("x-consul-knownleader"), Some("true"), "{query}");
        assert_eq!(reply.header("x-consul-lastcontact"), Some("0"), "{query}");
    }
}
