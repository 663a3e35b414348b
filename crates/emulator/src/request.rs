//! Execution of a request: its fate, the model, the wait for a change. The port and the HTTP API both use it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::fault::{Fate, FaultOutcome, Request};
use super::index::{Subject, Tables};
use super::model::{Model, ModelStep};
use super::watchers::{Dismissal, WatcherId};
use super::{Emulator, Shared};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Answer, BlockingWait, Consistency, Index, Query, StoreError};

const LONGEST_WAIT: Duration = Duration::from_secs(10 * 60);

/// A blocked read. Dropping it removes its watcher.
struct Blocked {
    shared: Arc<Shared>,
    id: WatcherId,
    wake: Arc<Notify>,
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.shared.lock().watchers.remove(self.id);
    }
}

impl Emulator {
    /// Executes a write with its fate.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        fate: Fate,
        act: impl FnOnce(&mut Model, Duration) -> ModelStep<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let act = |this: &Emulator| {
            this.with(|state, now| {
                let step = act(&mut state.model, now);
                state.publish_step(step)
            })
        };
        pause(fate.before).await;
        let result = match fate.outcome {
            FaultOutcome::Deliver | FaultOutcome::Stale(_) | FaultOutcome::Short(_) => {
                Ok(act(self))
            }
            FaultOutcome::Lose => Err(interrupted()),
            FaultOutcome::LoseReply => {
                act(self);
                Err(interrupted())
            }
            FaultOutcome::Late(by) => {
                let this = self.clone();
                tokio::spawn(async move {
                    pause(by).await;
                    act(&this);
                });
                Err(interrupted())
            }
            FaultOutcome::Fail(error) => Err(error),
        };
        pause(fate.after).await;
        result
    }

    pub(super) fn fate(&self, request: &Request<'_>) -> Fate {
        self.faults.as_ref().map_or(Fate::DELIVER, |faults| faults.fate(request))
    }

    /// Reads, and waits for a change if the query blocks. `select` takes the value from the state.
    pub(super) async fn read<T>(
        &self,
        request: Request<'_>,
        subject: Subject,
        query: Query,
        select: impl Fn(&Tables) -> T,
    ) -> Result<Answer<T>, StoreError> {
        let fate = self.fate(&request);
        self.read_as(fate, request, subject, query, &select).await
    }

    /// As [`Emulator::read`], for lists, which [`FaultOutcome::Short`] cuts.
    pub(super) async fn read_many<T>(
        &self,
        request: Request<'_>,
        subject: Subject,
        query: Query,
        select: impl Fn(&Tables) -> Vec<T>,
    ) -> Result<Answer<Vec<T>>, StoreError> {
        let fate = self.fate(&request);
        let keep = if let FaultOutcome::Short(keep) = fate.outcome { keep } else { usize::MAX };
        let mut answer = self.read_as(fate, request, subject, query, &select).await?;
        answer.value.truncate(keep);
        Ok(answer)
    }

    async fn read_as<T>(
        &self,
        fate: Fate,
        request: Request<'_>,
        subject: Subject,
        query: Query,
        select: &impl Fn(&Tables) -> T,
    ) -> Result<Answer<T>, StoreError> {
        pause(fate.before).await;
        let result = match fate.outcome {
            FaultOutcome::Lose | FaultOutcome::LoseReply | FaultOutcome::Late(_) => {
                Err(interrupted())
            }
            FaultOutcome::Fail(error) => Err(error),
            FaultOutcome::Stale(_) if query.consistency == Consistency::Consistent => {
                Err(StoreError::NoLeader)
            }
            FaultOutcome::Stale(writes) => match self.read_past(&subject, query, writes, select) {
                Some(answer) => Ok(answer),
                None => self.read_now(&request, subject, query, select).await,
            },
            FaultOutcome::Deliver | FaultOutcome::Short(_) => {
                self.read_now(&request, subject, query, select).await
            }
        };
        pause(fate.after).await;
        result
    }

    /// The answer of a deposed leader to a request that changes nothing, although it may seem to be a write.
    pub(super) async fn look_back<T>(
        &self,
        fate: Fate,
        writes: usize,
        select: impl FnOnce(&Tables) -> T,
    ) -> T {
        pause(fate.before).await;
        let seen = select(&self.with(|state, _| state.past(&Subject::Sessions, writes)));
        pause(fate.after).await;
        seen
    }

    /// An answer from an older state; `None`: the query would block on it.
    fn read_past<T>(
        &self,
        subject: &Subject,
        query: Query,
        writes: usize,
        select: &impl Fn(&Tables) -> T,
    ) -> Option<Answer<T>> {
        let past = self.with(|state, _| state.past(subject, writes));
        let index = past.index_of(subject);
        query.wait.is_none_or(|wait| index > wait.after).then(|| answer(select(&past), index))
    }

    async fn read_now<T>(
        &self,
        request: &Request<'_>,
        subject: Subject,
        query: Query,
        select: &impl Fn(&Tables) -> T,
    ) -> Result<Answer<T>, StoreError> {
        let begun = self.with(|state, _| {
            let tables = state.model.tables();
            let index = tables.index_of(&subject);
            match query.wait {
                Some(wait) if wait.after > Index::ZERO && index <= wait.after => {
                    let (id, wake) = state.watchers.add(subject.clone());
                    Err((Blocked { shared: self.shared.clone(), id, wake }, wait, index))
                }
                _ => Ok(answer(select(tables), index)),
            }
        });
        match begun {
            Ok(answer) => Ok(answer),
            Err((blocked, wait, index)) => {
                let answer = self.wait(&blocked, wait, index, &subject, select).await;
                let reached = self.faults.as_ref().is_none_or(|f| f.reaches_client(request));
                if reached { Ok(answer) } else { Err(interrupted()) }
            }
        }
    }

    /// Waits until the index is greater or the wait ends. An answer without a change has the index of the last evaluation
    /// (`consul-semantics.md` §4.3).
    async fn wait<T>(
        &self,
        blocked: &Blocked,
        wait: BlockingWait,
        mut index: Index,
        subject: &Subject,
        select: &impl Fn(&Tables) -> T,
    ) -> Answer<T> {
        let deadline = monotonic() + self.length_of(wait);
        loop {
            // The watcher is added and removed under the lock: a timer may fire at any moment.
            tokio::select! {
                biased;
                () = blocked.wake.notified() => blocked.wake.notify_one(),
                () = tokio::time::sleep_until(deadline) => {}
            };
            let answered = self.with(|state, _| {
                let tables = state.model.tables();
                let dismissal = state.watchers.dismissal(blocked.id);
                if let Some(Dismissal::Replaced(before)) = &dismissal {
                    return Some(answer(select(before), index));
                }
                let woken = blocked.wake.notified().now_or_never().is_some();
                if woken {
                    index = tables.index_of(subject);
                }
                let due = !woken || dismissal.is_some() || index > wait.after;
                due.then(|| answer(select(tables), index))
            });
            if let Some(answer) = answered {
                return answer;
            }
        }
    }

    fn length_of(&self, wait: BlockingWait) -> Duration {
        self.shared.jitter.jitter(wait.at_most.min(LONGEST_WAIT), 1.0 / 16.0)
    }
}

fn answer<T>(value: T, index: Index) -> Answer<T> {
    Answer { value, index, filtered: false }
}

fn interrupted() -> StoreError {
    StoreError::Interrupted { detail: "rpc error making call: EOF".to_owned() }
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}
