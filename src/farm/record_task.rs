//! The task of one claimed record: calls its controller, waits, contains its failures.
//!
//! Failures of the store are retried with backoff. A record that keeps failing, or whose controller panics, is quarantined:
//! its status says so, it is retried rarely, and other records are not affected.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::kind::{Action, ClaimedRecord, Controller, Kind, ReconcileError};
use super::metrics::ReconcileOutcome;
use rcfarm_api::backoff;
use rcfarm_store::failpoints::{Failpoint, enabled};
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{StoreError, panic_text};

/// A record is reconciled again after this long, plus up to half as much jitter, whatever the watches report.
const RESYNC: Duration = Duration::from_secs(300);
/// The record is quarantined after this many failures in a row.
const PATIENCE: u32 = 3;

/// Why a record task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskExit {
    /// The farm stopped it.
    Stopped,
    ClaimLost,
}

/// Handle by which the farm wakes and stops a record task.
pub struct TaskHandle {
    /// Makes the controller reconcile.
    pub wake: Arc<Notify>,
    pub stop: CancellationToken,
}

/// What a record task needs.
pub struct RecordTask {
    /// The record's kind.
    pub kind: Arc<dyn Kind>,
    /// Its claim, and the caches of its kind.
    pub claimed: ClaimedRecord,
    /// Handle, of which the farm keeps a copy.
    pub handle: Arc<TaskHandle>,
    /// Limits the tasks of the kind that reconcile at the same time. Ten thousand at once would delay the session's
    /// heartbeats.
    pub permits: Arc<Semaphore>,
    /// Source of jitter.
    pub ids: IdSource,
}

/// Result of one call of the controller.
enum Attempt {
    Done(Action),
    Failed(ReconcileError),
    Panicked(String),
}

impl Attempt {
    fn outcome(&self) -> ReconcileOutcome {
        match self {
            Attempt::Done(_) => ReconcileOutcome::Done,
            Attempt::Failed(ReconcileError::ClaimLost) => ReconcileOutcome::ClaimLost,
            Attempt::Failed(
                ReconcileError::Store(StoreError::TooLarge { .. }) | ReconcileError::Record(_),
            )
            | Attempt::Panicked(_) => ReconcileOutcome::Failed,
            Attempt::Failed(ReconcileError::Store(_) | ReconcileError::Elsewhere(_)) => {
                ReconcileOutcome::Retried
            }
        }
    }
}

impl RecordTask {
    /// Runs until stopped or until the claim is lost. A call of the controller may be dropped halfway: all that it sent
    /// is fenced.
    pub async fn run(self: Box<Self>) -> TaskExit {
        let mut controller = self.kind.controller(self.claimed.clone());
        let (mut failures, mut store_failures) = (0, 0);
        loop {
            let attempt = tokio::select! {
                biased;
                () = self.handle.stop.cancelled() => return TaskExit::Stopped,
                () = self.claimed.claim.lost() => return TaskExit::ClaimLost,
                attempt = self.attempt(controller.as_mut()) => attempt,
            };
            let (hold, wait) = match attempt {
                Attempt::Done(next) => {
                    (failures, store_failures) = (0, 0);
                    let resync = self.ids.jitter(RESYNC, 0.5);
                    match next {
                        Action::AwaitChange => (Duration::ZERO, resync),
                        Action::RequeueAfter(pause) => (Duration::ZERO, pause.min(resync)),
                    }
                }
                Attempt::Failed(ReconcileError::ClaimLost) => return TaskExit::ClaimLost,
                // The same change is too large the next time, too.
                Attempt::Failed(ReconcileError::Store(error @ StoreError::TooLarge { .. })) => {
                    failures += 1;
                    self.contain(controller.as_mut(), failures, &error.to_string()).await
                }
                Attempt::Failed(ReconcileError::Store(error)) => {
                    store_failures += 1;
                    if store_failures == 1 {
                        info!(record = %self.claimed.id, %error, "will retry");
                    }
                    let base = Duration::from_millis(50);
                    let pause = backoff(base, Duration::from_secs(5), store_failures - 1);
                    (self.ids.jitter(pause, 0.5), Duration::ZERO)
                }
                Attempt::Failed(ReconcileError::Elsewhere(why)) => {
                    store_failures += 1;
                    if store_failures == 1 {
                        warn!(record = %self.claimed.id, why, "will retry");
                    }
                    let base = Duration::from_millis(500);
                    let pause = backoff(base, Duration::from_secs(30), store_failures - 1);
                    (self.ids.jitter(pause, 0.5), Duration::ZERO)
                }
                Attempt::Failed(ReconcileError::Record(why)) => {
                    failures += 1;
                    self.contain(controller.as_mut(), failures, &why).await
                }
                Attempt::Panicked(why) => {
                    failures += 1;
                    controller = self.kind.controller(self.claimed.clone());
                    let why = format!("internal error: {why}");
                    self.contain(controller.as_mut(), failures.max(PATIENCE), &why).await
                }
            };
            if let Some(exit) = self.wait(hold, wait).await {
                return exit;
            }
        }
    }

    /// Waits `hold`, whatever happens, then `wait` or until woken.
    async fn wait(&self, hold: Duration, wait: Duration) -> Option<TaskExit> {
        tokio::select! {
            biased;
            () = self.handle.stop.cancelled() => Some(TaskExit::Stopped),
            () = self.claimed.claim.lost() => Some(TaskExit::ClaimLost),
            () = async {
                sleep(hold).await;
                tokio::select! {
                    biased;
                    () = self.handle.wake.notified() => {}
                    () = sleep(wait) => {}
                }
            } => None,
        }
    }

    /// Quarantines the record from [`PATIENCE`] failures in a row on. Returns the arguments of [`RecordTask::wait`].
    async fn contain(
        &self,
        controller: &mut dyn Controller,
        failures: u32,
        why: &str,
    ) -> (Duration, Duration) {
        if failures < PATIENCE || enabled(Failpoint::NoQuarantine) {
            warn!(record = %self.claimed.id, failures, why, "the record fails");
            return (self.ids.jitter(Duration::from_millis(500), 0.5), Duration::ZERO);
        }
        let base = Duration::from_secs(10);
        let pause = backoff(base, Duration::from_secs(300), failures - PATIENCE);
        let pause = self.ids.jitter(pause, 0.2);
        error!(alert = true, record = %self.claimed.id, failures, why, ?pause, "quarantined");
        let report = AssertUnwindSafe(controller.report_quarantine(why, pause)).catch_unwind();
        tokio::select! {
            biased;
            () = self.handle.stop.cancelled() => {}
            () = self.claimed.claim.lost() => {}
            reported = report => if let Ok(Err(error)) = reported {
                warn!(record = %self.claimed.id, %error, "the quarantine could not be reported");
            }
        }
        // A change of the record may fix it, so after 1 s a wake ends the pause.
        (Duration::from_secs(1), pause)
    }

    async fn attempt(&self, controller: &mut dyn Controller) -> Attempt {
        let _permit = self.permits.acquire().await;
        let begun = monotonic();
        self.claimed.metrics.begins(begun);
        let attempt = match AssertUnwindSafe(controller.reconcile()).catch_unwind().await {
            Ok(Ok(next)) => Attempt::Done(next),
            Ok(Err(error)) => Attempt::Failed(error),
            Err(panic) if enabled(Failpoint::PanicEscapes) => std::panic::resume_unwind(panic),
            Err(panic) => Attempt::Panicked(panic_text(panic.as_ref())),
        };
        self.claimed.metrics.reconciled(attempt.outcome(), monotonic() - begun);
        attempt
    }
}
