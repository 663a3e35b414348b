//! Receives every applied write, runs the checks, and keeps the trace.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::checks;
use crate::facts::{
    AFTER_FAULTS, CHECK_TTL, CLOCK_NOTICED, CheckFacts, MachineRuns, ProcessRun, SessionProof,
    SimActor, SimProcess, Violation, is_controllers,
};
use crate::mix::Mix;
use crate::model::{SimModel, notes};
use crate::reached::{Occasion, met_if};
use crate::version_skew;
use rcfarm_api::Fnv1a;
use rcfarm_api::ids::{NodeName, PodRef, SessionId};
use rcfarm_emulator::{Applied, Cause, Emulator, Ending, KvChange, SessionChange, Tables};
use rcfarm_store::time::{Clock as _, monotonic};
use rcfarm_store::{NewSession, Op};
use rcfarm_testing::clock::VirtualClock;

/// Number of last operations that are shown with a violation.
const SHOWN: usize = 25;

/// Receives every applied write, runs the checks, and keeps the trace.
pub struct Checker {
    inner: Mutex<Inner>,
    found: Notify,
}

struct Inner {
    start: Instant,
    actor: SimActor,
    model: SimModel,
    facts: CheckFacts,
    proofs: BTreeMap<u32, SessionProof>,
    violation: Option<Violation>,
    hash: Fnv1a,
    applied: u64,
    last: VecDeque<Line>,
    print: bool,
    /// Sessions of processes that ended, and when.
    ended: Vec<(Duration, u32)>,
}

enum Line {
    Applied(SimActor, Box<Applied>),
    Reported(Duration, String),
}

impl Checker {
    /// A checker of `consul`. Prints the trace as it goes if `print` is set.
    #[must_use]
    pub fn new(consul: &Emulator, mix: Mix, print: bool) -> Arc<Checker> {
        let inner = Inner {
            start: monotonic(),
            actor: SimActor::Consul,
            model: SimModel::new(mix),
            facts: CheckFacts::default(),
            proofs: BTreeMap::new(),
            violation: None,
            hash: Fnv1a::default(),
            applied: 0,
            last: VecDeque::new(),
            print,
            ended: Vec::new(),
        };
        let checker = Arc::new(Checker { inner: Mutex::new(inner), found: Notify::new() });
        let watching = checker.clone();
        consul.observe(move |applied: &Applied, tables: &Tables| watching.applied(applied, tables));
        checker
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes the writes of `future` to `actor`.
    pub fn acting<F: Future>(
        self: &Arc<Self>,
        actor: SimActor,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (checker, mut future) = (self.clone(), Box::pin(future));
        std::future::poll_fn(move |cx| {
            let before = std::mem::replace(&mut checker.lock().actor, actor);
            let polled = future.as_mut().poll(cx);
            checker.lock().actor = before;
            polled
        })
    }

    /// The same for a future that never waits.
    ///
    /// # Panics
    /// If it does.
    pub fn now<F: Future>(self: &Arc<Self>, actor: SimActor, future: F) -> F::Output {
        let mut acting = Box::pin(self.acting(actor, future));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match acting.as_mut().poll(&mut cx) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("a write without latency waits"),
        }
    }

    // ---- what happens ---------------------------------------------------------------------------------

    fn applied(&self, applied: &Applied, tables: &Tables) {
        let mut inner = self.lock();
        inner.note(applied, tables);
        drop(inner);
        self.whistle();
    }

    fn whistle(&self) {
        if self.lock().violation.is_some() {
            self.found.notify_one();
        }
    }

    /// Adds a line to the trace.
    pub fn say(&self, at: Duration, what: String) {
        self.lock().push(Line::Reported(at, what));
    }

    /// Prints a remark if the trace is printed. It is not part of the trace.
    pub fn remark(&self, what: impl FnOnce() -> String) {
        let inner = self.lock();
        if inner.print && inner.violation.is_none() {
            println!("           {}", what());
        }
    }

    /// Reports a violation.
    pub fn violated(&self, invariant: u32, what: String) {
        self.lock().violated(invariant, what);
        self.whistle();
    }

    /// Resolves when an invariant was violated.
    pub async fn violation(&self) {
        loop {
            if self.lock().violation.is_some() {
                return;
            }
            self.found.notified().await;
        }
    }

    // ---- what the wire tells --------------------------------------------------------------------------

    /// The clock of the users.
    pub fn set_clock(&self, clock: &Arc<VirtualClock>) {
        self.lock().facts.users_clock = Some(clock.clone());
    }

    /// The faults have ended.
    pub fn healed(&self) {
        let facts = &mut self.lock().facts;
        facts.healed_at = facts.users_clock.as_ref().map(|clock| clock.wall());
    }

    /// All clocks were set forward while everything was settled: runs that are due from [`CLOCK_NOTICED`] on are made.
    pub fn set_forward(&self) {
        let facts = &mut self.lock().facts;
        let now = facts.users_clock.as_ref().map(|clock| clock.wall());
        let as_if = AFTER_FAULTS.saturating_sub(CLOCK_NOTICED);
        facts.healed_at = now.and_then(|now| now.checked_sub(as_if).ok());
    }

    /// A process starts, on a machine with this clock.
    pub fn process(&self, number: u32, process: SimProcess, clock: &Arc<VirtualClock>) {
        let facts = &mut self.lock().facts;
        facts.processes.insert(number, process);
        facts.clocks.insert(number, clock.clone());
    }

    /// A session was made for a farm's process, even if the process did not get the answer.
    pub fn session_made(&self, actor: SimActor, id: &SessionId) {
        if let SimActor::Process(process) = actor {
            self.lock().facts.sessions.insert(id.clone(), process);
        }
    }

    /// A farm's process got its new session.
    pub fn epoch_begins(&self, actor: SimActor, id: &SessionId, new: &NewSession, asked: Instant) {
        let SimActor::Process(process) = actor else { return };
        let mut inner = self.lock();
        inner.facts.current.insert(process, id.clone());
        let since = monotonic() - inner.start;
        inner.facts.looks_since.entry(process).or_insert(since);
        let proof = inner.proofs.entry(process).or_default();
        let ttl = new.ttl.unwrap_or_default();
        proof.terms = ((!new.checks.is_empty()).then_some(CHECK_TTL), ttl);
        proof.renewal = Some(asked + ttl);
        if new.checks.is_empty() {
            proof.check = None;
        }
    }

    /// A renewal was acknowledged.
    pub fn renewed(&self, actor: SimActor, asked: Instant) {
        let SimActor::Process(process) = actor else { return };
        let mut inner = self.lock();
        let proof = inner.proofs.entry(process).or_default();
        proof.renewal = Some(asked + proof.terms.1);
    }

    /// A heartbeat was acknowledged.
    pub fn beaten(&self, actor: SimActor, asked: Instant) {
        let SimActor::Process(process) = actor else { return };
        self.lock().proofs.entry(process).or_default().check = Some(asked + CHECK_TTL);
    }

    /// A process sends a transaction.
    pub fn write_begins(&self, actor: SimActor, ops: &[Op], now: Instant) {
        let SimActor::Process(process) = actor else { return };
        let mut inner = self.lock();
        let holds = inner.proofs.get(&process).is_none_or(|proof| proof.holds(now));
        if is_controllers(ops) && !holds {
            let what = "a write is begun after the session's deadline";
            inner.violated(2, format!("#{process}: {what}"));
            drop(inner);
            self.whistle();
        }
    }

    /// A frozen process continues.
    pub fn goes_on(&self, process: u32) {
        let holds = self.lock().proofs.get(&process).is_none_or(|proof| proof.holds(monotonic()));
        met_if(!holds, Occasion::DeadlineOver);
    }

    // ---- what machines tell ---------------------------------------------------------------------------

    /// The real agent runs a node on this machine.
    pub fn add_machine(&self, node: NodeName, machine: Arc<dyn MachineRuns>) {
        let mut inner = self.lock();
        inner.model.agents.follow(node.clone());
        inner.facts.machines.insert(node, machine);
    }

    /// An agent asks a machine to stop a process that runs.
    pub fn stopped(&self, place: &PodRef, run: &ProcessRun) {
        let found = checks::check_stop(&self.lock().model.agents, place, run);
        if let Some(what) = found {
            self.violated(32, what);
        }
    }

    /// An agent asks a machine to start what runs.
    pub fn started_twice(&self, place: &PodRef, pid: i32) {
        let PodRef { node, pod } = place;
        self.violated(35, format!("{pod} is started on {node}, where it runs as process {pid}"));
    }

    // ---- what the world asks --------------------------------------------------------------------------

    /// Whether a process's session has a check. If the agent refused it, the session has only its TTL.
    #[must_use]
    pub fn has_check(&self, process: u32) -> bool {
        self.lock().proofs.get(&process).is_some_and(|proof| proof.terms.0.is_some())
    }

    /// Reads the facts.
    pub fn facts<T>(&self, look: impl FnOnce(&CheckFacts) -> T) -> T {
        look(&self.lock().facts)
    }

    /// Reads the model and the facts.
    pub fn look<T>(&self, look: impl FnOnce(&SimModel, &CheckFacts) -> T) -> T {
        let inner = self.lock();
        look(&inner.model, &inner.facts)
    }

    /// 15: checks that the audit log folds into the state.
    pub fn check_fold(&self) {
        let mut inner = self.lock();
        let mut found = Vec::new();
        if inner.model.mix().services {
            checks::check_fold(&inner.model.services, &inner.facts, &mut |number, what| {
                found.push((number, what));
            });
        }
        found.into_iter().for_each(|(number, what)| inner.violated(number, what));
        drop(inner);
        self.whistle();
    }

    /// Sessions of processes that ended after `since`.
    #[must_use]
    pub fn sessions_ended(&self, since: Duration) -> Vec<u32> {
        let inner = self.lock();
        inner.ended.iter().filter(|(at, _)| *at > since).map(|(_, process)| *process).collect()
    }

    /// The violation, the number of writes, and the hash of the trace.
    #[must_use]
    pub fn result(&self) -> (Option<Violation>, u64, u64) {
        let inner = self.lock();
        (inner.violation.clone(), inner.applied, inner.hash.finish())
    }

    /// The last operations, oldest first.
    #[must_use]
    pub fn last(&self) -> Vec<String> {
        self.lock().last.iter().map(Line::to_string).collect()
    }
}

impl Inner {
    fn note(&mut self, applied: &Applied, tables: &Tables) {
        self.applied += 1;
        self.hash(applied);
        let (actor, ops) = match &applied.cause {
            Cause::Kv(ops) => (self.actor, ops.as_slice()),
            _ => (SimActor::Consul, [].as_slice()),
        };
        for change in &applied.sessions {
            // A farm that returns to its check destroys a session while it has another one.
            let is_replaced = |id: &SessionId, process: u32| {
                let others = tables.sessions.all().filter(|other| other.id != *id);
                others
                    .filter_map(|other| self.facts.sessions.get(&other.id))
                    .any(|of| *of == process)
            };
            if let SessionChange::Ended(session, ending) = change
                && let Some(process) = self.facts.sessions.get(&session.id)
                && !(*ending == Ending::Destroyed && is_replaced(&session.id, *process))
                && self.facts.current.get(process) == Some(&session.id)
            {
                self.ended.push((applied.at, *process));
            }
        }
        self.push(Line::Applied(actor, Box::new(applied.clone())));
        let net = net(&applied.changes);
        let mut found = Vec::new();
        let mut report = |number, what| found.push((number, what));
        if let SimActor::Process(_) = actor {
            version_skew::check(&net, &mut report);
        }
        let Inner { model, facts, .. } = self;
        if applied.cause == Cause::Restore {
            model.reload(applied.at, tables);
        } else {
            let write = model.apply((applied.at, actor), ops, &net);
            if actor == SimActor::User {
                let owners = write.owners_of_pods().into_iter();
                facts.by_hand.extend(owners.map(|rc| (rc, applied.at)));
            }
            notes::losses(&mut model.jobs, &write);
            checks::check(&write, model, facts, &mut report);
            notes::note(&mut model.jobs, &write);
        }
        found.into_iter().for_each(|(number, what)| self.violated(number, what));
    }

    fn hash(&mut self, applied: &Applied) {
        self.hash.update(&applied.index.0.to_le_bytes());
        self.hash.update(&applied.at.as_nanos().to_le_bytes());
        for change in &applied.changes {
            self.hash.update(change.key.as_bytes());
            let value = change.after.as_ref().map_or(&b"-"[..], |entry| &entry.value);
            self.hash.update(value);
        }
    }

    fn violated(&mut self, invariant: u32, what: String) {
        self.violation.get_or_insert(Violation { invariant, what });
    }

    fn push(&mut self, line: Line) {
        if self.violation.is_some() {
            return;
        }
        if self.print {
            println!("{line}");
        }
        self.last.push_back(line);
        if self.last.len() > SHOWN {
            self.last.pop_front();
        }
    }
}

/// Net effect of a write on each key: a lock that is handed over is released in between.
fn net(changes: &[KvChange]) -> Vec<KvChange> {
    let mut net: Vec<KvChange> = Vec::new();
    for change in changes {
        match net.iter_mut().find(|earlier| earlier.key == change.key) {
            Some(earlier) => earlier.after = change.after.clone(),
            None => net.push(change.clone()),
        }
    }
    net.retain(|change| change.before.is_some() || change.after.is_some());
    net
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Line::Reported(at, what) => write!(f, "{:>9.3}s        {what}", at.as_secs_f64()),
            Line::Applied(actor, applied) => {
                let at = applied.at.as_secs_f64();
                write!(f, "{at:>9.3}s @{:<6} {actor:?}:", applied.index)?;
                let mut text = String::new();
                if let Cause::Kv(ops) = &applied.cause {
                    for op in ops {
                        let verb = format!("{:?}", op.verb).to_lowercase();
                        let _ = write!(text, " {verb} {}", op.key);
                        if op.index.0 > 0 {
                            let _ = write!(text, "@{}", op.index);
                        }
                        text.push(';');
                    }
                } else {
                    let _ = write!(text, " {:?}", applied.cause);
                }
                for change in &applied.sessions {
                    let _ = match change {
                        SessionChange::Created(s) => {
                            write!(text, " session {} made ({})", s.id, s.name)
                        }
                        SessionChange::Ended(s, why) => {
                            write!(text, " session {} ended ({}, {why:?})", s.id, s.name)
                        }
                    };
                }
                f.write_str(&text)
            }
        }
    }
}
