//! Keys and prefixes.

use bytes::Bytes;
use rcfarm_store::{Consistency, DeleteMode, Index, PutMode, Query, RetryVerdict, StoreError};

use super::super::cases;
use super::{Case, Port, key, prefix, text};

pub const CASES: &[Case<Port>] = cases! {
    pK01 Shared "a new entry's indexes are equal, and the answer's index is the entry's" => created;
    pK02 Shared "another value moves the modify index alone" => changed;
    pK04 Shared "flags count as a change" => flags;
    pK05 Shared "an empty value is empty" => empty_value;
    pK07 Shared "an absent key is none, with an index" => absent;
    pK08 Shared "a value that is too large is an error, and not applied" => too_large;
    pK14 Shared "cas 0 creates once" => cas_creates;
    pK16 Shared "cas with the same value keeps the index" => cas_same_value;
    pK19 Shared "delete by index: 0 and wrong are refused, right and absent are not" => delete_cas;
    pK20 Shared "a key created again has a higher create index" => recreated;
    pK22 Shared "keys are folded after the separator, below the root" => folded;
    pK23 Shared "nothing below a prefix is an empty list with an index" => nothing_below;
    pK25 Shared "deleting a tree spares its neighbours, and may find nothing" => delete_tree;
    pK26 Shared "a key's index is not moved by its siblings" => siblings;
    pK36 Shared "a list is in byte order, with values, below the root" => ordered;
    pK37 Shared "a prefix ends at its slash" => whole_segments;
    pK39 Shared "flags keep 64 bits" => all_flags;
    pK40 Shared "cas with an index on an absent key is refused" => cas_absent;
    pK41 Shared "the index of a prefix is the newest change under it" => prefix_index;
    pK42 Shared "an emptied prefix keeps the index of its last delete" => emptied;
    pK43 Shared "bytes come back as they were" => bytes;
    pK44 Shared "every consistency reads what was written" => consistencies;
    pK45 Shared "a delete is true for present and absent alike" => delete;
    pK46 Shared "writing the same value keeps the index" => same_value;
    pK47 Shared "every character that keys may have" => alphabet;
};

async fn created(p: Port) {
    p.set("a", "one").await;
    let answer = p.read("a").await;
    let entry = answer.value.unwrap();
    assert_eq!((entry.key.as_str(), text(&entry)), ("a", "one"));
    assert_eq!(entry.create_index, entry.modify_index);
    assert_eq!(answer.index, entry.modify_index);
    assert_eq!((entry.flags, entry.lock_index, entry.session), (0, 0, None));
    assert!(!answer.filtered);
}

async fn changed(p: Port) {
    p.set("a", "one").await;
    let before = p.entry("a").await;
    p.set("a", "two").await;
    let after = p.entry("a").await;
    assert_eq!((text(&after), after.create_index), ("two", before.create_index));
    assert!(after.modify_index > before.modify_index);
}

async fn flags(p: Port) {
    p.set("a", "x").await;
    let before = p.entry("a").await;
    assert!(p.store.put(&key("a"), Bytes::from_static(b"x"), 42, PutMode::Set).await.unwrap());
    let after = p.entry("a").await;
    assert_eq!(after.flags, 42);
    assert!(after.modify_index > before.modify_index);
    p.set("a", "x").await;
    assert_eq!(p.entry("a").await.flags, 0);
}

async fn empty_value(p: Port) {
    p.set("a", "").await;
    assert!(p.entry("a").await.value.is_empty());
}

async fn absent(p: Port) {
    let answer = p.read("absent").await;
    assert_eq!(answer.value, None);
    assert!(answer.index >= Index(1));
}

async fn too_large(p: Port) {
    let largest = Bytes::from(vec![b'x'; 512 * 1024]);
    assert!(p.store.put(&key("a"), largest.clone(), 0, PutMode::Set).await.unwrap());
    assert_eq!(p.entry("a").await.value, largest);
    let more = Bytes::from(vec![b'x'; 512 * 1024 + 1]);
    let error = p.store.put(&key("b"), more, 0, PutMode::Set).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    assert_eq!(error.verdict(), RetryVerdict::NotApplied);
    assert!(!p.exists("b").await);
}

async fn cas_creates(p: Port) {
    assert!(p.put("a", "one", PutMode::Cas(Index::ZERO)).await);
    assert!(!p.put("a", "two", PutMode::Cas(Index::ZERO)).await);
    assert_eq!(text(&p.entry("a").await), "one");
}

async fn cas_same_value(p: Port) {
    p.set("a", "one").await;
    let index = p.entry("a").await.modify_index;
    for _ in 0..2 {
        assert!(p.put("a", "one", PutMode::Cas(index)).await);
        assert_eq!(p.entry("a").await.modify_index, index);
    }
    assert!(p.put("a", "two", PutMode::Cas(index)).await);
    assert!(!p.put("a", "three", PutMode::Cas(index)).await);
    assert_eq!(text(&p.entry("a").await), "two");
}

async fn delete_cas(p: Port) {
    p.set("a", "x").await;
    let index = p.entry("a").await.modify_index;
    let delete =
        async |name: &str, index| p.store.delete(&key(name), DeleteMode::Cas(index)).await.unwrap();
    assert!(!delete("a", Index::ZERO).await);
    assert!(!delete("a", Index(index.0 + 1)).await);
    assert!(delete("a", index).await);
    assert!(!p.exists("a").await);
    assert!(delete("a", Index(7)).await);
}

async fn recreated(p: Port) {
    p.set("a", "x").await;
    let first = p.entry("a").await;
    assert!(p.store.delete(&key("a"), DeleteMode::Always).await.unwrap());
    p.set("a", "x").await;
    assert!(p.entry("a").await.create_index > first.create_index);
}

async fn folded(p: Port) {
    for name in ["p/a", "p/a/x", "p/a/y", "p/b", "q"] {
        p.set(name, "x").await;
    }
    assert_eq!(p.keys("p", None).await, ["p/a", "p/a/x", "p/a/y", "p/b"]);
    assert_eq!(p.keys("p", Some("/")).await, ["p/a", "p/a/", "p/b"]);
    assert_eq!(p.keys("", Some("/")).await, ["p/", "q"]);
}

async fn nothing_below(p: Port) {
    let list = p.list("none").await;
    assert_eq!(list.value, []);
    assert!(list.index >= Index(1));
    assert!(p.keys("none", None).await.is_empty());
}

async fn delete_tree(p: Port) {
    for name in ["p/a", "p/b/c", "pq", "p1/a"] {
        p.set(name, "x").await;
    }
    for _ in 0..2 {
        p.store.delete_tree(&prefix("p")).await.unwrap();
        assert_eq!(p.keys("", None).await, ["p1/a", "pq"]);
    }
}

async fn siblings(p: Port) {
    p.set("a", "x").await;
    let before = p.read("a").await.index;
    for name in ["b", "aa", "a/b"] {
        p.set(name, "x").await;
    }
    assert_eq!(p.read("a").await.index, before);
}

async fn ordered(p: Port) {
    for (name, value) in [("p/b", "1"), ("p/B", "2"), ("p/a-", "3"), ("p/a", "4"), ("p/a/b", "5")] {
        p.set(name, value).await;
    }
    let list = p.list("p").await;
    let seen: Vec<(&str, &str)> = list.value.iter().map(|e| (e.key.as_str(), text(e))).collect();
    assert_eq!(seen, [("p/B", "2"), ("p/a", "4"), ("p/a-", "3"), ("p/a/b", "5"), ("p/b", "1")]);
    assert_eq!(Some(list.index), list.value.iter().map(|e| e.modify_index).max());
}

async fn whole_segments(p: Port) {
    for name in ["n1/a", "n10/a", "n1"] {
        p.set(name, "x").await;
    }
    assert_eq!(p.keys("n1", None).await, ["n1/a"]);
}

async fn all_flags(p: Port) {
    assert!(p.store.put(&key("a"), Bytes::new(), u64::MAX, PutMode::Set).await.unwrap());
    assert_eq!(p.entry("a").await.flags, u64::MAX);
}

async fn cas_absent(p: Port) {
    assert!(!p.put("a", "x", PutMode::Cas(Index(7))).await);
    assert!(!p.exists("a").await);
}

async fn prefix_index(p: Port) {
    p.set("p/a", "x").await;
    p.set("p/b", "x").await;
    p.set("q", "x").await;
    assert_eq!(p.list("p").await.index, p.entry("p/b").await.modify_index);
    p.store.delete(&key("p/a"), DeleteMode::Always).await.unwrap();
    assert!(p.list("p").await.index > p.entry("q").await.modify_index);
}

async fn emptied(p: Port) {
    p.set("p/a", "x").await;
    p.store.delete_tree(&prefix("p")).await.unwrap();
    let emptied = p.list("p").await;
    assert_eq!(emptied.value, []);
    p.set("q", "x").await;
    assert_eq!(p.list("p").await.index, emptied.index);
    assert!(emptied.index < p.entry("q").await.modify_index);
}

async fn bytes(p: Port) {
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    assert!(p.store.put(&key("a"), all.clone(), 0, PutMode::Set).await.unwrap());
    assert_eq!(p.entry("a").await.value, all);
}

async fn consistencies(p: Port) {
    p.set("a", "x").await;
    let plain = p.read("a").await;
    for consistency in [Consistency::Leader, Consistency::Consistent, Consistency::Stale] {
        let query = Query { consistency, wait: None };
        assert_eq!(p.store.get(&key("a"), query).await.unwrap(), plain, "{consistency:?}");
        assert_eq!(
            p.store.list(&prefix(""), query).await.unwrap().value.len(),
            1,
            "{consistency:?}"
        );
        assert_eq!(
            p.store.keys(&prefix(""), None, query).await.unwrap().value,
            ["a"],
            "{consistency:?}"
        );
    }
}

async fn delete(p: Port) {
    p.set("a", "x").await;
    for _ in 0..2 {
        assert!(p.store.delete(&key("a"), DeleteMode::Always).await.unwrap());
        assert!(!p.exists("a").await);
    }
}

async fn same_value(p: Port) {
    p.set("a", "x").await;
    let before = p.entry("a").await;
    p.set("a", "x").await;
    assert_eq!(p.entry("a").await, before);
}

async fn alphabet(p: Port) {
    let name = "AZaz09_.,-/-_/Z.,";
    p.set(name, "x").await;
    assert_eq!(p.entry(name).await.key, name);
    assert_eq!(p.keys("", None).await, [name]);
}
