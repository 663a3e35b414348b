//! The batch world of one seed, from its first write to its last check.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::liveness;
use super::machines::{Machines, node};
use super::script::{BatchAct, HEALED_AT, MACHINES, script};
use super::workload::{KINDS, QUEUES, Workload, document, job_id};
use crate::checker::Checker;
use crate::farms::{Farms, weather};
use crate::lifecycle::{self, Beginning};
use crate::process::Design;
use crate::reached::{Occasion, met_if};
use crate::rng::SimRng;
use crate::{Options, SimReport};
use rcfarm_api::ids::Namespaced;
use rcfarm_api::node::record::NodeState;

/// 27: everything has ended within this long after the faults have: pauses, quarantines and time-outs end by then.
const SETTLES_WITHIN: Duration = Duration::from_secs(400);
/// The kind of job whose pods take several transactions.
const WIDE: usize = KINDS.len() - 1;
/// 29 is watched for this long.
const REST: Duration = Duration::from_secs(10);
/// 29: a farm at rest asks no more than this in that time: beats, renewals, and waits that end.
const REQUESTS_AT_REST: u64 = 120;
/// 28: how long jobs take, submitted when an owner ends, beside the take-over.
const A_JOB_TAKES: Duration = Duration::from_secs(40);

/// See the module.
pub struct BatchWorld {
    checker: Arc<Checker>,
    machines: Arc<Machines>,
    workload: Workload,
    farms: Farms,
    /// The jobs, each by its kind and its number.
    kinds: Vec<(usize, usize)>,
    /// A machine that never comes back.
    lost: Option<usize>,
    start: Instant,
}

impl BatchWorld {
    /// Lives through a seed.
    pub async fn live(seed: u64, options: &Options) -> SimReport {
        let Beginning { mut rng, ids, start, clock, consul } = Beginning::of(seed).await;
        let checker = Checker::of_batch(&consul, options.print);
        let machines = Machines::new(consul.clone(), checker.clone(), MACHINES, rng.fork());
        let workload = Workload::new(consul.clone(), checker.clone(), clock, ids.fork());
        let designs = designs(&mut rng);
        let weather = weather(&mut rng);
        let lost = rng.permille(250).then(|| rng.below(MACHINES));
        let farms = Farms::new(consul, checker.clone(), designs, weather, start);
        let kinds = Vec::new();
        let mut world =
            BatchWorld { checker: checker.clone(), machines, workload, farms, kinds, lost, start };
        let agents = tokio::spawn(world.machines.clone().run());
        lifecycle::live(seed, start, &checker, agents, world.play(rng)).await
    }

    async fn play(&mut self, mut rng: SimRng) {
        (0..MACHINES).for_each(|n| self.machines.start_agent(&node(n)));
        self.workload.set_up();
        let (kinds, acts) = script(&mut rng, self.farms.count());
        self.kinds = kinds;
        self.farms.start_all(rng);
        for (at, act) in acts {
            self.farms.until(self.start + at).await;
            self.say(format!("{act:?}"));
            self.act(act);
        }
        self.farms.until(self.start + HEALED_AT).await;
        self.heal();
        met_if(self.unsettled().is_some(), Occasion::FoundUnsettled);
        self.quiesce(SETTLES_WITHIN, 27, "the faults").await;
        self.rest().await;
        self.take_over().await;
    }

    fn say(&self, what: String) {
        self.checker.say(self.start.elapsed(), format!("-- {what}"));
    }

    fn job(&self, n: usize) -> Namespaced {
        let (kind, n) = self.kinds[n];
        job_id(kind, n)
    }

    fn document(&self, n: usize) -> serde_json::Value {
        let (kind, n) = self.kinds[n];
        document(kind, n)
    }

    fn act(&mut self, act: BatchAct) {
        let workload = &self.workload;
        match act {
            BatchAct::Fault(fault) => self.farms.inject(fault),
            BatchAct::AgentDown(n) => self.machines.kill_agent(&node(n)),
            BatchAct::AgentUp(n) => self.machines.start_agent(&node(n)),
            BatchAct::Crash(n) => self.machines.crash(&node(n)),
            BatchAct::Drain(n, true) => self.machines.drain(&node(n), NodeState::Draining),
            BatchAct::Drain(n, false) => self.machines.drain(&node(n), NodeState::Ready),
            BatchAct::Submit(n) => workload.submit(&self.job(n), &self.document(n)),
            BatchAct::Suspend(n, suspend) => workload.suspend(&self.job(n), suspend),
            BatchAct::Command(n, action) => {
                workload.command(&self.job(n), action, Some(("w", Some(0))))
            }
            BatchAct::Scale(n, count) => workload.scale(&self.job(n), count),
            BatchAct::Delete(n) => workload.delete_job(&self.job(n)),
            BatchAct::Drop(n) => workload.drop_job(&self.job(n)),
            BatchAct::Malform(n, how) => workload.malform(&self.job(n), how),
            BatchAct::Mend(n) => workload.mend(&self.job(n), &self.document(n)),
            BatchAct::DropIntent(n) => workload.drop_intent(&self.job(n)),
            BatchAct::CommandQueue(n, open) => workload.command_queue(QUEUES[n], open),
            BatchAct::Close(n, closed) => {
                let state = if closed { "Closed" } else { "Open" };
                workload.edit_queue(QUEUES[n], |spec| spec["state"] = state.into());
            }
            BatchAct::Limit(n, cpu) => {
                workload.edit_queue(QUEUES[n], |spec| spec["capability"]["cpu"] = cpu.into());
            }
            BatchAct::MalformQueue(n) => workload.malform_queue(QUEUES[n]),
            BatchAct::MendQueue(n) => workload.mend_queue(QUEUES[n]),
            BatchAct::Litter => workload.litter(),
        }
    }

    /// Every fault ends, and whatever people stopped goes on.
    fn heal(&mut self) {
        self.say("the faults have ended".to_owned());
        self.farms.heal(true);
        self.machines.calm();
        for n in (0..MACHINES).filter(|n| Some(*n) != self.lost) {
            self.machines.start_agent(&node(n));
        }
        if let Some(n) = self.lost {
            self.machines.crash(&node(n));
        }
        QUEUES.iter().for_each(|name| self.workload.mend_queue(name));
        for n in 0..self.kinds.len() {
            let (id, wanted) = (self.job(n), self.document(n));
            self.workload.mend(&id, &wanted);
            self.workload.submit(&id, &wanted);
        }
    }

    fn unsettled(&self) -> Option<(u32, String)> {
        let live = self.farms.live();
        self.checker.model(|model, facts| liveness::unsettled(model, facts, &live))
    }

    /// Everything ends, within `limit` of `what`.
    async fn quiesce(&mut self, limit: Duration, number: u32, what: &str) {
        let deadline = Instant::now() + limit;
        while let Some((invariant, unsettled)) = self.unsettled() {
            if Instant::now() >= deadline {
                let invariant = if invariant == 27 { number } else { invariant };
                let text = format!("not within {limit:?} of {what}: {unsettled}");
                self.checker.violated(invariant, text);
                return;
            }
            self.workload.resume_all();
            self.farms.until(Instant::now() + Duration::from_millis(500)).await;
        }
        self.say("everything has ended".to_owned());
    }

    /// 29: then nothing happens any more.
    async fn rest(&mut self) {
        self.farms.until(Instant::now() + Duration::from_secs(5)).await;
        let since = self.start.elapsed();
        let before = self.farms.requests();
        self.farms.until(Instant::now() + REST).await;
        if let Some(process) = self.checker.sessions_ended(since).first() {
            self.checker.violated(12, format!("a session of #{process} ended while all was well"));
        }
        for (process, now) in self.farms.requests() {
            let count = now - before.get(&process).copied().unwrap_or(0);
            if count > REQUESTS_AT_REST {
                let what = format!("#{process} made {count} requests in {REST:?} of rest");
                self.checker.violated(29, what);
            }
        }
        if let Some((number, what)) = self.unsettled() {
            self.checker.violated(number, format!("it did not last: {what}"));
        }
    }

    /// 28: a farm that ends in the middle of work is followed in time.
    async fn take_over(&mut self) {
        for (kind, n) in [(0, 90), (1, 91), (2, 92), (WIDE, 93)] {
            self.workload.submit(&job_id(kind, n), &document(kind, n));
        }
        self.farms.until(Instant::now() + Duration::from_secs(1)).await;
        let (limit, signal) = self.farms.end_one();
        self.quiesce(limit + A_JOB_TAKES, 28, signal).await;
    }
}

/// Two farms or three; now and then one cannot have a check, or believes that little fits into a transaction.
fn designs(rng: &mut SimRng) -> Vec<Design> {
    let mut designs: Vec<Design> = ["a", "b", "c"].map(|name| Design::new(name, "")).into();
    designs.truncate(2 + usize::from(rng.permille(300)));
    if rng.permille(100) {
        let n = rng.below(designs.len());
        designs[n].session.session_ttl = Duration::from_secs(10);
    }
    if rng.permille(500) {
        // Gangs are then written ahead.
        let ops = *rng.pick(&[12, 14, 20]);
        designs.iter_mut().for_each(|design| design.limits.ops = ops);
    }
    if rng.permille(300) {
        let n = rng.below(designs.len());
        designs[n].is_newer = true;
    }
    designs
}
