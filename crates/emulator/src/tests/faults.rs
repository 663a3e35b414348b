//! Injected faults, and the observer of writes.

use std::sync::{Arc, Mutex};

use tokio::time::{Instant, sleep};

use super::*;
use rcfarm_store::RetryVerdict;

/// A client whose writes all have this outcome.
fn faulty_writes(c: &Emulator, outcome: FaultOutcome) -> Emulator {
    c.with_faults(Arc::new(
        move |r: &Request<'_>| {
            if r.writes() { Fate::of(outcome.clone()) } else { Fate::DELIVER }
        },
    ))
}

/// A client whose reads all have this outcome.
fn faulty_reads(c: &Emulator, outcome: FaultOutcome) -> Emulator {
    c.with_faults(Arc::new(
        move |r: &Request<'_>| {
            if r.writes() { Fate::DELIVER } else { Fate::of(outcome.clone()) }
        },
    ))
}

async fn try_set(c: &Emulator, k: &str) -> Result<bool, StoreError> {
    c.put(&key(k), value("v"), 0, PutMode::Set).await
}

#[tokio::test(start_paused = true)]
async fn lost_request_and_lost_reply_are_the_same_error() {
    let c = consul();
    let lost = try_set(&faulty_writes(&c, FaultOutcome::Lose), "lost").await.unwrap_err();
    let applied =
        try_set(&faulty_writes(&c, FaultOutcome::LoseReply), "applied").await.unwrap_err();
    assert_eq!(lost, applied);
    assert_eq!(lost.verdict(), RetryVerdict::Unknown);
    assert!(get(&c, "lost").await.is_none());
    assert!(get(&c, "applied").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn late_write_is_applied_after_its_error() {
    let c = consul();
    assert!(try_set(&faulty_writes(&c, FaultOutcome::Late(5 * SEC)), "k").await.is_err());
    sleep(Duration::from_millis(4_999)).await;
    assert!(get(&c, "k").await.is_none());
    sleep(Duration::from_millis(2)).await;
    assert!(get(&c, "k").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn delays_count_before_and_after_the_write() {
    let c = consul();
    let slow = c.with_faults(Arc::new(|_: &Request<'_>| Fate {
        before: 2 * SEC,
        outcome: FaultOutcome::Deliver,
        after: 3 * SEC,
    }));
    let start = Instant::now();
    let write = tokio::spawn(async move { try_set(&slow, "k").await });
    sleep(Duration::from_millis(1_999)).await;
    assert!(get(&c, "k").await.is_none());
    sleep(Duration::from_millis(2)).await;
    assert!(get(&c, "k").await.is_some());
    assert!(write.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), 5 * SEC);
}

#[tokio::test(start_paused = true)]
async fn no_leader_is_not_applied() {
    let c = consul();
    let error = try_set(&faulty_writes(&c, FaultOutcome::Fail(StoreError::NoLeader)), "k")
        .await
        .unwrap_err();
    assert_eq!(error.verdict(), RetryVerdict::NotApplied);
    assert!(get(&c, "k").await.is_none());
    let leaderless = faulty_reads(&c, FaultOutcome::Fail(StoreError::NoLeader));
    assert_eq!(leaderless.leader().await.unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn stale_read_returns_an_older_state_with_its_index() {
    let c = consul();
    let behind = faulty_reads(&c, FaultOutcome::Stale(2));
    let s = session(&c, &plain()).await;
    set(&c, "p/a", "1").await;
    assert!(acquire(&c, "p/lock", &s).await);
    let then = c.list(&prefix("p"), Query::PLAIN).await.unwrap();
    set(&c, "p/b", "1").await;
    c.delete_tree(&prefix("p")).await.unwrap();
    let seen = behind.list(&prefix("p"), Query::PLAIN).await.unwrap();
    assert_eq!(seen, then);
    let consistent = behind.list(&prefix("p"), Query::CONSISTENT).await;
    assert_eq!(consistent.unwrap_err(), StoreError::NoLeader);
    assert!(c.list(&prefix("p"), Query::PLAIN).await.unwrap().value.is_empty());
}

#[tokio::test(start_paused = true)]
async fn deposed_leader_renews_sessions_that_are_gone_or_will_be() {
    let c = consul();
    let deposed = faulty_writes(&c, FaultOutcome::Stale(1));
    let gone = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    let lives = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    c.kill_session(&gone);
    assert!(deposed.renew_session(&gone).await.unwrap());
    assert!(!c.renew_session(&gone).await.unwrap());
    sleep(15 * SEC).await;
    assert!(deposed.renew_session(&lives).await.unwrap());
    sleep(5 * SEC).await;
    assert!(!c.renew_session(&lives).await.unwrap(), "nothing was prolonged");
}

#[tokio::test(start_paused = true)]
async fn short_list_keeps_its_index() {
    let c = consul();
    for k in ["p/a", "p/b", "p/c"] {
        set(&c, k, "1").await;
    }
    let whole = c.list(&prefix("p"), Query::PLAIN).await.unwrap();
    let short =
        faulty_reads(&c, FaultOutcome::Short(1)).list(&prefix("p"), Query::PLAIN).await.unwrap();
    assert_eq!(short.value, whole.value[..1]);
    assert_eq!(short.index, whole.index);
}

#[tokio::test(start_paused = true)]
async fn unreachable_client_of_a_blocked_read_gets_an_error() {
    struct Cut;
    impl Faults for Cut {
        fn fate(&self, _: &Request<'_>) -> Fate {
            Fate::DELIVER
        }
        fn reaches_client(&self, _: &Request<'_>) -> bool {
            false
        }
    }
    let c = consul();
    let index = set(&c, "k", "1").await.modify_index;
    let cut = c.with_faults(Arc::new(Cut));
    assert!(cut.get(&key("k"), Query::PLAIN).await.is_ok());
    let blocked =
        tokio::spawn(async move { cut.get(&key("k"), Query::after(index, 60 * SEC)).await });
    sleep(SEC).await;
    set(&c, "k", "2").await;
    assert!(matches!(blocked.await.unwrap(), Err(StoreError::Interrupted { .. })));
}

#[tokio::test(start_paused = true)]
async fn observer_gets_each_write_with_the_state_after_it() {
    let c = consul();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    c.observe(move |applied: &Applied, tables: &Tables| {
        for change in &applied.changes {
            assert_eq!(tables.kv.get(&change.key), change.after.as_ref(), "state right after");
            let holder = |e: &Option<Arc<Entry>>| e.as_ref().map(|e| e.session.is_some());
            let line =
                format!("{} {:?}->{:?}", change.key, holder(&change.before), holder(&change.after));
            log.lock().unwrap().push(line);
        }
        for change in &applied.sessions {
            let what = match change {
                SessionChange::Created(_) => "created".to_owned(),
                SessionChange::Ended(_, why) => format!("{why:?}"),
            };
            log.lock().unwrap().push(format!("session {what} at {:?}", applied.at));
        }
    });
    let s = session(&c, &NewSession { ttl: Some(10 * SEC), ..plain() }).await;
    let t = session(&c, &NewSession { ttl: Some(11 * SEC), ..plain() }).await;
    assert!(acquire(&c, "k", &s).await);
    assert!(acquire(&c, "l", &t).await);
    set(&c, "k", "held").await; // LockIndex goes to 0
    set(&c, "k", "held").await; // changes nothing
    assert!(!c.put(&key("k"), value("x"), 0, PutMode::Cas(Index(1))).await.unwrap());
    // Both sessions expire before the next request: the observer gets each at its own time, with its own state.
    sleep(30 * SEC).await;
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "session created at 0ns",
            "session created at 0ns",
            "k None->Some(true)",
            "l None->Some(true)",
            "k Some(true)->Some(true)",
            "k Some(true)->Some(false)",
            "session Expired at 20s",
            "l Some(true)->Some(false)",
            "session Expired at 22s",
        ]
    );
}

/// One run of conflicting clients, as text.
fn run(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let ids = IdSource::from_seed(seed);
        let c = Emulator::new(&Settings::default(), &ids);
        let log: Arc<Mutex<String>> = Arc::default();
        let seen = log.clone();
        c.observe(move |applied: &Applied, _: &Tables| {
            seen.lock().unwrap().push_str(&format!("{applied:?}\n"));
        });
        let clients = (0..4).map(|n| tokio::spawn(client(c.clone(), ids.fork(), n, log.clone())));
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        std::mem::take(&mut *log.lock().unwrap())
    })
}

async fn client(c: Emulator, ids: IdSource, n: u64, log: Arc<Mutex<String>>) {
    let luck = ids.fork();
    let c = c.with_faults(Arc::new(move |_: &Request<'_>| Fate {
        before: Duration::from_millis(luck.below(30)),
        outcome: match luck.below(10) {
            0 => FaultOutcome::Lose,
            1 => FaultOutcome::LoseReply,
            2 => FaultOutcome::Late(SEC),
            3 => FaultOutcome::Stale(3),
            _ => FaultOutcome::Deliver,
        },
        after: Duration::from_millis(luck.below(30)),
    }));
    let mut after = Index::ZERO;
    for _ in 0..30 {
        let new = NewSession { ttl: Some(10 * SEC), lock_delay: SEC, ..plain() };
        if let Ok(s) = c.create_session(&new).await {
            let lock = key(&format!("lock/{}", ids.below(3)));
            let _ = c.put(&lock, value(&n.to_string()), 0, PutMode::Acquire(s.clone())).await;
            if ids.below(2) == 0 {
                let _ = c.destroy_session(&s).await;
            }
        }
        if let Ok(answer) = c.list(&prefix("lock"), Query::after(after, 5 * SEC)).await {
            after = answer.index;
            let line = format!("{n} {:?} {:?}\n", c.shared.now(), answer);
            log.lock().unwrap().push_str(&line);
        }
    }
}

#[test]
fn seed_repeats_a_run() {
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
    assert!(first.contains("Expired"), "the run is worth repeating");
}
