//! One world, from its first write to its last check.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::checker::Checker;
use crate::checks::minute_in;
use crate::farms::Farms;
use crate::fleet::node;
use crate::liveness;
use crate::mix::Mix;
use crate::model::SimModel;
use crate::nodes::Nodes;
use crate::reached::{self, Occasion, met, met_if};
use crate::report::{Options, SimReport};
use crate::rng::SimRng;
use crate::schedule::action::{Fault, JobAction, NodeAction, OwnerAction, RcAction, SimAction};
use crate::schedule::{Schedule, Setup};
use crate::scheduler::Mood;
use crate::workload::Workload;
use crate::workload::documents::{KINDS, QUEUES, RECORDS, document, job_id, rc_id};
use crate::workload::flows::{TEMPLATES, flow_document, flow_id, template_document, template_id};
use crate::workload::hostile::is_hostile;
use crate::workload::schedules::{cron_document, cron_id, is_end_of_summer};
use crate::workload::sweeps::{array_document, array_id, dependent_document, dependent_id};
use rcfarm_api::ids::{Namespaced, RcId};
use rcfarm_api::key;
use rcfarm_api::node::record::NodeState;
use rcfarm_emulator::{Emulator, Fate, Request, Settings};
use rcfarm_store::time::{IdSource, monotonic};
use rcfarm_store::{Prefix, Sizes, failpoints};
use rcfarm_testing::clock::VirtualClock;

/// Invariant 27: limit for everything to settle after the faults have ended. A quarantined record is retried after at
/// most 2 minutes.
const SETTLES_WITHIN: Duration = Duration::from_secs(150);
/// The same for jobs, whose pauses, quarantines and time-outs end by then. A member whose nodes went down is set aside for
/// 10 minutes.
const JOBS_END_WITHIN: Duration = Duration::from_secs(1_100);
/// After a snapshot was restored, caches may show old data until their next full read.
const AFTER_RESTORE: Duration = Duration::from_secs(460);
/// Invariant 29: length of the observation.
const REST: Duration = Duration::from_secs(10);
/// Invariant 29: most requests of an idle farm in that time: heartbeats, renewals, and blocking queries that end.
const REQUESTS_AT_REST: u64 = 120;
/// Invariant 29: the same of a node agent, whose TTLs are longer.
const AGENT_REQUESTS_AT_REST: u64 = 30;
/// Invariant 29: most attempts at a record that keeps failing, in that time.
const LOOKS_AT_REST: u64 = 8;
/// Invariant 28: time that jobs take which are submitted when an owner ends, beside the take-over.
const A_JOB_TAKES: Duration = Duration::from_secs(40);
/// The record whose scheduler always panics, if there is one.
const POISONED: usize = RECORDS;

pub struct World {
    checker: Arc<Checker>,
    nodes: Arc<Nodes>,
    workload: Workload,
    farms: Farms,
    mix: Mix,
    setup: Setup,
    start: Instant,
    /// A hostile tenant wrote a record, which stands.
    has_hostile: bool,
}

impl World {
    /// Runs a schedule until its end, or until an invariant is violated.
    pub async fn run(schedule: Schedule, options: &Options) -> SimReport {
        // One sleep aligns the paused clock to a whole millisecond.
        sleep(Duration::from_millis(1)).await;
        let Schedule { chance, mix, setup, actions, .. } = schedule;
        let mut rng = SimRng::new(chance);
        let ids = IdSource::from_seed(rng.seed());
        let handful = |asked| Sizes { many: 4, few: 1, asked, little: 0, share: 2 };
        failpoints::resize(setup.read_in_parts.map(handful));
        let start = monotonic();
        let consul = Emulator::new(&Settings::default(), &ids);
        // From now on past states are kept, for stale reads.
        drop(consul.with_faults(Arc::new(|_: &Request<'_>| Fate::DELIVER)));
        let checker = Checker::new(&consul, mix, options.print);
        let nodes = Nodes::new(consul.clone(), checker.clone(), mix, &setup, start, rng.fork());
        let clock = VirtualClock::later(start, setup.begins);
        checker.set_clock(&clock);
        let workload = Workload::new(consul.clone(), checker.clone(), clock, ids.fork());
        let farms = Farms::new(consul, checker.clone(), &setup, rng, start);
        let mut world = World {
            checker: checker.clone(),
            nodes,
            workload,
            farms,
            mix,
            setup,
            start,
            has_hostile: false,
        };
        let agents = tokio::spawn(world.nodes.clone().run());
        let play = async {
            world.set_up();
            world.play(actions).await;
        };
        tokio::select! {
            biased;
            () = checker.violation() => {}
            () = play => {}
        }
        agents.abort();
        let (violation, applied, hash) = checker.result();
        let last = if violation.is_some() { checker.last() } else { Vec::new() };
        let met = reached::take();
        SimReport { seed: 0, violation, applied, hash, lived: monotonic() - start, last, met }
    }

    fn set_up(&mut self) {
        for n in 0..self.nodes.count() {
            self.nodes.label(&node(n), Some("web"));
            if self.nodes.has_own_agent(n) {
                self.nodes.start_agent(&node(n));
            }
        }
        if self.mix.services {
            for n in 0..RECORDS {
                self.workload.tier(n, if n % 2 == 0 { "web" } else { "batch" });
                self.workload.create_rc(n);
            }
        }
        if self.setup.poisoned {
            self.farms.moods().set(rc_id(POISONED), Some(Mood::Panics));
            self.workload.create_rc(POISONED);
        }
        if self.mix.jobs {
            self.workload.set_up_queues();
        }
        if self.mix.cells {
            self.workload.configure_cells(0);
        }
        if self.mix.flows {
            (0..TEMPLATES.len()).for_each(|n| self.act_on_flow(&OwnerAction::Template(n, true)));
        }
        self.farms.start_all();
    }

    async fn play(&mut self, actions: Vec<crate::schedule::Timed>) {
        for timed in actions {
            self.farms.until(self.start + timed.at).await;
            self.say(format!("{:?}", timed.act));
            self.act(timed.act);
        }
        self.farms.until(self.start + self.setup.healed_at).await;
        self.heal();
        met_if(self.unsettled().is_some(), Occasion::FoundUnsettled);
        met_if(self.nodes.agents.run_unwanted(), Occasion::UnwantedRuns);
        self.settle().await;
        if self.farms.restored {
            // Until its caches are read whole, a farm may act on what the snapshot removed: it may claim needlessly,
            // and react late.
            self.farms.until(self.start + self.setup.healed_at + AFTER_RESTORE).await;
        }
        if let Some(at) = self.setup.goes_on_at {
            self.go_on_at(at).await;
        }
        self.rest().await;
        self.take_over().await;
        self.checker.check_fold();
    }

    /// Sets all clocks forward, to so many seconds after the beginning of 2026, and waits until everything has settled.
    async fn go_on_at(&mut self, at: i64) {
        let lived = (monotonic() - self.start).as_secs().cast_signed();
        let seconds = at - self.setup.begins - lived;
        self.say(format!("all clocks are set forward by {seconds} s"));
        self.farms.set_forward(seconds);
        self.nodes.agents.set_forward(seconds);
        self.workload.set_forward(seconds);
        self.checker.set_forward();
        self.settle().await;
        let is_run = |id: &Namespaced| minute_in(id).is_some_and(is_end_of_summer);
        let made = self.checker.look(|model, _| model.flows.made.keys().any(is_run));
        met_if(made, Occasion::RunAtSecondChange);
    }

    fn say(&self, what: String) {
        self.checker.say(monotonic() - self.start, format!("-- {what}"));
    }

    // ---- actions -----------------------------------------------------------------------------------------

    fn act(&mut self, action: SimAction) {
        match action {
            SimAction::Fault(fault) => {
                self.nodes.agents.inject(&fault);
                let is_restore = matches!(fault, Fault::Restore | Fault::Lose);
                self.farms.inject(fault);
                if is_restore {
                    self.nodes.report_again();
                }
            }
            SimAction::Node(action) => self.act_on_node(&action),
            SimAction::Rc(action) => self.act_on_rc(&action),
            SimAction::Job(action) => self.act_on_job(&action),
            SimAction::Flow(action) => self.act_on_flow(&action),
            SimAction::Tenant(hostile) => {
                self.has_hostile = true;
                met(Occasion::HostileWritten);
                self.workload.write_hostile(hostile, &self.setup.jobs);
            }
        }
    }

    fn act_on_node(&self, action: &NodeAction) {
        let nodes = &self.nodes;
        match action {
            NodeAction::Label(n, pool) => nodes.label(&node(*n), pool.as_deref()),
            NodeAction::Ill(n, ill) => nodes.set_ill(&node(*n), *ill),
            NodeAction::AgentDown(n) => nodes.kill_agent(&node(*n)),
            NodeAction::AgentUp(n) => nodes.start_agent(&node(*n)),
            NodeAction::Crash(n) => nodes.crash(&node(*n)),
            NodeAction::AgentFreeze(n, frozen) => nodes.agents.freeze(&node(*n), *frozen),
            NodeAction::AgentCut(n, cut) => nodes.agents.weather(&node(*n), |w| w.cut = *cut),
            NodeAction::AgentDeaf(n, deaf) => nodes.agents.weather(&node(*n), |w| w.deaf = *deaf),
            NodeAction::AgentStorm(n, storm) => nodes.agents.storm(&node(*n), storm),
            NodeAction::AgentHide(n, tree) => {
                let tree = tree.as_ref().and_then(|tree| Prefix::parse(tree).ok());
                nodes.agents.weather(&node(*n), |w| w.hidden = tree);
            }
            NodeAction::AgentForbid(n, forbidden) => {
                nodes.agents.weather(&node(*n), |w| w.forbidden = *forbidden);
            }
            NodeAction::AgentSession(n) => nodes.end_session(&node(*n)),
            NodeAction::Drain(n, true) => nodes.drain(&node(*n), NodeState::Draining),
            NodeAction::Drain(n, false) => nodes.drain(&node(*n), NodeState::Ready),
        }
    }

    fn act_on_rc(&self, action: &RcAction) {
        let users = &self.workload;
        match action {
            RcAction::Mood(n, mood) => self.farms.moods().set(rc_id(*n), *mood),
            RcAction::Scale(n, count) => users.scale_rc(*n, *count),
            RcAction::Disable(n, disabled) => users.disable(*n, *disabled),
            RcAction::Tier(n, tier) => users.tier(*n, tier),
            RcAction::NodeSelector(n, selector) => users.select_nodes(*n, selector),
            RcAction::Malform(n) => users.malform_rc(*n),
            RcAction::BadLabels(n) => users.bad_labels(*n),
            RcAction::Mend(n) => users.mend_rc(*n, "web"),
            RcAction::Delete(n) => users.delete_rc(*n),
            RcAction::GivePod(from, to) => users.give_pod(*from, *to),
            RcAction::Deallocate(n) => users.deallocate(*n),
            RcAction::ScaleOffNode(n, record) => users.scale_off_node(&node(*n), *record),
            RcAction::DropIntent(n) => users.drop_rc_intent(*n),
            RcAction::Update(n, version) => users.update_manifest(*n, *version),
            RcAction::Squat(n, record) => users.squat(&node(*n), *record),
            RcAction::Unsquat(n, record) => users.unsquat(&node(*n), *record),
            RcAction::HoldLock(n, hold) => users.hold_lock(*n, *hold),
            RcAction::Litter => users.litter_rcs(),
        }
    }

    fn act_on_job(&self, action: &JobAction) {
        let users = &self.workload;
        let job = |n: usize| self.job(n).0;
        match action {
            JobAction::Submit(n) => users.submit(&job(*n), &self.job(*n).1),
            JobAction::Suspend(n, suspend) => users.suspend_job(&job(*n), *suspend),
            JobAction::Command(n, action) => {
                users.command(&job(*n), *action, Some(("w", Some(0))));
            }
            JobAction::Scale(n, count) => users.scale_job(&job(*n), *count),
            JobAction::Delete(n) => users.delete_job(&job(*n)),
            JobAction::Drop(n) => users.drop_job(&job(*n)),
            JobAction::Malform(n, how) => users.malform_job(&job(*n), *how),
            JobAction::Mend(n) => users.mend_job(&job(*n), &self.job(*n).1),
            JobAction::DropIntent(n) => users.drop_job_intent(&job(*n)),
            JobAction::CommandQueue(n, open) => users.command_queue(QUEUES[*n], *open),
            JobAction::Close(n, closed) => {
                let state = if *closed { "Closed" } else { "Open" };
                users.edit_queue(QUEUES[*n], |spec| spec["state"] = state.into());
            }
            JobAction::Limit(n, cpu) => {
                users.edit_queue(QUEUES[*n], |spec| spec["capability"]["cpu"] = (*cpu).into());
            }
            JobAction::MalformQueue(n) => users.malform_queue(QUEUES[*n]),
            JobAction::MendQueue(n) => users.mend_queue(QUEUES[*n]),
            JobAction::Configure(n) => users.configure_cells(*n),
            JobAction::Litter => users.litter_jobs(),
        }
    }

    fn act_on_flow(&self, action: &OwnerAction) {
        let users = &self.workload;
        let cron = |n: usize| key::cron_job(&cron_id(&self.setup.crons[n].0, n));
        let flow = |n: usize| key::job_flow(&flow_id(&self.setup.flows[n].0, n));
        match action {
            OwnerAction::CreateCron(n) => {
                users.create_record(&cron(*n), &cron_document(&self.setup.crons[*n].0));
            }
            OwnerAction::SuspendCron(n, suspend) => users.suspend_cron(&cron(*n), *suspend),
            OwnerAction::MalformCron(n, is_bad) => users.malform(&cron(*n), *is_bad),
            OwnerAction::DeleteCron(n) => users.mark_deleted(&cron(*n)),
            OwnerAction::DropCron(n) => users.drop_record(&cron(*n)),
            OwnerAction::CreateFlow(n) => {
                users.create_record(&flow(*n), &flow_document(&self.setup.flows[*n].0));
            }
            OwnerAction::MalformFlow(n, is_bad) => users.malform(&flow(*n), *is_bad),
            OwnerAction::DeleteFlow(n) => users.mark_deleted(&flow(*n)),
            OwnerAction::DropFlow(n) => users.drop_record(&flow(*n)),
            OwnerAction::Template(n, true) => {
                users.create_record(&key::job_template(&template_id(*n)), &template_document(*n));
            }
            OwnerAction::Template(n, false) => {
                users.drop_record(&key::job_template(&template_id(*n)))
            }
            OwnerAction::CommandJob(n, action) => users.command_made_job(*n, *action),
            OwnerAction::RemoveJob(n, by_hand) => users.remove_made_job(*n, *by_hand),
            OwnerAction::SubmitArray(n) => users.submit(&array_id(*n), &array_document()),
            OwnerAction::SubmitDependent(n, anyhow) => {
                users.submit(&dependent_id(*n, *anyhow), &dependent_document(*n, *anyhow));
            }
            OwnerAction::Dispatch(template, token) => users.dispatch(*template, *token),
        }
    }

    /// Makes CronJobs and JobFlows as they are wanted.
    fn heal_flows(&self) {
        (0..TEMPLATES.len()).for_each(|n| self.act_on_flow(&OwnerAction::Template(n, true)));
        for n in 0..self.setup.crons.len() {
            self.act_on_flow(&OwnerAction::SuspendCron(n, false));
            self.act_on_flow(&OwnerAction::MalformCron(n, false));
            self.act_on_flow(&OwnerAction::CreateCron(n));
        }
        for n in 0..self.setup.flows.len() {
            self.act_on_flow(&OwnerAction::MalformFlow(n, false));
            self.act_on_flow(&OwnerAction::CreateFlow(n));
        }
        for n in 0..self.setup.sweeps {
            self.act_on_flow(&OwnerAction::SubmitArray(n));
            self.act_on_flow(&OwnerAction::SubmitDependent(n, false));
            self.act_on_flow(&OwnerAction::SubmitDependent(n, true));
        }
    }

    fn job(&self, n: usize) -> (Namespaced, serde_json::Value) {
        let (kind, n) = &self.setup.jobs[n];
        (job_id(kind, *n), document(kind, *n))
    }

    /// Ends every fault, and resumes whatever users stopped.
    fn heal(&mut self) {
        self.say("the faults have ended".to_owned());
        self.farms.heal(self.mix.jobs);
        self.farms.moods().clear();
        if self.setup.poisoned {
            self.farms.moods().set(rc_id(POISONED), Some(Mood::Panics));
        }
        self.nodes.calm();
        for n in 0..self.nodes.count() {
            self.heal_node(n);
        }
        if self.mix.services {
            for n in 0..RECORDS {
                self.workload.hold_lock(n, false);
                self.workload.mend_rc(n, "web");
            }
        }
        if self.mix.jobs {
            QUEUES.iter().for_each(|name| self.workload.mend_queue(name));
            if self.mix.cells {
                self.workload.configure_cells(0);
            }
            for n in 0..self.setup.jobs.len() {
                let (id, wanted) = self.job(n);
                self.workload.mend_job(&id, &wanted);
                self.workload.submit(&id, &wanted);
            }
        }
        if self.mix.flows {
            self.heal_flows();
        }
        self.checker.healed();
    }

    fn heal_node(&self, n: usize) {
        let (nodes, name) = (&self.nodes, node(n));
        nodes.label(&name, Some("web"));
        if self.setup.lost == Some(n) {
            nodes.crash(&name);
        } else if nodes.agents.has(&name) {
            nodes.keep_agent(&name);
        } else if self.mix.jobs && nodes.has_own_agent(n) {
            nodes.start_agent(&name);
        } else if nodes.has_agent(&name) {
            nodes.keep_agent(&name);
        } else {
            nodes.drain(&name, NodeState::Ready);
        }
    }

    // ---- what must come about ----------------------------------------------------------------------------

    fn unsettled(&self) -> Option<(u32, String)> {
        let live = self.farms.live();
        let records: Vec<RcId> = (0..RECORDS).map(rc_id).collect();
        self.checker.look(|model, facts| liveness::unsettled(model, facts, &live, &records))
    }

    /// Waits until everything is settled. What is not settled within `limit` violates `invariant`, or its own
    /// invariant.
    async fn wait_for_all(&mut self, limit: Duration, invariant: u32, after: &str, look: Duration) {
        let deadline = monotonic() + limit;
        while let Some((own, what)) = self.unsettled() {
            if monotonic() >= deadline {
                let invariant = match own {
                    27 if self.has_hostile => 30,
                    27 => invariant,
                    _ => own,
                };
                self.checker.violated(invariant, format!("not within {limit:?} {after}: {what}"));
                return;
            }
            if self.mix.jobs {
                self.workload.resume_all();
            }
            if self.mix.flows {
                self.workload.free_names();
            }
            self.farms.until(monotonic() + look).await;
        }
        met_if(self.has_hostile, Occasion::SettledBesideHostile);
        met_if(
            self.has_hostile && self.checker.look(|model, _| reported(model)),
            Occasion::HostileReported,
        );
        self.say("everything is as asked for".to_owned());
    }

    /// Invariant 27: everything settles.
    async fn settle(&mut self) {
        let services = if self.farms.restored { AFTER_RESTORE } else { SETTLES_WITHIN };
        let jobs = if self.mix.jobs { JOBS_END_WITHIN } else { Duration::ZERO };
        let after = if self.farms.restored { AFTER_RESTORE } else { Duration::ZERO };
        let limit = services.max(jobs + after.saturating_sub(SETTLES_WITHIN));
        self.wait_for_all(limit, 27, "of the faults", Duration::from_millis(250)).await;
    }

    /// Invariants 29 and 12: then nothing happens any more, not even because of a bad record.
    async fn rest(&mut self) {
        self.farms.until(monotonic() + Duration::from_secs(5)).await;
        let since = monotonic() - self.start;
        let (before, asked) = (self.farms.requests(), self.farms.moods().asked(rc_id(POISONED)));
        let of_agents = self.nodes.agents.requests();
        self.farms.until(monotonic() + REST).await;
        if let Some(process) = self.checker.sessions_ended(since).first() {
            self.checker.violated(12, format!("a session of #{process} ended while all was well"));
        }
        for (process, now) in self.farms.requests() {
            let count = now - before.get(&process).copied().unwrap_or(0);
            // After a restored snapshot, farms are busy until they have read everything.
            if count > REQUESTS_AT_REST && !self.farms.restored {
                let what = format!("#{process} made {count} requests in {REST:?} of rest");
                self.checker.violated(29, what);
            }
        }
        for (node, now) in self.nodes.agents.requests() {
            let count = now - of_agents.get(&node).copied().unwrap_or(0);
            if count > AGENT_REQUESTS_AT_REST {
                let what = format!("the agent of {node} made {count} requests in {REST:?} of rest");
                self.checker.violated(29, what);
            }
        }
        met_if(self.setup.poisoned, Occasion::PoisonedAtRest);
        let looks = self.farms.moods().asked(rc_id(POISONED)) - asked;
        if looks > LOOKS_AT_REST {
            let what =
                format!("a record that always fails was looked at {looks} times in {REST:?}");
            self.checker.violated(29, what);
        }
        // The record may be changing its owner.
        let second = Duration::from_secs(1);
        self.wait_for_all(second, 27, "of rest: it did not last", second / 20).await;
    }

    /// Invariant 28: another farm takes over from one that ends while jobs are running.
    async fn take_over(&mut self) {
        if self.mix.jobs {
            let wide = KINDS[KINDS.len() - 1];
            for (kind, n) in [("one", 90), ("gang", 91), ("steps", 92), (wide, 93)] {
                self.workload.submit(&job_id(kind, n), &document(kind, n));
            }
            self.farms.until(monotonic() + Duration::from_secs(1)).await;
        }
        if self.mix.cells {
            // All cells are lent, and the farm ends while some of them are taken back.
            self.workload.submit(&job_id("hog", 94), &document("hog", 94));
            self.farms.until(monotonic() + Duration::from_secs(4)).await;
            for (kind, n) in [("own", 96), ("own", 97)] {
                self.workload.submit(&job_id(kind, n), &document(kind, n));
            }
            self.farms.until(monotonic() + Duration::from_millis(600)).await;
            let reserves = |model: &SimModel| {
                model.jobs.group_statuses.values().any(|status| status.reservation.is_some())
            };
            met_if(self.checker.look(|model, _| reserves(model)), Occasion::ReservedAtDeath);
        }
        let (limit, signal) = self.farms.end_one();
        met_if(self.unsettled().is_some(), Occasion::OwnerEnded);
        // Opportunistic jobs run one after the other where cells are lent.
        let jobs = if self.mix.cells { 3 } else { u32::from(self.mix.jobs) };
        let limit = limit + A_JOB_TAKES * jobs;
        let look = Duration::from_millis(50);
        self.wait_for_all(limit, 28, &format!("after {signal}"), look).await;
    }
}

/// Whether a status says that a record of the hostile tenant is not valid.
fn reported(model: &SimModel) -> bool {
    let mut jobs = model.jobs.statuses.iter().filter(|(id, _)| is_hostile(id));
    jobs.any(|(_, status)| status.state.reason == "InvalidRecord")
}
