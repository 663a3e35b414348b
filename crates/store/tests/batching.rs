//! Batching of waiting transactions of several claims.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use std::sync::Arc;

use rcfarm_api::ids::SessionId;
use rcfarm_emulator::{Emulator, Fate, Faults, Request, Settings};
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{
    Claim, Commit, DeleteMode, Epoch, Index, Key, NewSession, Op, PutMode, Query, Reader, Store,
    Txn, TxnLimits, Writer,
};

/// Delays transactions by 10 ms and counts them.
#[derive(Default)]
struct Slow(AtomicUsize);

impl Faults for Slow {
    fn fate(&self, request: &Request<'_>) -> Fate {
        match request {
            Request::Txn(_) => {
                self.0.fetch_add(1, Ordering::SeqCst);
                Fate { before: Duration::from_millis(10), ..Fate::DELIVER }
            }
            _ => Fate::DELIVER,
        }
    }
}

struct Fixture {
    store: Emulator,
    slow: Arc<Slow>,
    writer: Writer,
    epoch: Epoch,
    session: SessionId,
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

impl Fixture {
    async fn new(locks: usize) -> Fixture {
        let store = Emulator::new(&Settings::default(), &IdSource::from_seed(1));
        let session = store.create_session(&NewSession::default()).await.unwrap();
        let epoch = Epoch::new(session.clone(), monotonic() + Duration::from_secs(3600));
        for n in 0..locks {
            let lock = key(&format!("lock/{n}"));
            let mode = PutMode::Acquire(session.clone());
            assert!(store.put(&lock, Bytes::new(), 0, mode).await.unwrap());
        }
        let slow = Arc::new(Slow::default());
        let faulty = Arc::new(store.with_faults(slow.clone()));
        let writer = Writer::together(faulty, TxnLimits::default());
        Fixture { store, slow, writer, epoch, session }
    }

    fn claim(&self, n: usize) -> Claim {
        Claim::new(key(&format!("lock/{n}")), self.epoch.clone())
    }

    /// Creates the ten keys below `data/<n>/`. Refused if one exists.
    async fn make(&self, n: usize) -> Result<Commit, rcfarm_store::StoreError> {
        let mut txn = Txn::under(&self.claim(n));
        for part in 0..10 {
            let (key, value) = (key(&format!("data/{n}/{part}")), Bytes::from_static(b"x"));
            txn.push(Op::Cas { key, value, flags: 0, index: Index::ZERO });
        }
        self.writer.commit(txn).await
    }

    async fn is_made(&self, n: usize) -> bool {
        let key = key(&format!("data/{n}/9"));
        self.store.get(&key, Query::PLAIN).await.unwrap().value.is_some()
    }
}

#[tokio::test(start_paused = true)]
async fn batcher_sends_alone_while_slots_are_free_then_batches() {
    let fixture = Fixture::new(100).await;
    let answers = join_all((0..100).map(|n| fixture.make(n))).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Commit::Applied(_)))));
    // Four alone, and the rest in batches of five: at most 64 operations, eleven each.
    assert_eq!(fixture.slow.0.load(Ordering::SeqCst), 4 + 20);
    for n in 0..100 {
        assert!(fixture.is_made(n).await);
    }
}

#[tokio::test(start_paused = true)]
async fn batcher_answers_a_refused_transaction_and_resends_others() {
    let fixture = Fixture::new(9).await;
    fixture.store.put(&key("data/6/3"), Bytes::new(), 0, PutMode::Set).await.unwrap();
    fixture.store.delete(&key("lock/7"), DeleteMode::Always).await.unwrap();
    let answers = join_all((0..9).map(|n| fixture.make(n))).await;
    for (n, answer) in answers.iter().enumerate() {
        match (n, answer) {
            (6, Ok(Commit::Refused(refusals))) => {
                let ops: Vec<usize> = refusals.iter().map(|refusal| refusal.op).collect();
                assert_eq!(ops, [4], "as counted in its own transaction");
            }
            (7, Ok(Commit::ClaimLost)) | (_, Ok(Commit::Applied(_))) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(fixture.is_made(n).await, n != 6 && n != 7, "{n}");
    }
    assert!(fixture.epoch.is_live(), "the others' claims stand");
}

#[tokio::test(start_paused = true)]
async fn batcher_sends_nothing_past_the_deadline() {
    let fixture = Fixture::new(20).await;
    let all = async { join_all((0..20).map(|n| fixture.make(n))).await };
    let end = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        fixture.epoch.end();
    };
    let (answers, ()) = futures_util::future::join(all, end).await;
    let lost = answers.iter().filter(|answer| **answer == Ok(Commit::ClaimLost)).count();
    assert_eq!((lost, fixture.slow.0.load(Ordering::SeqCst)), (16, 4));
}

#[tokio::test(start_paused = true)]
async fn batcher_drops_cancelled_transactions_and_sends_the_others() {
    let fixture = Fixture::new(20).await;
    let commit = |n: usize, patience: u64| {
        let fixture = &fixture;
        async move { tokio::time::timeout(Duration::from_millis(patience), fixture.make(n)).await.ok() }
    };
    // Every other waiting one is cancelled, then the four that are under way.
    let patience = |n: usize| match n {
        0..4 => 5,
        _ if n.is_multiple_of(2) => 3,
        _ => 10_000,
    };
    let answers = join_all((0..20).map(|n| commit(n, patience(n)))).await;
    for (n, answer) in answers.iter().enumerate().skip(4) {
        assert_eq!(answer.is_none(), n.is_multiple_of(2), "{n}: {answer:?}");
        assert_eq!(fixture.is_made(n).await, !n.is_multiple_of(2), "{n}");
    }
    assert!(fixture.store.session(&fixture.session).await.unwrap().value.is_some());
}
