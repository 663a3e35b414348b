//! One Consul session of a farm: the loop that handles every event, from the first claim to the end of the last task.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error_span, info, warn};

use super::claims::{Claims, ReleaseOutcome};
use super::doorbells::{Answering, Rung};
use super::farm_loop::{Announced, Done, FarmLoop, SessionState};
use super::kind_state::{BellAnswer, KindState, RunningRecord};
use super::wake_queue::FarmEvent;
use rcfarm_api::key;
use rcfarm_store::session::KeptSession;
use rcfarm_store::time::monotonic;
use rcfarm_store::{DeleteMode, Key, Op, Query, Store, TxnOutcome, offload};

/// Tasks get this long to stop before they are aborted.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl FarmLoop<'_> {
    /// One session from its first claim to its end; when it returns, no task runs any more. The session's keeper ends
    /// the epoch when the session is lost.
    pub(super) async fn session(&mut self, kept: &KeptSession, shutdown: &CancellationToken) {
        let span = error_span!("session", id = %kept.epoch().session());
        self.work(kept, shutdown).instrument(span).await;
    }

    async fn work(&mut self, kept: &KeptSession, shutdown: &CancellationToken) {
        let epoch = kept.epoch();
        let farm = &self.farm.settings;
        let store = self.farm.env.store.clone();
        let claims = Claims::new(store, farm.name.clone(), epoch.clone(), farm.limits);
        let mut e = SessionState {
            epoch: epoch.clone(),
            claims,
            tasks: JoinSet::new(),
            beside: FuturesUnordered::new(),
            parted: Vec::new(),
            since: self.farm.env.clock.wall(),
            check_problem: kept.check_problem().map(str::to_owned),
            announced: Announced::default(),
            answering: Answering::default(),
            seeds_again_at: None,
        };
        self.farm.note(|report| {
            report.session = Some(epoch.session().to_string());
            report.check_problem.clone_from(&e.check_problem);
        });
        let named = tokio::select! {
            biased;
            () = shutdown.cancelled() => false,
            () = epoch.ended() => false,
            () = self.take_name(&mut e) => true,
        };
        if named {
            self.serve(&mut e, shutdown).await;
        }
        self.stop_all(&mut e, shutdown).await;
        self.farm.note(|report| {
            report.session = None;
            report.check_problem = None;
            report.claims.clear();
        });
    }

    async fn serve(&mut self, e: &mut SessionState, shutdown: &CancellationToken) {
        let mut again_at = Some(monotonic());
        loop {
            let wake_queue = self.wake_queue.clone();
            let mut replan = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = e.epoch.ended() => return,
                Some(joined) = e.tasks.join_next() => {
                    self.task_ended(e, joined);
                    while let Some(Some(joined)) = e.tasks.join_next().now_or_never() {
                        self.task_ended(e, joined);
                    }
                    self.part(e);
                    true
                }
                Some(done) = e.beside.next() => {
                    match done {
                        Done::Claimed(n, round) => {
                            self.claimed(e, n, round);
                            true
                        }
                        Done::Parted(n, ReleaseOutcome::Refused) => {
                            self.doubt(e, n);
                            false
                        }
                        Done::Read(n) => {
                            self.states[n].is_doubted = false;
                            true
                        }
                        // The result is unknown, so claims are planned again.
                        Done::Parted(_, ReleaseOutcome::Unknown) => true,
                        Done::Parted(_, ReleaseOutcome::AsPlanned) | Done::Seeded => false,
                        Done::Announced(presence) => {
                            e.announced.said = presence;
                            false
                        }
                        Done::Asked(rung, exists) => {
                            e.answering.take_answer(rung, exists, monotonic());
                            if exists.is_some() {
                                self.answer_bells(e);
                            }
                            false
                        }
                        Done::Quiet(pending) => {
                            e.answering.still_hang(pending, monotonic());
                            false
                        }
                    }
                }
                events = wake_queue.take() => self.heard(e, events),
                () = wait_until(again_at) => true,
            };
            // The first plan waits for every cache: with locks unread, owned records would look free.
            let by_labels = self.is_selected_by_labels();
            self.states.iter().for_each(|state| state.wake_watches(by_labels));
            replan &= self.states.iter().all(KindState::is_read) && self.peers.snapshot().is_read();
            if replan {
                let records =
                    self.states.iter().map(|state| state.records.snapshot().value.0.len()).sum();
                again_at = offload(records, || self.plan_claims(e)).await;
            } else if again_at.is_some_and(|at| at <= monotonic()) {
                again_at = Some(monotonic() + Duration::from_millis(50));
            }
            if e.answering.asks_again(monotonic()) {
                self.answer_bells(e);
            }
            let due = [
                self.announce_again(e),
                self.take_bells_down(e),
                e.answering.ask_at(),
                self.restore_seeds(e),
            ];
            again_at = due.into_iter().chain([again_at]).flatten().min();
        }
    }

    /// Whether any live farm has a label selector.
    fn is_selected_by_labels(&self) -> bool {
        let peers = self.peers.snapshot();
        let mut selectors = peers.value.0.values().map(|peer| &peer.value.selector);
        !self.farm.settings.selector.is_everything() || selectors.any(|s| !s.is_everything())
    }

    /// Handles events. Returns whether claims must be planned.
    fn heard(&mut self, e: &mut SessionState, events: Vec<FarmEvent>) -> bool {
        let mut replan = false;
        for event in events {
            match event {
                FarmEvent::Claims => {
                    replan = true;
                    // The cache of records may have caught up with a doorbell.
                    self.answer_bells(e);
                }
                FarmEvent::Changed { kind, ids } => {
                    let running = self.state(kind).map(|state| &state.running);
                    running.into_iter().for_each(|running| {
                        let changed = ids.iter().filter_map(|id| running.get(id));
                        changed.for_each(RunningRecord::wake);
                    });
                }
                FarmEvent::AllChanged { kind } => {
                    let running = self.state(kind).into_iter().flat_map(|s| s.running.values());
                    running.for_each(RunningRecord::wake);
                }
                FarmEvent::Doorbells => self.answer_bells(e),
                FarmEvent::ClockSet => self.wake_all(),
            }
        }
        replan
    }

    fn state(&self, kind: &str) -> Option<&KindState> {
        self.states.iter().find(|state| state.spec.name == kind)
    }

    /// Handles doorbells of this farm's records: refreshes the records and wakes their tasks.
    fn answer_bells(&self, e: &mut SessionState) {
        let doorbells = self.doorbells.snapshot();
        e.answering.forget_all_but(&doorbells.value);
        for (bell, index) in &doorbells.value.0 {
            if e.answering.is_answered(bell, *index) {
                continue;
            }
            let (kind, id) = bell;
            let confirmed = kind == "confirm" && id.as_str() == self.farm.settings.name.as_str();
            if confirmed {
                self.confirm();
            }
            let answer = match self.state(kind) {
                _ if confirmed => BellAnswer::Handled,
                Some(state) => state.answer_bell(id, *index),
                None => BellAnswer::Others,
            };
            match answer {
                BellAnswer::Handled => e.answering.answered(bell.clone(), *index, monotonic()),
                BellAnswer::IfAbsent(record) => {
                    let rung = (bell.clone(), *index);
                    if e.answering.begins_to_ask(&rung) {
                        let store = self.farm.env.store.clone();
                        e.beside.push(Box::pin(ask_existence(store, record, rung)));
                    }
                }
                BellAnswer::Others => {}
            }
        }
    }

    /// Deletes handled doorbells that are due, except those rung again. Returns when the next delete is due.
    fn take_bells_down(&self, e: &mut SessionState) -> Option<Instant> {
        let now = monotonic();
        if let Some(at) = e.answering.due().filter(|at| *at > now) {
            return Some(at);
        }
        for doorbells in e.answering.take(self.farm.settings.limits.ops) {
            e.beside.push(Box::pin(quieten(self.farm.env.store.clone(), doorbells)));
        }
        None
    }

    /// An operator confirmed that the caches are meant to be as small as they are.
    fn confirm(&self) {
        warn!("mass deletion confirmed by an operator");
        self.caches.iter().for_each(|cache| cache.confirm());
        self.wake_all();
        self.wake_queue.push(FarmEvent::Claims);
    }

    fn wake_all(&self) {
        let running = self.states.iter().flat_map(|state| state.running.values());
        running.for_each(RunningRecord::wake);
    }

    /// Stops every task and waits for it. The locks are deleted with the session.
    async fn stop_all(&mut self, e: &mut SessionState, shutdown: &CancellationToken) {
        let running: usize = self.states.iter().map(|state| state.running.len()).sum();
        for state in &mut self.states {
            state.running.values().for_each(|running| running.handle.stop.cancel());
            state.running.clear();
            state.claiming.clear();
            state.barred.clear();
            state.is_doubted = false;
        }
        if running > 0 {
            info!(records = running, "stopping the tasks");
        }
        let leaving = self.announce_leaving(e);
        let all = async { while e.tasks.join_next().await.is_some() {} };
        let stopped = tokio::select! {
            biased;
            stopped = tokio::time::timeout(STOP_TIMEOUT, all) => stopped.is_ok(),
            never = leaving, if shutdown.is_cancelled() => match never {},
        };
        if !stopped {
            warn!("some tasks do not stop; they are aborted");
        }
        e.tasks.shutdown().await;
    }
}

/// Deletes doorbells, each unless it was rung again.
async fn quieten(store: Arc<dyn Store>, doorbells: Vec<Rung>) -> Done {
    let down = |((kind, id), index): &Rung| {
        let key = key::bells().key_of(&format!("{kind}/{id}"))?;
        Some(Op::DeleteCas { key, index: *index })
    };
    let ops: Vec<Op> = doorbells.iter().filter_map(down).collect();
    let mut pending = Vec::new();
    if !matches!(store.txn(&ops).await, Ok(TxnOutcome::Committed { .. })) {
        for (bell, index) in doorbells {
            let (kind, id) = &bell;
            let Some(down) = key::bells().key_of(&format!("{kind}/{id}")) else { continue };
            if let Err(error) = store.delete(&down, DeleteMode::Cas(index)).await {
                warn!(%error, bell = %down, "a handled doorbell cannot be deleted yet");
                pending.push((bell, index));
            }
        }
    }
    Done::Quiet(pending)
}

/// Asks Consul whether the record of a doorbell exists.
async fn ask_existence(store: Arc<dyn Store>, record: Key, rung: Rung) -> Done {
    match store.get(&record, Query::CONSISTENT).await {
        Ok(answer) => Done::Asked(rung, Some(answer.value.is_some())),
        Err(error) => {
            debug!(%error, %record, "cannot read whether the record of a doorbell exists");
            Done::Asked(rung, None)
        }
    }
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
