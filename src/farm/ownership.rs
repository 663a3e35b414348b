//! Ownership of records: plans claims, starts the tasks of claimed records, releases and hands over locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, error, info, warn};

use super::claims::{BUSY_PAUSE, Claims, Guarded, Round};
use super::farm_loop::{Done, FarmLoop, SessionState};
use super::kind::{ClaimedRecord, Kind, KindSpec};
use super::kind_state::{LockRelease, RunningRecord};
use super::metrics::RecordMetrics;
use super::plan::{ClaimPlan, ClaimsObserved, plan};
use super::record_labels::SelectedBy;
use super::record_task::{RecordTask, TaskExit, TaskHandle};
use super::records::{Locks, RecordLabels, Records};
use rcfarm_api::backoff;
use rcfarm_api::ids::{FarmName, RecordId, SessionId};
use rcfarm_store::cache::Cache;
use rcfarm_store::failpoints::{self, Failpoint, enabled};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Claim, Index};

/// Shortest and longest pause between attempts to read locks and labels again.
const READ_AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Claims are planned this often while something is left of deleted records.
const TIDYING: Duration = Duration::from_secs(2);

impl FarmLoop<'_> {
    pub(super) fn plan_claims(&mut self, e: &mut SessionState) -> Option<Instant> {
        let now = self.uptime();
        let peers = self.peers.snapshot();
        self.peers_since.retain(|farm, _| peers.value.0.contains_key(farm));
        for (farm, peer) in &peers.value.0 {
            let seen = self.peers_since.entry(farm.clone()).or_insert((now, peer.created));
            if seen.1 != peer.created {
                *seen = (now, peer.created);
            }
        }
        let since = self.peers_since.iter().map(|(farm, (at, _))| (farm.clone(), *at)).collect();
        let mut again_at: Option<Duration> = None;
        for n in 0..self.states.len() {
            let state = &mut self.states[n];
            let (records, labels) = (state.records.snapshot(), state.labels.snapshot());
            state.read_own_labels(&records);
            let own = state.own_labels.clone();
            let labels = SelectedBy { keys: &labels.value, own: &own };
            let left_behind = match records.untrusted {
                None => state.kind.left_behind(&records.value),
                Some(_) => BTreeSet::new(),
            };
            let is_ours = |id| labels.matches(id, &self.farm.settings.selector);
            if left_behind.iter().any(is_ours) {
                // No event tells when nothing is left any more.
                again_at = Some(again_at.map_or(now + TIDYING, |at| at.min(now + TIDYING)));
            }
            state.take_stock(&left_behind, now);
            let held = state.running.keys().chain(&state.claiming).cloned().collect();
            let mut decided = plan(&ClaimsObserved {
                records: &records.value,
                left_behind: &left_behind,
                labels,
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
            if enabled(Failpoint::ClaimKept) {
                let exists = |id: &RecordId| records.value.0.contains_key(id);
                decided.release.retain(|id| !held.contains(id) || !exists(id));
            }
            again_at = [again_at, decided.again_at].into_iter().flatten().min();
            self.carry_out(e, n, decided, labels);
        }
        let suspicions = self.untrusted_caches();
        self.farm.note(|report| {
            report.suspicions = suspicions;
            for state in &self.states {
                report.claims.insert(state.spec.name.to_owned(), state.running.len());
            }
        });
        again_at.map(|at| self.started_at + at)
    }

    fn uptime(&self) -> Duration {
        monotonic() - self.started_at
    }

    /// Executes a claim plan that was made from `labels`.
    pub(super) fn carry_out(
        &mut self,
        e: &mut SessionState,
        n: usize,
        plan: ClaimPlan,
        labels: SelectedBy<'_>,
    ) {
        let (peers, now) = (self.peers.snapshot(), self.uptime());
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
            state.barred.insert(id.clone(), now + BUSY_PAUSE);
            let (claims, spec) = (e.claims.clone(), state.spec.clone());
            e.beside.push(Box::pin(async move {
                Done::Parted(n, claims.release_stray(&spec, &id, &lock).await)
            }));
        }
        let guard = |id: &RecordId| labels.guards(&state.spec, id);
        let release = plan.release.into_iter().map(|id| {
            let is_there = state.records.snapshot().value.0.contains_key(&id);
            let guard = if is_there { guard(&id) } else { Vec::new() };
            (id, LockRelease::Release(guard))
        });
        let drop = plan.drop.into_iter().map(|id| (id, LockRelease::Drop));
        let hand_over = plan.hand_over.into_iter().map(|(id, farm, to)| {
            let takes_all =
                |farm| peers.value.value(farm).is_some_and(|peer| peer.selector.is_everything());
            let guard = if takes_all(&farm) { Vec::new() } else { guard(&id) };
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
    pub(super) fn claimed(&mut self, e: &mut SessionState, n: usize, round: Round) {
        let now = self.uptime();
        let state = &mut self.states[n];
        let mut is_stale = false;
        for id in round.busy {
            state.claiming.remove(&id);
            is_stale |= state.bar(id, now);
        }
        for id in round.unknown {
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
                wake: handle.wake.clone(),
                claim: claim.clone(),
                records: state.records.clone(),
                labels: state.labels.clone(),
                locks: state.locks.clone(),
                statuses: state.statuses.clone(),
                metrics: RecordMetrics::new(self.farm.metrics.clone(), state.spec.name, id.clone()),
            };
            // Boxed: a future may hold a value that it takes several times, and there are ten thousand of these.
            let child = Box::new(RecordTask {
                kind: state.kind.clone(),
                claimed,
                handle: handle.clone(),
                permits: state.permits.clone(),
                ids: self.farm.env.ids.fork(),
            });
            let name = id.clone();
            let task = async move { (n, name, child.run().await) };
            e.tasks.spawn(failpoints::task(task.instrument(tracing::Span::current())));
            state.running.insert(id, RunningRecord { handle, claim, parting: None });
        }
        // Such as after the token had lost its rights for a while: nothing tells that it has them again.
        if is_stale {
            self.doubt(e, n);
        }
    }

    pub(super) fn task_ended(
        &mut self,
        e: &mut SessionState,
        joined: Result<(usize, RecordId, TaskExit), tokio::task::JoinError>,
    ) {
        let (n, id, exit) = match joined {
            Ok(ended) => ended,
            Err(error) => {
                // A record task catches panics of its controller, so this is a defect of the farm. The record would
                // stay claimed without a task; ending the epoch releases it.
                error!(alert = true, %error, "a task panicked: closing the session");
                e.epoch.end();
                return;
            }
        };
        let now = self.uptime();
        let state = &mut self.states[n];
        let Some(running) = state.running.remove(&id) else { return };
        match (running.parting, exit) {
            (Some(parting), _) if running.claim.is_live() => e.parted.push((n, id, parting)),
            (_, TaskExit::ClaimLost) if e.epoch.is_live() => {
                warn!(kind = state.spec.name, record = %id, "the claim is lost");
                state.barred.insert(id, now + BUSY_PAUSE);
                self.farm.note(|report| report.claims_lost += 1);
                // The cache may show the lock as held by this session for long, and the plan would adopt the record
                // again.
                self.doubt(e, n);
            }
            _ => {}
        }
    }

    /// Reads the locks and labels of a kind again, because Consul refused a transaction based on them. Does nothing if
    /// that is under way.
    pub(super) fn doubt(&mut self, e: &mut SessionState, n: usize) {
        let state = &mut self.states[n];
        if std::mem::replace(&mut state.is_doubted, true) {
            return;
        }
        // Labels that are not watched stay unread: a cache that was read once counts as up to date.
        let labels = state.labelled.is_cancelled().then(|| state.labels.clone());
        e.beside.push(Box::pin(read_anew(n, state.locks.clone(), labels)));
    }

    /// Releases or hands over the locks of stopped tasks, once 30 have stopped or no other is stopping.
    pub(super) fn part(&mut self, e: &mut SessionState) {
        let stopping = self.states.iter().flat_map(|state| state.running.values());
        let stopping = stopping.filter(|running| running.parting.is_some()).count();
        if e.parted.is_empty() || (stopping > 0 && e.parted.len() < 30) {
            return;
        }
        let mut releases: BTreeMap<usize, Vec<Guarded>> = BTreeMap::new();
        let mut hand_overs: BTreeMap<(usize, FarmName, SessionId), Vec<Guarded>> = BTreeMap::new();
        let until = self.uptime() + BUSY_PAUSE;
        for (n, id, parting) in e.parted.drain(..) {
            // Until the lock cache shows the new owner, the plan must not adopt the record again.
            self.states[n].barred.insert(id.clone(), until);
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
}

/// Reads the locks and labels of a kind, with retries. Their watches do not suffice: after a snapshot was restored they
/// wait for indexes that are far off.
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

/// Claims free records, then refreshes the kind's caches once for all claimed ones. `new`: none of them had an owner
/// before.
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
    // A name without a record is claimed for its leftovers, which may have any index.
    let created = |id| seen.value.0.get(id).filter(|_| new).map(|record| record.created);
    let oldest = round.won.iter().map(|id| created(id).unwrap_or(Index::ZERO)).min();
    if let Some(oldest) = oldest
        && let Err(error) = kind.prepare(oldest).await
    {
        warn!(%error, "the caches could not be refreshed after claiming; each task reads for itself");
    }
    Done::Claimed(n, round)
}
