//! Blocking reads.
//!
//! To show that a write does not wake a watch, a second write that wakes it follows; the answer must be of the second.

use std::time::{Duration, Instant};

use rcfarm_store::watch::TreeWatch;
use rcfarm_store::{BlockingWait, Consistency, DeleteMode, Index, PutMode, Query};

use super::super::cases;
use super::{Case, MOMENT, Port, key, prefix, set, text, wait};

pub const CASES: &[Case<Port>] = cases! {
    pB01 Shared "0 and an older index answer at once" => at_once;
    pB02 Shared "the current index waits; a change wakes" => wakes;
    pB04 Shared "a delete wakes" => delete_wakes;
    pB05 Shared "the creation of an absent key wakes" => creation_wakes;
    pB07 Shared "the last delete under a prefix wakes with nothing" => last_delete_wakes;
    pB08 Shared "keys wakes on a change of a value alone" => keys_wake;
    pB11 Shared "a wait that ends answers unchanged" => wait_ends;
    pB16 Shared "of many rapid writes the last one is always seen" => rapid_writes;
    pB17 Shared "a transaction on two keys is one change" => one_change;
    pB30 Shared "the same value, a refused cas and a refused transaction wake nobody" => no_wake;
    pB32 Shared "siblings and keys below a key do not wake it" => neighbours;
    pB33 Shared "a prefix wakes on create, update, delete and delete of a tree inside" => prefix_wakes;
    pB34 Shared "a prefix with keys does not wake on writes outside" => outside;
    pB35 Shared "acquire, release and the end of the session wake the key's watch" => locks_wake;
    pB37 Shared "an index beyond the present one waits, and the answer has the real one" => beyond;
    pB39 Shared "a wait of no length answers soon" => no_length;
    pB40 Shared "every consistency waits" => consistencies;
    pB50 Shared "a tree watch follows a tree from nothing to nothing" => tree_watch;
    pB51 Shared "a large tree that is read in parts is seen as it is" => large_tree;
    pB52 Shared "so is one of long values, of which only those that changed are read" => large_values;
    pB53 Shared "and one of a hundred, which are asked for that" => hundred_values;
};

async fn at_once(p: Port) {
    p.set("a", "x").await;
    let now = p.read("a").await;
    for old in [Index::ZERO, Index(1), Index(now.index.0 - 1)] {
        assert_eq!(p.store.get(&key("a"), wait(old)).await.unwrap(), now, "{old}");
    }
}

async fn wakes(p: Port) {
    p.set("a", "x").await;
    let index = p.read("a").await.index;
    let watch = p.watch("a", index).await;
    assert!(!watch.is_finished());
    p.set("a", "y").await;
    let woken = watch.await.unwrap();
    assert!(woken.index > index);
    assert_eq!(text(&woken.value.unwrap()), "y");
}

async fn delete_wakes(p: Port) {
    p.set("a", "x").await;
    let index = p.read("a").await.index;
    let watch = p.watch("a", index).await;
    assert!(p.store.delete(&key("a"), DeleteMode::Always).await.unwrap());
    let woken = watch.await.unwrap();
    assert_eq!(woken.value, None);
    assert!(woken.index > index);
}

async fn creation_wakes(p: Port) {
    // Writes nearby also wake a read of an absent key, so it reads again.
    let mut seen = p.read("a").await;
    let watcher = {
        let p = p.clone();
        tokio::spawn(async move {
            while seen.value.is_none() {
                seen = p.store.get(&key("a"), wait(seen.index)).await.unwrap();
            }
            seen
        })
    };
    tokio::time::sleep(MOMENT).await;
    p.set("a", "x").await;
    let woken = watcher.await.unwrap();
    assert_eq!(woken.index, woken.value.unwrap().create_index);
}

async fn last_delete_wakes(p: Port) {
    p.set("p/a", "x").await;
    let index = p.list("p").await.index;
    let watch = p.watch_list("p", index).await;
    assert!(p.store.delete(&key("p/a"), DeleteMode::Always).await.unwrap());
    let woken = watch.await.unwrap();
    assert_eq!(woken.value, []);
    assert!(woken.index > index);
}

async fn keys_wake(p: Port) {
    p.set("p/a/b", "x").await;
    let index = p.list("p").await.index;
    let watch = {
        let p = p.clone();
        tokio::spawn(
            async move { p.store.keys(&prefix("p"), Some("/"), wait(index)).await.unwrap() },
        )
    };
    tokio::time::sleep(MOMENT).await;
    p.set("p/a/b", "y").await;
    let woken = watch.await.unwrap();
    assert!(woken.index > index);
    assert_eq!(woken.value, ["p/a/"]);
}

async fn wait_ends(p: Port) {
    p.set("a", "x").await;
    let now = p.read("a").await;
    let at_most = Duration::from_millis(500);
    let from = Instant::now();
    let same = p.store.get(&key("a"), Query::after(now.index, at_most)).await.unwrap();
    assert!(from.elapsed() >= at_most, "{:?}", from.elapsed());
    assert_eq!(same, now);
    let list = p.list("").await;
    let same = p.store.list(&prefix(""), Query::after(list.index, at_most)).await.unwrap();
    assert_eq!(same, list);
}

async fn rapid_writes(p: Port) {
    p.set("a", "0").await;
    let watcher = {
        let p = p.clone();
        tokio::spawn(async move {
            let mut index = Index(1);
            loop {
                let answer = p.store.get(&key("a"), wait(index)).await.unwrap();
                assert!(answer.index >= index);
                index = answer.index;
                if text(&answer.value.unwrap()) == "200" {
                    return;
                }
            }
        })
    };
    for n in 1..=200 {
        p.set("a", &n.to_string()).await;
    }
    watcher.await.unwrap();
}

async fn one_change(p: Port) {
    p.set("p/a", "x").await;
    p.set("p/b", "x").await;
    let index = p.list("p").await.index;
    let watch = p.watch_list("p", index).await;
    let _ = p.store.txn(&[set("p/a", "y"), set("p/b", "y")]).await.unwrap();
    let woken = watch.await.unwrap();
    assert!(
        woken.value.iter().all(|e| text(e) == "y" && e.modify_index == woken.index),
        "{woken:?}"
    );
}

async fn no_wake(p: Port) {
    p.set("a", "x").await;
    let index = p.read("a").await.index;
    let watch = p.watch("a", index).await;
    p.set("a", "x").await;
    assert!(!p.put("a", "y", PutMode::Cas(Index(1))).await);
    let refused = [set("a", "y"), rcfarm_store::Op::Get { key: key("absent") }];
    let _ = p.store.txn(&refused).await.unwrap();
    tokio::time::sleep(MOMENT).await;
    p.set("a", "z").await;
    let woken = watch.await.unwrap();
    assert!(woken.index > index);
    assert_eq!(text(&woken.value.unwrap()), "z");
}

async fn neighbours(p: Port) {
    p.set("a", "x").await;
    let index = p.read("a").await.index;
    let watch = p.watch("a", index).await;
    for name in ["b", "a/b", "aa"] {
        p.set(name, "x").await;
    }
    tokio::time::sleep(MOMENT).await;
    p.set("a", "y").await;
    assert!(watch.await.unwrap().index > index);
}

async fn prefix_wakes(p: Port) {
    p.set("p/_", "x").await;
    for (step, keys) in [("create", 2), ("update", 2), ("delete", 1), ("tree", 0)] {
        let index = p.list("p").await.index;
        let watch = p.watch_list("p", index).await;
        match step {
            "delete" => assert!(p.store.delete(&key("p/a"), DeleteMode::Always).await.unwrap()),
            "tree" => p.store.delete_tree(&prefix("p")).await.unwrap(),
            _ => p.set("p/a", step).await,
        }
        let woken = watch.await.unwrap();
        assert!(woken.index > index, "{step}");
        assert_eq!(woken.value.len(), keys, "{step}");
    }
}

async fn outside(p: Port) {
    p.set("p/a", "x").await;
    let index = p.list("p").await.index;
    let watch = p.watch_list("p", index).await;
    p.set("q/a", "x").await;
    p.store.delete_tree(&prefix("q")).await.unwrap();
    p.store.delete(&key("p/absent"), DeleteMode::Always).await.unwrap();
    tokio::time::sleep(MOMENT).await;
    p.set("p/a", "y").await;
    assert!(watch.await.unwrap().index > index);
}

async fn locks_wake(p: Port) {
    let s = p.session_with(Default::default()).await;
    p.set("a", "x").await;
    for (step, holder) in [("acquire", true), ("release", false), ("acquire", true), ("end", false)]
    {
        let index = p.read("a").await.index;
        let watch = p.watch("a", index).await;
        match step {
            "acquire" => assert!(p.put("a", "x", PutMode::Acquire(s.clone())).await),
            "release" => assert!(p.put("a", "x", PutMode::Release(s.clone())).await),
            _ => p.end(&s).await,
        }
        let woken = watch.await.unwrap();
        assert!(woken.index > index, "{step}");
        assert_eq!(woken.value.and_then(|e| e.session).is_some(), holder, "{step}");
    }
}

async fn beyond(p: Port) {
    p.set("a", "x").await;
    let now = p.read("a").await;
    let at_most = Duration::from_millis(300);
    let from = Instant::now();
    let later = Index(now.index.0 + 1_000_000);
    assert_eq!(p.store.get(&key("a"), Query::after(later, at_most)).await.unwrap(), now);
    assert!(from.elapsed() >= at_most, "{:?}", from.elapsed());
}

async fn no_length(p: Port) {
    p.set("a", "x").await;
    let now = p.read("a").await;
    let query = Query::after(now.index, Duration::ZERO);
    assert_eq!(p.store.get(&key("a"), query).await.unwrap(), now);
}

async fn consistencies(p: Port) {
    p.set("a", "0").await;
    for (n, consistency) in
        [Consistency::Leader, Consistency::Consistent, Consistency::Stale].into_iter().enumerate()
    {
        let after = p.read("a").await.index;
        let query = Query {
            consistency,
            wait: Some(BlockingWait { after, at_most: Duration::from_secs(60) }),
        };
        let watch = {
            let p = p.clone();
            tokio::spawn(async move { p.store.get(&key("a"), query).await.unwrap() })
        };
        tokio::time::sleep(MOMENT).await;
        p.set("a", &(n + 1).to_string()).await;
        assert!(watch.await.unwrap().index > after, "{consistency:?}");
    }
}

async fn tree_watch(p: Port) {
    let reader: std::sync::Arc<dyn rcfarm_store::Reader> = p.store.clone();
    let mut watch = TreeWatch::new(reader, prefix("p"), Duration::from_secs(300));
    assert_eq!(watch.next().await.unwrap().value, []);
    let writer = {
        let p = p.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                p.set(&format!("p/{n:02}"), "x").await;
            }
        })
    };
    while watch.next().await.unwrap().value.len() < 20 {}
    writer.await.unwrap();
    p.store.delete_tree(&prefix("p")).await.unwrap();
    while !watch.next().await.unwrap().value.is_empty() {}
}

/// Waits until the watch shows all entries. Returns the number of entries that it read last.
async fn catches_up(p: &Port, watch: &mut TreeWatch, what: &str) -> usize {
    let wanted = p.list("p").await.value;
    loop {
        let answer = watch.next().await.unwrap();
        if answer.value == wanted {
            return watch.transferred().entries;
        }
        assert!(answer.index < wanted.iter().map(|e| e.modify_index).max().unwrap(), "{what}");
    }
}

async fn large_tree(p: Port) {
    follow(p, 300, "x", 100).await;
}

/// Only changed values are read.
async fn large_values(p: Port) {
    follow(p, 300, &"x".repeat(2_000), 1).await;
}

/// Small prefixes are not divided.
async fn hundred_values(p: Port) {
    follow(p, 100, &"x".repeat(2_000), 1).await;
}

/// At most `most` entries are read per change.
async fn follow(p: Port, keys: usize, value: &str, most: usize) {
    let name = |n: usize| format!("p/{:08x}", (n as u32).wrapping_mul(0x9e37_79b9));
    for n in 0..keys {
        p.set(&name(n), value).await;
    }
    let reader: std::sync::Arc<dyn rcfarm_store::Reader> = p.store.clone();
    let mut watch = TreeWatch::new(reader, prefix("p"), Duration::from_secs(300));
    assert_eq!(catches_up(&p, &mut watch, "at first").await, keys);
    for n in 0..20 {
        p.set(&name(n * 7 % keys), &format!("edited {n} {value}")).await;
        let read = catches_up(&p, &mut watch, "an edit").await;
        assert!(read <= most, "{read} entries for one edit");
    }
    p.set("p/new", "x").await;
    let read = catches_up(&p, &mut watch, "a new key").await;
    assert!(read <= most, "{read} entries for a new key");
    p.set("p/new/below", "x").await;
    catches_up(&p, &mut watch, "a key below a key").await;
    let session = p.session().await;
    assert!(p.put(&name(3), "held", PutMode::Acquire(session.clone())).await);
    catches_up(&p, &mut watch, "a lock").await;
    // The last change is a delete.
    for (n, deleted) in [name(3), name(5), "p/new".to_owned()].iter().enumerate() {
        assert!(p.store.delete(&key(deleted), DeleteMode::Always).await.unwrap());
        while watch.next().await.unwrap().value.len() != p.list("p").await.value.len() {}
        p.set(&name(20 + n), "edited after it").await;
        catches_up(&p, &mut watch, "what came after").await;
    }
    p.end(&session).await;
    let count = async || p.list("p").await.value.len();
    let before = count().await;
    for n in 0..10 {
        p.set(&format!("p/within/{n}"), "x").await;
    }
    catches_up(&p, &mut watch, "a tree within it").await;
    assert_eq!(count().await, before + 10);
    p.store.delete_tree(&prefix("p/within")).await.unwrap();
    p.set(&name(9), "edited").await;
    catches_up(&p, &mut watch, "that tree's end").await;
    assert_eq!(count().await, before);
    p.store.delete_tree(&prefix("p")).await.unwrap();
    while !watch.next().await.unwrap().value.is_empty() {}
}
