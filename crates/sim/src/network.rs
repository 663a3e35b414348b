//! Network between one simulated process and Consul; all requests of a process pass through it.
//!
//! Requests travel in tasks of their own. If the process dies, freezes or stops waiting, requests that it has sent still
//! arrive, as on a real network. Only its blocking reads are dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::checker::Checker;
use crate::facts::{SimActor, is_controllers};
use crate::faults::NetworkFaults;
use crate::reached::{Occasion, met_if};
use crate::rng::SimRng;
use crate::version_skew;
use rcfarm_api::ids::SessionId;
use rcfarm_api::key;
use rcfarm_api::node::Health;
use rcfarm_emulator::{Emulator, Fate, FaultOutcome, Request};
use rcfarm_store::time::monotonic;
use rcfarm_store::{
    Answer, DeleteMode, Entry, Index, Key, NewSession, Op, PodService, Prefix, PutMode, Query,
    Question, Reader, Refusal, RegisteredService, ServiceHealth, SessionInfo, Store, StoreError,
    TtlService, TxnOutcome,
};

/// Timeout of the adapter to a real Consul, beside the wait of a blocking query.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Kinds of requests that the faults distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read { blocks: Duration },
    Write,
}

/// One process's connection.
pub struct Link {
    actor: SimActor,
    /// The process runs a newer version of the program.
    is_newer: bool,
    state: Mutex<State>,
    calm: tokio::sync::Notify,
}

struct State {
    rng: SimRng,
    weather: NetworkFaults,
    requests: u64,
}

impl Link {
    /// The connection of a process.
    #[must_use]
    pub fn new(actor: SimActor, is_newer: bool, rng: SimRng) -> Arc<Link> {
        let state = Mutex::new(State { rng, weather: NetworkFaults::default(), requests: 0 });
        Arc::new(Link { actor, is_newer, state, calm: tokio::sync::Notify::new() })
    }

    /// Extra delay of an answer to a list.
    fn listing(&self) -> Duration {
        let mut state = self.lock();
        let State { rng, weather, .. } = &mut *state;
        match weather.slow_lists {
            Duration::ZERO => Duration::ZERO,
            longest => rng.between(Duration::ZERO, longest),
        }
    }

    pub fn weather(&self, change: impl FnOnce(&mut NetworkFaults)) {
        change(&mut self.lock().weather);
        self.calm.notify_waiters();
    }

    /// Number of requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `held` holds of the faults.
    async fn while_held(&self, held: impl Fn(&NetworkFaults) -> bool) {
        loop {
            let changed = self.calm.notified();
            let until = {
                let weather = &self.lock().weather;
                if !held(weather) {
                    return;
                }
                weather.stalled_until.filter(|_| weather.stalls())
            };
            let again = until.unwrap_or_else(|| monotonic() + Duration::from_secs(60));
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }
}

/// The store of a simulated process.
pub struct Network {
    consul: Emulator,
    link: Arc<Link>,
    checker: Arc<Checker>,
}

/// Random draws for a request.
struct Drawn {
    before: Duration,
    after: Duration,
    verdict: Drawing,
}

enum Drawing {
    Deliver,
    Lose,
    LoseReply,
    Late(Duration),
    Stale(usize),
    Short,
    Fail(StoreError),
}

type Call<T> = Box<dyn FnOnce(Emulator) -> BoxFuture<'static, Result<T, StoreError>> + Send>;

impl Network {
    /// Network of a process to `consul`, watched by `checker`.
    #[must_use]
    pub fn new(consul: Emulator, link: Arc<Link>, checker: Arc<Checker>) -> Arc<Network> {
        Arc::new(Network { consul, link, checker })
    }

    fn draw(&self, kind: Kind, subject: &str, is_list: bool) -> Drawn {
        let mut state = self.link.lock();
        state.requests += 1;
        let State { rng, weather, .. } = &mut *state;
        let longest = weather.latency;
        let mut travel = || rng.between(Duration::ZERO, longest);
        let (before, after) = (travel(), travel());
        let is_write = kind == Kind::Write;
        let hidden = weather.hidden.as_ref().is_some_and(|prefix| {
            subject.starts_with(prefix.as_str()) || prefix.as_str().starts_with(subject)
        });
        let forbidden = || StoreError::Forbidden { what: subject.to_owned() };
        let verdict = if hidden && is_list {
            Drawing::Short
        } else if hidden && !is_write || weather.forbidden && is_write {
            Drawing::Fail(forbidden())
        } else if weather.leaderless {
            Drawing::Fail(StoreError::NoLeader)
        } else if rng.permille(weather.lost) {
            Drawing::Lose
        } else if rng.permille(weather.reply_lost) {
            Drawing::LoseReply
        } else if is_write && rng.permille(weather.late) {
            Drawing::Late(rng.between(Duration::ZERO, Duration::from_secs(5)))
        } else if rng.permille(weather.overloaded) {
            Drawing::Fail(match rng.below(3) {
                0 if is_write => StoreError::TooLarge { detail: "simulated 413".to_owned() },
                1 => StoreError::Overloaded { status: 503 },
                _ => StoreError::Overloaded { status: 429 },
            })
        } else if !is_write && rng.permille(weather.stale) {
            Drawing::Stale(1 + rng.below(30))
        } else {
            Drawing::Deliver
        };
        Drawn { before, after, verdict }
    }

    async fn send<T: Send + 'static>(
        &self,
        kind: Kind,
        subject: &str,
        is_list: bool,
        call: Call<T>,
    ) -> Result<T, StoreError> {
        let Drawn { before, after, verdict } = self.draw(kind, subject, is_list);
        if let Drawing::Short = verdict {
            let is_empty = self.consul.inspect(|tables| tables.kv.list(subject).next().is_none());
            met_if(!is_empty, Occasion::TreeHidden);
        }
        let (link, consul, checker) =
            (self.link.clone(), self.consul.clone(), self.checker.clone());
        let (answer, answered) = oneshot::channel();
        let journey = async move {
            sleep(before).await;
            let is_write = kind == Kind::Write;
            link.while_held(|w| w.cut || is_write && w.stalls()).await;
            let at = |outcome: FaultOutcome| match outcome {
                FaultOutcome::Deliver => consul.clone(),
                outcome => {
                    consul.with_faults(Arc::new(move |_: &Request<'_>| Fate::of(outcome.clone())))
                }
            };
            let act = |consul| checker.acting(link.actor, call(consul));
            let result = match verdict {
                Drawing::Deliver => act(at(FaultOutcome::Deliver)).await,
                Drawing::Stale(writes) => act(at(FaultOutcome::Stale(writes))).await,
                Drawing::Short => act(at(FaultOutcome::Short(0))).await,
                Drawing::Lose => Err(interrupted()),
                Drawing::LoseReply => {
                    // A read without a receiver is not sent.
                    if is_write {
                        let _ = act(at(FaultOutcome::Deliver)).await;
                    }
                    Err(interrupted())
                }
                Drawing::Late(by) => {
                    let late = act(at(FaultOutcome::Deliver));
                    tokio::spawn(async move {
                        sleep(by).await;
                        let _ = late.await;
                    });
                    Err(interrupted())
                }
                Drawing::Fail(error) => Err(error),
            };
            sleep(after + if is_list { link.listing() } else { Duration::ZERO }).await;
            link.while_held(|w| w.cut || w.deaf).await;
            let _ = answer.send(result);
        };
        let journey = tokio::spawn(journey);
        // Reads that nobody waits for are dropped; writes are not.
        let (blocks, _dropped) = match kind {
            Kind::Read { blocks } => (blocks, Some(AbortOnDropHandle::new(journey))),
            Kind::Write => (Duration::ZERO, None),
        };
        let limit = ANSWER_WITHIN + blocks + blocks / 16;
        let asked = monotonic();
        let result = match timeout(limit, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(interrupted()),
            Err(_) => Err(StoreError::Timeout { after: limit }),
        };
        self.checker.remark(|| {
            let (took, error) = (monotonic() - asked, result.as_ref().err());
            let what = if kind == Kind::Write { "writes" } else { "reads" };
            format!("   {:?} {what} {subject} in {took:?} {error:?}", self.link.actor)
        });
        result
    }

    async fn read<T: Send + 'static>(
        &self,
        subject: &str,
        is_list: bool,
        query: Query,
        call: impl FnOnce(Emulator) -> BoxFuture<'static, Result<Answer<T>, StoreError>>
        + Send
        + 'static,
    ) -> Result<Answer<T>, StoreError> {
        let blocks = query.wait.map_or(Duration::ZERO, |wait| wait.at_most);
        let is_part = is_list && !subject.ends_with('/');
        let answer = self.send(Kind::Read { blocks }, subject, is_list, Box::new(call)).await;
        met_if(is_part, if answer.is_ok() { Occasion::PartRead } else { Occasion::PartMissed });
        let mut answer = answer?;
        let mut state = self.link.lock();
        let State { rng, weather, .. } = &mut *state;
        if is_list && rng.permille(weather.index_reset) {
            answer.index = Index(1);
        }
        Ok(answer)
    }

    async fn write<T: Send + 'static>(
        &self,
        subject: &str,
        call: impl FnOnce(Emulator) -> BoxFuture<'static, Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(Kind::Write, subject, false, Box::new(call)).await
    }
}

/// A transaction in flight, and a result that its sender never gets.
struct Sent {
    is_controllers: bool,
    applied: AtomicBool,
    given_up: AtomicBool,
}

impl Sent {
    fn of(ops: &[Op]) -> Sent {
        let (applied, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Sent { is_controllers: is_controllers(ops), applied, given_up }
    }

    fn carried_out(&self, ops: &[Op], outcome: &TxnOutcome) {
        match outcome {
            TxnOutcome::Committed { .. } => {
                self.applied.store(true, Ordering::SeqCst);
                let late = self.given_up.load(Ordering::SeqCst);
                met_if(late && self.is_controllers, Occasion::LateWrite);
            }
            TxnOutcome::Refused(refusals) => {
                met_if(refusals.iter().any(|refusal| refusal.op == 0), Occasion::FenceRefused);
                let promised = |refusal: &Refusal| {
                    ops.get(refusal.op)
                        .is_some_and(|op| key::allocations().tail(op.subject()).is_some())
                };
                met_if(refusals.iter().any(promised), Occasion::PromiseRefused);
            }
        }
    }

    fn given_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        let lost = self.applied.load(Ordering::SeqCst);
        met_if(lost && self.is_controllers, Occasion::AnswerLost);
    }
}

fn interrupted() -> StoreError {
    StoreError::Interrupted { detail: "simulated: connection reset".to_owned() }
}

#[async_trait]
impl Reader for Network {
    async fn get(&self, key: &Key, query: Query) -> Result<Answer<Option<Entry>>, StoreError> {
        let k = key.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.get(&k, query).await })
        };
        let mut answer = self.read(key.as_str(), false, query, call).await?;
        if self.link.is_newer {
            answer.value.iter_mut().for_each(version_skew::read);
        }
        Ok(answer)
    }

    async fn list(&self, prefix: &Prefix, query: Query) -> Result<Answer<Vec<Entry>>, StoreError> {
        let p = prefix.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.list(&p, query).await })
        };
        let mut answer = self.read(prefix.as_str(), true, query, call).await?;
        if self.link.is_newer {
            answer.value.iter_mut().for_each(version_skew::read);
        }
        Ok(answer)
    }

    async fn keys(
        &self,
        prefix: &Prefix,
        separator: Option<&str>,
        query: Query,
    ) -> Result<Answer<Vec<String>>, StoreError> {
        let (p, separator) = (prefix.clone(), separator.map(str::to_owned));
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.keys(&p, separator.as_deref(), query).await })
        };
        self.read(prefix.as_str(), true, query, call).await
    }

    async fn ask(&self, questions: &[Question]) -> Result<TxnOutcome, StoreError> {
        let ops: Vec<Op> = questions.iter().map(Op::from).collect();
        let hidden = self.link.lock().weather.hidden.clone();
        let is_hidden = |key: &str| hidden.as_ref().is_some_and(|h| key.starts_with(h.as_str()));
        // Consul refuses a check of a hidden key. A `get` of one is answered without its entry.
        let is_forbidden =
            |op: &&Op| matches!(op, Op::CheckIndex { .. }) && is_hidden(op.subject());
        let shown = ops.iter().find(is_forbidden);
        let shown = shown.or_else(|| ops.iter().find(|op| !is_hidden(op.subject())));
        let subject = shown.map_or("-", Op::subject).to_owned();
        let questions = questions.to_vec();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.ask(&questions).await })
        };
        let kind = Kind::Read { blocks: Duration::ZERO };
        let mut answer = self.send(kind, &subject, false, Box::new(call)).await;
        met_if(true, if answer.is_ok() { Occasion::ChangesAsked } else { Occasion::PartMissed });
        if let Ok(TxnOutcome::Committed { entries, .. }) = &mut answer {
            entries.retain(|entry| !is_hidden(&entry.key));
        }
        if let (true, Ok(TxnOutcome::Committed { entries, .. })) = (self.link.is_newer, &mut answer)
        {
            entries.iter_mut().for_each(version_skew::read);
        }
        answer
    }

    async fn session(&self, id: &SessionId) -> Result<Answer<Option<SessionInfo>>, StoreError> {
        let id = id.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.session(&id).await })
        };
        self.read("session", false, Query::PLAIN, call).await
    }

    async fn sessions(&self) -> Result<Answer<Vec<SessionInfo>>, StoreError> {
        let call =
            |c: Emulator| -> BoxFuture<'static, _> { Box::pin(async move { c.sessions().await }) };
        self.read("session", false, Query::PLAIN, call).await
    }

    async fn service_health(
        &self,
        service: &str,
    ) -> Result<Answer<Vec<ServiceHealth>>, StoreError> {
        let service = service.to_owned();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.service_health(&service).await })
        };
        self.read("catalog", false, Query::PLAIN, call).await
    }

    async fn leader(&self) -> Result<String, StoreError> {
        let leaderless = self.link.lock().weather.leaderless;
        if leaderless { Ok(String::new()) } else { self.consul.leader().await }
    }
}

#[async_trait]
impl Store for Network {
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, StoreError> {
        let k = key.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.put(&k, value, flags, mode).await })
        };
        self.write(key.as_str(), call).await
    }

    async fn delete(&self, key: &Key, mode: DeleteMode) -> Result<bool, StoreError> {
        let k = key.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.delete(&k, mode).await })
        };
        self.write(key.as_str(), call).await
    }

    async fn delete_tree(&self, prefix: &Prefix) -> Result<(), StoreError> {
        let p = prefix.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.delete_tree(&p).await })
        };
        self.write(prefix.as_str(), call).await
    }

    async fn txn(&self, ops: &[Op]) -> Result<TxnOutcome, StoreError> {
        self.checker.write_begins(self.link.actor, ops, monotonic());
        let hidden = self.link.lock().weather.hidden.clone();
        let is_hidden = |op: &&Op| {
            let key = op.subject();
            matches!(op, Op::CheckIndex { .. })
                && hidden.as_ref().is_some_and(|hidden| key.starts_with(hidden.as_str()))
        };
        if let Some(op) = ops.iter().find(is_hidden) {
            return Err(StoreError::Forbidden { what: op.subject().to_owned() });
        }
        let subject = ops.first().map_or("", Op::subject).to_owned();
        let sent = Arc::new(Sent::of(ops));
        let ops = if self.link.is_newer { version_skew::written(ops) } else { ops.to_vec() };
        let sending = sent.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let outcome = c.txn(&ops).await;
                outcome.inspect(|outcome| sending.carried_out(&ops, outcome))
            })
        };
        let answer = self.write(&subject, call).await;
        let mut answer = answer.inspect_err(|_| sent.given_up());
        if let (true, Ok(TxnOutcome::Committed { entries, .. })) = (self.link.is_newer, &mut answer)
        {
            entries.iter_mut().for_each(version_skew::read);
        }
        answer
    }

    async fn create_session(&self, new: &NewSession) -> Result<SessionId, StoreError> {
        let asked = monotonic();
        let (actor, checker, n) = (self.link.actor, self.checker.clone(), new.clone());
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let made = c.create_session(&n).await;
                // Also if the answer is lost: it is the actor's session.
                made.inspect(|id| checker.session_made(actor, id))
            })
        };
        let id = self.write("session", call).await?;
        self.checker.epoch_begins(self.link.actor, &id, new, asked);
        Ok(id)
    }

    async fn renew_session(&self, id: &SessionId) -> Result<bool, StoreError> {
        let (asked, session) = (monotonic(), id.clone());
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.renew_session(&session).await })
        };
        let renewed = self.write("session", call).await?;
        if renewed {
            self.checker.renewed(self.link.actor, asked);
        }
        Ok(renewed)
    }

    async fn destroy_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let session = id.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.destroy_session(&session).await })
        };
        self.write("session", call).await
    }

    async fn register_service(&self, service: &TtlService) -> Result<(), StoreError> {
        if self.link.lock().weather.no_checks {
            return Err(StoreError::Forbidden { what: format!("service {}", service.name) });
        }
        let s = service.clone();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.register_service(&s).await })
        };
        self.write("agent", call).await
    }

    async fn pass_check(&self, check: &str, note: &str) -> Result<bool, StoreError> {
        let asked = monotonic();
        let (check, note) = (check.to_owned(), note.to_owned());
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.pass_check(&check, &note).await })
        };
        let passed = self.write("agent", call).await?;
        if passed {
            self.checker.beaten(self.link.actor, asked);
        }
        Ok(passed)
    }

    async fn pod_services(
        &self,
        id_prefix: &str,
    ) -> Result<BTreeMap<String, RegisteredService>, StoreError> {
        let prefix = id_prefix.to_owned();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.pod_services(&prefix).await })
        };
        self.write("agent", call).await
    }

    async fn register_pod_service(
        &self,
        service: &PodService,
        node_service: &str,
        health: Health,
    ) -> Result<(), StoreError> {
        if self.link.lock().weather.no_checks {
            return Err(StoreError::Forbidden { what: format!("service {}", service.name) });
        }
        let (service, node_service) = (service.clone(), node_service.to_owned());
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.register_pod_service(&service, &node_service, health).await })
        };
        self.write("agent", call).await
    }

    async fn update_check(
        &self,
        check: &str,
        health: Health,
        note: &str,
    ) -> Result<bool, StoreError> {
        let (check, note) = (check.to_owned(), note.to_owned());
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.update_check(&check, health, &note).await })
        };
        self.write("agent", call).await
    }

    async fn may_register(&self, _: &str) -> Result<bool, StoreError> {
        Ok(!self.link.lock().weather.no_checks)
    }

    async fn deregister_service(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        let call = move |c: Emulator| -> BoxFuture<'static, _> {
            Box::pin(async move { c.deregister_service(&id).await })
        };
        self.write("agent", call).await
    }
}
