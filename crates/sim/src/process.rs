//! A simulated farm daemon: started, killed, stopped, frozen, restarted.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::checker::Checker;
use crate::facts::{SimActor, SimProcess};
use crate::network::{Link, Network};
use crate::rng::SimRng;
use crate::schedule::FarmDesign;
use crate::scheduler::{Moods, Odd};
use rcfarm::daemon::MakeScheduler;
use rcfarm::daemon::selector_scheduler;
use rcfarm::farm::{Farm, FarmError, FarmSettings, NODE_GRACE};
use rcfarm::placement::NoDiscovery;
use rcfarm_emulator::Emulator;
use rcfarm_store::Env;
use rcfarm_store::TxnLimits;
use rcfarm_store::failpoints::Freezer;
use rcfarm_store::session::SessionSettings;
use rcfarm_store::time::{Clock, IdSource};
use rcfarm_testing::clock::VirtualClock;

/// Configuration of a farm, for every start.
#[derive(Debug, Clone)]
pub struct Design {
    /// Name and selector.
    pub process: SimProcess,
    /// TTLs of its check and session.
    pub session: SessionSettings,
    /// Its limits of one transaction.
    pub limits: TxnLimits,
    /// It runs a newer version than the others.
    pub is_newer: bool,
}

impl Design {
    /// From a schedule.
    ///
    /// # Panics
    /// If its name or selector cannot be read.
    #[must_use]
    pub fn of(design: &FarmDesign) -> Design {
        let farm = design.name.parse().expect("a farm's name");
        let selector = design.selector.parse().expect("a selector");
        let check_ttl = design.check_ttl_ms.map(Duration::from_millis);
        let session = SessionSettings { check_ttl, session_ttl: design.session_ttl };
        let default = TxnLimits::default();
        let limits = TxnLimits { ops: design.ops.unwrap_or(default.ops), ..default };
        let process = SimProcess { farm, selector };
        Design { process, session, limits, is_newer: design.is_newer }
    }
}

/// One start of a farm.
pub struct RunningFarm {
    /// Its number, unique among all starts.
    pub number: u32,
    /// Its connection.
    pub link: Arc<Link>,
    /// Freezes it.
    pub freezer: Freezer,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), FarmError>>,
}

/// How a process ended by itself.
pub enum Ended {
    /// It was stopped, or it must not run.
    Orderly,
    Panicked(String),
}

/// Environment of a process.
pub struct ProcessEnv<'a> {
    /// The store.
    pub consul: &'a Emulator,
    pub checker: &'a Arc<Checker>,
    /// The machine's clock.
    pub clock: &'a Arc<VirtualClock>,
    /// How its scheduler misbehaves.
    pub moods: &'a Arc<Moods>,
}

impl RunningFarm {
    #[must_use]
    pub fn start(
        number: u32,
        design: &Design,
        env: &ProcessEnv<'_>,
        rng: &mut SimRng,
    ) -> RunningFarm {
        let link = Link::new(SimActor::Process(number), design.is_newer, rng.fork());
        env.checker.process(number, design.process.clone(), env.clock);
        let store = Network::new(env.consul.clone(), link.clone(), env.checker.clone());
        let settings = FarmSettings {
            name: design.process.farm.clone(),
            selector: design.process.selector.clone(),
            session: design.session.clone(),
            limits: design.limits,
            node_grace: NODE_GRACE,
            job_ttl: None,
            ssh_keys: rcfarm_store::sealing::KeySealing::Refused,
            finds_leftovers: false,
        };
        let clock: Arc<dyn Clock> = env.clock.clone();
        let ids = Arc::new(IdSource::from_seed(rng.seed()));
        let moods = env.moods.clone();
        let env = Env::new(store, clock, ids);
        let scheduler: MakeScheduler = Box::new(move |view| {
            let by_labels = selector_scheduler(view);
            Arc::new(Odd::new(by_labels, moods))
        });
        let farm = Farm::of_all_kinds(settings, env, scheduler, Arc::new(NoDiscovery));
        let (freezer, shutdown) = (Freezer::default(), CancellationToken::new());
        let task = tokio::spawn(freezer.process(farm.run(shutdown.clone())));
        RunningFarm { number, link, freezer, shutdown, task }
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.task.abort();
    }

    /// SIGTERM.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }

    /// How it ended, if it has.
    pub async fn ended(&mut self) -> Option<Ended> {
        if !self.task.is_finished() {
            return None;
        }
        Some(match (&mut self.task).await {
            Err(error) if error.is_panic() => Ended::Panicked(error.to_string()),
            _ => Ended::Orderly,
        })
    }
}
