//! Indexes of entries and answers (`consul-semantics.md` §1.4, §2, §4.1).

use super::*;

async fn index_of(c: &Emulator, p: &str) -> Index {
    c.list(&prefix(p), Query::PLAIN).await.unwrap().index
}

#[tokio::test(start_paused = true)]
async fn write_of_the_same_value_takes_an_index_but_changes_nothing() {
    let c = consul();
    let first = set(&c, "k", "v").await;
    assert_eq!(first.create_index, first.modify_index);
    let before = raft_index(&c);
    assert_eq!(set(&c, "k", "v").await, first);
    assert_eq!(raft_index(&c), Index(before.0 + 1));
    assert!(c.put(&key("k"), value("v"), 0, PutMode::Cas(first.modify_index)).await.unwrap());
    assert!(c.put(&key("k"), value("v"), 7, PutMode::Cas(first.modify_index)).await.unwrap());
    let flagged = get(&c, "k").await.unwrap();
    assert_eq!(flagged.create_index, first.create_index);
    assert!(flagged.modify_index > first.modify_index);
}

#[tokio::test(start_paused = true)]
async fn a_plain_write_keeps_the_holder_and_resets_the_lock_index() {
    let c = consul();
    let s = session(&c, &plain()).await;
    assert!(acquire(&c, "k", &s).await);
    let held = get(&c, "k").await.unwrap();
    assert_eq!((held.lock_index, held.session.as_ref()), (1, Some(&s)));
    assert!(acquire(&c, "k", &s).await);
    assert_eq!(get(&c, "k").await.unwrap(), held, "the holder again, with the same value");
    let written = set(&c, "k", "data").await;
    assert_eq!((written.lock_index, written.session), (0, Some(s.clone())));
    assert!(release(&c, "k", "", &s).await);
    let freed = get(&c, "k").await.unwrap();
    assert_eq!((freed.lock_index, freed.session, freed.value), (0, None, Bytes::new()));
    assert!(!release(&c, "k", "", &s).await);
    assert!(acquire(&c, "k", &s).await);
    assert_eq!(get(&c, "k").await.unwrap().lock_index, 1);
}

#[tokio::test(start_paused = true)]
async fn absent_key_has_the_index_of_the_table() {
    let c = consul();
    assert_eq!(c.get(&key("k"), Query::PLAIN).await.unwrap().index, Index(1), "virgin store");
    let a = set(&c, "a", "1").await.modify_index;
    assert_eq!(c.get(&key("k"), Query::PLAIN).await.unwrap().index, a);
    assert_eq!(index_of(&c, "none").await, a);
    let b = set(&c, "b", "1").await.modify_index;
    assert_eq!(c.get(&key("k"), Query::PLAIN).await.unwrap().index, b);
    assert_eq!(c.get(&key("a"), Query::PLAIN).await.unwrap().index, a, "not moved by a sibling");
    assert_eq!(index_of(&c, "").await, b);
}

#[tokio::test(start_paused = true)]
async fn emptied_prefix_keeps_its_index_until_tombstone_reap() {
    let c = consul();
    set(&c, "p/a", "1").await;
    c.delete_tree(&prefix("p")).await.unwrap();
    let emptied = index_of(&c, "p").await;
    let outside = set(&c, "q", "1").await.modify_index;
    assert!(emptied < outside);
    assert_eq!(index_of(&c, "p").await, emptied);
    tokio::time::sleep(Duration::from_secs(14 * 60)).await;
    assert_eq!(index_of(&c, "p").await, emptied);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(index_of(&c, "p").await, outside, "from now on table-wide");
}

/// Measured on 1.8.7: a deleted tree leaves one tombstone with the tree's prefix. A longer prefix does not match it. Its
/// index then comes from an older tombstone and decreases, so a watch of the longer prefix does not wake.
#[tokio::test(start_paused = true)]
async fn deletion_of_a_wider_tree_may_wake_no_watch() {
    let c = consul();
    set(&c, "p/a/old", "1").await;
    c.delete(&key("p/a/old"), rcfarm_store::DeleteMode::Always).await.unwrap();
    let before = index_of(&c, "p/a").await;
    let live = set(&c, "p/a/new", "1").await.modify_index;
    assert_eq!(index_of(&c, "p/a").await, live);
    let start = tokio::time::Instant::now();
    let watch = tokio::spawn({
        let c = c.clone();
        async move { c.list(&prefix("p/a"), Query::after(live, 30 * SEC)).await.unwrap() }
    });
    tokio::time::sleep(SEC).await;
    c.delete_tree(&prefix("p")).await.unwrap();
    let answer = watch.await.unwrap();
    assert!(start.elapsed() >= 30 * SEC);
    assert_eq!((answer.value, answer.index), (Vec::new(), before), "told at the end of the wait");
}

#[tokio::test(start_paused = true)]
async fn prefix_index_falls_after_its_newest_delete_is_reaped() {
    let c = consul();
    let live = set(&c, "p/a", "1").await.modify_index;
    set(&c, "p/b", "1").await;
    c.delete(&key("p/b"), rcfarm_store::DeleteMode::Always).await.unwrap();
    assert!(index_of(&c, "p").await > live);
    tokio::time::sleep(Duration::from_secs(16 * 60)).await;
    assert_eq!(index_of(&c, "p").await, live);
}

#[tokio::test(start_paused = true)]
async fn only_applied_writes_take_an_index() {
    let c = consul();
    let new = NewSession { lock_delay: 15 * SEC, ttl: Some(10 * SEC), ..plain() };
    let s = session(&c, &new).await;
    assert!(acquire(&c, "k", &s).await);
    let at = async |c: &Emulator| raft_index(c).0;

    let mut last = at(&c).await;
    let mut took = async |c: &Emulator, what: &str, expected: u64| {
        let now = at(c).await;
        assert_eq!(now - last, expected, "{what}");
        last = now;
    };
    assert!(!c.put(&key("k"), value("v"), 0, PutMode::Cas(Index(3))).await.unwrap());
    took(&c, "a failed cas", 1).await;
    let _ = c.txn(&[Op::CheckNotExists { key: key("k") }, Op::Delete { key: key("k") }]).await;
    took(&c, "a refused transaction", 1).await;
    c.delete(&key("none"), rcfarm_store::DeleteMode::Always).await.unwrap();
    took(&c, "a delete of nothing", 1).await;
    let _ = c.txn(&[Op::Get { key: key("k") }]).await;
    took(&c, "a transaction that only reads", 0).await;
    assert!(c.renew_session(&s).await.unwrap());
    took(&c, "a renewal", 0).await;
    c.destroy_session(&s).await.unwrap();
    took(&c, "the end of a session", 1).await;
    let other = session(&c, &plain()).await;
    took(&c, "a session", 1).await;
    assert!(!acquire(&c, "k", &other).await);
    took(&c, "an acquisition refused by lock-delay", 0).await;
}

#[tokio::test(start_paused = true)]
async fn transaction_is_all_or_nothing_and_sees_its_own_operations() {
    let c = consul();
    let old = set(&c, "k", "old").await;
    let set_new = Op::Set { key: key("k"), value: value("new"), flags: 0 };
    let get_k = Op::Get { key: key("k") };
    let ops = [get_k.clone(), set_new.clone(), get_k.clone()];
    let TxnOutcome::Committed { index, entries } = c.txn(&ops).await.unwrap() else { panic!() };
    let values: Vec<_> = entries.iter().map(|e| e.value.clone()).collect();
    assert_eq!(values, [value("old"), Bytes::new(), value("new")]);
    assert!(index > old.modify_index);

    let before = c.snapshot();
    let gone = Op::CheckNotExists { key: key("k") };
    let stale = Op::Cas { key: key("k"), value: value("x"), flags: 0, index: Index(1) };
    let ops = [gone, Op::DeleteTree { prefix: prefix("") }, get_k, stale, set_new];
    let TxnOutcome::Refused(refusals) = c.txn(&ops).await.unwrap() else { panic!() };
    assert_eq!(refusals.iter().map(|r| r.op).collect::<Vec<_>>(), [0, 2, 3]);
    let after = c.snapshot();
    assert_eq!(after.kv, before.kv);
    assert_eq!(after.index, Index(before.index.0 + 1));
}

#[tokio::test(start_paused = true)]
async fn delete_and_create_in_one_transaction_makes_a_new_key() {
    let c = consul();
    let old = set(&c, "k", "v").await;
    let cas = |index| Op::Cas { key: key("k"), value: value("v"), flags: 0, index };
    let TxnOutcome::Committed { index, .. } =
        c.txn(&[Op::Delete { key: key("k") }, cas(Index::ZERO)]).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(get(&c, "k").await.unwrap().create_index, index);
    assert!(index > old.create_index);
}

#[tokio::test(start_paused = true)]
async fn limits() {
    let c = consul();
    let get_k = Op::Get { key: key("k") };
    assert!(c.txn(&vec![get_k.clone(); 64]).await.is_ok());
    assert!(matches!(c.txn(&vec![get_k; 65]).await, Err(StoreError::TooLarge { .. })));
    let full = Bytes::from(vec![0; MAX_VALUE]);
    assert!(c.put(&key("k"), full, 0, PutMode::Set).await.unwrap());
    let over = Bytes::from(vec![0; MAX_VALUE + 1]);
    let refused = c.put(&key("k"), over, 0, PutMode::Set).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    let large = Op::Set { key: key("k"), value: Bytes::from(vec![0; 393_216]), flags: 0 };
    assert!(matches!(c.txn(&[large]).await, Err(StoreError::TooLarge { .. })));
}

#[tokio::test(start_paused = true)]
async fn keys_fold_at_a_separator() {
    let c = consul();
    for k in ["p/a", "p/a/x", "p/a/y", "p/b", "pq"] {
        set(&c, k, "1").await;
    }
    let folded = c.keys(&prefix("p"), Some("/"), Query::PLAIN).await.unwrap().value;
    assert_eq!(folded, ["p/a", "p/a/", "p/b"]);
    let all = c.keys(&prefix("p"), None, Query::PLAIN).await.unwrap().value;
    assert_eq!(all, ["p/a", "p/a/x", "p/a/y", "p/b"]);
    assert_eq!(c.inspect(|t| t.kv.keys("p", Some(""))).len(), 5, "a string prefix");
}
