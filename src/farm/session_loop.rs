//! One epoch of a farm, from its first claim to the end of its last task: the loop that owns every map.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, debug, error, error_span, info, warn};

use super::claims::{BUSY_PAUSE, Claims, Guarded, ReleaseOutcome, Round};
use super::context::FarmContext;
use super::doorbells::{Answering, Rung};
use super::kind::{ClaimedRecord, Kind, KindSpec};
use super::kind_state::{KindState, LockRelease, RunningRecord};
use super::plan::{ClaimPlan, ClaimsObserved, plan};
use super::presence::Announced;
use super::record_task::{RecordTask, TaskExit, TaskHandle};
use super::records::{Doorbells, FarmPresence, Locks, Peers, RecordLabels, Records};
use crate::farm::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::ids::RecordId;
use rcfarm_api::ids::{FarmName, SessionId};
use rcfarm_api::key;
use rcfarm_api::{Timestamp, backoff};
use rcfarm_store::cache::Cache;
use rcfarm_store::failpoints;
use rcfarm_store::session::{Keeper, KeptSession};
use rcfarm_store::{Claim, DeleteMode, Epoch, Index, Op, Store, TxnOutcome};

/// Reading anew is tried again after pauses from the first to the second of these.
const READ_AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// While something is left of records that are gone, claims are planned this often.
const TIDYING: Duration = Duration::from_secs(2);
/// A task that was told to stop is waited for this long.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What finished beside the loop.
pub(super) enum Done {
    Claimed(usize, Round),
    /// Locks were given up or handed over.
    Parted(usize, ReleaseOutcome),
    /// The locks and the labels of a kind were read anew.
    Read(usize),
    /// The farm has said this of itself; `None`: it could not be written.
    Announced(Option<FarmPresence>),
    /// Bells were taken down, but for these.
    Quiet(Vec<Rung>),
}

/// State that survives a lost Consul session.
pub(super) struct FarmLoop<'f> {
    pub(super) farm: &'f FarmContext,
    pub(super) wake_queue: Arc<WakeQueue>,
    pub(super) peers: Arc<Cache<Peers>>,
    pub(super) doorbells: Arc<Cache<Doorbells>>,
    pub(super) states: Vec<KindState>,
    /// Since when each farm has been seen, and the CreateIndex of its presence: a new one is a new farm.
    pub(super) peers_since: BTreeMap<FarmName, (Instant, Index)>,
}

/// State of one Consul session.
pub(super) struct SessionState {
    pub(super) epoch: Epoch,
    claims: Claims,
    tasks: JoinSet<(usize, RecordId, TaskExit)>,
    pub(super) beside: FuturesUnordered<BoxFuture<'static, Done>>,
    parted: Vec<(usize, RecordId, LockRelease)>,
    pub(super) since: Timestamp,
    pub(super) announced: Announced,
    answering: Answering,
}

impl FarmLoop<'_> {
    /// One session from its first claim to its end; when it returns, no task runs any more.
    pub(super) async fn epoch(
        &mut self,
        keeper: &Arc<Keeper>,
        kept: &Arc<KeptSession>,
        shutdown: &CancellationToken,
    ) {
        let span = error_span!("session", id = %kept.epoch().session());
        // A task of its own: however busy the work is, the heart beats. When the keeper ends the epoch, the work
        // sees it and stops its tasks before it returns.
        let keeping = {
            let (keeper, kept) = (keeper.clone(), kept.clone());
            async move { keeper.keep(&kept).await }.instrument(span.clone())
        };
        let keeping = AbortOnDropHandle::new(tokio::spawn(failpoints::task(keeping)));
        self.work(kept.epoch(), shutdown).instrument(span).await;
        drop(keeping);
    }

    async fn work(&mut self, epoch: &Epoch, shutdown: &CancellationToken) {
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
            announced: Announced::default(),
            answering: Answering::default(),
        };
        self.farm.note(|report| report.session = Some(epoch.session().to_string()));
        let named = tokio::select! {
            biased;
            () = shutdown.cancelled() => false,
            () = epoch.ended() => false,
            () = self.take_name(&mut e) => true,
        };
        if named {
            self.serve(&mut e, shutdown).await;
        }
        self.stop_all(&mut e).await;
        self.farm.note(|report| {
            report.session = None;
            report.claims.clear();
        });
    }

    /// The loop.
    async fn serve(&mut self, e: &mut SessionState, shutdown: &CancellationToken) {
        let mut again_at = Some(Instant::now());
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
                        // Whatever became of the locks, they are planned for anew.
                        Done::Parted(_, ReleaseOutcome::Unknown) => true,
                        Done::Parted(_, ReleaseOutcome::AsPlanned) => false,
                        Done::Announced(presence) => {
                            e.announced.said = presence;
                            false
                        }
                        Done::Quiet(pending) => {
                            e.answering.still_hang(pending, Instant::now());
                            false
                        }
                    }
                }
                events = wake_queue.take() => self.heard(e, events),
                () = wait_until(again_at) => true,
            };
            // The first plan waits for every tree; a half-read world would look like unowned records.
            let by_labels = self.is_selected_by_labels();
            self.states.iter().for_each(|state| state.wake_watches(by_labels));
            replan &= self.states.iter().all(KindState::is_read) && self.peers.snapshot().is_read();
            if replan {
                again_at = self.plan_claims(e);
            } else if again_at.is_some_and(|at| at <= Instant::now()) {
                again_at = Some(Instant::now() + Duration::from_millis(50));
            }
            let due = [self.announce_again(e), self.take_bells_down(e)];
            again_at = due.into_iter().chain([again_at]).flatten().min();
        }
    }

    /// Whether any live farm claims some records only.
    fn is_selected_by_labels(&self) -> bool {
        let peers = self.peers.snapshot();
        let mut selectors = peers.value.0.values().map(|peer| &peer.selector);
        !self.farm.settings.selector.is_everything() || selectors.any(|s| !s.is_everything())
    }

    /// Passes events on; whether claims are to be planned.
    fn heard(&mut self, e: &mut SessionState, events: Vec<FarmEvent>) -> bool {
        let mut replan = false;
        for event in events {
            match event {
                FarmEvent::Claims => replan = true,
                FarmEvent::Changed(ids) => {
                    for state in &self.states {
                        ids.iter()
                            .filter_map(|id| state.running.get(id))
                            .for_each(RunningRecord::wake);
                    }
                }
                FarmEvent::All => {
                    self.states
                        .iter()
                        .flat_map(|state| state.running.values())
                        .for_each(RunningRecord::wake);
                }
                FarmEvent::Doorbells => self.answer_bells(e),
            }
        }
        replan
    }

    /// Answers the doorbells of our records: their trees are read at once, and their tasks look again.
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
            let state = self.states.iter().find(|state| state.spec.name == kind);
            if confirmed || state.is_some_and(|state| state.answer_bell(id, *index)) {
                e.answering.answered(bell.clone(), *index, Instant::now());
            }
        }
    }

    /// Takes the answered doorbells down when their time has come, but for those that were rung anew; when it will.
    fn take_bells_down(&self, e: &mut SessionState) -> Option<Instant> {
        let now = Instant::now();
        if let Some(at) = e.answering.due().filter(|at| *at > now) {
            return Some(at);
        }
        for doorbells in e.answering.take(self.farm.settings.limits.ops) {
            e.beside.push(Box::pin(quieten(self.farm.env.store.clone(), doorbells)));
        }
        None
    }

    /// A person says that the trees are meant to be as small as they are.
    fn confirm(&self) {
        warn!("mass deletion confirmed by an operator");
        for state in &self.states {
            state.records.confirm();
            state.kind.confirm();
            state.running.values().for_each(RunningRecord::wake);
        }
        self.wake_queue.push(FarmEvent::Claims);
    }

    fn plan_claims(&mut self, e: &mut SessionState) -> Option<Instant> {
        let now = Instant::now();
        let peers = self.peers.snapshot();
        self.peers_since.retain(|farm, _| peers.value.0.contains_key(farm));
        for (farm, peer) in &peers.value.0 {
            let seen = self.peers_since.entry(farm.clone()).or_insert((now, peer.created));
            if seen.1 != peer.created {
                *seen = (now, peer.created);
            }
        }
        let since = self.peers_since.iter().map(|(farm, (at, _))| (farm.clone(), *at)).collect();
        let mut again_at: Option<Instant> = None;
        for n in 0..self.states.len() {
            let state = &mut self.states[n];
            let (records, labels) = (state.records.snapshot(), state.labels.snapshot());
            let left_behind = match records.untrusted {
                None => state.kind.left_behind(&records.value),
                Some(_) => BTreeSet::new(),
            };
            if !left_behind.is_empty() {
                // When nothing is left nobody says so.
                again_at = Some(again_at.map_or(now + TIDYING, |at| at.min(now + TIDYING)));
            }
            state.take_stock(&left_behind, now);
            let held = state.running.keys().chain(&state.claiming).cloned().collect();
            let decided = plan(&ClaimsObserved {
                records: &records.value,
                left_behind: &left_behind,
                labels: &labels.value,
                locks: &state.locks.snapshot().value,
                peers: &peers.value,
                peers_since: &since,
                me: &self.farm.settings.name,
                session: e.epoch.session(),
                selector: &self.farm.settings.selector,
                held: &held,
                barred: &state.barred,
                unowned_since: &state.unowned_since,
                doubtful: state.is_doubted,
                suspicious: records.untrusted.is_some(),
                now,
            });
            again_at = [again_at, decided.again_at].into_iter().flatten().min();
            self.carry_out(e, n, decided, &labels.value);
        }
        let suspicions = self.untrusted_caches();
        self.farm.note(|report| {
            report.suspicions = suspicions;
            for state in &self.states {
                report.claims.insert(state.spec.name.to_owned(), state.running.len());
            }
        });
        again_at
    }

    /// `labels` are what the plan was made from.
    fn carry_out(
        &mut self,
        e: &mut SessionState,
        n: usize,
        plan: ClaimPlan,
        labels: &RecordLabels,
    ) {
        let peers = self.peers.snapshot();
        let state = &mut self.states[n];
        if !plan.claim.is_empty() || !plan.adopt.is_empty() {
            state.claiming.extend(plan.claim.iter().chain(&plan.adopt).cloned());
            let new =
                plan.adopt.is_empty() && plan.claim.iter().all(|id| !state.had_owner.contains(id));
            e.beside.push(Box::pin(claim_round(
                e.claims.clone(),
                n,
                (state.spec.clone(), state.kind.clone()),
                state.records.clone(),
                plan.claim,
                plan.adopt,
                new,
            )));
        }
        for (id, lock) in plan.stray {
            info!(kind = state.spec.name, record = %id, lock, "released an orphaned lock");
            state.barred.insert(id.clone(), Instant::now() + BUSY_PAUSE);
            let (claims, spec) = (e.claims.clone(), state.spec.clone());
            e.beside.push(Box::pin(async move {
                Done::Parted(n, claims.release_stray(&spec, &id, &lock).await)
            }));
        }
        let guard = |id: &RecordId| labels.guard(&state.spec.labels, id);
        let release = plan.release.into_iter().map(|id| {
            let is_there = state.records.snapshot().value.0.contains_key(&id);
            let guard = is_there.then(|| guard(&id)).flatten();
            (id, LockRelease::Release(guard))
        });
        let drop = plan.drop.into_iter().map(|id| (id, LockRelease::Drop));
        let hand_over = plan.hand_over.into_iter().map(|(id, farm, to)| {
            let takes_all =
                |farm| peers.value.0.get(farm).is_some_and(|peer| peer.selector.is_everything());
            let guard = if takes_all(&farm) { None } else { guard(&id) };
            (id, LockRelease::HandOver(farm, to, guard))
        });
        let mut dropped = false;
        let partings: Vec<_> = release.chain(drop).chain(hand_over).collect();
        for (id, parting) in partings {
            match state.running.get_mut(&id) {
                Some(running) if running.parting.is_none() => {
                    dropped |= parting == LockRelease::Drop;
                    running.parting = Some(parting);
                    running.handle.stop.cancel();
                }
                Some(_) => {}
                None if !state.claiming.contains(&id) => e.parted.push((n, id, parting)),
                None => {}
            }
        }
        if dropped {
            self.doubt(e, n);
        }
        self.part(e);
    }

    /// Starts the tasks of records just claimed.
    fn claimed(&mut self, e: &mut SessionState, n: usize, round: Round) {
        let state = &mut self.states[n];
        let now = Instant::now();
        for id in round.busy.into_iter().chain(round.unknown) {
            state.claiming.remove(&id);
            state.bar(id, now);
        }
        if !round.won.is_empty() {
            info!(kind = state.spec.name, records = round.won.len(), "claimed");
        }
        for id in round.won {
            state.claiming.remove(&id);
            state.refused.remove(&id);
            state.unowned_since.insert(id.clone(), now);
            let Some(lock) = state.spec.lock_key(&id) else { continue };
            let claim = Claim::new(lock, e.epoch.clone());
            let handle = Arc::new(TaskHandle {
                wake: Arc::new(Notify::new()),
                stop: CancellationToken::new(),
            });
            let claimed = ClaimedRecord {
                id: id.clone(),
                claim: claim.clone(),
                records: state.records.clone(),
                labels: state.labels.clone(),
                locks: state.locks.clone(),
            };
            let child = RecordTask {
                kind: state.kind.clone(),
                claimed,
                handle: handle.clone(),
                turns: state.turns.clone(),
                ids: self.farm.env.ids.fork(),
            };
            let name = id.clone();
            let task = async move { (n, name, child.run().await) };
            e.tasks.spawn(failpoints::task(task.instrument(tracing::Span::current())));
            state.running.insert(id, RunningRecord { handle, claim, parting: None });
        }
    }

    fn task_ended(
        &mut self,
        e: &mut SessionState,
        joined: Result<(usize, RecordId, TaskExit), tokio::task::JoinError>,
    ) {
        let (n, id, exit) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                // A child contains its controller's panics, so this is a fault of the farm itself. The record
                // stays claimed and idle until the next epoch; ending the epoch is the cure.
                error!(alert = true, %error, "a task panicked: closing the session");
                e.epoch.end();
                return;
            }
        };
        let state = &mut self.states[n];
        let Some(running) = state.running.remove(&id) else { return };
        match (running.parting, exit) {
            (Some(parting), _) if running.claim.is_live() => e.parted.push((n, id, parting)),
            (_, TaskExit::ClaimLost) if e.epoch.is_live() => {
                warn!(kind = state.spec.name, record = %id, "the claim is lost");
                state.barred.insert(id, Instant::now() + BUSY_PAUSE);
                self.farm.note(|report| report.claims_lost += 1);
                // Its tree may say for a long time that the lock is ours, and the record would be taken up again.
                self.doubt(e, n);
            }
            _ => {}
        }
    }

    /// Consul has refused what followed from the locks or the labels of a kind: they are read anew, once for all who
    /// doubt.
    fn doubt(&mut self, e: &mut SessionState, n: usize) {
        let state = &mut self.states[n];
        if std::mem::replace(&mut state.is_doubted, true) {
            return;
        }
        // Labels that nobody has looked at stay unread: once read, they would count as up to date.
        let labels = state.labelled.is_cancelled().then(|| state.labels.clone());
        e.beside.push(Box::pin(read_anew(n, state.locks.clone(), labels)));
    }

    /// Gives up or hands over the locks of tasks that have stopped, once no more are about to.
    fn part(&mut self, e: &mut SessionState) {
        let stopping = self.states.iter().flat_map(|state| state.running.values());
        let stopping = stopping.filter(|running| running.parting.is_some()).count();
        if e.parted.is_empty() || (stopping > 0 && e.parted.len() < 30) {
            return;
        }
        let mut releases: BTreeMap<usize, Vec<Guarded>> = BTreeMap::new();
        let mut hand_overs: BTreeMap<(usize, FarmName, SessionId), Vec<Guarded>> = BTreeMap::new();
        for (n, id, parting) in e.parted.drain(..) {
            // Until the lock tree shows the new owner, the record must not look like one to adopt.
            self.states[n].barred.insert(id.clone(), Instant::now() + BUSY_PAUSE);
            match parting {
                LockRelease::Release(guard) => releases.entry(n).or_default().push((id, guard)),
                LockRelease::HandOver(farm, to, guard) => {
                    hand_overs.entry((n, farm, to)).or_default().push((id, guard));
                }
                LockRelease::Drop => {}
            }
        }
        for (n, ids) in releases {
            let (claims, spec) = (e.claims.clone(), self.states[n].spec.clone());
            info!(kind = spec.name, records = ids.len(), "released");
            e.beside
                .push(Box::pin(async move { Done::Parted(n, claims.release(&spec, &ids).await) }));
        }
        for ((n, farm, to), ids) in hand_overs {
            let (claims, spec) = (e.claims.clone(), self.states[n].spec.clone());
            info!(kind = spec.name, records = ids.len(), to = %farm, "handed over");
            e.beside.push(Box::pin(async move {
                Done::Parted(n, claims.hand_over(&spec, &ids, &farm, &to).await)
            }));
        }
    }

    /// Stops every task and waits for it. The locks go with the session.
    async fn stop_all(&mut self, e: &mut SessionState) {
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
        let all = async { while e.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
            warn!("some tasks do not stop; they are aborted");
        }
        e.tasks.shutdown().await;
    }
}

/// Takes doorbells down, each unless it was rung anew.
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

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Reads the locks and the labels of a kind until it succeeds. Their watches alone would not do: after a restored
/// snapshot they wait for indexes that are far off.
async fn read_anew(
    n: usize,
    locks: Arc<Cache<Locks>>,
    labels: Option<Arc<Cache<RecordLabels>>>,
) -> Done {
    let mut failures = 0;
    while let Err(error) = async {
        locks.read_now().await?;
        match &labels {
            Some(labels) => labels.read_now().await.map(drop),
            None => Ok(()),
        }
    }
    .await
    {
        debug!(%error, "locks and labels cannot be reread yet");
        sleep(backoff(READ_AGAIN.0, READ_AGAIN.1, failures)).await;
        failures += 1;
    }
    Done::Read(n)
}

/// Claims what is free, then brings the kind up to date once for all that are ours now. `new`: none of them was
/// ever seen with an owner.
async fn claim_round(
    claims: Claims,
    n: usize,
    (spec, kind): (Arc<KindSpec>, Arc<dyn Kind>),
    records: Arc<Cache<Records>>,
    free: Vec<RecordId>,
    adopted: Vec<RecordId>,
    new: bool,
) -> Done {
    let mut round = claims.take(spec, free).await;
    round.won.extend(adopted);
    let seen = records.snapshot();
    // What has no record is claimed for what is left of it.
    let created = |id| seen.value.0.get(id).filter(|_| new).map(|record| record.created);
    let oldest = round.won.iter().map(|id| created(id).unwrap_or(Index::ZERO)).min();
    if let Some(oldest) = oldest
        && let Err(error) = kind.prepare(oldest).await
    {
        warn!(%error, "the caches could not be refreshed after claiming; each task reads for itself");
    }
    Done::Claimed(n, round)
}
