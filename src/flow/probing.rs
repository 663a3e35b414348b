//! Makes the probes of one flow in a task beside its reconciliations. One that waits for members that do not answer would
//! hold one of the kind's permits, and a hundred such flows would delay all others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::plan::{PROBE_EVERY, ProbeAnswer, ProbeAnswers, ProbeRequest};
use super::probes::{self, ProbeResults};
use rcfarm_api::ids::{Namespace, ObjectName};
use rcfarm_store::time::monotonic;
use rcfarm_store::{Reader, StoreError, failpoints};

/// Flows of a namespace that make probes at the same time. Each has up to 16 connections. One namespace never waits for
/// another.
const PROBING_AT_ONCE: usize = 16;

/// Limits how many flows of each namespace make probes at the same time.
#[derive(Default)]
pub(super) struct ProbeSlots(Mutex<BTreeMap<Namespace, Weak<Semaphore>>>);

impl ProbeSlots {
    /// Those of a namespace.
    pub(super) fn of(&self, namespace: &Namespace) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Semaphore::new(PROBING_AT_ONCE));
        all.insert(namespace.clone(), Arc::downgrade(&slots));
        slots
    }
}

/// What a round of probes needs.
#[derive(Clone)]
pub(super) struct ProbeContext {
    pub(super) reader: Arc<dyn Reader>,
    pub(super) namespace: Namespace,
    pub(super) slots: Arc<Semaphore>,
    /// Makes the flow's controller reconcile.
    pub(super) wake: Arc<Notify>,
}

/// The probes of one flow.
pub(super) struct Probing {
    ctx: ProbeContext,
    running: Option<Round>,
    answers: ProbeAnswers,
    /// When the last round ended.
    ended: Option<Instant>,
}

/// Probes that are being made, or will be.
struct Round {
    requests: Vec<ProbeRequest>,
    results: oneshot::Receiver<Result<ProbeResults, StoreError>>,
    _task: AbortOnDropHandle<()>,
}

impl Probing {
    pub(super) fn new(ctx: ProbeContext) -> Probing {
        Probing { ctx, running: None, answers: ProbeAnswers::new(), ended: None }
    }

    /// The last answers.
    pub(super) fn answers(&self) -> &ProbeAnswers {
        &self.answers
    }

    /// Takes new answers in, and forgets those that passed longer than [`PROBE_EVERY`] ago.
    pub(super) fn refresh(&mut self) {
        self.take_results();
        if self.ended.is_some_and(|at| monotonic() - at > PROBE_EVERY) {
            self.answers.retain(|_, answer| answer.result.is_err());
        }
    }

    fn take_results(&mut self) {
        let Some(round) = &mut self.running else { return };
        let results = match round.results.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return,
            Ok(Ok(results)) => results,
            Ok(Err(error)) => {
                info!(namespace = %self.ctx.namespace, %error, "probes could not be made; will retry");
                ProbeResults::new()
            }
            // It panicked.
            Err(oneshot::error::TryRecvError::Closed) => ProbeResults::new(),
        };
        let requests = std::mem::take(&mut round.requests);
        self.running = None;
        self.ended = Some(monotonic());
        let answer = |(step, result): (ObjectName, _)| {
            let of_step = requests.iter().filter(|request| request.step == step);
            let requests = of_step.cloned().collect();
            (step, ProbeAnswer { requests, result })
        };
        self.answers = results.into_iter().map(answer).collect();
    }

    /// Sees to it that these probes are made: at once if one of them is new, otherwise [`PROBE_EVERY`] after the last
    /// round. The controller is woken when there are answers. A round that has begun goes on while one of its probes
    /// is wanted.
    pub(super) fn make(&mut self, wanted: Vec<ProbeRequest>) {
        let is_useful = |round: &Round| wanted.iter().any(|one| round.requests.contains(one));
        if wanted.is_empty() || self.running.as_ref().is_some_and(|round| !is_useful(round)) {
            self.running = None;
        }
        if wanted.is_empty() || self.running.is_some() {
            return;
        }
        let is_new = |one: &ProbeRequest| {
            let answer = self.answers.get(&one.step);
            answer.is_none_or(|answer| !answer.requests.contains(one))
        };
        // After a round that could not be made, new ones wait, too.
        let has_new = !self.answers.is_empty() && wanted.iter().any(is_new);
        let at = match self.ended {
            Some(ended) if !has_new => ended + PROBE_EVERY,
            _ => monotonic(),
        };
        self.running = Some(self.start(wanted, at));
    }

    fn start(&self, requests: Vec<ProbeRequest>, at: Instant) -> Round {
        let (ctx, asked) = (self.ctx.clone(), requests.clone());
        let (send, results) = oneshot::channel();
        let round = async move {
            sleep_until(at).await;
            let made = {
                // Never closed.
                let _slot = ctx.slots.acquire().await;
                probes::run_probes(ctx.reader.as_ref(), &ctx.namespace, &asked).await
            };
            // Nobody waits for them any more.
            let _ = send.send(made);
            ctx.wake.notify_one();
        };
        let task = AbortOnDropHandle::new(tokio::spawn(failpoints::task(round)));
        Round { requests, results, _task: task }
    }
}
