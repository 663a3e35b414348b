//! Transactions.

use bytes::Bytes;
use rcfarm_api::ids::SessionId;
use rcfarm_store::{
    DeleteMode, Entry, Index, NewSession, Op, PutMode, Question, StoreError, Txn, TxnLimits,
    TxnOutcome,
};

use super::super::cases;
use super::{Case, Port, cas, key, prefix, set, text};

pub const CASES: &[Case<Port>] = cases! {
    pT01 Shared "no operations commit nothing" => nothing;
    pT02 Shared "two sets share one index, and return entries without values" => two_sets;
    pT04 Shared "a body that is too large is an error" => too_large;
    pT07 Shared "every operation that fails is named, and nothing is applied" => all_refusals;
    pT08 Shared "operations see those before them" => in_order;
    pT10 Shared "trees are flattened; deletes and check-not-exists return nothing" => flattened;
    pT11 Shared "cas: 0 creates; existing, stale and absent are refused" => cas_modes;
    pT13 Shared "lock: again by its holder, not by another" => lock;
    pT14 Shared "lock for a session that is gone is refused" => lock_gone;
    pT16 Shared "unlock: only the holder, only once, only what exists" => unlock;
    pT17 Shared "the fence: applied only while the session holds the lock" => fence;
    pT19 Shared "delete and delete-cas: absent is fine, stale and 0 are not" => deletes;
    pT20 Shared "set, delete and create one key: a new create index" => recreate;
    pT23 Shared "setting the same value keeps the key's index, not the transaction's" => same_value;
    pT30 Shared "64 operations pass, 65 are too many" => operations;
    pT31 Shared "check-index: right, wrong, absent" => check_index;
    pT32 Shared "check-session with none means unlocked" => check_unlocked;
    pT33 Shared "check-not-exists sees what came before" => check_not_exists;
    pT34 Shared "get returns the value, and is refused on an absent key" => get;
    pT35 Shared "delete-tree ends at its slash" => delete_tree;
    pT36 Shared "set keeps a holder and resets the lock index" => set_locked;
    pT38 Shared "lock and unlock return the entry with its session" => lock_entries;
    pT39 Shared "a refused transaction moves no index" => refused_moves_nothing;
    pT40 Shared "flags are set" => flags;
    pT41 Shared "lock is refused during a lock-delay" => lock_delay;
    pT43 Shared "what fits the limits by our count is never too large" => fits;
    pT44 Shared "the index of a transaction that only checks and deletes is 0" => no_entry;
    pT45 Shared "entries are named below the root" => prefixed;
    pT47 Shared "a transaction that changes nothing names the index that its keys have" => changes_nothing;
    pT46 Shared "a read-only transaction commits at 0" => read_only;
    pT48 Shared "questions are answered at one moment, and nothing moves" => questions;
};

impl Port {
    async fn commit(&self, ops: &[Op]) -> (Index, Vec<Entry>) {
        match self.store.txn(ops).await.unwrap() {
            TxnOutcome::Committed { index, entries } => (index, entries),
            TxnOutcome::Refused(refusals) => panic!("refused: {refusals:?}"),
        }
    }

    /// Indexes of the refused operations.
    async fn refused(&self, ops: &[Op]) -> Vec<usize> {
        match self.store.txn(ops).await.unwrap() {
            TxnOutcome::Refused(refusals) => {
                assert!(refusals.iter().all(|r| !r.what.is_empty()), "{refusals:?}");
                refusals.iter().map(|r| r.op).collect()
            }
            committed => panic!("{committed:?}"),
        }
    }
}

fn lock_op(name: &str, session: &SessionId) -> Op {
    Op::Lock { key: key(name), value: Bytes::from_static(b"held"), session: session.clone() }
}

fn unlock_op(name: &str, session: &SessionId) -> Op {
    Op::Unlock { key: key(name), value: Bytes::new(), session: session.clone() }
}

fn check_session(name: &str, session: &SessionId) -> Op {
    Op::CheckSession { key: key(name), session: session.clone() }
}

fn get_op(name: &str) -> Op {
    Op::Get { key: key(name) }
}

fn delete_op(name: &str) -> Op {
    Op::Delete { key: key(name) }
}

fn delete_cas_op(name: &str, index: Index) -> Op {
    Op::DeleteCas { key: key(name), index }
}

fn not_exists(name: &str) -> Op {
    Op::CheckNotExists { key: key(name) }
}

async fn nothing(p: Port) {
    assert_eq!(p.commit(&[]).await, (Index::ZERO, vec![]));
}

async fn two_sets(p: Port) {
    let (index, entries) = p.commit(&[set("b", "1"), set("a", "2")]).await;
    let names: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
    assert!(entries.iter().all(|e| e.modify_index == index && e.value.is_empty()), "{entries:?}");
    assert_eq!(p.entry("a").await.modify_index, index);
    assert_eq!(text(&p.entry("a").await), "2");
}

async fn too_large(p: Port) {
    let error = p.store.txn(&[set("a", &"x".repeat(400_000))]).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    assert!(!error.outcome_unknown());
    p.commit(&[set("a", &"x".repeat(262_144))]).await;
}

async fn all_refusals(p: Port) {
    p.set("there", "x").await;
    let ops = [cas("there", "y", Index(1)), not_exists("there"), set("new", "x"), get_op("absent")];
    assert_eq!(p.refused(&ops).await, [0, 1, 3]);
    assert!(!p.exists("new").await);
}

async fn in_order(p: Port) {
    p.set("a", "old").await;
    let (_, entries) = p.commit(&[get_op("a"), set("a", "new"), get_op("a")]).await;
    let seen: Vec<&str> = entries.iter().map(text).collect();
    assert_eq!(seen, ["old", "", "new"]);
}

async fn flattened(p: Port) {
    for name in ["p/a", "p/b", "q"] {
        p.set(name, name).await;
    }
    let ops = [
        delete_op("q"),
        not_exists("absent"),
        Op::GetTree { prefix: prefix("p") },
        Op::DeleteTree { prefix: prefix("p") },
        set("last", "x"),
    ];
    let (index, entries) = p.commit(&ops).await;
    let seen: Vec<(&str, &str)> = entries.iter().map(|e| (e.key.as_str(), text(e))).collect();
    assert_eq!(seen, [("p/a", "p/a"), ("p/b", "p/b"), ("last", "")]);
    assert_eq!(index, p.entry("last").await.modify_index);
    assert_eq!(p.keys("", None).await, ["last"]);
}

async fn cas_modes(p: Port) {
    let (index, _) = p.commit(&[cas("a", "x", Index::ZERO)]).await;
    for stale in
        [cas("a", "y", Index::ZERO), cas("a", "y", Index(index.0 + 1)), cas("absent", "y", index)]
    {
        assert_eq!(p.refused(&[stale]).await, [0]);
    }
    p.commit(&[cas("a", "y", index)]).await;
    assert_eq!(text(&p.entry("a").await), "y");
}

async fn lock(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    let (_, first) = p.commit(&[lock_op("a", &s)]).await;
    let (_, again) = p.commit(&[lock_op("a", &s)]).await;
    assert_eq!(first[0].lock_index, again[0].lock_index);
    assert_eq!(p.refused(&[lock_op("a", &other)]).await, [0]);
}

async fn lock_gone(p: Port) {
    let s = p.session().await;
    p.end(&s).await;
    assert_eq!(p.refused(&[set("b", "x"), lock_op("a", &s)]).await, [1]);
    assert!(!p.exists("b").await);
}

async fn unlock(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    p.commit(&[lock_op("a", &s)]).await;
    assert_eq!(p.refused(&[unlock_op("a", &other)]).await, [0]);
    p.commit(&[unlock_op("a", &s)]).await;
    assert_eq!(p.refused(&[unlock_op("a", &s), unlock_op("absent", &s)]).await, [0, 1]);
}

async fn fence(p: Port) {
    let (s, other) = (p.session().await, p.session().await);
    let fenced = |text: &str| [check_session("lock", &s), set("data", text)];
    assert_eq!(p.refused(&fenced("0")).await, [0]);
    p.put("lock", "", PutMode::Acquire(s.clone())).await;
    p.commit(&fenced("1")).await;
    p.put("lock", "", PutMode::Release(s.clone())).await;
    assert_eq!(p.refused(&fenced("2")).await, [0]);
    p.put("lock", "", PutMode::Acquire(other.clone())).await;
    assert_eq!(p.refused(&fenced("3")).await, [0]);
    p.put("lock", "", PutMode::Release(other)).await;
    p.put("lock", "", PutMode::Acquire(s.clone())).await;
    p.commit(&fenced("4")).await;
    p.end(&s).await;
    assert_eq!(p.refused(&fenced("5")).await, [0]);
    assert_eq!(text(&p.entry("data").await), "4");
}

async fn deletes(p: Port) {
    p.set("a", "x").await;
    let index = p.entry("a").await.modify_index;
    p.commit(&[delete_op("absent"), delete_cas_op("absent", Index(7))]).await;
    for stale in [Index(index.0 + 1), Index::ZERO] {
        assert_eq!(p.refused(&[delete_cas_op("a", stale)]).await, [0]);
    }
    p.commit(&[delete_cas_op("a", index)]).await;
    assert!(!p.exists("a").await);
}

async fn recreate(p: Port) {
    p.set("a", "x").await;
    let before = p.entry("a").await;
    let (index, _) = p.commit(&[set("a", "y"), delete_op("a"), cas("a", "z", Index::ZERO)]).await;
    let after = p.entry("a").await;
    assert!(after.create_index > before.modify_index);
    assert_eq!((after.create_index, after.modify_index), (index, index));
}

async fn same_value(p: Port) {
    let (first, _) = p.commit(&[set("a", "x")]).await;
    let (second, entries) = p.commit(&[set("a", "x"), set("b", "x")]).await;
    assert_eq!(entries[0].modify_index, first);
    assert_eq!(entries[1].modify_index, second);
    assert!(second > first);
}

async fn operations(p: Port) {
    let sets = |n: usize| (0..n).map(|i| set(&format!("k{i}"), "x")).collect::<Vec<_>>();
    assert_eq!(p.commit(&sets(64)).await.1.len(), 64);
    let error = p.store.txn(&sets(65)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
}

async fn check_index(p: Port) {
    p.set("a", "x").await;
    let index = p.entry("a").await.modify_index;
    let check = |name: &str, index| Op::CheckIndex { key: key(name), index };
    p.commit(&[check("a", index)]).await;
    let wrong =
        [check("a", Index(index.0 + 1)), check("a", Index::ZERO), check("absent", Index::ZERO)];
    assert_eq!(p.refused(&wrong).await, [0, 1, 2]);
}

async fn check_unlocked(p: Port) {
    let (s, none) = (p.session().await, SessionId::from(""));
    p.set("a", "x").await;
    p.commit(&[check_session("a", &none)]).await;
    p.put("a", "x", PutMode::Acquire(s.clone())).await;
    assert_eq!(p.refused(&[check_session("a", &none)]).await, [0]);
    p.commit(&[check_session("a", &s)]).await;
}

async fn check_not_exists(p: Port) {
    assert_eq!(p.refused(&[cas("a", "x", Index::ZERO), not_exists("a")]).await, [1]);
    p.commit(&[set("a", "x"), delete_op("a"), not_exists("a")]).await;
    assert!(!p.exists("a").await);
}

async fn get(p: Port) {
    p.set("a", "x").await;
    let (_, entries) = p.commit(&[get_op("a")]).await;
    assert_eq!(entries, [p.entry("a").await]);
    assert_eq!(p.refused(&[get_op("absent")]).await, [0]);
}

async fn delete_tree(p: Port) {
    for name in ["p", "p/a", "pq"] {
        p.set(name, "x").await;
    }
    for _ in 0..2 {
        p.commit(&[Op::DeleteTree { prefix: prefix("p") }]).await;
        assert_eq!(p.keys("", None).await, ["p", "pq"]);
    }
}

async fn set_locked(p: Port) {
    let s = p.session().await;
    p.commit(&[lock_op("a", &s)]).await;
    let (_, entries) = p.commit(&[set("a", "x")]).await;
    assert_eq!((entries[0].session.as_ref(), entries[0].lock_index), (Some(&s), 0));
}

async fn lock_entries(p: Port) {
    let s = p.session().await;
    let (_, locked) = p.commit(&[lock_op("a", &s)]).await;
    assert_eq!((locked[0].session.as_ref(), locked[0].lock_index), (Some(&s), 1));
    assert_eq!(text(&p.entry("a").await), "held");
    let (_, unlocked) = p.commit(&[unlock_op("a", &s)]).await;
    assert_eq!((unlocked[0].session.as_ref(), unlocked[0].lock_index), (None, 1));
    assert_eq!(text(&p.entry("a").await), "");
}

async fn refused_moves_nothing(p: Port) {
    p.set("p/a", "x").await;
    let before = p.list("p").await;
    p.refused(&[set("p/a", "y"), set("p/b", "y"), delete_op("p/a"), get_op("absent")]).await;
    assert_eq!(p.list("p").await, before);
}

async fn flags(p: Port) {
    let op = |flags| Op::Set { key: key("a"), value: Bytes::new(), flags };
    for flags in [42, 0, u64::MAX] {
        assert_eq!(p.commit(&[op(flags)]).await.1[0].flags, flags);
    }
}

async fn lock_delay(p: Port) {
    let lock_delay = std::time::Duration::from_secs(30);
    let s = p.session_with(NewSession { lock_delay, ..NewSession::default() }).await;
    let next = p.session().await;
    p.commit(&[lock_op("a", &s)]).await;
    p.end(&s).await;
    assert_eq!(p.refused(&[lock_op("a", &next)]).await, [0]);
}

async fn fits(p: Port) {
    let deep = format!("{}/", "d".repeat(199)).repeat(4);
    for (value, name) in
        [("x".repeat(6_000), "k"), ("\u{1}".repeat(5_500), &*deep), ("x".repeat(260_000), "k")]
    {
        let mut txn = Txn::by_user();
        for n in 0.. {
            let op = set(&format!("{name}{n}"), &value);
            if !txn.fits(std::slice::from_ref(&op), TxnLimits::default()) {
                break;
            }
            txn.push(op);
        }
        assert!(!txn.ops().is_empty());
        p.commit(txn.ops()).await;
    }
}

async fn no_entry(p: Port) {
    p.set("a", "x").await;
    assert_eq!(p.commit(&[delete_op("a"), not_exists("a")]).await, (Index::ZERO, vec![]));
}

async fn prefixed(p: Port) {
    p.set("p/a", "x").await;
    let (_, entries) =
        p.commit(&[Op::GetTree { prefix: prefix("p") }, get_op("p/a"), set("b", "x")]).await;
    let names: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
    assert_eq!(names, ["p/a", "p/a", "b"]);
}

async fn questions(p: Port) {
    for name in ["q/a", "q/b", "q/c"] {
        p.set(name, name).await;
    }
    let entries = p.list("q").await;
    let is_at = |entry: &Entry| Question::IsAt { key: key(&entry.key), index: entry.modify_index };
    let get = |name: &str| Question::Get { key: key(name) };
    let still: Vec<Question> = entries.value.iter().map(is_at).collect();
    assert!(matches!(p.store.ask(&still).await.unwrap(), TxnOutcome::Committed { .. }));
    p.set("q/b", "changed").await;
    assert!(p.store.delete(&key("q/c"), DeleteMode::Always).await.unwrap());
    let TxnOutcome::Refused(refusals) = p.store.ask(&still).await.unwrap() else {
        panic!("q/b has changed and q/c is gone")
    };
    assert_eq!(refusals.iter().map(|refusal| refusal.op).collect::<Vec<_>>(), [1, 2]);
    let before = p.list("q").await;
    let TxnOutcome::Committed { entries, .. } =
        p.store.ask(&[get("q/b"), get("q/a")]).await.unwrap()
    else {
        panic!("both are there")
    };
    assert_eq!(entries, [before.value[1].clone(), before.value[0].clone()]);
    let absent = p.store.ask(&[get("q/a"), get("q/c")]).await.unwrap();
    assert!(matches!(absent, TxnOutcome::Refused(why) if why.len() == 1 && why[0].op == 1));
    assert_eq!(p.list("q").await, before);
}

async fn read_only(p: Port) {
    p.set("a", "x").await;
    let (index, entries) = p.commit(&[get_op("a")]).await;
    assert_eq!((index, entries.len()), (Index::ZERO, 1));
}

async fn changes_nothing(p: Port) {
    let (first, _) = p.commit(&[set("a", "x")]).await;
    p.set("b", "x").await;
    assert_eq!(p.commit(&[set("a", "x"), get_op("b")]).await.0, first);
}
