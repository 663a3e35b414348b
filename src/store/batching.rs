//! Several controllers' transactions in one: what waits while others are under way goes together.
//!
//! A record's controller has little to write, and ten thousand of them have little to write ten thousand times. Consul
//! takes a transaction of sixty operations in about the time of three of six. So transactions that have to wait for a
//! turn are put behind each other into one, each with its own fence and its own guards. If one of them is refused
//! Consul refuses all and says whose operation it was: that one has its answer, and the others are sent again without
//! it. Nothing waits for company: while there is a turn, a transaction is sent at once and alone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, oneshot};

use super::claim::{self, Claim, Commit};
use super::{Op, Refusal, Store, StoreError, Txn, TxnLimits, TxnOutcome, txn::Fenced};

/// So many transactions are under way at once. More would not be answered sooner, and leave less to put together.
const UNDER_WAY: usize = 4;

type Answer = Result<Commit, StoreError>;

/// A transaction that waits.
struct Waiting {
    number: u64,
    claim: Claim,
    ops: Vec<Op>,
    bytes: usize,
    /// Only alone: it was refused in company without a word about whose fault it was.
    unbatched: bool,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Waiting>,
}

/// Combines waiting transactions into one.
pub(super) struct CommitBatcher {
    store: Arc<dyn Store>,
    limits: TxnLimits,
    turns: Semaphore,
    queue: Mutex<Queue>,
    put_back: Notify,
}

/// Place in the queue of a waiting transaction; dropping it removes the transaction unless it was sent.
struct Ticket<'g> {
    batcher: &'g CommitBatcher,
    number: u64,
}

impl Ticket<'_> {
    fn is_waiting(&self) -> bool {
        self.batcher.queue().waiting.iter().any(|waiting| waiting.number == self.number)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.batcher.queue().waiting.retain(|waiting| waiting.number != self.number);
    }
}

impl CommitBatcher {
    pub(super) fn new(store: Arc<dyn Store>, limits: TxnLimits) -> CommitBatcher {
        CommitBatcher {
            store,
            limits,
            turns: Semaphore::new(UNDER_WAY),
            queue: Mutex::default(),
            put_back: Notify::new(),
        }
    }

    /// See [`super::Writer::commit`].
    pub(super) async fn commit(&self, txn: Txn<Fenced>) -> Answer {
        let (ticket, mut answer) = self.enter(txn);
        loop {
            let put_back = self.put_back.notified();
            let waits = ticket.is_waiting();
            tokio::select! {
                biased;
                // Whoever sent it was stopped in the middle: it may have been applied.
                told = &mut answer => return told.unwrap_or_else(|_| Err(StoreError::Interrupted {
                    detail: "the task that sent it was stopped".to_owned(),
                })),
                turn = self.turns.acquire(), if waits => {
                    // It may have gone with another's meanwhile.
                    if turn.is_ok() && ticket.is_waiting() {
                        self.send(self.batch()).await;
                    }
                }
                // It is under way in another's hands, unless that one puts it back.
                () = put_back, if !waits => {}
            }
        }
    }

    fn enter(&self, txn: Txn<Fenced>) -> (Ticket<'_>, oneshot::Receiver<Answer>) {
        let (sender, answer) = oneshot::channel();
        let bytes = txn.body_bytes();
        let mut queue = self.queue();
        queue.next += 1;
        let number = queue.next;
        let (claim, ops) = (txn.guard.claim, txn.ops);
        queue.waiting.push_back(Waiting {
            number,
            claim,
            ops,
            bytes,
            unbatched: false,
            answer: sender,
        });
        (Ticket { batcher: self, number }, answer)
    }

    /// The longest waiting ones, as many as fit into one transaction, at least one.
    fn batch(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        let (mut ops, mut bytes, mut count) = (0, 0, 0);
        for waiting in &queue.waiting {
            ops += waiting.ops.len();
            bytes += waiting.bytes;
            let fits = ops <= self.limits.ops && bytes <= self.limits.bytes && !waiting.unbatched;
            if count > 0 && !fits {
                break;
            }
            count += 1;
            if waiting.unbatched {
                break;
            }
        }
        queue.waiting.drain(..count).collect()
    }

    /// Sends some in one transaction. Those that are to be sent again are put back, first in the queue.
    async fn send(&self, batch: Vec<Waiting>) {
        // Past the local deadline nothing is sent.
        let (batch, late): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|waiting| waiting.claim.is_live());
        late.into_iter().for_each(|waiting| drop(waiting.answer.send(Ok(Commit::ClaimLost))));
        if batch.is_empty() {
            return;
        }
        let ops: Vec<Op> = batch.iter().flat_map(|waiting| waiting.ops.iter().cloned()).collect();
        match self.store.txn(&ops).await {
            Ok(TxnOutcome::Committed { index, .. }) => {
                for waiting in batch {
                    let _ = waiting.answer.send(Ok(Commit::Applied(index)));
                }
            }
            Ok(TxnOutcome::Refused(refusals)) => self.refused(batch, &refusals),
            // Not applied, and the fault of one of them: forbidden, too large.
            Err(error) if batch.len() > 1 && !error.is_retryable() && !error.outcome_unknown() => {
                self.put_back(batch, true);
            }
            Err(error) => {
                for waiting in batch {
                    let _ = waiting.answer.send(Err(error.clone()));
                }
            }
        }
    }

    fn refused(&self, batch: Vec<Waiting>, refusals: &[Refusal]) {
        let (mut first, mut innocent, unbatched) = (0, Vec::new(), batch.len() == 1);
        for waiting in batch {
            let own = first..first + waiting.ops.len();
            first = own.end;
            let own: Vec<Refusal> = refusals
                .iter()
                .filter(|refusal| unbatched || own.contains(&refusal.op))
                .map(|refusal| Refusal {
                    op: refusal.op.saturating_sub(own.start),
                    ..refusal.clone()
                })
                .collect();
            if own.is_empty() && !unbatched {
                innocent.push(waiting);
                continue;
            }
            let _ = waiting.answer.send(Ok(claim::refused(&waiting.claim, own)));
        }
        let nobody_named = refusals.iter().all(|refusal| refusal.op >= first);
        self.put_back(innocent, nobody_named);
    }

    fn put_back(&self, batch: Vec<Waiting>, unbatched: bool) {
        let mut queue = self.queue();
        for waiting in batch.into_iter().rev() {
            // Nobody waits for the answer of one whose controller is gone.
            if !waiting.answer.is_closed() {
                queue.waiting.push_front(Waiting { unbatched, ..waiting });
            }
        }
        drop(queue);
        self.put_back.notify_waiters();
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;
    use crate::embedded::{Embedded, Fate, Faults, Request, Settings};
    use crate::ids::SessionId;
    use crate::store::{DeleteMode, Epoch, Index, Key, NewSession, PutMode, Query, Reader, Writer};
    use crate::time::IdSource;

    /// Transactions take a while, and are counted.
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
        store: Embedded,
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
            let store = Embedded::new(&Settings::default(), &IdSource::from_seed(1));
            let session = store.create_session(&NewSession::default()).await.unwrap();
            let epoch = Epoch::new(session.clone(), Instant::now() + Duration::from_secs(3600));
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

        /// Creates `data/<n>` and nine keys more, or is refused because it is there.
        async fn make(&self, n: usize) -> Answer {
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
    async fn what_has_to_wait_goes_together_and_what_has_not_goes_alone() {
        let fixture = Fixture::new(100).await;
        let answers = join_all((0..100).map(|n| fixture.make(n))).await;
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Commit::Applied(_)))));
        // Four alone, and the rest by five: 64 operations at most, eleven each.
        assert_eq!(fixture.slow.0.load(Ordering::SeqCst), 4 + 20);
        for n in 0..100 {
            assert!(fixture.is_made(n).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_refused_has_its_own_answer_and_holds_up_no_other() {
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
    async fn past_the_deadline_nothing_is_sent() {
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
    async fn whoever_is_gone_before_its_turn_writes_nothing_and_holds_nobody_up() {
        let fixture = Fixture::new(20).await;
        let commit = |n: usize, patience: u64| {
            let fixture = &fixture;
            async move {
                tokio::time::timeout(Duration::from_millis(patience), fixture.make(n)).await.ok()
            }
        };
        // Of those that wait every other one is dropped, and then the four that are under way.
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
}
