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
