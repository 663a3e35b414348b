//! Batching of commits: transactions of several controllers that wait for a slot are sent as one.
//!
//! Each record's controller writes little, but a farm has up to ten thousand of them. Consul applies a transaction of
//! sixty operations in about the time of three with six each. So at most [`SLOTS`] transactions are under way, and those
//! that wait are concatenated, each with its own fence and guards. While a slot is free, a transaction is sent at once
//! and alone.
//!
//! If Consul refuses a batch, it names the operations at fault. Their transactions get their refusals; the others are
//! sent again without them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, Semaphore, oneshot};

use super::claim::{self, Claim, Commit};
use super::{Op, Refusal, Store, StoreError, Txn, TxnLimits, TxnOutcome, txn::Fenced};

/// Transactions under way at once. More would not be answered sooner and would make batches smaller.
const SLOTS: usize = 4;

type Answer = Result<Commit, StoreError>;

/// A transaction in the queue.
struct Waiting {
    number: u64,
    claim: Claim,
    ops: Vec<Op>,
    bytes: usize,
    /// Send it alone: a batch with it failed, and Consul did not name the operation at fault.
    unbatched: bool,
    answer: oneshot::Sender<Answer>,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Waiting>,
}

/// Queue and slots of one [`super::Writer`].
pub(super) struct CommitBatcher {
    store: Arc<dyn Store>,
    limits: TxnLimits,
    slots: Semaphore,
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
            slots: Semaphore::new(SLOTS),
            queue: Mutex::default(),
            put_back: Notify::new(),
        }
    }

    /// See [`super::Writer::commit`].
    pub(super) async fn commit(&self, txn: Txn<Fenced>) -> Answer {
        let (ticket, mut answer) = self.enter(txn);
        loop {
            let put_back = self.put_back.notified();
            let is_waiting = ticket.is_waiting();
            tokio::select! {
                biased;
                // A closed channel: the task that sent the batch was dropped. The batch may have been applied.
                received = &mut answer => return received.unwrap_or_else(|_| Err(StoreError::Interrupted {
                    detail: "the task that sent it was stopped".to_owned(),
                })),
                slot = self.slots.acquire(), if is_waiting => {
                    // Another task may have sent it with its batch meanwhile.
                    if slot.is_ok() && ticket.is_waiting() {
                        self.send(self.batch()).await;
                    }
                }
                // Another task is sending it and puts it back if it has to be sent again.
                () = put_back, if !is_waiting => {}
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

    /// Takes the oldest transactions from the queue: as many as fit into one, but at least one.
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

    /// Sends a batch as one transaction. Those to be sent again return to the front of the queue.
    async fn send(&self, mut batch: Vec<Waiting>) {
        loop {
            // Claims whose local deadline has passed must not write.
            let (live, late): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|waiting| waiting.claim.is_live());
            late.into_iter().for_each(|waiting| drop(waiting.answer.send(Ok(Commit::ClaimLost))));
            if live.is_empty() {
                return;
            }
            let ops: Vec<Op> =
                live.iter().flat_map(|waiting| waiting.ops.iter().cloned()).collect();
            let claims: Vec<&Claim> = live.iter().map(|waiting| &waiting.claim).collect();
            let may_send = || claims.iter().all(|claim| claim.is_live());
            match self.store.txn_if(&ops, &may_send).await.transpose() {
                Some(answer) => return self.answer(live, answer),
                // A deadline passed while the request waited for its slot.
                None => batch = live,
            }
        }
    }

    fn answer(&self, batch: Vec<Waiting>, answer: Result<TxnOutcome, StoreError>) {
        match answer {
            Ok(TxnOutcome::Committed { index, .. }) => {
                for waiting in batch {
                    let _ = waiting.answer.send(Ok(Commit::Applied(index)));
                }
            }
            Ok(TxnOutcome::Refused(refusals)) => self.refused(batch, &refusals),
            // Not applied, and one of them is at fault (forbidden, too large): each is sent alone.
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
        let none_named = refusals.iter().all(|refusal| refusal.op >= first);
        self.put_back(innocent, none_named);
    }

    fn put_back(&self, batch: Vec<Waiting>, unbatched: bool) {
        let mut queue = self.queue();
        for waiting in batch.into_iter().rev() {
            // A closed channel: its controller has ended.
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
