//! Runs a farm: preflight checks, watches, then one Consul session after another.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, error_span, info, warn};

use super::clock_watch;
use super::context::{FarmContext, FarmReport, PlacementReport, ReportPlacement};
use super::farm_loop::FarmLoop;
use super::kind::RegisteredKind;
use super::kind_state::KindState;
use super::metrics::FarmMetrics;
use super::preflight::{self, PreflightError};
use super::records::{Doorbells, Peers};
use super::settings::FarmSettings;
use super::subscriptions::{Subscriptions, started};
use super::wake_queue::{FarmEvent, WakeQueue};
use rcfarm_api::{backoff, key};
use rcfarm_store::cache::Cache;
use rcfarm_store::session::{FarmMember, Keeper};
use rcfarm_store::time::monotonic;
use rcfarm_store::watch::PollPolicy;
use rcfarm_store::{Env, StoreError, failpoints};

/// A session that is lost within this time of its beginning is followed by a pause, which grows with each further one.
/// Claiming all records anew is the most expensive thing that a farm does.
const SHORT_SESSION: Duration = Duration::from_secs(30);
/// First pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Why a farm ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum FarmError {
    /// The preflight checks failed.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// A watch panicked, which is a defect of the program. The panic is in the log.
    #[error("a watch ended after a panic, which is a defect: see the log, then restart the farm")]
    WatchDied,
}

/// A farm, set up but not yet running.
pub struct Farm {
    context: FarmContext,
    kinds: Vec<RegisteredKind>,
}

impl Farm {
    pub fn new(settings: FarmSettings, env: Env, kinds: Vec<RegisteredKind>) -> Self {
        let placement = Arc::new(PlacementReport::default);
        let (report, metrics) = (Arc::default(), Arc::default());
        Farm { context: FarmContext { settings, env, report, metrics, placement }, kinds }
    }

    /// Adds to the farm's presence what `placement` reports.
    #[must_use]
    pub fn reporting(self, placement: ReportPlacement) -> Self {
        Farm { context: FarmContext { placement, ..self.context }, ..self }
    }

    /// State of the farm; stays readable while it runs.
    pub fn report(&self) -> Arc<Mutex<FarmReport>> {
        self.context.report.clone()
    }

    /// Metrics of the farm; stay readable while it runs.
    pub fn metrics(&self) -> Arc<FarmMetrics> {
        self.context.metrics.clone()
    }

    /// Runs until `shutdown`, then stops every task, releases every lock and returns.
    ///
    /// # Errors
    /// [`FarmError`] when it must not start (no rights, a newer layout) or a watch panicked. Failures of the store are
    /// retried.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), FarmError> {
        let span = error_span!("farm", farm = %self.context.settings.name);
        self.run_inner(shutdown).instrument(span).await
    }

    async fn run_inner(self, shutdown: CancellationToken) -> Result<(), FarmError> {
        let started = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            started = self.preflight() => started,
        };
        started?;
        let reader: Arc<dyn rcfarm_store::Reader> = self.context.env.store.clone();
        let wake_queue = Arc::new(WakeQueue::default());
        let peers = Cache::<Peers>::new(reader.clone(), key::farms(), PollPolicy::PROMPT);
        let doorbells = Cache::<Doorbells>::new(reader.clone(), key::bells(), PollPolicy::PROMPT);
        let ops = self.context.settings.limits.ops;
        let states: Vec<KindState> =
            self.kinds.iter().map(|kind| KindState::new(kind, &reader, ops)).collect();
        let mut watches = JoinSet::new();
        let subscriptions = self.subscribe(&wake_queue, &peers, &doorbells, &states);
        let (caches, tasks) = subscriptions.into_parts();
        let of_clocks = clock_watch::watch(self.context.env.clock.clone(), wake_queue.clone());
        for watch in tasks.into_iter().chain([of_clocks.boxed()]) {
            watches.spawn(failpoints::task(watch.instrument(tracing::Span::current())));
        }
        let mut farm_loop = FarmLoop {
            farm: &self.context,
            wake_queue,
            peers,
            doorbells,
            states,
            caches,
            started_at: monotonic(),
            peers_since: BTreeMap::new(),
        };
        let stop = shutdown.child_token();
        let mut living = pin!(self.live(&mut farm_loop, &stop));
        let ended = tokio::select! {
            biased;
            () = &mut living => Ok(()),
            // A watch ends only by a panic. Its cache would silently become stale.
            Some(died) = watches.join_next() => {
                error!(alert = true, ?died, "a watch ended: the farm stops rather than act on stale data");
                stop.cancel();
                living.await;
                Err(FarmError::WatchDied)
            }
        };
        watches.shutdown().await;
        info!("stopped");
        ended
    }

    async fn live(&self, farm_loop: &mut FarmLoop<'_>, shutdown: &CancellationToken) {
        let env = &self.context.env;
        let member = FarmMember::farm(&self.context.settings.name, &env.ids.uuid());
        let keeper = Keeper::new(env, member, self.context.settings.session.clone());
        let (mut failures, mut short_sessions) = (0, 0);
        while !shutdown.is_cancelled() {
            let opened = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                opened = keeper.open() => opened,
            };
            let pause = match opened {
                Ok(kept) => {
                    failures = 0;
                    let begun = monotonic();
                    farm_loop.session(&kept, shutdown).await;
                    let is_lost = !kept.is_outdated() && !shutdown.is_cancelled();
                    keeper.close(kept, shutdown.is_cancelled()).await;
                    if is_lost {
                        self.context.note(|report| report.epochs_lost += 1);
                    }
                    if !is_lost || monotonic() - begun >= SHORT_SESSION {
                        short_sessions = 0;
                        continue;
                    }
                    short_sessions += 1;
                    backoff(FIRST_PAUSE, Duration::from_secs(10), short_sessions - 1)
                }
                Err(error) => {
                    failures += 1;
                    match error {
                        StoreError::Forbidden { .. } if failures == 1 => warn!(
                            alert = true, %error,
                            "Consul refuses the farm's token: nothing is claimed until it is accepted"
                        ),
                        _ if failures == 1 || failures % 10 == 0 => {
                            warn!(%error, failures, "no session can be opened; nothing is claimed");
                        }
                        _ => {}
                    }
                    backoff(FIRST_PAUSE, Duration::from_secs(5), failures - 1)
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = sleep(env.ids.jitter(pause, 0.5)) => {}
            }
        }
    }

    async fn preflight(&self) -> Result<(), PreflightError> {
        let (mut failures, mut readable) = (0, BTreeSet::new());
        loop {
            let store = self.context.env.store.as_ref();
            match preflight::check(store, &self.kinds, &mut readable).await {
                Err(error) if error.is_retryable() => {
                    failures += 1;
                    if failures == 1 || failures % 10 == 0 {
                        let fix = error.tls_remedy();
                        warn!(%error, failures, fix, "Consul is not ready; waiting");
                    }
                    let pause =
                        backoff(Duration::from_millis(200), Duration::from_secs(5), failures - 1);
                    sleep(self.context.env.ids.jitter(pause, 0.5)).await;
                }
                result => return result,
            }
        }
    }

    fn subscribe(
        &self,
        wake_queue: &Arc<WakeQueue>,
        peers: &Arc<Cache<Peers>>,
        doorbells: &Arc<Cache<Doorbells>>,
        states: &[KindState],
    ) -> Subscriptions {
        let mut all = Subscriptions::new(wake_queue.clone(), self.context.env.ids.clone());
        let queue = wake_queue.clone();
        all.on(peers, started(), move |old, new| {
            if old.value != new.value {
                queue.push(FarmEvent::Claims);
            }
        });
        let queue = wake_queue.clone();
        all.on(doorbells, started(), move |_, _| queue.push(FarmEvent::Doorbells));
        states.iter().for_each(|state| state.subscribe(&mut all));
        all
    }
}
