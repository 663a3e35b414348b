//! Wake-ups and answers of blocked reads (`consul-semantics.md` §4.2, §4.3).

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use rcfarm_store::{Answer, DeleteMode};

const WAIT: Duration = Duration::from_secs(30);

/// The read of a subject given as text, and its answer as text, so that one table covers all subjects.
async fn read(c: &Emulator, what: &str, query: Query) -> Answer<String> {
    let (kind, name) = what.split_once(' ').unwrap();
    match kind {
        "key" => show(c.get(&key(name), query).await.unwrap()),
        "tree" => show(c.list(&prefix(name), query).await.unwrap()),
        "keys" => show(c.keys(&prefix(name), Some("/"), query).await.unwrap()),
        "session" => {
            let id = SessionId::from(name);
            let subject = Subject::Session(id.clone());
            let select = |t: &Tables| t.sessions.get(&id).is_some();
            show(c.read(Request::Session(name), subject, query, select).await.unwrap())
        }
        "service" => {
            let subject = Subject::Service(name.to_owned());
            show(
                c.read(Request::Catalog, subject, query, |t| t.catalog.health(name)).await.unwrap(),
            )
        }
        other => panic!("{other}"),
    }
}

fn show<T: std::fmt::Debug>(answer: Answer<T>) -> Answer<String> {
    Answer { value: format!("{:?}", answer.value), index: answer.index, filtered: false }
}

/// Starts a read that blocks on the current index.
async fn block(
    c: &Emulator,
    what: &str,
) -> (Answer<String>, JoinHandle<(Answer<String>, Duration)>) {
    let now = read(c, what, Query::PLAIN).await;
    let (c, what, query) = (c.clone(), what.to_owned(), Query::after(now.index, WAIT));
    let start = Instant::now();
    let task = tokio::spawn(async move { (read(&c, &what, query).await, start.elapsed()) });
    sleep(Duration::from_millis(5)).await;
    assert!(!task.is_finished(), "it blocks first");
    (now, task)
}

async fn wakes(c: &Emulator, what: &str, write: impl AsyncFnOnce()) {
    let (before, task) = block(c, what).await;
    write().await;
    let (after, took) = task.await.unwrap();
    assert!(took < SEC, "{what} was not woken");
    assert!(after.index > before.index, "{what}");
}

async fn sleeps_through(c: &Emulator, what: &str, write: impl AsyncFnOnce()) {
    let (before, task) = block(c, what).await;
    write().await;
    let (after, took) = task.await.unwrap();
    assert!(
        took >= WAIT && took <= WAIT + WAIT / 16 + Duration::from_millis(1),
        "{what}: {took:?}"
    );
    assert_eq!(after, before, "{what}: same answer, same index");
}

#[tokio::test(start_paused = true)]
async fn what_wakes() {
    let c = consul();
    for k in ["p/a", "p/deep/x", "q"] {
        set(&c, k, "1").await;
    }
    let s = session(&c, &plain()).await;
    let del = async |k: &str| assert!(c.delete(&key(k), DeleteMode::Always).await.unwrap());

    wakes(&c, "key p/a", async || drop(set(&c, "p/a", "2").await)).await;
    wakes(&c, "tree p", async || drop(set(&c, "p/a", "3").await)).await;
    wakes(&c, "tree p", async || drop(set(&c, "p/new", "1").await)).await;
    wakes(&c, "keys p", async || drop(set(&c, "p/deep/x", "2").await)).await;
    wakes(&c, "key p/a", async || assert!(acquire(&c, "p/a", &s).await)).await;
    wakes(&c, "key p/a", async || assert!(release(&c, "p/a", "x", &s).await)).await;
    wakes(&c, "key absent", async || drop(set(&c, "absent", "1").await)).await;
    wakes(&c, "tree never", async || drop(set(&c, "never/a", "1").await)).await;
    wakes(&c, "tree never", async || del("never/a").await).await;
    wakes(&c, "tree never", async || drop(set(&c, "never/b", "1").await)).await;
    wakes(&c, "key p/a", async || del("p/a").await).await;
    wakes(&c, "tree p", async || c.delete_tree(&prefix("p")).await.unwrap()).await;
    assert!(acquire(&c, "q", &s).await);
    wakes(&c, "key q", async || c.destroy_session(&s).await.unwrap()).await;
    wakes(&c, "key q", async || {
        let ops = [Op::Set { key: key("q"), value: value("txn"), flags: 0 }];
        let _ = c.txn(&ops).await.unwrap();
    })
    .await;
    let s = session(&c, &plain()).await;
    wakes(&c, &format!("session {s}"), async || c.destroy_session(&s).await.unwrap()).await;
    let farm = TtlService {
        name: "farm".to_owned(),
        id: "farm-1".to_owned(),
        meta: std::collections::BTreeMap::new(),
        ttl: 10 * SEC,
        deregister_after: 60 * SEC,
    };
    wakes(&c, "service farm", async || c.register_service(&farm).await.unwrap()).await;
    wakes(&c, "service farm", async || c.deregister_service("farm-1").await.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_wake() {
    let c = consul();
    for k in ["p/a", "p/b", "gone/a"] {
        set(&c, k, "1").await;
    }
    c.delete_tree(&prefix("gone")).await.unwrap();
    let s = session(&c, &plain()).await;
    assert!(acquire(&c, "held", &s).await);

    sleeps_through(&c, "key p/a", async || drop(set(&c, "p/a", "1").await)).await;
    sleeps_through(&c, "tree p", async || drop(set(&c, "p/a", "1").await)).await;
    sleeps_through(&c, "key p/a", async || drop(set(&c, "p/b", "2").await)).await;
    sleeps_through(&c, "key p/a", async || drop(set(&c, "p/a/below", "2").await)).await;
    sleeps_through(&c, "tree p", async || drop(set(&c, "pq", "1").await)).await;
    sleeps_through(&c, "tree gone", async || drop(set(&c, "gonef", "1").await)).await;
    sleeps_through(&c, "key held", async || assert!(acquire(&c, "held", &s).await)).await;
    sleeps_through(&c, "tree p", async || {
        assert!(c.delete(&key("p/none"), DeleteMode::Always).await.unwrap());
    })
    .await;
    sleeps_through(&c, "key p/a", async || {
        assert!(!c.put(&key("p/a"), value("x"), 0, PutMode::Cas(Index(1))).await.unwrap());
    })
    .await;
    sleeps_through(&c, "key p/a", async || {
        let set = Op::Set { key: key("p/a"), value: value("x"), flags: 0 };
        let no = Op::CheckNotExists { key: key("p/b") };
        assert!(matches!(c.txn(&[set, no]).await.unwrap(), TxnOutcome::Refused(_)));
    })
    .await;
    let name = format!("session {s}");
    sleeps_through(&c, &name, async || assert!(c.renew_session(&s).await.unwrap())).await;
    let farm = TtlService {
        name: "other".to_owned(),
        id: "o".to_owned(),
        meta: std::collections::BTreeMap::new(),
        ttl: 60 * SEC,
        deregister_after: 60 * SEC,
    };
    sleeps_through(&c, "service farm", async || c.register_service(&farm).await.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn reads_block_only_on_the_current_or_a_later_index() {
    let c = consul();
    let index = set(&c, "k", "1").await.modify_index;
    for after in [Index::ZERO, Index(1), Index(index.0 - 1)] {
        let start = Instant::now();
        assert_eq!(read(&c, "key k", Query::after(after, WAIT)).await.index, index);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
    let start = Instant::now();
    let later = read(&c, "key k", Query::after(Index(index.0 + 100), WAIT)).await;
    assert!(start.elapsed() >= WAIT);
    assert_eq!(later.index, index, "the real, smaller one");
}

#[tokio::test(start_paused = true)]
async fn wait_is_at_most_ten_minutes() {
    let c = consul();
    let index = set(&c, "k", "1").await.modify_index;
    for (asked, real) in [(0, 0), (9 * 60, 540), (20 * 60, 600)] {
        let start = Instant::now();
        read(&c, "key k", Query::after(index, asked * SEC)).await;
        let (took, real) = (start.elapsed(), real * SEC);
        assert!(took >= real && took <= real + real / 16 + SEC, "{asked}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn expiry_wakes_reads_on_time_without_requests() {
    let c = consul();
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    assert!(acquire(&c, "k", &s).await);
    let index = get(&c, "k").await.unwrap().modify_index;
    let start = Instant::now();
    let answer = c.get(&key("k"), Query::after(index, 60 * SEC)).await.unwrap();
    assert_eq!(start.elapsed(), 20 * SEC);
    assert_eq!(answer.value.unwrap().session, None);

    // A timer that is set while a read waits, and is due before the one that the timekeeper waits for.
    let far = session(&c, &NewSession { ttl: Some(3_600 * SEC), ..plain() }).await;
    assert!(acquire(&c, "k", &far).await);
    let index = c.list(&prefix("p"), Query::PLAIN).await.unwrap().index;
    let watch = {
        let c = c.clone();
        let query = Query::after(index, 60 * SEC);
        tokio::spawn(async move { c.list(&prefix("p"), query).await.unwrap().index })
    };
    sleep(SEC).await;
    let near = NewSession { ttl: Some(10 * SEC), behavior: Behavior::Delete, ..plain() };
    let near = session(&c, &near).await;
    let start = Instant::now();
    assert!(acquire(&c, "p/near", &near).await);
    assert!(watch.await.unwrap() > index, "woken by the acquisition");
    let index = get(&c, "p/near").await.unwrap().modify_index;
    assert!(c.get(&key("p/near"), Query::after(index, 60 * SEC)).await.unwrap().value.is_none());
    assert_eq!(start.elapsed(), 20 * SEC);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_read_is_forgotten() {
    let c = consul();
    set(&c, "k", "1").await;
    let (_, task) = block(&c, "key k").await;
    assert_eq!(c.blocked(), 1);
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(c.blocked(), 0);
}

#[tokio::test(start_paused = true)]
async fn timekeeper_ends_when_nothing_is_due() {
    let c = consul();
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 1);
    sleep(21 * SEC).await;
    assert_eq!(tasks(), 0, "nothing is due");
    assert!(c.session(&s).await.unwrap().value.is_none());
    session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    assert_eq!(tasks(), 1);
    drop(c);
    tokio::task::yield_now().await;
    assert_eq!(tasks(), 0, "nobody is left");
}

#[test]
fn timekeeper_of_an_ended_runtime_is_replaced() {
    let c = consul();
    let s = {
        let first = tokio::runtime::Runtime::new().unwrap();
        first.block_on(session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }))
    };
    assert!(c.inspect(|t| t.sessions.get(&s).is_some()), "no runtime at all");
    let second = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    second.block_on(async {
        assert!(c.session(&s).await.unwrap().value.is_some());
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 1);
    });
}

#[tokio::test(start_paused = true)]
async fn restored_state_answers_old_data_then_old_indexes() {
    let c = consul();
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    assert!(acquire(&c, "k", &s).await);
    let snapshot = c.snapshot();
    c.destroy_session(&s).await.unwrap();
    let new = set(&c, "k", "new").await;
    let (before, task) = block(&c, "key k").await;
    let raft = raft_index(&c);
    c.restore(snapshot);
    let (answer, took) = task.await.unwrap();
    assert!(took < SEC);
    assert_eq!(answer, before, "what was there before the restore");

    let old = get(&c, "k").await.unwrap();
    assert!(old.modify_index < new.modify_index);
    assert_eq!(old.session, Some(s.clone()), "alive again, with its lock");
    assert!(set(&c, "other", "1").await.modify_index > raft);
    sleep(19 * SEC).await;
    assert!(c.renew_session(&s).await.unwrap());
    sleep(20 * SEC).await;
    assert!(!c.renew_session(&s).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn spurious_wake_answers_with_the_current_state() {
    let c = consul();
    set(&c, "k", "1").await;
    let (before, task) = block(&c, "key k").await;
    c.wake_all();
    let (answer, took) = task.await.unwrap();
    assert!(took < SEC);
    assert_eq!(answer, before);
}
